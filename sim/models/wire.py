"""What a frame is: framing, IPv4 checksum, ICRC, BTH and extension headers, from the bytes alone.

Written from the wire format (IBTA volume 1, annex A17, and the XP header), not from the hardware's parser, and kept
plain: one frame at a time, top to bottom, so that it can be read against the format.
"""

from dataclasses import dataclass
import struct
import zlib

__all__ = ["Rules", "Packet", "inspect", "icrc", "ROCE_PORT", "ORDER"]

ROCE_PORT = 4791
BTH, XPETH, RETH, IMMDT, ICRC = 12, 16, 16, 4, 4

#: reasons of the frame alone, the first of several counts
ORDER = ("runt", "length", "checksum", "icrc", "version", "opcode")

SEND, SEND_IMM, WRITE, WRITE_IMM = 0x04, 0x05, 0x0A, 0x0B      # low five bits of the single-packet forms
READ, READ_RESPONSE = 0x0C, 0x10

RC = {*range(0x00, 0x15), 0x16, 0x17, 0x1C, 0x1D}
UC = {*range(0x20, 0x2C)}
UD = {0x64, 0x65}
CNP = 0x81
XP_TAKEN = {0xE0 | op for op in (SEND, SEND_IMM, WRITE, WRITE_IMM, READ, READ_RESPONSE)}
XP_OTHER = {0xF1, 0xFE}
DEFINED = RC | UC | UD | {CNP} | XP_TAKEN | XP_OTHER

UC_SINGLE = {0x20 | op for op in (SEND, SEND_IMM, WRITE, WRITE_IMM)}
UC_RETH = {0x26, 0x2A, 0x2B}            # WRITE first, only, only with immediate
UC_IMM = {0x23, 0x25, 0x29, 0x2B}       # SEND last, only; WRITE last, only; each with immediate


@dataclass(frozen=True)
class Rules:
    """What a card was built to take."""
    mtu_max: int = 4096
    max_frame_bytes: int = 4224
    ipv6: bool = True
    vlan: bool = True
    uc: bool = True


@dataclass
class Packet:
    """Of a refused frame only `reason` is set; of one that isn't for the transport, only `passed`."""
    passed: bool = False
    reason: str = None
    kind: str = None            # "xp", "uc" (one whole message), "cnp", "other" (defined, but for no queue pair here)
    op: int = 0                 # low five bits of the opcode
    qpn: int = 0
    pkey: int = 0
    source: bytes = b""         # 4 or 16 bytes
    ce: bool = False            # congestion was experienced
    payload: bytes = b""
    generation: int = 0
    tag: int = 0
    seq: int = 0
    msg_len: int = 0
    offset: int = 0
    va: int = 0
    rkey: int = 0
    read_len: int = 0           # bytes that a READ asks for
    imm: int = 0

    @property
    def write(self):
        return self.op in (WRITE, WRITE_IMM)

    @property
    def read(self):
        return self.op == READ

    @property
    def has_imm(self):
        return self.op in (SEND_IMM, WRITE_IMM)

    @property
    def tracked(self):
        """Belongs to a posted receive."""
        return self.op not in (WRITE, READ)


def number(data, at, size):
    return int.from_bytes(data[at:at + size], "big")


def icrc(datagram, header):
    """ICRC of an IP datagram without its last four bytes, `header` bytes of which are IP: as it is sent, little endian."""
    masked = bytearray(datagram)
    if header == 20:
        masked[1] = masked[8] = 0xFF                    # type of service, time to live
        masked[10:12] = b"\xff\xff"                     # header checksum
    else:
        masked[0] |= 0x0F                               # traffic class, flow label
        masked[1:4] = b"\xff\xff\xff"
        masked[7] = 0xFF                                # hop limit
    masked[header + 6:header + 8] = b"\xff\xff"         # UDP checksum
    masked[header + 8 + 4] = 0xFF                       # FECN, BECN, reserved
    return zlib.crc32(bytes(masked), zlib.crc32(b"\xff" * 8)).to_bytes(4, "little")


def ipv4_checksum_right(header):
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


