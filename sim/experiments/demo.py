"""A tensor from one card to another over a network that loses frames, by a deadline: what arrived, and when that was known.

Written with the driver as a program would be. The cards are the model's or the generated Verilog's; nothing else differs, and
with the same seed the network loses the same ones of the frames that it sees.

A message is a piece of the tensor. Messages go over several queue pairs in turn, all posted at once, all with the same absolute
deadline. A message that loses a packet ends when the next one of its queue pair begins (`preempted`), or else at the deadline.
Where nothing arrived the receiver's memory keeps its zeros.
"""

from collections import Counter

import numpy as np

from host_driver.verbs import (CQ, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_WR_SEND, MR, PD, QP, QPCap, QPInitAttr,
                               RecvWR, SendWR, open_cards)

from .common import cable_rate

__all__ = ["run", "DemoError", "table", "picture"]

QUEUE_PAIRS = 8
MESSAGE = 16384             # bytes, if the rings have room for so many
DELAY_NS = 500
SLACK_NS = 30_000           # of the deadline, beside half as much again as the cable needs
STEP_NS = 2_000             # between two looks at the completion queues
ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE


class DemoError(ValueError):
    """What was asked for can't be shown."""


def message_bytes(cfg, size, mtu):
    """As long as it must be for half of the receive rings to hold all of the tensor's messages."""
    entries = min(cfg.rq_entries, cfg.sq_entries) // 2 * queue_pairs(cfg)
    message = max(MESSAGE, mtu)
    while message * entries < size:
        message *= 2
    return message


def queue_pairs(cfg):
    return min(QUEUE_PAIRS, cfg.num_qps, cfg.num_regions)


class End:
    """One card, with what the demo makes on it."""

    def __init__(self, context, tensor, count, messages):
        self.context, self.pd = context, PD(context)
        self.mr = MR(self.pd, tensor, ACCESS)
        self.cq = CQ(context, max(2, messages))
        cap = QPCap(max_send_wr=1, max_recv_wr=1)
        self.qps = [QP(self.pd, QPInitAttr(scq=self.cq, rcq=self.cq, cap=cap)) for _ in range(count)]


