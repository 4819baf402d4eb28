"""From beats of the packet buffer to beats of the bus: rotate to the target's alignment, then merge neighbours."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.structs import CQE
from optinic.rx.pipeline import FixedPipe
from optinic.stream.lanes import lane_mask
from optinic.stream.push import PushSignature

__all__ = ["Aligner", "step_layout", "beat_layout", "CQE_BITS", "cqe_beats"]

CQE_BITS = 8 * CQE.size


def cqe_beats(data_width):
    """Bus beats that a CQE takes."""
    return max(1, CQE_BITS // data_width)


def step_layout(data_width):
    """What becomes of one beat read from the packet buffer, or of one beat of a CQE (`inline`)."""
    lane = range(data_width // 8)
    return StructLayout({
        "dest": 1,          # a bus beat comes out of this step
        "wlast": 1,         # and it is the last one of its burst
        "alone": 1,         # the bus beat needs nothing of the next step
        "early": 1,         # the target's first lane is below the source's: a bus beat is the end of this step and
                            # the start of the next one
        "rotate": lane,     # bytes upwards
        "low": lane, "high": lane,      # first and last lane of the bus beat with data
        "inline": 1, "part": range(cqe_beats(data_width)), "inline_last": 1,
    })


def beat_layout(data_width):
    return StructLayout({"data": data_width, "strb": data_width // 8, "last": 1})


class Aligner(wiring.Component):
    """One step each cycle at most, none is ever held back: who gives a step has room for its bus beat.

    `step` goes with the `rd_data` of the same cycle. Bytes move upwards by `rotate` lanes, and those that fall out at the top
    belong one bus beat later; a bus beat is put together from this step and the one before, or (`early`) from this step and
    the next one of the same job, which may come any time later. `beat` follows its step, or the next one, by
    ``latency + 2`` cycles, in order.

    A CQE's steps take `cqe_data` instead, the lowest CQE not yet taken; `cqe_taken` says that its last beat is through.
    """

    def __init__(self, data_width):
        self.width = data_width
        self.lanes = data_width // 8
        self.lane_bits = (self.lanes - 1).bit_length()
        self.latency = -(-self.lane_bits // 2)      # registers of the rotator, each one a 4:1 multiplexer
        super().__init__({
            "step": In(PushSignature(step_layout(data_width))), "rd_data": In(data_width),
            "cqe_data": In(CQE_BITS), "cqe_taken": Out(1),
            "beat": Out(PushSignature(beat_layout(data_width))),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, end = self.lanes, self.latency
        step = self.step.payload
        valid = self.step.valid
        for i in range(end):
            now = Signal(name=f"valid{i + 1}")
            m.d.sync += now.eq(valid)
            valid = now

        pipe = FixedPipe(m, "rot")
        for name in ("dest", "wlast", "alone", "early", "rotate", "low", "high", "inline", "part", "inline_last"):
            pipe.put(name, 1, getattr(step, name))
        rotated = self._rotate(m, pipe)

        # lane masks one cycle ahead of the rotated beat
        before = end - 1
        rotate, low, high = (pipe.get(n, before) if before else getattr(step, n) for n in ("rotate", "low", "high"))
        above = pipe.put("above", end, lane_mask(rotate, lanes, lambda lane, n: lane < n))      # came around the top
        from_low = pipe.put("from_low", end, lane_mask(low, lanes, lambda lane, n: lane >= n))
        to_high = pipe.put("to_high", end, lane_mask(high, lanes, lambda lane, n: lane <= n))

        # fetched out here: a register that FixedPipe makes inside of m.If would stall with it
        dest, wlast, alone, early, inline, part, inline_last = (
            pipe.get(n, end) for n in ("dest", "wlast", "alone", "early", "inline", "part", "inline_last"))
        merge = _Held(m, self.width)
        with m.If(valid):
            m.d.sync += [
                merge.previous.eq(merge.data), merge.data.eq(rotated), merge.strb.eq(from_low & to_high),
                merge.wlast.eq(wlast), merge.alone.eq(alone), merge.part.eq(part),
            ]
            # per lane, which of four sources: this beat, the one before, the next one, the CQE
            for lane in range(lanes):
                m.d.sync += merge.source[lane].eq(Cat(inline | (~early & above[lane]), inline | (early & ~above[lane])))
        send = Signal()
        m.d.comb += send.eq(merge.pending & (merge.alone | valid))
        with m.If(valid):
            m.d.sync += merge.pending.eq(dest)
        with m.Elif(send):
            m.d.sync += merge.pending.eq(0)
        m.d.sync += merge.inline_end.eq(valid & inline & inline_last)
        m.d.comb += self.cqe_taken.eq(merge.inline_end)

        out = Signal(beat_layout(self.width), reset_less=True)
        cqe = self._cqe_lanes(merge.part)
        for lane in range(lanes):
            byte = slice(8 * lane, 8 * lane + 8)
            sel = merge.source[lane]
            m.d.sync += out.data[byte].eq(Mux(sel[1], Mux(sel[0], cqe[byte], rotated[byte]),
                                              Mux(sel[0], merge.previous[byte], merge.data[byte])))
        m.d.sync += [out.strb.eq(merge.strb), out.last.eq(merge.wlast), self.beat.valid.eq(send)]
        m.d.comb += self.beat.payload.eq(out)
        return m

    def _rotate(self, m, pipe):
        data = self.rd_data
        for i in range(self.latency):
            digit = self.step.payload.rotate if i == 0 else pipe.get("rotate", i)
            digit = digit[2 * i:2 * i + 2]
            ways = [data.rotate_left(8 * (k << 2 * i)) for k in range(1 << len(digit))]
            nxt = Signal(self.width, name=f"rotated{i + 1}", reset_less=True)
            if len(ways) == 4:
                m.d.sync += nxt.eq(Mux(digit[1], Mux(digit[0], ways[3], ways[2]), Mux(digit[0], ways[1], ways[0])))
            else:
                m.d.sync += nxt.eq(Mux(digit[0], ways[1], ways[0]))
            data = nxt
        return data

    def _cqe_lanes(self, part):
        if self.width >= CQE_BITS:
            return Cat(self.cqe_data for _ in range(self.width // CQE_BITS))
        return self.cqe_data.word_select(part, self.width)


class _Held:
    """The step whose bus beat is being put together."""

    def __init__(self, m, width):
        lanes = width // 8
        self.pending = Signal(name="held_pending")
        self.inline_end = Signal(name="held_inline_end")
        self.data = Signal(width, name="held_data", reset_less=True)
        self.previous = Signal(width, name="held_previous", reset_less=True)
        self.strb = Signal(lanes, name="held_strb", reset_less=True)
        self.wlast = Signal(name="held_wlast", reset_less=True)
        self.alone = Signal(name="held_alone", reset_less=True)
        self.part = Signal(range(cqe_beats(width)), name="held_part", reset_less=True)
        self.source = [Signal(2, name=f"held_source{i}", reset_less=True) for i in range(lanes)]
