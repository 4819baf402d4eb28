"""How long a message takes, on the generated Verilog, in cycles and in ns.

first beat  from the doorbell's appearance at the register port to the first beat taken by the cable; an idle card alone
completion  from the acceptance of a message's last beat to the address of its CQE on the bus; an idle card alone
one way     from the sender's doorbell to the moment at which the receiver's CQE can be read in memory: two cards, a cable between
            them, both idle before; the work requests lie ready

A host access takes what `host_ns` says, each. Of the one way there are four behind each other: the send work request, the
payload, the payload's write, the CQE's write; a message inline has no payload to read.
"""

import random

import numpy as np

from host_driver.card import Card
from optinic.abi.registers import offset_of
from sim.device import SimDevice
from sim.network import back_to_back
from sim.world import World

from .bench_rx import Bench, BenchError, KEY, VA, WINDOW
from .bench_tx import SendBench, first_beat_sizes, first_beat_table
from .common import cable_rate

__all__ = ["run", "tables"]

SIZES = (8, 64, 4096)
CABLE_NS = 100


class Pair:
    """Two cards on a cable, card 0 connected to QP 0 of card 1."""

    def __init__(self, cfg, seed, host_ns):
        self.cfg, self.rng = cfg, random.Random(seed)
        self.host_cycles = max(1, round(host_ns / cfg.clock_ns))
        self.devices = [SimDevice(cfg, seed=seed + i, read_latency=self.host_cycles, write_latency=self.host_cycles, log=i)
                        for i in range(2)]
        self.network = back_to_back(rate=cable_rate(cfg), delay_ns=CABLE_NS, seed=seed)
        self.world = World(self.devices, self.network)
        self.cards = [self._bring_up(i) for i in range(2)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.world.close()
        for device in self.devices:
            device.close()

    def _bring_up(self, i):
        device = self.world.device(i)
        card = Card(device, self.cfg)
        buffer = device.alloc(WINDOW)
        device.write(buffer, self.rng.randbytes(WINDOW))
        card.add_region(KEY, VA, WINDOW, ("local_write",), pd=1, delta=buffer - VA)
        card.set_local(f"02:00:00:00:00:0{1 + i}", f"10.0.0.{1 + i}")
        card.set_peer(0, f"10.0.0.{2 - i}", mac=f"02:00:00:00:00:0{2 - i}")
        card.set_cq(0)
        card.create_qp(0, mtu=self.cfg.mtu_max, pd=1)
        card.enable(hold=True)
        return card

    def settle(self):
        if not self.world.run_until(self.world.idle, 1_000_000):
            raise BenchError("the cards find no rest")

    def one_way(self, size, inline):
        """Cycles until the last beat is at the receiving card, and until the CQE is in its memory."""
        sender, receiver = self.cards
        cq = receiver._cqs[0]
        receiver.post_receive(0, VA, WINDOW, KEY)
        how = dict(inline=self.rng.randbytes(size)) if inline else dict(va=VA, length=size, lkey=KEY)
        sender.post_send(0, "send", **how, signaled=False, doorbell=False)
        self.settle()
        sender.device.run(self.rng.randrange(200))
        skip, frame = len(self.devices[1].transfers()), self.devices[1]._totals()[0]
        began = self.world.cycle_ps(0, self.devices[0].cycle - 1)
        sender.device.reg_write(offset_of("SQ_DOORBELL"), sender._qp(0).sends.posted & 0xFFFF)
        self.world.run_until(lambda: cq.waiting(self.devices[1]), 1_000_000)
        self.settle()
        writes = self.devices[1].transfers(skip)
        found = writes[(writes["write"] == 1) & (writes["addr"] >= cq.addr) & (writes["addr"] < cq.addr + 32 * cq.entries)]
        ends = receiver.poll(0)
        wrong = [fault for device in self.devices for fault in [*device.faults, *device.violations]]
        if wrong or len(found) != 1 or [(c.status, c.byte_len) for c in ends] != [("success", size)]:
            raise BenchError(f"one message of {size} bytes made {len(found)} CQEs, {ends}; {wrong[:1] or 'no rule was broken'}")
        last = self.devices[1].stamps(frame)["last"]
        cycles = lambda cycle: (self.world.cycle_ps(1, int(cycle)) - began) * self.cfg.clock_hz / 1e12
        return cycles(last[-1]), cycles(found["end_cycle"][0])


def one_way_rows(cfg, seed, quick, host_ns, progress):
    rows = []
    with Pair(cfg, seed, host_ns) as pair:
        for size in SIZES:
            for inline in (True, False) if size == SIZES[0] else (False,):
                progress(f"one way, {size} bytes{' inline' if inline else ''}")
                found = [pair.one_way(size, inline) for _ in range(5 if quick else 20)]
                arrival, end = np.array(found).T
                median = float(np.median(end))
                rows.append({"size": size, "inline": inline, "count": len(found), "host_accesses": 3 if inline else 4,
                             "host_cycles": pair.host_cycles, "cable_ns": CABLE_NS, "rate_gbit_s": cable_rate(cfg) / 1e9,
                             "cycles_min": float(end.min()), "cycles_median": median, "cycles_max": float(end.max()),
                             "arrival_cycles_median": float(np.median(arrival)), "ns_median": median * cfg.clock_ns,
                             "ns_without_host": (median - (3 if inline else 4) * pair.host_cycles) * cfg.clock_ns})
    return rows


def run(cfg, *, seed=1, quick=False, host_ns=500, progress=lambda text: None):
    """Measure configuration `cfg`; a plain dict. `host_ns` is the latency of the simulated hosts, reads and writes."""
    result = {"config": cfg.as_dict(), "seed": seed, "quick": quick, "host_ns": host_ns, "simulated": "generated Verilog",
              "first_beat": [], "completion": []}
    progress("compiling the card, if it is a new one")
    with SendBench(cfg, seed, host_ns) as bench:
        for size, inline in first_beat_sizes(cfg):
            progress(f"doorbell to cable, {size} bytes")
            result["first_beat"].append(bench.first_beat(size, inline, 5 if quick else 20))
    with Bench(cfg, seed, host_ns) as bench:
        for size in SIZES:
            if size <= cfg.mtu_max:
                progress(f"completion of {size} bytes")
                result["completion"].append(bench.completion(size, 5 if quick else 20))
    result["one_way"] = one_way_rows(cfg, seed, quick, host_ns, progress)
    return result


# -- showing ----------------------------------------------------------------------------------------


def tables(result):
    """[(title, [(head, justify)], rows)] of a result."""
    cfg, left, right = result["config"], "left", "right"
    ns = lambda cycles: f"{cycles * 1e9 / cfg['clock_hz']:,.0f}"
    title, columns, rows = first_beat_table(result["first_beat"])
    way = result["one_way"][0]
    spread = [("least", right), ("median", right), ("most", right), ("median, ns", right)]
    return [
        (f"Generated Verilog; {cfg['data_width']} bits, {cfg['clock_hz'] / 1e6:g} MHz. {title}",
         columns + [("median, ns", right)], [(*row, ns(r["cycles_median"])) for row, r in zip(rows, result["first_beat"])]),
        (f"Cycles from a message's last beat to its completion on the bus (its payload's write takes the host "
         f"{result['completion'][0]['host_cycles']} of them)",
         [("payload", left), *spread],
         [(f"{r['payload']:,} bytes", r["cycles_min"], f"{r['cycles_median']:g}", r["cycles_max"], ns(r["cycles_median"]))
          for r in result["completion"]]),
        (f"One way, from doorbell to completion in memory, in cycles; cable of {way['rate_gbit_s']:g} Gbit/s and {way['cable_ns']} "
         f"ns, each host access {result['host_ns']:g} ns",
         [("message", left), ("host accesses", right), *spread, ("without the host's, ns", right)],
         [(f"{r['size']:,} bytes{' inline' if r['inline'] else ''}", r["host_accesses"], f"{r['cycles_min']:,.0f}",
           f"{r['cycles_median']:,.0f}", f"{r['cycles_max']:,.0f}", f"{r['ns_median']:,.0f}", f"{r['ns_without_host']:,.0f}")
          for r in result["one_way"]]),
    ]
