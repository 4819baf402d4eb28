"""How fast the receive half is, on the generated Verilog: throughput, latency of completions, lateness of deadlines.

What is measured, and how:

busy        frames are offered without a gap and a full buffer holds the MAC; the percentage of cycles in which a beat was
            accepted, over the second half of the frames, when the buffer no longer hides a slower stage
back to back    the smallest packets of 1, 2 and 64 QPs, the same way: cycles in which no beat was taken, over all frames
completion  cycles from the acceptance of a packet's last beat, on an idle card, to its CQE's address on the bus; this
            includes once the host's write latency, since a completion waits until its payload is acknowledged
lateness    NIC time of a completion by timeout minus its deadline: one QP at a time, one at a time while frames are
            offered without a gap, and all QPs at the same tick

Each run also checks that every frame was placed and that the card broke no rule of the bus; otherwise it fails.
"""

from dataclasses import dataclass
import random
import time

import numpy as np

from host_driver.card import Card
from optinic.abi.structs import TICK_NS
from sim.device import SimDevice
from sim.frames import uc_send, uc_write, xp_send, xp_write

__all__ = ["run", "tables", "draw", "BenchError", "QP_COUNTS", "PAYLOADS"]

PAYLOADS = (64, 256, 1024, 4096)
QP_COUNTS = (16, 1024, 10240)
BACK_TO_BACK = (1, 2, 64)
KEY, VA = 0x1234, 0x10_0000
WINDOW = 1 << 16            # every receive's buffer, one for all: what is in it is not looked at here
MESSAGE_PACKETS = 16        # of a long message
PEER = "10.0.0.2"
PIPELINE = 64               # cycles from the scanner's event to the decision, nothing else under way; rounded up


class BenchError(RuntimeError):
    """The card did something wrong while it was measured."""


@dataclass(frozen=True)
class Kind:
    name: str
    qp: str
    packets: int            # to a message; 0: no receive is used
    doc: str


KINDS = (
    Kind("xp_write", "xp", 0, "XP WRITE"),
    Kind("xp_send", "xp", MESSAGE_PACKETS, f"XP SEND, {MESSAGE_PACKETS} packets a message"),
    Kind("xp_send_single", "xp", 1, "XP SEND, 1 packet a message"),
    Kind("uc_write", "uc", 0, "UC WRITE"),
    Kind("uc_send", "uc", 1, "UC SEND"),
)


