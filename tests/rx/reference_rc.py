"""The judge of frames for the ingress of transport rc, and frames with RC and UC headers: nothing shared with the hardware."""

from .reference import BAD_ICRC, CHECKSUM, CNP, DEFINED, LENGTH, OPCODE, VERSION, build, framing, num, refused

RC = {*range(0x00, 0x15), 0x16, 0x17}
UC = {*range(0x20, 0x2C)}
RETH, IMM, IETH = {0x06, 0x0A, 0x0B, 0x0C}, {0x03, 0x05, 0x09, 0x0B}, {0x16, 0x17}
AETH, ATOMIC = {0x0D, 0x0F, 0x10, 0x11, 0x12}, {0x13, 0x14}
BARE = {0x0C, 0x11, 0x13, 0x14}


def head_size(op):
    """Bytes between BTH and payload; the original value of an atomic counts as payload."""
    return 16 * (op in RETH) + 4 * (op in IMM or op in IETH or op in AETH) + 28 * (op in ATOMIC)


def build_rc(opcode, payload=b"", *, head=None, **more):
    """A right frame; each byte of its extension headers is another one, unless `head` gives them."""
    op = opcode & 0x1F
    if opcode in RC | UC:
        head = bytes(17 * (i + 1) % 256 for i in range(head_size(op))) if head is None else head
    return build(opcode, payload, ext=head or b"", **more)


def judge_rc(frame, cfg, damaged=False):
    found = framing(frame, cfg, damaged)
    if isinstance(found, dict):
        return found
    bad, l3, ip, hl, ul = found
    at = hl + 8
    opcode, flags = ip[at], ip[at + 1]
    op, pad = opcode % 32, flags >> 4 & 3
    mine = opcode in RC or opcode in UC and cfg.uc
    if flags & 15:
        bad.add(VERSION)
    if opcode not in DEFINED:
        bad.add(OPCODE)
    head = 0 if opcode == CNP else head_size(op)
    size = ul - 8 - 12 - 4 - head - pad
    if (mine or opcode in UC or opcode == CNP) and size < 0:
        bad.add(LENGTH)
    if mine and (size > cfg.mtu_max or op in BARE and size or op == 0x12 and size != 8):
        bad.add(LENGTH)
    for reason in (LENGTH, CHECKSUM, BAD_ICRC, VERSION, OPCODE):
        if reason in bad:
            return refused(reason)
    v6 = hl == 40
    want = {"passed": 0, "reason": None, "is_cnp": int(opcode == CNP), "other": int(not mine and opcode != CNP),
            "ce": int((num(ip[:2]) >> 4 if v6 else ip[1]) & 3 == 3), "qpn": num(ip[at + 5:at + 8]), "pkey": num(ip[at + 2:at + 4]),
            "psn": num(ip[at + 9:at + 12]), "src_v6": int(v6), "src_ip": num(ip[8:24] if v6 else ip[12:16])}
    if mine:
        ext = ip[at + 12:]
        want |= {"uc": int(opcode in UC), "op": op, "ack_req": ip[at + 8] >> 7, "solicited": flags >> 7,
                 "pay_off": l3 + at + 12 + head, "pay_len": size}
        if op in RETH or op in ATOMIC:
            want |= {"va": num(ext[:8]), "rkey": num(ext[8:12])}
        if op in RETH:
            want["dma_len"] = num(ext[12:16])
        if op in ATOMIC and cfg.rc_atomics:
            want |= {"swap_add": num(ext[12:20]), "compare": num(ext[20:28])}
        if op in IMM or op in IETH:
            want["imm"] = num(ext[head - 4:head])
        if op in AETH:
            want |= {"syndrome": ext[0], "msn": num(ext[1:4])}
    return want
