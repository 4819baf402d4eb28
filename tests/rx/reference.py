"""Frames for the receive tests and a plain judge of them: one frame at a time, nothing shared with the hardware.

The ICRC comes from zlib here; test_reference holds it against scapy's.
"""

import zlib

RUNT, LENGTH, CHECKSUM, BAD_ICRC, VERSION, OPCODE = "runt", "length", "checksum", "icrc", "version", "opcode"
PORT = 4791

XP_SEND, XP_SEND_IMM, XP_WRITE, XP_WRITE_IMM = 0xE4, 0xE5, 0xEA, 0xEB
UC_SEND, UC_SEND_IMM, UC_WRITE, UC_WRITE_IMM = 0x24, 0x25, 0x2A, 0x2B
XP_READ, XP_ANSWER = 0xEC, 0xF0
CNP = 0x81
XP = (XP_SEND, XP_SEND_IMM, XP_WRITE, XP_WRITE_IMM, XP_ANSWER)
UC = (UC_SEND, UC_SEND_IMM, UC_WRITE, UC_WRITE_IMM)
WRITES = (XP_WRITE, XP_WRITE_IMM, UC_WRITE, UC_WRITE_IMM)
IMMS = (XP_SEND_IMM, XP_WRITE_IMM, UC_SEND_IMM, UC_WRITE_IMM)
DEFINED = {*range(0x00, 0x15), 0x16, 0x17, 0x1C, 0x1D, *range(0x20, 0x2C), 0x64, 0x65, CNP, *XP, XP_READ, 0xF1, 0xFE}


def be(value, size):
    return value.to_bytes(size, "big")


def num(data):
    return int.from_bytes(data, "big")


def checksum(data):
    total = sum(num(data[i:i + 2]) for i in range(0, len(data), 2))
    while total > 0xFFFF:
        total = total % 0x10000 + total // 0x10000
    return 0xFFFF - total


def icrc(ip):
    """ICRC bytes of an IP datagram that ends where its ICRC begins."""
    b = bytearray(ip)
    if b[0] >> 4 == 6:
        b[0] |= 0x0F
        for i in (1, 2, 3, 7, 46, 47, 52):
            b[i] = 0xFF
    else:
        for i in (1, 8, 10, 11, 26, 27, 32):
            b[i] = 0xFF
    return zlib.crc32(bytes(8 * [255]) + bytes(b)).to_bytes(4, "little")


def build(opcode=UC_WRITE, payload=b"", *, v6=False, vlan=None, tail=b"", pad_to=0, tos=0, ttl=64, ident=0, src=None,
          dst=None, sport=0xC001, pkey=0xFFFF, qpn=0x11, psn=0x123456, bth1=0, bth4=0, generation=0, tag=0, seq=0,
          msg_len=None, offset=0, va=0x123456789ABC, rkey=0xDEADBEEF, imm=0, reth_len=None, pad_byte=0, ext=None,
          udp_sum=0, flow=0, dport=PORT):
    """A right RoCEv2 frame, but for what the arguments say."""
    pad = -len(payload) % 4
    head = b""
    if opcode >> 5 == 7:
        total = len(payload) if msg_len is None else msg_len
        head += be(0x80 if opcode != XP_WRITE else 0, 1) + be(generation, 1) + be(tag, 2) + be(seq, 4) + be(total, 4) + be(offset, 4)
    if opcode in WRITES:
        head += be(va, 8) + be(rkey, 4) + be(len(payload) if reth_len is None else reth_len, 4)
    if opcode in IMMS:
        head += be(imm, 4)
    if ext is not None:
        head = ext
    bth = be(opcode, 1) + be(bth1 | pad << 4, 1) + be(pkey, 2) + be(bth4, 1) + be(qpn, 3) + be(psn, 4)
    body = bth + head + payload + bytes([pad_byte]) * pad
    udp = be(sport, 2) + be(dport, 2) + be(len(body) + 12, 2) + be(udp_sum, 2)
    if v6:
        src = src or bytes.fromhex("fd000000000000000000000000000002")
        dst = dst or bytes.fromhex("fd000000000000000000000000000001")
        ip = be(6 << 28 | tos << 20 | flow, 4) + be(len(body) + 12, 2) + be(17, 1) + be(ttl, 1) + src + dst
    else:
        src, dst = src or bytes([192, 168, 0, 1]), dst or bytes([192, 168, 0, 2])
        ip = be(0x45, 1) + be(tos, 1) + be(len(body) + 32, 2) + be(ident, 2) + be(0x4000, 2) + be(ttl, 1) + be(17, 1)
        ip += be(checksum(ip + src + dst), 2) + src + dst
    datagram = ip + udp + body
    eth = bytes.fromhex("020000000001020000000002")
    eth += (be(0x8100, 2) + be(vlan, 2) if vlan is not None else b"") + be(0x86DD if v6 else 0x0800, 2)
    frame = eth + datagram + icrc(datagram) + tail
    return frame + bytes(max(0, pad_to - len(frame)))


def reseal(frame):
    """The frame with the ICRC right again after changes, where its headers still say where that is."""
    l3 = 18 if frame[12:14] == b"\x81\x00" else 14
    size = num(frame[l3 + 2:l3 + 4]) if frame[l3] >> 4 == 4 else 40 + num(frame[l3 + 4:l3 + 6])
    end = l3 + size - 4
    if end + 4 > len(frame) or size < 48:
        return frame
    return frame[:end] + icrc(frame[l3:end]) + frame[end + 4:]


