"""Several readers on one AXI4 read port, told apart by the high bits of their IDs."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .signatures import AxiReadSignature

__all__ = ["ReadMerge"]

_ADDRESS = ("arid", "araddr", "arlen", "arsize", "arburst")


class ReadMerge(wiring.Component):
    """`axi` for `readers`, of which number i has the IDs that begin with `prefixes[i]`, a string of bits ("0", "10").

    Addresses pass through a register, one a cycle, in turn when several wait; so a reader that always asks is served at
    least once in as many cycles as there are readers. Read data go to their reader in the same cycle; a reader that isn't
    ready for its beat holds back those behind it. A beat with an ID of nobody is taken and dropped.
    """

    def __init__(self, data_width, prefixes, id_width=8):
        self.prefixes, self.id_width = prefixes, id_width
        super().__init__({
            "axi": Out(AxiReadSignature(data_width, id_width)),
            **{f"reader{i}": In(AxiReadSignature(data_width, id_width)) for i in range(len(prefixes))},
        })

    def elaborate(self, platform):
        m = Module()
        axi, count = self.axi, len(self.prefixes)
        readers = [getattr(self, f"reader{i}") for i in range(count)]
        turn = Signal(range(count))
        pick = Signal(range(count))
        with m.Switch(turn):
            for first in range(count):
                with m.Case(first):
                    order = [(first + k) % count for k in range(count)]
                    choice = order[-1]
                    for i in reversed(order[:-1]):
                        choice = Mux(readers[i].arvalid, i, choice)
                    m.d.comb += pick.eq(choice)
        with m.If(~axi.arvalid | axi.arready):
            m.d.sync += axi.arvalid.eq(0)
            with m.Switch(pick):
                for i, reader in enumerate(readers):
                    with m.Case(i):
                        m.d.comb += reader.arready.eq(1)
                        m.d.sync += [axi.arvalid.eq(reader.arvalid), turn.eq((i + 1) % count),
                                     *(getattr(axi, name).eq(getattr(reader, name)) for name in _ADDRESS)]

        m.d.comb += axi.rready.eq(1)
        for prefix, reader in zip(self.prefixes, readers):
            m.d.comb += [getattr(reader, name).eq(getattr(axi, name)) for name in ("rid", "rdata", "rresp", "rlast")]
            with m.If(axi.rid[self.id_width - len(prefix):] == int(prefix, 2)):
                m.d.comb += [reader.rvalid.eq(axi.rvalid), axi.rready.eq(reader.rready)]
        return m
