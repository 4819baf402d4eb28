"""BTH and extension headers of RC and UC packets (IBTA volume 1, chapter 9), for :func:`sim.models.wire.inspect`."""

import struct
from dataclasses import dataclass

from .wire import BTH, CNP, DEFINED, UC, number

__all__ = [
    "ACK",
    "NAK_ACCESS",
    "NAK_INVALID",
    "NAK_OPERATION",
    "NAK_SEQUENCE",
    "PSNS",
    "RNR_NAK",
    "RNR_TIMES_NS",
    "RcPacket",
    "ahead",
    "packets_of",
    "read_rc",
]

SEND, WRITE = range(0x06), range(0x06, 0x0C)
SEND_INVALIDATE = (0x16, 0x17)
READ_REQUEST, READ_RESPONSES = 0x0C, (0x0D, 0x0E, 0x0F, 0x10)
ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x11, 0x12
ATOMICS = (0x13, 0x14)
SPOKEN = {*range(0x15), 0x16, 0x17}       #: of RC; FLUSH and ATOMIC WRITE are not

RETH = {0x06: 16, 0x0A: 16, 0x0B: 16, 0x0C: 16}
IMM = {0x03: 4, 0x05: 4, 0x09: 4, 0x0B: 4, 0x16: 4, 0x17: 4}
ATOMIC = {0x13: 28, 0x14: 28}
AETH = {0x0D: 4, 0x0F: 4, 0x10: 4, 0x11: 4, 0x12: 4}
ORIGINAL = {0x12: 8}
FIRST, ONLY, LAST = (0x00, 0x06), (0x04, 0x05, 0x0A, 0x0B, 0x17), (0x02, 0x03, 0x08, 0x09, 0x16)

ACK, RNR_NAK = 0x1F, 0x20                       #: syndromes; the timer's code is in the low bits of the second
NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS, NAK_OPERATION = 0x60, 0x61, 0x62, 0x63
PSNS = 1 << 24

RNR_TIMES_NS = tuple(10_000 * t for t in (
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
    12288, 16384, 24576, 32768, 49152))


def ahead(psn, base):
    """How far `psn` is behind `base` in the order of sending: from 0 on; what is older has the upper half of the numbers."""
    return (psn - base) % PSNS


def packets_of(length, mtu):
    """Packets of a message, or of the response to a READ."""
    return max(1, -(-length // mtu))


@dataclass
class RcPacket:
    """Of a refused frame only `reason` is set; of one that isn't for the transport, only `passed`. Fields that the opcode hasn't
    got are 0."""
    passed: bool = False
    reason: str = None
    kind: str = None            # "rc", "uc", "cnp", "other" (defined, but for no queue pair here)
    op: int = 0                 # low five bits of the opcode
    qpn: int = 0
    pkey: int = 0
    psn: int = 0
    ack_req: bool = False
    source: bytes = b""         # 4 or 16 bytes
    ce: bool = False
    payload: bytes = b""
    va: int = 0
    rkey: int = 0
    dma_len: int = 0
    imm: int = 0                # or the key to be invalidated
    swap_add: int = 0
    compare: int = 0
    syndrome: int = 0
    msn: int = 0
    original: bytes = b""

    @property
    def seq(self):
        """What a log of refusals calls it."""
        return self.psn

    @property
    def send(self):
        return self.op in SEND or self.op in SEND_INVALIDATE

    @property
    def write(self):
        return self.op in WRITE

    @property
    def read(self):
        return self.op == READ_REQUEST

    @property
    def atomic(self):
        return self.op in ATOMICS

    @property
    def answer(self):
        """Belongs to the requester: a response or an acknowledge."""
        return self.op in READ_RESPONSES or self.op in (ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE)

    @property
    def response(self):
        return self.op in READ_RESPONSES

    @property
    def begins(self):
        return self.op in FIRST or self.op in ONLY

    @property
    def ends(self):
        return self.op in LAST or self.op in ONLY

    @property
    def has_imm(self):
        return self.op in IMM

    @property
    def takes_receive(self):
        """The packet with which the message takes a receive: the first of a SEND, the last of a WRITE with immediate."""
        return self.send and self.begins or self.write and self.has_imm

    @property
    def opcode(self):
        """What a receive that it completes was filled by."""
        if self.op in SEND_INVALIDATE:
            return "send_inv"
        return "write_imm" if self.write else "send_imm" if self.has_imm else "send"


def read_rc(frame, at, end, rules, found):
    """BTH at `at` and what follows it up to the ICRC at `end`; what is wrong is added to `found`."""
    opcode, flags, pkey, qpn, psn = struct.unpack_from(">BBHII", frame, at)
    op, pad = opcode & 0x1F, flags >> 4 & 3
    packet = RcPacket(op=op, qpn=qpn & 0xFFFFFF, pkey=pkey, psn=psn & 0xFFFFFF, ack_req=bool(psn >> 31))
    if flags & 15:
        found.add("version")
    if opcode not in DEFINED:
        found.add("opcode")
        return packet
    uc = opcode in UC
    packet.kind = "cnp" if opcode == CNP else "uc" if uc and rules.uc else "rc" if opcode in SPOKEN else "other"
    if packet.kind == "other" and not uc:
        return packet

    at += BTH
    headers = [table[op] if op in table and packet.kind != "cnp" else 0 for table in (RETH, ATOMIC, IMM, AETH, ORIGINAL)]
    size = end - at - sum(headers) - pad
    if size < 0:
        found.add("length")
        return packet
    if packet.kind in ("cnp", "other"):
        packet.payload = frame[at:at + size] if packet.kind == "cnp" else b""
        return packet
    if size > rules.mtu_max or size and (packet.read or packet.atomic or op in (ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE)):
        found.add("length")
    reth, atomic, imm, aeth, original = headers
    if reth:
        packet.va, packet.rkey, packet.dma_len = struct.unpack_from(">QII", frame, at)
        at += reth
    if atomic:
        packet.va, packet.rkey, packet.swap_add, packet.compare = struct.unpack_from(">QIQQ", frame, at)
        at += atomic
    if imm:
        packet.imm = number(frame, at, 4)
        at += imm
    if aeth:
        packet.syndrome, packet.msn = frame[at], number(frame, at + 1, 3)
        at += aeth
    packet.original = frame[at:at + original]
    at += original
    packet.payload = frame[at:at + size]
    return packet
