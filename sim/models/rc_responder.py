"""The receiving half of a card of transport rc: RC requests of peers in the order of their PSN, and UC messages of several packets.

A plain sequential program, one frame at a time, after IBTA volume 1, chapter 9. What belongs to the requester (acknowledges,
responses) is handed on. Where the standard leaves a choice, it is the card's: see docs of the methods.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from .nic import Completion, Verdict
from .outgoing import Peer
from .rc_wire import ACK, NAK_ACCESS, NAK_INVALID, NAK_OPERATION, NAK_SEQUENCE, PSNS, RNR_NAK, ahead, packets_of, read_rc
from .wire import Rules, inspect

__all__ = ["OpenMessage", "ReceiveQueue", "Responder"]

LONGEST = 1 << 31       #: READs are shorter
RECEIVE_REFUSED = NAK_OPERATION     #: the NAK when the buffer of a receive can't be written; a peer's own mistake with a key is NAK_ACCESS


@dataclass
class OpenMessage:
    send: bool
    va: int = 0             # WRITE
    rkey: int = 0
    length: int = 0
    offset: int = 0         # placed so far
    spoiled: bool = False   # UC: a piece was refused


@dataclass(eq=False)
class ReceiveQueue:
    number: int
    kind: str = "rc"        # or uc
    state: str = "ready"
    pd: int = 0
    mtu: int = 1024
    expected: int = 0       # PSN
    rnr_timer: int = 0      # its code
    peer: bytes = Peer().ip
    receives: list = field(default_factory=list)
    head: int = 0           # the next receive
    open: OpenMessage = None
    msn: int = 0
    quiet: bool = False     # a NAK was sent; what isn't expected gets no other one
    asked: bool = False     # the last request is one that an answer acknowledges, and no ACK
    dead: bool = False
    unanswered: int = 0     # READs and atomics
    results: deque = None   # of the last atomics: (PSN, original value)


class Responder:
    #: what a READ or atomic for which there is no room gets: nothing, or an RNR NAK
    rnr_when_busy = True

    def __init__(self, rules=Rules(), pkey=0xFFFF, *, regions=None, memory=None, resources=16, atomics=True):
        self.rules, self.pkey, self.regions, self.memory = rules, pkey, regions if regions is not None else {}, memory
        self.resources, self.atomics = resources, atomics
        self.qps = {}
        self.completions = []
        self.packet = None
        self._counts = Counter()

    # -- what the rest of the card does -------------------------------------------------------------

    def on_refusal(self, packet, reason):
        """A packet that names an existing QP was refused."""

    def on_mark(self, qp):
        """A packet that experienced congestion was placed."""

    def on_acknowledge(self, qp, psn, syndrome):
        """The peer is owed an ACK or a NAK."""

    def room_for_answer(self):
        """Whether one more READ or atomic can wait to be answered."""
        return True

    def on_answer(self, qp, psn, *, length=0, va=0, rkey=0, original=None, again=False):
        """A READ, or with `original` an atomic, is to be answered; :meth:`answered` when that is done."""

    def on_requester(self, qp, packet, now):
        """An acknowledge or a response: a Verdict, or the reason of refusal."""
        return "opcode"

    def on_dead(self, qp):
        """The QP has failed."""

    # -- the host's side ----------------------------------------------------------------------------

    def add_qp(self, number, **context):
        self.qps[number] = ReceiveQueue(number, **context, results=deque(maxlen=self.resources))
        return self.qps[number]

    def remove_qp(self, number):
        self.qps.pop(number, None)

    def rung(self, number, now):
        """`receives` of the QP has become longer; nobody is told."""

    def flush(self, number, now):
        qp = self.qps[number]
        qp.state = "error"
        for _ in range(len(qp.receives) - qp.head):
            self._complete(qp, None, "error", "flushed", now)

    def answered(self, number):
        if qp := self.qps.get(number):
            qp.unanswered = max(0, qp.unanswered - 1)

    # -- a frame ------------------------------------------------------------------------------------

    def frame(self, data, now):
        packet = self.packet = inspect(data, self.rules, read_rc)
        packet.payload = packet.payload or getattr(packet, "original", b"")      # this is what an ATOMIC_ACK brings
        if packet.passed:
            self._counts["frames_passed"] += 1
            return Verdict("passed")
        qp = self.qps.get(packet.qpn)
        found = packet.reason or self._refused_by_qp(qp, packet)
        if found is None:
            if packet.kind == "cnp":
                self._counts.update(("frames_consumed", "cnp_received"))
                return Verdict("consumed", qpn=qp.number, kind="cnp")
            act = self.on_requester if packet.answer else self._message if packet.kind == "uc" else self._request
            found = act(qp, packet, now)
        if isinstance(found, Verdict):
            if found.verdict == "placed":
                self._counts["placed_bytes"] += found.bytes
                if packet.ce:
                    self._counts["cnp_due"] += 1
                    self.on_mark(qp)
            self._counts[f"frames_{found.verdict}"] += 1
            return found
        self._counts[f"drop_{found}"] += 1
        if packet.reason is None and found != "qpn":
            self.on_refusal(packet, found)
        return Verdict("dropped", found)

    def _refused_by_qp(self, qp, packet):
        if qp is None or qp.state == "free":
            return "qpn"
        if qp.state != "ready":
            return "state"
        if packet.kind not in (qp.kind, "cnp"):
            return "opcode"
        if qp.dead and packet.kind != "cnp":
            return "state"
        if (packet.pkey ^ self.pkey) & 0x7FFF or not (packet.pkey | self.pkey) & 0x8000:
            return "pkey"
        return "source" if packet.source != qp.peer else None

    # -- UC -----------------------------------------------------------------------------------------

    def _message(self, qp, packet, now):
        """A packet that isn't the next ends the message, and those behind it are dropped up to the next FIRST or ONLY. The receive
        that the message had is the next one's."""
        if packet.begins:
            qp.open = None
        elif packet.psn != qp.expected or qp.open is None:
            qp.open = None
            if packet.psn != qp.expected:
                return "psn"
            qp.expected = (packet.psn + 1) % PSNS
            return "sequence"
        qp.expected = (packet.psn + 1) % PSNS
        reason = None
        if not self._fits(qp, packet):
            reason = "sequence" if qp.open and qp.open.send != packet.send else "length"
        if reason is None and packet.takes_receive and qp.head >= len(qp.receives):
            reason = "no_receive"
        if reason:
            qp.open = None
            return reason
        address, reason, _ = self._find_memory(qp, packet)
        spoiled = qp.open.spoiled if qp.open else False
        if spoiled and not reason:
            reason = "sequence"
        verdict = self._place(qp, packet, address, now, spoiled=bool(reason))
        return reason or verdict

    # -- RC -----------------------------------------------------------------------------------------

    def _request(self, qp, packet, now):
        distance = ahead(packet.psn, qp.expected)
        if distance >= PSNS // 2:
            return self._duplicate(qp, packet, now)
        if distance:
            if not qp.quiet:
                qp.quiet = True
                self.on_acknowledge(qp, qp.expected, NAK_SEQUENCE)
            return "psn"
        qp.quiet = False
        if not self._fits(qp, packet):
            return self._fail(qp, packet, NAK_INVALID, "remote_invalid", "sequence", now)
        if packet.read or packet.atomic:
            return self._read(qp, packet, now)
        if packet.takes_receive and qp.head >= len(qp.receives):
            qp.quiet = True
            self.on_acknowledge(qp, qp.expected, RNR_NAK | qp.rnr_timer)
            return "no_receive"
        address, reason, syndrome = self._find_memory(qp, packet)
        if reason:
            own = "bus" if reason == "no_receive" else "protection"     # a receive of ours was wrong
            cause = {NAK_INVALID: "remote_invalid", NAK_ACCESS: "remote_access", NAK_OPERATION: own}[syndrome]
            return self._fail(qp, packet, syndrome, cause, reason, now)
        qp.expected = (qp.expected + 1) % PSNS
        qp.asked = False
        qp.msn = (qp.msn + packet.ends) % PSNS
        verdict = self._place(qp, packet, address, now)
        if packet.ack_req:
            self.on_acknowledge(qp, (qp.expected - 1) % PSNS, ACK)
        return verdict

    def _duplicate(self, qp, packet, now):
        self._counts["duplicates"] += 1
        if packet.read:
            return self._read(qp, packet, now, again=True)
        if packet.atomic:
            original = dict(qp.results).get(packet.psn)
            if original is None:
                return "psn"
            if qp.unanswered >= self.resources or not self.room_for_answer():
                return "overflow"
            qp.unanswered += 1
            self.on_answer(qp, packet.psn, original=original, again=True)
            return Verdict("consumed", qpn=qp.number, kind="none")
        self.on_acknowledge(qp, packet.psn if qp.asked else (qp.expected - 1) % PSNS, ACK)
        return Verdict("consumed", qpn=qp.number, kind="none")

    def _read(self, qp, packet, now, again=False):
        if qp.unanswered >= self.resources or not self.room_for_answer():
            if self.rnr_when_busy and not again:
                qp.quiet = True
                self.on_acknowledge(qp, qp.expected, RNR_NAK | qp.rnr_timer)
            return "overflow"
        size, right = (8, "remote_atomic") if packet.atomic else (packet.dma_len, "remote_read")
        address, reason = self._find(qp, packet.rkey, packet.va, size, right) if size else (None, None)
        if reason:
            return self._fail(qp, packet, NAK_ACCESS, "remote_access", reason, now)
        original = None
        if packet.atomic:
            original = self._change(address, packet)
            if original is None:
                return self._fail(qp, packet, NAK_OPERATION, "bus", "access", now)
            qp.results.append((packet.psn, original))
        if not again:
            qp.msn, qp.asked = (qp.msn + 1) % PSNS, True
            qp.expected = (qp.expected + (1 if packet.atomic else packets_of(packet.dma_len, qp.mtu))) % PSNS
        qp.unanswered += 1
        self.on_answer(qp, packet.psn, length=packet.dma_len, va=packet.va, rkey=packet.rkey, original=original, again=again)
        return Verdict("consumed", qpn=qp.number, kind="none" if packet.atomic else "read")

    def _change(self, address, packet):
        """Do an atomic; what was there, or None if the bus refuses."""
        try:
            original = int.from_bytes(self.memory.read(address, 8), "little")
        except IndexError:
            return None
        if packet.op == 0x14:
            self.memory.write(address, ((original + packet.swap_add) % (1 << 64)).to_bytes(8, "little"))
        elif original == packet.compare:
            self.memory.write(address, packet.swap_add.to_bytes(8, "little"))
        return original

    def _fail(self, qp, packet, syndrome, cause, reason, now):
        """The last thing that the QP does."""
        self.on_acknowledge(qp, packet.psn, syndrome)
        self.completions.append(Completion(qp.number, qp.head, "event", "fatal", cause, 0, 0, None, 0, now))
        qp.dead = True
        self.on_dead(qp)
        return reason

    # -- both ---------------------------------------------------------------------------------------

    def _fits(self, qp, packet):
        """Whether the packet may be the next one: its place in a message, and its size there."""
        message, size = qp.open, len(packet.payload)
        if packet.read or packet.atomic:
            return message is None and (packet.dma_len < LONGEST if packet.read else self.atomics and packet.va % 8 == 0)
        if packet.begins != (message is None) or message and message.send != packet.send:
            return False
        if size > qp.mtu or not packet.ends and size < qp.mtu or not packet.begins and not size:
            return False
        if packet.send:
            return True
        left = packet.dma_len if packet.begins else message.length - message.offset
        return left == size if packet.ends else left > size

    def _find_memory(self, qp, packet):
        """(address of the payload, None, None), or (None, why it may not be written, what an RC peer hears)."""
        message, size = qp.open, len(packet.payload)
        if packet.takes_receive and qp.receives[qp.head] is None:       # it can't be read
            return None, "no_receive", RECEIVE_REFUSED
        if packet.send:
            receive, offset = qp.receives[qp.head], message.offset if message else 0
            if receive is None:
                return None, "no_receive", RECEIVE_REFUSED
            if not size:
                return None, None, None
            address, reason = self._find(qp, receive.lkey, receive.va + offset, size, "local_write")
            if reason is None and offset + size > receive.length:
                return None, "bounds", NAK_INVALID
            return address, reason, reason and RECEIVE_REFUSED
        if not size:
            return None, None, None
        if packet.begins:       # all of the message must be allowed
            return *self._find(qp, packet.rkey, packet.va, packet.dma_len, "remote_write"), NAK_ACCESS
        return *self._find(qp, message.rkey, message.va + message.offset, size, "remote_write"), NAK_ACCESS

    def _find(self, qp, key, va, size, right):
        region = self.regions.get(key)
        if region is None:
            return None, "rkey"
        if region.pd != qp.pd:
            return None, "pd"
        if right not in region.access:
            return None, "access"
        if va < region.va or va + size > region.va + region.length:
            return None, "bounds"
        return (va + region.delta) % (1 << 64), None

    def _place(self, qp, packet, address, now, spoiled=False):
        """`spoiled`: a piece of a UC message was refused. The rest is passed over, and a receive that it takes ends as an error."""
        size = len(packet.payload)
        if size and not spoiled:
            self.memory.write(address, packet.payload)
        if packet.begins:
            qp.open = OpenMessage(packet.send, packet.va, packet.rkey, packet.dma_len)
        qp.open.offset += size
        qp.open.spoiled |= spoiled
        if packet.ends:
            length, qp.open = qp.open.offset, None
            if (packet.send or packet.has_imm) and spoiled:
                self._complete(qp, packet, "error", "protection", now, 0, length)
            elif packet.send or packet.has_imm:
                self._complete(qp, packet, "success", "complete", now, length)
        return Verdict("placed", qpn=qp.number, bytes=size)

    def _complete(self, qp, packet, status, cause, now, length=0, announced=None):
        self.completions.append(Completion(
            qp.number, qp.head, packet.opcode if packet else None, status, cause, length, length if announced is None else announced,
            packet.imm if packet and packet.has_imm else None, 0, now))
        qp.head += 1
