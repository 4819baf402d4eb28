"""Frames as a card sends them, from the wire format alone: Ethernet, IP, UDP, BTH, XP header, RETH, immediate, payload, ICRC.

Everything is written out field by field, so that it can be read against the format; `sim.models.wire` reads what this writes.
"""

from dataclasses import dataclass
import struct

from .wire import ROCE_PORT, icrc

__all__ = ["Port", "Peer", "Header", "SHORTEST_FRAME", "build_frame", "source_port", "internet_checksum"]

LOWEST_SOURCE_PORT = 0xC000
SHORTEST_FRAME = 60         #: bytes, without FCS
DONT_FRAGMENT = 0x4000


@dataclass(frozen=True)
class Port:
    """What the card is called on its cable."""
    mac: bytes = b"\x02\0\0\0\0\x01"
    ip4: bytes = b"\x0a\0\0\x01"
    ip6: bytes = b"\xfd" + bytes(14) + b"\x01"
    hop_limit: int = 64
    pkey: int = 0xFFFF


@dataclass(frozen=True)
class Peer:
    """Whom a queue pair speaks to."""
    ip: bytes = bytes(4)        #: 4 or 16 bytes
    mac: bytes = bytes(6)
    vlan: int = None            #: tag control information, or untagged


@dataclass(frozen=True)
class Header:
    """What is different from packet to packet. The extension headers are there if not None, in this order."""
    opcode: int
    dest_qpn: int
    psn: int = 0
    solicited: bool = False
    becn: bool = False
    tclass: int = 0
    source_port: int = LOWEST_SOURCE_PORT
    xp: tuple = None            #: tracked, generation, tag, message sequence, message length, offset
    reth: tuple = None          #: address, key, length
    imm: int = None             #: or the key to be invalidated (IETH): no packet has both
    ack_req: bool = False       #: this and the following: RC
    atomic: tuple = None        #: address, key, swap or add, compare
    aeth: tuple = None          #: syndrome, message sequence number
    original: int = None        #: what an atomic found


def source_port(index, dest_qpn, psn=0, log2_paths=0):
    """UDP source port: a connection keeps one, or as many as it has paths, which its packets take in turn. `index`: the low bits
    of the QPN, by which the card tells its queue pairs apart."""
    folded = (dest_qpn ^ dest_qpn >> 10 ^ index) & 0x3FFF
    return LOWEST_SOURCE_PORT | folded ^ psn & (1 << log2_paths) - 1


def internet_checksum(header):
    """Of the 20 bytes of an IPv4 header whose checksum field is 0."""
    total = sum(struct.unpack(">10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - ((total & 0xFFFF) + (total >> 16))


def build_frame(port, peer, header, payload=b""):
    """The frame, without FCS, and with zeroes up to the length that Ethernet asks for."""
    pad = -len(payload) % 4
    body = extension_headers(header) + payload + bytes(pad)
    bth = struct.pack(">BBHII", header.opcode, header.solicited << 7 | pad << 4, port.pkey,
                      header.becn << 30 | header.dest_qpn, header.ack_req << 31 | header.psn & 0xFFFFFF)
    udp_length = 8 + len(bth) + len(body) + 4
    udp = struct.pack(">HHHH", header.source_port, ROCE_PORT, udp_length, 0)
    if len(peer.ip) == 4:
        ethertype, size = 0x0800, 20
        fields = struct.pack(">BBHHHBBH", 0x45, header.tclass, 20 + udp_length, 0, DONT_FRAGMENT, port.hop_limit, 17, 0)
        checksum = internet_checksum(fields + port.ip4 + peer.ip)
        ip = fields[:10] + checksum.to_bytes(2, "big") + port.ip4 + peer.ip
    else:
        ethertype, size = 0x86DD, 40
        ip = struct.pack(">IHBB", 6 << 28 | header.tclass << 20, udp_length, 17, port.hop_limit) + port.ip6 + peer.ip
    datagram = ip + udp + bth + body
    tag = b"" if peer.vlan is None else struct.pack(">HH", 0x8100, peer.vlan)
    frame = peer.mac + port.mac + tag + ethertype.to_bytes(2, "big") + datagram + icrc(datagram, size)
    return frame.ljust(SHORTEST_FRAME, b"\0")


def extension_headers(header):
    out = b""
    if header.xp is not None:
        tracked, generation, tag, sequence, msg_len, offset = header.xp
        out += struct.pack(">BBHIII", tracked << 7, generation, tag, sequence, msg_len, offset)
    if header.reth is not None:
        out += struct.pack(">QII", *header.reth)
    if header.atomic is not None:
        out += struct.pack(">QIQQ", *header.atomic)
    if header.imm is not None:
        out += struct.pack(">I", header.imm)
    if header.aeth is not None:
        out += struct.pack(">I", header.aeth[0] << 24 | header.aeth[1])
    if header.original is not None:
        out += struct.pack(">Q", header.original)
    return out
