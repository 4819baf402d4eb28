"""Work requests and completions: SGE, RecvWR, SendWR, WC as in pyverbs. Timeouts, tags and what a partial completion says are the
addition."""

from dataclasses import dataclass
from typing import Any

from optinic.abi.structs import CAUSE, FATAL, INLINE_MAX

from ..errors import UsageError
from ..queues import Completion
from .enums import SendFlags, WCFlags, WCOpcode, WCStatus, WROpcode

__all__ = ["SGE", "RecvWR", "SendWR", "WC"]

CARD_OPCODE = {WROpcode.IBV_WR_SEND: "send", WROpcode.IBV_WR_SEND_WITH_IMM: "send_imm", WROpcode.IBV_WR_RDMA_WRITE: "write",
               WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM: "write_imm", WROpcode.IBV_WR_RDMA_READ: "read",
               WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP: "compare_swap", WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD: "fetch_add",
               WROpcode.IBV_WR_SEND_WITH_INV: "send_inv"}
SENT = {"send": WCOpcode.IBV_WC_SEND, "send_imm": WCOpcode.IBV_WC_SEND, "write": WCOpcode.IBV_WC_RDMA_WRITE,
        "write_imm": WCOpcode.IBV_WC_RDMA_WRITE, "read": WCOpcode.IBV_WC_RDMA_READ, "compare_swap": WCOpcode.IBV_WC_COMP_SWAP,
        "fetch_add": WCOpcode.IBV_WC_FETCH_ADD, "send_inv": WCOpcode.IBV_WC_SEND}
ERRORS = {"flushed": WCStatus.IBV_WC_WR_FLUSH_ERR, "protection": WCStatus.IBV_WC_LOC_PROT_ERR,
          "length": WCStatus.IBV_WC_LOC_LEN_ERR, "retry": WCStatus.IBV_WC_RETRY_EXC_ERR,
          "rnr_retry": WCStatus.IBV_WC_RNR_RETRY_EXC_ERR, "remote_access": WCStatus.IBV_WC_REM_ACCESS_ERR,
          "remote_invalid": WCStatus.IBV_WC_REM_INV_REQ_ERR, "remote_operation": WCStatus.IBV_WC_REM_OP_ERR}


@dataclass(frozen=True)
class SGE:
    """`length` bytes at `addr` in the region with `lkey`; MR.sge makes them."""
    addr: int
    length: int
    lkey: int


def one_sge(sg, num_sge):
    """The card takes one piece of memory a work request, or none for an empty message."""
    sg = list(sg or ())[:num_sge or None]
    if len(sg) > 1:
        raise UsageError(f"{len(sg)} pieces of memory in one work request, and the card takes one; post them one by one, or copy "
                         f"them together")
    return sg[0] if sg else SGE(0, 0, 0)


@dataclass
class RecvWR:
    """`timeout_ns` from when it becomes the oldest receive, or `deadline_ns`, a NIC time: then it completes with what has
    arrived, also when nothing has. Without either (and no recv_timeout_ns of the QP) it waits for ever."""
    wr_id: Any = 0
    num_sge: int = 0
    sg: list = None
    next_wr: "RecvWR" = None
    timeout_ns: int = None
    deadline_ns: int = None

    @property
    def sge(self):
        return one_sge(self.sg, self.num_sge)


class SendWR:
    """As in pyverbs, plus `tag` (16 bits that the peer finds in its WC), `timeout_ns` from now or `deadline_ns`, a NIC time
    (what is unsent then is abandoned; a READ completes with what has come), and `inline_data`, at most 32 bytes of payload that
    need no memory at all. `rkey` and `remote_addr` may be given here or with :meth:`set_wr_rdma`, those of an atomic, and its
    operands, with :meth:`set_wr_atomic`. `imm_data` is a number; the card puts it on the wire big endian. `invalidate_rkey`: of
    a SEND with invalidate. On a card of transport rc there are neither tags nor time limits."""

    def __init__(self, wr_id=0, opcode=WROpcode.IBV_WR_SEND, num_sge=0, imm_data=0, send_flags=SendFlags.IBV_SEND_SIGNALED, sg=None,
                 next_wr=None, *, rkey=0, remote_addr=0, tag=0, timeout_ns=None, deadline_ns=None, inline_data=None, compare_add=0,
                 swap=0, invalidate_rkey=0):
        if opcode not in CARD_OPCODE:
            known = ", ".join(o.name for o in CARD_OPCODE)
            raise UsageError(f"opcode={opcode!r} is nothing that the card can do; use one of {known}")
        self.wr_id, self.opcode, self.num_sge, self.imm_data = wr_id, WROpcode(opcode), num_sge, imm_data
        self.send_flags, self.sg, self.next_wr = SendFlags(send_flags), sg, next_wr
        self.rkey, self.remote_addr, self.tag = rkey, remote_addr, tag
        self.timeout_ns, self.deadline_ns, self.inline_data = timeout_ns, deadline_ns, inline_data
        self.compare_add, self.swap, self.invalidate_rkey = compare_add, swap, invalidate_rkey

    def set_wr_rdma(self, rkey, addr):
        """The memory at the peer that a WRITE or READ is about."""
        self.rkey, self.remote_addr = rkey, addr

    def set_wr_atomic(self, rkey, addr, compare_add, swap=0):
        """The 8 bytes at the peer that an atomic is about (`addr` a multiple of 8), what is added to them or compared with
        them, and of compare and swap what then takes their place."""
        self.rkey, self.remote_addr, self.compare_add, self.swap = rkey, addr, compare_add, swap

    @property
    def operands(self):
        """As the card wants them, None if the opcode has none."""
        return {WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP: (self.swap, self.compare_add),
                WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD: (self.compare_add, 0)}.get(self.opcode)

    @property
    def number(self):
        """The number that goes with the message."""
        inv = self.opcode == WROpcode.IBV_WR_SEND_WITH_INV
        return self.invalidate_rkey or self.imm_data if inv else self.imm_data      # in pyverbs the two share a place

    @property
    def sge(self):
        return one_sge(self.sg, self.num_sge)

    @property
    def signaled(self):
        return bool(self.send_flags & SendFlags.IBV_SEND_SIGNALED)

    def payload(self, read):
        """(va, length, lkey, inline bytes or None); `read(addr, n)` is the card's memory."""
        sge, data = self.sge, self.inline_data
        if data is not None:
            return 0, len(data), 0, bytes(data)
        if self.send_flags & SendFlags.IBV_SEND_INLINE:
            if sge.length > INLINE_MAX:
                raise UsageError(f"{sge.length} bytes are to be sent inline, and a work request carries at most "
                                 f"{INLINE_MAX} itself")
            return 0, sge.length, 0, read(sge.addr, sge.length) if sge.length else b""
        return sge.addr, sge.length, sge.lkey, None

    def check(self):
        """What must not be found out when half of it has been posted."""
        if self.send_flags & SendFlags.IBV_SEND_FENCE:
            raise UsageError("IBV_SEND_FENCE holds sends back until READs have ended, and no card here does that; wait for the "
                             "READ's completion")
        for name, bits in (("rkey", 32), ("remote_addr", 64), ("tag", 16), ("imm_data", 32), ("invalidate_rkey", 32),
                           ("compare_add", 64), ("swap", 64)):
            if not 0 <= getattr(self, name) < 1 << bits:
                raise UsageError(f"{name}={getattr(self, name)} does not fit {bits} bits")
        if self.timeout_ns is not None and self.deadline_ns is not None:
            raise UsageError("give timeout_ns or deadline_ns, not both")


