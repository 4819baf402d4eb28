"""Two senders share one port: the switch marks when its queue grows, the receiver reports, the senders slow down (DCQCN).

    python examples/dcqcn_two_senders.py [model | rtl] [FILE.png]

On the Verilog this takes minutes, as milliseconds of three cards are simulated cycle by cycle. docs/congestion.md has the rules.
"""

import sys

from host_driver.verbs import *
from sim.network import GBIT, MS, star

backend = sys.argv[1] if len(sys.argv) > 1 else "model"
picture = sys.argv[2] if len(sys.argv) > 2 else "dcqcn_two_senders.png"
RATE, SIZE, UNDER_WAY, STEP_NS = 5 * GBIT, 32768, 8, 100_000
TIME_MS, SECOND_BEGINS_MS = 12, 2
ECT0 = 2                                # in the traffic class: these packets may be marked instead of lost

# The queue of each port has room for 250 KB; from 6 KB on frames are marked now and then, above 25 KB always.
network = star(3, rate=RATE, delay_ns=500, queue_bytes=250_000, ecn=(6_000, 25_000, 0.2), record=True)

with open_cards(backend, 3, network=network) as cards:
    target_pd = PD(cards[2])
    target = MR(target_pd, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
    senders = []
    for card in cards[:2]:
        card.card.reg_write("DCQCN_LINE_RATE", RATE // 10**6)           # Mb/s, of this port
        pd, cq, peer_cq = PD(card), CQ(card, 2 * UNDER_WAY), CQ(cards[2], 2)
        memory = MR(pd, SIZE, IBV_ACCESS_LOCAL_WRITE)
        here, there = QP(pd, QPInitAttr(scq=cq, rcq=cq)), QP(target_pd, QPInitAttr(scq=peer_cq, rcq=peer_cq))
        here.connect(there.info(), traffic_class=ECT0), there.connect(here.info())
        senders.append((here, cq, memory))

    under_way, sent, course = [0, 0], [0, 0], []
    while network.now_ps < TIME_MS * MS:
        for i, (qp, cq, memory) in enumerate(senders):
            done = cq.poll(2 * UNDER_WAY)[1]
            assert all(wc.ok for wc in done)
            under_way[i] -= len(done)
            sent[i] += sum(wc.byte_len for wc in done)
            while under_way[i] < UNDER_WAY and (i == 0 or network.now_ps >= SECOND_BEGINS_MS * MS):
                qp.post_send(SendWR(0, IBV_WR_RDMA_WRITE, sg=[memory.sge()], rkey=target.rkey, remote_addr=target.addr))
                under_way[i] += 1
        cards[0].sleep_ns(STEP_NS)
        course.append((network.now_ps / MS, *sent))

    told = [card.counters()["cnp_received"] for card in cards[:2]]

# The rates of the last third of the time.
begin = next(row for row in course if row[0] >= TIME_MS * 2 / 3)
end = course[-1]
rates = [8e-6 * (b - a) / (end[0] - begin[0]) for a, b in zip(begin[1:], end[1:])]
jain = sum(rates) ** 2 / (2 * sum(rate * rate for rate in rates))
queue = network.ports[2].into.queue
print(f"at the end {rates[0]:.2f} and {rates[1]:.2f} Gbit/s of {RATE / GBIT:g}; Jain's index {jain:.3f} (0.5: one has all)")
print(f"frames marked {queue.marked}, CNPs received {told}, longest queue {queue.most:,} bytes of 250,000")
assert jain > 0.9 and sum(rates) > 0.5 * RATE / GBIT and all(told)
assert not network.totals()["dropped"], "marks come early enough that nothing is lost"

try:
    import matplotlib
except ImportError:
    sys.exit(0)                         # no picture then
matplotlib.use("Agg")
from matplotlib import pyplot           # noqa: E402, after the choice of a way to draw

figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
for i in (1, 2):
    steps = list(zip(course, course[1:]))
    axes.plot([b[0] for _, b in steps], [8e-6 * (b[i] - a[i]) / (b[0] - a[0]) for a, b in steps], label=f"sender {i - 1}")
axes.set(xlabel="ms", ylabel="Gbit/s", title="Two senders into one port")
axes.legend()
figure.savefig(picture)
print(f"the course of it is in {picture}")
