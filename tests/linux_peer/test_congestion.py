"""Congestion control with a peer that knows none: Linux Soft-RoCE sends no CNP and ignores those that it gets.

So the card's own CNPs go to Linux for marked frames and must do no harm, and what slows the card down is made here: a CNP from Linux'
address, put on the network where Linux is."""

import pytest

from host_driver.verbs import IBV_QPT_UC
from sim.frames import cnp
from sim.linux_peer import Op
from .rig import CardSide, LinuxSide, ends, retries
from .stock import answering

pytestmark = [pytest.mark.rtl, pytest.mark.peer]
INTERVAL_NS, WAITS_NS = 20_000, 6000     # a notification may wait behind what the card sends else
SLOW = {"DCQCN_LINE_RATE": 8000, "DCQCN_RATE_MIN": 100, "DCQCN_G": 1, "DCQCN_BYTE_COUNTER": 0, "DCQCN_DECREASE_INTERVAL": 1,
        "DCQCN_INCREASE_TIMER": 1023, "DCQCN_ALPHA_TIMER": 1023,       # what was taken away comes back after 4 ms at the earliest
        "PACER_BURST": 0}                                              # and a late queue pair makes up for nothing
FORGETS_NS = 9_000_000      # a queue pair that has been silent for 8.39 ms is not congested any more


def card_frames(lab, kind):
    """[(ps, frame)] of the card's own frames of an opcode, as they reach the guest's port; a list that fills itself."""
    seen = []

    def note(frame):
        if frame[12:14] == b"\x08\0" and frame[23] == 17 and frame[42] == kind:
            seen.append((lab.world.now_ps, frame))
        return False
    lab.network.rule(destination=1, match=note, loss=1)
    return seen


@pytest.mark.parametrize("how", ["sent so", "marked on the way"])
def test_marked_frames_from_linux(guest, rng, how):
    """The card answers CE with CNPs, one an interval; Linux is none the worse for it."""
    marking = how == "marked on the way"
    with ends("rtl", guest, rng, mtu=1024, size=1 << 18, tos=2 if marking else 3, lab={"ecn": (0, 1, 1.0)} if marking else None) as pair:
        card, seen = pair.lab.cards[0], card_frames(pair.lab, 0x81)
        card.card.reg_write("CNP_INTERVAL", INTERVAL_NS)
        before = card.counters()
        traffic = pair.traffic("linux", rng)
        for _ in range(6):
            for name in ("write", "send", "read", "write_imm", "fadd"):
                traffic.make(name, 4000)
            traffic.run(depth=8)
        traffic.check()
        counts = {name: n - before[name] for name, n in card.counters().items()}
        print(how, counts["cnp_due"], counts["cnp_sent"], retries(pair.changed()))
        assert counts["cnp_due"] > 20 and 0 < counts["cnp_sent"] <= counts["cnp_due"] and counts["marks_lost"] == 0
        assert len(seen) == counts["cnp_sent"] and counts["cnp_received"] == 0
        times = [time for time, _ in seen]
        assert all(later - time > 1000 * (INTERVAL_NS - WAITS_NS) for time, later in zip(times, times[1:]))
        assert {int.from_bytes(frame[47:50], "big") for _, frame in seen} == {pair.linux.peer.there.qpn}
        # Linux: no retransmission, no error, and as good as before in both roles
        assert not retries(pair.changed())
        back = pair.traffic("card", rng)
        for name in ("write", "send", "read", "fadd"):
            back.make(name, 3000)
        back.run(depth=4)
        back.check()
        assert not retries(pair.changed()) and pair.linux.peer.state()[0] == 3


def test_unmarked_frames_bring_none(guest, rng):
    """The negative control: the same without marks."""
    with ends("rtl", guest, rng, mtu=1024, tos=2) as pair:
        traffic = pair.traffic("linux", rng)
        for _ in range(10):
            traffic.make("write", 4000)
        traffic.run(depth=8)
        traffic.check()
        assert pair.changed().get("card cnp_due", 0) == pair.changed().get("card cnp_sent", 0) == 0


