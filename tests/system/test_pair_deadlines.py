"""Two cards: sends that run out of time, on a cable that is slow, cut or switched off, and sends of queue pairs that don't send."""

import pytest

from sim.network import GBIT

from .pair import BOTH, CFG, Pair, Tap, ends

BOUND_NS = 5000         # decided so soon behind the deadline: some rounds of the scheduler, reads of work requests in between
PLANNED = 52            # packets that may be planned and not on the cable yet; what ends a message is told behind those


def frame_ns(pair, payload=256):
    """How long a frame takes on the cable, at least."""
    return pair.net.ports[0].out.wire_ps(payload + 90) / 1000


@BOTH
def test_on_a_slow_cable(make, seed):
    """A long message gets as far as it gets: what was sent is told exactly, and it is what the peer has."""
    with Pair(make, seed, strict=False, rate=2 * GBIT) as pair:
        near, far = pair.ends
        link, other = pair.link(), pair.link()
        tap = Tap(near.port.out)
        for after in (20_000, 45_000, 80_000):
            # both would take longer than that; the other one has no deadline
            began, frames = near.now_ns, len(tap.packets())
            m = pair.post(link, 0, "send", 100 * 256, deadline_ns=began + after, receive_ns=far.now_ns + 600_000)
            next_ = pair.post(link, 0, "send", 100, receive_ns=far.now_ns + 700_000)
            long = pair.post(other, 0, "write", 100 * 256)
            pair.all_over([m, next_, long])
            pair.settle(), pair.verify(wipe=True)
            sent = [p for _, p in tap.packets()[frames:] if p.qpn == link.qpns[1] and p.msg_len == m.length]
            c = m.sent
            assert (c.status, c.cause, c.byte_len, c.msg_len) == ("partial", "timeout", 256 * len(sent), m.length)
            assert 0 < len(sent) < 100 and 0 <= c.time_ns - (began + after) <= BOUND_NS + PLANNED * frame_ns(pair)
            assert after / frame_ns(pair) / 2 - 4 < len(sent) < after / frame_ns(pair) + PLANNED
            assert ends([m], "received") == [("partial", "preempted", c.byte_len)]
            assert ends([next_, long]) == [("success", "complete", next_.length), ("success", "complete", long.length)]
        assert near.count("sends_expired") == 3
        pair.balance()


@BOTH
def test_before_anything_was_sent(make, seed):
    """A deadline that has passed, one that passes at once, and one far away, in one ring: none of them holds up the next."""
    with Pair(make, seed, strict=False) as pair:
        near = pair.ends[0]
        link = pair.link()
        near.card.set_time(1_000_000_000)
        made = []
        for i in range(40):
            deadline = 1_000_000_000 + (-500, 64, 10**9, -10**6)[i % 4]
            made.append(pair.post(link, 0, ("send", "write")[i % 2], 300, deadline_ns=deadline, receive=False, seq=0, bell=i == 39))
        expected = [m for m in made if m.index % 4 == 2]
        pair.ends[1].expected.clear()
        pair.run(20_000)
        assert near.card.outstanding(link.qpns[0], "send") == 0
        for m in made:
            c = m.sent
            late = m.index % 4 != 2
            assert (c.status, c.cause, c.byte_len) == (("partial", "timeout", 0) if late else ("success", "complete", 300)), (m, c)
        assert near.count("sends_expired") == 30 and near.port.out.frames == 2 * len(expected)


@BOTH
def test_switched_off(make, seed):
    """Nothing is sent, deadlines run all the same, at all queue pairs at once; switched on, the rest goes out in order."""
    with Pair(make, seed, strict=False) as pair:
        near, far = pair.ends
        links = [pair.link(type="uc" if i % 4 == 3 else "xp") for i in range(10)]
        near.card.enable(hold=True, tx=False)
        frames = near.port.out.frames
        began = near.now_ns
        deadline = began + 60_000
        made = [pair.post(link, 0, "send", 20, receive=False, seq=0, bell=i == 2, deadline_ns=deadline + 640 * i)
                for link in links for i in range(3)]
        far.expected.clear()
        backwards = [pair.post(link, 1, "send", 30) for link in links]
        while near.now_ns < deadline - 2000:
            pair.run(1000)
        assert not any(m.sent for m in made) and all(m.over for m in backwards)
        pair.run(20_000)
        for m in made:
            assert ends([m]) == [("partial", "timeout", 0)]
            assert 0 <= m.sent.time_ns - (deadline + 640 * m.index) <= 2 * BOUND_NS, (m, m.sent.time_ns - deadline)
        made = [pair.post(link, 0, "send", 20 + i, seq=i, bell=i == 2) for link in links for i in range(3)]
        pair.run(20_000)
        assert near.port.out.frames == frames and not any(m.sent for m in made)
        near.card.enable(hold=True)
        pair.all_over(made)
        pair.settle(), pair.verify()
        assert set(ends(made)) == {("success", "complete", 20 + i) for i in range(3)}
        assert near.port.out.frames == frames + 3 * len(links) and near.count("sends_expired") == 3 * len(links)
        pair.balance()


