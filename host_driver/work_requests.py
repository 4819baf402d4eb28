"""Receives and sends as they lie in the rings, checked before the card sees them."""

from optinic.abi.structs import INLINE_MAX, INLINE_OFFSET, RECV_WQE, SEND_OP, SEND_WQE, TICK_NS

__all__ = ["receive_wqe", "send_wqe", "timeout_ticks", "time_ticks", "TRACKED", "WITH_IMM", "REMOTE"]

TRACKED = ("send", "send_imm", "write_imm")     #: consume a receive at the peer
WITH_IMM = ("send_imm", "write_imm")
REMOTE = ("write", "write_imm", "read")         #: name memory at the peer
LONGEST_NS = ((1 << 31) - 1) * TICK_NS


def timeout_ticks(timeout_ns):
    """A span of time in whole ticks, rounded up."""
    ticks = -(-timeout_ns // TICK_NS)
    if not 0 < ticks < 1 << 31:
        raise ValueError(f"timeout_ns={timeout_ns} is outside 1..{LONGEST_NS}")
    return ticks


def time_ticks(time_ns):
    """A NIC time in ticks, rounded up, as far as the card keeps it."""
    return -(-time_ns // TICK_NS) % (1 << 32)


def receive_wqe(va, length, lkey, *, timeout_ns=None, absolute=False):
    if timeout_ns is None:
        ticks = absolute = 0
    elif absolute:
        ticks = time_ticks(timeout_ns) or 1     # 0 would mean none
    else:
        ticks = timeout_ticks(timeout_ns)
    return RECV_WQE.pack(va=va, length=length, lkey=lkey, timeout=ticks, absolute=int(absolute))


def send_wqe(opcode, va, length, lkey, *, inline=None, remote_va=0, rkey=0, imm=0, seq=0, tag=0, deadline_ns=None, signaled=True,
             solicited=False):
    """`inline`: the payload itself, in the place of va, length and lkey. `deadline_ns`: a NIC time."""
    if opcode not in SEND_OP:
        raise ValueError(f"opcode={opcode!r} is not one of {', '.join(SEND_OP)}")
    if inline is not None:
        if opcode == "read":
            raise ValueError("a READ brings its payload from the peer: there is nothing to inline")
        if len(inline) > INLINE_MAX:
            raise ValueError(f"{len(inline)} bytes inline: a work request carries at most {INLINE_MAX} itself; "
                             f"send them from memory")
        va, length, lkey = 0, len(inline), 0
    if opcode not in REMOTE and (remote_va or rkey):
        raise ValueError(f"{opcode} names no memory at the peer: remote_va and rkey have no meaning")
    if opcode not in WITH_IMM and imm:
        raise ValueError(f"{opcode} carries no immediate; use {'write_imm' if opcode == 'write' else 'send_imm'}")
    wqe = SEND_WQE.pack(opcode=SEND_OP[opcode], signaled=int(signaled), inline=int(inline is not None),
                        deadline_set=int(deadline_ns is not None), solicited=int(solicited), tag=tag, length=length, imm=imm,
                        seq=seq, deadline=time_ticks(deadline_ns or 0), rkey=rkey, remote_va=remote_va)
    if inline is None:      # va and lkey share their place with the payload
        return wqe[:INLINE_OFFSET] + SEND_WQE.pack(va=va, lkey=lkey)[INLINE_OFFSET:]
    return wqe[:INLINE_OFFSET] + bytes(inline).ljust(INLINE_MAX, b"\0")
