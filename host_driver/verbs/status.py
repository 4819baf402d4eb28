"""Why does nothing move? A status is a dict of what is there, and `findings`: what is wrong, and what to do. `print` makes it
readable.

Counters and refusals are what happened since the last status of this context; `total` has all of it since the card's reset.
"""

from .remedies import EVENTS, FAILURES, NEIGHBOURS, REFUSED

__all__ = ["Status", "context_status", "qp_status"]

TIME_BITS = 48      # of the time in a completion


class Status(dict):
    """`status["findings"]` is a list of dicts: where, what, remedy, and level, "problem" or "note"."""

    def __str__(self):
        from io import StringIO
        from rich.console import Console
        out = StringIO()
        Console(file=out, width=120, color_system=None).print(self)
        return out.getvalue().rstrip()

    def __rich__(self):
        from rich.console import Group
        return Group(*self._parts())

    def _parts(self):
        from rich.table import Table
        card = self.get("card")
        if card:
            yield (f"{card['name']}: {card['transport']}, {card['mac']}, {card['ip']}; receives: {yes(card['rx_enabled'])}, sends: "
                   f"{yes(card['tx_enabled'])}, at work: {yes(not card['idle'])}, NIC time {card['time_ns']} ns")
            moved = ", ".join(f"{name} {n}" for name, n in card["counters"].items())
            yield f"since the last look: {moved or 'no counter has moved'}"
        table = Table(box=None, pad_edge=False)
        for head in ("QP", "state", *(part for what in ("receives", "sends", "READs") for part in (what, "oldest waits")),
                     "unpolled", "refused"):
            table.add_column(head)
        for qp in self["qps"]:
            queues = (part for name in ("receives", "sends", "reads") for part in (progress(qp[name]), wait(qp[name])))
            table.add_row(f"{qp['qp_num']:#x}", qp["state"], *queues, str(qp["unpolled"]),
                          ", ".join(f"{reason} {n}" for reason, n in qp["refused"].items()) or "-")
        if self["qps"]:
            yield table
        if all(f["level"] == "note" for f in self["findings"]):
            yield "Nothing is in the way."
        for f in sorted(self["findings"], key=lambda f: f["level"] == "note"):
            yield f"- {f['where']}: {f['what']}. {f['remedy'][:1].upper()}{f['remedy'][1:]}."


def yes(value):
    return "yes" if value else "no"


def progress(queue):
    return f"{queue['completed']} of {queue['posted']}" if queue else "-"


def wait(queue):
    return "-" if not queue or queue["waiting_ns"] is None else f"{queue['waiting_ns'] / 1000:.1f} us"


def context_status(context):
    card = context.card
    ctrl = card.reg_read("CTRL")
    counters = card.counters()
    refused = card.refusals()
    talked = dict(context.neighbours.counts)
    last = context._last_status or {"counters": {}, "refused": {}, "neighbours": {}}
    context._last_status = {"counters": counters, "refused": refused, "neighbours": talked}
    moved = {name: n - last["counters"].get(name, 0) for name, n in counters.items()}
    now = context.time_ns()
    qps = [describe(qp, now, refused, last["refused"]) for qp in queue_pairs(context)]
    about = {"name": context.name, "transport": card.transport, "mac": context.mac, "ip": context.ip, "ip6": context.ip6,
             "rx_enabled": bool(ctrl & 1), "tx_enabled": bool(ctrl & 4), "idle": bool(card.reg_read("STATUS") & 1), "time_ns": now,
             "counters": {name: n for name, n in moved.items() if n}, "total": {name: n for name, n in counters.items() if n},
             "neighbours": since(last["neighbours"], talked)}
    return Status(card=about, qps=qps, findings=[*findings_of_card(about), *(f for qp in qps for f in findings_of_qp(qp, about))])


def since(before, now):
    """What has been counted, and was not before."""
    return {name: n - before.get(name, 0) for name, n in now.items() if n > before.get(name, 0)}


def qp_status(qp):
    """Of one queue pair alone; refusals are all since the card was opened."""
    context = qp.context
    ctrl = context.card.reg_read("CTRL")
    found = describe(qp, context.time_ns(), context.card.refusals(), {})
    return Status(qps=[found], findings=findings_of_qp(found, {"rx_enabled": ctrl & 1, "tx_enabled": ctrl & 4}))


def queue_pairs(context):
    from .qp import QP
    return [qp for pd in context._children for qp in getattr(pd, "_children", ()) if isinstance(qp, QP)]


def describe(qp, now, refused, before):
    def queue(work, since):
        waits = work is not None and work.outstanding and since is not None
        return {"posted": work.posted if work else 0, "completed": work.completed if work else 0,
                "waiting_ns": (now - since) % (1 << TIME_BITS) if waits else None}

    unpolled = sum(cq.waiting for cq in {qp.scq, qp.rcq})       # before the accounts are read: this brings them up to date
    reads = qp._reads.work("receive") if qp._reads else None
    by_reason = {}
    for endpoint in qp._endpoints():
        old = before.get(endpoint.qpn, {})
        for reason, n in refused.get(endpoint.qpn, {}).items():
            if n > old.get(reason, 0):
                by_reason[reason] = by_reason.get(reason, 0) + n - old.get(reason, 0)
    failure = qp._main.failure
    return {
        "qp_num": qp.qp_num, "type": qp._main.type, "state": qp.qp_state.name.removeprefix("IBV_QPS_"),
        "generation": qp._main.generation,
        "failure": failure and {"cause": failure.cause, "by": "peer" if failure.opcode == "event" else "send",
                                "index": failure.index, "time_ns": failure.time_ns},
        "contradiction": qp._main.exists and qp.context.card.contradiction(qp._main.qpn) or None,
        "peer": None if qp.attr.ah_attr is None else {"qp_num": qp.attr.dest_qp_num, "ip": str(qp.attr.ah_attr.gr.dgid.ip)},
        "receives": queue(qp._main.work("receive"), qp.since["receive"]), "sends": queue(qp._main.work("send"), qp.since["send"]),
        "reads": queue(reads, qp.since["read"]) if qp._reads else None, "early_receives": len(qp._early),
        "recv_timeout_ns": qp.init_attr.recv_timeout_ns, "timeless": timeless(qp),
        "unpolled": unpolled, "refused": by_reason,
    }


