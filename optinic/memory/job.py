"""The records between admission and the host: what to do with a frame in the packet buffer, and what to complete after it."""

from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum

__all__ = ["JobKind", "completion_layout", "job_layout"]


class JobKind(Enum, shape=2):
    NONE = 0        # no frame belongs to this record (an expiry, a fence)
    SKIP = 1        # free the frame's beats
    PLACE = 2       # write the payload to memory, then free
    PASS = 3        # copy the whole frame to the host stream, then free


def completion_layout(cfg):
    """A completion on its way to a CQ; fields as in the CQE (abi/structs.py)."""
    return StructLayout({
        "cq": cfg.cq_bits,
        "queue": 1, "qpn": 24, "opcode": 4 if cfg.rc else 3, "wqe_index": 32, "byte_len": 32, "msg_len": 32, "imm": 32, "tag": 16, "skipped": 16,
        "time": 48, "status": 2, "cause": 3,
    })


def job_layout(cfg):
    return StructLayout({
        "kind": JobKind,
        "beats": range(cfg.max_frame_beats + 1),    # of the frame in the packet buffer; a PLACE with 0 leaves it to the next job with one
        "pay_off": 7,
        "len": range(cfg.mtu_max + 1),              # bytes to write; 0 is legal
        "addr": 64,                                 # bus address, any alignment
        "qp": cfg.qp_bits,
        "ends_life": 1,                             # of a fence: behind it the QP begins anew, its mark of a failed write goes
        "fence": 1,                                 # report when everything before this has been acknowledged
        "complete": 1,                              # `completion` is valid: to be written after everything before it
        "completion": completion_layout(cfg),
    })
