"""The completion queues of a card: their rings, polling and arming, and the refusal log, which is one of them."""

from collections import Counter, defaultdict
from dataclasses import replace

from optinic.abi.registers import ACCESS
from optinic.abi.structs import CQE
from optinic.abi.verdicts import REASON

from .errors import CardError
from .queues import CompletionRing, QUEUES, expand
from .registers import Registers, low_high, name_of
from .work_requests import ATOMIC, RESULT_BYTES

__all__ = ["CompletionQueues"]

REMOTE_RIGHTS = sum(bit for name, bit in ACCESS.items() if name.startswith("remote"))


class CompletionQueues(Registers):
    """`_qps`, by row of the card's tables, is what is known of the queue pairs, `_regions`, by key, of memory: completions are
    held against their accounts. One that can't be true ends what is believed of its queue pair, and of no other: the next poll of
    that CQ raises CardError, once, and goes on afterwards. What a completion asks the driver to do is done when it is taken out of
    its ring: a queue pair of type rc that has failed is flushed (unless `flush_failed` is False), a key that the peer invalidates is
    removed, what an atomic brought is turned into the host's byte order."""

    def __init__(self, device, cfg=None):
        super().__init__(device, cfg)
        self._qps, self._regions = {}, {}
        self.flush_failed = True
        self._forget_completions()

    def _forget_completions(self):
        self._cqs = {}
        self._beside = defaultdict(set)     # CQ: those that queue pairs of type rc have beside it: a failure may be told in either
        self._log, self._refused = None, defaultdict(Counter)

    def qp_index(self, qpn):
        """The QP's row in the card's tables and in the ring arenas: the low bits of the QPN."""
        return qpn & self.qp_rows - 1

    @property
    def qp_rows(self):
        """Rows that the ring arenas are laid out for: num_qps, up to a power of two."""
        return 1 << max(1, (self.num_qps - 1).bit_length())

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
        for other in self._beside.pop(index, ()):
            self._beside[other].discard(index)

    def poll(self, index, limit=None):
        """New completions of a CQ, in order, a receive that ended empty before another one as an entry of its own.

        `limit` bounds the CQEs looked at in this call. Tells the card what was consumed. Raises CardError for a queue pair whose
        completion can't be; no other completion is lost by that.
        """
        cq = self._cqs[index]
        self.look_beside(index)
        self._collect(cq, limit)
        while cq.contradicted:
            qp = cq.contradicted.pop(0)
            if self._qps.get(self.qp_index(qp.qpn)) is qp:      # a life that has ended meanwhile is no matter any more
                raise CardError(qp.contradiction)
        found, cq.backlog = cq.backlog, []
        return found

    def collect(self, index):
        """Take new completions out of the ring and keep them for the next poll."""
        self.look_beside(index)
        self._collect(self._cqs[index])

    def look_beside(self, index):
        """See whether other CQs tell of the failure of a queue pair that has completions in this one."""
        for other in self._beside.get(index, ()):
            self._collect(self._cqs[other])

    def _collect(self, cq, limit=None):
        failed = []
        for cqe in self._take(cq, limit):
            qp = self._qps.get(self.qp_index(cqe["qpn"]))
            if qp and qp.contradiction:
                continue
            try:
                if qp and qp.qpn != cqe["qpn"]:     # what a life before this one had in the ring was taken out when it ended
                    raise CardError(f"QP {qp.qpn:#x}: a completion in its row of the card's tables is of QP {cqe['qpn']:#x}, which there "
                                    "isn't; nothing more is taken from this life of the QP: end it, and start a new one")
                found = expand(cqe, qp and qp.queue(QUEUES[cqe["queue"]]), self._turn)
            except CardError as error:
                qp.contradiction = str(error)
                cq.contradicted.append(qp)
                continue
            if qp and found and found[-1].status == "fatal" and qp.failure is None:
                qp.failure = found[-1]
                failed.append(qp)
            if found and found[-1].opcode == "send_inv" and found[-1].queue == "receive" and found[-1].status == "success":
                found[-1] = self._invalidate(found[-1], qp)
            cq.backlog += found
        for qp in failed:
            self._failed(qp)

    def _failed(self, qp):
        """The card has stopped a queue pair of type rc; what is posted to it ends as flushed."""
        if self.flush_failed and qp.state != "error":
            self.command("qp_flush", *qp.arguments("error"))
            qp.state = "error"

    def _turn(self, posted):
        """What an atomic found has come as it is on the wire."""
        if posted.opcode in ATOMIC and posted.result >= 0:
            self.device.write(posted.result, self.device.read(posted.result, RESULT_BYTES)[::-1])

    def _invalidate(self, completion, qp):
        """Only a key of the queue pair's own domain, and one that peers may use at all."""
        region = self._regions.get(completion.imm)
        if qp is None or region is None or region[3] & 0xFFFF != qp.pd or not region[3] >> 16 & REMOTE_RIGHTS:
            return completion
        self.remove_region(completion.imm)
        return replace(completion, invalidated=completion.imm)

    def _take(self, cq, limit=None):
        start = cq.consumed
        found = cq.take(self.device, limit)
        if cq.consumed != start:
            self.reg_write("CQ_DOORBELL", cq.index << 16 | cq.consumed & 0xFFFF)
        return found

    def waiting_completions(self, index):
        """How many completions wait to be polled."""
        self.collect(index)
        return len(self._cqs[index].backlog)

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
