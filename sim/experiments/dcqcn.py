"""Two senders into one port of a switch that marks by the length of its queue: do they come to share it, and how long is the queue?

Two cards send plain WRITEs to a third one, as much as they may; the second begins later, when the first has the port to itself.
Counted are frames that arrive, by sender, and the bytes that wait in front of the port. Once more without marks, to see what
they are for.

Rates change in steps of 53 us (docs/congestion.md), so sharing takes milliseconds, whoever simulates. The generated Verilog gets
few of them, at the rate of its datapath. The model gets more: a frame costs it the same at every rate, so its cable is slower.
The parameters are the card's defaults, but for R_AI and R_HAI where a port has more than 10 Gbit/s: 0.4 and 1 % of it then.
"""

from bisect import bisect_right

from host_driver.verbs import (CQ, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE, MR, PD, QP, QPInitAttr,
                               SendWR, open_cards)
from optinic.abi.congestion import DCQCN
from sim.network import GBIT, US, star

from .bench_rx import BenchError
from .common import SIMULATED, cable_rate, check, host_knobs

__all__ = ["share", "tables", "plot", "jain"]

ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
MESSAGE, UNDER_WAY = 65536, 16
ECT0 = 2                        # of the traffic class: this packet may be marked
LATER = 0.1                     # of the time: when the second sender begins
BINS = 50                       # of the time, for the course of both
MODEL_RATE = 10 * GBIT
DELAY_NS = 500
CYCLES = {True: 300_000, False: 1_500_000}      # of a card of Verilog; keys: quick?
MODEL_NS = {True: 8_000_000, False: 60_000_000}
#: a queue is marked from so many us of the port's rate on, always from so many, between with up to this probability
MARK_US, MARK_ALWAYS_US, MARK_PROBABILITY, ROOM_US = 10, 40, 0.2, 400


def jain(values):
    """Jain's index: 1 when all are equal, 1 / n when one has all."""
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values)) if any(values) else 0.0


def parameters(rate):
    """Those that depend on the port's rate, in Mb/s."""
    more = max(1, rate / (10 * GBIT))
    return {"line_rate": rate // 1_000_000, "rate_ai": round(more * DCQCN["rate_ai"].default),
            "rate_hai": round(more * DCQCN["rate_hai"].default)}


class Arrivals:
    """A tap at a lane: bytes of frames by their sender's MAC address, and when."""

    def __init__(self):
        self.of = {}

    def record(self, time, data):
        times, sums = self.of.setdefault(data[6:12], ([], [0]))
        times.append(time)
        sums.append(sums[-1] + len(data))

    def between(self, mac, start, end):
        times, sums = self.of.get(mac, ([], [0]))
        return sums[bisect_right(times, end)] - sums[bisect_right(times, start)]


class Sender:
    """Card `context` with a queue pair to `receiver`, and always more to send."""

    def __init__(self, context, receiver):
        self.context, self.pd = context, PD(context)
        self.mr, self.cq = MR(self.pd, MESSAGE, ACCESS), CQ(context, 2 * UNDER_WAY)
        self.qp = QP(self.pd, QPInitAttr(scq=self.cq, rcq=self.cq))
        cq = CQ(receiver.pd.context, 2)
        self.target, self.there = receiver, QP(receiver.pd, QPInitAttr(scq=cq, rcq=cq))
        self.qp.connect(self.there.info(), traffic_class=ECT0), self.there.connect(self.qp.info())
        self.mac = bytes.fromhex(context.mac.replace(":", ""))
        self.under_way = 0

    def refill(self):
        for wc in self.cq.poll(2 * UNDER_WAY)[1]:
            self.under_way -= 1
            if not wc.ok:
                raise BenchError(f"a send failed: {wc}")
        while self.under_way < UNDER_WAY:
            self.qp.post_send(SendWR(0, IBV_WR_RDMA_WRITE, sg=[self.mr.sge()], rkey=self.target.rkey, remote_addr=self.target.addr))
            self.under_way += 1


