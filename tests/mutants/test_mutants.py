"""Each invariant of design.md section 4 has a test that fails on a card which breaks it: the comparison with the model, which
finds no difference in the card as it is, must find one in every mutant.

Invariant 5 (completion after acknowledgement) has its negative control where time is visible, in test_write_engine.
"""

import pytest

from sim import fuzz
from sim.replay import ReplayError, engine_rtl
from sim.scenario import make_scenario

from .mutant_nic import MUTATIONS, faulty_cards

PRESET, FRAMES, SCENARIOS = "tiny", 250, 6


@pytest.fixture(scope="module")
def mutant():
    """Makes the replay's card the mutant; returns a function that chooses the fault."""
    with pytest.MonkeyPatch.context() as patch, faulty_cards(engine_rtl) as choose:
        patch.setattr(engine_rtl, "ANSWER_CYCLES", 200_000)
        yield choose


def first_difference(seed):
    """What the comparison says over some scenarios; None if it finds nothing."""
    for i in range(SCENARIOS):
        scenario = make_scenario(seed % 1000 + i, PRESET, FRAMES, arrival_map=True)
        try:
            found = fuzz.difference(fuzz.rtl(scenario), fuzz.model(scenario))
        except (ReplayError, RuntimeError) as error:
            found = str(error)
        if found:
            return found
    return None


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutant(name, mutant):
    mutant(name)
    found = first_difference(seed=77)
    print(f"{name}: {found}")
    assert (found is None) == (name == "none"), found
