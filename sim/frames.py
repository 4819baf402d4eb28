"""Builds RoCEv2 frames in plain Python, right ones and wrong ones, for benches and tests.

Shares no code with the hardware or with the models. `build()` takes the fields of every header; each has a right
default, lengths and checksums too, and any of them may be given wrong. `uc_*`, `xp_*` and `cnp` are short forms.
"""

from ipaddress import ip_address
import struct
import zlib

__all__ = ["build", "uc_send", "uc_write", "xp_send", "xp_write", "xp_read", "xp_answer", "xp_header", "reth", "cnp", "flip", "LOCAL", "REMOTE"]

LOCAL = ("02:00:00:00:00:01", "10.0.0.1", "fd00::1")
REMOTE = ("02:00:00:00:00:02", "10.0.0.2", "fd00::2")


def mac_bytes(text):
    return bytes.fromhex(text.replace(":", ""))


def ones_complement_sum(data):
    """Internet checksum of an even number of bytes."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data)) % 0xFFFF
    return 0xFFFF - total if total else 0xFFFF if not any(data) else 0


def build(opcode, qpn, *, headers=b"", payload=b"",
          # BTH
          psn=0, pad=None, pad_bytes=None, solicited=0, migrated=0, tver=0, pkey=0xFFFF, fecn_becn=0, ack=0,
          # UDP and IP; an IPv6 source makes it an IPv6 frame
          src=REMOTE[1], dst=LOCAL[1], sport=0xC001, dport=4791, udp_len=None, udp_checksum=0, tos=0, ttl=64, ident=0,
          flags_fragment=0x4000, protocol=17, version=None, ihl=5, ip_len=None, ip_checksum=None, flow_label=0,
          # Ethernet
          src_mac=REMOTE[0], dst_mac=LOCAL[0], vlan=None, ethertype=None, trailer=b"",
          # ICRC: XORed with the right one
          icrc_xor=0):
    """The frame, without FCS. `headers`: the extension headers; `trailer`: bytes behind the IP datagram; `vlan`: a tag
    control field; `ip_len`: IPv4 total length or IPv6 payload length."""
    pad = -len(payload) % 4 if pad is None else pad
    filler = bytes(pad) if pad_bytes is None else pad_bytes
    source, target = ip_address(src), ip_address(dst)
    six = source.version == 6
    if six and target.version == 4:
        target = ip_address(LOCAL[2])

    flags = solicited << 7 | migrated << 6 | (pad & 3) << 4 | tver
    bth = lambda congestion: struct.pack(">BBHII", opcode, flags, pkey, congestion << 24 | qpn, ack << 31 | psn)
    body = headers + payload + filler
    real = 8 + 12 + len(body) + 4
    udp_len = real if udp_len is None else udp_len
    udp = lambda checksum: struct.pack(">HHHH", sport, dport, udp_len & 0xFFFF, checksum)

    if six:
        version = 6 if version is None else version
        length = real if ip_len is None else ip_len
        addresses = source.packed + target.packed
        ip = struct.pack(">IHBB", version << 28 | tos << 20 | flow_label, length & 0xFFFF, protocol, ttl) + addresses
        masked = struct.pack(">IHBB", version << 28 | 0x0FFFFFFF, length & 0xFFFF, protocol, 0xFF) + addresses
    else:
        version = 4 if version is None else version
        length = 20 + real if ip_len is None else ip_len

        def ip_header(tos, ttl, checksum):
            return struct.pack(">BBHHHBBH", version << 4 | ihl, tos, length & 0xFFFF, ident, flags_fragment, ttl, protocol,
                               checksum) + source.packed + target.packed
        right = ones_complement_sum(ip_header(tos, ttl, 0))
        ip = ip_header(tos, ttl, right if ip_checksum is None else ip_checksum)
        masked = ip_header(0xFF, 0xFF, 0xFFFF)

    covered = b"\xff" * 8 + masked + udp(0xFFFF) + bth(0xFF) + body
    icrc = struct.pack("<I", zlib.crc32(covered) ^ icrc_xor)
    link = mac_bytes(dst_mac) + mac_bytes(src_mac)
    if vlan is not None:
        link += struct.pack(">HH", 0x8100, vlan)
    link += struct.pack(">H", (0x86DD if six else 0x0800) if ethertype is None else ethertype)
    return link + ip + udp(udp_checksum) + bth(fecn_becn) + body + icrc + trailer


def reth(va, rkey, length):
    return struct.pack(">QII", va, rkey, length)


def xp_header(seq, msg_len, offset, generation=0, tag=0, flags=0x80):
    return struct.pack(">BBHIII", flags, generation, tag, seq, msg_len, offset)


def immediate(imm):
    return b"" if imm is None else struct.pack(">I", imm)


def uc_send(qpn, payload=b"", imm=None, **fields):
    return build(0x24 if imm is None else 0x25, qpn, headers=immediate(imm), payload=payload, **fields)


def uc_write(qpn, payload, va, rkey, imm=None, dma_len=None, **fields):
    dma_len = len(payload) if dma_len is None else dma_len
    return build(0x2A if imm is None else 0x2B, qpn, headers=reth(va, rkey, dma_len) + immediate(imm), payload=payload, **fields)


def xp_send(qpn, payload=b"", *, seq=0, msg_len=None, offset=0, generation=0, tag=0, imm=None, flags=0x80, **fields):
    header = xp_header(seq, len(payload) if msg_len is None else msg_len, offset, generation, tag, flags)
    return build(0xE4 if imm is None else 0xE5, qpn, headers=header + immediate(imm), payload=payload, **fields)


def xp_write(qpn, payload, va, rkey, *, imm=None, seq=0, msg_len=None, offset=0, generation=0, tag=0, flags=None,
             dma_len=None, **fields):
    """With `imm` a piece of a message that takes a receive, without it plain placement."""
    flags = (0 if imm is None else 0x80) if flags is None else flags
    header = xp_header(seq, len(payload) if msg_len is None else msg_len, offset, generation, tag, flags)
    header += reth(va, rkey, len(payload) if dma_len is None else dma_len)
    return build(0xEA if imm is None else 0xEB, qpn, headers=header + immediate(imm), payload=payload, **fields)


def xp_read(qpn, va, rkey, length, *, seq=0, msg_len=None, offset=0, generation=0, tag=0, flags=0, **fields):
    """A READ request; `seq` is the receive of the one who asks that takes the answer."""
    header = xp_header(seq, length if msg_len is None else msg_len, offset, generation, tag, flags) + reth(va, rkey, length)
    return build(0xEC, qpn, headers=header, **fields)


def xp_answer(qpn, payload=b"", *, seq=0, msg_len=None, offset=0, generation=0, tag=0, flags=0x80, **fields):
    """A piece of the answer to a READ."""
    header = xp_header(seq, len(payload) if msg_len is None else msg_len, offset, generation, tag, flags)
    return build(0xF0, qpn, headers=header, payload=payload, **fields)


def cnp(qpn, **fields):
    return build(0x81, qpn, payload=bytes(16), **{"fecn_becn": 0x40, "tos": 48 << 2} | fields)


def flip(frame, bit):
    """`frame` with one bit inverted; bit 0 is the lowest of the first byte."""
    out = bytearray(frame)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)