@dataclass(frozen=True)
class WC:
    """The end of a work request. From `wr_id` to `wc_flags` as in verbs (byte_len is what was placed, or went out);
    behind them what OptiNIC adds:

    `cause`: complete, timeout, preempted (a later message came first), flushed, protection (local key), bus (host memory didn't
    answer, or refused), length; of type rc also retry (no acknowledgement came), rnr_retry (the peer had no receive),
    remote_access, remote_invalid, remote_operation (what the peer said); `msg_len`: what the sender announced, 0 if nothing
    came; `tag` of the sender; `timestamp`: the NIC's time in ns; `index`: the count of receives (of sends, of READs) of the QP
    before this one; `queue`: "receive" or "send"; `invalidated_rkey`: the key that the peer has invalidated, with
    IBV_WC_WITH_INV in wc_flags."""
    wr_id: Any
    status: WCStatus
    opcode: WCOpcode
    vendor_err: int = 0         # number of the cause in optinic.abi.structs: in CAUSE, or 16 + that in FATAL
    byte_len: int = 0
    imm_data: int = 0
    qp_num: int = 0
    wc_flags: WCFlags = WCFlags(0)
    cause: str = "complete"
    msg_len: int = 0
    tag: int = 0
    timestamp: int = 0
    index: int = 0
    queue: str = "receive"
    invalidated_rkey: int = 0

    @property
    def ok(self):
        return self.status == WCStatus.IBV_WC_SUCCESS

    @property
    def partial(self):
        """The time was up, or the next message came: some of it may be there, or none."""
        return self.status == WCStatus.OPT_WC_PARTIAL

    def __str__(self):
        said = f"{self.status.name} ({self.cause})" if not self.ok else self.status.name
        of = "" if self.byte_len == self.msg_len else f" of {self.msg_len}"
        return f"{self.opcode.name} wr_id={self.wr_id!r} QP {self.qp_num:#x}: {said}, {self.byte_len}{of} bytes"


def wc_of(completion: Completion, wr_id, qp_num, sent=None):
    """The WC of a completion of the card; `sent` is the card's name of what was posted, None for a receive."""
    c = completion
    cause = c.cause
    if c.status == "success":
        status = WCStatus.IBV_WC_SUCCESS
    elif c.status == "partial":
        status = WCStatus.OPT_WC_PARTIAL
    else:
        if cause not in ERRORS:     # a write of the QP was refused, however the message ended
            cause = "bus"
        status = ERRORS.get(cause, WCStatus.IBV_WC_FATAL_ERR)
    if sent:
        opcode = SENT[sent]
    else:
        opcode = WCOpcode.IBV_WC_RECV_RDMA_WITH_IMM if c.opcode == "write_imm" else WCOpcode.IBV_WC_RECV
    imm = not sent and c.opcode in ("send_imm", "write_imm")
    flags = WCFlags.IBV_WC_WITH_IMM * imm | WCFlags.IBV_WC_WITH_INV * (c.invalidated is not None)
    number = 16 + FATAL[cause] if c.status == "fatal" else CAUSE[cause]
    return WC(wr_id, status, opcode, number, c.byte_len, c.imm if imm else 0, qp_num,
              WCFlags(flags), cause, c.msg_len, c.tag, c.time_ns, c.index, "send" if sent else "receive", c.invalidated or 0)
