"""The receive half of the card as a plain sequential program: the oracle that the hardware is held against.

One frame at a time, in order of arrival; time comes in with each call, in ns. Nothing here is shared with the hardware
generator, so an error in one shows as a difference.
"""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
import ipaddress

from .memory import Memory
from .message import Message
from .wire import Rules, inspect

__all__ = ["NicModel", "ArrivalMap", "Verdict", "Completion", "COUNTERS", "REASONS", "ceil_ticks"]

TICK_NS = 64

REASONS = ("runt", "length", "checksum", "icrc", "version", "opcode", "qpn", "state", "pkey", "source", "generation",
           "late", "no_receive", "rkey", "pd", "access", "bounds", "psn", "sequence", "overflow")

COUNTERS = ("placed_bytes", "frames_placed", "frames_consumed", "frames_passed", *(f"drop_{r}" for r in REASONS),
            "cnp_received", "cnp_due", "deadlines", "preempted")

OPCODES = {0x04: "send", 0x05: "send_imm", 0x0B: "write_imm", 0x10: "read"}


def ceil_ticks(ns):
    """A time span in ticks, never shorter than asked."""
    return -(-ns // TICK_NS)


@dataclass(frozen=True)
class Verdict:
    verdict: str                #: placed, consumed, dropped, passed
    reason: str = None          #: of a dropped frame
    qpn: int = None             #: of a placed or consumed one
    bytes: int = None           #: of a placed one
    kind: str = None            #: of a consumed one


@dataclass(frozen=True)
class Completion:
    qpn: int
    index: int
    opcode: str                 #: send, send_imm, write_imm, read (an answer), or None when nothing arrived
    status: str
    cause: str
    byte_len: int
    msg_len: int
    imm: int                    #: None unless the opcode has one
    tag: int
    time: int                   #: ns


@dataclass
class Receive:
    va: int
    length: int
    lkey: int
    timeout: int                # ticks, 0: none
    absolute: bool              # timeout is a point in time instead


class ArrivalMap:
    """Bytes in which the card notes what arrives: row = message sequence modulo `rows`, column = offset // MTU."""

    def __init__(self, pieces, rows):
        self.pieces, self.rows = pieces, rows
        self.data = bytearray(pieces * rows)

    def wipe(self, sequence):
        """The host prepares a row for a receive."""
        start = sequence % self.rows * self.pieces
        self.data[start:start + self.pieces] = bytes([255 - sequence % 256]) * self.pieces

    def note(self, sequence, piece):
        if piece < self.pieces:
            self.data[sequence % self.rows * self.pieces + piece] = sequence % 256


@dataclass
class QueuePair:
    number: int
    order: int
    kind: str
    pd: int
    mtu: int
    generation: int
    peer: bytes
    state: str
    receives: list = field(default_factory=list)
    head: int = 0               # the oldest receive that hasn't completed
    touched: bool = False       # a packet belonged to it
    deadline: int = None        # tick at which it ends; None: its clock isn't running
    message: Message = field(default_factory=Message)
    arrivals: ArrivalMap = None


class NicModel:
    def __init__(self, rules=Rules(), pkey=0xFFFF, regions=(), most_open=None):
        """`regions`: the memory consists of their bytes, all 0; where two overlap they share them. `most_open`: messages that may
        be partly here at once (None: any number)."""
        self.rules, self.pkey, self.most_open = rules, pkey, most_open
        self._open = set()      # numbers of QPs with such a message
        self.regions = {region.key: region for region in regions}
        self.memory = Memory((region.va, region.length) for region in regions)
        self.qps = {}
        self.completions = []
        self.packet = None      # the last one that was looked at
        self._counts = Counter()
        self.refused = {}       # QPN -> Counter of reasons, of frames that name an existing QP
        self._alarms = []       # (tick, order of the QP, QPN, head) for each clock started; stale ones are skipped

    @property
    def counters(self):
        return {name: self._counts[name] for name in COUNTERS}

    def region_bytes(self, key):
        region = self.regions[key]
        return self.memory.read(region.va, region.length)

    # -- the host's side ---------------------------------------------------------------------------

    def add_qp(self, number, kind="xp", pd=0, mtu=1024, generation=0, peer="10.0.0.2", state="ready", arrivals=None):
        """Start a (new) life of QP `number`: receive 0 is its next. `arrivals`: its :class:`ArrivalMap`."""
        self._open.discard(number)
        self.qps[number] = QueuePair(number, len(self.qps), kind, pd, mtu, generation,
                                     ipaddress.ip_address(peer).packed, state, arrivals=arrivals)

    def remove_qp(self, number):
        """The QP is gone, with all that was posted to it."""
        self._open.discard(number)
        self.qps.pop(number, None)

    def post(self, number, va, length, lkey, timeout=0, now=0, absolute=False):
        """Post a receive at time `now`; `timeout` in ticks."""
        qp = self.qps[number]
        if qp.arrivals:
            qp.arrivals.wipe(len(qp.receives))
        qp.receives.append(Receive(va, length, lkey, timeout, absolute))
        self.rung(number, now)

    def rung(self, number, now):
        """`receives` of the QP has become longer."""
        self._start_clock(self.qps[number], now)

    def flush(self, number, now):
        """The QP is put in state error, and each of its posted receives completes."""
        qp = self.qps[number]
        qp.state = "error"
        for _ in range(len(qp.receives) - qp.head):
            self._complete(qp, "error", "flushed", now, start=False)

    # -- what a whole card adds to this half -------------------------------------------------------

    def on_refusal(self, packet, reason):
        """A packet that names an existing QP was refused."""

    def on_mark(self, qp):
        """A packet that experienced congestion was placed."""

    def on_read(self, qp, packet):
        """A READ of the peer is good; False if there is no room for it."""
        return True

    # -- time --------------------------------------------------------------------------------------

    def advance(self, now, jumped=False):
        """Complete what has run out by `now`. `jumped`: the clock was set forward, so all of it runs out only now."""
        while self._alarms and self._alarms[0][0] <= now // TICK_NS:
            tick, _, number, head = heappop(self._alarms)
            qp = self.qps.get(number)
            if qp and qp.deadline == tick and qp.head == head:
                self._counts["deadlines"] += 1
                self._complete(qp, "partial", "timeout", now if jumped else tick * TICK_NS)

    def next_deadline(self):
        """The earliest time, in ns, at which anything can run out, or None."""
        live = [qp.deadline for qp in self.qps.values() if qp.deadline is not None]
        return min(live) * TICK_NS if live else None

    def next_alarm(self):
        """A time, in ns, before which nothing runs out, or None: quicker than :meth:`next_deadline`."""
        return self._alarms[0][0] * TICK_NS if self._alarms else None

    def _start_clock(self, qp, now):
        """Start the clock of the head, if it is posted. One that can't be read ends at once, and the next is head."""
        while qp.state == "ready" and qp.head < len(qp.receives) and qp.receives[qp.head] is None:
            self._complete(qp, "error", "flushed", now, start=False)
        if qp.state != "ready" or qp.deadline is not None or qp.head >= len(qp.receives):
            return
        receive, tick = qp.receives[qp.head], now // TICK_NS
        if receive.absolute:
            # Modulo 2^32; a point in time that has passed ends the receive at once, not in the past.
            qp.deadline = tick + max(0, (receive.timeout - tick + (1 << 31)) % (1 << 32) - (1 << 31))
        elif receive.timeout:
            qp.deadline = tick + receive.timeout
        else:
            return
        heappush(self._alarms, (qp.deadline, qp.order, qp.number, qp.head))

    # -- a frame -----------------------------------------------------------------------------------

    def frame(self, data, now):
        """Take a frame whose last byte arrived at `now`; returns its :class:`Verdict`."""
        self.advance(now)
        packet = self.packet = inspect(data, self.rules)
        if packet.passed:
            self._counts["frames_passed"] += 1
            return Verdict("passed")
        qp = self.qps.get(packet.qpn)
        reason = packet.reason or self._refused_by_qp(qp, packet)
        if reason is None and packet.kind == "cnp":
            self._counts.update(("frames_consumed", "cnp_received"))
            return Verdict("consumed", qpn=qp.number, kind="cnp")
        room = True
        if reason is None and packet.tracked:
            room = self._room_for(packet)
            reason = self._find_message(qp, packet, now)
        address = packet.va
        if reason is None:
            address, reason = self._find_memory(qp, packet)
        if reason is None and not room:
            reason = "overflow"
        if reason is None and packet.read and not self.on_read(qp, packet):
            reason = "overflow"
        if reason is not None:
            self._counts[f"drop_{reason}"] += 1
            if packet.reason is None and reason != "qpn":
                self.refused.setdefault(packet.qpn, Counter())[reason] += 1
                self.on_refusal(packet, reason)
            return Verdict("dropped", reason)
        if packet.read:
            self._counts["frames_consumed"] += 1
            return Verdict("consumed", qpn=qp.number, kind="read")
        return self._place(qp, packet, address, now)

    def _refused_by_qp(self, qp, packet):
        if qp is None or qp.state == "free":
            return "qpn"
        if packet.kind in ("xp", "uc") and len(packet.payload) > qp.mtu:
            return "length"
        if qp.state != "ready":
            return "state"
        if packet.kind == "other" or packet.kind == "xp" and qp.kind != "xp":
            return "opcode"
        if (packet.pkey ^ self.pkey) & 0x7FFF or not (packet.pkey | self.pkey) & 0x8000:
            return "pkey"
        if packet.source != qp.peer:
            return "source"
        if packet.kind == "xp" and packet.generation != qp.generation:
            return "generation"
        return None

    def _room_for(self, packet):
        """Whether the packet's message may be open. One that it ends makes room for its own; one of a single packet needs none."""
        return (self.most_open is None or len(self._open) < self.most_open or packet.qpn in self._open
                or packet.kind == "uc" or len(packet.payload) == packet.msg_len)

    def _find_message(self, qp, packet, now):
        """Message order: makes the packet's receive the head, or says why not."""
        if packet.kind == "uc":
            ahead = int(qp.touched)             # each packet is a message: it takes the next receive
        else:
            ahead = (packet.seq - qp.head) & 0xFFFF_FFFF
            if ahead >> 31:
                return "late"
        if qp.head + ahead >= len(qp.receives):
            return "no_receive"
        if ahead:
            self._counts["preempted"] += 1
            for _ in range(ahead):
                self._complete(qp, "partial", "preempted", now, start=False)
        if qp.receives[qp.head] is None:        # it can't be read: what had been placed before is all there will be
            self._complete(qp, "error", "flushed", now)
            return "no_receive"
        if ahead:
            self._start_clock(qp, now)
        qp.touched = True
        opener = qp.message.placed
        if opener is not None and opener.msg_len != packet.msg_len:
            return "length"
        return None

    def _find_memory(self, qp, packet):
        """(address of the payload in memory, None), or (None, why it may not be written or read)."""
        size = packet.read_len if packet.read else len(packet.payload)
        if not size:
            return None, None
        receive = None if packet.write or packet.read else qp.receives[qp.head]
        region = self.regions.get(receive.lkey if receive else packet.rkey)
        start = receive.va + packet.offset if receive else packet.va
        need = "local_write" if receive else "remote_read" if packet.read else "remote_write"
        if region is None:
            return None, "rkey"
        if region.pd != qp.pd:
            return None, "pd"
        if need not in region.access:
            return None, "access"
        if start < region.va or start + size > region.va + region.length:
            return None, "bounds"
        if receive and packet.offset + size > receive.length:
            return None, "bounds"
        return (start + region.delta) % (1 << 64), None

    def _place(self, qp, packet, address, now):
        if packet.payload:
            self.memory.write(address, packet.payload)
        self._counts["frames_placed"] += 1
        self._counts["placed_bytes"] += len(packet.payload)
        if packet.ce:
            self._counts["cnp_due"] += 1
            self.on_mark(qp)
        if packet.tracked:
            if qp.arrivals and packet.kind == "xp" and packet.payload:
                qp.arrivals.note(packet.seq, packet.offset // qp.mtu)
            qp.message.place(packet)
            self._open.add(qp.number)
            if qp.message.complete:
                self._complete(qp, "success", "complete", now)
        return Verdict("placed", qpn=qp.number, bytes=len(packet.payload))

    def _complete(self, qp, status, cause, now, start=True):
        placed = qp.message.placed
        self.completions.append(Completion(
            qpn=qp.number, index=qp.head, status=status, cause=cause, byte_len=qp.message.byte_len, time=now,
            opcode=OPCODES[placed.op] if placed else None,
            msg_len=placed.msg_len if placed else 0,
            imm=placed.imm if placed and placed.has_imm else None,
            tag=placed.tag if placed else 0))
        qp.head += 1
        self._open.discard(qp.number)
        qp.touched, qp.deadline, qp.message = False, None, Message()
        if start:
            self._start_clock(qp, now)
