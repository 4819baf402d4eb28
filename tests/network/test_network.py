"""Rates, delays, forwarding, queues: exact, and nothing gets lost without being counted."""

from hypothesis import given, settings, strategies as st
import pytest

from sim.network import GBIT, NS, US, Network, NetworkError, back_to_back, star
from .helpers import balanced, fingerprint, frame, know_everyone, mac, traffic

HARD = dict(loss=.02, burst=(.02, .2, .8), reorder=(.1, (100, 5000)), duplicate=(.05, 300), corrupt=(.05, 3), damage=.02,
            jitter_ns=("exponential", 200))


def wire(data, gbit=100):
    return 8 * (max(60, len(data)) + 24) * 1000 // gbit


# -- rates and delays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gbit", [10, 25, 40, 100, 200, 400])
def test_rate_and_delay_are_exact(gbit):
    net = back_to_back(rate=gbit * GBIT, delay_ns=700)
    frames = [frame(size=n) for n in (0, 1, 100, 4096)] + [b"tiny"]
    for data in frames:
        net.inject(0, data, 5 * NS)
    expected, time = [], 5 * NS
    for data in frames:
        time += wire(data, gbit)
        expected.append((time + 700 * NS, 1, data, False))
    assert net.advance(expected[0][0] - 1) == [] and net.totals()["in_flight"] == len(frames)
    assert net.advance(expected[0][0]) == expected[:1]
    assert net.advance(100 * US) == expected[1:] and net.next_ps is None
    assert net.ports[0].out.busy_ps == time - 5 * NS and net.ports[1].out.busy_ps == 0


