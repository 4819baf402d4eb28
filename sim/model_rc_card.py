"""The card of :mod:`sim.model_card` with transport rc: the ABI around the models of RC and UC."""

from optinic.abi.structs import INLINE_OFFSET, SEND_OP, SEND_WQE
from sim.model_card import MTU_OF, STATE_NAME, ModelCard
from sim.model_tables import ReceiveRing, SendRing
from sim.models.rc_connection import RcRequest
from sim.models.rc_requester import Requester
from sim.models.rc_responder import Responder

__all__ = ["RcModelCard"]

OP_NAME = {number: name for name, number in SEND_OP.items()}
TYPE_NAME = {1: "uc", 2: "rc"}
TIMEOUT_UNIT_NS = 4096


class RcSendRing(SendRing):
    @staticmethod
    def decode(raw):
        w = SEND_WQE.unpack(raw)
        return RcRequest(
            OP_NAME.get(w["opcode"], str(w["opcode"])), w["length"], w["va"], w["lkey"],
            raw[INLINE_OFFSET:] if w["inline"] else None, w["remote_va"], w["rkey"], w["imm"],
            signaled=bool(w["signaled"]), solicited=bool(w["solicited"]),
            operands=(w["va"], w["lkey"] | w["compare_hi"] << 32))


class CardResponder(Responder):
    """Says to the card what it has to say."""

    def __init__(self, card, rules):
        super().__init__(rules, regions=card.regions, memory=card, resources=card.cfg.rc_resources, atomics=card.cfg.rc_atomics)
        self.card = card

    def advance(self, now, jumped=False):
        """Receives have no deadline here."""

    def next_alarm(self):
        return None

    def on_refusal(self, packet, reason):
        self.card.log_refusal(packet, reason)

    def on_mark(self, qp):
        self.card.sender.mark(qp.number, self.card.now)

    def on_acknowledge(self, qp, psn, syndrome):
        self.card.sender.acks.owe(qp.number, psn, qp.msn, syndrome)

    def room_for_answer(self):
        return self.card.sender.waiting_answers < self.card.cfg.read_jobs

    def on_answer(self, qp, psn, *, length=0, va=0, rkey=0, original=None, again=False):
        self.card.counts["reads_served"] += 1
        self.card.sender.answer(qp.number, psn, qp.msn, length=length, va=va, rkey=rkey, original=original, again=again)

    def on_requester(self, qp, packet, now):
        return self.card.sender.take(qp.number, packet, now)

    def on_dead(self, qp):
        self.card.sender.stop(qp.number)


class CardRequester(Requester):
    def __init__(self, card, *sending, **options):
        super().__init__(*sending, **options, read_result=lambda qp, n: qp.results[n], place=card.place_result)
        self.card = card

    def on_answered(self, qp):
        self.card.receiver.answered(qp.number)

    def on_dead(self, qp):
        self.card.receiver.qps[qp.number].dead = True


class RcModelCard(ModelCard):
    def _make_halves(self, rules, sending, options):
        self.receiver = CardResponder(self, rules)
        self.sender = CardRequester(self, *sending, **options)

    def give_completions(self, failed_qpn=None, flushed=False):
        """As of any card, but all that a flush completes is one run."""
        if flushed and (done := self.receiver.completions):
            self.receiver.completions = []
            self._receive_cqe(done[-1], len(done) - 1)
        super().give_completions(failed_qpn, flushed)

    def place_result(self, qp, receive, offset, data, final):
        """What a READ or atomic brings goes into memory; the reason and the cause if it may not."""
        if receive is None:
            return "no_receive", "bus"
        start, end = receive.va + offset, offset + len(data)
        address = None
        if data:
            region = self.regions.get(receive.lkey)
            wrong = "rkey" if region is None else "pd" if region.pd != qp.pd else "access" if "local_write" not in region.access else None
            if wrong:
                return wrong, "protection"
            if start < region.va or start + len(data) > region.va + region.length:
                return "bounds", "protection"
            if end > receive.length:
                return "bounds", "length"
            address = (start + region.delta) % (1 << 64)
        if final and end != receive.length:
            return "bounds", "length"
        if data:
            self.write(address, data)

    def _make_qp(self, index, number, mode, pd, first, expected, limits, remote, sending):
        cfg = self.cfg
        kind = TYPE_NAME.get(mode >> 4 & 3, "uc")
        mtu = min(MTU_OF.get(mode >> 8 & 7, cfg.mtu_max), cfg.mtu_max)
        shared = dict(kind=kind, state=STATE_NAME[mode & 3], pd=pd, mtu=mtu)
        timeout = expected >> 24 & 31
        taking = self.receiver.add_qp(number, **shared, expected=expected & 0xFFFFFF, rnr_timer=limits & 31)
        giving = self.sender.add_qp(
            number, self.now, **shared, first_psn=first & 0xFFFFFF, retry=first >> 24 & 7, rnr_retry=first >> 27 & 7,
            timeout=TIMEOUT_UNIT_NS << timeout if timeout else 0,
            window=min(limits >> 8 & 0xFF or cfg.rc_outstanding, cfg.rc_outstanding),
            dest_qpn=remote & 0xFFFFFF, tclass=sending >> 16 & 0xFF)
        taking.receives = ReceiveRing(self, index, cfg.rq_entries)
        giving.requests = RcSendRing(self, index, cfg.sq_entries)
        giving.results = ReceiveRing(self, (1 << cfg.qp_bits) + index, cfg.rq_entries)
