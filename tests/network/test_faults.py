"""Each impairment does what its description says: statistics within five sigma, and exact where nothing is drawn."""

from collections import Counter
from math import sqrt

import numpy as np
import pytest

from sim.network import GBIT, NS, US, back_to_back, star
from .helpers import balanced, frame, know_everyone

N = 20_000


@pytest.fixture(scope="module")
def numbered():
    """Short frames that know their number."""
    return [frame(size=0)[:50] + n.to_bytes(4, "big") for n in range(N)]


def sent_over(frames, seed, gap=100 * NS, **options):
    net = back_to_back(rate=100 * GBIT, delay_ns=500, seed=seed, **options)
    for n, data in enumerate(frames):
        net.inject(0, data, n * gap)
    got = net.advance(10**12)
    assert balanced(net)
    return net, got


def number(data):
    return int.from_bytes(data[50:54], "big")


def near(count, trials, probability):
    return abs(count - trials * probability) < 5 * sqrt(trials * probability * (1 - probability)) + 1


def base_time(n, gap=100 * NS):
    return n * gap + 84 * 80 + 500 * NS


@pytest.mark.parametrize("p", [.001, .1, .5])
def test_loss(numbered, seed, p):
    net, got = sent_over(numbered, seed, loss=p)
    assert near(N - len(got), N, p) and net.totals()["dropped"] == {"loss": N - len(got)}
    lost = np.ones(N, bool)
    lost[[number(d.frame) for d in got]] = False
    assert near(int((lost[1:] & lost[:-1]).sum()), N - 1, p * p)         # no memory


@pytest.mark.parametrize("p, r, bad", [(.01, .2, 1), (.05, .1, .7), (.2, .5, 1)])
def test_gilbert_and_elliott(numbered, seed, p, r, bad):
    net, got = sent_over(numbered, seed, burst=(p, r, bad))
    lost = np.ones(N, bool)
    lost[[number(d.frame) for d in got]] = False
    share = p / (p + r)
    # The variance of the mean of a two-state chain: as if there were fewer independent trials.
    memory = (2 - p - r) / (p + r)
    assert abs(lost.mean() - share * bad) < 5 * sqrt(share * (1 - share) / N * memory) + 1e-3
    again = (lost[1:] & lost[:-1]).sum() / lost[:-1].sum()               # P(lost | the one before was lost)
    assert abs(again - (1 - r) * bad) < 5 * sqrt(again * (1 - again) / lost.sum())
    if bad == 1:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], lost.astype(int), [0]])))
        runs = edges[1::2] - edges[::2]
        assert abs(runs.mean() - 1 / r) < 5 * sqrt((1 - r) / r**2 / len(runs))
    assert not abs(again - lost.mean()) < .1, "no more bursts than independent losses would make"


def test_bursts_are_not_independent_losses(numbered, seed):
    """Negative control: the check above does tell the two apart."""
    _, got = sent_over(numbered, seed, loss=.05)
    lost = np.ones(N, bool)
    lost[[number(d.frame) for d in got]] = False
    assert abs((lost[1:] & lost[:-1]).sum() / lost[:-1].sum() - lost.mean()) < .1


def test_reordering(numbered, seed):
    net, got = sent_over(numbered, seed, reorder=(.1, (200, 1000)))
    assert len(got) == N and near(net.ports[0].out.changed["reordered"], N, .1)
    late = {number(d.frame): d.time_ps - base_time(number(d.frame)) for d in got}
    moved = [x for x in late.values() if x]
    assert len(moved) == net.ports[0].out.changed["reordered"] and min(moved) >= 200 * NS and max(moved) <= 1000 * NS
    assert abs(np.mean(moved) - 600 * NS) < 5 * 800 * NS / sqrt(12 * len(moved))
    order = [number(d.frame) for d in got]
    assert order != sorted(order) and [d.time_ps for d in got] == sorted(d.time_ps for d in got)


def test_duplication(numbered, seed):
    net, got = sent_over(numbered, seed, duplicate=(.1, 30))
    counts = Counter(number(d.frame) for d in got)
    assert set(counts.values()) == {1, 2} and near(len(got) - N, N, .1) and net.totals()["copied"] == len(got) - N
    for d in got:
        counts[number(d.frame)] -= 1
        assert d.time_ps - base_time(number(d.frame)) in ((0,) if counts[number(d.frame)] else (0, 30 * NS))


