"""The cocotb bench of HostWriter, on both simulators."""

import pytest

from optinic.config import preset
from optinic.memory.host_writer import HostWriter
from sim.runner import available, run_bench


@pytest.mark.parametrize("simulator, base", [("verilator", "tiny"), ("verilator", "small"), ("icarus", "tiny")])
def test_placement(simulator, base, seed):
    if not available(simulator):
        pytest.skip(f"{simulator} is not installed")
    assert run_bench(HostWriter(preset(base)), "host_writer", "sim.bench.bench_placement", simulator=simulator,
                     parameters={"preset": base}, seed=seed % 1000) == 4
