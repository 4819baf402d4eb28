"""A per-QP (or per-region, per-CQ) table on the chip: one writer, cleared after reset, known to the reports."""

from dataclasses import dataclass

from amaranth.hdl import Module, Signal, Shape, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["TableSpec", "Table"]


@dataclass(frozen=True)
class TableSpec:
    """What a table costs: the figure that the state report prints and that synthesis is checked against.

    `per` names what a row belongs to ("qp", "region", "cq", "peer", "line", "frame" ...), `kind` how it is used:
    "hot" (touched by every packet), "message", "context" (read only by packets), "address".
    """
    name: str
    owner: str
    width: int
    depth: int
    per: str
    kind: str
    reads: int = 1      #: read ports; each one is a copy of the table in block RAM
    rows_per: int = 1   #: items of kind `per` in one row
    style: str = ""     #: "block" or "distributed" where the design asks for that RAM; else block from 512 rows on

    @property
    def bits(self):
        return self.width * self.depth * self.reads

    @property
    def bits_per_item(self):
        return self.width * self.reads / self.rows_per


class Table(wiring.Component):
    """`spec.depth` rows of `shape`, written by one owner and read through `spec.reads` ports.

    A read has a latency of two cycles (block RAM and its output register), one with ``latency=1``; `read{i}_data` belongs
    to the `read{i}_addr` of that many cycles ago, whatever is written meanwhile: a write that coincides with a read, or
    follows it, is not seen by it. Reads never stall. After reset every row is written with zeroes, one a cycle, during
    which `clearing` is high and writes are ignored.

    With `aside` there is a further reader that costs no copy, for it reads through the port of the writer, who goes first:
    `aside_data` belongs to the `aside_addr` of one cycle ago if `aside_busy` was low then.
    """

    def __init__(self, spec, shape, *, latency=2, granularity=None, aside=False):
        self.spec, self._shape, self.latency, self._granularity, self._aside = spec, shape, latency, granularity, aside
        assert Shape.cast(shape).width == spec.width, f"{spec.name}: {Shape.cast(shape).width} != {spec.width} bits"
        self._addr = range(spec.depth)
        lanes = spec.width // granularity if granularity else 1
        members = {
            "write_en": In(lanes), "write_addr": In(self._addr), "write_data": In(shape),
            "clearing": Out(1, init=1),
        }
        for i in range(spec.reads):
            members |= {f"read{i}_addr": In(self._addr), f"read{i}_data": Out(shape)}
        if aside:
            members |= {"aside_addr": In(self._addr), "aside_data": Out(shape), "aside_busy": Out(1)}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        width = self.spec.width
        # left alone, Yosys takes LUTs for one or two bits of a thousand rows
        attrs = {"ram_style": "block"} if self.spec.depth >= 512 else {}
        m.submodules.ram = ram = Memory(shape=unsigned(width), depth=self.spec.depth, init=[], attrs=attrs)
        port = ram.write_port(granularity=self._granularity)
        sweep = Signal(self._addr)
        with m.If(self.clearing):
            m.d.comb += [port.en.eq(-1), port.addr.eq(sweep)]
            m.d.sync += sweep.eq(sweep + 1)
            with m.If(sweep == self.spec.depth - 1):
                m.d.sync += [self.clearing.eq(0), sweep.eq(0)]
        with m.Else():
            m.d.comb += [port.en.eq(self.write_en), port.addr.eq(self.write_addr),
                         port.data.eq(self._bits(self.write_data))]
            if self._aside:
                with m.If(~self.write_en.any()):
                    m.d.comb += port.addr.eq(self.aside_addr)
        if self._aside:
            aside = ram.read_port(domain="sync")
            m.d.comb += [aside.addr.eq(port.addr), self._bits(self.aside_data).eq(aside.data),
                         self.aside_busy.eq(self.clearing | self.write_en.any())]
        for i in range(self.spec.reads):
            read = ram.read_port(domain="sync")
            m.d.comb += read.addr.eq(getattr(self, f"read{i}_addr"))
            out = self._bits(getattr(self, f"read{i}_data"))
            if self.latency == 1:
                m.d.comb += out.eq(read.data)
            else:
                hold = Signal(width, name=f"read{i}_hold", reset_less=True)
                m.d.sync += hold.eq(read.data)
                m.d.comb += out.eq(hold)
        return m

    @staticmethod
    def _bits(value):
        return value.as_value() if hasattr(value, "as_value") else value
