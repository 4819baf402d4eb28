"""What the parts of the send queue tell each other, and the context of a QP that sends."""

from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum
from amaranth.utils import ceil_log2

from optinic.abi.structs import INLINE_MAX, INLINE_OFFSET, SEND_WQE
from optinic.config import SEND_WQE_BYTES
from optinic.tx.packet import INLINE_BYTES, header_members

__all__ = ["Event", "PIECE", "READ_RESPONSE", "OFFSET_UNIT", "WQE_BITS", "context_layout", "count_bits", "event_layout", "job_layout", "planned_layout",
           "query_layout", "send_wqe_layout", "end_layout", "followup_layout"]

PIECE = 4               #: WQEs that one turn of a QP may fetch
READ_RESPONSE = 6       #: opcode of the WQE that answers a peer's READ; the driver has no name for it
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
    return StructLayout({"cq": cfg.cq_bits, "dest_qpn": 24, "generation": 8, "tclass": 8, "paths": 3})


class Event(Enum, shape=2):
    PIECE = 0       # WQEs are being fetched
    RESET = 1       # a new life of the QP
    FLUSH = 2       # complete all that is posted
    FENCE = 3


def count_bits(cfg):
    """Bits that tell WQEs of a ring apart, and a full ring from an empty one."""
    return ceil_log2(cfg.sq_entries) + 1


def event_layout(cfg):
    """From the active list to the scheduler. A piece is `count` + 1 consecutive WQEs from `index` on, in these slots."""
    return StructLayout({"kind": Event, "qp": cfg.qp_bits, "index": count_bits(cfg), "count": 2,
                         **{f"slot{i}": range(cfg.tx_slots) for i in range(PIECE)}})


def job_layout(cfg):
    """A READ request that has been found good: `length` bytes from `va` on, to go into the peer's receive `seq`. `generation`:
    the life of the QP that it was made to."""
    return StructLayout({"qp": cfg.qp_bits, "generation": 8, "seq": 32, "tag": 16, "length": 32, "va": 64, "key": 32})


def query_layout():
    """What to look up for a packet: `len` bytes (none: nothing) from `va` on; `remote`: on behalf of a peer's READ."""
    return StructLayout({"key": 32, "va": 64, "pd": 16, "len": 14, "remote": 1})


def end_layout(cfg):
    """Of a completion, what the packet that it follows doesn't say. `index`: of the work request, modulo 2^16."""
    return StructLayout({"cq": cfg.cq_bits, "tag": cfg.qpn_tag_bits, "index": 16, "opcode": 3, "status": 2, "cause": 3})


def planned_layout(cfg):
    """A packet before its local key has been looked up (`remote`: for a peer), and what is to be done when it has left: see
    followup_layout. Fields as in packet_layout; the missing ones follow from the others. `offset` is in units of
    2^OFFSET_UNIT bytes, and `tag` of a fence the number of sends that were skipped."""
    header = {name: shape for name, shape in header_members(cfg).items() if name not in ("echo", "dma_len")}
    return StructLayout({
        **header, "offset": 32 - OFFSET_UNIT, "inline": 1, "inline_data": 8 * INLINE_BYTES,
        "remote": 1, "qp": cfg.qp_bits, "last": 1, "fence": 1, "always": 1, "end": end_layout(cfg),
    })


def followup_layout(cfg):
    """What a packet brings about when it has left, or has been given up. `last`: its message is over; that is told if `always`
    or if something went wrong. `refused`: its local key did. `answer`: it is a peer's, nobody here is told."""
    return StructLayout({"qp": cfg.qp_bits, "last": 1, "fence": 1, "always": 1, "refused": 1, "answer": 1,
                         "end": end_layout(cfg), "msg_len": 32, "offset": 32 - OFFSET_UNIT, "tag": 16})
