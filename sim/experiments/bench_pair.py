"""Two cards through a cable that loses frames: what gets through, and how late.

WRITEs with immediate on several queue pairs, both ways at once, each into a place of its own; every receive has a deadline. A queue
pair has two messages under way: the program posts the next send once the peer has posted its receive, of which it knows without
asking over the network. Counted are the bytes that were placed, and the time from a message's posting to its receive's
completion, whether all of it was there or not. A message that lost a packet ends when the next one of its queue pair begins, or
when its time is up. `refused` are frames that arrived and that a card didn't take (`late` ones are of messages that had ended).

With transport rc receives have no deadline: a message ends when all of it is there, however often it takes. Its ACK timeout is the shortest
one that is not below the deadline that xp has; `went back` counts how often packets were sent again from some PSN on, for whatever reason.

Where the cards are the generated Verilog, every cycle of both is simulated, and hosts answer after `host_ns`. The model's host
answers at once, and its card is never short of anything. Two senders behind one port are in `dcqcn`.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from host_driver.verbs import (CQ, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, MR, PD, QP,
                               QPInitAttr, RecvWR, SendWR, open_cards)

from .bench_rx import BenchError
from .common import SIMULATED, cable_rate, check, host_knobs
from .dcqcn import share, tables as dcqcn_tables

__all__ = ["run", "tables", "exchange", "LOSSES"]

LOSSES = (0.0, 0.001, 0.01)
QUEUE_PAIRS, WINDOW = 4, 2
MESSAGE, QUICK_MESSAGE = 65536, 16384
DELAY_NS, STEP_NS = 500, 500
ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE


class End:
    """One card, with memory, completion queues and queue pairs."""

    def __init__(self, context, size):
        self.context, self.pd = context, PD(context)
        self.mr = MR(self.pd, QUEUE_PAIRS * WINDOW * size, ACCESS)
        self.scq, self.rcq = CQ(context, 64), CQ(context, 64)
        self.qps = [QP(self.pd, QPInitAttr(scq=self.scq, rcq=self.rcq)) for _ in range(QUEUE_PAIRS)]
        # A look at the card's time is an access that takes time; its count of cycles goes by the same clock.
        self._offset = context.time_ns() - self._cycles_ns()

    def _cycles_ns(self):
        return self.context.device.cycle * 1e9 / self.context.card.clock_hz

    def now(self):
        return self._offset + self._cycles_ns()


@dataclass(eq=False)
class Flow:
    """One direction of a pair of queue pairs: `total` messages, `WINDOW` of them under way."""
    sender: End
    receiver: End
    index: int              # of the queue pair, at both ends
    size: int
    total: int
    timeout: int            # ns, or None
    posted: int = 0
    done: int = 0

    def advance(self, began):
        """Post what may be posted; when each send was, goes into `began`."""
        while self.posted < self.total and self.posted - self.done < WINDOW:
            place = (self.index * WINDOW + self.posted % WINDOW) * self.size
            there, here, key = self.receiver.mr, self.sender.mr, (self, self.posted)
            self.receiver.qps[self.index].post_recv(RecvWR(key, timeout_ns=self.timeout))
            began[key] = self.sender.now()
            self.sender.qps[self.index].post_send(SendWR(
                key, IBV_WR_RDMA_WRITE_WITH_IMM, sg=[here.sge(place, self.size)], rkey=there.rkey, remote_addr=there.addr + place))
            self.posted += 1


def exchange(backend, cfg, loss, *, messages, size, seed=1, host_ns=500, progress=lambda done, total: None):
    """`messages` of `size` bytes each way; a row."""
    rate = cable_rate(cfg)
    # What is under way on all queue pairs goes before, twice over for what is late.
    timeout = round(2 * QUEUE_PAIRS * WINDOW * size * 8e9 / rate) + 20_000
    with open_cards(backend, 2, cfg=cfg, seed=seed, rate=rate, delay_ns=DELAY_NS, loss=loss,
                    knobs=host_knobs(backend, cfg, host_ns)) as cards:
        ends = [End(context, size) for context in cards]
        patience = {"timeout": max(0, (timeout - 1) // 4096).bit_length()} if cfg.rc else {}
        for a, b in zip(ends[0].qps, ends[1].qps):
            a.connect(b.info(), **patience), b.connect(a.info(), **patience)
        flows = [Flow(s, r, i, size, messages // QUEUE_PAIRS, None if cfg.rc else timeout) for s, r in (ends, ends[::-1]) for i in range(QUEUE_PAIRS)]
        total, began, ended = sum(flow.total for flow in flows), {}, []
        start = max(end.now() for end in ends)
        limit = cards.world.now_ns + (16 if cfg.rc else 2) * (messages // QUEUE_PAIRS + WINDOW) * timeout
        while len(ended) < total:
            for flow in flows:
                flow.advance(began)
            ends[0].context.sleep_ns(STEP_NS)
            for end in ends:
                sends = [wc for wc in end.scq.poll(64)[1] if not wc.ok]
                if sends:
                    raise BenchError(f"a send failed: {sends[0]}")
                for wc in end.rcq.poll(64)[1]:
                    wc.wr_id[0].done += 1
                    ended.append((ends.index(end), wc, wc.timestamp - began[wc.wr_id]))
            progress(len(ended), total)
            if cards.world.now_ns > limit:
                raise BenchError(f"{total - len(ended)} of {total} receives did not end")
        check(cards)
        totals, refused, backs = cards.network.totals(), Counter(), 0
        for card in cards:
            backs += card.counters()["go_backs"]
            refused.update({name: n for name, n in card.counters().items() if name.startswith("drop_") and n})
    return {"transport": cfg.transport, "backend": backend, "loss": loss, "messages": messages, "message_bytes": size,
            "mtu": cfg.mtu_max, "rate_gbit_s": rate / 1e9, "timeout_ns": timeout, **outcome(ended, start),
            "frames": totals["injected"], "frames_lost": sum(totals["dropped"].values()), "frames_refused": dict(refused), "go_backs": backs,
            **({"ack_timeout_ns": 4096 << patience["timeout"]} if cfg.rc else {})}


def outcome(ended, start):
    """From (receiver, WC, ns from posting) of each receive."""
    took = np.array([ns for _, _, ns in ended])
    ways = [[wc for end, wc, _ in ended if end == receiver] for receiver in (1, 0)]
    goodput = [8 * sum(wc.byte_len for wc in way) / (max(wc.timestamp for wc in way) - start) for way in ways]
    causes = Counter(wc.cause for _, wc, _ in ended)
    return {"goodput_gbit_s": goodput, "complete": causes["complete"], "partial": sum(wc.partial for _, wc, _ in ended),
            "causes": dict(causes), "ns_p50": float(np.percentile(took, 50)), "ns_p99": float(np.percentile(took, 99)),
            "ns_max": float(took.max())}


def run(configs, *, backend="rtl", seed=1, quick=False, host_ns=500, losses=LOSSES, progress=lambda text: None,
        count=lambda done, total: None):
    """Measure each of the configurations, one a transport; a plain dict. `count` hears how far the row at hand has come."""
    result = {"configs": {cfg.transport: cfg.as_dict() for cfg in configs}, "seed": seed, "quick": quick, "host_ns": host_ns,
              "simulated": SIMULATED[backend], "loss": [], "dcqcn": []}
    for cfg in configs:
        for loss in losses:
            progress(f"{cfg.transport}: loss {100 * loss:g} %")
            result["loss"].append(exchange(backend, cfg, loss, messages=32 if quick else 400, seed=seed, host_ns=host_ns,
                                           size=QUICK_MESSAGE if quick else MESSAGE, progress=count))
        if cfg.congestion == "dcqcn":
            for simulator, ecn in dict.fromkeys([(backend, True), ("model", True), ("model", False)]):
                progress(f"{cfg.transport}: two senders, {SIMULATED[simulator]}{'' if ecn else ', without marks'}")
                result["dcqcn"].append(share(simulator, cfg, ecn=ecn, seed=seed, quick=quick, host_ns=host_ns, progress=count))
    return result


# -- showing ----------------------------------------------------------------------------------------


def tables(result):
    """[(title, [(head, justify)], rows)] of a result."""
    left, right = "left", "right"
    what, cfg, first = result["simulated"], next(iter(result["configs"].values())), result["loss"][0]
    return [
        (f"{what[0].upper() + what[1:]}: two cards of {cfg['data_width']} bits at {cfg['clock_hz'] / 1e6:g} MHz, cable of "
         f"{first['rate_gbit_s']:g} Gbit/s and {DELAY_NS} ns. WRITE with immediate both ways, {first['message_bytes']:,} bytes, "
         f"{QUEUE_PAIRS} QPs, deadline {first['timeout_ns'] / 1000:.0f} us",
         [("transport", left), ("loss", right), ("Gbit/s there, back", right), ("complete", right), ("partial", right),
          ("frames lost", right), ("refused", right), ("went back", right), ("p50, us", right), ("p99, us", right), ("most, us", right)],
         [(r["transport"], f"{100 * r['loss']:g} %", ", ".join(f"{g:.2f}" for g in r["goodput_gbit_s"]),
           r["complete"], r["partial"],
           f"{r['frames_lost']:,} of {r['frames']:,}",
           ", ".join(f"{n} {name.removeprefix('drop_')}" for name, n in r["frames_refused"].items()) or "0", r["go_backs"],
           *(f"{r[f'ns_{p}'] / 1000:.1f}" for p in ("p50", "p99", "max")))
          for r in result["loss"]]),
        *(dcqcn_tables(result["dcqcn"]) if result["dcqcn"] else ()),
    ]
