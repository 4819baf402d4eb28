"""The cocotb bench of the whole card, on both simulators."""

import pytest

from optinic.config import preset
from sim.build import nic_verilog
from sim.runner import available, run_bench

pytestmark = pytest.mark.rtl

KNOBS = {"trace": True, "rq_entries": 32}


@pytest.mark.parametrize("simulator, base", [("verilator", "tiny"), ("icarus", "tiny")])
def test_receive(simulator, base, seed):
    if not available(simulator):
        pytest.skip(f"{simulator} is not installed")
    assert run_bench(nic_verilog(preset(base, **KNOBS)), "optinic_nic", "sim.bench.bench_receive", simulator=simulator,
                     parameters={"preset": base, "knobs": KNOBS}, seed=seed % 1000) == 6
