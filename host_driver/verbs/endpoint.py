"""A queue pair of the card behind one of verbs, or behind its READs; and what becomes of the work that was posted to one."""

from dataclasses import dataclass
from typing import Any

from .wr import wc_of

__all__ = ["Endpoint", "Work", "Read", "ReadRequest"]


class Endpoint:
    """One QPN, its generation, and the queue pair of the card by that number while there is one."""

    def __init__(self, context, type, pd, cq, send_cq):
        self.context, self.type, self.pd = context, type, pd
        self.cqs = (cq, send_cq)
        self.qpn = context.numbers.qpn()
        self.generation = context.numbers.generation(self.qpn)
        self.psn = context.numbers.psn()        #: of the first packet, with transport rc
        self.exists = False

    @property
    def failure(self):
        """The completion by which the card has given up on it, else None."""
        return self.context.card.failure(self.qpn) if self.exists else None

    def set(self, state, **more):
        cq, send_cq = self.cqs
        self.context.card.create_qp(self.qpn, type=self.type, state=state, pd=self.pd.handle, cq=cq.index, send_cq=send_cq.index,
                                    generation=self.generation, **more)
        self.exists = True

    def flush(self):
        if self.exists:
            self.context.card.flush_qp(self.qpn)

    def end_life(self):
        """What was posted is forgotten; the next life has another generation."""
        if self.exists:
            self.context.card.destroy_qp(self.qpn)
            self.exists = False
            self.generation, self.psn = self.context.numbers.generation(self.qpn), self.context.numbers.psn()

    def release(self):
        self.end_life()
        self.context.numbers.free_qpn(self.qpn)

    def work(self, queue):
        """The card's account of one of its queues, None if the card has no such queue pair now."""
        return self.context.card._qp(self.qpn).queue(queue) if self.exists else None


@dataclass
class Work:
    """A work request on its way. `sent` is the card's name of a send, None for a receive; `limited`: it has a deadline."""
    qp: Any
    wr_id: Any
    sent: str = None
    signaled: bool = True
    limited: bool = False

    def end(self, completion):
        """The WCs that a completion of the card makes."""
        self.qp._ended(completion.queue, self.qp._main.work(completion.queue), completion.time_ns)
        return [wc_of(completion, self.wr_id, self.qp.qp_num, self.sent)]


@dataclass
class Read(Work):
    """The receive, on the companion, of the answer to a READ. `failed`: its request could not be sent, and its WC said so."""
    failed: bool = False

    def end(self, completion):
        self.qp._ended("read", self.qp._reads.work("receive"), completion.time_ns)
        if self.failed or completion.status == "success" and not self.signaled:
            return []
        return [wc_of(completion, self.wr_id, self.qp.qp_num, self.sent)]


@dataclass
class ReadRequest:
    """The packet that asks for it. That it went out is nobody's concern; what was flushed or late ends by its receive."""
    read: Read

    def end(self, completion):
        if completion.status == "success" or completion.cause in ("flushed", "timeout"):
            return []
        self.read.failed = True
        return [wc_of(completion, self.read.wr_id, self.read.qp.qp_num, "read")]