def notify(lab, guest, qpn, count=1, source=None):
    """CNPs for the card's queue pair, as from Linux, 10 us apart."""
    card = lab.cards[0]
    frame = cnp(qpn, src=source or guest.address.ip, dst=card.ip, src_mac=guest.address.mac, dst_mac=card.mac)
    for _ in range(count):
        lab.world.send(1, frame)
        card.sleep_ns(10_000)


def time_a_message(lab, side, post):
    """(us from the first to the last frame of a message of 16 packets on its way to Linux, us until its completion)."""
    seen = []

    def note(frame):
        if len(frame) > 800:
            seen.append(lab.world.now_ps)
        return False
    rule = lab.network.rule(destination=1, match=note, loss=1)
    start = lab.world.now_ns
    post()
    done, = side.scq.wait(1, 50_000_000)
    assert done.ok
    took = (lab.world.now_ns - start) / 1000
    lab.world.run_until(lambda: len(seen) >= 16, 20_000_000)
    rule.active = False
    assert len(seen) == 16
    return (seen[-1] - seen[0]) / 1e6, took


def write(peer):
    return Op("write", 16 * 1024, 0, peer.there.addr)


@pytest.mark.parametrize("kind", ["rc", "uc"])
def test_a_notification_slows_the_card(guest, rng, kind):
    """Each halves the rate, as far as it may go; one from somebody else's address does nothing; and the rate comes back."""
    with answering("rtl", guest, rng) as lab:
        card = lab.cards[0]
        for name, value in SLOW.items():
            card.card.reg_write(name, value)
        side = CardSide(card, 1 << 16, rng, **({"qp_type": IBV_QPT_UC} if kind == "uc" else {}))
        linux = LinuxSide(guest, 1 << 16, rng, mtu=1024, **({"uc": 1} if kind == "uc" else {}))
        with linux.peer as peer:
            peer.connect(side.qp, side.mr)
            linux.connected(), side.begin(), linux.begin()
            linux.image[:16384] = side.image[:16384]
            measure = lambda: time_a_message(lab, side, lambda: side.start([write(peer)], 1, peer.there.rkey))
            free = measure()
            notify(lab, guest, side.qp.qp_num, 3, source="10.77.0.99")
            foreign = card.counters()
            still = measure()
            notify(lab, guest, side.qp.qp_num)
            half = measure()
            notify(lab, guest, side.qp.qp_num, 2)
            eighth = measure()
            counters = card.counters()
            card.sleep_ns(FORGETS_NS)
            again = measure()
            linux.check()
            print(kind, free, still, half, eighth, again, counters["cnp_received"])
        # From the first to the last of 16 frames: 15 times 1,100 bytes, 16.5 us at 8 Gb/s.
        print(half[0] / free[0], eighth[0] / free[0])
        assert foreign["cnp_received"] == 0 and foreign["drop_source"] == 3
        assert counters["cnp_received"] == 3
        assert free[0] == pytest.approx(16.5, rel=.05) == still[0] == again[0]
        assert half[0] == pytest.approx(2 * free[0], rel=.1) and eighth[0] == pytest.approx(8 * free[0], rel=.1)
        assert eighth[1] > still[1] + 80 and again[1] < eighth[1] - 60


def test_the_rest_of_the_card_is_not_slowed(guest, rng):
    """A notification is for one queue pair."""
    with answering("rtl", guest, rng) as lab:
        card = lab.cards[0]
        for name, value in SLOW.items():
            card.card.reg_write(name, value)
        sides = [CardSide(card, 1 << 15, rng) for _ in range(2)]
        peers = [LinuxSide(guest, 1 << 15, rng, mtu=1024) for _ in range(2)]
        for side, linux in zip(sides, peers):
            linux.peer.connect(side.qp, side.mr)
            linux.connected(), side.begin(), linux.begin()
        notify(lab, guest, sides[0].qp.qp_num, 3)
        slow, fast = (time_a_message(lab, side, lambda: side.start([write(linux.peer)], 1, linux.rkey))[0] for side, linux in zip(sides, peers))
        assert slow > 5 * fast
        for linux in peers:
            linux.peer.close()
