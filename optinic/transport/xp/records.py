"""The record that travels from lookup to admission, and the context of a QP."""

from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum

__all__ = ["WorkKind", "Verdict", "context_layout", "peer_layout", "head_layout", "work_layout"]


class WorkKind(Enum, shape=3):
    FRAME = 0
    SERVICE = 1     # look at the QP: start the clock of its head
    DEADLINE = 2    # look at the QP: its head may have run out of time
    RESET = 3       # a new life of the QP
    FLUSH = 4       # complete everything that is posted
    FENCE = 5       # nothing but its place in the order


class Verdict(Enum, shape=2):
    PLACED = 0
    CONSUMED = 1
    DROPPED = 2
    PASSED = 3


def context_layout(cfg):
    """What a packet is checked against; written by commands only. 'state' and 'type' as in abi.registers."""
    return StructLayout({
        "state": 2, "type": 1, "mtu": 3, "generation": 8, "pd": 16, "peer": cfg.peer_bits, "cq": cfg.cq_bits,
        "tag": cfg.qpn_tag_bits,
    })


def peer_layout(cfg):
    return StructLayout({"ip": 128 if cfg.ipv6 else 32, "v6": 1})


def head_layout():
    """Admission's head as lookup sees it: enough to find the receive WQE of a UC packet or of a clock to start."""
    return StructLayout({"head": 32, "touched": 1})


def work_layout(cfg):
    return StructLayout({
        "kind": WorkKind,
        "verdict": Verdict, "reason": 5,        # so far
        "beats": range(cfg.max_frame_beats + 1), "pay_off": 7, "pay_len": range(cfg.mtu_max + 1),
        "qp": cfg.qp_bits, "qpn": 24, "cq": cfg.cq_bits, "pd": 16, "ready": 1,
        "known": 1,             # a frame that names an existing QP
        "tracked": 1, "is_uc": 1, "is_write": 1, "has_imm": 1, "is_read": 1, "is_answer": 1, "is_cnp": 1, "ce": 1,
        "tag": 16, "seq": 32, "msg_len": 32, "offset": 32, "va": 64, "rkey": 32, "imm": 32,
        "generation": 8,        # of a READ
        "index": 32,            # the message sequence whose WQE is at hand
        "has_wqe": 1, "posted": 16,
    })
