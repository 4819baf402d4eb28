"""The completion queues of a card: their rings, polling and arming, and the refusal log, which is one of them."""

from collections import Counter, defaultdict

from optinic.abi.structs import CQE
from optinic.abi.verdicts import REASON

from .errors import CardError
from .queues import CompletionRing, QUEUES, expand
from .registers import Registers, low_high, name_of

__all__ = ["CompletionQueues"]


class CompletionQueues(Registers):
    """`_qps`, by row of the card's tables, is what is known of the queue pairs: completions are held against their accounts."""

    def __init__(self, device, cfg=None):
        super().__init__(device, cfg)
        self._qps = {}
        self._forget_completions()

    def _forget_completions(self):
        self._cqs = {}
        self._log, self._refused = None, defaultdict(Counter)

    def qp_index(self, qpn):
        """The QP's row in the card's tables and in the ring arenas: the low bits of the QPN."""
        return qpn & (1 << max(1, (self.num_qps - 1).bit_length())) - 1

    def set_cq(self, index, entries=256, *, vector=0):
        """A completion queue with a new ring of `entries` (a power of two up to 32768) CQEs."""
        if entries < 2 or entries > 32768 or entries & (entries - 1):
            raise ValueError(f"entries={entries} is not a power of two from 2 to 32768")
        if not 0 <= vector < self.num_vectors:
            raise ValueError(f"vector={vector}: the card has {self.num_vectors}")
        addr = self.device.alloc(entries * CQE.size, 4096)
        self.command("cq_set", index, *low_high(addr), entries.bit_length() - 1 | vector << 8 | 1 << 31)
        self._cqs[index] = CompletionRing(index, addr, entries)

    def remove_cq(self, index):
        """After this the card writes no completion there; those that nobody polled are forgotten."""
        self.command("cq_set", index, 0, 0, 0)
        self.free(self._cqs.pop(index).addr)

    def poll(self, index, limit=None):
        """New completions of a CQ, in order, a receive that ended empty before another one as an entry of its own.

        `limit` bounds the CQEs looked at in this call. Tells the card what was consumed.
        """
        cq = self._cqs[index]
        self._collect(cq, limit)
        found, cq.backlog = cq.backlog, []
        return found

    def collect(self, index):
        """Take new completions out of the ring and keep them for the next poll."""
        self._collect(self._cqs[index])

    def _collect(self, cq, limit=None):
        for cqe in self._take(cq, limit):
            qp = self._qps.get(self.qp_index(cqe["qpn"]))
            work = qp.queue(QUEUES[cqe["queue"]]) if qp and qp.qpn == cqe["qpn"] else None
            cq.backlog += expand(cqe, work)

    def _take(self, cq, limit=None):
        start = cq.consumed
        found = cq.take(self.device, limit)
        if cq.consumed != start:
            self.reg_write("CQ_DOORBELL", cq.index << 16 | cq.consumed & 0xFFFF)
        return found

    def waiting_completions(self, index):
        """How many completions wait to be polled."""
        cq = self._cqs[index]
        self._collect(cq)
        return len(cq.backlog)

    def arm(self, index):
        """Ask for an interrupt once there is a completion beyond those consumed."""
        self.reg_write("CQ_DOORBELL", 1 << 31 | index << 16 | self._cqs[index].consumed & 0xFFFF)

    def pending_vectors(self):
        return self.reg_read("IRQ_STATUS")

    def clear_vectors(self, mask):
        self.reg_write("IRQ_CLEAR", mask)

    def wait(self, index, count=1, *, limit_cycles=100_000, step=64):
        """Poll until `count` completions have come or time is up; returns those that have."""
        found, spent = self.poll(index), 0
        while len(found) < count and spent < limit_cycles:
            self.device.run(step)
            spent += step
            found += self.poll(index)
        return found

    # -- refusals, by queue pair ------------------------------------------------------------------------

    def log_refusals(self, index, entries=1024):
        """Have the card log each refused frame of an existing QP in CQ `index`, which then serves nothing else."""
        self.set_cq(index, entries)
        self._log = index
        self.reg_write("REFUSAL_LOG", 1 << 31 | index)

    def refusals(self, qpn=None):
        """How often frames were refused, by QP and reason: {QPN: {reason: count}}, or {reason: count} of one QP.

        Exact as long as the log had room: counter ``log_overrun`` says how many entries were lost because this was called
        too seldom. The card's own counters by reason are exact in any case."""
        if self._log is None:
            raise CardError("refusals are not logged; call log_refusals(cq) first")
        for cqe in self._take(self._cqs[self._log]):
            self._refused[cqe["qpn"]][name_of(REASON, cqe["imm"])] += 1
        if qpn is None:
            return {number: dict(counts) for number, counts in self._refused.items()}
        return dict(self._refused.get(qpn, {}))
