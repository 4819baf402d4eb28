"""The cocotb runner says what happened, also when nothing did."""

import pytest

from sim.build import BuildError
from sim.runner import BenchError, SIMULATORS, available, run_bench
from .loopback import Loopback

pytestmark = pytest.mark.rtl


@pytest.fixture(params=SIMULATORS)
def run(request):
    if not available(request.param):
        pytest.skip(f"{request.param} is not installed")

    def run(what, **more):
        return run_bench(Loopback(64), "loopback", "tests.sim.bad_benches", simulator=request.param,
                         parameters={"what": what}, **more)
    return run


def test_results_are_read(run, capfd):
    assert run("passes", seed=7) == 1
    first = capfd.readouterr().out
    assert "seed 7" in first
    with pytest.raises(BenchError, match="(?s)failed one.*as it should"):
        run("fails")
    with pytest.raises(BenchError, match="no test ran|without results"):
        run("nothing")
    with pytest.raises(BenchError, match="without results"):
        run("dies")


def test_misuse(monkeypatch):
    with pytest.raises(ValueError, match="'modelsim' is not one of verilator, icarus"):
        run_bench("", "loopback", "x", simulator="modelsim")
    with pytest.raises(BuildError, match="loopback doesn't build for verilator"):
        run_bench("module loopback(clk); input clk; wrong; endmodule", "loopback", "x")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match="iverilog was not found; apt-get install iverilog"):
        run_bench(Loopback(64), "loopback", "x", simulator="icarus")
