"""How fast the send half is, on the generated Verilog: beats on the cable, messages, and the way from a doorbell to the cable.

What is measured, and how:

busy        all sends are posted and their doorbells rung before sending is switched on; the cable takes a beat in every cycle.
            The percentage of cycles with a beat, over the second half of the frames, when nothing that was fetched ahead is
            left
messages    the same way, in cycles from one message to the next; `signaled`: each writes a completion, otherwise one in so
            many that the driver needs to know what is free
first beat  cycles from the doorbell's appearance at the register port to the first beat taken by the cable, on an idle card

Each run also checks that all frames came, that no send failed, and that the card broke no rule of the bus; otherwise it fails.
"""

from dataclasses import dataclass

import numpy as np

from optinic.abi.registers import offset_of
from optinic.abi.structs import INLINE_MAX

from .bench_rx import Bench, BenchError, KEY, VA, WINDOW

__all__ = ["run", "tables", "SendBench", "MTUS", "QPS"]

MTUS = (4096, 1024, 256)
QPS = (1, 64)
PEER, PEER_MAC = "10.0.0.2", "02:00:00:00:00:02"
STREAMS = (("write", False), ("send", False), ("write", True))      # of one packet a message?
NAMES = {"write": "WRITE", "send": "SEND", "write_imm": "WRITE with immediate"}
STREAM = 65536              # bytes of a message where beats are counted; less, where a QP would send less than two
BEATS = 40_000              # of a run


@dataclass(frozen=True)
class Rate:
    """A case of message rate."""
    name: str
    size: int
    inline: bool = False
    signaled: bool = False


RATES = (Rate("64 bytes", 64), Rate(f"{INLINE_MAX} bytes inline", INLINE_MAX, inline=True),
         Rate("64 bytes, signaled", 64, signaled=True))


