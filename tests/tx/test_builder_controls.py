"""What is wrong with FrameBuilder is noticed by its bench: one broken part at a time."""

import pytest

from optinic.tx import egress, headers, host_queue, icrc_insert
from optinic.tx.builder import FrameBuilder
from optinic.wire.icrc import advance

from .frame_bench import Packet, host_frames, run


def broken(rng, match, **more):
    with pytest.raises(AssertionError, match=match):
        run([Packet.random(rng, n, peer=n % 4, kind=n % 3) for n in (0, 4, 8, 13, 40, 77)], rng, **more)


def test_wrong_icrc_is_noticed(monkeypatch, rng):
    monkeypatch.setattr(icrc_insert, "back_matrix", lambda count: [advance(1 << bit, 1 - count) for bit in range(32)])
    broken(rng, "is not")


def test_wrong_mask_is_noticed(monkeypatch, rng):
    masks = icrc_insert.icrc_masks

    def with_ttl(l3, v6):
        return [(0xFF, 0) if i == l3 + (7 if v6 else 8) else pair for i, pair in enumerate(masks(l3, v6))]
    monkeypatch.setattr(icrc_insert, "icrc_masks", with_ttl)
    broken(rng, "is not")


def test_icrc_too_late_is_noticed(monkeypatch, rng):
    monkeypatch.setattr(egress.Egress, "__init__", lambda self, cfg, delay, init=egress.Egress.__init__: init(self, cfg, delay - 1))
    broken(rng, "is not")


def test_gap_is_noticed(monkeypatch, rng):
    """A host frame that begins before it is here."""
    monkeypatch.setattr(host_queue.HostQueue, "elaborate", early(host_queue.HostQueue.elaborate))
    broken(rng, "gap", host=host_frames(rng, [300]), host_pause=0.5)


def early(elaborate):
    def changed(self, platform):
        m = elaborate(self, platform)
        m.d.comb += self.go.eq(1)
        return m
    return changed


def test_too_small_a_queue_is_noticed(monkeypatch, rng):
    """Fewer places than the way from a step to the cable and back: gaps."""
    monkeypatch.setattr(FrameBuilder, "places", 8)
    broken(rng, "gap")


def test_wrong_checksum_is_noticed(monkeypatch, rng):
    monkeypatch.setattr(headers, "PROTOCOL_UDP", 16)
    broken(rng, "is not")
