"""Several queue pairs at once, each a process in Linux: one's trouble is not another's."""

import pytest

from sim.linux_peer import Lab, Op

from .rig import KINDS, TRACED, CardSide, LinuxSide, Traffic, run_all

pytestmark = [pytest.mark.peer, pytest.mark.rtl]


def connected(lab, guest, rng, *, linux_settings=None, **attributes):
    """(card's Side, Linux' Side)"""
    card, linux = CardSide(lab.cards[0], 1 << 17, rng), LinuxSide(guest, 1 << 17, rng, **(linux_settings or {}))
    linux.peer.connect(card.qp, card.mr, **attributes)
    linux.addr, linux.rkey = linux.peer.there.addr, linux.peer.there.rkey
    card.store(0, card.image), linux.store(0, linux.image)
    return card, linux


@pytest.mark.parametrize("loss", [0, .03])
def test_pairs_with_different_mtus(guest, rng, loss):
    """Both ways in each, of all kinds, over IPv4 and IPv6."""
    with Lab("rtl", [guest], changes=TRACED, rate=8_000_000_000, loss=loss) as lab:
        ours, theirs = (7, 14) if loss else (12, 19)        # timeouts
        pairs = [connected(lab, guest, rng, linux_settings=dict(mtu=mtu, ip6=ip6, timeout=theirs), timeout=ours)
                 for mtu, ip6 in ((256, False), (1024, True), (512, True))]       # the card has eight CQs
        try:
            everything = [Traffic(*sides, rng) for card, linux in pairs for sides in ((card, linux), (linux, card))]
            for _ in range(2):
                for traffic in everything:
                    for name in KINDS:
                        traffic.make(name, rng.randrange(3000))
                run_all(everything, 8)
            for traffic in everything:
                traffic.check()
        finally:
            for _, linux in pairs:
                linux.peer.close()


@pytest.mark.parametrize("requester", ["linux", "card"])
def test_one_that_fails_leaves_the_others_alone(guest, rng, requester):
    with Lab("rtl", [guest], changes=TRACED, rate=8_000_000_000) as lab:
        pairs = [connected(lab, guest, rng, linux_settings=dict(mtu=256)) for _ in range(2)]
        try:
            bad, good = (Traffic(*(pair if requester == "card" else pair[::-1]), rng) for pair in pairs)
            for name in KINDS:
                good.make(name, 2500)
            bad.start(8, Op("write", 300, 0, bad.b.addr, rkey=bad.b.rkey ^ 0x33), Op("read", 300, 0, bad.b.addr))
            good.run(8)
            assert bad.a.finish() == [(0, "remote_access"), (1, "flushed")]
            bad.check(), good.check()
        finally:
            for _, linux in pairs:
                linux.peer.close()