@pytest.mark.parametrize("bits", [1, 3])
def test_corruption(seed, bits):
    data = frame(size=100)
    where = Counter()
    net, got = sent_over([data] * 3000, seed, corrupt=(.5, bits))
    for d in got:
        flipped = int.from_bytes(d.frame, "little") ^ int.from_bytes(data, "little")
        assert flipped.bit_count() in (0, bits) and not d.damaged
        where.update(i // 8 for i in range(8 * len(data)) if flipped >> i & 1)
    assert near(sum(d.frame != data for d in got), 3000, .5) and len(where) == len(data)


def test_damage(numbered, seed):
    net, got = sent_over(numbered[:3000], seed, damage=.2)
    assert near(sum(d.damaged for d in got), 3000, .2) and len(got) == 3000


@pytest.mark.parametrize("spec, mean, sigma", [
    (300, 150, 300 / sqrt(12)), (("uniform", 100, 200), 150, 100 / sqrt(12)), (("exponential", 80), 80, 80),
    (("normal", 500, 50), 500, 50)])
@pytest.mark.parametrize("ordered", [True, False])
def test_jitter(numbered, seed, spec, mean, sigma, ordered):
    gap = 100 * US if ordered else 20 * NS
    net, got = sent_over(numbered[:5000], seed, gap=gap, jitter_ns=spec, jitter_keeps_order=ordered)
    late = np.array([d.time_ps - base_time(number(d.frame), gap) for d in got]) / NS
    assert abs(late.mean() - mean) < 5 * sigma / sqrt(len(late)) and abs(late.std() - sigma) < .1 * sigma
    order = [number(d.frame) for d in got]
    assert (order == sorted(order)) == ordered


def test_jitter_keeps_order_of_close_frames(numbered, seed):
    _, got = sent_over(numbered[:5000], seed, gap=20 * NS, jitter_ns=1000)
    assert [number(d.frame) for d in got] == list(range(5000))


def test_knobs_change_on_the_way(numbered, seed):
    net = back_to_back(rate=100 * GBIT, delay_ns=500, seed=seed)
    counts = []
    for loss in (0, 1, None, .5):
        net.links[0].impair(loss=loss)
        for n in range(200):
            net.inject(0, numbered[n], net.now_ps + n * 10 * NS)
        counts.append(len(net.advance(net.now_ps + 100 * US)))
    assert counts[:3] == [200, 0, 200] and 50 < counts[3] < 150


# -- rules -----------------------------------------------------------------------------------------------


def test_the_kth_frame_that_matches(numbered):
    net = back_to_back(rate=100 * GBIT, delay_ns=500)
    odd = net.rule(match=lambda data: number(data) % 2 == 1, nth=3, loss=1)
    some = net.rule(net.ports[0].out, nth=range(10, 13), reorder=(1, 5000), name="late ones")
    for data in numbered[:40]:
        net.inject(0, data, 0)
    order = [number(d.frame) for d in net.advance(100 * US)]
    # 5 is lost; of all frames that come to the second rule, 0 being the first, the lost one isn't one
    assert order == [n for n in range(40) if n != 5 and n not in (10, 11, 12)] + [10, 11, 12]
    assert (odd.seen, odd.hits, some.hits) == (20, 1, 3) and net.totals()["dropped"] == {"rule0": 1} and balanced(net)
    odd.active = some.active = False
    net.inject(0, numbered[1], net.now_ps)
    assert len(net.advance(net.now_ps + 10 * US)) == 1 and odd.seen == 20


def test_a_rule_for_a_pair_of_cards(seed):
    net = star(4, rate=100 * GBIT, delay_ns=500, seed=seed)
    know_everyone(net)
    rule = net.rule(source=0, destination=1, loss=1, name="cut")
    half = net.rule(source="port2", loss=.5)
    for n in range(400):
        for s, d in ((0, 1), (1, 0), (0, 3), (3, 1), (2, 3)):
            net.inject(s, frame(s, d, 0, psn=n), n * US)
    pairs = Counter((d.frame[11], d.port) for d in net.advance(10**9))
    arrived = pairs.pop((2, 3))
    assert half.hits == 400 and near(arrived, 400, .5) and net.totals()["dropped"]["rule1"] == 400 - arrived
    assert pairs == {(1, 0): 400, (0, 3): 400, (3, 1): 400} and (rule.seen, rule.hits) == (400, 400)
    assert net.totals()["dropped"]["cut"] == 400 and balanced(net)


def test_rules_on_copies_are_balanced(numbered):
    net = back_to_back(rate=100 * GBIT, delay_ns=500, duplicate=1)
    net.rule(nth=(1, 2, 5), loss=1)
    net.rule(duplicate=1)
    for data in numbered[:10]:
        net.inject(0, data, 0)
    assert len(net.advance(100 * US)) == 2 * (20 - 3) and balanced(net)
