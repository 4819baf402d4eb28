"""The card as its registers and rings present it: commands, posting, polling. What every driver is built on.

A *device* is whatever reaches the card; it has

    reg_read(offset) -> int, reg_write(offset, value)       32-bit registers
    alloc(length, align) -> bus address                     zeroed memory that the card may use
    read(address, n) -> bytes, write(address, data)         that memory
    run(cycles)                                             let time pass (a real card passes it by itself)

Everything here is synchronous and belongs to one thread. docs/host-interface.md has the rules that this code follows.
"""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
import ipaddress
from typing import Any

from optinic.abi.registers import (ABI_VERSION, ACCESS, COMMAND_ERROR, COMMANDS, FEATURES, ID_WORD, MTU_CODE, QP_STATE,
                                   QP_TYPE, TRANSPORT, offset_of)
from optinic.abi.regions import RegionSlots
from optinic.abi.structs import CAUSE, CQE, OPCODE, RECV_WQE, STATUS, TICK_NS
from optinic.abi.verdicts import COUNTERS, REASON

__all__ = ["Card", "CardError", "CommandError", "QueueFull", "Completion"]

QUEUE = ("receive", "send")


class CardError(RuntimeError):
    """The card is not what was expected, doesn't answer, or broke a promise."""


class CommandError(CardError):
    """The card refused a command; `code` is its name in abi COMMAND_ERROR."""

    def __init__(self, command, code, args):
        super().__init__(f"{command} was refused: {code} ({', '.join(f'{a:#x}' for a in args)})")
        self.command, self.code = command, code


class QueueFull(CardError):
    """The receive ring has no free slot; nothing was posted."""


@dataclass(frozen=True)
class Completion:
    """The end of one posted receive. Names as in `optinic.abi.structs`; `index` counts the QP's receives from 0."""
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


@dataclass
class _Qp:
    qpn: int
    word: int               # ARG1 of its qp_set without the state
    args: tuple             # PD, peer, CQ
    state: str
    posted: int = 0
    completed: int = 0
    wr_ids: deque = None

    @property
    def cq(self):
        return self.args[2]


@dataclass
class _Cq:
    addr: int
    entries: int
    consumed: int = 0
    backlog: list = None    # completions that were taken out of the ring before somebody polled for them


def _name(table, number):
    return next((name for name, n in table.items() if n == number), str(number))


def _bits(what, table):
    if isinstance(what, int):
        return what
    unknown = [name for name in what if name not in table]
    if unknown:
        raise ValueError(f"unknown access {unknown[0]!r}; known are {', '.join(table)}")
    return sum(table[name] for name in set(what))


