"""What the parts of the send queue tell each other, and the context of a QP that sends."""

from amaranth.hdl import C, Cat, Mux, unsigned
from amaranth.lib.data import StructLayout
from amaranth.lib.enum import IntEnum
from amaranth.utils import ceil_log2

from optinic.abi.structs import INLINE_MAX, INLINE_OFFSET, SEND_WQE
from optinic.config import SEND_WQE_BYTES
from optinic.transport.rc.records import ACK_NO_CREDITS, context_layout as rc_context_layout, turn_layout
from optinic.transport.xp.records import context_layout as xp_context_layout
from optinic.tx.packet import INLINE_BYTES, header_members

__all__ = ["Event", "PIECE", "READ_RESPONSE", "ATOMIC_RESPONSE", "OFFSET_UNIT", "WQE_BITS", "ack_layout", "answer_wqe", "command_layout", "common_layout",
           "context_layout", "count_bits", "end_layout", "event_layout", "failed_layout", "followup_layout", "job_layout", "kind_shape",
           "outstanding_layout", "planned_layout", "position_layout", "query_layout", "send_wqe_layout"]

PIECE = 4               #: WQEs that one turn of a QP may fetch
READ_RESPONSE = 6       #: opcode of the WQE that answers a peer's READ; the driver has no name for it
ATOMIC_RESPONSE = 7     #: and of the one that answers an atomic
WQE_BITS = 8 * SEND_WQE_BYTES
OFFSET_UNIT = 8         #: a message is cut at multiples of an MTU, so at multiples of 2^8 bytes

assert INLINE_BYTES == INLINE_MAX and INLINE_OFFSET * 8 == SEND_WQE["va"].bit


def send_wqe_layout():
    """SEND_WQE as a layout, with its gaps."""
    members, at = {}, 0
    for f in SEND_WQE.fields:
        if f.bit != at:
            members[f"gap{at}"] = f.bit - at
        members[f.name] = f.width
        at = f.bit + f.width
    members["rest"] = 8 * SEND_WQE.size - at
    return StructLayout(members)


def context_layout(cfg):
    """What a QP's packets are made with, beside the context that both halves of the card share (transport/xp/records.py); both
    are written by commands only, at once. `cq` is the send CQ, `generation` the peer's."""
    return StructLayout({"cq": cfg.cq_bits, "dest_qpn": 24, **({} if cfg.rc else {"generation": 8}), "tclass": 8, **({} if cfg.rc else {"paths": 3})})


def common_layout(cfg):
    """The context of a QP that both halves share."""
    return rc_context_layout(cfg) if cfg.rc else xp_context_layout(cfg)


class Event(IntEnum, shape=3):
    PIECE = 0       # WQEs are being fetched
    RESET = 1       # a new life of the QP
    FLUSH = 2       # complete all that is posted
    FENCE = 3
    GOBACK = 4      # transport rc: send again from a place on
    HALT = 5        # transport rc: stop, and stand at a place until GOBACK or RESET


def kind_shape(cfg):
    """Of an Event; XP has the first four."""
    return Event if cfg.rc else unsigned(2)


def command_layout(cfg):
    """What is to be done with a QP. With transport rc: GOBACK and HALT say where it shall stand (`index`, `offset` in units of
    2^OFFSET_UNIT bytes, `psn`); RESET its first `psn`, and how many requests may be unacknowledged: `window`, 0 for
    rc_outstanding, or any number if it is `uc`."""
    where = {**turn_layout().members, "uc": 1, "window": range(cfg.rc_outstanding + 1)} if cfg.rc else {}
    return StructLayout({"kind": kind_shape(cfg), "qp": cfg.qp_bits, **where})


def position_layout():
    """Of the oldest WQE: its index, bytes of it that are planned (in units of 2^OFFSET_UNIT); and the next PSN."""
    return StructLayout({"sent": 16, "offset": 32 - OFFSET_UNIT, "psn": 24})


def count_bits(cfg):
    """Bits that tell WQEs of a ring apart, and a full ring from an empty one."""
    return ceil_log2(cfg.sq_entries) + 1


def event_layout(cfg):
    """From the active list to the scheduler. A piece is `count` + 1 consecutive WQEs from `index` on, in these slots."""
    return StructLayout({"kind": kind_shape(cfg), "qp": cfg.qp_bits, "index": count_bits(cfg), "count": 2,
                         **{f"slot{i}": range(cfg.tx_slots) for i in range(PIECE)}})