class SendBench(Bench):
    """A card that is up, with one region to send from, one peer, and one completion queue."""

    def __init__(self, cfg, seed, host_ns):
        super().__init__(cfg, seed, host_ns)
        self.dev.set(log=0)
        self.card.set_local("02:00:00:00:00:01", "10.0.0.1")
        self.card.set_peer(0, PEER, mac=PEER_MAC)
        self.dev.write(self.buffer, self.rng.randbytes(WINDOW))
        self.frames_made = 0

    def connect(self, count, mtu):
        """QPs 0 .. count - 1, each with send 0 as its next."""
        self.generation = (self.generation + 1) % 256
        for qpn in range(count):
            self.card.create_qp(qpn, mtu=mtu, generation=self.generation, pd=1, peer_qpn=qpn, peer_generation=self.generation)

    def post(self, qpn, op, size, *, inline=False, signaled=False):
        remote = {} if op == "send" else {"remote_va": VA, "rkey": KEY}
        where = {"inline": self.rng.randbytes(size)} if inline else {"va": VA, "length": size, "lkey": KEY}
        self.card.post_send(qpn, op, **where, **remote, signaled=signaled, doorbell=False)

    def flood(self, op, mtu, size, qps, each, **how):
        """`each` messages on each of so many QPs, all ready to go; the frames that came of them."""
        self.card.enable(tx=False)
        self.connect(qps, mtu)
        for qpn in range(qps):
            for _ in range(each):
                self.post(qpn, op, size, **how)
            self.card.ring_send(qpn)
        self.timed("cycle", self.dev.cycle + 4 * self.host_cycles, 1 << 30)     # what a doorbell sets going
        count = qps * each * max(1, -(-size // mtu))
        self.card.enable(tx=True)
        return self.take(count)

    def take(self, count):
        """The next `count` frames, and then nothing more."""
        self.timed("mac_frames", self.frames_made + count, 100_000 + 400 * count)
        self.idle()
        found = self.dev.sent_frames()
        self.frames_made += len(found)
        ends = self.card.poll(0)
        wrong = [c for c in ends if c.status != "success"] + self.dev.violations[:1] + self.dev.faults[:1]
        if wrong or len(found) != count:
            raise BenchError(f"{len(found)} frames instead of {count}; {wrong[0] if wrong else 'nothing is said to be wrong'}")
        return found

    def stream(self, op, mtu, qps, single, quick):
        """`single`: messages of one packet, so that each packet waits for a work request of its own."""
        total = BEATS // (4 if quick else 1) * self.cfg.beat_bytes
        size = mtu if single else STREAM
        while size > mtu and size * qps * 2 > total:
            size //= 2
        each = max(4 if single else 2, min(total // qps // size, self.cfg.sq_entries - 1))
        frames = self.flood(op, mtu, size, qps, each)
        half = frames[len(frames) // 2:]
        beats = sum(-(-len(f.frame) // self.cfg.beat_bytes) for f in half)
        cycles = half[-1].last - half[0].first + 1
        payload = qps * each * size * len(half) / len(frames)
        return {"kind": op, "single": single, "mtu": mtu, "qps": qps, "message_bytes": size, "frames": len(frames),
                "beats_per_frame": max(-(-len(f.frame) // self.cfg.beat_bytes) for f in half),
                "busy_percent": 100 * beats / cycles, "gbit_s": 8e-9 * payload / (cycles / self.cfg.clock_hz)}

    def rate(self, case, qps, quick):
        each = min(self.cfg.sq_entries - 1, max(4, (256 if quick else 1024) // qps))
        frames = self.flood("write_imm", self.cfg.mtu_max, case.size, qps, each, inline=case.inline, signaled=case.signaled)
        half = frames[len(frames) // 2:]
        cycles = (half[-1].first - half[0].first) / (len(half) - 1)
        return {"case": case.name, "size": case.size, "inline": case.inline, "signaled": case.signaled, "qps": qps,
                "messages": len(frames), "beats_per_frame": -(-len(half[0].frame) // self.cfg.beat_bytes),
                "cycles_per_message": cycles, "million_per_s": self.cfg.clock_hz / cycles / 1e6}

    def first_beat(self, size, inline, count):
        """From a doorbell to the cable, `count` times; and the beats of the message's frames."""
        self.card.enable(tx=True)
        self.connect(1, self.cfg.mtu_max)
        found = []
        for _ in range(count):
            self.dev.run(self.rng.randrange(200))
            self.idle()
            self.post(0, "write_imm", size, inline=inline)
            began = self.dev.cycle
            self.dev.reg_write(offset_of("SQ_DOORBELL"), self.card._qp(0).sends.posted & 0xFFFF)
            frames = self.take(max(1, -(-size // self.cfg.mtu_max)))
            found.append(frames[0].first - began)
        return {"size": size, "inline": inline, "count": count, "host_cycles": self.host_cycles,
                "cycles_min": min(found), "cycles_median": float(np.median(found)), "cycles_max": max(found)}


def first_beat_sizes(cfg):
    return [(8, True), (8, False), (64, False), (min(4096, cfg.mtu_max), False)]


def run(cfg, *, seed=1, quick=False, host_ns=1000, progress=lambda text: None):
    """Measure configuration `cfg`; a plain dict. `host_ns` is the latency of the simulated host, reads and writes."""
    result = {"config": cfg.as_dict(), "seed": seed, "quick": quick, "host_ns": host_ns, "simulated": "generated Verilog",
              "throughput": [], "messages": [], "first_beat": []}
    counts = sorted({min(n, cfg.num_qps) for n in QPS})
    progress("compiling the card, if it is a new one")
    with SendBench(cfg, seed, host_ns) as bench:
        for op, single in STREAMS:
            for mtu in MTUS:
                if mtu <= cfg.mtu_max:
                    progress(f"{stream_name(op, single)}, MTU {mtu}")
                    result["throughput"] += [bench.stream(op, mtu, qps, single, quick) for qps in counts]
        for case in RATES:
            progress(f"{NAMES['write_imm']}, {case.name}")
            result["messages"] += [bench.rate(case, qps, quick) for qps in counts]
        for size, inline in first_beat_sizes(cfg):
            progress(f"doorbell to cable, {size} bytes")
            result["first_beat"].append(bench.first_beat(size, inline, 5 if quick else 20))
        result["simulated_cycles_per_second"] = bench.cycles / bench.seconds
    return result


# -- showing ----------------------------------------------------------------------------------------


def stream_name(op, single):
    return NAMES[op] + (", one packet a message" if single else "")


def first_beat_table(rows):
    """Title, columns and rows of what `first_beat` found."""
    right = "right"
    return (f"Cycles from the doorbell to the first beat on the cable (the host answers each of the card's reads after "
            f"{rows[0]['host_cycles']})",
            [("payload", "left"), ("host reads on the way", right), ("least", right), ("median", right), ("most", right)],
            [(f"{r['size']:,} bytes{' inline' if r['inline'] else ''}", 1 if r["inline"] else 2, r["cycles_min"],
              f"{r['cycles_median']:g}", r["cycles_max"]) for r in rows])


def tables(result):
    """[(title, [(head, justify)], rows)] of a result."""
    cfg, left, right = result["config"], "left", "right"
    rates = {}
    for r in result["messages"]:
        rates.setdefault(r["case"], {})[r["qps"]] = r
    busy = {}
    for r in result["throughput"]:
        busy.setdefault((stream_name(r["kind"], r["single"]), r["qps"]), {})[r["mtu"]] = r
    mtus = sorted({r["mtu"] for r in result["throughput"]}, reverse=True)
    counts = sorted({r["qps"] for r in result["messages"]})
    plural = lambda n: f"{n} QP{'s' * (n > 1)}"
    return [
        (f"Generated Verilog; {cfg['data_width']} bits, {cfg['clock_hz'] / 1e6:g} MHz, host latency {result['host_ns']:g} ns. "
         f"Beats on the cable, % of cycles (and Gbit/s of payload)",
         [("messages", left), ("", left)] + [(f"MTU {m}", right) for m in mtus],
         [(name, plural(qps), *(f"{row[m]['busy_percent']:.1f} ({row[m]['gbit_s']:.1f})" for m in mtus))
          for (name, qps), row in busy.items()]),
        ("WRITE with immediate, cycles from one message to the next (and million messages a second)",
         [("payload", left)] + [(plural(n), right) for n in counts],
         [(case, *(f"{row[n]['cycles_per_message']:.2f} ({row[n]['million_per_s']:.1f})" for n in counts))
          for case, row in rates.items()]),
        first_beat_table(result["first_beat"]),
        ("Simulation", [("cycles/s", right)], [(f"{result['simulated_cycles_per_second']:,.0f}",)]),
    ]
