"""A card of transport rc that plays the steps of a scenario, and what it did in each.

A step is a list of operations, tuples that begin with

    frames      frames that come, one behind the other
    receive     QPN, options: a receive is posted; send: QPN, op, options (see sim.rc_rig.Node); the doorbells ring at the end of the step
    qp          QPN, options: a new life; flush, destroy: QPN
    region      key, va, length, rights; unregion: key
    knobs       of SimDevice, from now on
    store       offset, seed: the memory from `offset` on is filled at random
    log         refusals are logged
    wait        ns, behind the rest of the step
"""

import random
import zlib
from dataclasses import dataclass, field

from optinic.abi.registers import offset_of
from optinic.abi.verdicts import COUNTERS, REASON
from sim.frames import REMOTE
from sim.rc_rig import KEY, PD, RECEIVES, SIZE, VA, Node
from sim.rc_frames import NAK_ACCESS, NAK_INVALID, NAK_OPERATION, Packet, covered_part

__all__ = ["BAD_BUS", "FOREIGN", "KEY", "OWN_ONLY", "Player", "READ_ONLY", "Record", "SIZE", "SMALL", "VA", "describe", "normal"]

#: keys: of another domain; for READs only; not for peers; of some bytes; where there is no memory
FOREIGN, READ_ONLY, OWN_ONLY, SMALL, BAD_BUS = 0x2001, 0x2002, 0x2003, 0x2004, 0x2005
QUIET, LIMIT = 400, 2_000_000       # cycles
KINDS_OF_ANSWER, ACKNOWLEDGE = range(0x0D, 0x13), 0x11


@dataclass
class Record:
    """Of a step. `sent`: by QP of the peer, what of the frames isn't the sender's choice (see `normal`)."""
    verdicts: list = field(default_factory=list)
    completions: list = field(default_factory=list)
    sent: dict = field(default_factory=dict)
    passed: list = field(default_factory=list)
    memory: int = 0
    error: str = None