def run(backend, cfg, *, loss=0.01, mtu=None, size=1 << 20, seed=1, pcap=None, say=lambda text: None,
        progress=lambda done, total: None):
    """Show it; a plain dict. `say` gets the story line by line, `progress` the messages that have ended, of how many."""
    mtu = cfg.mtu_max if mtu is None else mtu
    if mtu > cfg.mtu_max:
        raise DemoError(f"--mtu {mtu} is above {cfg.mtu_max}, the most that this card takes; choose a smaller one, or another "
                        f"--preset")
    size = -(-size // 4) * 4
    message = message_bytes(cfg, size, mtu)
    pieces = [(at, min(message, size - at)) for at in range(0, size, message)]
    rate = cable_rate(cfg)
    tensor = np.random.default_rng(seed).standard_normal(size // 4, np.float32)

    what = {"rtl": "the generated Verilog under Verilator", "model": "a model in Python"}[backend]
    say(f"Two cards, each {what}: {cfg.data_width} bits at {cfg.clock_hz / 1e6:g} MHz.")
    with open_cards(backend, 2, cfg=cfg, seed=seed, rate=rate, delay_ns=DELAY_NS, loss=loss) as cards:
        say(f"Between them a cable of {rate / 1e9:g} Gbit/s and {DELAY_NS} ns that loses {100 * loss:g} % of the frames (seed "
            f"{seed}).")
        if pcap:
            cards.network.capture(pcap, 0)
            say(f"What the first card sends and gets is recorded in {pcap}.")
        sender = End(cards[0], tensor, queue_pairs(cfg), len(pieces))
        receiver = End(cards[1], np.zeros_like(tensor), queue_pairs(cfg), len(pieces))
        for a, b in zip(sender.qps, receiver.qps):
            a.connect(b.info(), mtu=mtu), b.connect(a.info(), mtu=mtu)
        say(f"{len(sender.qps)} queue pairs are connected, MTU {mtu}. The tensor: {tensor.size:,} float32, in {len(pieces)} "
            f"messages of {message:,} bytes.")

        lane = cards.network.ports[0].out
        per_frame = lane.wire_ps(mtu + 74) / 1000
        budget = round(1.5 * per_frame * sum(-(-n // mtu) for _, n in pieces)) + SLACK_NS
        began = receiver.context.time_ns()
        deadline = began + budget
        say(f"Receives are posted: whatever arrives, they end {budget / 1000:.0f} us from now at the latest.")
        for i, (at, n) in enumerate(pieces):
            receiver.qps[i % len(receiver.qps)].post_recv(RecvWR(i, sg=[receiver.mr.sge(at, n)], deadline_ns=deadline))
        say("Sends are posted. Nothing will be sent twice.")
        for i, (at, n) in enumerate(pieces):
            sender.qps[i % len(sender.qps)].post_send(SendWR(i, IBV_WR_SEND, sg=[sender.mr.sge(at, n)], send_flags=0))

        ended = []
        while len(ended) < len(pieces) and receiver.context.time_ns() < deadline + SLACK_NS:
            receiver.context.sleep_ns(STEP_NS)
            ended += receiver.cq.poll(len(pieces))[1]
            progress(len(ended), len(pieces))
        result = {"backend": backend, "config": cfg.as_dict(), "loss": loss, "mtu": mtu, "bytes": size, "seed": seed,
                  "message_bytes": message, "rate_gbit_s": rate / 1e9, "delay_ns": DELAY_NS, "deadline_ns": budget,
                  **summary(ended, len(pieces), began, deadline), **frames(cards.network, lane),
                  **comparison(tensor, receiver.mr.sync_from_card(), pieces, mtu)}
        result["problems"] = problems(result, cards)
    return result


def summary(ended, messages, began, deadline):
    """What the completions say."""
    causes = Counter(wc.cause for wc in ended)
    placed = sum(wc.byte_len for wc in ended)
    last = max((wc.timestamp for wc in ended), default=began)
    return {"messages": messages, "ended": len(ended), "complete": causes["complete"],
            "partial": sum(wc.partial for wc in ended), "causes": dict(causes), "bytes_placed": placed, "time_ns": last - began,
            "goodput_gbit_s": 8 * placed / max(1, last - began),
            "late_ns": max((wc.timestamp - deadline for wc in ended), default=0)}


def frames(network, lane):
    totals = network.totals()
    return {"frames_sent": lane.frames, "frames_lost": sum(totals["dropped"].values())}


def comparison(sent, got, pieces, mtu):
    """Packet by packet: there, missing (all zero), or wrong."""
    there, missing, wrong, whole = 0, 0, 0, []
    for at, n in pieces:
        parts = []
        for offset in range(at, at + n, mtu):
            part = slice(offset // 4, min(offset + mtu, at + n) // 4)
            parts.append(np.array_equal(sent[part], got[part]))
            if parts[-1]:
                there += 4 * (part.stop - part.start)
            elif not got[part].any():
                missing += 4 * (part.stop - part.start)
            else:
                wrong += 4 * (part.stop - part.start)
        whole.append(sum(parts) / len(parts))
    difference = sent.astype(np.float64) - got
    return {"bytes_there": there, "bytes_missing": missing, "bytes_wrong": wrong, "messages_there": whole,
            "error_norm": float(np.linalg.norm(difference) / np.linalg.norm(sent))}


def problems(result, cards):
    """What may not be, as lines; empty when all is well."""
    found = []
    if result["ended"] != result["messages"]:
        found.append(f"{result['messages'] - result['ended']} receives had not ended when their deadline was over")
    if result["bytes_wrong"]:
        found.append(f"{result['bytes_wrong']} bytes are neither what was sent nor zero")
    if result["bytes_there"] != result["bytes_placed"]:
        found.append(f"completions speak of {result['bytes_placed']} bytes, and {result['bytes_there']} are there")
    for card in cards:
        found += [f"{card.name}: {wrong}" for wrong in [*card.device.faults[:1], *card.device.violations[:1]]]
    return found


# -- showing ------------------------------------------------------------------------------------------

SHADES = " ░▒▓█"


def picture(result):
    """A character for each message, as full as the message is."""
    return "".join(SHADES[int(share * (len(SHADES) - 1))] for share in result["messages_there"])


def table(result):
    """Rows (what, value)."""
    r = result
    why = ", ".join(f"{n} {cause}" for cause, n in sorted(r["causes"].items()) if cause != "complete")
    late = f"{r['late_ns']:,} ns" if r["late_ns"] > 0 else "none: all had ended before"
    return [
        ("bytes sent", f"{r['bytes']:,}"),
        ("bytes placed", f"{r['bytes_placed']:,} ({100 * r['bytes_placed'] / r['bytes']:.2f} %)"),
        ("messages complete", f"{r['complete']} of {r['messages']}"),
        ("messages partial", f"{r['partial']}" + (f" ({why})" if why else "")),
        ("frames lost by the network", f"{r['frames_lost']} of {r['frames_sent']:,}"),
        ("time, simulated", f"{r['time_ns'] / 1000:,.1f} us, deadline {r['deadline_ns'] / 1000:,.1f} us"),
        ("goodput, in simulated time", f"{r['goodput_gbit_s']:.2f} Gbit/s"),
        ("largest wait past the deadline", late),
        ("error, |sent - got| / |sent|", f"{r['error_norm']:.4f}"),
    ]
