"""The packets that a card of transport rc sends: requests of RC queue pairs, UC messages, answers to READs and atomics of peers,
and acknowledges. After IBTA volume 1, chapter 9; one packet at a time, as :mod:`.send`, of which it takes the rotation, the pacing
and the answers' order. What peers say to it is :mod:`.rc_requester`'s.
"""

from .outgoing import Header, build_frame, extension_headers, source_port
from .rc_acks import Acknowledges
from .rc_connection import Begun, Connection, RcAnswer
from .rc_wire import ACK, PSNS, ahead, packets_of
from .send import INLINE_MAX, PLAIN_FRAME, Completion, Outgoing, SendModel

__all__ = ["ATOMICS", "ATOMIC_ACK", "RESPONSES", "RcSending"]

#: opcode of FIRST, MIDDLE, LAST, ONLY
OPCODES = {"send": (0x00, 0x01, 0x02, 0x04), "send_imm": (0x00, 0x01, 0x03, 0x05), "send_inv": (0x00, 0x01, 0x16, 0x17),
           "write": (0x06, 0x07, 0x08, 0x0A), "write_imm": (0x06, 0x07, 0x09, 0x0B)}
READ, RESPONSES, ATOMIC_ACK, ATOMICS = 0x0C, (0x0D, 0x0E, 0x0F, 0x10), 0x12, {"compare_swap": 0x13, "fetch_add": 0x14}
ACK_EVERY = 64          # packets with such PSNs ask for an acknowledge inside a message too


