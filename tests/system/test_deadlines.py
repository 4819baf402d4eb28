"""Deadlines of a whole card: when a clock starts, that none is early, how late the latest is, and what set_time does."""

import pytest

from optinic.abi.structs import TICK_NS
from .rig import CFG, FAST, Rig, ends

pytestmark = pytest.mark.rtl

PIPELINE = 64           # cycles from the scanner's event to the decision, nothing else under way; rounded up
COARSE_NS = 1024        # the scanner's unit
BOTH = pytest.mark.parametrize("cfg", [CFG, FAST], ids=["125MHz", "250MHz"])


def bound_ns(cfg, others=0):
    """docs/host-interface.md: how much later than its deadline a receive may complete, `others` expiring at the same time."""
    return COARSE_NS + (cfg.scan_rows + PIPELINE + 2 * others) * cfg.clock_ns


def ticks(ns):
    return -(-ns // TICK_NS)


def on_time(c, start_ns, timeout_ns, cfg, others=0):
    """The clock started within the tick of `start_ns`; returns the lateness in ns."""
    due = (start_ns // TICK_NS + ticks(timeout_ns)) * TICK_NS
    late = c.time_ns - due
    assert 0 <= late <= TICK_NS + bound_ns(cfg, others), (c, start_ns, late)
    return late


@BOTH
def test_time_is_in_nanoseconds(seed, cfg):
    with Rig(cfg, seed=seed) as rig:
        a, cycle = rig.card.time_ns(), rig.dev.cycle
        rig.dev.run(100_000)
        passed = rig.card.time_ns() - a
        assert abs(passed - (rig.dev.cycle - cycle) * cfg.clock_ns) <= 2 * cfg.clock_ns


@BOTH
@pytest.mark.parametrize("type", ["xp", "uc"])
def test_the_clock_starts_when_a_receive_is_posted_and_the_oldest(seed, cfg, type):
    with Rig(cfg, seed=seed) as rig:
        rig.qp(1, type)
        rig.dev.run(5000)       # long the oldest, and not posted: no clock
        before = rig.card.time_ns()
        rig.post(1, timeout_ns=10_000)
        after = rig.card.time_ns()
        first, = rig.card.wait(0, 1, limit_cycles=10_000)
        assert (first.status, first.cause) == ("partial", "timeout")
        assert before + 10_000 - TICK_NS <= first.time_ns <= after + 10_000 + TICK_NS + bound_ns(cfg)
        # one behind the other: each one's clock starts with the end of the one before it, however that ended
        rig.post(1, doorbell=False, timeout_ns=20_000)
        rig.post(1, doorbell=False, timeout_ns=6_000)
        rig.post(1, doorbell=False, timeout_ns=3_000)
        rig.post(1, timeout_ns=30_000)
        rig.dev.run(1500)
        rig.send(rig.message(1, 1, b"m"))
        done = rig.card.wait(0, 4, limit_cycles=20_000)
        assert ends(done) == [(1, "success", "complete"), *((i, "partial", "timeout") for i in (2, 3, 4))]
        for before, c, timeout in zip(done, done[1:], (6_000, 3_000, 30_000)):
            on_time(c, before.time_ns, timeout, cfg)
        assert rig.card.counter("deadlines") == 4
        rig.dev.run(2000)
        assert rig.card.poll(0) == []


def test_a_preempting_packet_starts_the_clock(seed):
    with Rig(seed=seed) as rig:
        rig.qp(1)
        for timeout in (50_000, 40_000, 5_000):
            rig.post(1, timeout_ns=timeout)
        rig.dev.run(1000)
        rig.send(rig.message(1, 2, b"x" * 10, msg_len=100))
        done = rig.card.wait(0, 3, limit_cycles=10_000)
        assert ends(done) == [(0, "partial", "preempted"), (1, "partial", "preempted"), (2, "partial", "timeout")]
        assert done[0].time_ns == done[1].time_ns and done[2].byte_len == 10
        on_time(done[2], done[1].time_ns, 5_000, CFG)


@BOTH
def test_absolute_deadlines(seed, cfg):
    with Rig(cfg, seed=seed) as rig:
        rig.qp(1), rig.qp(2), rig.qp(3, "uc")
        now = rig.card.time_ns()
        at = {1: now + 40_000, 2: now + 70_000, 3: now + 100_001}
        for qpn, ns in at.items():
            rig.post(qpn, 2, timeout_ns=ns, absolute=True)
        done = rig.card.wait(0, 6, limit_cycles=60_000)
        assert [(c.qpn, c.index) for c in done] == [(q, i) for q in (1, 2, 3) for i in (0, 1)]
        for c in done:      # the second receive has the same end: it is past as soon as the receive is the oldest
            extra = COARSE_NS + bound_ns(cfg) if c.index else 0
            assert ticks(at[c.qpn]) * TICK_NS <= c.time_ns <= ticks(at[c.qpn]) * TICK_NS + bound_ns(cfg) + extra
        past = rig.card.time_ns() - 10_000
        rig.post(1, timeout_ns=past, absolute=True)
        called = rig.card.time_ns()
        c, = rig.card.wait(0, 1, limit_cycles=5000)
        assert (c.cause, c.index) == ("timeout", 2) and c.time_ns - called <= bound_ns(cfg)
        rig.post(1, timeout_ns=rig.card.time_ns() - 1, absolute=True)   # a packet that finds it past is late, at once
        assert rig.exchange(rig.message(1, 3, b"?"))[0] == "late"
        assert ends(rig.card.poll(0)) == [(3, "partial", "timeout")]


@pytest.mark.parametrize("timeout", [33_000_000, 34_000_000, 50_000_000, 67_200_000, 300_000_000])
def test_beyond_what_the_scanner_sees(seed, timeout):
    """Its coarse time reaches 33 ms ahead. None is early, however often it has to look again; the time is moved ahead
    between looks, by less than half of that."""
    with Rig(seed=seed) as rig:
        rig.qp(1)
        start = rig.card.time_ns()
        rig.post(1, timeout_ns=timeout)
        rig.settle()
        while rig.card.time_ns() < start + timeout - 16_000_000:
            rig.card.set_time(rig.card.time_ns() + 15_000_000)
            rig.dev.run(1000)
            assert rig.card.poll(0) == []
        rig.card.set_time(start + timeout - 5000)
        rig.dev.run(400)
        assert rig.card.poll(0) == []
        c, = rig.card.wait(0, 1, limit_cycles=10_000)
        on_time(c, start, timeout, CFG, others=20)


def test_the_longest_timeout_is_not_early(seed):
    longest = ((1 << 31) - 1) * TICK_NS
    with Rig(seed=seed) as rig:
        rig.qp(1), rig.qp(2)
        start = rig.card.time_ns()
        rig.post(1, timeout_ns=longest)
        rig.post(2, timeout_ns=start + longest - TICK_NS, absolute=True)
        rig.settle()
        for part in (.1, .3, .5, .7, .9, .99, .9999):
            rig.card.set_time(start + int(longest * part))
            for _ in range(5):          # past whatever the scanner had been told
                rig.card.set_time(rig.card.time_ns() + 2_000_000)
                rig.dev.run(1000)
            assert rig.card.poll(0) == [], part
        assert rig.exchange(rig.message(1, 0, b"in time"), rig.message(2, 0, b"in time")) == ["placed"] * 2
        assert {c.status for c in rig.card.poll(0)} == {"success"}


def test_time_that_is_set_forward(seed):
    """A jump over the deadline ends the receive at once, as far as the scanner sees (33 ms); and to the next packet a
    message that has run out is late after a jump of any size."""
    with Rig(seed=seed) as rig:
        rig.qp(1), rig.qp(2)
        rig.post(1, 3, timeout_ns=1_000_000), rig.post(2, timeout_ns=1_000_000)
        rig.settle()
        rig.card.set_time(rig.card.time_ns() + 10_000_000)
        called = rig.card.time_ns()
        rig.dev.run(400)
        done = rig.card.poll(0)
        assert sorted((c.qpn, c.index, c.cause) for c in done) == [(1, 0, "timeout"), (2, 0, "timeout")]
        assert max(c.time_ns for c in done) - called <= bound_ns(CFG, 2)
        rig.settle()        # the clock of the next one runs now
        rig.card.set_time(rig.card.time_ns() + 60_000_000)
        assert rig.exchange(rig.message(1, 1, b"?")) == ["late"]
        assert ends(rig.card.poll(0)) == [(1, "partial", "timeout")]
        # a longer jump takes the scanner's mark to where it seems to lie ahead: found when the coarse time has come round
        rig.post(2, timeout_ns=20_000_000)
        rig.settle()
        for jump in (60_000_000, 12_000_000, 12_000_000):
            assert rig.card.outstanding(2) == 1
            rig.card.set_time(rig.card.time_ns() + jump)
            rig.dev.run(400)
            done = [c for c in rig.card.poll(0) if c.qpn == 2]
        assert ends(done) == [(1, "partial", "timeout")]


@BOTH
def test_all_queue_pairs_at_once(seed, cfg):
    """Every QP at the same tick, again and again: each one has its own turn, and the last is within the bound."""
    with Rig(cfg, seed=seed) as rig:
        n, worst = cfg.num_qps, 0
        for qpn in range(n):
            rig.qp(qpn, "uc" if qpn % 2 else "xp")
        for round in range(6):
            at = (rig.card.time_ns() + 60_000 + 333 * round) // TICK_NS * TICK_NS
            for qpn in range(n):
                rig.post(qpn, timeout_ns=at, absolute=True)
            done = rig.card.wait(0, n, limit_cycles=60_000)
            assert sorted(c.qpn for c in done) == list(range(n)) and {c.cause for c in done} == {"timeout"}
            late = [c.time_ns - at for c in done]
            assert min(late) >= 0
            worst = max(worst, *late)
        print(f"{cfg.clock_hz / 1e6:.0f} MHz: latest of {n}: {worst} ns, bound {bound_ns(cfg, n):.0f} ns")
        assert worst <= bound_ns(cfg, n)
        assert rig.card.counter("deadlines") == 6 * n


def test_deadlines_under_a_flood_of_frames(seed):
    """Frames without a gap on one QP; deadlines of all others keep their bound, plus what waits in front of them."""
    with Rig(seed=seed, cq_entries=4096) as rig:
        rig.qp(0)
        flood = [rig.write(0, bytes(64))] * 4000
        others = range(1, CFG.num_qps)
        for qpn in others:
            rig.qp(qpn)
        start = rig.card.time_ns()
        at = {qpn: (start + 60_000 + 7_000 * qpn) // TICK_NS * TICK_NS for qpn in others}
        for qpn in others:
            rig.post(qpn, timeout_ns=at[qpn], absolute=True)
        rig.settle()
        rig.dev.send_many(flood)
        rig.dev.run(220_000 // 8)
        done = rig.card.poll(0)
        assert rig.dev.frames_sent < len(flood)     # it was under way all the time
        assert [c.qpn for c in done] == list(others)
        buffered = CFG.rx_buffer_bytes / CFG.beat_bytes * 2 * CFG.clock_ns      # as long as the packet buffer takes to drain
        late = [c.time_ns - at[c.qpn] for c in done]
        print(f"latest: {max(late)} ns, bound {bound_ns(CFG):.0f} + {buffered:.0f} ns")
        assert min(late) >= 0 and max(late) <= bound_ns(CFG) + buffered
