"""A pytest plugin: the Rig of the system tests holds the model card instead of the generated one.

    python -m pytest -p tests.sim.on_model tests/system
"""

import pytest

from sim.model_device import ModelDevice

#: what the model doesn't have or doesn't do, and why
OTHERWISE = {
    "test_fetch_faults.py": "a bus with latencies, lost answers, and a list of its transfers",
    "test_overflow.py": "a host that is too slow for the card",
    "test_options.py": "the ports of the Verilog",
    "test_negative_controls.py": "mutated hardware; the model's controls are in tests/sim",
    "test_time_that_is_set_forward": "the scanner of the hardware doesn't see beyond 33 ms; the model has no scanner",
    "test_a_flood_of_refused_frames": "how long the card holds the MAC",
    "test_a_queue_pair_whose_receives_cannot_be_read[never-700]": "lost answers",
    "test_a_host_that_is_slow_loses_frames_of_its_own_only": "a host that is too slow for its frames",
    "test_in_mid_frame": "a reset in the middle of a frame, beat by beat",
    "test_a_completion_and_its_interrupt_come_after_the_data": "a list of the bus's transfers",
    "test_the_counts_of_the_doorbells_wrap[uc]": "as [xp], and it takes long",
    "test_stray_destroys_and_bells": "written for a flush that is not refused",
    "test_a_flush_of_a_qp_that_was_never_there": "written for a flush that is not refused",
}


def pytest_collection_modifyitems(config, items):
    kept = [item for item in items if not any(name in item.nodeid for name in OTHERWISE)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture(autouse=True)
def _model_in_the_rig(monkeypatch):
    import tests.system.rig
    monkeypatch.setattr(tests.system.rig, "SimDevice", ModelDevice)
