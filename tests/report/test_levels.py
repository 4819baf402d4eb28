"""The netlist analysis on netlists whose depth is known, then on mapped designs; whole cards are in test_cards.py."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rtl_gen.report.netlist import Netlist, count_cells
from rtl_gen.report.synth import MAX_LEVELS, report, synthesize


class Bench:
    """A netlist made by hand, in the form of Yosys' JSON."""

    def __init__(self):
        self.cells, self.names, self._net = {}, {}, 1

    def net(self):
        self._net += 1
        return self._net

    def cell(self, kind, name=None, parameters=None, outputs=("O", "Q", "CO", "DO", "P", "DOUT", "SPO", "DPO"), **pins):
        name = name or f"c{len(self.cells)}"
        pins = {p: b if isinstance(b, list) else [b] for p, b in pins.items()}
        directions = {p: "output" if p.startswith(outputs) else "input" for p in pins}
        self.cells[name] = {"type": kind, "parameters": parameters or {}, "attributes": {}, "connections": pins,
                            "port_directions": directions}

    def ff(self, d, name=None, **more):
        q = self.net()
        self.cell("FDRE", C="x", CE="1", R="0", D=d, Q=q, **more)
        if name:
            self.names[name] = {"hide_name": 0, "bits": [q], "attributes": {}}
        return q

    def lut(self, *inputs):
        out = self.net()
        self.cell(f"LUT{len(inputs)}", O=out, **{f"I{i}": b for i, b in enumerate(inputs)})
        return out

    def netlist(self, **ports):
        return Netlist({"cells": self.cells, "netnames": self.names,
                        "ports": {n: {"direction": d, "bits": b} for n, (d, b) in ports.items()}})


def test_a_tree_of_36_is_two_levels():
    b = Bench()
    inputs = [b.ff("0", f"in{i}") for i in range(36)]
    b.ff(b.lut(*(b.lut(*inputs[i:i + 6]) for i in range(0, 36, 6))), "out")
    n = b.netlist()
    assert n.levels() == 2 and not n.loops
    path = n.longest_paths()[0]
    assert (path["levels"], path["end"], path["cells"]) == (2, "out", ["LUT6", "LUT6"]) and path["start"].startswith("in")
    assert count_cells(c["type"] for c in b.cells.values())["lut6"] == 7


def test_every_end_is_looked_at_and_the_deepest_wins():
    b = Bench()
    a = b.ff("0", "a")
    deep = a
    for _ in range(5):
        deep = b.lut(deep, a)
    b.cell("FDRE", C="x", CE=deep, R="0", D=a, Q=b.net(), name="enable")
    b.ff(b.lut(deep, a), "data")
    assert b.netlist().levels() == 6
    assert [(p["levels"], p["end"]) for p in b.netlist().longest_paths(2)] == [(6, "data"), (5, "enable (FDRE CE)")]


def test_carry_and_wide_multiplexers_are_free():
    b = Bench()
    s = [b.lut(b.ff("0")) for _ in range(4)]
    o, co = [b.net() for _ in range(4)], [b.net() for _ in range(4)]
    b.cell("CARRY4", S=s, DI=["0"] * 4, CI="0", CYINIT="0", O=o, CO=co)
    o2 = [b.net() for _ in range(4)]
    b.cell("CARRY4", S=["0"] * 4, DI=["0"] * 4, CI=co[3], CYINIT="0", O=o2, CO=[b.net() for _ in range(4)])
    out = b.net()
    b.cell("MUXF7", I0=o2[3], I1=o[0], S=s[0], O=out)
    b.ff(b.lut(out))
    assert b.netlist().levels() == 2


def test_a_sum_bit_that_feeds_a_higher_bit_of_its_own_chain_is_no_loop():
    b = Bench()
    o = [b.net() for _ in range(4)]
    b.cell("CARRY4", S=[b.ff("0"), "0", "0", b.lut(o[0])], DI=["0"] * 4, CI="0", CYINIT="0", O=o, CO=[b.net() for _ in range(4)])
    b.ff(o[3])
    n = b.netlist()
    assert n.loops == [] and n.levels() == 1


def test_distributed_ram_counts_one_from_the_clock_and_one_from_its_address():
    b = Bench()
    address = b.lut(b.lut(b.ff("0")))
    wa, data = b.lut(b.lut(b.lut(b.ff("0")))), b.ff("0")
    spo, dpo = b.net(), b.net()
    b.cell("RAM32X1D", "ram", D=data, WE="1", WCLK="x", A0=wa, DPRA0=address, SPO=spo, DPO=dpo)
    b.ff(dpo, "read")
    n = b.netlist()
    assert n.levels() == 3          # both the write address (3 LUTs) and the read (2 LUTs and the RAM)
    ends = {p["end"]: p["levels"] for p in n.longest_paths()}
    assert ends["read"] == 3 and ends["ram (RAM32X1D A0)"] == 3
    quiet = Bench()
    out = quiet.net()
    quiet.cell("RAM64M", **{f"ADDR{x}": ["0"] * 6 for x in "ABCD"}, DIA=quiet.ff("0"), WE="1", WCLK="x", DOA=out)
    quiet.ff(out)
    assert quiet.netlist().levels() == 1


