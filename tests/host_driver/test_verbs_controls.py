"""That the tests of the driver would see a driver that is wrong."""

import pytest

from host_driver.card import Card
from host_driver.verbs import CompChannel, IBV_WC_FATAL_ERR, IBV_WR_RDMA_READ, SendWR, open_cards
from host_driver.verbs.endpoint import Endpoint
from host_driver.verbs.numbers import Numbers
from host_driver.verbs.qp import QP
from . import test_verbs_events, test_verbs_states, test_verbs_traffic
from .conftest import connect, make_end


def run(test, *, paired=True, changes=None, **more):
    with open_cards("model", 2, changes=changes) as cards:
        if paired:
            ends = [make_end(context, reads=4) for context in cards]
            connect(*ends)
            test(ends, **more)
        else:
            test(cards, **more)


def expect_failure(test, **more):
    try:
        run(test, **more)
    except (Exception, pytest.fail.Exception):      # an assertion, a missing exception, or what the card says to the mess
        return
    pytest.fail("the test saw nothing")


CASES = {
    "a running card is not torn down": (
        lambda patch: patch.setattr(Card, "tear_down", lambda self: None),
        lambda: dict(test=test_verbs_states.test_a_driver_that_died, paired=False, clean=False)),
    "every life has the same generation": (
        lambda patch: patch.setattr(Numbers, "generation", lambda self, qpn: 7),
        lambda: dict(test=test_verbs_states.test_a_new_life_forgets_the_old_one)),
    "arming clears the interrupt": (
        lambda patch: patch.setattr(Card, "arm", clear_after(Card.arm)),
        lambda: dict(test=test_verbs_events.test_nothing_is_missed_between_polling_and_arming)),
    "a channel takes the interrupts of the others": (
        lambda patch: patch.setattr(CompChannel, "_look", one_channel(CompChannel._look)),
        lambda: dict(test=test_verbs_events.test_events_go_to_the_right_channel, paired=False, changes={"num_vectors": 3})),
    "a full CQ is not seen": (
        lambda patch: patch.setattr(QP, "_need_room", lambda *_: None),
        lambda: dict(test=test_verbs_events.test_a_full_cq_refuses_instead_of_losing, paired=False)),
    "sends are never asked about": (
        lambda patch: patch.setattr(Card, "create_qp", never_announced(Card.create_qp)),
        lambda: dict(test=test_verbs_traffic.test_unsignaled_sends, paired=False)),
    "reset keeps the queue pair": (
        lambda patch: patch.setattr(Endpoint, "end_life", lambda self: None),
        lambda: dict(test=test_verbs_states.test_a_new_life_forgets_the_old_one)),
}


def one_channel(look):
    def wrong(self):
        context = self.context
        everybody, context._channels = context._channels, [self]
        try:
            return look(self)
        finally:
            context._channels = everybody
    return wrong


def clear_after(arm):
    def wrong(self, index):
        arm(self, index)
        self.clear_vectors(0xFFFF_FFFF)
    return wrong


def never_announced(create):
    def wrong(self, qpn, **more):
        create(self, qpn, **more)
        self._qp(qpn).signal_every = 1 << 30
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_driver_is_seen(name):
    mutate, case = CASES[name]
    case = case()
    run(**case)
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        expect_failure(**case)


def test_a_read_whose_request_failed_says_so_at_once_and_only_once():
    """The card can't read the request's WQE: no answer will come, and its receive, which has no time limit, would wait for ever."""
    with open_cards("model", 2) as cards:
        a, b = (make_end(context, reads=4) for context in cards)
        connect(a, b)
        read = lambda i: SendWR(i, IBV_WR_RDMA_READ, sg=[a.mr.sge(64 * i, 64)], rkey=b.mr.rkey, remote_addr=b.mr.addr)
        card = a.context.card
        ring = card.sq_base + card.qp_index(a.qp._reads.qpn) * card.sq_entries * 64
        a.context.device.inject(ring, 64, "slverr", on="read", count=1)
        a.qp.post_send(read(0))
        failed, = a.scq.wait(1)
        assert (failed.wr_id, failed.status, failed.cause) == (0, IBV_WC_FATAL_ERR, "bus")
        a.qp.post_send(read(1))         # its answer ends the receive of the first, of which there is nothing more to say
        assert [(wc.wr_id, wc.ok) for wc in a.scq.wait(2, 50_000)] == [(1, True)]
