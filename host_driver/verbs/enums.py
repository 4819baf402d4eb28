"""Names and numbers as in libibverbs (and pyverbs.enums), and the few that OptiNIC adds, which begin with OPT.

Each is a member of its enumeration, WCStatus.IBV_WC_SUCCESS, and there by itself, IBV_WC_SUCCESS.
"""

from enum import IntEnum, IntFlag


class QPType(IntEnum):
    IBV_QPT_RC = 2          # on a card of transport rc
    IBV_QPT_UC = 3          # interoperates with standard UC peers; on a card of transport xp every message is one packet
    OPT_QPT_XP = 0x100      # OptiNIC's own: best effort, out of order, messages of any length


class QPState(IntEnum):
    IBV_QPS_RESET = 0
    IBV_QPS_INIT = 1
    IBV_QPS_RTR = 2
    IBV_QPS_RTS = 3
    IBV_QPS_SQD = 4
    IBV_QPS_ERR = 6


class QPAttrMask(IntFlag):
    IBV_QP_STATE = 1 << 0
    IBV_QP_CUR_STATE = 1 << 1
    IBV_QP_ACCESS_FLAGS = 1 << 3
    IBV_QP_PKEY_INDEX = 1 << 4
    IBV_QP_PORT = 1 << 5
    IBV_QP_AV = 1 << 7
    IBV_QP_PATH_MTU = 1 << 8
    IBV_QP_TIMEOUT = 1 << 9
    IBV_QP_RETRY_CNT = 1 << 10
    IBV_QP_RNR_RETRY = 1 << 11
    IBV_QP_RQ_PSN = 1 << 12
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13
    IBV_QP_MIN_RNR_TIMER = 1 << 15
    IBV_QP_SQ_PSN = 1 << 16
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17
    IBV_QP_CAP = 1 << 19
    IBV_QP_DEST_QPN = 1 << 20


class MTU(IntEnum):
    IBV_MTU_256 = 1
    IBV_MTU_512 = 2
    IBV_MTU_1024 = 3
    IBV_MTU_2048 = 4
    IBV_MTU_4096 = 5


class AccessFlags(IntFlag):
    IBV_ACCESS_LOCAL_WRITE = 1
    IBV_ACCESS_REMOTE_WRITE = 2
    IBV_ACCESS_REMOTE_READ = 4
    IBV_ACCESS_REMOTE_ATOMIC = 8


class WROpcode(IntEnum):
    IBV_WR_RDMA_WRITE = 0
    IBV_WR_RDMA_WRITE_WITH_IMM = 1
    IBV_WR_SEND = 2
    IBV_WR_SEND_WITH_IMM = 3
    IBV_WR_RDMA_READ = 4
    IBV_WR_ATOMIC_CMP_AND_SWP = 5
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6
    IBV_WR_SEND_WITH_INV = 9


class SendFlags(IntFlag):
    IBV_SEND_FENCE = 1
    IBV_SEND_SIGNALED = 2
    IBV_SEND_SOLICITED = 4
    IBV_SEND_INLINE = 8


class WCStatus(IntEnum):
    IBV_WC_SUCCESS = 0
    IBV_WC_LOC_LEN_ERR = 1
    IBV_WC_LOC_PROT_ERR = 4
    IBV_WC_WR_FLUSH_ERR = 5
    IBV_WC_REM_INV_REQ_ERR = 9
    IBV_WC_REM_ACCESS_ERR = 10
    IBV_WC_REM_OP_ERR = 11
    IBV_WC_RETRY_EXC_ERR = 12
    IBV_WC_RNR_RETRY_EXC_ERR = 13
    IBV_WC_FATAL_ERR = 19
    OPT_WC_PARTIAL = 0x100  # not an error: the time was up, and WC.cause, byte_len and msg_len say what there is


class WCOpcode(IntEnum):
    IBV_WC_SEND = 0
    IBV_WC_RDMA_WRITE = 1
    IBV_WC_RDMA_READ = 2
    IBV_WC_COMP_SWAP = 3
    IBV_WC_FETCH_ADD = 4
    IBV_WC_RECV = 128
    IBV_WC_RECV_RDMA_WITH_IMM = 129


class WCFlags(IntFlag):
    IBV_WC_WITH_IMM = 2
    IBV_WC_WITH_INV = 8


class PortState(IntEnum):
    IBV_PORT_DOWN = 1
    IBV_PORT_ACTIVE = 4


ENUMS = (QPType, QPState, QPAttrMask, MTU, AccessFlags, WROpcode, SendFlags, WCStatus, WCOpcode, WCFlags, PortState)
NAMES = {member.name: member for enum in ENUMS for member in enum}
globals().update(NAMES)

__all__ = [*(enum.__name__ for enum in ENUMS), *NAMES]


def mtu_bytes(code):
    return 128 << MTU(code)


def mtu_code(size):
    """The MTU of so many bytes."""
    for code in MTU:
        if mtu_bytes(code) == size:
            return code
    raise ValueError(f"mtu={size} is not one of {', '.join(str(mtu_bytes(code)) for code in MTU)}")
