"""What a card of transport rc makes of what its peers say to its requests: acknowledges, NAKs, responses, or nothing for too long.
To go back is to send again from `una` on, the first PSN that isn't acknowledged, into a message if need be.
"""

from .nic import Verdict
from .rc_sending import ATOMIC_ACK, RESPONSES, RcSending
from .rc_wire import PSNS, RNR_TIMES_NS, ahead
from .send import Completion

__all__ = ["Requester"]

FOR_EVER = 7            # as RNR retry count
REFUSALS = {0x61: "remote_invalid", 0x62: "remote_access", 0x63: "remote_operation"}


class Requester(RcSending):
    def __init__(self, *args, read_result, place, **options):
        """`place(qp, receive, offset, data, final)` puts what a READ or atomic brings where `read_result(qp, n)` says; returns the
        reason and the cause if it can't."""
        super().__init__(*args, **options)
        self._read_result, self._place = read_result, place

    # -- time ---------------------------------------------------------------------------------------

    def next_alarm(self):
        return min((t for qp in self.qps.values() for t in (qp.timer, qp.rest) if t is not None), default=None)

    def advance(self, now):
        for qp in self.qps.values():
            if qp.rest is not None and qp.rest <= now:
                qp.rest = None
                self._go_back(qp, now)
            elif qp.timer is not None and qp.timer <= now:
                self.counts["ack_timeouts"] += 1
                self._retry(qp, now)

    def _start_timer(self, qp, now):
        waits = qp.timeout and qp.una != qp.top and not qp.dead and qp.rest is None
        qp.timer = now + qp.timeout if waits else None

    # -- what the peer says -------------------------------------------------------------------------

    def take(self, number, packet, now):
        """An acknowledge or a response has come: a Verdict, or why it was dropped."""
        qp = self.qps[number]
        before = qp.head
        found = (self._response if packet.response or packet.op == ATOMIC_ACK else self._acknowledge)(qp, packet, now)
        self._report(qp, before, now)
        self._settle(qp, now)
        if qp.current is None:
            self._look(qp, now)
        return found

    def _acknowledge(self, qp, packet, now):
        """The highest bit of a syndrome is reserved, and ignored. Kind 2 is reserved: it tells no more than its PSN."""
        kind, psn = packet.syndrome >> 5 & 3, packet.psn
        consumed = Verdict("consumed", qpn=qp.number, kind="none")
        if ahead(psn, qp.una) >= PSNS // 2 + (kind != 0):
            return consumed             # old news
        if self._unsent(qp, psn, (psn + (kind == 0)) % PSNS):
            return "psn"
        found = self._advance_to(qp, (psn + (kind == 0)) % PSNS, now)
        if found == "missing":
            self._implied(qp, now)
        elif found == "inside" or kind in (0, 2):
            pass
        elif kind == 3 and packet.syndrome & 31:
            self._fatal(qp, REFUSALS.get(packet.syndrome & 0x7F, "remote_operation"), now)
        elif qp.rest is not None:
            pass                        # it goes back anyhow, when the peer is ready
        elif kind == 1:
            self._not_ready(qp, packet.syndrome & 31, now)
        else:
            self._retry(qp, now)
        return consumed

    @staticmethod
    def _unsent(qp, psn, end):
        """It can't be an answer to anything that was sent. A READ is not acknowledged but by what was sent behind it; how much that
        is, is not looked at: the answer to the READ is missing, and must be asked for before."""
        sent = 0
        for begun in qp.begun:
            sent = ahead(begun.first + begun.count, qp.una)
            if ahead(end, qp.una) < sent:
                return False
            if begun.result is not None:
                return begun is qp.begun[-1]
        return ahead(psn, qp.una) >= sent

    def _response(self, qp, packet, now):
        """What one READ or atomic brings is not told apart from what another does, but by its PSN: its lengths must fit."""
        if ahead(packet.psn, qp.una) >= PSNS // 2 or self._unsent(qp, packet.psn, packet.psn):
            return "psn"
        found = self._advance_to(qp, packet.psn, now)
        begun = qp.begun[0]
        if found != "all" or packet.psn != qp.una:
            self._implied(qp, now)
            return "psn"
        if begun.result is None:
            return "psn"
        final = begun.got == begun.count - 1
        data = packet.payload
        if (packet.op in RESPONSES[2:] + (ATOMIC_ACK,)) != final or (len(data) > qp.mtu if final else len(data) != qp.mtu):
            self._fatal(qp, "remote_invalid", now)
            return "psn"
        refused = self._place(qp, self._read_result(qp, begun.result), begun.got * qp.mtu, data, final)
        if refused:
            reason, cause = refused
            self._fatal(qp, cause, now)
            return reason
        begun.got += 1
        qp.una = (qp.una + 1) % PSNS
        if final:
            qp.begun.popleft()
            qp.head += 1
        self._progress(qp, now)
        return Verdict("placed", qpn=qp.number, bytes=len(data))

    def _advance_to(self, qp, end, now):
        """All before PSN `end` has been received: "all". What a READ or atomic before it brings can't have been, so that is "missing";
        or `end` is "inside" of one, which says nothing of it."""
        before, found = qp.una, "all"
        while qp.begun and ahead(end, qp.una) < PSNS // 2 and end != qp.una:
            begun = qp.begun[0]
            if begun.result is not None:
                found = "missing" if ahead(end, begun.first) >= begun.count else "inside"
                break
            begun.got = min(begun.count, ahead(end, begun.first))
            qp.una = (begun.first + begun.got) % PSNS
            if begun.got < begun.count:
                break
            qp.begun.popleft()
            qp.head += 1
        if qp.una != before:
            self._progress(qp, now)
        return found

    def _progress(self, qp, now):
        qp.retries = qp.rnr_retries = 0
        qp.gone_back = False
        if ahead(qp.psn, qp.una) >= PSNS // 2:      # what is acknowledged need not be sent again
            self._from_una(qp)
        self._start_timer(qp, now)

    def _report(self, qp, before, now):
        """One completion for what has completed since `before`; a failed one has its own behind it."""
        done = qp.head - before
        if done > 0:
            at = len(self.completions) - (1 if qp.dead else 0)
            last = qp.head - 1 - (1 if qp.dead else 0)
            if last >= before:
                self.completions.insert(at, Completion(qp.number, last, None, "success", "complete", 0, 0, 0, last - before, now))

    # -- going back ---------------------------------------------------------------------------------

    def _implied(self, qp, now):
        """What came says that something is missing. It is asked for once: what else was under way says so too."""
        if not qp.gone_back and qp.rest is None:
            self._retry(qp, now)

    def _retry(self, qp, now):
        if qp.retries == qp.retry:
            self._fatal(qp, "retry", now)
            return
        qp.retries += 1
        self._go_back(qp, now)

    def _not_ready(self, qp, code, now):
        self.counts["rnr_waits"] += 1
        if qp.rnr_retry != FOR_EVER and qp.rnr_retries == qp.rnr_retry:
            self._fatal(qp, "rnr_retry", now)
            return
        qp.rnr_retries += 1
        qp.current, qp.timer, qp.rest = None, None, now + RNR_TIMES_NS[code]

    def _go_back(self, qp, now):
        self.counts["go_backs"] += 1
        qp.gone_back, qp.broken = True, None
        self._from_una(qp)
        self._start_timer(qp, now)
        self._look(qp, now)

    def _from_una(self, qp):
        qp.index, qp.psn = qp.head, qp.una
        qp.offset = qp.begun[0].got * qp.mtu if qp.begun else 0
        qp.current = None
