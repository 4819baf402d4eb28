"""What our network does to frames in both directions, nothing of it may show: everything arrives, once and in order."""

import pytest

from .rig import KINDS, LARGE, ends, retries, run_all

pytestmark = [pytest.mark.peer, pytest.mark.rtl]
BAD = {
    "loss1": dict(loss=.01), "loss5": dict(loss=.05), "bursts": dict(burst=(.02, .4)), "duplicate": dict(duplicate=(.2, 3000)),
    "reorder": dict(reorder=(.1, (1000, 12000))), "corrupt": dict(corrupt=(.03, 3)),
    "everything": dict(loss=.03, duplicate=(.03, 2000), reorder=(.05, (1000, 8000)), corrupt=(.01, 1), damage=.01)}
#: timers: 0.5 ms of the card, 67 ms of the guest
PATIENT = dict(card_attributes=dict(timeout=7), timeout=14)


@pytest.mark.parametrize("impair", BAD)
@pytest.mark.parametrize("backend, mtu", [("rtl", 256), ("rtl", 1024), ("model", 1024)])
def test_everything_arrives(guest, rng, backend, mtu, impair):
    with ends(backend, guest, rng, mtu=mtu, size=1 << 21, lab=BAD[impair], **PATIENT) as pair:
        both = [pair.traffic(requester, rng) for requester in ("linux", "card")]
        happened = lambda: min(sum(lane.dropped.values()) + sum(lane.changed.values()) for lane in pair.lab.network.lanes)
        rounds = 0
        while rounds < 4 or happened() < 5 and rounds < 30:
            for traffic in both:
                for _ in range(30):
                    traffic.make(rng.choice(KINDS), rng.choice((0, 1, mtu, mtu + 1, rng.randrange(4 * mtu))))
            run_all(both, 16)
            rounds += 1
        both[0].check()
        assert happened() >= 5                      # in both directions
        if impair != "duplicate":
            assert retries(pair.changed())


@pytest.mark.parametrize("requester", ["linux", "card"])
@pytest.mark.parametrize("name", ["write", "read", "send_imm"])
def test_long_messages(guest, rng, requester, name):
    """64 KiB, 16 under way, of which the network loses: far to go back."""
    with ends("rtl", guest, rng, mtu=4096, size=1 << 22, changes=LARGE, lab=dict(loss=.02), **PATIENT) as pair:
        traffic = pair.traffic(requester, rng)
        for _ in range(24):
            traffic.make(name, 65536)
        traffic.run(16)
        traffic.check()
        assert retries(pair.changed())


@pytest.mark.parametrize("requester", ["linux", "card"])
def test_atomics_are_done_once(guest, rng, requester):
    """A lost answer makes the requester ask again: the first result is given, and nothing is added twice."""
    with ends("rtl", guest, rng, mtu=1024, lab=dict(loss=.08, duplicate=.1), **PATIENT) as pair:
        traffic = pair.traffic(requester, rng)
        for _ in range(3):
            for _ in range(40):
                traffic.make(rng.choice(("fadd", "cas")), 8)
            traffic.run(16)
        traffic.check()
        assert pair.lab.network.lanes[0].dropped["loss"] > 3


@pytest.mark.parametrize("first", [0xFFFFFF, 0xFFFFE0])
def test_numbers_wrap_under_loss(guest, rng, first):
    with ends("rtl", guest, rng, mtu=256, size=1 << 18, lab=dict(loss=.05), card_psn=first, psn=first, **PATIENT) as pair:
        both = [pair.traffic(requester, rng) for requester in ("linux", "card")]
        for _ in range(2):
            for traffic in both:
                for name in KINDS + KINDS:
                    traffic.make(name, rng.randrange(2000))
            run_all(both, 16)
        both[0].check()