class Card:
    """Brings the card up as far as the receive rings; :meth:`enable` then opens it to frames.

    `cfg`, if given, is the NicConfig that the card must have been generated from. Frames are off from here to
    :meth:`enable`, and what an earlier driver left stays until it is replaced or :meth:`tear_down` clears it.
    """

    def __init__(self, device, cfg=None):
        self.device = device
        self._probe(cfg)
        self.reg_write("CTRL", 0)
        self._wait("the tables to be cleared", lambda: self.reg_read("STATUS") & 1)
        self.slots = RegionSlots(self.num_regions)
        self._regions, self._qps, self._cqs = {}, {}, {}
        self._log, self._refused = None, defaultdict(Counter)
        self.reg_write("REFUSAL_LOG", 0)
        self.rq_base = device.alloc(self.num_qps * self.rq_entries * RECV_WQE.size, 4096)
        self.reg_write("RQ_BASE_LO", self.rq_base & 0xFFFFFFFF)
        self.reg_write("RQ_BASE_HI", self.rq_base >> 32)

    # -- registers ------------------------------------------------------------------------------------

    def reg_read(self, name):
        return self.device.reg_read(offset_of(name))

    def reg_write(self, name, value):
        self.device.reg_write(offset_of(name), value)

    def run(self, cycles):
        self.device.run(cycles)

    def _probe(self, cfg):
        found = self.reg_read("ID")
        if found != ID_WORD:
            raise CardError(f"no OptiNIC here: ID reads {found:#010x}, not {ID_WORD:#010x}")
        self.version = self.reg_read("VERSION")
        if self.version >> 16 != ABI_VERSION >> 16:
            raise CardError(f"the card's interface is version {self.version >> 16}.{self.version & 0xFFFF}, "
                            f"this driver's is {ABI_VERSION >> 16}.{ABI_VERSION & 0xFFFF}; generate the card anew")
        self.transport = _name(TRANSPORT, self.reg_read("TRANSPORT"))
        self.config_hash = self.reg_read("CONFIG_HASH")
        if cfg is not None and self.config_hash != cfg.hash:
            raise CardError(f"the card was generated from another configuration: its hash is {self.config_hash:08x}, "
                            f"that of the one given is {cfg.hash:08x}")
        for name in ("DATA_WIDTH", "NUM_QPS", "NUM_REGIONS", "NUM_CQS", "NUM_PEERS", "CLOCK_HZ", "MTU_MAX", "RQ_ENTRIES",
                     "RX_BUFFER_BYTES", "NUM_VECTORS"):
            setattr(self, name.lower(), self.reg_read(name))
        word = self.reg_read("FEATURES")
        self.features = frozenset(name for bit, name in enumerate(FEATURES) if word >> bit & 1)

    def _wait(self, what, done, polls=100_000):
        for _ in range(polls):
            if done():
                return
            self.device.run(8)
        raise CardError(f"the card hangs: waited for {what}")

    def enable(self, *, hold=False):
        """Accept frames. With `hold` a full packet buffer holds the MAC; without, it drops the frame as `overflow`."""
        self.reg_write("CTRL", 1 | hold << 1)

    def disable(self):
        """Discard every frame at the MAC."""
        self.reg_write("CTRL", 0)

    def command(self, name, *args):
        """Do a command of abi COMMANDS and wait for its end; raises CommandError."""
        for i, value in enumerate(args):
            self.reg_write(f"ARG{i}", value)
        self.reg_write("COMMAND", COMMANDS[name][0])
        status = 0

        def done():
            nonlocal status
            status = self.reg_read("COMMAND_STATUS")
            return not status >> 31

        self._wait(f"the end of {name}", done)
        if status & 0xFF:
            raise CommandError(name, _name(COMMAND_ERROR, status & 0xFF), args)

    def fence(self):
        """Wait until every frame and write under way has ended."""
        self.command("fence")

    # -- queue pairs ----------------------------------------------------------------------------------

    def qp_index(self, qpn):
        """The QP's row in the card's tables and in the ring arena: the low bits of the QPN."""
        return qpn & (1 << max(1, (self.num_qps - 1).bit_length())) - 1

    def create_qp(self, qpn, *, type="xp", state="ready", mtu=1024, generation=0, pd=0, peer=0, cq=0):
        """A QP, or a new life of it: receive 0 is the next, and receives posted before are forgotten."""
        if mtu not in MTU_CODE or mtu > self.mtu_max:
            known = ", ".join(str(m) for m in MTU_CODE if m <= self.mtu_max)
            raise ValueError(f"mtu={mtu} is not one of {known}")
        if type not in QP_TYPE or state not in QP_STATE:
            raise ValueError(f"type={type!r} must be one of {', '.join(QP_TYPE)}, and state={state!r} of {', '.join(QP_STATE)}")
        if not 0 <= generation < 256:
            raise ValueError(f"generation={generation} does not fit 8 bits")
        index = self.qp_index(qpn)
        other = self._qps.get(index)
        if other and other.qpn != qpn:
            raise CardError(f"QPN {qpn:#x} shares the table row {index} with QPN {other.qpn:#x}; destroy that one first")
        word = QP_TYPE[type] << 4 | MTU_CODE[mtu] << 8 | generation << 16
        self.command("qp_set", qpn, word | QP_STATE[state], pd, peer, cq)
        self._drain(other)
        self._qps[index] = _Qp(qpn, word, (pd, peer, cq), state, wr_ids=deque())

    def destroy_qp(self, qpn):
        """After this no packet of the QP writes memory; its uncompleted receives are forgotten (see flush_qp)."""
        self.command("qp_destroy", qpn)
        qp = self._qps.get(self.qp_index(qpn))
        if qp and qp.qpn == qpn:
            self._drain(qp)
            del self._qps[self.qp_index(qpn)]

    def flush_qp(self, qpn):
        """Put the QP in state error and complete its posted receives as flushed."""
        qp = self._qp(qpn)
        self.command("qp_flush", qpn, qp.word | QP_STATE["error"], *qp.args)
        qp.state = "error"

    def _qp(self, qpn):
        qp = self._qps.get(self.qp_index(qpn))
        if qp is None or qp.qpn != qpn:
            raise CardError(f"there is no QP {qpn:#x}")
        return qp

    def _drain(self, qp):
        """Completions of a life that has ended are taken from the ring while it is still known."""
        if qp and qp.cq in self._cqs:
            cq = self._cqs[qp.cq]
            cq.backlog = self.poll(qp.cq)

    # -- regions and peers ----------------------------------------------------------------------------

    def add_region(self, key, va, length, access, *, pd=0, delta=0):
        """Memory va ..< va + length, on the bus at va + delta (modulo 2^64); `access` as a number or as names of ACCESS."""
        if not (0 <= va < 1 << 64 and 0 < length and va + length <= 1 << 64):
            raise ValueError(f"region {va:#x} + {length:#x} is empty or leaves the 64-bit address space")
        entry = (va, length, delta % (1 << 64), pd | _bits(access, ACCESS) << 16 | 1 << 31)
        writes = self.slots.insert(key)
        self._regions[key] = entry
        for slot, moved in writes:
            self._write_slot(slot, moved, *self._regions[moved])

    def remove_region(self, key):
        """After this nothing is written or read under the key."""
        slot = self.slots.remove(key)
        del self._regions[key]
        self._write_slot(slot, 0, 0, 0, 0, 0)

    def _write_slot(self, slot, key, va, length, delta, rights):
        halves = (part for value in (va, length, delta) for part in (value & 0xFFFFFFFF, value >> 32))
        self.command("region_set", slot[0] << 31 | slot[1], key, *halves, rights)

    def set_peer(self, index, ip):
        """The address that QPs with this peer take frames from; `ip` as text or as an address of `ipaddress`."""
        ip = ipaddress.ip_address(ip)
        words = [int(ip) >> 32 * i & 0xFFFFFFFF for i in range(4)]
        self.command("peer_set", index, *words, int(ip.version == 6))

    # -- completion queues ----------------------------------------------------------------------------

    def set_cq(self, index, entries=256, *, vector=0):
        """A completion queue with a new ring of `entries` (a power of two up to 32768) CQEs."""
        if entries < 2 or entries > 32768 or entries & (entries - 1):
            raise ValueError(f"entries={entries} is not a power of two from 2 to 32768")
        if not 0 <= vector < self.num_vectors:
            raise ValueError(f"vector={vector}: the card has {self.num_vectors}")
        addr = self.device.alloc(entries * CQE.size, 4096)
        self.command("cq_set", index, addr & 0xFFFFFFFF, addr >> 32, entries.bit_length() - 1 | vector << 8 | 1 << 31)
        self._cqs[index] = _Cq(addr, entries, backlog=[])

    def poll(self, index, limit=None):
        """New completions of a CQ, in order, a receive that ended empty before another one as an entry of its own.

        `limit` bounds the CQEs looked at in this call. Tells the card what was consumed.
        """
        cq = self._cqs[index]
        found, cq.backlog = cq.backlog, []
        for cqe in self._take(index, limit):
            found += self._expand(cqe)
        return found

    def _take(self, index, limit=None):
        """The new CQEs of a ring, as dictionaries; tells the card that they have been consumed."""
        cq, found = self._cqs[index], []
        start, room = cq.consumed, cq.entries if limit is None else min(limit, cq.entries)
        while room:
            slot = cq.consumed % cq.entries
            n = min(room, cq.entries - slot, 32)
            chunk = self.device.read(cq.addr + slot * CQE.size, n * CQE.size)
            fresh = 1 - cq.consumed // cq.entries % 2
            for i in range(n):
                raw = chunk[i * CQE.size:(i + 1) * CQE.size]
                if raw[-1] & 1 != fresh or not raw[-2]:
                    n = room = 0
                    break
                cq.consumed += 1
                found.append(CQE.unpack(raw))
            room -= n
        if cq.consumed != start:
            self.reg_write("CQ_DOORBELL", index << 16 | cq.consumed & 0xFFFF)
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
        for cqe in self._take(self._log):
            self._refused[cqe["qpn"]][_name(REASON, cqe["imm"])] += 1
        if qpn is None:
            return {number: dict(counts) for number, counts in self._refused.items()}
        return dict(self._refused.get(qpn, {}))

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

    def _expand(self, cqe):
        """The completions that one CQE stands for: those skipped ended in the same way as its own, and empty."""
        status, cause = _name(STATUS, cqe["status"]), _name(CAUSE, cqe["cause"])
        qp = self._qps.get(self.qp_index(cqe["qpn"]))
        if qp and qp.qpn != cqe["qpn"]:
            qp = None
        common = dict(qpn=cqe["qpn"], status=status, cause=cause, time_ns=cqe["time"], queue=QUEUE[cqe["queue"]])
        found = []
        for before in range(cqe["skipped"], 0, -1):
            index = (cqe["wqe_index"] - before) % (1 << 32)
            found.append(Completion(index=index, opcode="none", wr_id=self._complete(qp, index), **common))
        found.append(Completion(index=cqe["wqe_index"], opcode=_name(OPCODE, cqe["opcode"]), byte_len=cqe["byte_len"],
                                msg_len=cqe["msg_len"], imm=cqe["imm"], tag=cqe["tag"],
                                wr_id=self._complete(qp, cqe["wqe_index"]), **common))
        return found

    def _complete(self, qp, index):
        if qp is None:
            return None
        if index != qp.completed % (1 << 32) or not qp.wr_ids:
            raise CardError(f"QP {qp.qpn:#x}: completion of receive {index}, where "
                            f"{f'{qp.completed} was due' if qp.wr_ids else 'none was posted'}")
        qp.completed += 1
        return qp.wr_ids.popleft()

    # -- posting --------------------------------------------------------------------------------------

    def post_receive(self, qpn, va, length, lkey, *, timeout_ns=None, absolute=False, wr_id=None, doorbell=True):
        """Post a receive and return its index, which is the message sequence that the sender must use.

        `timeout_ns` counts from when the receive becomes the oldest one, or, with `absolute`, is a NIC time; it is rounded
        up to whole ticks of 64 ns. Raises QueueFull, with nothing changed, if the ring has no free slot. Without
        `doorbell` the card learns of it with the next one that has it.
        """
        qp = self._qp(qpn)
        if qp.state == "error":
            raise CardError(f"QP {qpn:#x} is in state error: a receive posted to it would never complete")
        if qp.posted - qp.completed >= self.rq_entries:
            raise QueueFull(f"QP {qpn:#x} has {self.rq_entries} uncompleted receives; poll first")
        wqe = RECV_WQE.pack(va=va, length=length, lkey=lkey, timeout=self._ticks(timeout_ns, absolute),
                            absolute=int(absolute and timeout_ns is not None))
        index = qp.posted
        self.device.write(self.rq_base + (self.qp_index(qpn) * self.rq_entries + index % self.rq_entries) * RECV_WQE.size, wqe)
        qp.posted += 1
        qp.wr_ids.append(wr_id)
        if doorbell:
            self.ring(qpn)
        return index % (1 << 32)

    def ring(self, qpn):
        """Tell the card how many receives are posted."""
        self.reg_write("RQ_DOORBELL", self.qp_index(qpn) << 16 | self._qp(qpn).posted & 0xFFFF)

    def outstanding(self, qpn):
        """Receives posted and not yet polled as complete."""
        qp = self._qp(qpn)
        return qp.posted - qp.completed

    @staticmethod
    def _ticks(timeout_ns, absolute):
        if timeout_ns is None:
            return 0
        ticks = -(-timeout_ns // TICK_NS)
        if absolute:
            return ticks % (1 << 32) or 1       # 0 would mean none
        if not 0 < ticks < 1 << 31:
            raise ValueError(f"timeout_ns={timeout_ns} is outside 1..{((1 << 31) - 1) * TICK_NS}")
        return ticks

    # -- time and counters ----------------------------------------------------------------------------

    def time_ns(self):
        """The NIC's time."""
        low = self.reg_read("TIME_LO")      # latches the high word
        return self.reg_read("TIME_HI") << 32 | low

    def set_time(self, ns):
        self.reg_write("TIME_SET_LO", ns & 0xFFFFFFFF)
        self.reg_write("TIME_SET_HI", ns >> 32)

    def counter(self, name):
        offset = offset_of(name)
        low = self.device.reg_read(offset)      # latches the high word
        return self.device.reg_read(offset + 4) << 32 | low

    def counters(self):
        """Every counter by its name in abi COUNTERS."""
        return {name: self.counter(name) for name in COUNTERS}

    def tear_down(self):
        """Clear what this or an earlier driver left: frames off, every QP, region and CQ gone. Works in any state."""
        self.disable()
        for index in range(self.num_qps):
            self.command("qp_destroy", index)
        for bank in range(2):
            for row in range(self.num_regions // 2):
                self._write_slot((bank, row), 0, 0, 0, 0, 0)
        for index in range(self.num_cqs):
            self.command("cq_set", index, 0, 0, 0)
        self.slots = RegionSlots(self.num_regions)
        self._regions, self._qps, self._cqs = {}, {}, {}
        self._log, self._refused = None, defaultdict(Counter)
        self.reg_write("REFUSAL_LOG", 0)
