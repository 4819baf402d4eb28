"""The register space: 32-bit words behind the AXI-Lite port, and the mailbox commands."""

from dataclasses import dataclass

from .congestion import DCQCN, NOTIFY, PACER
from .fields import Field
from .verdicts import COUNTERS, NUM_COUNTERS

__all__ = ["Register", "REGISTERS", "COMMANDS", "COMMAND_ERROR", "QP_STATE", "QP_TYPE", "ACCESS", "MTU_CODE",
           "ABI_VERSION", "ID_WORD", "COUNTER_BASE", "ARG_BASE", "NUM_ARGS", "TRANSPORT", "CONGESTION",
           "FEATURES", "offset_of"]

ABI_VERSION = 0x0001_0000
ID_WORD = 0x4F50_544E           # "OPTN"
TRANSPORT = {"xp": 1, "rc": 2, "sr": 3}
CONGESTION = {"none": 0, "dcqcn": 1, "fixed": 2}
FEATURES = ("ipv6", "vlan", "uc", "pass_through", "trace", "arrival_map", "rc_atomics")     #: bit i of the FEATURES register


@dataclass(frozen=True)
class Register:
    name: str
    offset: int
    access: str         #: "ro" value from the card, "rw" storage, "wo" a write is an event
    doc: str
    reset: int = 0
    fields: tuple = ()


ARG_BASE, NUM_ARGS = 0x100, 12
COUNTER_BASE = 0x400            #: counter i: low word at COUNTER_BASE + 8 i, high word 4 above

REGISTERS = (
    Register("ID", 0x000, "ro", "identification, \"OPTN\"", ID_WORD),
    Register("VERSION", 0x004, "ro", "version of this interface, major << 16 | minor", ABI_VERSION),
    Register("TRANSPORT", 0x008, "ro", "1 xp, 2 rc, 3 sr"),
    Register("CONFIG_HASH", 0x00C, "ro", "first 32 bits of SHA-256 over the sorted JSON of the configuration"),
    Register("DATA_WIDTH", 0x010, "ro", "datapath, bits"),
    Register("NUM_QPS", 0x014, "ro", "queue pairs"),
    Register("NUM_REGIONS", 0x018, "ro", "entries of the region table, both banks"),
    Register("NUM_CQS", 0x01C, "ro", "completion queues"),
    Register("NUM_PEERS", 0x020, "ro", "peer addresses"),
    Register("CLOCK_HZ", 0x024, "ro", "clock, Hz"),
    Register("MTU_MAX", 0x028, "ro", "largest path MTU, bytes"),
    Register("RQ_ENTRIES", 0x02C, "ro", "receive ring of every QP, work requests"),
    Register("FEATURES", 0x030, "ro", "bits: " + ", ".join(f"{i} {n}" for i, n in enumerate(FEATURES))),
    Register("RX_BUFFER_BYTES", 0x034, "ro", "packet buffer"),
    Register("NUM_VECTORS", 0x038, "ro", "completion vectors"),
    Register("CTRL", 0x040, "rw", "control", 0, (
        Field("rx_enable", 0, 1, "accept frames; while 0 every frame is discarded at the MAC and not counted"),
        Field("rx_hold", 1, 1, "1: a full packet buffer holds the MAC (PFC); 0: it drops the frame as overflow"),
        Field("tx_enable", 2, 1, "send; while 0 no frame is begun"),
    )),
    Register("STATUS", 0x044, "ro", "state", 0, (
        Field("idle", 0, 1, "no frame, event or host write is under way"),
    )),
    Register("PKEY", 0x048, "rw", "partition key of the port", 0xFFFF),
    Register("DMA_TIMEOUT", 0x04C, "rw", "a host read without an answer for this many clock cycles has failed", 16384),
    Register("RQ_BASE_LO", 0x050, "rw", "bus address of the receive rings: QP i's ring starts at RQ_BASE + i * RQ_ENTRIES * 32"),
    Register("RQ_BASE_HI", 0x054, "rw", "high word of RQ_BASE; RQ_BASE is a multiple of 4096"),
    Register("SQ_ENTRIES", 0x03C, "ro", "send ring of every QP, work requests"),
    Register("CONGESTION", 0x0B0, "ro", "congestion controller: " + ", ".join(f"{v} {k}" for k, v in CONGESTION.items())),
    Register("RC_OUTSTANDING", 0x0B4, "ro", "transport rc: requests of a QP that may be unacknowledged"),
    Register("RC_RESOURCES", 0x0B8, "ro", "transport rc: READs and atomics of a peer's QP that may be unanswered"),
    Register("REFUSAL_LOG", 0x070, "rw", "where refused frames of existing QPs are logged, each as a CQE with opcode refusal", 0, (
        Field("cq", 0, 16, "completion queue of the log"),
        Field("enable", 31, 1, "write the log"),
    )),
    Register("TIME_LO", 0x058, "ro", "NIC time, ns, low word; reading it latches TIME_HI"),
    Register("TIME_HI", 0x05C, "ro", "NIC time, ns, high word as of the last read of TIME_LO"),
    Register("TIME_SET_LO", 0x060, "rw", "low word for TIME_SET_HI"),
    Register("TIME_SET_HI", 0x064, "wo", "writing it sets the NIC time to this word and TIME_SET_LO"),
    Register("IRQ_STATUS", 0x068, "ro", "one bit a completion vector: pending"),
    Register("IRQ_CLEAR", 0x06C, "wo", "write 1 to clear a pending bit"),
    Register("LOCAL_MAC_LO", 0x080, "rw", "MAC address of the port, low 32 of its 48 bits (the first byte on the wire is the highest)"),
    Register("LOCAL_MAC_HI", 0x084, "rw", "high 16 bits of LOCAL_MAC"),
    Register("LOCAL_IP4", 0x088, "rw", "IPv4 address of the port, as a number"),
    *(Register(f"LOCAL_IP6_{i}", 0x08C + 4 * i, "rw", f"IPv6 address of the port, bits {32 * i} to {32 * i + 31}") for i in range(4)),
    Register("HOP_LIMIT", 0x09C, "rw", "TTL and hop limit of frames sent", 64),
    Register("SQ_BASE_LO", 0x0A0, "rw", "bus address of the send rings: QP i's ring starts at SQ_BASE + i * SQ_ENTRIES * 64"),
    Register("SQ_BASE_HI", 0x0A4, "rw", "high word of SQ_BASE; SQ_BASE is a multiple of 4096"),
    *(Register(f"{block}_{name.upper()}", at + 4 * i, "rw", f"{param.doc} ({param.unit})", param.default)
      for block, at, params in (("PACER", 0x0A8, PACER), ("CNP", 0x0AC, NOTIFY), ("DCQCN", 0x300, DCQCN))
      for i, (name, param) in enumerate(params.items())),
    *(Register(f"ARG{i}", ARG_BASE + 4 * i, "rw", "argument of the next command") for i in range(NUM_ARGS)),
    Register("COMMAND", 0x140, "wo", "start a command (see COMMANDS); ignored while one is busy"),
    Register("COMMAND_STATUS", 0x144, "ro", "state of the last command", 0, (
        Field("error", 0, 8, "COMMAND_ERROR of the last command"),
        Field("busy", 31, 1, "a command is under way"),
    )),
    Register("RQ_DOORBELL", 0x200, "wo", "QP index << 16 | receives posted so far, modulo 2^16"),
    Register("SQ_DOORBELL", 0x208, "wo", "QP index << 16 | sends posted so far, modulo 2^16"),
    Register("CQ_DOORBELL", 0x204, "wo", "arm << 31 | CQ index << 16 | completions consumed so far, modulo 2^16"),
)

