"""Negative controls: models of the card with one rule broken. Linux finds out, or memory tells."""

import pytest

from sim.linux_peer import PeerError
from sim.models import rc_requester, rc_responder

from .rig import KINDS, ends, retries, run_all

pytestmark = pytest.mark.peer
BAD = dict(loss=.06, duplicate=.06)


def traffic_over(guest, rng, link, kinds=KINDS, requesters=("linux", "card")):
    with ends("model", guest, rng, mtu=256, size=1 << 19, lab=link, card_attributes=dict(timeout=7), timeout=14) as pair:
        both = [pair.traffic(requester, rng) for requester in requesters]
        for _ in range(4):
            for traffic in both:
                for _ in range(30):
                    traffic.make(rng.choice(kinds), rng.randrange(1000))
            run_all(both, 16)
        both[0].check()
        if not link:
            assert not retries(pair.changed())


def test_unbroken(guest, rng):
    traffic_over(guest, rng, BAD)


def fails(*args, **options):
    with pytest.raises((AssertionError, PeerError)):
        traffic_over(*args, **options)


def test_duplicates_are_taken_again(guest, rng, monkeypatch):
    def again(self, qp, packet, now):
        qp.expected = packet.psn
        return self._request(qp, packet, now)
    monkeypatch.setattr(rc_responder.Responder, "_duplicate", again)
    fails(guest, rng, BAD, requesters=["linux"])


def test_a_gap_is_overlooked(guest, rng, monkeypatch):
    right = rc_responder.Responder._request

    def request(self, qp, packet, now):
        qp.expected = packet.psn
        return right(self, qp, packet, now)
    monkeypatch.setattr(rc_responder.Responder, "_request", request)
    fails(guest, rng, BAD, requesters=["linux"])


def test_atomics_are_done_again(guest, rng, monkeypatch):
    right = rc_responder.Responder._duplicate

    def duplicate(self, qp, packet, now):
        return self._read(qp, packet, now, again=True) if packet.atomic else right(self, qp, packet, now)
    monkeypatch.setattr(rc_responder.Responder, "_duplicate", duplicate)
    fails(guest, rng, BAD, kinds=("fadd",), requesters=["linux"])


def test_an_ack_stands_for_an_answer(guest, rng, monkeypatch):
    """Soft-RoCE then does without the answer."""
    right = rc_responder.Responder._duplicate

    def duplicate(self, qp, packet, now):
        qp.asked = False
        return right(self, qp, packet, now)
    monkeypatch.setattr(rc_responder.Responder, "_duplicate", duplicate)

    def several():      # one run out of four or so
        for _ in range(30):
            traffic_over(guest, rng, dict(loss=.08), requesters=["linux"])
    with pytest.raises(AssertionError, match="LinuxSide: .* bytes differ"):
        several()


def test_an_ack_for_what_is_not_there(guest, rng, monkeypatch):
    """The card's requester believes the first answer that it gets."""
    right = rc_requester.Requester._acknowledge

    def acknowledge(self, qp, packet, now):
        if packet.syndrome >> 5 == 3:
            packet.syndrome = 0x1F
        return right(self, qp, packet, now)
    monkeypatch.setattr(rc_requester.Requester, "_acknowledge", acknowledge)
    fails(guest, rng, BAD, requesters=["card"])


def test_an_answer_by_the_wrong_number(guest, rng, monkeypatch):
    """No loss is needed for Linux to notice."""
    right = rc_responder.Responder._read

    def read(self, qp, packet, now, again=False):
        before = qp.expected
        found = right(self, qp, packet, now, again)
        if not again:
            qp.expected = (before + 1) % (1 << 24)
        return found
    monkeypatch.setattr(rc_responder.Responder, "_read", read)
    fails(guest, rng, {}, requesters=["linux"])