def test_registers_inside_a_dsp_end_a_path():
    for registers, levels in (("1", 1), ("0", 3)):
        b = Bench()
        p = b.net()
        b.cell("DSP48E2", parameters={"AREG": "0", "PREG": registers}, A=[b.lut(b.ff("0"))], CLK="x", P=[p])
        b.ff(b.lut(p))
        assert b.netlist().levels() == levels


def test_ports_count_apart():
    b = Bench()
    b.ff(b.lut(b.lut(1)), "q")
    n = b.netlist(i=("input", [1]))
    assert (n.levels(), n.levels(ports=True)) == (0, 2)
    assert n.longest_paths(ports=True)[0]["start"] == "i"


def test_a_loop_is_reported_and_what_hangs_on_it_is_not():
    b = Bench()
    x, y, z = b.net(), b.net(), b.net()
    b.cell("LUT2", O=x, I0=y, I1=b.ff("0"))
    b.cell("LUT1", O=y, I0=x)
    b.cell("LUT1", O=z, I0=y)
    b.ff(z)
    b.names |= {n: {"hide_name": 0, "bits": [net], "attributes": {}} for n, net in (("x", x), ("y", y), ("z", z))}
    assert [sorted(loop) for loop in b.netlist().report()["loops"]] == [["x", "y"]]


def test_counts():
    counts = count_cells(["LUT3", "INV", "RAM64M8", "SRL16E", "RAMB36E2", "RAMB18E2", "FDRE", "FDSE", "CARRY4"])
    assert (counts["lut"], counts["lut_logic"], counts["lut_ram"], counts["lut_srl"]) == (11, 2, 8, 1)
    assert (counts["bram36"], counts["ff"], counts["carry"]) == (1.5, 2, 1)


class Known(wiring.Component):
    """A little of everything, each behind registers."""

    def __init__(self):
        super().__init__({"a": In(32), "b": In(32), "sum": Out(32), "same": Out(1), "wide": Out(40), "small": Out(8)})

    def elaborate(self, platform):
        m = Module()
        a, b = Signal(32), Signal(32)
        m.d.sync += [a.eq(self.a), b.eq(self.b), self.sum.eq(a + b), self.same.eq(a == b)]
        m.submodules.big = big = Memory(shape=40, depth=1024, init=[])
        m.submodules.lutram = lutram = Memory(shape=8, depth=32, init=[], attrs={"ram_style": "distributed"})
        for ram, out in (big, self.wide), (lutram, self.small):
            write, read = ram.write_port(), ram.read_port(domain="sync" if ram is big else "comb")
            m.d.comb += [write.addr.eq(a), write.data.eq(Cat(b, a)), write.en.eq(a[31]), read.addr.eq(b)]
            m.d.sync += out.eq(read.data)
        return m


def test_a_mapped_design(tmp_path):
    result = report(Known(), build=tmp_path, name="known")
    cells = result["cells"]
    assert cells["bram36"] in (1, 1.5, 2) and cells["lut_ram"] >= 8 and cells["carry"] >= 8 and cells["ff"] >= 64 + 32 + 1 + 8
    assert result["unknown_cells"] == {} and result["loops"] == []
    assert 1 <= result["levels"] <= 4
    names = {p["end"].split("[")[0] for p in result["paths"]} | {p["start"].split("[")[0] for p in result["paths"]}
    assert names & {"sum", "same"} and sum(part["bram36"] for part in result["modules"].values()) == cells["bram36"]
    # the second time it comes from the cache, and the modules can be had apart
    assert synthesize(Known(), build=tmp_path).seconds == 0
    apart = synthesize(Known(), build=tmp_path, hierarchical=True).modules()
    assert apart["top"][0] == 1 and sum(n * c["bram36"] for n, c in apart.values()) == cells["bram36"]


class Deep(wiring.Component):
    """Twenty rounds of a mixing function in one cycle: the negative control of the limit."""

    def __init__(self):
        super().__init__({"a": In(8), "b": In(8), "y": Out(8)})

    def elaborate(self, platform):
        m = Module()
        a, key = Signal(8), Signal(8)
        m.d.sync += [a.eq(self.a), key.eq(self.b)]
        for n in range(20):
            mixed = Signal(8, name=f"round{n}")
            m.d.comb += mixed.eq(a.rotate_left(1) ^ (a.rotate_left(3) & a.rotate_left(6)) ^ key.rotate_left(n))
            a = mixed
        m.d.sync += self.y.eq(a)
        return m


def test_the_limit_can_be_missed(tmp_path):
    assert report(Deep(), build=tmp_path)["levels"] > MAX_LEVELS
