"""Stand-ins for optinic.memory.table.Table whose contents a check can see, or may choose."""

from amaranth.hdl import Array, Fragment, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["OpenTable", "AnyTable", "built", "later"]


class _Table(wiring.Component):
    made = []       # every one, in the order of construction

    def __init__(self, spec, shape, *, latency=2, granularity=None):
        assert latency in (1, 2) and spec.reads == 1
        address, self.granularity, self.latency = In(range(spec.depth)), granularity or spec.width, latency
        super().__init__({
            "write_en": In(spec.width // self.granularity), "write_addr": address, "write_data": In(shape),
            "clearing": Out(1), "read0_addr": address, "read0_data": Out(shape),
        })
        self.rows = [Signal(shape, name=f"row{i}") for i in range(spec.depth)]
        self.chosen = Signal(shape, name="chosen")
        _Table.made.append(self)


def _part(value, index, width):
    value = value.as_value() if hasattr(value, "as_value") else value
    return value.word_select(index, width)


class OpenTable(_Table):
    """A Table after its clearing, in registers that a check can look at."""

    def elaborate(self, platform):
        m = Module()
        read = Signal.like(self.read0_data)
        m.d.sync += read.eq(Array(self.rows)[self.read0_addr])
        m.d["comb" if self.latency == 1 else "sync"] += self.read0_data.eq(read)
        for i, row in enumerate(self.rows):
            for part, enable in enumerate(self.write_en):
                with m.If(enable & (self.write_addr == i)):
                    m.d.sync += _part(row, part, self.granularity).eq(_part(self.write_data, part, self.granularity))
        return m

    def newest(self, m, row):
        """What the row holds, or is about to."""
        state = Signal.like(self.write_data, name="newest")
        m.d.comb += state.eq(Mux(self.write_en & (self.write_addr == row), self.write_data, Array(self.rows)[row]))
        return state


class AnyTable(_Table):
    """A Table that may hold anything at any time: the checker chooses each answer (`chosen` drives it)."""

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.read0_data.eq(self.chosen)
        return m


def built(module, name, table, *args, **methods):
    """Class `name` of `module`, with `table` for each of its Tables and with `methods` in place of its own, elaborated:
    (the component, its fragment, its tables)."""
    before, start, module.Table = module.Table, len(_Table.made), table
    try:
        component = type(name, (getattr(module, name),), methods)(*args)
        fragment = Fragment.get(component, None)
        return component, fragment, _Table.made[start:]
    finally:
        module.Table = before


def later(m, signal, cycles, name):
    """`signal` of so many cycles ago."""
    for i in range(cycles):
        after = Signal.like(signal, name=f"{name}_{i + 1}")
        m.d.sync += after.eq(signal)
        signal = after
    return signal
