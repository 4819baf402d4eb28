"""The contexts of a QP of transport rc, and the record that travels from RcOrder to RcCommit."""

from amaranth.lib.data import StructLayout
from amaranth.lib.enum import IntEnum

from optinic.transport.xp.records import Verdict, WorkKind

__all__ = ["Place", "Reply", "Turn", "context_layout", "rules_layout", "work_layout", "turn_layout", "settled_layout",
           "NAK_SEQUENCE", "NAK_INVALID", "NAK_ACCESS", "NAK_OPERATION",
           "ACK_NO_CREDITS", "RNR", "atomic_operands", "inflight_jobs"]

# AETH syndromes (IBTA volume 1, 9.7.5.2)
ACK_NO_CREDITS = 0x1F       #: an ACK without end-to-end credits
RNR = 0x20                  #: | timer code
NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS, NAK_OPERATION = 0x60, 0x61, 0x62, 0x63


class Place(IntEnum, shape=3):
    """Where the payload of a frame goes, or what its memory is wanted for."""
    NONE = 0
    WRITE = 1       # va, rkey of the frame or of its message
    SEND = 2        # the receive's buffer, from `offset` on
    ANSWER = 3      # the buffer of a READ or atomic of our own, from `offset` on
    READ = 4        # nothing is written: the peer wants to read
    ATOMIC = 5


class Reply(IntEnum, shape=2):
    NONE = 0
    ACK = 1         # what `syndrome` says
    READ = 2        # an answer comes from the send half
    REPLAY = 3      # the result of an atomic that was done before


class Turn(IntEnum, shape=2):
    """What the send half shall do."""
    NONE = 0
    GO_BACK = 1     # send again from this request and PSN on
    HALT = 2        # stop, and stand at this request


def context_layout(cfg):
    """What a packet is checked against, and what the send half needs too; written by commands only. 'state' and 'type' as in
    abi.registers. `life`: low bits of the generation, so that a READ of an earlier life isn't answered."""
    return StructLayout({"state": 2, "type": 2, "mtu": 3, "life": 2, "pd": 16, "peer": cfg.peer_bits, "cq": cfg.cq_bits,
                         "tag": cfg.qpn_tag_bits})


def rules_layout(cfg):
    """What only the receive half needs of a QP: how patient it is, and where its sends complete.
    `timeout`: 4.096 us * 2^t, 0: none."""
    return StructLayout({"send_cq": cfg.cq_bits, "retries": 3, "rnr_retries": 3, "timeout": 5, "rnr_code": 5})


def turn_layout():
    """A place in the stream of requests: number, offset in it in units of 256 bytes, PSN."""
    return StructLayout({"index": 16, "offset": 24, "psn": 24})


def inflight_jobs(cfg):
    """READ and atomic requests that may be under way in the card: waiting jobs, and those that the send half answers."""
    return cfg.read_jobs + cfg.tx_slots


def work_layout(cfg):
    return StructLayout({
        "kind": WorkKind, "verdict": Verdict, "reason": 5,      # so far
        "beats": range(cfg.max_frame_beats + 1), "pay_off": 7, "pay_len": range(cfg.mtu_max + 1),
        "qp": cfg.qp_bits, "qpn": 24, "pd": 16, "life": 2, "known": 1, "ce": 1, "is_cnp": 1,
        "cq": cfg.cq_bits, "send_cq": cfg.cq_bits,
        "place": Place, "whole": 1,         # of an answer: it is the last packet, the buffer must end here
        "index": 32, "has_wqe": 1, "posted": 16,    # of the receive, or (ANSWER) in the ring of results
        "offset": 32,                       # of a WRITE instead: bytes whose region is to be checked
        "va": 64,                           # or, if nothing is placed, turn_layout
        "rkey": 32, "length": 32,           # of a READ: what it asks for; of a completion: the message
        "reply": Reply, "syndrome": 8, "psn": 24, "msn": 24,    # msn: without this message
        "again": 1,                         # a duplicate
        "uc": 1, "begins": 1,               # a frame of a UC message, the first one
        "ends": 1,                          # the message ends well here: msn + 1
        "complete": 1, "opcode": 4, "imm": 32,                  # of the receive that completes
        "retired": range(cfg.rc_outstanding + 1), "una": 16,    # requests of ours that this frame completes; the first one left
        "turn": Turn,
        "fatal": 1, "cause": 3, "ours": 1,  # the QP has failed; `ours`: for the request `una` of its own, else for one of the peer
    })


def settled_layout(cfg):
    """Of a record, what the host's memory says: where the payload goes; why it may not (abi REASON), or that its WQE could not be
    read; `short`: the buffer is too small, or an answer leaves part of it empty."""
    return StructLayout({**work_layout(cfg).members, "addr": 64, "mem_reason": 5, "failed": 1, "short": 1})


def atomic_operands(work):
    """Where the record of an atomic, which has no use for these fields, keeps the low and high words of what to swap or add,
    and to compare."""
    return work.offset, work.index, work.imm, work.length