def test_a_rate_that_does_not_divide_is_rounded_up_once():
    net = back_to_back(rate=3, delay_ns=0, overhead_bytes=0, min_frame_bytes=0)
    net.inject(0, b"x", 0)
    assert [d.time_ps for d in net.advance(10**13)] == [-(-8 * 10**12 // 3)]


def test_directions_are_apart():
    net = Network()
    net.link(net.port("a"), net.port("b"), rate=100 * GBIT, delay_ns=500, back=dict(rate=10 * GBIT, delay_ns=50))
    data = frame()
    net.inject("a", data, 0), net.inject("b", data, 0)
    assert [(d.port, d.time_ps) for d in net.advance(10 * US)] == [(1, wire(data) + 500 * NS), (0, wire(data, 10) + 50 * NS)]


def test_the_wire_keeps_up_with_a_frame_that_is_being_given_out():
    net = back_to_back(rate=100 * GBIT, delay_ns=500)
    data = frame()
    w = wire(data)
    net.inject(0, data, w // 2, 0)              # its last beat came sooner than the wire could take it
    net.inject(0, data, 10 * w, 2 * w)          # its last beat came later
    net.inject(0, data, 10 * w, 3 * w)
    assert [d.time_ps - 500 * NS for d in net.advance(100 * US)] == [w, 10 * w, 11 * w]


def test_through_a_switch():
    net = star(3, rate=100 * GBIT, delay_ns=500, latency_ns=300)
    know_everyone(net)
    data = frame(0, 2)
    net.inject(0, data, 0)
    assert net.advance(100 * US) == [(2 * wire(data) + 1300 * NS, 2, data, False)]
    assert net.ports[2].into.counters()["frames"] == 1 and net.ports[1].into.counters()["frames"] == 0


def test_two_switches():
    net = Network()
    left, right = net.switch("left"), net.switch("right")
    for i in range(4):
        net.link(net.port(), (left, right)[i % 2], rate=100 * GBIT, delay_ns=100)
    net.link(left, right, rate=10 * GBIT, delay_ns=1000)
    for i in range(4):      # each says who it is
        net.inject(i, frame(i, 99), i * 10 * US)
    assert len(net.advance(100 * US)) == 4 * 3
    data = frame(0, 3)
    net.inject(0, data, 200 * US)
    assert net.advance(300 * US) == [(200 * US + 2 * wire(data) + wire(data, 10) + 1200 * NS, 3, data, False)]
    assert balanced(net)


# -- forwarding ------------------------------------------------------------------------------------------


def test_learning_and_flooding():
    net = star(4, rate=100 * GBIT, delay_ns=100)
    heard = lambda: [d.port for d in net.advance(net.now_ps + 10 * US)]
    send = lambda s, data: (net.inject(s, data, net.now_ps), heard())[1]
    assert send(0, frame(0, 1)) == [1, 2, 3]        # unknown
    assert send(1, frame(1, 0)) == [0]              # learned
    assert send(2, frame(2, 1)) == [1]
    broadcast = bytes(b"\xff" * 6) + frame(3, 0)[6:]
    assert send(3, broadcast) == [0, 1, 2]
    assert send(3, frame(1, 0)) == [0] and send(0, frame(0, 1)) == [3]          # it has moved
    assert send(3, frame(2, 1)) == [] and net.ports[3].out.dropped["filtered"] == 1
    net.switches[0].static(mac(1), net.ports[1])
    assert send(3, frame(1, 0)) == [0] and send(0, frame(0, 1)) == [1]          # given: not learned anew
    net.switches[0].forget()
    assert net.switches[0].table == {bytes.fromhex(mac(1).replace(":", "")): net.ports[1]}
    assert send(0, b"short") == [] and net.ports[0].out.dropped["runt"] == 1
    assert balanced(net)


def test_a_damaged_frame_ends_at_a_switch_and_reaches_a_card_marked():
    net = star(2, rate=100 * GBIT, delay_ns=100)
    net.inject(0, frame(), 0, damaged=True)
    assert net.advance(10 * US) == [] and net.totals()["dropped"] == {"damaged": 1}
    net = back_to_back(rate=100 * GBIT, delay_ns=100)
    net.inject(0, frame(), 0, damaged=True)
    assert [d.damaged for d in net.advance(10 * US)] == [True]


def test_a_link_that_is_cut():
    net = back_to_back(rate=100 * GBIT, delay_ns=500)
    net.inject(0, frame(), 0)
    net.advance(200 * NS)
    net.links[0].set_up(False)
    net.inject(0, frame(), 200 * NS)
    assert len(net.advance(1 * US)) == 1            # it was on the wire
    net.links[0].set_up(True)
    net.inject(0, frame(), 2 * US)
    assert len(net.advance(10 * US)) == 1 and net.totals()["dropped"] == {"down": 1} and balanced(net)


# -- queues ----------------------------------------------------------------------------------------------


def test_queue_of_an_incast_is_as_calculated():
    """Two senders at line rate into one port: the queue grows by a frame each slot, then drains."""
    size, count, w = 1000, 50, 8 * 1024 * 10
    net = star(3, rate=100 * GBIT, delay_ns=500, queue_bytes=10**6, record=True)
    know_everyone(net)
    for n in range(count):
        for s in (0, 1):
            data = frame(s, 2, size=0, psn=n).ljust(size, b"\0")
            net.inject(s, data, n * w)
    got = net.advance(1000 * US)
    first = 2 * w + 1000 * NS
    assert [d.time_ps for d in got] == [first + i * w for i in range(2 * count)]
    queue, begin = net.ports[2].into.queue, w + 500 * NS          # the first frames have arrived at the switch
    times, levels = queue.series()
    level_at = lambda t: int(levels[times.searchsorted(t, "right") - 1])
    for n in range(count):      # in slot n (from 0) 2(n+1) have come and n have left
        assert level_at(begin + n * w) == size * (2 * (n + 1) - n) == level_at(begin + (n + 1) * w - 1)
    assert queue.most == size * (count + 1)
    for n in range(count):      # then a frame leaves each slot; the last arrivals came in slot count - 1
        assert level_at(begin + (count + n) * w) == size * (count - n)
    stats = queue.stats(begin, begin + 2 * count * w, edges=[0, size + 1, 10 * size + 1, 10**6])
    up, down = range(2, count + 2), range(1, count + 1)
    assert stats["max"] == queue.most
    assert stats["mean"] == pytest.approx(size * (sum(up) + sum(down)) / (2 * count))
    assert list(stats["histogram"]) == pytest.approx([1 / 100, 18 / 100, 81 / 100])
    assert stats["p50"] == 26 * size and stats["p99"] == 50 * size
    queue.reset_stats()
    assert queue.most == 0 and queue.mean() == 0 and queue.bytes_now() == 0
    net.inject(0, frame(0, 2, size=0).ljust(size, b"\0"), net.now_ps)
    net.advance(net.now_ps + w + 500 * NS + w // 2)             # half of it is sent, and it counts whole
    assert queue.bytes_now() == queue.most == size
    net.advance(net.now_ps + w // 2)
    assert queue.bytes_now() == 0 and queue.mean() == pytest.approx(size * w / (2 * w + 500 * NS))


@pytest.mark.parametrize("room", [1000, 2999, 3000, 10_000])
def test_what_does_not_fit_is_dropped_and_counted(room):
    net = star(3, rate=100 * GBIT, delay_ns=500, queue_bytes=room)
    know_everyone(net)
    for n in range(40):
        for s in (0, 1):
            net.inject(s, frame(s, 2, size=0, psn=n).ljust(1000, b"\0"), 0)
    got = net.advance(1000 * US)
    lane = net.ports[2].into
    frames = min(room // 1000, 80)
    assert lane.queue.most == 1000 * frames
    # One of two fits in each slot once it is full; with room for one only, that one is still being sent when the next two come.
    assert len(got) == 40 + frames - 1 and lane.dropped == {"tail": 80 - len(got)} and balanced(net)


# -- the same run again ----------------------------------------------------------------------------------


def run(seed=1, chunks=None, order=None, hard=HARD):
    net = star(4, rate=100 * GBIT, delay_ns=400, queue_bytes=30_000, ecn=(5000, 20_000, .3), seed=seed, **hard)
    net.rule(source=0, destination=1, loss=.3)
    frames = traffic(3, 4, 400, 40 * US)
    got, at = [], 0
    for end in (*(chunks or ()), 10**9):
        part = [f for f in frames if at <= f[0] < end]
        if order is not None:
            part = sorted(part, key=lambda f: (f[1] * order % 5, f[0]))         # port by port
        for time, source, data in part:
            net.inject(source, data, time)
        got += net.advance(max(at, end - 1))
        at = end
        assert balanced(net)
    return net, got


def test_same_seed_same_run():
    prints = [fingerprint(run(seed)[1]) for seed in (1, 1, 2)]
    print("fingerprints", prints)
    assert prints[0] == prints[1] != prints[2]


@settings(max_examples=15)
@given(st.lists(st.integers(1, 60 * US), max_size=12).map(sorted), st.sampled_from([None, 1, 2, 3]))
def test_the_calls_do_not_matter(chunks, order):
    whole, got = run()
    other, again = run(chunks=chunks, order=order)
    assert fingerprint(got) == fingerprint(again) and whole.counters() == other.counters()


def test_one_fault_leaves_the_draws_of_another_alone():
    """Negative control of a kind: the frames lost by `loss` are the same ones when other faults are on."""
    def lost(**more):
        net = back_to_back(rate=100 * GBIT, delay_ns=400, loss=.1, seed=5, **more)
        for n in range(500):
            net.inject(0, frame(psn=n, size=0), n * US)
        seen = {d.frame for d in net.advance(10**9)}
        return {n for n in range(500) if frame(psn=n, size=0) not in seen}
    assert 20 < len(lost()) < 90 and lost() == lost(reorder=(.5, 10_000), duplicate=.3, jitter_ns=100)
    assert lost() != lost(burst=(.1, .1))


# -- conservation ----------------------------------------------------------------------------------------


probability = st.floats(0, 1)


@settings(max_examples=25)
@given(st.fixed_dictionaries({}, optional=dict(
    loss=probability, burst=st.tuples(probability, probability, probability), damage=probability,
    reorder=st.tuples(probability, st.integers(0, 10_000)), duplicate=probability,
    corrupt=st.tuples(probability, st.integers(1, 20)), jitter_ns=st.integers(0, 3000), jitter_keeps_order=st.booleans())),
    st.integers(1, 20_000), st.integers(0, 1000))
def test_every_frame_is_accounted_for(impair, queue_bytes, seed):
    net = star(4, rate=100 * GBIT, delay_ns=100, queue_bytes=queue_bytes, seed=seed, **impair)
    delivered = 0
    for time, source, data in traffic(seed, 4, 60, 3 * US):
        net.inject(source, data, time)
    for until in (0, 500 * NS, 2 * US, 3 * US, 100 * US):
        delivered += len(net.advance(until))
        assert balanced(net) and net.totals()["delivered"] == delivered
    assert net.totals()["in_flight"] == 0
    for lane in net.lanes:
        counts = lane.counters()
        lost = sum(n for cause, n in counts["dropped"].items() if cause in ("tail", "loss", "burst"))
        assert counts["frames"] + counts.get("duplicated", 0) == counts["arrived"] + lost


def test_a_drop_that_is_not_counted_is_seen():
    """Negative control: a lane that forgets to count breaks the balance."""
    net = back_to_back(rate=100 * GBIT, delay_ns=100, loss=.5)
    net.ports[0].out.dropped = type("Forgetful", (dict,), {"__missing__": lambda s, k: 0, "__setitem__": lambda s, k, v: None})()
    for n in range(20):
        net.inject(0, frame(), n * US)
    net.advance(100 * US)
    assert not balanced(net)


# -- looking ahead ---------------------------------------------------------------------------------------


def test_looking_ahead_tells_nothing_that_changes():
    plain, ahead = (star(4, rate=100 * GBIT, delay_ns=400, seed=2, **HARD) for _ in range(2))
    assert ahead.lookahead_ps == 400 * NS
    frames = traffic(9, 4, 200, 20 * US)
    got, early = [], []
    for at in range(0, 40 * US, 150 * NS):
        for time, source, data in frames:
            if at <= time < at + 150 * NS:
                plain.inject(source, data, time), ahead.inject(source, data, time)
        got += plain.advance(at + 150 * NS - 1)
        early += ahead.advance(at + 150 * NS - 1, 400 * NS)
        assert early[:len(got)] == got and all(d.time_ps <= at + 550 * NS for d in early)
    assert len(got) > 150
    with pytest.raises(NetworkError, match="only the next 400000 ps are certain"):
        ahead.advance(50 * US, 401 * NS)


# -- misuse ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, said", [
    (dict(los=.1), "unknown knob 'los' of a link; known are rate, .*loss, burst"),
    (dict(loss=1.5), "loss=1.5 is not a probability"), (dict(loss=-.1), "not a probability"),
    (dict(loss="x"), "not a probability"), (dict(loss=True), "not a probability"),
    (dict(rate=1.5e9), "rate=1500000000.0 is not a whole number"), (dict(rate=0), "rate=0 is below 1"),
    (dict(delay_ns=-1), "delay_ns=-1 is negative"), (dict(delay_ns="5"), "is not a time in ns"),
    (dict(delay_ns=float("nan")), "not a time"),
    (dict(burst=.1), "burst=0.1; it takes"), (dict(burst=(.1, 2)), "burst r=2 is not a probability"),
    (dict(reorder=.1), "reorder=0.1; it takes"), (dict(reorder=(.1, (5, 1))), "5 ns is more than 1 ns"),
    (dict(duplicate=(.1, -1)), "duplicate=-1 is negative"), (dict(corrupt=(.1, 0)), "corrupt bits=0 is below 1"),
    (dict(jitter_ns=("cauchy", 1)), "is not a number, "), (dict(jitter_ns=("uniform", 5, 1)), "lower bound is above"),
    (dict(queue_bytes=0), "queue_bytes=0 is below 1"), (dict(ecn=(5, 1, .1)), "kmin=5 is above kmax=1"),
    (dict(ecn=(1, 5, 2)), "pmax=2 is not a probability"), (dict(ecn=7), r"ecn=7 is not \(kmin, kmax, pmax\)"),
])
def test_wrong_knobs_are_named(options, said):
    with pytest.raises(NetworkError, match=said):
        back_to_back(**(dict(rate=100 * GBIT, delay_ns=100) | options))


def test_wrong_calls_are_named():
    net = star(2, rate=100 * GBIT, delay_ns=100)
    net.advance(1000)
    alone = net.port()
    hub = net.switches[0]
    for call, said in (
            (lambda: net.inject(0, b"x", 999), "at 999 ps, but it is 1000 ps already"),
            (lambda: net.inject(0, b"x", 2000, 3000), "begins at 3000 ps and ends at 2000 ps"),
            (lambda: net.inject(7, b"x", 2000), "7 is not a port of this network; it has 3"),
            (lambda: net.inject("nobody", b"x", 2000), "there is no 'nobody'; there are switch, port0"),
            (lambda: net.inject("switch", b"x", 2000), "is not a port"),
            (lambda: net.inject(alone, b"x", 2000), "has no link"), (lambda: net.advance(999), "it is 1000 ps already"),
            (lambda: net.link(net.ports[0], hub, rate=1, delay_ns=1), "has its link already"),
            (lambda: net.link(hub, hub, rate=1, delay_ns=1), "closes a loop"),
            (lambda: net.port("port0"), "there is a 'port0' already"),
            (lambda: net.link(alone, Network().port(), rate=1, delay_ns=1), "not a port or switch of this network"),
            (lambda: net.link(alone, hub, delay_ns=1), "a link needs rate"), (lambda: hub.static("02", alone), "not a MAC address"),
            (lambda: hub.static(mac(1), alone), "has no link to"), (lambda: net.rule(), "a rule without an impairment"),
            (lambda: net.rule(los=1), "unknown impairment 'los'"), (lambda: net.rule(loss=1, nth=0), "nth=0 is below 1"),
            (lambda: net.rule(loss=1, match=3), "not a function"), (lambda: net.rule(Network(), loss=1), "needs lanes or links"),
            (lambda: net.capture("/nowhere/x", 0), "can't be written"),
            (lambda: net.capture("x", 0, when="maybe"), "not 'sent' or"),
            (lambda: net.ports[0].into.queue.series(), "was not recorded"),
            (lambda: net.ports[0].into.queue.stats(0, 5000), "not a span of time before now"),
            (lambda: net.links[0].lane_from(alone), "is not an end of"),
            (lambda: net.ports[0].out.impair(losses=1), "unknown impairment 'losses'")):
        with pytest.raises(NetworkError, match=said):
            call()
