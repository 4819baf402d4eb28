"""What a queue pair is to be: QPCap, QPInitAttr and QPAttr as in pyverbs, and OptiNIC's additions behind them."""

from dataclasses import dataclass, field

from .addr import AHAttr
from .enums import MTU, AccessFlags, QPState, QPType

__all__ = ["QPCap", "QPInitAttr", "QPAttr"]


@dataclass
class QPCap:
    """What is wanted; QP.cap has what there is (the rings of every queue pair of a card have one size). `max_rd_atomic`, the
    addition here, is how many READs may be under way. Of type XP: above 0 the queue pair gets the companion that READs take,
    and the peer's needs one too. Of type RC: what QP.connect takes for QPAttr.max_rd_atomic, 0 for as many as both ends
    have."""
    max_send_wr: int = 1
    max_recv_wr: int = 10
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0
    max_rd_atomic: int = 0


@dataclass
class QPInitAttr:
    """`recv_timeout_ns` and `send_timeout_ns`: for work requests that have none of their own. `arrival_bytes`: keep a map of what
    arrived of messages up to this length, for QP.arrived (the card needs arrival_map=on). None of the three with transport rc.
    `qp_type` None: OPT_QPT_XP or IBV_QPT_RC, by the card's transport."""
    qp_type: QPType = None
    qp_context: object = None
    scq: object = None
    rcq: object = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: int = 1
    recv_timeout_ns: int = None
    send_timeout_ns: int = None
    arrival_bytes: int = 0


@dataclass
class QPAttr:
    """Transport rc: PSNs, timeout, retry_cnt, rnr_retry, min_rnr_timer as in verbs. The card takes all of them at RTR, those of
    sending too. `max_rd_atomic`: READs and atomics under way, 0: none; if it is less than the requests that the card may have
    outstanding, it bounds those of every kind. Of type UC the PSNs alone count. Transport xp: of no effect, all of these; but
    from the peer's QP.info() `dest_generation`, and for READs the number and generation of its companion, and `paths`: UDP
    source ports over which packets are spread, a power of two up to 128.

    Taken, and of no effect, are pkey_index and qp_access_flags (access is a matter of the memory region alone)."""
    qp_state: QPState = QPState.IBV_QPS_RESET
    cur_qp_state: QPState = QPState.IBV_QPS_RESET
    port_num: int = 1
    path_mtu: MTU = MTU.IBV_MTU_1024
    dest_qp_num: int = 0
    ah_attr: AHAttr = None
    qp_access_flags: AccessFlags = AccessFlags(0)
    rq_psn: int = 0
    sq_psn: int = 0
    max_rd_atomic: int = 0
    max_dest_rd_atomic: int = 0
    min_rnr_timer: int = 0
    timeout: int = 0
    retry_cnt: int = 0
    rnr_retry: int = 0
    pkey_index: int = 0
    dest_generation: int = None
    dest_read_qp_num: int = None
    dest_read_generation: int = None
    paths: int = 1
