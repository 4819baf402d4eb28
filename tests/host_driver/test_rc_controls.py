"""That the tests of the driver on a card of transport rc would see a driver that is wrong."""

import inspect
import random

import pytest

from host_driver import queues
from host_driver.card import Card
from host_driver.queue_pairs import Reliability
from host_driver.verbs import IBV_WR_RDMA_WRITE, open_cards
from host_driver.verbs.connection import Connection
from host_driver.verbs.numbers import Numbers
from . import test_rc_failures, test_rc_states, test_rc_traffic
from .conftest import connect, make_end


def run(test, paired=True, **more):
    with open_cards("model", 2, transport="rc") as cards:
        if paired:
            cards_or_ends = [make_end(context) for context in cards]
            connect(*cards_or_ends)
        else:
            cards_or_ends = cards
        test(cards_or_ends, **more)


def only_the_last(right):
    return lambda ended, common, arrived: right(ended, common, arrived)[-1:]


def everything(right):
    return lambda ended, common, arrived: right([(i, posted._replace(silent=False)) for i, posted in ended], common, arrived)


def of_any_domain(right):
    def invalidate(self, completion, qp):
        qp.pd = self._regions[completion.imm][3] & 0xFFFF
        return right(self, completion, qp)
    return invalidate


def one_further(right):
    def place(self, qp, *buffer):
        qp.results += 1
        where = right(self, qp, *buffer)
        qp.results -= 1
        return where
    return place


def rng_test(test):
    return lambda cards: test(cards, random.Random(5))


TRAFFIC, FAILURES, STATES = test_rc_traffic, test_rc_failures, test_rc_states
VIOLATION = dict(test=FAILURES.test_access_violations, opcode=IBV_WR_RDMA_WRITE, what="rkey")
CASES = {
    "results of atomics stay as they came": (Card, "_turn", lambda right: lambda self, posted: None, dict(test=TRAFFIC.test_atomics)),
    "everything that is read is turned": (
        Card, "_turn", lambda right: lambda self, posted: right(self, posted._replace(opcode="fetch_add")),
        dict(test=lambda pair: TRAFFIC.test_every_kind_and_length(pair, random.Random(5), 1024))),
    "a failed queue pair is not flushed": (Card, "_failed", lambda right: lambda self, qp: None, VIOLATION),
    "its state is not known": (Connection, "qp_state", lambda right: property(lambda self: self._state), VIOLATION),
    "nobody looks into the other CQ": (
        Card, "look_beside", lambda right: lambda self, index: None,
        dict(test=FAILURES.test_who_looks_only_at_receives_hears_of_a_failed_send)),
    "a run has one completion": (
        queues, "expand_run", only_the_last, dict(test=TRAFFIC.test_one_acknowledgement_for_many, paired=False)),
    "unsignaled requests complete too": (
        queues, "expand_run", everything, dict(test=rng_test(TRAFFIC.test_runs_of_mixed_signaling), paired=False)),
    "any key can be invalidated": (Card, "_invalidate", of_any_domain, dict(test=TRAFFIC.test_send_with_invalidate)),
    "no key is invalidated": (
        Card, "_invalidate", lambda right: lambda self, completion, qp: completion, dict(test=TRAFFIC.test_send_with_invalidate)),
    "results lie in the wrong entry": (Card, "_place_result", one_further, dict(test=TRAFFIC.test_atomics)),
    "every life begins with the same PSN": (
        Numbers, "psn", lambda right: lambda self: 7, dict(test=STATES.test_a_new_life_has_other_numbers)),
    "PSNs are not given to the card": (
        Reliability, "words", lambda right: property(lambda self: (right.fget(self)[0], right.fget(self)[1] ^ 1, right.fget(self)[2])),
        dict(test=STATES.test_a_failure_while_draining)),
    "the ACK timeout is another": (
        Reliability, "words", lambda right: property(lambda self: (right.fget(self)[0], right.fget(self)[1] ^ 1 << 24, right.fget(self)[2])),
        dict(test=FAILURES.test_a_peer_that_is_gone, paired=False)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_driver_is_seen(monkeypatch, name):
    where, what, wrong, how = CASES[name]
    run(**how)
    monkeypatch.setattr(where, what, wrong(inspect.getattr_static(where, what)))
    try:
        run(**how)
    except (Exception, pytest.fail.Exception):      # an assertion, a missing exception, or what the card says to the mess
        return
    pytest.fail("the test saw nothing")