def job_layout(cfg):
    """A READ request that has been found good: `length` bytes from `va` on, to go into the peer's receive `seq`. `generation`:
    the life of the QP that it was made to.

    Transport rc: a READ or, if `atomic`, an atomic that has been done and found the number `va`; `psn` of the first packet of the
    answer, and the `msn` that it acknowledges. `life`: of the QP that it was made to."""
    if cfg.rc:
        return StructLayout({"qp": cfg.qp_bits, "life": 2, "atomic": 1, "psn": 24, "msn": 24, "length": 32, "va": 64, "key": 32})
    return StructLayout({"qp": cfg.qp_bits, "generation": 8, "seq": 32, "tag": 16, "length": 32, "va": 64, "key": 32})


def answer_wqe(cfg, wqe, job):
    """Statements that make `wqe` the one that answers a job; what they don't name is never looked at."""
    common = [wqe.signaled.eq(0), wqe.deadline_set.eq(0), wqe.solicited.eq(0), wqe.va.eq(job.va), wqe.lkey.eq(job.key)]
    if cfg.rc:
        return [*common, wqe.opcode.eq(Mux(job.atomic, ATOMIC_RESPONSE, READ_RESPONSE)), wqe.inline.eq(job.atomic),
                wqe.length.eq(Mux(job.atomic, 8, job.length)), wqe.imm.eq(Cat(job.msn, C(ACK_NO_CREDITS, 8))), wqe.tag.eq(job.life)]
    return [*common, wqe.opcode.eq(READ_RESPONSE), wqe.inline.eq(0), wqe.length.eq(job.length), wqe.seq.eq(job.seq), wqe.tag.eq(job.tag),
            wqe.imm[:8].eq(job.generation)]


def ack_layout(cfg):
    """Transport rc: what an ACK or NAK to be sent says in its AETH, and where it belongs."""
    return StructLayout({"qp": cfg.qp_bits, "psn": 24, "msn": 24, "syndrome": 8})


def outstanding_layout(cfg):
    """Transport rc: request `index` has begun to be sent; `end_psn` is the last PSN that belongs to it, `rd` says that it is a READ
    or an atomic."""
    return StructLayout({"qp": cfg.qp_bits, "index": 16, "end_psn": 24, "rd": 1})


def failed_layout(cfg):
    """Transport rc: request `index` can't be sent, or not wholly. `cause` as in abi.structs.FATAL: protection, bus, length."""
    return StructLayout({"qp": cfg.qp_bits, "index": 16, "cause": 3})


def query_layout():
    """What to look up for a packet: `len` bytes (none: nothing) from `va` on; `remote`: on behalf of a peer's READ."""
    return StructLayout({"key": 32, "va": 64, "pd": 16, "len": 14, "remote": 1})


def end_layout(cfg):
    """Of a completion, what the packet that it follows doesn't say. `index`: of the work request, modulo 2^16."""
    return StructLayout({"cq": cfg.cq_bits, "tag": cfg.qpn_tag_bits, "index": 16, "opcode": 4 if cfg.rc else 3, "status": 2,
                         "cause": 3})


def planned_layout(cfg):
    """A packet before its local key has been looked up (`remote`: for a peer), and what is to be done when it has left: see
    followup_layout. Fields as in packet_layout; the missing ones follow from the others. `offset` is in units of
    2^OFFSET_UNIT bytes, and `tag` of a fence the number of sends that were skipped."""
    common = {"some": 1, "inline": 1, "inline_data": 8 * INLINE_BYTES,
              "remote": 1, "qp": cfg.qp_bits, "last": 1, "fence": 1, "always": 1, "end": end_layout(cfg)}
    if cfg.rc:
        return StructLayout({**header_members(cfg), **common, "tag": 16, "msg_len": 32, **_fault_members()})
    header = {name: shape for name, shape in header_members(cfg).items() if name not in ("echo", "dma_len")}
    return StructLayout({**header, "offset": 32 - OFFSET_UNIT, **common})


def _fault_members():
    """Transport rc: the packet is one of the request `index`, a fault of which is told by `failed`: here there is one if it is
    `wrong`, because its WQE is `bad`, or else could not be read."""
    return {"reliable": 1, "index": 16, "wrong": 1, "bad": 1}


def followup_layout(cfg):
    """What a packet brings about when it has left, or has been given up. `last`: its message is over; that is told if `always`
    or if something went wrong. `refused`: its local key did. `answer`: it is a peer's, nobody here is told."""
    more = _fault_members() if cfg.rc else {"offset": 32 - OFFSET_UNIT}
    return StructLayout({"qp": cfg.qp_bits, "last": 1, "fence": 1, "always": 1, "refused": 1, "answer": 1,
                         "end": end_layout(cfg), "msg_len": 32, **more, "tag": 16})