def share(backend, cfg, *, ecn=True, seed=1, quick=False, host_ns=500, time_ns=None, progress=lambda done, total: None):
    """One run of `time_ns`, by default CYCLES of the Verilog or MODEL_NS of the model; a row."""
    rate = min(MODEL_RATE, cable_rate(cfg)) if backend == "model" else cable_rate(cfg)
    if time_ns is None:
        time_ns = MODEL_NS[quick] if backend == "model" else round(CYCLES[quick] * cfg.clock_ns)
    size_of = lambda us: rate // 8_000_000 * us
    marks = (size_of(MARK_US), size_of(MARK_ALWAYS_US), MARK_PROBABILITY) if ecn else None
    network = star(3, rate=rate, delay_ns=DELAY_NS, queue_bytes=size_of(ROOM_US), ecn=marks, record=True, seed=seed)
    port = network.ports[2].into
    arrivals = Arrivals()
    port.arrival_taps.append(arrivals)
    with open_cards(backend, 3, cfg=cfg, seed=seed, network=network, knobs=host_knobs(backend, cfg, host_ns)) as cards:
        for card in cards:
            for name, value in parameters(rate).items():
                card.card.reg_write(f"DCQCN_{name.upper()}", value)
        target = MR(PD(cards[2]), MESSAGE, ACCESS)
        senders = [Sender(card, target) for card in cards[:2]]
        step = round(MESSAGE * UNDER_WAY * 8e9 / rate / 4)      # a quarter of what is under way
        start = network.now_ps
        end = start + time_ns * 1000
        while network.now_ps < end:
            for i, sender in enumerate(senders):
                if i == 0 or network.now_ps >= start + LATER * (end - start):
                    sender.refill()
            cards[0].sleep_ns(min(step, max(1, (end - network.now_ps) // 1000)))
            progress(min(end, network.now_ps) - start, end - start)
        check(cards)
        counters = [card.counters() for card in cards]
    return {"transport": cfg.transport, "simulated": SIMULATED[backend], "data_width": cfg.data_width, "ecn": ecn,
            "marks": marks, "parameters": parameters(rate), "rate_gbit_s": rate / 1e9, "time_ns": time_ns,
            "frames": sum(lane.frames for lane in network.lanes[::2]),
            **course([s.mac for s in senders], arrivals, port, start, end, rate),
            "marked": port.queue.marked, "dropped": sum(port.dropped.values()),
            "cnps": sum(c["cnp_received"] for c in counters[:2])}


def course(macs, arrivals, port, start, end, rate):
    """Of the last half: rates, Jain's index, use of the port, queue; and all of it over time."""
    half = (start + end) // 2
    gbit_s = lambda mac, a, b: 8000 * arrivals.between(mac, a, b) / (b - a)
    edges = [start + (end - start) * i // BINS for i in range(BINS + 1)]
    spans = list(zip(edges, edges[1:]))
    late = [gbit_s(mac, half, end) for mac in macs]
    queue = port.queue.stats(half, end)
    return {"gbit_s": late, "jain": jain(late), "used_percent": 100e9 * sum(late) / rate,
            "queue_us": {name: value * 8e6 / rate for name, value in queue.items()}, "queue_bytes": queue,
            "time_us": [(b - start) / US for b in edges[1:]],
            "course_gbit_s": [[gbit_s(mac, a, b) for a, b in spans] for mac in macs],
            "course_queue_us": [port.queue.stats(a, b)["max"] * 8e6 / rate for a, b in spans]}


# -- showing ----------------------------------------------------------------------------------------


def tables(rows):
    """[(title, [(head, justify)], rows)] of what `share` found."""
    left, right = "left", "right"
    return [(
        f"DCQCN: two senders into one port, the second from {100 * LATER:g} % of the time on; the last half of it. Marks from "
        f"{MARK_US} us of queue on, always from {MARK_ALWAYS_US} us",
        [("simulated", left), ("marks", left), ("Gbit/s of", right), ("time, ms", right), ("rates, Gbit/s", right),
         ("Jain", right), ("used, %", right), ("queue p50, p99, most, us", right), ("CNPs", right), ("lost", right)],
        [(f"{r['simulated']}, {r['data_width']} bits", "yes" if r["ecn"] else "no", f"{r['rate_gbit_s']:g}",
          f"{r['time_ns'] / 1e6:g}", ", ".join(f"{g:.2f}" for g in r["gbit_s"]), f"{r['jain']:.4f}", f"{r['used_percent']:.1f}",
          ", ".join(f"{r['queue_us'][name]:.1f}" for name in ("p50", "p99", "max")), f"{r['cnps']:,}", f"{r['dropped']:,}")
         for r in rows])]


def plot(row, path):
    """The course of a run as a PNG."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    time_ms = [t / 1000 for t in row["time_us"]]
    for i, rates in enumerate(row["course_gbit_s"]):
        above.plot(time_ms, rates, label=f"sender {i}")
    above.set(ylabel="Gbit/s that arrive", title=f"Two senders into a port of {row['rate_gbit_s']:g} Gbit/s, {row['simulated']}")
    above.legend()
    below.plot(time_ms, row["course_queue_us"], color="tab:red")
    below.set(xlabel="ms", ylabel="longest queue, us")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