class Bench:
    """A card that is up, with one region, one peer and one completion queue."""

    def __init__(self, cfg, seed, host_ns):
        self.cfg, self.rng = cfg, random.Random(seed)
        self.host_cycles = max(1, round(host_ns / cfg.clock_ns))
        self.dev = SimDevice(cfg, seed=seed, read_latency=self.host_cycles, write_latency=self.host_cycles, log=1)
        self.card = Card(self.dev, cfg)
        self.buffer = self.dev.alloc(WINDOW)
        self.card.add_region(KEY, VA, WINDOW, ("local_write", "remote_write"), pd=1, delta=self.buffer - VA)
        self.card.set_peer(0, PEER)
        self.card.set_cq(0, 1 << max(12, (cfg.num_qps - 1).bit_length()))
        self.cq = self.card._cqs[0]
        self.generation, self.cycles, self.seconds = 0, 0, 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.dev.close()

    def new_lives(self, count, kind):
        """QPs 0 .. count - 1, each with receive 0 as its next."""
        self.generation = (self.generation + 1) % 256
        for qpn in range(count):
            self.card.create_qp(qpn, type=kind, mtu=self.cfg.mtu_max, generation=self.generation, pd=1)

    def timed(self, condition, value, limit):
        start, cycle = time.perf_counter(), self.dev.cycle
        held = self.dev.run_until(condition, value, limit=limit)
        self.seconds += time.perf_counter() - start
        self.cycles += self.dev.cycle - cycle
        if not held:
            raise BenchError(f"no end after {limit:,} cycles of waiting until {condition} is {value:,}")

    def idle(self):
        self.timed("idle", 0, 10_000_000)

    def check(self, placed):
        """Every frame so far was placed, and nothing was wrong on the bus."""
        found = {name: self.card.counter(name) for name in ("frames_placed", "drop_overflow", "cq_overrun", "fetch_errors")}
        if found != {"frames_placed": placed, "drop_overflow": 0, "cq_overrun": 0, "fetch_errors": 0}:
            raise BenchError(f"{placed} frames should have been placed, and the counters say: {found}")
        wrong = self.dev.violations[:1] or self.dev.faults[:1]
        if wrong:
            raise BenchError(f"the card broke a rule of the bus: {wrong[0]}")

    # -- throughput --------------------------------------------------------------------------------

    def frames(self, kind, payload, qps, count):
        """`count` frames, the QPs by turns; posts the receives that they need."""
        data = bytes(self.rng.getrandbits(8) for _ in range(payload))
        rounds = -(-count // qps)
        if kind.packets:
            messages = -(-rounds // kind.packets)
            for qpn in range(qps):
                for _ in range(messages):
                    self.card.post_receive(qpn, VA, WINDOW, KEY, doorbell=False)
                self.card.ring(qpn)
        out, xp = [], dict(generation=self.generation, src=PEER)
        for i in range(rounds):
            for qpn in range(qps):
                if kind.name == "xp_write":
                    out.append(xp_write(qpn, data, VA, KEY, **xp))
                elif kind.name == "uc_write":
                    out.append(uc_write(qpn, data, VA, KEY, src=PEER))
                elif kind.name == "uc_send":
                    out.append(uc_send(qpn, data, src=PEER))
                else:
                    seq, piece = divmod(i, kind.packets)
                    out.append(xp_send(qpn, data, seq=seq, msg_len=kind.packets * payload, offset=piece * payload, **xp))
        return out[:count]

    def room(self, kind, qps):
        """Most frames for which the receive rings have room."""
        return qps * kind.packets * self.cfg.rq_entries if kind.packets else 1 << 30

    def flood(self, kind, payload, qps, count):
        """Offer frames without a gap; returns the stamps (first and last beat) and the beats of a frame."""
        placed = self.card.counter("frames_placed")
        self.card.disable()
        self.new_lives(qps, kind.qp)
        frames = self.frames(kind, payload, qps, min(count, self.room(kind, qps)))
        self.card.enable(hold=True)
        self.idle()             # what the doorbells set going
        before = self.dev.frames_sent
        self.dev.send_many(frames)
        self.timed("sent", before + len(frames), 100_000 + 40 * sum(map(len, frames)))
        self.idle()
        self.check(placed + len(frames))
        self.card.poll(0)
        return self.dev.stamps(before), -(-len(frames[0]) // self.cfg.beat_bytes)

    def throughput(self, kind, payload, quick):
        qps = min(16, self.cfg.num_qps)
        # several times what the packet buffer holds
        beats = -(-(payload + 100) // self.cfg.beat_bytes)
        count = max(64, (4 if quick else 12) * self.cfg.rx_buffer_beats // beats)
        stamps, beats = self.flood(kind, payload, qps, count)
        half = stamps[len(stamps) // 2:]
        cycles = int(half["last"][-1] - half["first"][0]) + 1
        return {"kind": kind.name, "payload": payload, "qps": qps, "frames": len(stamps), "beats_per_frame": beats,
                "busy_percent": 100 * beats * len(half) / cycles,
                "gbit_s": 8e-9 * payload * len(half) / (cycles / self.cfg.clock_hz)}

    def back_to_back(self, kind, qps):
        payload = 0 if kind.packets else 1
        stamps, beats = self.flood(kind, payload, qps, 512)
        cycles = int(stamps["last"][-1] - stamps["first"][0]) + 1
        return {"kind": kind.name, "qps": qps, "frames": len(stamps), "beats_per_frame": beats,
                "lost_cycles": cycles - beats * len(stamps)}

    # -- latency -----------------------------------------------------------------------------------

    def completion(self, payload, count):
        kind = next(k for k in KINDS if k.name == "xp_send_single")
        placed = self.card.counter("frames_placed")
        self.card.disable()
        self.new_lives(1, "xp")
        self.card.enable(hold=True)
        count = min(count, self.cfg.rq_entries)
        frames = self.frames(kind, payload, 1, count)
        low, high = self.cq.addr, self.cq.addr + 32 * self.cq.entries
        found = []
        for frame in frames:
            self.dev.run(self.rng.randrange(500))
            self.idle()
            skip, index = len(self.dev.transfers()), self.dev.send(frame)
            self.timed("sent", self.dev.frames_sent + 1, 100_000)
            self.idle()
            writes = self.dev.transfers(skip)
            cqes = writes[(writes["write"] == 1) & (writes["addr"] >= low) & (writes["addr"] < high)]
            if len(cqes) != 1:
                raise BenchError(f"{len(cqes)} CQEs for one message")
            found.append(int(cqes["cycle"][0] - self.dev.stamps(index)["last"][0]))
        self.check(placed + count)
        self.card.poll(0)
        return {"payload": payload, "packets": count, "host_cycles": self.host_cycles, "cycles_min": min(found),
                "cycles_median": float(np.median(found)), "cycles_max": max(found)}

    # -- deadlines ---------------------------------------------------------------------------------

    def bound_ns(self, *, loaded=False, others=0):
        """Most that a completion by timeout may be late.

        The unit of the scanner, a round of it and the pipeline; under load what the packet buffer holds, and one access
        to the host, go before; and each other QP that ends at the same time has its turn, at the pace at which the host
        takes completions.
        """
        cfg = self.cfg
        cycles = cfg.scan_rows + PIPELINE
        if loaded:
            cycles += cfg.rx_buffer_beats + self.host_cycles
        pace = max(2 + -(-32 // cfg.beat_bytes), -(-2 * self.host_cycles // cfg.writes_outstanding))
        return 1024 + (cycles + others * pace) * cfg.clock_ns

    def expire(self, qpns, at_ns):
        """Post a receive to each of `qpns` that ends at `at_ns`; returns how late each one ended."""
        for qpn in qpns:
            self.card.post_receive(qpn, VA, WINDOW, KEY, timeout_ns=at_ns, absolute=True)
        now = self.card.time_ns()
        deadline = -(-at_ns // TICK_NS) * TICK_NS
        if now > deadline:
            raise BenchError(f"the deadline had passed by {now - deadline} ns when all receives were posted")
        self.dev.run(int((deadline - now) / self.cfg.clock_ns) + 1)
        done = self.card.wait(0, len(qpns), limit_cycles=2000 * len(qpns) + 1_000_000, step=256)
        done = [c for c in done if c.cause == "timeout"]
        if len(done) != len(qpns):
            raise BenchError(f"{len(done)} of {len(qpns)} receives ended by their deadline")
        return [c.time_ns - deadline for c in done]

    def lateness(self, quick):
        """Rows for one QP at a time, the same under load, and all at once."""
        cfg, card, rows = self.cfg, self.card, []
        everyone = range(cfg.num_qps)
        self.new_lives(cfg.num_qps, "xp")
        card.enable(hold=True)
        post_ns = 40 * cfg.clock_ns             # for one doorbell, generously

        def row(case, late, bound):
            rows.append({"qps": cfg.num_qps, "case": case, "expiries": len(late), "late_ns_max": max(late),
                         "late_ns_mean": float(np.mean(late)), "bound_ns": bound, "within": 0 <= min(late) and max(late) <= bound})

        def singles(count):
            late = []
            for _ in range(count):
                at = card.time_ns() + round(20 * post_ns) + self.rng.randrange(20_000)
                late += self.expire([self.rng.choice(everyone)], at)
            return late

        row("one", singles(8 if quick else 40), self.bound_ns())

        kind, payload = KINDS[0], min(1024, cfg.mtu_max)
        frames = self.frames(kind, payload, 1, 64)
        late = []
        for _ in range(4 if quick else 20):
            at = card.time_ns() + round(40 * post_ns) + self.rng.randrange(10_000)
            cycles = (at - card.time_ns()) / cfg.clock_ns + 4 * cfg.scan_rows
            beats = -(-len(frames[0]) // cfg.beat_bytes)
            self.dev.send_many(frames * int(cycles // (beats * len(frames)) + 2))
            late += self.expire([self.rng.choice(everyone)], at)
            self.idle()
        row("one, frames without a gap", late, self.bound_ns(loaded=True))

        for _ in range(1 if quick else 2):
            at = card.time_ns() + round((cfg.num_qps + 100) * post_ns) + self.rng.randrange(10_000)
            late = self.expire(everyone, at)
        row("all at once", late, self.bound_ns(others=cfg.num_qps - 1))
        self.check(card.counter("frames_placed"))
        return rows


def run(cfg, *, seed=1, quick=False, host_ns=500, qp_counts=None, progress=lambda text: None):
    """Measure configuration `cfg`; a plain dict. `host_ns` is the latency of the simulated host, reads and writes."""
    result = {"config": cfg.as_dict(), "seed": seed, "quick": quick, "host_ns": host_ns,
              "throughput": [], "back_to_back": [], "completion": [], "lateness": []}
    payloads = [p for p in PAYLOADS if p <= cfg.mtu_max]
    with Bench(cfg, seed, host_ns) as bench:
        for kind in KINDS:
            if kind.qp == "uc" and not cfg.uc:
                continue
            for payload in payloads:
                progress(f"{kind.doc}, {payload} bytes")
                result["throughput"].append(bench.throughput(kind, payload, quick))
            for qps in BACK_TO_BACK:
                if kind.packets <= 1 and qps <= cfg.num_qps:
                    result["back_to_back"].append(bench.back_to_back(kind, qps))
        for payload in [0] + payloads:
            progress(f"completion of {payload} bytes")
            result["completion"].append(bench.completion(payload, 10 if quick else 50))
        result["simulated_cycles_per_second"] = bench.cycles / bench.seconds
    for qps in QP_COUNTS[:2] if quick and qp_counts is None else qp_counts or QP_COUNTS:
        progress(f"deadlines of {qps:,} QPs")
        lanes = min(cfg.deadline_lanes, qps)
        with Bench(cfg.with_(num_qps=qps, deadline_lanes=lanes), seed, host_ns) as bench:
            result["lateness"] += bench.lateness(quick)
    return result


# -- showing ----------------------------------------------------------------------------------------

_DOC = {kind.name: kind.doc for kind in KINDS}


def tables(result):
    """[(title, [(head, justify)], rows)] of a result."""
    cfg, left, right = result["config"], "left", "right"
    payloads = sorted({r["payload"] for r in result["throughput"]})
    busy = {}
    for r in result["throughput"]:
        busy.setdefault(r["kind"], {})[r["payload"]] = r
    lost = {}
    for r in result["back_to_back"]:
        lost.setdefault(r["kind"], {})[r["qps"]] = r
    counts = sorted({r["qps"] for r in result["back_to_back"]})
    return [
        (f"Beats busy, % of cycles (and Gbit/s of payload); {cfg['data_width']} bits, {cfg['clock_hz'] / 1e6:g} MHz, "
         f"host latency {result['host_ns']:g} ns",
         [("frames", left)] + [(f"{p} bytes", right) for p in payloads],
         [(_DOC[k], *(f"{row[p]['busy_percent']:.1f} ({row[p]['gbit_s']:.1f})" for p in payloads)) for k, row in busy.items()]),
        ("Cycles lost between the smallest packets back to back",
         [("frames", left)] + [(f"{n} QP{'s' * (n > 1)}", right) for n in counts],
         [(_DOC[k], *(f"{row[n]['lost_cycles']:,} in {row[n]['frames']} frames" if n in row else "" for n in counts))
          for k, row in lost.items()]),
        (f"Cycles from a packet's last beat to its completion on the bus (of these {result['completion'][0]['host_cycles']} "
         f"are the host's, but for an empty packet)",
         [("payload", right), ("least", right), ("median", right), ("most", right)],
         [(r["payload"], r["cycles_min"], f"{r['cycles_median']:g}", r["cycles_max"]) for r in result["completion"]]),
        ("Lateness of deadlines, ns",
         [("QPs", right), ("expiring", left), ("expiries", right), ("mean", right), ("most", right), ("bound", right), ("", left)],
         [(f"{r['qps']:,}", r["case"], f"{r['expiries']:,}", f"{r['late_ns_mean']:,.0f}", f"{r['late_ns_max']:,}",
           f"{r['bound_ns']:,.0f}", "" if r["within"] else "OUTSIDE") for r in result["lateness"]]),
        ("Simulation", [("cycles/s", right)], [(f"{result['simulated_cycles_per_second']:,.0f}",)]),
    ]


def draw(result, path):
    """The result as a PNG: beats busy by payload, lateness by number of QPs."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    payloads = sorted({r["payload"] for r in result["throughput"]})
    kinds = [k for k in KINDS if any(r["kind"] == k.name for r in result["throughput"])]
    width = 0.8 / len(kinds)
    for i, kind in enumerate(kinds):
        busy = {r["payload"]: r["busy_percent"] for r in result["throughput"] if r["kind"] == kind.name}
        left.bar([n + (i + 0.5) * width - 0.4 for n in range(len(payloads))], [busy[p] for p in payloads], width, label=kind.doc)
    left.set(xlabel="payload, bytes", ylabel="cycles with a beat accepted, %", ylim=(0, 140), yticks=range(0, 101, 20))
    left.set_xticks(range(len(payloads)), [str(p) for p in payloads])
    left.legend(loc="upper center", ncols=2, fontsize="small")
    for case, mark in zip(dict.fromkeys(r["case"] for r in result["lateness"]), "osD"):
        rows = [r for r in result["lateness"] if r["case"] == case]
        line, = right.plot([r["qps"] for r in rows], [r["late_ns_max"] / 1000 for r in rows], mark + "-", label=case)
        right.plot([r["qps"] for r in rows], [r["bound_ns"] / 1000 for r in rows], mark + ":", color=line.get_color(), fillstyle="none")
    right.set(xscale="log", yscale="log", xlabel="queue pairs", ylabel="most lateness, us (dotted: its bound)")
    right.legend(title="expiring", fontsize="small")
    figure.suptitle(f"Receive, {result['config']['data_width']} bits at {result['config']['clock_hz'] / 1e6:g} MHz")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
