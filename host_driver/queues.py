"""Rings in host memory: the account of what was posted to one, and the completions that come out of another."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from optinic.abi.structs import CAUSE, CQE, OPCODE, STATUS

from .errors import CardError
from .registers import name_of

__all__ = ["Completion", "WorkQueue", "CompletionRing", "expand", "QUEUES"]

QUEUES = ("receive", "send")        # as numbered in a CQE


@dataclass(frozen=True)
class Completion:
    """The end of one posted receive or send (`queue` says which). Names as in `optinic.abi.structs`; `index` counts the QP's
    receives, or its sends, from 0."""
    qpn: int
    index: int
    opcode: str
    status: str
    cause: str
    byte_len: int = 0
    msg_len: int = 0
    imm: int = 0
    tag: int = 0
    time_ns: int = 0
    queue: str = "receive"
    wr_id: Any = None


class WorkQueue:
    """What was posted to one ring of one QP and has not completed, oldest first. The card ends everything in order.

    `ends_in`: the CompletionRing where it ends, or None if the driver knows none."""

    def __init__(self, qpn, kind, slots, ends_in=None):
        self.qpn, self.kind, self.slots, self.ends_in = qpn, kind, slots, ends_in
        self.posted = self.completed = 0
        self.pending = deque()          # (wr_id, silent: a success has no completion)
        self.announced = 0              # how many were posted when the last one was that a CQE will come of in any case

    @property
    def outstanding(self):
        return self.posted - self.completed

    @property
    def full(self):
        return self.outstanding >= self.slots

    def add(self, wr_id, silent=False, announce=True):
        """Account for one more; its index."""
        self.pending.append((wr_id, silent))
        self.posted += 1
        if announce:
            self.announced = self.posted
        if self.ends_in:
            self.ends_in.due += 1
        return self.posted - 1

    def forget(self):
        """What is outstanding will have no completion any more; the wr_ids."""
        if self.ends_in:
            self.ends_in.due -= self.outstanding
        self.completed = self.posted
        forgotten = [wr_id for wr_id, _ in self.pending]
        self.pending.clear()
        return forgotten

    def finish(self, number, bits, skipped):
        """A CQE for the one whose index ends in `number` (its low `bits` bits) and for `skipped` just before it: their
        (index, wr_id, silent). What lies before those is done too: it had asked for no completion."""
        last = self.completed + ((number - self.completed) & (1 << bits) - 1)
        first = last - skipped
        if last >= self.posted or first < self.completed or not all(self.pending[i][1] for i in range(first - self.completed)):
            due = f"{self.completed} was due" if self.pending else "none was posted"
            before = f" and the {skipped} before it" if skipped else ""
            raise CardError(f"QP {self.qpn:#x}: completion of {self.kind} {number}{before}, where {due}")
        for _ in range(first - self.completed):
            self.pending.popleft()
        if self.ends_in:
            self.ends_in.due -= last + 1 - self.completed
        self.completed = last + 1
        return [(index, *self.pending.popleft()) for index in range(first, last + 1)]


class CompletionRing:
    """The ring of one completion queue. `backlog` has completions that were taken out of it before somebody polled for them;
    `due` is how many receives and sends have yet to come through it."""

    def __init__(self, index, addr, entries):
        self.index, self.addr, self.entries = index, addr, entries
        self.consumed = self.due = 0
        self.backlog = []

    def _fresh(self, raw, count):
        return raw[-1] & 1 == 1 - count // self.entries % 2 and raw[-2]

    def waiting(self, device):
        """Whether the card has written a CQE that nobody has taken."""
        slot = self.addr + self.consumed % self.entries * CQE.size
        return bool(self._fresh(device.read(slot, CQE.size), self.consumed))

    def take(self, device, limit=None):
        """Its new CQEs, as dictionaries, at most `limit`. The card still has to be told of them."""
        found, room = [], self.entries if limit is None else min(limit, self.entries)
        while room:
            slot = self.consumed % self.entries
            n = min(room, self.entries - slot, 32)
            chunk = device.read(self.addr + slot * CQE.size, n * CQE.size)
            pieces = [chunk[i:i + CQE.size] for i in range(0, len(chunk), CQE.size)]
            fresh = next((i for i, raw in enumerate(pieces) if not self._fresh(raw, self.consumed)), n)
            if fresh and getattr(device, "live_memory", False):
                # The phase byte is copied last: what stands before it may be from before the card wrote it. Not so now.
                chunk = device.read(self.addr + slot * CQE.size, fresh * CQE.size)
            found += [CQE.unpack(chunk[i * CQE.size:(i + 1) * CQE.size]) for i in range(fresh)]
            self.consumed += fresh
            room = room - n if fresh == n else 0
        return found


def expand(cqe, work):
    """The completions that one CQE stands for: those skipped ended in the same way as its own, and empty. `work` is the QP's
    WorkQueue for it, None if there is no such QP any more."""
    status, cause = name_of(STATUS, cqe["status"]), name_of(CAUSE, cqe["cause"])
    number, skipped, queue = cqe["wqe_index"], cqe["skipped"], QUEUES[cqe["queue"]]
    if work is None:
        ended = [((number - i) % (1 << 32), None, False) for i in range(skipped, -1, -1)]
    else:
        ended = work.finish(number, 16 if queue == "send" else 32, skipped)
    common = dict(qpn=cqe["qpn"], status=status, cause=cause, time_ns=cqe["time"], queue=queue)
    found = [Completion(index=index % (1 << 32), opcode="none", wr_id=wr_id, **common) for index, wr_id, _ in ended[:-1]]
    index, wr_id, silent = ended[-1]
    if not (silent and status == "success"):
        found.append(Completion(index=index % (1 << 32), opcode=name_of(OPCODE, cqe["opcode"]), byte_len=cqe["byte_len"],
                                msg_len=cqe["msg_len"], imm=cqe["imm"], tag=cqe["tag"], wr_id=wr_id, **common))
    return found
