"""What the ingress knows of a frame: one record each frame, in order of arrival."""

from amaranth.lib.data import StructLayout

__all__ = ["descriptor_layout", "rc_descriptor_layout"]


def descriptor_layout(cfg):
    """Fields beyond what the opcode defines are undefined, as are all but the first three of a refused or passed frame; for a
    passed frame `pay_off` is the number of bytes in its last beat, 0 for a whole one.

    This is transport xp's; with cfg.rc it is :func:`rc_descriptor_layout`."""
    if cfg.rc:
        return rc_descriptor_layout(cfg)
    return StructLayout({
        "passed": 1,            # not for the transport: goes to the host as it is
        "reason": 5,            # abi REASON, 0: framing, checksum, ICRC, version and opcode are right
        "beats": range(cfg.max_frame_beats + 1),    # that the frame takes in the packet buffer, at least 1
        "is_xp": 1, "is_uc": 1, "is_cnp": 1, "other": 1,    # one of: XP; UC single-packet; CNP; defined, but for no QP here
        "tracked": 1,           # SEND, WRITE with immediate, or a READ's answer: belongs to a receive
        "is_write": 1, "has_imm": 1, "is_read": 1, "is_answer": 1,
        "ce": 1,                # IP ECN field is 11
        "qpn": 24, "pkey": 16, "psn": 24,
        "src_ip": 128, "src_v6": 1,     # an IPv4 address in the low word; first byte on the wire is the highest
        "pay_off": 7,           # byte of the frame where the payload begins
        "pay_len": range(cfg.mtu_max + 1),      # bytes, without pad; more than mtu_max is refused by the ingress as `length`
        "generation": 8, "tag": 16, "seq": 32, "msg_len": 32, "offset": 32,     # XPETH; for UC msg_len = pay_len, offset 0
        "va": 64, "rkey": 32, "imm": 32,
    })


def rc_descriptor_layout(cfg):
    """The first eight and `src_ip`, `src_v6`, `pay_off`, `pay_len` as above. `op` and what comes from extension headers belong to
    RC and UC opcodes only: neither `is_cnp` nor `other`."""
    atomic = {"swap_add": 64, "compare": 64} if cfg.rc_atomics else {}      # AtomicETH
    return StructLayout({
        "passed": 1, "reason": 5, "beats": range(cfg.max_frame_beats + 1),
        # at most one of: CNP; defined, but for no QP here (UD, XP, FLUSH, ATOMIC WRITE, and UC when it is left out)
        "is_cnp": 1, "other": 1,
        "uc": 1, "op": 5,           # UC, else RC; low five bits of the opcode (wire/opcodes.py: OPERATION)
        "ce": 1, "ack_req": 1, "solicited": 1,
        "qpn": 24, "pkey": 16, "psn": 24,
        "src_ip": 128, "src_v6": 1,
        "pay_off": 7, "pay_len": range(cfg.mtu_max + 1),    # of an atomic's answer: the 8 bytes of the original value
        "va": 64, "rkey": 32,       # RETH, AtomicETH
        "dma_len": 32,              # RETH
        "imm": 32,                  # ImmDt; the key of IETH
        "syndrome": 8, "msn": 24,   # AETH
        **atomic,
    })
