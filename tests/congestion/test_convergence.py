"""Two senders, each with the model of the reaction point, through one queue that marks: they come to share it.

A fluid in steps of 8 us: what both send beyond the line rate stays in the queue, packets are marked by its length as a
switch does it at 100 Gb/s (400 KB to 1600 KB, up to 20 %: configuration of HPCC's ns-3 simulator), and CNPs, at most one
in 50 us for each sender, arrive 10 us later.
"""

import pytest

from sim.models.congestion import DcqcnModel, NotificationModel, Reaction

LINE = 100_000          # Mb/s
STEP = 8_000            # ns
KMIN, KMAX, PMAX = 400e3, 1600e3, .2
PACKET = 4200


def jain(rates):
    return sum(rates) ** 2 / (len(rates) * sum(r * r for r in rates))


def simulate(rng, start, ms, notify=True, **params):
    """Mean rates of the last quarter, use of the line in it, longest queue there, Jain's index over time."""
    model, point = DcqcnModel(**params), NotificationModel()
    for qp, rate in enumerate(start):
        if rate < LINE:
            model.state[qp] = Reaction(rate, rate)
    queue, under_way, index, means, left, steps = 0.0, [], [], [0] * len(start), 0, ms * 1_000_000 // STEP
    longest = 0
    for step in range(steps):
        now = step * STEP
        while under_way and under_way[0][0] <= now:
            model.cnp(under_way.pop(0)[1], now)
        rates = [model.rate(qp) for qp in range(len(start))]
        queue = max(0.0, queue + (sum(rates) - LINE) * STEP / 8000)
        mark = 0 if queue < KMIN else 1 if queue > KMAX else PMAX * (queue - KMIN) / (KMAX - KMIN)
        for qp, rate in enumerate(rates):
            size = rate * STEP // 8000
            for at in range(0, size, 4 * PACKET - 1000):
                model.sent(qp, min(4 * PACKET - 1000, size - at), now)
            if notify and rng.random() > (1 - mark) ** (size / PACKET) and point.marked(qp, now):
                under_way.append((now + 10_000, qp))
        index.append(jain(rates))
        if step >= steps * 3 // 4:
            left += 1
            longest = max(longest, queue)
            means = [m + r for m, r in zip(means, rates)]
    means = [m / left for m in means]
    return means, sum(means) / LINE, longest, index


@pytest.mark.parametrize("start", [(100_000, 100_000), (80_000, 20_000), (95_000, 1_000)])
def test_two_senders_share(start, rng):
    means, use, longest, index = simulate(rng, start, 250)
    print(f"from {start}: {means[0]:.0f} and {means[1]:.0f} Mb/s, line used {use:.3f}, queue at most {longest / 1000:.0f} KB, "
          f"Jain {jain(means):.4f}, 0.95 after {next(i for i, j in enumerate(index) if j > .95) * STEP / 1e6:.1f} ms")
    assert jain(means) >= .95
    assert sum(index[-len(index) // 4:]) / (len(index) // 4) >= .95       # not only on the average
    assert use > .9 and longest < 4e6


def test_eight_senders_share(rng):
    means, use, _, _ = simulate(rng, [60_000, 20_000, 10_000, 5_000, 2_000, 1_000, 500, 500], 200)
    print([round(m) for m in means], use, jain(means))
    assert jain(means) >= .95 and use > .9


def test_without_notifications(rng):
    """Negative control: nobody is told, so nobody gives way, and the queue grows without end."""
    means, _, longest, _ = simulate(rng, (100_000, 100_000), 20, notify=False)
    assert means == [LINE, LINE] and longest > 1e8


def test_without_decrease(rng):
    """Negative control: with alpha that hardly counts and no additive increase, unequal rates stay so."""
    means, _, _, _ = simulate(rng, (80_000, 20_000), 100, g=0, rate_ai=0, rate_hai=0)
    assert jain(means) < .95 or sum(means) < .9 * LINE