@BOTH
@pytest.mark.parametrize("blockers", [3, 7])
def test_switched_off_with_full_rings(make, seed, blockers):
    """Others that have no deadline have filled all places for work requests on the chip: one that has a deadline gets to it."""
    with Pair(make, seed, strict=False) as pair:
        near, far = pair.ends
        near.card.enable(hold=True, tx=False)
        made = []
        for _ in range(blockers):
            link = pair.link()
            made += [pair.post(link, 0, "write", 10, bell=i == 29) for i in range(30)]
        pair.run(5000)
        deadline = near.now_ns + 10_000
        m = pair.post(pair.link(), 0, "write", 10, deadline_ns=deadline)
        pair.run(10_000 + BOUND_NS)
        assert ends([m]) == [("partial", "timeout", 0)]
        near.card.enable(hold=True)
        pair.all_over(made)
        far.expected.remove(m)
        pair.strict = True
        pair.settle(), pair.verify()


@BOTH
def test_switched_off_and_on_under_way(make, seed):
    """Over and over in the middle of messages both ways: nothing is lost by it."""
    with Pair(make, seed) as pair:
        links = [pair.link(), pair.link(type="uc"), pair.link()]
        made = [pair.post(links[2], side, "read", 3000) for side in range(2) for _ in range(2)]
        for link in links[:2]:
            made += [pair.post(link, side, "send", pair.rng.randrange(257 if link.type == "uc" else 2000), bell=i == 29)
                     for side in range(2) for i in range(30)]
        for _ in range(25):
            end = pair.rng.choice(pair.ends)
            end.card.enable(hold=True, tx=False)
            pair.run(pair.rng.choice((200, 2000)))
            at = end.port.out.frames
            pair.world.run_ns(5000)
            assert end.port.out.frames - at <= PLANNED
            end.card.enable(hold=True)
            pair.run(pair.rng.choice((100, 1000, 4000)))
        pair.all_over(made)
        pair.settle(), pair.verify(), pair.balance()


@BOTH
@pytest.mark.parametrize("state", ["init", "error"])
def test_a_queue_pair_that_does_not_send(make, seed, state):
    """Everything posted to it ends as flushed; its neighbours send."""
    with Pair(make, seed, strict=False) as pair:
        near = pair.ends[0]
        link, other = pair.link(), pair.link()
        if state == "error":
            pair.post(link, 0, "write", 10)
            pair.settle()
            near.card.flush_qp(link.qpns[0])
        else:
            link.open(0, state="init")
        frames = near.port.out.frames
        for lap in range(3):
            made = [pair.post(link, 0, "write" if i % 3 else "send", 100 * i, receive=False, bell=i % 10 == 9, signaled=i % 2 == 0)
                    for i in range(CFG.sq_entries // 10 * 10)]
            pair.ends[1].expected = [m for m in pair.ends[1].expected if m not in made]
            good = [pair.post(other, 0, "send", 10) for _ in range(10)]
            pair.all_over(good), pair.all_sent(made)
            assert set(ends(made)) == {("error", "flushed", 0)} and set(ends(good)) == {("success", "complete", 10)}
        assert near.port.out.frames == frames + 30
        pair.settle(), pair.verify(), pair.balance()
        link.renew()
        m = pair.post(link, 0, "send", 700)
        pair.all_over([m])
        assert ends([m]) == [("success", "complete", 700)]


@BOTH
def test_a_cable_that_is_cut(make, seed):
    """Sent is sent: the sends succeed, the receives end in time; when the cable is whole again, everything works."""
    with Pair(make, seed, strict=False) as pair:
        link = pair.link()
        cable = pair.net.links[0]
        for _ in range(2):
            cable.set_up(False)
            made = [pair.post(link, side, "send", 900, timeout_ns=15_000) for side in range(2) for _ in range(5)]
            pair.all_over(made)
            assert set(ends(made)) == {("success", "complete", 900)}
            assert set(ends(made, "received")) == {("partial", "timeout", 0)}
            cable.set_up(True)
            made = [pair.post(link, side, "send", 900, timeout_ns=15_000) for side in range(2) for _ in range(5)]
            pair.all_over(made)
            assert set(ends(made, "received")) == {("success", "complete", 900)}
        pair.settle(), pair.verify(), pair.balance()


@BOTH
@pytest.mark.parametrize("rate", [GBIT // 10, GBIT])
def test_every_queue_pair_at_once_on_a_slow_cable(make, seed, rate):
    """All deadlines run out while one frame is on the cable: each is decided in time, and nothing is counted twice."""
    with Pair(make, seed, strict=False, rate=rate) as pair:
        near = pair.ends[0]
        tap = Tap(near.port.out)
        links = [pair.link() for _ in range(12)]
        deadline = near.now_ns + 100_000
        made = [pair.post(link, 0, "write", 20_000, deadline_ns=deadline, bell=i == 2) for link in links for i in range(3)]
        pair.all_sent(made, 10_000_000, 5000)
        pair.settle(60_000_000), pair.verify()
        for m in made:
            assert (m.sent.status, m.sent.cause) == ("partial", "timeout")
        sent = len(tap.packets())
        assert sum(m.sent.byte_len for m in made) == 256 * sent == sum(pair.present(m) for m in made)
        assert near.count("sends_expired") == len(made)
        late = [m.sent.time_ns - deadline for m in made]
        assert min(late) >= 0 and max(late) <= BOUND_NS + PLANNED * frame_ns(pair), sorted(late)
