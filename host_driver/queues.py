"""Rings in host memory: the account of what was posted to one, and the completions that come out of another."""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from optinic.abi.structs import CAUSE, CQE, FATAL, OPCODE, STATUS

from .errors import CardError
from .registers import name_of

__all__ = ["Completion", "WorkQueue", "CompletionRing", "expand", "QUEUES"]

QUEUES = ("receive", "send")        # as numbered in a CQE


@dataclass(frozen=True)
class Completion:
    """The end of one posted receive or send (`queue` says which). Names as in `optinic.abi.structs`; `index` counts the QP's
    receives, or its sends, from 0.

    Transport rc: with status fatal the QP has failed, for the `cause` of FATAL. Opcode "event" is the end of nothing that was
    posted: a request of the peer was refused, and the QP has failed by that. `invalidated` is the key that a SEND with
    invalidate has closed."""
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
    invalidated: int = None


class Posted(NamedTuple):
    """What the driver remembers of a work request until it ends."""
    wr_id: Any
    silent: bool = False        # a success has no completion
    opcode: str = None          # of a send
    length: int = 0
    result: int = None          # READ and atomics: bus address where the result goes, -1 if the driver doesn't know it


class WorkQueue:
    """What was posted to one ring of one QP and has not completed, oldest first. The card ends everything in order.

    `ends_in`: the CompletionRing where it ends, or None if the driver knows none. `whole`: every one is in a CQE, be it with others
    (sends of type rc), so that no CQE stands for those before it silently."""

    def __init__(self, qpn, kind, slots, ends_in=None, whole=False):
        self.qpn, self.kind, self.slots, self.ends_in, self.whole = qpn, kind, slots, ends_in, whole
        self.posted = self.completed = 0
        self.pending = deque()          # of Posted
        self.results = 0                # how many of them bring a result
        self.announced = 0              # how many were posted when the last one was that a CQE will come of in any case

    @property
    def outstanding(self):
        return self.posted - self.completed

    @property
    def full(self):
        return self.outstanding >= self.slots

    def add(self, wr_id, silent=False, announce=True, **more):
        """Account for one more; its index. `more`: of Posted."""
        self.pending.append(Posted(wr_id, silent, **more))
        self.results += self.pending[-1].result is not None
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
        self.completed, self.results = self.posted, 0
        forgotten = [posted.wr_id for posted in self.pending]
        self.pending.clear()
        return forgotten

    def finish(self, number, bits, skipped):
        """A CQE for the one whose index ends in `number` (its low `bits` bits) and for `skipped` just before it: their
        (index, Posted). What lies before those is done too: it had asked for no completion."""
        last = self.completed + ((number - self.completed) & (1 << bits) - 1)
        first = last - skipped
        if last >= self.posted or first < self.completed or first > self.completed and self.whole \
                or not all(self.pending[i].silent for i in range(first - self.completed)):
            due = f"{self.completed} was due" if self.pending else "none was posted"
            before = f" and the {skipped} before it" if skipped else ""
            raise CardError(f"QP {self.qpn:#x}: completion of {self.kind} {number}{before}, where {due}; the card has lost count, and "
                            "nothing more is taken from this life of the QP: end it, and start a new one")
        for _ in range(first - self.completed):
            self.pending.popleft()
        if self.ends_in:
            self.ends_in.due -= last + 1 - self.completed
        self.completed = last + 1
        ended = [(index, self.pending.popleft()) for index in range(first, last + 1)]
        self.results -= sum(posted.result is not None for _, posted in ended)
        return ended


class CompletionRing:
    """The ring of one completion queue. `backlog` has completions that were taken out of it before somebody polled for them, and
    `contradicted` the queue pairs of whom one could not be true, until somebody is told; `due` is how many receives and sends have
    yet to come through it."""

    def __init__(self, index, addr, entries):
        self.index, self.addr, self.entries = index, addr, entries
        self.consumed = self.due = 0
        self.backlog, self.contradicted = [], []

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


def expand(cqe, work, arrived=lambda posted: None):
    """The completions that one CQE stands for. `work` is the QP's WorkQueue for it, None if there is no such QP any more. Those
    skipped ended in the same way as its own, and empty; of sends of type rc the driver knows better: see `expand_run`."""
    status, opcode = name_of(STATUS, cqe["status"]), name_of(OPCODE, cqe["opcode"])
    cause = name_of(FATAL if status == "fatal" else CAUSE, cqe["cause"])
    number, skipped, queue = cqe["wqe_index"], cqe["skipped"], QUEUES[cqe["queue"]]
    common = dict(qpn=cqe["qpn"], status=status, cause=cause, time_ns=cqe["time"], queue=queue)
    if opcode == "event":
        return [Completion(index=number, opcode=opcode, **common)]
    if work is None:
        ended = [((number - i) % (1 << 32), Posted(None)) for i in range(skipped, -1, -1)]
    else:
        ended = work.finish(number, 16 if queue == "send" else 32, skipped)
        if work.whole:
            return expand_run(ended, common, arrived)
    found = [Completion(index=index % (1 << 32), opcode="none", wr_id=posted.wr_id, **common) for index, posted in ended[:-1]]
    index, posted = ended[-1]
    if not (posted.silent and status == "success"):
        found.append(Completion(index=index % (1 << 32), opcode=opcode, byte_len=cqe["byte_len"], msg_len=cqe["msg_len"],
                                imm=cqe["imm"], tag=cqe["tag"], wr_id=posted.wr_id, **common))
    return found


def expand_run(ended, common, arrived):
    """One CQE for a run of sends of type rc, `ended`: a completion for each that asked for one, and for each that went wrong.
    What was posted is what they say. `arrived` is called with each Posted whose result is there."""
    good, found = common["status"] == "success", []
    for index, posted in ended:
        if good and posted.result is not None:
            arrived(posted)
        if not (good and posted.silent):
            found.append(Completion(index=index % (1 << 32), opcode=posted.opcode, byte_len=posted.length if good else 0,
                                    msg_len=posted.length, wr_id=posted.wr_id, **common))
    return found
