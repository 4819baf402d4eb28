"""The shift-register wrapper, and place and route of a design with more ports than pins."""

import json

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
import pytest

from rtl_gen import yosys
from rtl_gen.report.flow import map_rtlil, rtlil_of
from rtl_gen.report.place import place, spread
from rtl_gen.report.scan import PREFIX, wrap
from rtl_gen.yosys import ToolError


class Wide(wiring.Component):
    """600 ports, an adder between registers."""

    def __init__(self):
        super().__init__({"a": In(300), "y": Out(300)})

    def elaborate(self, platform):
        m = Module()
        a = Signal(300)
        m.d.sync += [a.eq(self.a), self.y.eq(a + (a << 7))]
        return m


@pytest.fixture(scope="module")
def mapped():
    return map_rtlil(rtlil_of(Wide()), family="ecp5")


def test_the_wrapper(mapped):
    """Every input of the card comes from a register of one long shift register, every output goes to one, and nothing of the card is changed."""
    module = json.loads(mapped.path.read_text())["modules"]["top"]
    wrapped, cost = wrap(module)
    assert (cost["inputs"], cost["outputs"], cost["pins"]) == (301, 300, 4)       # reset is an input
    own = {name: cell for name, cell in wrapped["cells"].items() if name.startswith(PREFIX)}
    assert {n: c for n, c in wrapped["cells"].items() if n not in own} == {n: c for n, c in module["cells"].items() if c["type"] != "$scopeinfo"}
    assert sum(c["type"] == "TRELLIS_FF" for c in own.values()) == cost["ff"] and sum(c["type"] == "LUT4" for c in own.values()) == cost["lut"]
    assert sum(len(p["bits"]) for p in wrapped["ports"].values()) == 4
    # follow the chain from the serial output back to the serial input: every register of the wrapper but that of `capture` is on it
    driver = {c["connections"]["Q" if "Q" in c["connections"] else "Z"][0]: c for c in own.values()}
    net, steps = wrapped["ports"]["scan_out"]["bits"][0], 0
    while net != wrapped["ports"]["scan_in"]["bits"][0]:
        data = driver[net]["connections"]["DI"][0]
        net = driver[data]["connections"]["B"][0] if data in driver and driver[data]["type"] == "LUT4" else data
        steps += 1
    assert steps == cost["ff"] - 1
    inputs = {b for n, p in module["ports"].items() if p["direction"] == "input" and n != "clk" for b in p["bits"]}
    captured = {c["connections"]["A"][0] for c in own.values() if c["type"] == "LUT4"}
    assert inputs <= set(driver) and captured == {b for p in module["ports"].values() if p["direction"] == "output" for b in p["bits"]}
    assert len(set(driver)) == len(own)         # nothing is driven twice


def test_place_and_route(mapped):
    run = place(mapped.path, 100_000_000, 1)
    assert 30 < run["fmax_mhz"] < 500 and run["wanted_mhz"] == 100
    assert run["utilization"]["TRELLIS_FF"]["used"] >= 600 + run["wrapper"]["ff"]
    assert run["critical"]["ns"] == pytest.approx(1000 / run["fmax_mhz"], rel=0.02)


def test_the_tools_own_words(mapped, monkeypatch):
    def failed(argv, folder, timeout):
        return type("Done", (), {"returncode": 1, "stdout": "Info: packing\nERROR: no room for cell x\n"})
    monkeypatch.setattr(yosys, "_start", failed)
    with pytest.raises(ToolError, match="ERROR: no room for cell x"):
        place(mapped.path, 100_000_000, 1)
    assert [p for p in mapped.folder.iterdir() if p.name.startswith(".place")] == []


def test_spread():
    assert spread([{"fmax_mhz": f, "seed": s} for s, f in enumerate((90.5, 100.0, 80.0))]) == {
        "min": 80.0, "median": 90.5, "max": 100.0, "seeds": [0, 1, 2]}
