"""A per-QP (or per-region, per-CQ) table on the chip: one writer, cleared after reset, known to the reports."""

from dataclasses import dataclass, replace

from amaranth.hdl import Cat, Module, Signal, Shape, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .code import check_bits, decode, encode

__all__ = ["TableSpec", "Table", "protect", "alarm_members", "connect_alarms"]


@dataclass(frozen=True)
class TableSpec:
    """What a table costs: the figure that the state report prints and that synthesis is checked against.

    `per` names what a row belongs to ("qp", "region", "cq", "peer", "line", "frame" ...), `kind` how it is used:
    "hot" (touched by every packet), "message", "context" (read only by packets), "address". `protection`: see :func:`protect`;
    `refuses`: whoever reads a row of zeroes refuses what it is about.
    """
    name: str
    owner: str
    width: int
    depth: int
    per: str
    kind: str
    reads: int = 1      #: read ports; each one is a copy of the table in block RAM
    rows_per: float = 1     #: items of kind `per` in one row; of a pool, for each of its rows
    style: str = ""     #: "block" or "distributed" where the design asks for that RAM; else block from 512 rows on
    protection: str = "none"
    refuses: bool = False

    @property
    def row_bits(self):
        """Bits of a row with its check bits."""
        return self.width + check_bits(self.width, self.protection)

    @property
    def bits(self):
        return self.row_bits * self.depth * self.reads

    @property
    def bits_per_item(self):
        return self.row_bits * self.reads / self.rows_per


def protect(cfg, specs, refuses=()):
    """The specs with the protection that the configuration asks for (knob table_protection).

    `refuses` are the names of those of which a row of zeroes is refused by its reader (no such QP, no such key). A row of
    these that can't be corrected reads as zeroes, so nobody acts on it. The others can't say that a row is bad: they get no
    parity, which couldn't be heeded, and with secded their single errors are corrected, and double ones counted."""
    return [replace(spec, refuses=spec.name in refuses,
                    protection=cfg.table_protection if cfg.table_protection != "parity" or spec.name in refuses else "none")
            for spec in specs]


def alarm_members(cfg):
    """Members of a component whose tables may be protected: pulses, for the counters table_corrected and table_detected."""
    return {"table_corrected": Out(1), "table_detected": Out(1)} if cfg.table_protection != "none" else {}


def connect_alarms(m, component, parts):
    """The alarms of `component` are those of `parts`: tables, or components with alarms. Two at once count as one."""
    if hasattr(component, "table_corrected"):
        for name in ("table_corrected", "table_detected"):
            m.d.sync += getattr(component, name).eq(Cat(getattr(part, name) for part in parts if hasattr(part, name)).any())


class Table(wiring.Component):
    """`spec.depth` rows of `shape`, written by one owner and read through `spec.reads` ports.

    A read has a latency of two cycles (block RAM and its output register), one with ``latency=1``; `read{i}_data` belongs
    to the `read{i}_addr` of that many cycles ago, whatever is written meanwhile: a write that coincides with a read, or
    follows it, is not seen by it. Reads never stall. After reset every row is written with zeroes, one a cycle, during
    which `clearing` is high and writes are ignored.

    With `aside` there is a further reader that costs no copy, for it reads through the port of the writer, who goes first:
    `aside_data` belongs to the `aside_addr` of one cycle ago if `aside_busy` was low then.

    With protection (`spec.protection`, optinic.memory.code) each row has check bits, and what is read is decoded behind the memory,
    before the output register if there is one: no cycle later, but several levels of logic. `table_corrected` and
    `table_detected` pulse when a row is found with one wrong bit, or more; a row that stays so isn't told of again while no other one
    is found, until it is written. Nothing is written back.
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
        assert spec.protection == "none" or granularity is None, f"{spec.name}: lanes of a row have no check bits of their own"
        if spec.protection != "none":
            members |= {"table_corrected": Out(1), "table_detected": Out(1)}
        if aside:
            members |= {"aside_addr": In(self._addr), "aside_data": Out(shape), "aside_busy": Out(1)}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        width, self._found = self.spec.width, []
        # left alone, Yosys takes LUTs for one or two bits of a thousand rows
        attrs = {"ram_style": "block"} if self.spec.depth >= 512 else {}
        m.submodules.ram = ram = Memory(shape=unsigned(self.spec.row_bits), depth=self.spec.depth, init=[], attrs=attrs)
        port = ram.write_port(granularity=self._granularity)
        sweep = Signal(self._addr)
        with m.If(self.clearing):
            m.d.comb += [port.en.eq(-1), port.addr.eq(sweep)]
            m.d.sync += sweep.eq(sweep + 1)
            with m.If(sweep == self.spec.depth - 1):
                m.d.sync += [self.clearing.eq(0), sweep.eq(0)]
        with m.Else():
            m.d.comb += [port.en.eq(self.write_en), port.addr.eq(self.write_addr),
                         port.data.eq(encode(self._bits(self.write_data), self.spec.protection))]
            if self._aside:
                with m.If(~self.write_en.any()):
                    m.d.comb += port.addr.eq(self.aside_addr)
        if self._aside:
            aside = ram.read_port(domain="sync")
            m.d.comb += [aside.addr.eq(port.addr), self._bits(self.aside_data).eq(self._checked(m, "aside", aside)),
                         self.aside_busy.eq(self.clearing | self.write_en.any())]
        for i in range(self.spec.reads):
            read = ram.read_port(domain="sync")
            m.d.comb += read.addr.eq(getattr(self, f"read{i}_addr"))
            out = self._bits(getattr(self, f"read{i}_data"))
            data = self._checked(m, f"read{i}", read)
            if self.latency == 1:
                m.d.comb += out.eq(data)
            else:
                hold = Signal(width, name=f"read{i}_hold", reset_less=True)
                m.d.sync += hold.eq(data)
                m.d.comb += out.eq(hold)
        if self._found:
            m.d.comb += [self.table_corrected.eq(Cat(one for one, _ in self._found).any()),
                         self.table_detected.eq(Cat(more for _, more in self._found).any())]
        return m

    def _checked(self, m, name, port):
        """The data of a read port, corrected; what was wrong with them goes to `_found`, in registers."""
        spec = self.spec
        if spec.protection == "none":
            return port.data
        word = decode(m, port.data, spec.width, spec.protection, name=name, zero=spec.refuses)
        at, row, last = (Signal(self._addr, name=f"{name}_{n}", reset_less=True) for n in ("at", "row", "last"))
        one, more, known = (Signal(name=f"{name}_{n}") for n in ("one", "more", "known"))
        told = [Signal(name=f"{name}_{n}") for n in ("tells_one", "tells_more")]
        new = Signal(name=f"{name}_new")
        syndrome = Signal.like(word.syndrome, name=f"{name}_last_syndrome")      # what to say of it has time
        m.d.comb += [new.eq(~(known & (row == last))), one.eq(word.corrected(syndrome)), more.eq(word.detected(syndrome))]
        m.d.sync += [at.eq(port.addr), row.eq(at), syndrome.eq(word.syndrome), told[0].eq(one & new), told[1].eq(more & new)]
        with m.If(one | more):
            m.d.sync += [last.eq(row), known.eq(1)]
        with m.If(self.write_en.any() & (self.write_addr == last)):
            m.d.sync += known.eq(0)
        self._found.append(told)
        return word.data

    @staticmethod
    def _bits(value):
        return value.as_value() if hasattr(value, "as_value") else value
