"""The cocotb benches of Ingress, on both simulators."""

import pytest

from optinic.config import preset
from optinic.rx.ingress import Ingress
from sim.runner import SIMULATORS, available, run_bench

pytestmark = pytest.mark.rtl

CASES = [("verilator", "tiny"), ("verilator", "small"), ("icarus", "tiny")]


@pytest.mark.parametrize("bench", ["icrc", "parser"])
@pytest.mark.parametrize("simulator, base", CASES)
def test_ingress(bench, simulator, base, seed):
    if not available(simulator):
        pytest.skip(f"{simulator} is not installed")
    assert simulator in SIMULATORS
    assert run_bench(Ingress(preset(base)), "ingress", f"sim.bench.bench_{bench}", simulator=simulator,
                     parameters={"preset": base}, seed=seed % 1000) == 3