def refused(reason):
    return {"passed": 0, "reason": reason}


def framing(frame, cfg, damaged=False):
    """What stands around the BTH: a verdict; or (what is wrong, where the IP header begins, the datagram with what follows it, size of
    the IP header, UDP length)."""
    passed = {"passed": 1, "reason": None}
    if damaged:
        return refused(RUNT)
    if len(frame) > cfg.max_frame_bytes:
        return refused(LENGTH)
    if len(frame) < 14:
        return refused(RUNT)
    l3 = 14
    if cfg.vlan and frame[12:14] == b"\x81\x00":
        l3 = 18
        if len(frame) < 18:
            return refused(RUNT)
    kind = frame[l3 - 2:l3]
    v6 = kind == b"\x86\xdd" and cfg.ipv6
    if not v6 and kind != b"\x08\x00":
        return passed
    ip = frame[l3:]
    hl = 40 if v6 else 20
    if len(ip) < hl:
        return refused(RUNT)
    if ip[0] >> 4 != (6 if v6 else 4) or (not v6 and ip[0] & 15 < 5):
        return refused(LENGTH)
    if ip[6 if v6 else 9] != 17:
        return passed
    if not v6 and ip[0] & 15 > 5:
        return refused(LENGTH)
    if len(ip) < hl + 8:
        return refused(RUNT)
    if num(ip[hl + 2:hl + 4]) != PORT:
        return passed
    if len(ip) < hl + 24:
        return refused(RUNT)

    bad = set()
    total = num(ip[4:6]) + 40 if v6 else num(ip[2:4])
    ul = num(ip[hl + 4:hl + 6])
    if total > len(ip) or total < hl + 24 or ul != total - hl:
        return refused(LENGTH)
    if not v6:
        if num(ip[6:8]) & 0x3FFF:
            bad.add(LENGTH)
        if checksum(ip[:20]):
            bad.add(CHECKSUM)
    if icrc(ip[:total - 4]) != ip[total - 4:total]:
        bad.add(BAD_ICRC)
    return bad, l3, ip, hl, ul


def judge(frame, cfg, damaged=False):
    """What the ingress must say of a frame: a dict of descriptor fields. `reason` is a word, or None."""
    found = framing(frame, cfg, damaged)
    if isinstance(found, dict):
        return found
    bad, l3, ip, hl, ul = found
    v6 = hl == 40
    bth = ip[hl + 8:hl + 20]
    opcode, pad = bth[0], bth[1] >> 4 & 3
    if bth[1] & 15:
        bad.add(VERSION)
    if opcode not in DEFINED:
        bad.add(OPCODE)
    placed = opcode in XP or opcode in UC and cfg.uc
    ext = 0
    read = opcode == XP_READ
    if placed or read or 0x20 <= opcode < 0x2C or opcode == CNP:
        ext = 32 * read + 16 * (opcode in XP) + 16 * (opcode in WRITES or opcode == 0x26) + 4 * (opcode in IMMS or opcode in (0x23, 0x29))
        p = ul - 24 - ext - pad
        if p < 0:
            bad.add(LENGTH)
        elif read:
            head = ip[hl + 20:]
            if p or num(head[28:32]) != num(head[8:12]):
                bad.add(LENGTH)
        elif placed:
            head = ip[hl + 20:]
            if p > cfg.mtu_max:
                bad.add(LENGTH)
            if opcode in WRITES and num(head[28:32] if opcode in XP else head[12:16]) != p:
                bad.add(LENGTH)
            if opcode in XP and opcode != XP_WRITE and num(head[12:16]) + p > num(head[8:12]):
                bad.add(LENGTH)
    for reason in (LENGTH, CHECKSUM, BAD_ICRC, VERSION, OPCODE):
        if reason in bad:
            return refused(reason)

    want = {"passed": 0, "reason": None, "is_xp": int(opcode in XP or read), "is_uc": int(opcode in UC and cfg.uc),
            "is_cnp": int(opcode == CNP), "other": int(not placed and not read and opcode != CNP), "is_read": int(read),
            "ce": int((num(ip[:2]) >> 4 if v6 else ip[1]) & 3 == 3),
            "qpn": num(bth[5:8]), "pkey": num(bth[2:4]), "psn": num(bth[9:12]), "src_v6": int(v6),
            "src_ip": num(ip[8:24] if v6 else ip[12:16])}
    if read:
        head = ip[hl + 20:]
        want |= {"tracked": 0, "generation": head[1], "tag": num(head[2:4]), "seq": num(head[4:8]), "msg_len": num(head[8:12]),
                 "pay_len": 0, "va": num(head[16:24]), "rkey": num(head[24:28])}
    if placed:
        head = ip[hl + 20:]
        want |= {"is_answer": int(opcode == XP_ANSWER), "tracked": int(opcode != XP_WRITE and opcode != UC_WRITE), "is_write": int(opcode in WRITES),
                 "has_imm": int(opcode in IMMS), "pay_len": p, "pay_off": l3 + hl + 20 + ext, "offset": 0, "msg_len": p}
        if opcode in XP:
            want |= {"generation": head[1], "tag": num(head[2:4]), "seq": num(head[4:8]), "msg_len": num(head[8:12]),
                     "offset": num(head[12:16])}
            head = head[16:]
        if opcode in WRITES:
            want |= {"va": num(head[:8]), "rkey": num(head[8:12])}
            head = head[16:]
        if opcode in IMMS:
            want["imm"] = num(head[:4])
    return want
