"""What each kind of stream promises, as components that watch one and point at the side that broke the promise.

The same component serves in two ways. In simulation it is a monitor: connect it with `watch` and look at
`source_fault` and `sink_fault`. In a formal check the flags of the design's side are asserted never to be set, and
those of the other side are assumed never to be set, so that the environment is any legal one.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, Shape
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.axi.signatures import ID_BITS, AxiLiteSignature, AxiReadSignature, AxiWriteSignature, burst_bytes
from optinic.stream.packet import AxiStreamSignature

__all__ = ["StreamContract", "PacketContract", "AxiWriteContract", "AxiReadContract", "AxiLiteContract"]

_INCR = 1


class _Contract(wiring.Component):
    """Inputs named as the members of the watched port, and one struct of fault flags for each side.

    A flag is high in the cycle of the offence, without latency; flags don't hold.
    """

    def __init__(self, watched, source, sink, **more):
        self._watched = list(watched)
        super().__init__({
            **{name: In(shape) for name, shape in watched.items()}, **more,
            "source_fault": Out(StructLayout({name: 1 for name in source})),
            "sink_fault": Out(StructLayout({name: 1 for name in sink})),
        })

    def watch(self, port):
        """Statements for the `comb` domain that connect every input to the same member of `port`."""
        return [getattr(self, name).eq(_bits(getattr(port, name))) for name in self._watched]

    def _held(self, m, faults, channel, valid, ready, payload):
        """What every channel has in common: an offer stays, unchanged, until it is accepted."""
        waiting = Signal(name=f"{channel}_waiting")
        offered = Signal(len(payload), name=f"{channel}_offered", reset_less=True)
        m.d.sync += [waiting.eq(valid & ~ready), offered.eq(payload)]
        prefix = f"{channel}_" if channel else ""
        m.d.comb += [
            faults[f"{prefix}dropped"].eq(waiting & ~valid),
            faults[f"{prefix}changed"].eq(waiting & valid & (payload != offered)),
        ]


def _bits(value):
    return value.as_value() if hasattr(value, "as_value") else value


def _hold_flags(*channels):
    return [f"{c}_{what}" if c else what for c in channels for what in ("dropped", "changed")]


def _members(signature):
    """name -> shape of every member of a flat signature."""
    return {name: member.shape for name, member in signature.members.items()}


class StreamContract(_Contract):
    """An `amaranth.lib.stream`: once valid, it stays valid and keeps its payload until ready. A sink may do as it likes."""

    def __init__(self, payload_shape):
        width = Shape.cast(payload_shape).width
        super().__init__({"payload": width, "valid": 1, "ready": 1}, _hold_flags(""), ())

    def elaborate(self, platform):
        m = Module()
        self._held(m, self.source_fault, "", self.valid, self.ready, self.payload)
        return m

    def watch_stream(self, payload, valid, ready):
        """As `watch`, for a handshake that is no `amaranth.lib.stream`."""
        return [self.payload.eq(_bits(payload)), self.valid.eq(valid), self.ready.eq(ready)]


class PacketContract(_Contract):
    """AxiStreamSignature: a held handshake; tkeep contiguous from bit 0, never zero, and all ones but on the last beat."""

    def __init__(self, data_width):
        super().__init__(_members(AxiStreamSignature(data_width)),
                         [*_hold_flags(""), "keep_gap", "keep_none", "keep_partial"], ())

    def elaborate(self, platform):
        m = Module()
        f = self.source_fault
        self._held(m, f, "", self.tvalid, self.tready, Cat(self.tdata, self.tkeep, self.tlast, self.tuser))
        m.d.comb += [
            f.keep_gap.eq(self.tvalid & (self.tkeep & (self.tkeep + 1)).any()),
            f.keep_none.eq(self.tvalid & (self.tkeep == 0)),
            f.keep_partial.eq(self.tvalid & ~self.tlast & ~self.tkeep.all()),
        ]
        return m


def _burst_faults(m, faults, width, valid, addr, length, size, burst):
    """Incrementing bursts of full-width beats that stay inside one `burst_bytes` block."""
    limit, step = burst_bytes(width), width // 8
    inside = Signal(range(limit), name="first_byte")
    end = Signal(range(2 * limit), name="burst_end")
    m.d.comb += [inside.eq(addr), end.eq((inside // step + length + 1) * step)]
    m.d.comb += [
        faults.boundary.eq(valid & (end > limit)),
        faults.size.eq(valid & ((size != step.bit_length() - 1) | (burst != _INCR))),
    ]


class AxiWriteContract(_Contract):
    """The three write channels of AXI4 (ARM IHI 0022), full-width incrementing bursts.

    Source (master): AW and W held; a burst stays inside `burst_bytes`; wlast is on the beat that awlen says, and on no
    other, whether data come before or after their address; at most `depth` bursts unanswered, and as many ahead of
    their address. Sink (slave): B held; one B a burst, after its address and its last beat were accepted; with the ID of
    the oldest unanswered burst, which is what AXI asks within one ID.
    """

    def __init__(self, data_width, id_width=ID_BITS, *, depth=4):
        self.data_width, self.depth = data_width, depth
        super().__init__(_members(AxiWriteSignature(data_width, id_width)),
                         [*_hold_flags("aw", "w"), "boundary", "size", "last", "many"],
                         [*_hold_flags("b"), "unasked", "id"])

    def elaborate(self, platform):
        m = Module()
        f, depth = self.source_fault, self.depth
        self._held(m, f, "aw", self.awvalid, self.awready,
                   Cat(self.awid, self.awaddr, self.awlen, self.awsize, self.awburst))
        self._held(m, f, "w", self.wvalid, self.wready, Cat(self.wdata, self.wstrb, self.wlast))
        self._held(m, self.sink_fault, "b", self.bvalid, self.bready, Cat(self.bid, self.bresp))
        _burst_faults(m, f, self.data_width, self.awvalid, self.awaddr, self.awlen, self.awsize, self.awburst)
        aw, w = self.awvalid & self.awready, self.wvalid & self.wready

        # unanswered bursts by age; the data of the first `complete` of them are through
        lengths = [Signal(8, name=f"length{i}", reset_less=True) for i in range(depth + 1)]
        ids = [Signal.like(self.awid, name=f"id{i}", reset_less=True) for i in range(depth + 1)]
        known = Signal(range(depth + 1))
        complete = Signal(range(depth + 1))
        b = self.bvalid & self.bready & (complete != 0)     # an answer to nothing is a fault, and forgotten
        # data bursts whose address is still to come
        early = [Signal(8, name=f"early{i}", reset_less=True) for i in range(depth + 1)]
        ahead = Signal(range(depth + 1))
        beat = Signal(8)
        with m.If(w):
            m.d.sync += beat.eq(beat + 1)
            with m.If(self.wlast):
                m.d.sync += beat.eq(0)
        ends = w & self.wlast
        # length of the burst that the beat belongs to, if it is known
        expect = Signal(8)
        expected = Signal()
        with m.If(complete < known):
            m.d.comb += [expect.eq(_pick(lengths, complete)), expected.eq(1)]
        with m.Elif(ahead == 0):
            m.d.comb += [expect.eq(self.awlen), expected.eq(aw)]
        meets = aw & (ahead != 0)                   # the address of data that are through already
        m.d.comb += f.last.eq((w & expected & (self.wlast != (beat == expect)))
                              | (w & ~expected & ~self.wlast & (beat == 255))
                              | (meets & (self.awlen != early[0]))
                              | (aw & ~meets & (complete == known) & ~w & (beat > self.awlen)))

        m.d.comb += f.many.eq((aw & ~b & (known == depth)) | (ends & ~expected & (ahead == depth)))
        m.d.sync += [known.eq(known + aw - b), complete.eq(complete + ((ends & expected) | meets) - b),
                     ahead.eq(ahead + (ends & ~expected) - meets)]
        _queue(m, lengths, known, aw, b, self.awlen)
        _queue(m, ids, known, aw, b, self.awid)
        _queue(m, early, ahead, ends & ~expected, meets, beat)
        m.d.comb += [
            self.sink_fault.unasked.eq(self.bvalid & (complete == 0)),
            self.sink_fault.id.eq(self.bvalid & (complete != 0) & (self.bid != ids[0])),
        ]
        return m


def _pick(entries, index):
    value = entries[-1]
    for i, entry in reversed(list(enumerate(entries[:-1]))):
        value = Mux(index == i, entry, value)
    return value


def _queue(m, entries, count, push, pop, value):
    """A shift queue: entry 0 is the oldest."""
    with m.If(pop):
        m.d.sync += [a.eq(b) for a, b in zip(entries, entries[1:])]
    for i, entry in enumerate(entries):
        with m.If(push & (count - pop == i)):
            m.d.sync += entry.eq(value)


class AxiReadContract(_Contract):
    """The two read channels of AXI4, full-width incrementing bursts, of which each ID has one in flight at most.

    Source (master): AR held; a burst stays inside `burst_bytes`; no ID is used again before its rlast. Sink (slave): R
    held; a beat only for an ID that is in flight; rlast on the beat that arlen says. Between IDs any order is legal.
    """

    def __init__(self, data_width, id_width=ID_BITS):
        self.data_width, self.id_width = data_width, id_width
        super().__init__(_members(AxiReadSignature(data_width, id_width)),
                         [*_hold_flags("ar"), "boundary", "size", "reuse"], [*_hold_flags("r"), "unasked", "last"])

    def elaborate(self, platform):
        m = Module()
        f = self.source_fault
        self._held(m, f, "ar", self.arvalid, self.arready,
                   Cat(self.arid, self.araddr, self.arlen, self.arsize, self.arburst))
        self._held(m, self.sink_fault, "r", self.rvalid, self.rready, Cat(self.rid, self.rdata, self.rresp, self.rlast))
        _burst_faults(m, f, self.data_width, self.arvalid, self.araddr, self.arlen, self.arsize, self.arburst)
        ar, r = self.arvalid & self.arready, self.rvalid & self.rready
        for i in range(1 << self.id_width):
            busy = Signal(name=f"busy{i}")
            left = Signal(8, name=f"left{i}", reset_less=True)
            asked, answered = self.arid == i, self.rid == i
            with m.If(r & answered):
                m.d.sync += left.eq(left - 1)
                with m.If(self.rlast):
                    m.d.sync += busy.eq(0)
            with m.If(ar & asked):
                m.d.sync += [busy.eq(1), left.eq(self.arlen)]
            with m.If(self.arvalid & asked & busy):
                m.d.comb += f.reuse.eq(1)
            with m.If(self.rvalid & answered):
                m.d.comb += [self.sink_fault.unasked.eq(~busy), self.sink_fault.last.eq(busy & (self.rlast != (left == 0)))]
        return m


class AxiLiteContract(_Contract):
    """AXI4-Lite. Source (master): AW, W and AR held, at most `depth` of each unanswered. Sink (slave): B and R held; a B for
    each pair of AW and W, an R for each AR, after they were accepted; and, with `within`, not later than that many
    cycles after the request stood there whole, unless the master holds back an earlier answer.

    `owed` counts what was accepted on each request channel and is not answered."""

    def __init__(self, *, depth=3, within=None):
        self.depth, self.within = depth, within
        super().__init__(_members(AxiLiteSignature()),
                         [*_hold_flags("aw", "w", "ar"), "many"],
                         [*_hold_flags("b", "r"), "b_unasked", "r_unasked", "b_slow", "r_slow"],
                         owed=Out(StructLayout({channel: range(depth + 1) for channel in ("aw", "w", "ar")})))

    def elaborate(self, platform):
        m = Module()
        f, g = self.source_fault, self.sink_fault
        self._held(m, f, "aw", self.awvalid, self.awready, Cat(self.awaddr, self.awprot))
        self._held(m, f, "w", self.wvalid, self.wready, Cat(self.wdata, self.wstrb))
        self._held(m, f, "ar", self.arvalid, self.arready, Cat(self.araddr, self.arprot))
        self._held(m, g, "b", self.bvalid, self.bready, self.bresp)
        self._held(m, g, "r", self.rvalid, self.rready, Cat(self.rdata, self.rresp))
        owed, many = self.owed, []
        for channel, answer in ("aw", "b"), ("w", "b"), ("ar", "r"):
            taken = getattr(self, f"{channel}valid") & getattr(self, f"{channel}ready")
            given = getattr(self, f"{answer}valid") & getattr(self, f"{answer}ready")
            m.d.sync += owed[channel].eq(owed[channel] + taken - given)
            many.append(taken & ~given & (owed[channel] == self.depth))
        m.d.comb += [
            f.many.eq(Cat(many).any()),
            g.b_unasked.eq(self.bvalid & ((owed["aw"] == 0) | (owed["w"] == 0))),
            g.r_unasked.eq(self.rvalid & (owed["ar"] == 0)),
        ]
        if self.within is not None:
            write = ((owed["aw"] != 0) | self.awvalid) & ((owed["w"] != 0) | self.wvalid)
            read = (owed["ar"] != 0) | self.arvalid
            for name, asked, answer in ("b", write, self.bvalid), ("r", read, self.rvalid):
                waited = Signal(range(self.within + 1), name=f"{name}_waited")
                m.d.sync += waited.eq(0)
                with m.If(asked & ~answer):
                    m.d.sync += waited.eq(waited + (waited != self.within))
                    m.d.comb += g[f"{name}_slow"].eq(waited == self.within)
        return m
