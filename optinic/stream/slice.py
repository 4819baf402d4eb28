"""Registers across a stream, both ways."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["StreamSlice"]


class StreamSlice(wiring.Component):
    """One record of `shape` in the output register, and a spare one beside it, so that `i.ready` comes from a register.

    Latency one cycle, one record a cycle. While the sink waits two records fit in, then the source waits; nothing is lost.
    `level` counts the records inside. Between two ends of long paths; where more than two records are to wait, a StreamFifo
    takes less.
    """

    def __init__(self, shape):
        self.shape = shape
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape)), "level": Out(range(3))})

    def elaborate(self, platform):
        m = Module()
        out, spare = Signal(self.shape, reset_less=True), Signal(self.shape, reset_less=True)
        out_valid, full = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(~full), self.o.valid.eq(out_valid), self.o.payload.eq(out), self.level.eq(out_valid + full),
        ]
        with m.If(~full):
            m.d.sync += spare.eq(self.i.payload)
        with m.If(self.o.ready | ~out_valid):
            m.d.sync += [full.eq(0), out_valid.eq(full | self.i.valid), out.eq(self.i.payload)]
            with m.If(full):
                m.d.sync += out.eq(spare)
        with m.Elif(self.i.valid):
            m.d.sync += full.eq(1)
        return m