def inspect(frame, rules=Rules(), read=None):
    """The :class:`Packet` in `frame`. `read`: the reader of the transport's headers, by default that of XP."""
    if len(frame) > rules.max_frame_bytes:
        return Packet(reason="length")
    if len(frame) < 14:
        return Packet(reason="runt")
    at = 14
    if number(frame, 12, 2) == 0x8100 and rules.vlan:
        at = 18
        if len(frame) < at:
            return Packet(reason="runt")
    ethertype = number(frame, at - 2, 2)
    if ethertype == 0x0800:
        return inspect_ip(frame, at, 20, rules, read or read_transport)
    if ethertype == 0x86DD and rules.ipv6:
        return inspect_ip(frame, at, 40, rules, read or read_transport)
    return Packet(passed=True)


def inspect_ip(frame, at, header, rules, read):
    v4 = header == 20
    have = len(frame) - at
    if have < header:
        return Packet(reason="runt")
    version, ihl = frame[at] >> 4, frame[at] & 15
    if version != (4 if v4 else 6) or v4 and ihl < 5:
        return Packet(reason="length")
    if frame[at + (9 if v4 else 6)] != 17:
        return Packet(passed=True)
    if v4 and ihl > 5:
        return Packet(reason="length")
    if have < header + 8:
        return Packet(reason="runt")
    udp = at + header
    if number(frame, udp + 2, 2) != ROCE_PORT:
        return Packet(passed=True)
    if have < header + 8 + BTH + ICRC:
        return Packet(reason="runt")

    found = set()
    datagram = number(frame, at + 2, 2) if v4 else header + number(frame, at + 4, 2)
    udp_len = number(frame, udp + 4, 2)
    if datagram > have or datagram < header + 8 + BTH + ICRC or udp_len != datagram - header:
        return Packet(reason="length")
    if v4 and number(frame, at + 6, 2) & 0x3FFF:
        found.add("length")
    if v4 and not ipv4_checksum_right(frame[at:at + 20]):
        found.add("checksum")
    end = at + datagram - ICRC
    if icrc(frame[at:end], header) != frame[end:end + ICRC]:
        found.add("icrc")

    packet = read(frame, udp + 8, end, rules, found)
    packet.source = frame[at + 12:at + 16] if v4 else frame[at + 8:at + 24]
    packet.ce = (frame[at + 1] if v4 else number(frame, at, 2) >> 4) & 3 == 3
    if found:
        return Packet(reason=next(reason for reason in ORDER if reason in found))
    return packet


def read_transport(frame, at, end, rules, found):
    """BTH at `at` and what follows it up to the ICRC at `end`; what is wrong is added to `found`."""
    opcode, pad = frame[at], frame[at + 1] >> 4 & 3
    packet = Packet(op=opcode & 0x1F, qpn=number(frame, at + 5, 3), pkey=number(frame, at + 2, 2))
    if frame[at + 1] & 15:
        found.add("version")
    if opcode not in DEFINED:
        found.add("opcode")
        return packet
    if opcode in XP_TAKEN:
        packet.kind = "xp"
    elif opcode == CNP:
        packet.kind = "cnp"
    elif opcode in UC_SINGLE and rules.uc:
        packet.kind = "uc"
    else:
        packet.kind = "other"

    xp, uc = packet.kind == "xp", opcode in UC
    if not (xp or uc or packet.kind == "cnp"):
        return packet
    at += BTH
    extended = (XPETH * xp + RETH * (xp and (packet.write or packet.read) or opcode in UC_RETH)
                + IMMDT * (xp and packet.has_imm or opcode in UC_IMM))
    size = end - at - extended - pad
    if size < 0:
        found.add("length")
        return packet
    if packet.kind in ("cnp", "other"):
        return packet

    if size > rules.mtu_max:
        found.add("length")
    packet.msg_len = size
    if xp:
        packet.generation = frame[at + 1]
        packet.tag, packet.seq, packet.msg_len, packet.offset = struct.unpack_from(">HIII", frame, at + 2)
        at += XPETH
        if packet.tracked and packet.offset + size > packet.msg_len:
            found.add("length")
    if packet.write:
        packet.va, packet.rkey, length = struct.unpack_from(">QII", frame, at)
        if length != size:
            found.add("length")
        at += RETH
    if packet.read:
        packet.va, packet.rkey, packet.read_len = struct.unpack_from(">QII", frame, at)
        if size or packet.read_len != packet.msg_len:
            found.add("length")
        at += RETH
    if packet.has_imm:
        packet.imm = number(frame, at, 4)
        at += IMMDT
    packet.payload = frame[at:at + size]
    return packet
