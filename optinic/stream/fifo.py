"""A queue of records in LUT memory, with its output in a register."""

from amaranth.hdl import Module, Signal, Shape, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["StreamFifo"]


class StreamFifo(wiring.Component):
    """First in, first out: `depth` records (a power of two) of `shape` in memory and one more in the output register.

    Latency two cycles when empty, one record a cycle. When full, `i.ready` is low and the source waits; nothing is lost.
    `level` counts the records inside, the one in the output register included. `style` is the RAM to use: "distributed"
    (asynchronous LUT memory) is what the small and wide queues of the datapath want; "block" suits depths of 512.
    """

    def __init__(self, shape, depth, *, style="distributed"):
        assert depth & depth - 1 == 0
        self.shape, self.depth, self.style = shape, depth, style
        super().__init__({
            "i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape)), "level": Out(range(depth + 2)),
        })

    def elaborate(self, platform):
        m = Module()
        width = Shape.cast(self.shape).width
        attrs = {"ram_style": self.style}
        m.submodules.ram = ram = Memory(shape=unsigned(width), depth=self.depth, init=[], attrs=attrs)
        write = ram.write_port()
        read = ram.read_port(domain="comb" if self.style == "distributed" else "sync")
        bits = self.depth.bit_length()
        head = Signal(bits)
        tail = Signal(bits)
        kept = Signal(bits)
        # with block RAM a record can be read one cycle after it was written, so `kept` trails `head`
        m.d.comb += [
            self.i.ready.eq((head ^ tail) != self.depth),
            write.addr.eq(head), write.data.eq(self._bits(self.i.payload)), write.en.eq(self.i.valid & self.i.ready),
        ]
        with m.If(write.en):
            m.d.sync += head.eq(head + 1)
        out_valid = Signal()
        take = Signal()
        if self.style == "distributed":
            out = Signal(width, reset_less=True)
            m.d.comb += [kept.eq(head), read.addr.eq(tail), take.eq((kept != tail) & (~out_valid | self.o.ready))]
            with m.If(take):
                m.d.sync += [out.eq(read.data), tail.eq(tail + 1)]
            m.d.comb += self._bits(self.o.payload).eq(out)
        else:
            m.d.sync += kept.eq(head)
            m.d.comb += [read.addr.eq(tail), read.en.eq(take), take.eq((kept != tail) & (~out_valid | self.o.ready))]
            with m.If(take):
                m.d.sync += tail.eq(tail + 1)
            m.d.comb += self._bits(self.o.payload).eq(read.data)
        # one function of registers and `ready`, no clock enable: the source of `ready` is often the end of a long path
        m.d.sync += out_valid.eq(take | (out_valid & ~self.o.ready))
        m.d.comb += [self.o.valid.eq(out_valid), self.level.eq((head - tail)[:bits] + out_valid)]
        return m

    @staticmethod
    def _bits(value):
        return value.as_value() if hasattr(value, "as_value") else value
