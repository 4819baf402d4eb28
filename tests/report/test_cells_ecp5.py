"""Levels and counts of ECP5 cells, on netlists whose depth is known."""

from rtl_gen.report.cells import count_cells
from rtl_gen.report.netlist import Netlist


class Bench:
    """A netlist made by hand, in the form of Yosys' JSON."""

    def __init__(self):
        self.cells, self._net = {}, 1

    def net(self):
        self._net += 1
        return self._net

    def cell(self, kind, outputs, **pins):
        pins = {p: b if isinstance(b, list) else [b] for p, b in pins.items()}
        self.cells[f"c{len(self.cells)}"] = {
            "type": kind, "parameters": {}, "attributes": {}, "connections": pins,
            "port_directions": {p: "output" if p in outputs else "input" for p in pins}}

    def ff(self, d, **more):
        q = self.net()
        self.cell("TRELLIS_FF", ("Q",), CLK="x", DI=d, LSR="0", Q=q, **more)
        return q

    def lut(self, *inputs):
        z = self.net()
        self.cell("LUT4", ("Z",), Z=z, **dict(zip("ABCD", inputs)))
        return z

    def levels(self):
        return self.netlist().levels()

    def netlist(self):
        return Netlist({"cells": self.cells, "netnames": {}, "ports": {}})


def test_a_lut_is_a_level_and_the_clock_of_a_register_is_no_end():
    b = Bench()
    b.ff(b.lut(b.lut(b.ff("0"), "0"), "0"))
    n = b.netlist()
    assert n.levels() == 2 and not n.unknown
    assert all(p != "CLK" for _, _, p in n.ends)
    assert n.histogram() == [[0, 0], [1, 0], [2, 1]]


def test_selectors_are_free():
    b = Bench()
    s = b.ff("0")
    wide, wider = b.net(), b.net()
    b.cell("PFUMX", ("Z",), ALUT=b.lut(s), BLUT=b.lut(b.lut(s)), C0=s, Z=wide)
    b.cell("L6MUX21", ("Z",), D0=wide, D1=b.lut(s), SD=s, Z=wider)
    b.ff(wider)
    assert b.levels() == 2


def carry_chain(b, length, feed):
    """Returns the last sum; `feed` goes into the first cell's first half."""
    below = "0"
    for i in range(length):
        top, s0, s1 = b.net(), b.net(), b.net()
        b.cell("CCU2C", ("S0", "S1", "COUT"), CIN=below, COUT=top, S0=s0, S1=s1, A0=feed if not i else "0", B0="0", C0="0", D0="0",
               A1="0", B1="0", C1="0", D1="0")
        below = top
    return s1


def test_a_carry_chain_is_one_level_however_long():
    for length in (1, 9):
        b = Bench()
        b.ff(carry_chain(b, length, b.ff("0")))
        assert b.levels() == 1
    b = Bench()
    b.ff(b.lut(carry_chain(b, 3, b.lut(b.ff("0")))))
    assert b.levels() == 3


def test_a_bit_that_feeds_its_own_chain_above_is_no_loop():
    b = Bench()
    s0, s1, s2 = b.net(), b.net(), b.net()
    top = b.net()
    b.cell("CCU2C", ("S0", "S1", "COUT"), CIN="0", COUT=top, S0=s0, S1=s1, A0=b.ff("0"), A1="0")
    b.cell("CCU2C", ("S0", "S1", "COUT"), CIN=top, S0=s2, A0=b.lut(s0))
    b.ff(s2)
    n = b.netlist()
    assert n.loops == [] and n.levels() == 3


def test_distributed_ram_counts_one_from_the_clock_and_one_from_its_address():
    b = Bench()
    out = b.net()
    b.cell("TRELLIS_DPR16X4", ("DO",), DI=[b.ff("0")], WAD=[b.lut(b.lut(b.lut(b.lut(b.ff("0")))))], RAD=[b.lut(b.ff("0"))], WCK="x",
           WRE="1", DO=[out])
    b.ff(out)
    n = b.netlist()
    assert n.levels() == 4          # the write address
    assert n.inner[out] == 2        # a LUT and the RAM
    quiet = Bench()
    out = quiet.net()
    quiet.cell("TRELLIS_DPR16X4", ("DO",), DI=["0"], WAD=["0"], RAD=["0"], WCK="x", WRE="1", DO=[out])
    quiet.ff(out)
    assert quiet.levels() == 1


def test_block_ram_begins_and_ends_paths():
    b = Bench()
    out = b.net()
    b.cell("DP16KD", ("DOA0",), ADA0=b.lut(b.ff("0")), CLKA="x", DOA0=out)
    b.ff(b.lut(b.lut(out)))
    assert b.levels() == 2


def test_an_unknown_cell_is_told():
    b = Bench()
    b.cell("EHXPLLL", ("CLKOP",), CLKI="x", CLKOP=b.net())
    assert dict(b.netlist().unknown) == {"EHXPLLL": 1}


def test_counts():
    c = count_cells(["LUT4", "LUT4", "CCU2C", "TRELLIS_DPR16X4", "TRELLIS_FF", "DP16KD", "MULT18X18D", "PFUMX", "L6MUX21"])
    assert (c["lut"], c["lut_logic"], c["lut_ram"], c["ff"]) == (10, 4, 6, 1)
    assert (c["ramb18"], c["bram36"], c["dsp"], c["carry"], c["muxf"]) == (1, 0.5, 1, 1, 2)
