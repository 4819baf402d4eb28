"""These tests can fail: on a card with a fault built in, the one that is there for it does."""

import random

import pytest

from host_driver.card import CardError
from tests.mutants.mutant_nic import faulty_cards
from . import (rig as rig_module, test_arrival_map, test_conservation, test_deadlines, test_isolation, test_pass_through,
               test_qp_life, test_refusal_log, test_reset)
from .rig import CFG, Rig

pytestmark = pytest.mark.rtl


@pytest.fixture(scope="module")
def faulty():
    """Makes each card the mutant; returns a function that chooses the fault."""
    with faulty_cards(rig_module) as choose:
        yield choose


def second_life(seed, rng):
    with Rig(seed=seed, cq_entries=4096) as rig:
        rig.qp(2), rig.post(2, 60)
        test_qp_life.test_a_new_life_under_the_old_ones_traffic(rig, "xp", rng)


def flood(seed, rng):
    with Rig(seed=seed, cq_entries=4096) as rig:
        rig.qp(2), rig.qp(3, "uc")
        test_isolation.test_a_flood_of_refused_frames(rig, "generation")


def after_reset(seed, rng):
    with Rig(seed=seed) as rig:
        test_reset.test_in_mid_frame(rig, rng, True)


def refusals(seed, rng):
    with Rig(seed=seed) as rig:
        for qpn in (1, 2, 3):
            rig.qp(qpn, "uc" if qpn == 3 else "xp", generation=9)
            rig.post(qpn, 40)
        test_refusal_log.test_counts_by_queue_pair_and_reason(rig, rng)


def conservation(seed, rng):
    test_conservation.test_each_receive_completes_once(rng, seed, 0)


def deadlines(seed, rng):
    test_deadlines.test_all_queue_pairs_at_once(seed, CFG)


def arrivals(seed, rng):
    with Rig(seed=seed) as rig:
        test_arrival_map.test_what_is_refused_is_not_noted(rig, rng)


def passing(seed, rng):
    test_pass_through.test_every_length_between_transport_frames(seed, rng, {})


CASES = [("stale_generation_accepted", second_life), ("refusal_blocks_others", flood), ("address_off_by_one", after_reset),
         ("no_memory_check", refusals), ("completion_lost", conservation), ("completed_twice", conservation),
         ("deadline_lost", deadlines), ("short_frame_swallows_next", passing),
         ("refused_frame_in_map", arrivals)]


@pytest.mark.parametrize("fault, test", CASES, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_is_found(faulty, fault, test):
    faulty("none")
    test(5, random.Random(5))
    faulty(fault)
    with pytest.raises((AssertionError, CardError)) as found:
        test(5, random.Random(5))
    print(f"{fault}: {str(found.value).splitlines()[0] if str(found.value) else found.value!r}")