class RcSending(SendModel):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.acks = Acknowledges()

    def on_dead(self, qp):
        """The queue pair has failed."""

    def on_answered(self, qp):
        """A READ or atomic of the peer is answered."""

    # -- the host's side ----------------------------------------------------------------------------

    def add_qp(self, number, now=0, *, first_psn=0, **context):
        self.remove_qp(number)
        qp = self.qps[number] = Connection(number, **context, psn=first_psn, una=first_psn, top=first_psn)
        if self.pacer:
            self.pacer.reset(number, now)
        return qp

    def remove_qp(self, number):
        super().remove_qp(number)
        self.acks.reset(number)

    def flush(self, number, now):
        qp = self.qps[number]
        self._stop(qp)
        super().flush(number, now)
        self.acks.reset(number)

    def stop(self, number):
        """The responder of the QP has failed."""
        self._stop(self.qps[number])

    def _stop(self, qp):
        qp.dead, qp.current, qp.timer, qp.rest = True, None, None, None

    def answer(self, number, psn, msn, *, length, va, rkey, original, again):
        self.acks.answering(number, again)
        self._later.append(RcAnswer(self.qps[number], va, rkey, length, 0, 0, psn=psn, msn=msn, original=original))
        self._admit_answers()

    def ready(self, now):
        return bool(self.acks) or super().ready(now)

    # -- sending ------------------------------------------------------------------------------------

    def next_frame(self, now):
        self.advance(now)
        if owed := self.acks.take():
            number, (psn, msn, syndrome) = owed
            self.counts["acks_sent"] += 1
            self.counts["naks_sent"] += syndrome >= 0x20
            return self._count(self._frame(self.qps[number], "ack", 0x11, psn, aeth=(syndrome, msn)))
        return super().next_frame(now)

    def _look(self, qp, now):
        """Whether the request that is next may be sent."""
        qp.current = None
        if qp.state != "ready":         # posted too late
            while qp.kind == "uc" and qp.head < len(qp.requests):      # an RC QP's, at the next flush
                qp.current = qp.requests[qp.head]
                self._end(qp, "error", "flushed", 0, now)
            return
        if qp.dead or qp.rest is not None or qp.broken or qp.index >= len(qp.requests):
            return
        if qp.kind == "rc" and qp.index - qp.head >= qp.window:
            return
        request = qp.requests[qp.index]
        cause = "bus" if request is None else self._impossible(qp, request)
        qp.current = request
        if cause:
            self._break(qp, cause, now)
            return
        if not qp.waiting:
            qp.waiting = True
            self._rotation.append(qp)

    @staticmethod
    def _impossible(qp, request):
        known = request.op in OPCODES or qp.kind == "rc" and (request.op == "read" or request.op in ATOMICS)
        if not known or qp.kind == "uc" and request.op == "send_inv" or request.inline is not None and request.length > INLINE_MAX:
            return "length"
        return None

    def _break(self, qp, cause, now):
        """The next request can't be sent. Those before it end first. On a UC QP it is only this one that fails."""
        if qp.kind == "uc":
            qp.index += 1
            self._end(qp, "error", cause, 0, now)
            self._look(qp, now)
            return
        qp.broken, qp.current = (qp.index, cause), None
        self._settle(qp, now)

    def _settle(self, qp, now):
        if qp.broken and qp.broken[0] == qp.head and not qp.dead:
            self._fatal(qp, qp.broken[1], now)

    def _send(self, qp, now):
        request, offset, psn = qp.current, qp.offset, qp.psn
        plain = request.op in OPCODES
        size = min(qp.mtu, request.length - offset) if plain else 0
        last = not plain or offset + size == request.length
        payload, cause = self._payload(qp, request, offset, size)
        if cause:
            self.counts["send_errors"] += 1
            if qp.kind == "rc":
                self._begin(qp, request, psn)       # what comes of a PSN of it is taken for an answer to it
                self._break(qp, cause, now)
                return None
            qp.spoiled = cause          # the rest goes on: its PSNs tell the peer that something is missing
        if qp.kind == "rc":
            begun = self._begin(qp, request, psn)
        fields = {}
        if plain:
            opcode = OPCODES[request.op][3 if last and not offset else 2 if last else 1 if offset else 0]
            if request.op in ("write", "write_imm") and not offset:
                fields["reth"] = request.remote_va, request.rkey, request.length
            if last and request.op in ("send_imm", "write_imm", "send_inv"):
                fields["imm"] = request.imm
        elif request.op == "read":
            opcode, fields["reth"] = READ, ((request.remote_va + offset) % (1 << 64), request.rkey, request.length - offset)
        else:
            opcode = ATOMICS[request.op]
            fields["atomic"] = request.remote_va, request.rkey, *request.operands
        if qp.kind == "uc":
            opcode |= 0x20
        else:
            fields["ack_req"] = last or psn % ACK_EVERY == ACK_EVERY - 1
        found = None if cause else self._frame(qp, "data" if plain else "read_request", opcode, psn, payload, request.solicited and last, **fields)
        qp.psn = (begun.first + begun.count if last and qp.kind == "rc" else psn + 1) % PSNS
        qp.index, qp.offset = (qp.index + 1, 0) if last else (qp.index, offset + size)
        if qp.kind == "uc":
            if last and qp.spoiled:
                self._end(qp, "error", qp.spoiled, 0, now)
                qp.spoiled = None
            elif last:
                self._end(qp, "success", "complete", request.length, now, silent=not request.signaled)
        else:
            if ahead(qp.psn, qp.una) > ahead(qp.top, qp.una):
                qp.top = qp.psn
            if qp.timer is None:
                self._start_timer(qp, now)
        if last:
            self._look(qp, now)
        return found

    def _begin(self, qp, request, psn):
        """The account of the request that is sent now."""
        at = qp.index - qp.head
        if at == len(qp.begun):
            result = None
            if request.op not in OPCODES:
                result, qp.reads = qp.reads, qp.reads + 1
            count = packets_of(request.length, qp.mtu) if request.op not in ATOMICS else 1
            qp.begun.append(Begun(qp.index, request, psn, count, result))
        return qp.begun[at]

    def _frame(self, qp, kind, opcode, psn, payload=b"", solicited=False, **extensions):
        port = source_port(qp.number & (1 << self.qp_bits) - 1, qp.dest_qpn)
        header = Header(opcode, qp.dest_qpn, psn, solicited, tclass=qp.tclass, source_port=port, **extensions)
        charge = PLAIN_FRAME + len(extension_headers(header)) + len(payload)
        return Outgoing(build_frame(self.port, qp.peer, header, payload), qp.number, kind, len(payload), charge)

    def _answer(self, answer):
        """One packet of the answer to a READ or atomic, or None if its payload can't be had."""
        qp, offset = answer.qp, answer.offset
        atomic = answer.original is not None
        size = 0 if atomic else min(qp.mtu, answer.length - offset)
        payload, cause = self._read(qp, answer.rkey, answer.va + offset, size, "remote_read") if size else (b"", None)
        psn = (answer.psn + offset // qp.mtu) % PSNS
        answer.offset += size
        last = atomic or answer.offset == answer.length
        if last:
            answer.open = False
            self._answering.discard(qp)
            self._admit_answers()
            self.acks.answered(qp.number)
            self.on_answered(qp)
        if cause:
            self.counts["send_errors"] += 1
            return None
        opcode = ATOMIC_ACK if atomic else RESPONSES[3 if last and not offset else 2 if last else 1 if offset else 0]
        return self._frame(qp, "read_response", opcode, psn, payload, aeth=None if opcode == RESPONSES[1] else (ACK, answer.msn),
                           original=answer.original)

    def _fatal(self, qp, cause, now):
        self.completions.append(Completion(qp.number, qp.head, None, "fatal", cause, 0, 0, 0, 0, now))
        qp.head += 1
        self._stop(qp)
        self.on_dead(qp)
