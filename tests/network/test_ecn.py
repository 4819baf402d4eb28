"""Marks of congestion: when, on which frames, and that the frame stays right."""

from hypothesis import given, settings, strategies as st
import pytest

from sim.frames import build, flip, xp_send
from sim.models.wire import inspect
from sim.network import GBIT, US, Ecn, mark_ce, star
from .helpers import balanced, frame, know_everyone

SIX = dict(src="fd00::2", dst="fd00::1")


@settings(max_examples=80)
@given(st.booleans(), st.integers(0, 255), st.integers(0, 255), st.integers(0, 65535), st.binary(max_size=60),
       st.sampled_from([None, 5]), st.integers(0, (1 << 20) - 1))
def test_a_mark_changes_two_bits_and_keeps_the_frame_right(six, tos, ttl, ident, payload, vlan, flow):
    data = xp_send(3, payload, tos=tos, ttl=ttl, ident=ident, vlan=vlan, flow_label=flow, **(SIX if six else {}))
    before, marked = inspect(data), mark_ce(data)
    assert before.reason is None and not before.passed
    if tos & 3 == 0:
        assert marked is None
    elif tos & 3 == 3:
        assert marked is data
    else:
        after = inspect(marked)
        assert after.reason is None and after.ce and not before.ce and after.payload == payload     # checksum and ICRC hold
        checksum = {} if six else {24 + (4 if vlan else 0), 25 + (4 if vlan else 0)}
        at = 15 + (4 if vlan else 0)
        changed = {i for i in range(len(data)) if data[i] != marked[i]}
        assert changed - set(checksum) == {at} and data[at] | (0x30 if six else 3) == marked[at]


def test_a_wrong_checksum_stays_wrong():
    for wrong in range(0, 65536, 997):
        data = build(0xE4, 1, headers=bytes(16), tos=2, ip_checksum=wrong)
        assert (inspect(mark_ce(data)).reason == "checksum") == (inspect(data).reason == "checksum")


def test_a_mark_without_the_checksum_is_seen():
    """Negative control: the models would notice."""
    assert inspect(flip(frame(tos=2), 8 * 15)).reason == "checksum"


def test_what_is_not_ip_takes_no_mark():
    for data in (b"", b"\0" * 13, b"\0" * 60, frame(tos=1, ethertype=0x0806), frame(tos=1)[:33], frame(tos=1, **SIX)[:50],
                 frame(tos=1, vlan=3, ethertype=0x8100)):
        assert mark_ce(data) is None


def test_probability_of_a_mark():
    red = Ecn(1000, 3000, .5)
    assert [red.chance(x) for x in (0, 1000, 2000, 3000, 3001)] == [0, 0, .25, .5, 1]
    step = Ecn(1000, 1000, 1)
    assert [step.chance(x) for x in (1000, 1001)] == [0, 1]


def incast(ecn, senders, count, seed=1, tos=lambda s: 2, **more):
    """Frames of 1000 bytes, one of each sender at the same moment in each slot, to the last port."""
    net = star(senders + 1, rate=100 * GBIT, delay_ns=500, ecn=ecn, seed=seed, **more)
    know_everyone(net)
    slot = net.ports[0].out.wire_ps(1000)
    for n in range(count):
        for s in range(senders):
            data = frame(s, senders, size=1000 - 14 - 20 - 8 - 12 - 16 - 4 - 2, psn=n, tos=tos(s)).ljust(1000, b"\0")
            net.inject(s, data, n * slot)
    return net, net.advance(10**10)


def test_marks_of_a_growing_queue_are_as_calculated():
    """Two senders: frames 2n and 2n+1 find n+1 and n+2 thousand bytes (frame 0 finds none: each slot one has left)."""
    net, got = incast((20_000, 20_000, 1), senders=2, count=60)
    finds = [1000 * (i // 2 + i % 2) if i > 1 else 1000 * i for i in range(120)]
    assert [inspect(d.frame).ce for d in got] == [level > 20_000 for level in finds]
    queue = net.ports[2].into.queue
    assert queue.marked == sum(level > 20_000 for level in finds) and queue.most == 61_000


def test_share_of_marks_between_the_thresholds():
    net, got = incast((0, 1_000_000, .5), senders=2, count=800, seed=4)
    finds = [1000 * (i // 2 + i % 2) if i > 1 else 1000 * i for i in range(1600)]
    expected = sum(.5 * level / 1e6 for level in finds)
    marked = sum(inspect(d.frame).ce for d in got)
    assert abs(marked - expected) < 5 * expected**.5 and marked == net.ports[2].into.queue.marked > 200


def test_who_does_not_take_part_is_not_marked():
    net, got = incast((2000, 2000, 1), senders=3, count=50, tos=lambda s: (0, 1, 3)[s])
    ce = {s: {inspect(d.frame).ce for d in got if d.frame[11] == s} for s in range(3)}
    assert ce == {0: {False}, 1: {False, True}, 2: {True}}
    queue = net.ports[3].into.queue
    assert queue.not_capable > 40 and queue.marked > 40 and queue.marked_before > 40
    assert all(inspect(d.frame).reason is None for d in got)


def test_marks_and_drops_together():
    net, got = incast((3000, 10_000, .1), senders=3, count=100, queue_bytes=20_000)
    lane = net.ports[3].into
    assert lane.queue.most == 20_000 and lane.dropped["tail"] == 300 - len(got) > 100 and balanced(net)
    steady = [inspect(d.frame).ce for d in got[30:]]
    assert all(steady)


@pytest.mark.parametrize("name", ["kmin", "kmax"])
def test_thresholds_are_in_bytes_of_frames_in_front(name):
    """The frame itself doesn't count: with one frame in front and a threshold of its size there is no mark."""
    net, got = incast((1000, 1000, 1), senders=2, count=1)
    assert [inspect(d.frame).ce for d in got] == [False, False]
    net, got = incast((999, 999, 1), senders=2, count=1)
    assert [inspect(d.frame).ce for d in got] == [False, True]
    assert net.now_ps >= 10 * US
