"""Two writers on one AXI4 write port, told apart by the highest bit of their IDs."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.stream.fifo import StreamFifo

from .signatures import ID_BITS, AxiWriteSignature

__all__ = ["WriteMerge"]

_ADDRESS = ("awid", "awaddr", "awlen", "awsize", "awburst")
_DATA = ("wdata", "wstrb", "wlast")
BURSTS = 16     #: whose address was taken and whose data is not through


class WriteMerge(wiring.Component):
    """`axi` for `source0`, whose IDs have the highest bit clear, and `source1`, whose IDs have it set.

    Addresses pass through a register, one a cycle, in turn when both wait. Data follow in the order of the addresses, each burst
    whole, in the cycle in which the source offers them but not before two cycles after their address was taken; so one source
    alone moves a beat each cycle, without pauses between bursts of any length. Data never come before awvalid of their burst.
    Answers go to their source in the same cycle; a source that isn't ready for one holds back those behind it.

    Up to BURSTS + 1 addresses are taken ahead of their data; then the next ones wait. A source that has had an address taken and
    offers no data holds up both.
    """

    def __init__(self, data_width, id_width=ID_BITS):
        self.data_width, self.id_width = data_width, id_width
        port = AxiWriteSignature(data_width, id_width)
        super().__init__({"axi": Out(port), "source0": In(port), "source1": In(port)})

    def elaborate(self, platform):
        m = Module()
        axi, sources = self.axi, (self.source0, self.source1)
        m.submodules.order = order = StreamFifo(1, BURSTS)      # whose data come next
        turn = Signal()
        pick = Signal()
        open_ = Signal()
        m.d.comb += [
            pick.eq(Mux(turn, sources[1].awvalid, ~sources[0].awvalid)),
            open_.eq((~axi.awvalid | axi.awready) & order.i.ready),
            order.i.payload.eq(pick), order.i.valid.eq(open_ & Mux(pick, sources[1].awvalid, sources[0].awvalid)),
        ]
        with m.If(axi.awready):
            m.d.sync += axi.awvalid.eq(0)
        with m.If(order.i.valid):
            m.d.sync += [axi.awvalid.eq(1), turn.eq(~pick)]
        with m.If(open_):
            m.d.sync += [getattr(axi, name).eq(Mux(pick, getattr(sources[1], name), getattr(sources[0], name))) for name in _ADDRESS]

        whose, known = order.o.payload, order.o.valid
        m.d.comb += [getattr(axi, name).eq(Mux(whose, getattr(sources[1], name), getattr(sources[0], name))) for name in _DATA]
        m.d.comb += [
            axi.wvalid.eq(known & Mux(whose, sources[1].wvalid, sources[0].wvalid)),
            order.o.ready.eq(axi.wvalid & axi.wready & axi.wlast),
        ]
        mine = axi.bid[-1]
        m.d.comb += axi.bready.eq(Mux(mine, sources[1].bready, sources[0].bready))
        for i, source in enumerate(sources):
            m.d.comb += [
                source.awready.eq(open_ & (pick == i)), source.wready.eq(axi.wready & known & (whose == i)),
                source.bid.eq(axi.bid), source.bresp.eq(axi.bresp), source.bvalid.eq(axi.bvalid & (mine == i)),
            ]
        return m
