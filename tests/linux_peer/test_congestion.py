"""Congestion control with a peer that knows none: Linux Soft-RoCE sends no CNP and ignores those that it gets.

So the card's own CNPs go to Linux for marked frames and must do no harm, and what slows the card down is made here: a CNP from
Linux' address, put on the network where Linux is."""

import pytest

from sim.frames import cnp
from .rig import ends as rig_ends, retries
from .stock import Connected, answering

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
    tos, lab = (2, {"ecn": (0, 1, 1.0)}) if marking else (3, None)
    with rig_ends("rtl", guest, rng, mtu=1024, size=1 << 18, tos=tos, lab=lab) as pair:
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
    with rig_ends("rtl", guest, rng, mtu=1024, tos=2) as pair:
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


def time_to_write(ends):
    """(us from the first to the last of 16 frames on their way to Linux, us until their completions): one WRITE of 16 KiB, or where
    messages have one packet 16 of them."""
    lab, seen = ends.lab, []

    def note(frame):
        if len(frame) > 800:
            seen.append(lab.world.now_ps)
        return False
    rule = lab.network.rule(destination=1, match=note, loss=1)
    start = lab.world.now_ns
    ends.write(0, 16 * 1024, pieces=1 if ends.card.card.rc else 16)
    took = (lab.world.now_ns - start) / 1000
    lab.world.run_until(lambda: len(seen) >= 16, 20_000_000)
    rule.active = False
    assert len(seen) == 16
    return (seen[-1] - seen[0]) / 1e6, took


def slow(card):
    for name, value in SLOW.items():
        card.card.reg_write(name, value)


@pytest.mark.parametrize("transport, kind", [("rc", "rc"), ("rc", "uc"), ("xp", "uc")])
def test_a_notification_slows_the_card(guest, rng, transport, kind):
    """Each halves the rate, as far as it may go; one from somebody else's address does nothing; and the rate comes back."""
    with answering("rtl", guest, rng, transport=transport) as lab:
        card, ends = lab.cards[0], Connected(lab, guest, kind)
        slow(card)
        with ends.peer:
            data = rng.randbytes(16 * 1024)
            ends.mr.write(data)
            free = time_to_write(ends)
            notify(lab, guest, ends.qp.qp_num, 3, source="10.77.0.99")
            foreign = card.counters()
            still = time_to_write(ends)
            notify(lab, guest, ends.qp.qp_num)
            half = time_to_write(ends)
            notify(lab, guest, ends.qp.qp_num, 2)
            eighth = time_to_write(ends)
            counters = card.counters()
            card.sleep_ns(FORGETS_NS)
            again = time_to_write(ends)
            assert ends.peer.dump(0, len(data)) == data
        print(free, still, half, eighth, again, half[0] / free[0], eighth[0] / free[0])
        assert foreign["cnp_received"] == 0 and foreign["drop_source"] == 3 and counters["cnp_received"] == 3
        # From the first to the last of 16 frames: 15 times 1,100 bytes, 16.5 us at 8 Gb/s.
        assert free[0] == pytest.approx(16.5, rel=.1) and still[0] == again[0] == pytest.approx(free[0], rel=.05)
        assert half[0] == pytest.approx(2 * free[0], rel=.1) and eighth[0] == pytest.approx(8 * free[0], rel=.1)
        assert eighth[1] > still[1] + 80 and again[1] < eighth[1] - 60


def test_the_rest_of_the_card_is_not_slowed(guest, rng):
    """A notification is for one queue pair."""
    with answering("rtl", guest, rng) as lab:
        slow(lab.cards[0])
        both = [Connected(lab, guest, "rc") for _ in range(2)]
        notify(lab, guest, both[0].qp.qp_num, 3)
        slowed, free = (time_to_write(ends)[0] for ends in both)
        for ends in both:
            ends.peer.close()
        assert slowed > 5 * free
