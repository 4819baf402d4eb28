"""The way out: frames wait for their ICRC, which is put in its place, and share the cable with frames of the host."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from optinic.stream.packet import AxiStreamSignature
from optinic.stream.push import PushSignature

from .host_queue import MIN_FRAME, HostQueue

__all__ = ["Egress", "frame_beat_layout", "DEPTH"]

DEPTH = 32      #: beats and ICRCs in the queue


def frame_beat_layout(cfg):
    """A beat of a frame, all zero where its ICRC will be and behind that.

    Headers, payload with pad, and ICRC all end at lane 4 g + 2 of some beat; lanes 4 g + 2 to 4 g + 5 are group g. `insert`: the
    group where the ICRC goes. The last group is half in the next beat, which is the `last` one then and marked `wrap`. `keep`:
    groups that belong to the frame; lanes 0 and 1 always do. `runt`: 58 bytes, sent as 60.
    """
    groups = cfg.beat_bytes // 4
    return StructLayout({"data": cfg.data_width, "last": 1, "insert": groups, "wrap": 1, "keep": groups, "runt": 1})


class Egress(wiring.Component):
    """`beat` is never refused: its source has at most DEPTH beats between itself and `popped`. `icrc` brings those of the
    frames in order. A beat can leave `delay` cycles after it came, or later; if its frame's ICRC is in it, that must have come
    by then. (So the frame's memory is also the delay line that the ICRC takes.) One beat each cycle to `mac`, from a register.

    Ours and the host's frames take turns when both wait. `enable` 0: no frame begins; one that has begun is finished. The same
    for those of the host alone, `host_enable`. A frame of the host has no gap, see HostQueue; nor has one of ours, if each of
    its beats can leave in time, see FrameBuilder.

    `frame_sent`, `host_frame_sent`: the last beat of one has moved to the register, two cycles ago; with either one `sent_bytes`:
    how many bytes it had, modulo 65536.
    """

    def __init__(self, cfg, delay):
        self.cfg, self.delay = cfg, delay
        super().__init__({
            "beat": In(PushSignature(frame_beat_layout(cfg))), "icrc": In(PushSignature(32)),
            "popped": Out(1), "enable": In(1), "host_enable": In(1, init=1),
            "mac": Out(AxiStreamSignature(cfg.data_width)),
            "frame_sent": Out(1), "host_frame_sent": Out(1), "sent_bytes": Out(16),
            "idle": Out(1),
        } | ({"host": In(AxiStreamSignature(cfg.data_width))} if cfg.pass_through else {}))

    def elaborate(self, platform):
        m = Module()
        cfg, mac, lanes = self.cfg, self.mac, self.cfg.beat_bytes

        # -- our frames
        came = Signal(self.delay - 1)
        seen = Signal(range(2 * DEPTH))
        tail = Signal(range(2 * DEPTH))
        frame_tail = Signal(range(DEPTH))
        m.d.sync += [came.eq(Cat(self.beat.valid, came)), seen.eq(seen + came[-1])]
        beat = frame_beat_layout(cfg)(self._queue(m, "beats", self.beat, tail))
        icrc = self._queue(m, "icrcs", self.icrc, frame_tail)
        waiting = Signal()
        m.d.comb += waiting.eq(seen != tail)

        # -- whose beat goes next
        move = Signal()
        within = Signal()       # a frame has begun
        theirs = Signal()       # it is the host's, or the next one is
        take = Signal()
        take_host = Signal()
        last = Signal()
        m.d.comb += [
            move.eq(~mac.tvalid | mac.tready), take.eq(move & waiting & ~theirs & (within | self.enable)), last.eq(beat.last),
            self.popped.eq(take),
        ]
        host = None
        if cfg.pass_through:
            m.submodules.host_queue = queue = HostQueue(cfg)
            wiring.connect(m, wiring.flipped(self.host), queue.host)
            host = queue.beats.payload
            go = queue.go & self.host_enable
            m.d.comb += [
                take_host.eq(move & queue.beats.valid & theirs & (within | (self.enable & go))),
                queue.beats.ready.eq(take_host), last.eq(Mux(theirs, host.last, beat.last)),
            ]
            ended = (take | take_host) & last
            with m.If(ended | ~(within | take | take_host)):
                # nothing of the chosen side: the other one's turn
                with m.If(theirs):
                    m.d.sync += theirs.eq(Mux(ended, ~waiting, queue.beats.valid & go))
                with m.Else():
                    m.d.sync += theirs.eq(go & (ended | ~waiting))
        with m.If(take | take_host):
            m.d.sync += within.eq(~last)
        m.d.sync += [tail.eq(tail + take), frame_tail.eq(frame_tail + (take & last))]

        # -- the register at the cable
        data = Signal(cfg.data_width, reset_less=True)
        keep = Signal(lanes, reset_less=True)
        out_last = Signal(reset_less=True)
        with m.If(move):
            lanes_next = [self._lane(lane, beat, icrc, theirs, host) for lane in range(lanes)]
            m.d.sync += [data.eq(Cat(byte for byte, _ in lanes_next)), keep.eq(Cat(kept for _, kept in lanes_next)),
                         out_last.eq(last), mac.tvalid.eq(take | take_host)]
        m.d.comb += [mac.tdata.eq(data), mac.tkeep.eq(keep), mac.tlast.eq(out_last), mac.tuser.eq(0)]

        self._count(m, take, take_host, last, keep)
        host_idle = Signal(init=1)      # a cycle late, as nobody hands frames over to the host's queue here
        if cfg.pass_through:
            m.d.sync += host_idle.eq(queue.idle | ~self.host_enable)
        m.d.comb += self.idle.eq(host_idle & ~mac.tvalid & (seen == tail) & ~came.any())
        return m

    def _lane(self, lane, beat, icrc, theirs, host):
        """The byte of a lane, with the ICRC in its place, and whether it belongs to the frame."""
        lanes = self.cfg.beat_bytes
        group = (lane - 2) // 4             # lanes 0 and 1 end the last group, begun in the beat before
        insert, ours = (beat.insert[group], beat.keep[group]) if group >= 0 else (beat.wrap, Const(1, 1))
        byte = slice(8 * lane, 8 * lane + 8)
        if lane in ((MIN_FRAME - 2) % lanes, (MIN_FRAME - 1) % lanes):
            ours |= beat.runt
        value = (beat.data[byte] & (~theirs).replicate(8)
                 | icrc.word_select((lane - 2) % 4, 8) & (insert & ~theirs).replicate(8))
        if host is None:
            return value, ours
        padded = host.short if lane <= (MIN_FRAME - 1) % lanes else 0
        return (value | host.data[byte] & (theirs & host.keep[lane]).replicate(8),
                Mux(theirs, ~host.last | host.keep[lane] | padded, ours))

    def _queue(self, m, name, port, tail):
        """Memory of what `port` brings; the entry at `tail`."""
        payload = Value.cast(port.payload)
        m.submodules[name] = ram = Memory(shape=unsigned(len(payload)), depth=DEPTH, init=[], attrs={"ram_style": "distributed"})
        write, read = ram.write_port(), ram.read_port(domain="comb")
        head = Signal(range(DEPTH), name=f"{name}_head")
        m.d.sync += head.eq(head + port.valid)
        m.d.comb += [write.en.eq(port.valid), write.addr.eq(head), write.data.eq(payload), read.addr.eq(tail)]
        return read.data

    def _count(self, m, take, take_host, last, keep):
        """Sizes from what is in the register; tkeep is a thermometer: bit j of its length toggles at each multiple of 2^j."""
        lane_bits = self.cfg.beat_bytes.bit_length() - 1
        beats = Signal(16 - lane_bits)          # before the one that moves
        whole = Signal.like(beats, reset_less=True)
        sent = Signal()
        host_sent = Signal()
        with m.If(take | take_host):
            m.d.sync += beats.eq(Mux(last, 0, beats + 1))
        more = Cat(keep[(1 << j) - 1::1 << j].xor() for j in range(lane_bits))
        m.d.sync += [
            sent.eq(take & last), host_sent.eq(take_host & last), whole.eq(beats),
            self.frame_sent.eq(sent), self.host_frame_sent.eq(host_sent), self.sent_bytes.eq(Cat(more, whole + (more == 0))),
        ]