class Player:
    def __init__(self, device):
        self.dev, self.cfg = device, device.cfg
        self.node = node = Node(device, self.cfg)
        if self.cfg.ipv6:
            node.peer(1, REMOTE[2], REMOTE[0])
        node.region(FOREIGN, VA, SIZE, pd=PD + 1, delta=node.base - VA)
        for key, rights in ((READ_ONLY, ("remote_read",)), (OWN_ONLY, ("local_write",)), (BAD_BUS, ("remote_read", "remote_atomic"))):
            node.region(key, VA, SIZE, rights, delta=(node.base if key != BAD_BUS else 1 << 50) - VA)
        node.region(SMALL, VA + SIZE // 2 + 3, 700, delta=node.base - VA)
        self.traced, self.ran, self.early = 0, 0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.dev.close()

    def step(self, operations):
        """Do it, come to rest, and say what happened."""
        found = Record()
        try:
            self._do(operations)
        except AssertionError as wrong:
            found.error = str(wrong) or repr(wrong)
            return found
        dev = self.dev
        found.verdicts = [(t.verdict, t.reason, t.kind, *((t.qpn, t.length) if t.verdict == "placed" else ())) for t in dev.traces(self.traced)]
        self.traced += len(found.verdicts)
        try:
            new, self.early = self.early + self.node.poll(), []
        except AssertionError as wrong:
            found.error = str(wrong)
        else:
            found.completions = sorted(map(_what_counts, new), key=lambda d: d.queue)
            found.completions += self.node.runs[self.ran:]
            self.ran = len(self.node.runs)
        for frame in dev.sent_frames():
            try:
                packet = Packet(frame.frame)
            except AssertionError as wrong:
                found.error = f"sent a bad frame, {wrong}: {frame.frame.hex()}"
                continue
            if packet.name != "CNP":
                found.sent.setdefault(packet.qpn, []).append(packet)
        found.passed = dev.host_frames()
        found.memory = zlib.crc32(self.node.load(0, SIZE))
        if dev.violations:
            found.error = f"AXI: {dev.violations[0]}"
        return found

    def _do(self, operations):
        node, dev = self.node, self.dev
        rung, wait = {}, 0
        for what, *args in operations:
            if what == "frames":
                for frame in args[0]:
                    dev.send(frame)
            elif what == "receive":
                qpn, more = args
                node.post_receive(qpn, **more, doorbell=False)
                rung.setdefault(qpn, set()).add("RQ")
            elif what == "send":
                qpn, op, more = args
                node.post_send(qpn, op, **more, doorbell=False)
                rung.setdefault(qpn, set()).add("SQ")
            elif what == "qp":
                self.early += node.poll()       # of the life before
                node.qp(args[0], **args[1])
            elif what in ("flush", "destroy"):
                getattr(node, what)(args[0])
            elif what == "region":
                key, va, length, rights = args
                if key in node.slots:
                    node.remove_region(key)
                node.region(key, va, length, rights, delta=node.base - VA)
            elif what == "unregion":
                if args[0] in node.slots:
                    node.remove_region(args[0])
            elif what == "knobs":
                dev.set(**{**_KIND, **args[0]})
            elif what == "store":
                node.store(args[0], random.Random(args[1]).randbytes(SIZE - args[0]))
            elif what == "log":
                node.write("REFUSAL_LOG", 1 << 31 | RECEIVES)
            elif what == "wait":
                wait += args[0]
        for qpn, queues in rung.items():
            qp = node.qps[qpn]
            if "RQ" in queues:
                node.write("RQ_DOORBELL", qp["index"] << 16 | qp["receives"] & 0xFFFF)
            if "SQ" in queues:
                node.ring(qpn)
        dev.run(64)
        if wait:
            dev.run(round(wait * self.cfg.clock_hz / 1e9))
        assert dev.run_until("idle", QUIET, limit=LIMIT), "the card doesn't come to rest"

    def counters(self):
        return {name: self.dev.reg_read(offset_of(name)) for name in COUNTERS}


def _what_counts(done):
    """Without the time, and without what the card doesn't know, or only of some packets: the index of an event or of a refusal, and the
    payload of a packet that is for no QP here."""
    if done.opcode in ("refusal", "event"):
        done = done._replace(index=0, byte_len=0 if done.imm == REASON["opcode"] else done.byte_len)
    return done._replace(time=0)


_KIND = dict(pause=0, host_pause=0, mac_pause=0, aw_pause=0, w_pause=0, b_pause=0, ar_pause=0, r_pause=0, read_latency=20, write_latency=20,
             writes_max=64, interleave=0, visibility="response", shuffle=0)


def normal(packets, exact):
    """What a card must have sent in a step to a QP: of acknowledges, which may have been joined, the one that tells most, if no answer
    tells as much. `exact`: all count."""
    if exact:
        return [covered_part(p.frame) for p in packets]
    kept, newest = [p for p in packets if p.code != ACKNOWLEDGE], None
    for p in packets:
        if p.code in KINDS_OF_ANSWER and p.aeth is not None and (newest is None or _beats(p, newest)):
            newest = p
    if newest and newest.code == ACKNOWLEDGE:
        kept.append(newest)
    return [covered_part(p.frame) for p in kept]


def _beats(p, other):
    """Whether p, which comes later, tells more."""
    fatal = [x.code == ACKNOWLEDGE and x.syndrome in (NAK_INVALID, NAK_ACCESS, NAK_OPERATION) for x in (p, other)]
    if any(fatal):
        return fatal[0]
    nak, was_nak = (x.code == ACKNOWLEDGE and x.syndrome >= 0x20 for x in (p, other))
    further = p.psn + (not nak) - other.psn - (not was_nak) & 0xFFFFFF
    if further == 0:        # a NAK says more than an ACK, and so does an answer, which can't be left out
        return not was_nak and (nak or p.code != ACKNOWLEDGE)
    return further < 1 << 23


def describe(packets):
    return " ".join(map(repr, packets)) or "nothing"

