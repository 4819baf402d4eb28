"""How fast the simulation is: cycles of a card in a second of processor time, alone and with others, at rest and at work.

alone       one card of generated Verilog; at work it sends without a pause (`bench tx`, SEND)
in a world  so many cards around a switch, each of which sends WRITEs to the next one as fast as its cable takes them, with their
            drivers and the network in Python
"""

import time

from host_driver.verbs import MR, PD, open_cards

from .bench_tx import SendBench
from .common import cable_rate, check
from .dcqcn import ACCESS, MESSAGE, Sender

__all__ = ["run", "tables"]

COUNTS = (2, 8)
CYCLES = {True: 20_000, False: 100_000}     # keys: quick?
STEP_NS = 2_000


def timed(call):
    start = time.process_time()     # what else runs on the machine doesn't count
    call()
    return time.process_time() - start


def alone(cfg, seed, quick):
    with SendBench(cfg, seed, 500) as bench:
        rest = CYCLES[quick] / timed(lambda: bench.dev.run(CYCLES[quick]))
        cycle = bench.dev.cycle
        seconds = timed(lambda: bench.stream("send", min(1024, cfg.mtu_max), 1, False, quick))
        return rest, (bench.dev.cycle - cycle) / seconds


def in_a_world(cfg, count, seed, quick):
    with open_cards("rtl", count, cfg=cfg, seed=seed, rate=cable_rate(cfg), delay_ns=500) as cards:
        targets = [MR(PD(context), MESSAGE, ACCESS) for context in cards]
        cycles = CYCLES[quick] // count
        span_ns = round(cycles * cfg.clock_ns)
        rest = timed(lambda: cards[0].sleep_ns(span_ns))
        senders = [Sender(context, targets[(i + 1) % count]) for i, context in enumerate(cards)]

        def work():
            for _ in range(-(-span_ns // STEP_NS)):
                for sender in senders:
                    sender.refill()
                cards[0].sleep_ns(STEP_NS)
        before = cards[0].device.cycle
        seconds = timed(work)
        check(cards)
        return cycles / rest, (cards[0].device.cycle - before) / seconds


def run(cfg, *, seed=1, quick=False, progress=lambda text: None):
    """Measure configuration `cfg`; a plain dict."""
    result = {"config": cfg.as_dict(), "seed": seed, "quick": quick, "simulated": "generated Verilog", "rows": []}
    progress("one card")
    rows = [("alone", 1, *alone(cfg, seed, quick))]
    for count in COUNTS:
        progress(f"{count} cards")
        rows.append(("in a world", count, *in_a_world(cfg, count, seed, quick)))
    result["rows"] = [{"where": where, "cards": count, "rest_cycles_per_s": rest, "work_cycles_per_s": work}
                      for where, count, rest, work in rows]
    return result


def tables(result):
    """[(title, [(head, justify)], rows)] of a result."""
    cfg, right = result["config"], "right"
    return [(f"Generated Verilog, {cfg['data_width']} bits: cycles a second of processor time (and times cards)",
             [("cards", "left"), ("at rest", right), ("at work", right)],
             [(f"{r['cards']} {r['where']}", *(f"{r[how]:,.0f} ({r[how] * r['cards']:,.0f})" for how in
                                               ("rest_cycles_per_s", "work_cycles_per_s"))) for r in result["rows"]])]