def timeless(qp):
    """Whether its oldest receive waits without a time limit."""
    work = qp._main.work("receive")
    return bool(work and work.pending and not work.pending[0][0].limited)


def finding(where, what, remedy, level="problem"):
    return {"where": where, "what": what, "remedy": remedy, "level": level}


def findings_of_card(card):
    found = []
    if not card["rx_enabled"]:
        found.append(finding("card", "it discards every frame, and counts none", "call ctx.enable()"))
    if not card["tx_enabled"]:
        found.append(finding("card", "it begins no frame", "call ctx.enable()"))
    for name, n in card["counters"].items():
        known = REFUSED.get(name.removeprefix("drop_")) if name.startswith("drop_") else EVENTS.get(name)
        if known:
            found.append(finding("card", f"{name} {n}: {known[0]}", known[1]))
    for name, n in card["neighbours"].items():
        if name in NEIGHBOURS:
            what, remedy, level = NEIGHBOURS[name]
            found.append(finding("host", f"{name} {n}: {what}", remedy, level))
    return found


def findings_of_qp(qp, card):
    where, found = f"QP {qp['qp_num']:#x}", []
    receives, sends = qp["receives"], qp["sends"]
    if qp["state"] in ("RESET", "INIT"):
        found.append(finding(where, f"it is in state {qp['state']}: nothing is received or sent",
                             "connect() it with the peer's info()"))
    elif qp["state"] == "RTR":
        found.append(finding(where, "it is in state RTR: it receives, and doesn't send", "take it to RTS"))
    elif qp["contradiction"]:
        found.append(finding(where, f"what the card says of it can't be: {qp['contradiction']}",
                             "to_reset() it and connect() again, as the peer must"))
    elif qp["failure"]:
        found.append(failed(where, qp["failure"]))
    elif qp["state"] == "SQD":
        found.append(finding(where, "it is in state SQD: nothing can be posted to be sent", "take it to RTS", "note"))
    elif qp["state"] == "ERR":
        found.append(finding(where, "it is in state ERR: everything posted was flushed",
                             "to_reset() it and connect() again, as the peer must"))
    elif receives["posted"] == receives["completed"] and not qp["early_receives"]:
        fate = "have to wait, and at last fail" if qp["type"] == "rc" else "would be refused"
        found.append(finding(where, f"no receive is posted: messages of the peer {fate}",
                             "post receives, if the peer is to send", "note"))
    if qp["unpolled"]:
        found.append(finding(where, f"{qp['unpolled']} completions wait in its completion queues", "poll them"))
    if receives["waiting_ns"] is not None and card["rx_enabled"]:
        limit = "it has no time limit and waits for ever if nothing comes" if qp["timeless"] else "it ends when its time is up"
        found.append(finding(where, f"its oldest receive has waited for {wait(receives)}; {limit}",
                             "give receives a timeout_ns" if qp["timeless"]
                             else "see whether the peer sends, and what is refused here"))
    if sends["waiting_ns"] is not None and card["tx_enabled"]:
        unfinished = sends["posted"] - sends["completed"]
        if qp["type"] == "rc":
            found.append(finding(where, f"{unfinished} requests wait for the peer, the oldest for {wait(sends)}{repeated(card)}",
                                 "see the peer's status(): is its queue pair in RTR or RTS, has it receives, what does it refuse"))
        else:
            found.append(finding(where, f"{unfinished} sends are unfinished, the oldest for {wait(sends)}",
                                 "unsignaled sends count until a later one completes; others: the rate may be "
                                 "limited, or host memory not answer"))
    if qp["reads"] and qp["reads"]["posted"] != qp["reads"]["completed"]:
        missing = qp["reads"]["posted"] - qp["reads"]["completed"]
        found.append(finding(where, f"{missing} READs have no answer yet, the oldest for {wait(qp['reads'])}",
                             "a READ without timeout_ns waits for ever if its request or an answer is lost"))
    for reason, n in qp["refused"].items():
        what, remedy = REFUSED.get(reason, ("a reason that this driver doesn't know", "the card is newer than the driver"))
        found.append(finding(where, f"{n} frames refused, reason {reason}: {what}", remedy))
    return found


def failed(where, failure):
    """That the card has given up on a queue pair of type RC."""
    what, remedy = FAILURES[failure["cause"]]
    whose = "a request of the peer" if failure["by"] == "peer" else f"send {failure['index']}"
    return finding(where, f"it has failed by {whose}, {failure['cause']}: {what}; everything posted was flushed",
                   f"{remedy}; then to_reset() it and connect() again, as the peer must")


def repeated(card):
    """How often the card, for all its queue pairs, has sent something again since the last look."""
    counts = {name: card.get("counters", {}).get(name, 0) for name in ("go_backs", "ack_timeouts", "rnr_waits")}
    words = (f"{name} {n}" for name, n in counts.items() if n)
    found = ", ".join(words)
    return f" (all queue pairs of the card: {found})" if found else ""
