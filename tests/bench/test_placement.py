"""The cocotb bench of HostWriter, on both simulators."""

import pytest

from optinic.config import preset
from optinic.memory.acks import WriteAcks
from optinic.memory.host_writer import HostWriter
from sim.runner import BenchError, available, run_bench

pytestmark = pytest.mark.rtl


@pytest.mark.parametrize("simulator, base", [("verilator", "tiny"), ("verilator", "small"), ("icarus", "tiny")])
def test_placement(simulator, base, seed):
    if not available(simulator):
        pytest.skip(f"{simulator} is not installed")
    assert run_bench(HostWriter(preset(base)), "host_writer", "sim.bench.bench_placement", simulator=simulator,
                     parameters={"preset": base}, seed=seed % 1000) == 4


def test_a_completion_too_early_is_seen(seed):
    """The bench itself, tried on a card that completes a message with the first answer from the bus."""
    class Hasty(WriteAcks):
        def _job_is_done(self, job, seen, answer):
            return (job.bursts == 0) | answer

    class Mutant(HostWriter):
        acks_class = Hasty

    with pytest.raises(BenchError, match="(?s)failed completions_follow_their_writes.*completion .* began when"):
        run_bench(Mutant(preset("tiny")), "host_writer", "sim.bench.bench_placement", parameters={"preset": "tiny"},
                  seed=seed % 1000, simulator="icarus" if available("icarus") else "verilator")
