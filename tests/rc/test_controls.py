"""Negative controls: a model with one rule broken, and the test that must find it out. On the model only."""

import random

import pytest

from sim.models import rc_acks, rc_requester, rc_responder, rc_sending
from sim.models.nic import Verdict
from tests.rc import test_golden_requester, test_golden_responder, test_pair, test_requester, test_responder, test_uc
from sim.rc_rig import MAKERS, Pair

make = MAKERS["model"]


def patch(monkeypatch, owner, name, wrap):
    monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))


def fails(test, *args):
    with pytest.raises((AssertionError, IndexError, StopIteration, ValueError, KeyError)):
        test(make, *args)


def lossy():
    test_pair.test_everything_at_once(make, random.Random(1), test_pair.BAD)


def test_the_tests_pass_unbroken():
    lossy()


def test_duplicates_are_taken_again(monkeypatch):
    def again(self, qp, packet, now):
        qp.expected = packet.psn
        return self._request(qp, packet, now)
    monkeypatch.setattr(rc_responder.Responder, "_duplicate", again)
    fails(test_responder.test_a_duplicate_is_acknowledged_and_not_delivered_again)
    fails(test_responder.test_an_atomic_is_done_once)
    with pytest.raises(AssertionError):
        lossy()


def test_a_gap_is_overlooked(monkeypatch):
    def wrap(original):
        def request(self, qp, packet, now):
            qp.expected = packet.psn
            return original(self, qp, packet, now)
        return request
    patch(monkeypatch, rc_responder.Responder, "_request", wrap)
    fails(test_responder.test_one_nak_for_each_gap)
    with pytest.raises(AssertionError):
        lossy()


def test_a_nak_for_each_packet(monkeypatch):
    def wrap(original):
        def request(self, qp, packet, now):
            qp.quiet = False
            return original(self, qp, packet, now)
        return request
    patch(monkeypatch, rc_responder.Responder, "_request", wrap)
    with pytest.raises(AssertionError), test_responder.bench(make) as b:
        found = b.exchange(test_responder.send("ONLY", 1, b"late"))
        found += b.exchange(test_responder.send("ONLY", 2, b"late"))
        assert test_responder.acks(found) == [(0, 0x60, 0)]


def test_atomics_are_forgotten(monkeypatch):
    def wrap(original):
        def duplicate(self, qp, packet, now):
            qp.results.clear()
            return original(self, qp, packet, now)
        return duplicate
    patch(monkeypatch, rc_responder.Responder, "_duplicate", wrap)
    fails(test_responder.test_an_atomic_is_done_once)
    fails(test_golden_responder.test_rc, "rc_loss_atomic.pcap")


def test_a_duplicate_read_moves_the_number(monkeypatch):
    patch(monkeypatch, rc_responder.Responder, "_read",
          lambda original: lambda self, qp, packet, now, again=False: original(self, qp, packet, now))
    fails(test_responder.test_a_duplicate_read_inside_a_write)
    fails(test_golden_responder.test_rc, "rc_loss_read.pcap")


def test_acknowledges_overtake_answers(monkeypatch):
    monkeypatch.setattr(rc_acks.Acknowledges, "_next", lambda self: next(iter(self._owed), None))
    fails(test_responder.test_answers_keep_their_order)


def test_sizes_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(rc_responder.Responder, "_fits", lambda self, qp, packet: packet.begins == (qp.open is None))
    for name in ("short first", "empty last", "write only, another DMALen", "write ends early"):
        fails(test_responder.test_invalid_requests, name)


def test_keys_are_not_looked_at(monkeypatch):
    patch(monkeypatch, rc_responder.Responder, "_find",
          lambda original: lambda self, qp, key, va, size, right: original(self, qp, 0x1234, va, size, "local_write"))
    for name in ("unknown key", "no remote write", "another domain"):
        fails(test_responder.test_access_is_refused, name)
    fails(test_golden_responder.test_refusals, "rc_nak_access_write.pcap", "remote_access")


def test_uc_goes_on_behind_a_gap(monkeypatch):
    def wrap(original):
        def message(self, qp, packet, now):
            qp.expected = packet.psn
            return original(self, qp, packet, now)
        return message
    patch(monkeypatch, rc_responder.Responder, "_message", wrap)
    fails(test_uc.test_a_gap_drops_the_rest, 1)
    fails(test_uc.test_out_of_order_ends_the_message)
    with pytest.raises(AssertionError):
        test_pair.test_unreliable_messages_over_a_bad_network(make, random.Random(1))