COMMANDS = {
    "qp_set": (1, "ARG0 QPN; ARG1 state | type << 4 | MTU code << 8 | generation << 16 | arrival map << 24; ARG2 PD; ARG3 peer; "
                  "ARG4 receive CQ; if it has an arrival map (feature arrival_map): ARG5 log2 of the pieces in a row (up to 24) | "
                  "log2 of its rows << 8 (up to 15); ARG6-7 bus address (multiple of 64). "
                  "ARG8 QPN at the peer | generation there << 24; ARG9 send CQ | traffic class (DSCP << 2 | ECN) << 16 | log2 of the "
                  "paths (UDP source ports) << 24 (up to 7). With transport rc: ARG5 first PSN to send | retry count << 24 (3 bits) | RNR "
                  "retry count << 27 (3 bits, 7: for ever); ARG6 first PSN expected | ACK timeout << 24 (5 bits: 4.096 us * 2^t, 0: none); "
                  "ARG7 RNR timer code to ask for (5 bits) | requests outstanding at most << 8 (0: as built). Starts a new life of the QP: receive 0 and send 0 are the next."),
    "qp_destroy": (2, "ARG0 QPN. When done, no packet of the QP writes memory any more."),
    "qp_flush": (3, "ARG0 QPN; ARG1-4 and ARG8-9 as in qp_set, with state error. Completes every posted receive and send as flushed; refused (no_qp) if "
                    "there is no such QP."),
    "region_set": (4, "ARG0 slot (bank << 31 | row); ARG1 key; ARG2-3 VA; ARG4-5 length; ARG6-7 bus address - VA; "
                      "ARG8 PD | access << 16 | valid << 31. When done, no read or write under the slot's old entry is under way."),
    "peer_set": (5, "ARG0 peer; ARG1-4 address as a 128-bit number, low word first (IPv4 in the low word); ARG5 bit 0: IPv6; "
                    "ARG6 low 32 bits of its MAC address, ARG7 the high 16; ARG8 VLAN tag (TCI) | tagged << 16."),
    "cq_set": (6, "ARG0 CQ; ARG1-2 bus address (multiple of 64); ARG3 log2 of its entries | vector << 8 | valid << 31."),
    "fence": (7, "Done when every frame, read and write that was under way has ended."),
    "rate_set": (8, "ARG0 QPN; ARG1 ns a byte * 2^16, 0: not paced. For the controller `fixed`; others ignore it."),
}
COMMAND_ERROR = {"none": 0, "unknown_command": 1, "bad_index": 2, "no_qp": 3}

QP_STATE = {"free": 0, "init": 1, "ready": 2, "error": 3}
QP_TYPE = {"xp": 0, "uc": 1, "rc": 2}      #: a card of transport xp has the first two, one of transport rc the last two
ACCESS = {"local_write": 1, "remote_write": 2, "remote_read": 4, "remote_atomic": 8}
MTU_CODE = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}


def offset_of(name):
    """Byte offset of register or counter `name` (a counter's low word)."""
    for r in REGISTERS:
        if r.name == name:
            return r.offset
    return COUNTER_BASE + 8 * COUNTERS[name]


assert COUNTER_BASE + 8 * NUM_COUNTERS <= 0x1000
