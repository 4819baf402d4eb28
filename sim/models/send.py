"""The send half of the card as a plain sequential program: work requests in, frames and completions out.

One frame at a time: :meth:`SendModel.next_frame` is one visit of the rotation. Time comes in with each call, in ns. Nothing
here is shared with the hardware generator.

A packet counts as sent, and its message as complete, when :meth:`next_frame` hands it out. A packet whose payload can't be had
is left out and those behind it are not; the message, or the answer, goes on to its end.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from .congestion import NotificationModel
from .outgoing import Header, Peer, Port, build_frame, extension_headers, source_port

__all__ = ["SendModel", "WorkRequest", "SendQueue", "Completion", "Outgoing", "OPCODES"]

TICK_NS = 64
INLINE_MAX = 32
NOTIFICATION_TCLASS = 48 << 2
CNP = 0x81
PLAIN_FRAME = 14 + 20 + 8 + 12 + 4      # Ethernet, IPv4, UDP, BTH, ICRC

#: BTH opcode of each operation, by the type of the queue pair
OPCODES = {"xp": {"send": 0xE4, "send_imm": 0xE5, "write": 0xEA, "write_imm": 0xEB, "read": 0xEC},
           "uc": {"send": 0x24, "send_imm": 0x25, "write": 0x2A, "write_imm": 0x2B}}
READ_RESPONSE = 0xF0


@dataclass(frozen=True)
class WorkRequest:
    op: str                     #: send, send_imm, write, write_imm, read
    length: int = 0
    va: int = 0                 #: of the payload, in the region named by lkey
    lkey: int = 0
    inline: bytes = None        #: the payload itself, in the first `length` of these bytes
    remote_va: int = 0
    rkey: int = 0
    imm: int = 0
    seq: int = 0
    tag: int = 0
    signaled: bool = True
    solicited: bool = False
    deadline: int = None        #: ticks, modulo 2^32


@dataclass(frozen=True)
class Completion:
    """A send that has ended and, with the same fate, `skipped` just before it."""
    qpn: int
    index: int
    opcode: str                 #: None of a run of flushed ones
    status: str
    cause: str
    byte_len: int
    msg_len: int
    tag: int
    skipped: int
    time: int                   #: ns


@dataclass(frozen=True)
class Outgoing:
    frame: bytes
    qpn: int
    kind: str                   #: data, read_request, read_response, cnp
    payload: int                #: bytes
    charge: int                 #: bytes that the pacer counts: of the frame as if it were IPv4, without tag and padding


@dataclass(eq=False)
class SendQueue:
    """What a queue pair knows for sending."""
    number: int
    kind: str = "xp"
    state: str = "ready"
    pd: int = 0
    mtu: int = 1024
    peer: Peer = Peer()
    dest_qpn: int = 0
    dest_generation: int = 0
    tclass: int = 0
    log2_paths: int = 0
    requests: list = field(default_factory=list)    # posted so far; None: could not be read
    head: int = 0               # the oldest that hasn't completed
    current: WorkRequest = None     # that one, when it is to be sent
    offset: int = 0             # what of it is handed out
    failed: str = None          # cause of the last error in it
    deadline: int = None        # tick
    psn: int = 0
    waiting: bool = False       # has a place in the rotation


@dataclass(eq=False)
class Answer:
    """A READ of the peer that is being answered."""
    qp: SendQueue
    va: int
    rkey: int
    length: int
    seq: int
    tag: int
    offset: int = 0
    open: bool = True


class SendModel:
    def __init__(self, port=Port(), regions=None, memory=None, *, pacer=None, notifier=None, answers_at_once=16, qp_bits=14):
        """`regions`: key -> Region, anything with `get`; `memory`: has `read(address, size)`, IndexError if that fails.
        `qp_bits`: so many low bits of a QPN are different for each QP of the card. `pacer`: a :class:`.pacing.Pacing`;
        `notifier` says which marks the peer is told of."""
        self.port, self.regions, self.memory, self.pacer = port, regions if regions is not None else {}, memory, pacer
        self.notifier = notifier or NotificationModel()
        self.answers_at_once, self.qp_bits = answers_at_once, qp_bits
        self.qps = {}
        self.completions = []
        self.counts = Counter()
        self._rotation = deque()    # queue pairs and answers that may have a packet
        self._held = []             # (time, n, one of those) that its rate holds back
        self._later = []            # answers that wait for a place in the rotation
        self._answering = set()     # QPs with an answer that has one
        self._notifications = deque()
        self._alarms = []           # (tick, n, queue pair, head)
        self._serial = 0            # breaks ties

    # -- the host's side ---------------------------------------------------------------------------

    def add_qp(self, number, now=0, **context):
        """Start a (new) life of QP `number`: send 0 is its next."""
        self.remove_qp(number)
        self.qps[number] = SendQueue(number, **context)
        if self.pacer:
            self.pacer.reset(number, now)
        return self.qps[number]

    def remove_qp(self, number):
        """Nothing of the QP is sent any more, answers to its peer neither."""
        old = self.qps.pop(number, None)
        if old:
            old.state, old.current, old.deadline = "free", None, None
            self._drop_answers(old)

    def post(self, number, request, now=0):
        self.qps[number].requests.append(request)
        self.rung(number, now)

    def rung(self, number, now):
        """`requests` of the QP has become longer."""
        qp = self.qps[number]
        if qp.current is None:
            self._look(qp, now)

    def flush(self, number, now):
        """The QP is put in state error; one completion stands for all that it has not sent to the end."""
        qp = self.qps[number]
        count = len(qp.requests) - qp.head
        qp.state, qp.current, qp.offset, qp.failed, qp.deadline = "error", None, 0, None, None
        if count:
            qp.head += count
            self.completions.append(Completion(number, qp.head - 1, None, "error", "flushed", 0, 0, 0, count - 1, now))
        self._drop_answers(qp)

    def read_request(self, number, va, rkey, length, seq, tag):
        """The receive half has found a READ of the peer to be good."""
        self._later.append(Answer(self.qps[number], va, rkey, length, seq, tag))
        self._admit_answers()

    def mark(self, number, now):
        """A packet that was placed says that there is congestion on the way to the QP: its peer is told, now and then."""
        qp = self.qps.get(number)
        if qp is None:
            return
        told = self.notifier.marked(number, now)
        if told:
            self._notifications.append(qp)
        elif told is None:
            self.counts["marks_lost"] += 1

    # -- time --------------------------------------------------------------------------------------

    def next_alarm(self):
        """The earliest time at which a deadline can run out, or None."""
        return self._alarms[0][0] * TICK_NS if self._alarms else None

    def next_paced(self):
        """The earliest time at which something that is held back may go, or None."""
        return self._held[0][0] if self._held else None

    @property
    def answers(self):
        """READs taken and not yet answered to the end."""
        return len(self._later) + len(self._answering)

    @property
    def waiting_answers(self):
        """READs that nothing has been sent for, because others are being answered."""
        return len(self._later)

    def ready(self, now):
        """Whether :meth:`next_frame` may have a frame."""
        return bool(self._rotation or self._notifications or self._held and self._held[0][0] <= now)

    def advance(self, now):
        """End what has run out by `now`."""
        while self._alarms and self._alarms[0][0] <= now // TICK_NS:
            tick, _, qp, head = heappop(self._alarms)
            if qp.current is not None and qp.deadline == tick and qp.head == head:
                self._expire(qp, now)
                self._look(qp, now)

    # -- a frame -----------------------------------------------------------------------------------

    def next_frame(self, now):
        """The next frame to be sent. None: there is none now, or its payload can't be had, and another one may be :meth:`ready`."""
        self.advance(now)
        while self._notifications:
            qp = self._notifications.popleft()
            if qp.state != "free":
                self.counts["cnp_sent"] += 1
                return self._count(Outgoing(self._notification(qp), qp.number, "cnp", 16, 0))
        while self._held and self._held[0][0] <= now:
            self._rotation.append(heappop(self._held)[2])
        while self._rotation:
            turn = self._rotation.popleft()
            answer = isinstance(turn, Answer)
            qp = turn.qp if answer else turn
            if qp.state != "ready" or not answer and qp.current is None:
                if not answer:
                    qp.waiting = False
                continue
            time = self.pacer.not_before(qp.number, now) if self.pacer else now
            if time > now:
                heappush(self._held, (time, self._next_serial(), turn))
                continue
            found = self._answer(turn) if answer else self._send(qp, now)
            if turn.open if answer else qp.current is not None:
                self._rotation.append(turn)
            elif not answer:
                qp.waiting = False
            if found is None:
                return None
            if self.pacer:
                self.pacer.sent(qp.number, found.charge, now)
            return self._count(found)
        return None

    def _count(self, found):
        self.counts["frames_sent"] += 1
        self.counts["sent_bytes"] += len(found.frame)
        return found

    def _send(self, qp, now):
        """One packet of the QP's oldest message, or None if that has an error."""
        request = qp.current
        if request.op == "read":
            out = self._packet(qp, "read_request", OPCODES["xp"]["read"], b"", request.solicited,
                               xp=(False, qp.dest_generation, request.tag, request.seq, request.length, 0),
                               reth=(request.remote_va, request.rkey, request.length))
            self._finish(qp, now)
            return out
        offset, size = qp.offset, min(qp.mtu, request.length - qp.offset)
        last = offset + size == request.length
        payload, cause = self._payload(qp, request, offset, size)
        out = None
        if cause:
            self._left_out(qp)
            qp.failed = cause
        else:
            write = request.op in ("write", "write_imm")
            tracked = request.op != "write"
            out = self._packet(
                qp, "data", OPCODES[qp.kind][request.op], payload, request.solicited and last,
                xp=None if qp.kind == "uc" else (tracked, qp.dest_generation, request.tag, request.seq if tracked else 0,
                                                 request.length, offset),
                reth=((request.remote_va + offset) % (1 << 64), request.rkey, size) if write else None,
                imm=request.imm if request.op in ("send_imm", "write_imm") else None)
        qp.offset += size
        if last:
            self._finish(qp, now)
        return out

    def _payload(self, qp, request, offset, size):
        """(bytes, None), or (None, cause of the error)."""
        if size == 0:
            return b"", None
        if request.inline is not None:
            return request.inline[offset:offset + size], None
        return self._read(qp, request.lkey, request.va + offset, size, None)

    def _read(self, qp, key, va, size, access):
        region = self.regions.get(key)
        if region is None or region.pd != qp.pd or access and access not in region.access \
                or va < region.va or va + size > region.va + region.length:
            return None, "protection"
        try:
            return self.memory.read((va + region.delta) % (1 << 64), size), None
        except IndexError:
            return None, "bus"

    def _answer(self, answer):
        """One packet of the answer to a READ, or None if its payload can't be had."""
        qp, offset = answer.qp, answer.offset
        size = min(qp.mtu, answer.length - offset)
        payload, cause = self._read(qp, answer.rkey, answer.va + offset, size, "remote_read") if size else (b"", None)
        answer.offset += size
        if answer.offset == answer.length:
            answer.open = False
            self._answering.discard(qp)
            self._admit_answers()
        if cause:
            self._left_out(qp)
            return None
        return self._packet(qp, "read_response", READ_RESPONSE, payload, False,
                            xp=(True, qp.dest_generation, answer.tag, answer.seq, answer.length, offset))

    def _admit_answers(self):
        """Answers of one QP follow each other: mixed, each would preempt the other's message at the one who asked."""
        for answer in list(self._later):
            if len(self._answering) == self.answers_at_once:
                return
            if answer.qp not in self._answering:
                self._later.remove(answer)
                self._rotation.append(answer)
                self._answering.add(answer.qp)

    def _drop_answers(self, qp):
        mine = lambda turn: isinstance(turn, Answer) and turn.qp is qp
        self._rotation = deque(turn for turn in self._rotation if not mine(turn))
        self._held = [entry for entry in self._held if not mine(entry[2])]      # sorted lists are heaps, and so is this
        self._held.sort()
        self._later = [answer for answer in self._later if answer.qp is not qp]
        self._answering.discard(qp)
        self._admit_answers()

    def _left_out(self, qp):
        """A packet that was to be sent can't be; the number that it had is not used again."""
        self.counts["send_errors"] += 1
        qp.psn = (qp.psn + 1) % (1 << 24)

    def _packet(self, qp, kind, opcode, payload, solicited, **extensions):
        port = source_port(qp.number & (1 << self.qp_bits) - 1, qp.dest_qpn, qp.psn, qp.log2_paths)
        header = Header(opcode, qp.dest_qpn, qp.psn, solicited, tclass=qp.tclass, source_port=port, **extensions)
        qp.psn = (qp.psn + 1) % (1 << 24)
        charge = PLAIN_FRAME + len(extension_headers(header)) + len(payload)
        return Outgoing(build_frame(self.port, qp.peer, header, payload), qp.number, kind, len(payload), charge)

    def _notification(self, qp):
        header = Header(CNP, qp.dest_qpn, becn=True, tclass=NOTIFICATION_TCLASS,
                        source_port=source_port(qp.number & (1 << self.qp_bits) - 1, qp.dest_qpn))
        return build_frame(self.port, qp.peer, header, bytes(16))

    # -- the life of a message ---------------------------------------------------------------------

    def _look(self, qp, now):
        """Find the next message of the QP that can be sent; those before it that can't be end here."""
        while qp.head < len(qp.requests):
            request = qp.requests[qp.head]
            qp.current = request
            cause = self._wrong(qp, request)
            if cause:
                self._end(qp, "error", cause, 0, now)
                continue
            if request.deadline is not None:
                tick = now // TICK_NS
                qp.deadline = tick + ((request.deadline - tick + (1 << 31)) % (1 << 32) - (1 << 31))
                if qp.deadline <= tick:
                    self._expire(qp, now)
                    continue
                heappush(self._alarms, (qp.deadline, self._next_serial(), qp, qp.head))
            if not qp.waiting:
                qp.waiting = True
                self._rotation.append(qp)
            return

    @staticmethod
    def _wrong(qp, request):
        """What is wrong with a message before it is begun: the cause, or None."""
        if qp.state != "ready":
            return "flushed"
        if request is None:
            return "bus"
        too_long = request.inline is not None and request.length > INLINE_MAX or qp.kind == "uc" and request.length > qp.mtu
        return "length" if too_long or request.op not in OPCODES[qp.kind] else None

    def _finish(self, qp, now):
        request = qp.current
        if qp.failed:
            self._end(qp, "error", qp.failed, 0, now)
        else:
            self._end(qp, "success", "complete", request.length, now, silent=not request.signaled)
        self._look(qp, now)

    def _expire(self, qp, now):
        self.counts["sends_expired"] += 1
        if qp.failed:
            self._end(qp, "error", qp.failed, 0, now)
        else:
            self._end(qp, "partial", "timeout", qp.offset, now)

    def _end(self, qp, status, cause, byte_len, now, silent=False):
        request = qp.current
        if not silent:
            known = request is not None
            self.completions.append(Completion(qp.number, qp.head, request.op if known else None, status, cause, byte_len,
                                               request.length if known else 0, request.tag if known else 0, 0, now))
        qp.head += 1
        qp.current, qp.offset, qp.failed, qp.deadline = None, 0, None, None

    def _next_serial(self):
        self._serial += 1
        return self._serial