def test_a_missing_response_is_overlooked(monkeypatch):
    monkeypatch.setattr(rc_requester.Requester, "_implied", lambda self, qp, now: None)
    fails(test_requester.test_an_acknowledge_beyond_a_read_asks_for_it_again)
    fails(test_requester.test_a_lost_response_is_asked_for_once)


def test_every_hint_is_followed(monkeypatch):
    monkeypatch.setattr(rc_requester.Requester, "_implied", rc_requester.Requester._retry)
    fails(test_requester.test_a_lost_response_is_asked_for_once)


def test_acknowledged_reads_count_as_answered(monkeypatch):
    def wrap(original):
        def begin(self, qp, request, psn):
            begun = original(self, qp, request, psn)
            if request.op == "read":
                begun.result, begun.hidden = None, begun.result
            return begun
        return begin
    patch(monkeypatch, rc_requester.Requester, "_begin", wrap)
    fails(test_requester.test_an_acknowledge_beyond_a_read_asks_for_it_again)


def test_it_goes_back_to_the_message(monkeypatch):
    def wrap(original):
        def from_una(self, qp):
            original(self, qp)
            if qp.begun:
                qp.offset, qp.psn = 0, qp.begun[0].first
        return from_una
    patch(monkeypatch, rc_requester.Requester, "_from_una", wrap)
    fails(test_requester.test_go_back_into_a_message)


def test_retries_never_run_out(monkeypatch):
    def wrap(original):
        def retry(self, qp, now):
            qp.retries = 0
            return original(self, qp, now)
        return retry
    patch(monkeypatch, rc_requester.Requester, "_retry", wrap)
    fails(test_requester.test_retries_run_out, 1)
    with pytest.raises(AssertionError):
        test_pair.test_a_peer_that_is_gone(make, "send")


def test_seven_is_seven(monkeypatch):
    monkeypatch.setattr(rc_requester, "FOR_EVER", None)
    fails(test_requester.test_seven_is_for_ever)


def test_it_does_not_wait(monkeypatch):
    monkeypatch.setattr(rc_requester, "RNR_TIMES_NS", (0,) * 32)
    fails(test_requester.test_it_waits_as_long_as_it_is_told, 6)
    with pytest.raises(AssertionError):
        test_pair.test_a_slow_receiver(make, random.Random(1))


def test_any_acknowledge_will_do(monkeypatch):
    def wrap(original):
        def acknowledge(self, qp, packet, now):
            while qp.begun and qp.begun[0].result is None:
                qp.una = (qp.begun[0].first + qp.begun[0].count) % (1 << 24)
                qp.begun.popleft()
                qp.head += 1
            return Verdict("consumed", qpn=qp.number, kind="none")
        return acknowledge
    patch(monkeypatch, rc_requester.Requester, "_acknowledge", wrap)
    fails(test_requester.test_acknowledges_without_meaning)
    fails(test_requester.test_one_acknowledge_completes_a_run)


def test_another_ack_request_policy(monkeypatch):
    monkeypatch.setattr(rc_sending, "ACK_EVERY", 32)
    fails(test_golden_requester.test_rc, "rc_write_64k.pcap")
    fails(test_requester.test_an_acknowledge_inside_a_message)


def test_a_window_too_wide(monkeypatch):
    patch(monkeypatch, rc_requester.Requester, "add_qp",
          lambda original: lambda self, *args, window, **more: original(self, *args, window=window + 1, **more))
    fails(test_requester.test_so_many_may_be_unacknowledged, 4)


def many_readers():
    """Twelve QPs that READ what a card with room for eight has to queue: whether all came through."""
    with Pair(make) as pair:
        a, _ = pair.nodes
        for qpn in range(1, 13):
            pair.connect(qpn, timeout=8)
        for _ in range(16):
            for qpn in range(1, 13):
                a.post_send(qpn, "read", 0, 16384)
        ended = lambda done: len(done) == 16 or done and done[-1][1] == "fatal"
        pair.run_until(lambda: all(ended(a.outcomes(q)) for q in range(1, 13)), 40_000_000)
        return all(a.outcomes(q) == [(i, "success", "complete") for i in range(16)] for q in range(1, 13))


def test_a_busy_responder_says_so(monkeypatch):
    """READs that are dropped for want of room use up the retries of a requester on a good network; RNR NAKs don't."""
    assert many_readers()
    monkeypatch.setattr(rc_responder.Responder, "rnr_when_busy", False)
    assert not many_readers()
