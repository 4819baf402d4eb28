"""The records of the transmit half: a packet to be sent, and the same packet with its payload in the buffer."""

from amaranth.lib.data import StructLayout

__all__ = ["INLINE_BYTES", "header_bytes_max", "header_members", "packet_layout", "loaded_layout", "done_layout"]

INLINE_BYTES = 32       #: of payload that a work request may carry itself


def header_bytes_max(cfg):
    """Ethernet to the last extension header, with a tag and IPv6."""
    return 14 + 4 + 40 + 8 + 12 + (0 if cfg.rc else 16) + 16 + 4


def header_members(cfg):
    """What the frame builder makes the headers of, all numbers as in optinic/wire/headers.py.

    With transport rc there are two 16-byte fields in one: RETH, or (`atomic`) the first 12 bytes of AtomicETH, whose operands follow as
    payload. `imm` is a word of its own behind that: ImmDt, IETH or AETH; AtomicAckETH behind AETH is payload, too.
    """
    if cfg.rc:
        return {
            "opcode": 8, "reth": 1, "atomic": 1, "immdt": 1,
            "becn": 1, "solicited": 1, "ack_req": 1,
            "peer": cfg.peer_bits, "dest_qpn": 24, "psn": 24, "tclass": 8, "sport": 16,
            "va": 64, "rkey": 32, "dma_len": 32, "imm": 32,
            "len": range(cfg.mtu_max + 1), "silent": 1,
        }
    return {
        "opcode": 8, "xpeth": 1, "reth": 1, "immdt": 1,     # BTH opcode; which extension headers follow, in this order
        "becn": 1, "solicited": 1,
        "peer": cfg.peer_bits, "dest_qpn": 24, "psn": 24, "tclass": 8, "sport": 16,     # tclass: DSCP << 2 | ECN
        "tracked": 1, "echo": 1, "generation": 8, "tag": 16, "seq": 32, "msg_len": 32, "offset": 32,    # XPETH
        "va": 64, "rkey": 32, "dma_len": 32,                # RETH
        "imm": 32,
        "len": range(cfg.mtu_max + 1),                      # bytes of payload
        "silent": 1,            # nothing is sent; the packet only keeps its place in the order
    }


def packet_layout(cfg):
    """A packet as the send queue announces it: its payload is still in host memory, or inline."""
    return StructLayout({
        **header_members(cfg),
        "inline": 1, "inline_data": 8 * INLINE_BYTES,       # payload is the first `len` bytes of this
        "addr": 64,             # else: bus address of the payload, any alignment
        "some": 1,              # `len` isn't 0
    })


def loaded_layout(cfg):
    """A packet whose payload lies in the transmit buffer, from byte `lane` of beat `beat` on, in consecutive beats (modulo
    the buffer). `beats`: how many of them; 0 when `len` is 0. `failed`: the payload could not be read, nothing may be sent.
    A packet that is `silent` or `failed` still owns its `beats`."""
    return StructLayout({
        **header_members(cfg),
        "failed": 1,
        "beat": range(cfg.tx_buffer_beats), "lane": range(cfg.beat_bytes),
        "beats": range(cfg.mtu_max // cfg.beat_bytes + 2),
    })


def done_layout():
    """The frame builder is done with a packet. `failed`: its payload could not be read; `sent`: it went out."""
    return StructLayout({"failed": 1, "sent": 1})
