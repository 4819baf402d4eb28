"""Receives and sends as they lie in the rings, checked before the card sees them."""

from optinic.abi.structs import INLINE_MAX, INLINE_OFFSET, RC_ONLY, RECV_WQE, SEND_OP, SEND_WQE, TICK_NS

__all__ = ["receive_wqe", "send_wqe", "timeout_ticks", "time_ticks", "check_opcode", "TRACKED", "WITH_IMM", "REMOTE", "ATOMIC",
           "RESULT_BYTES"]

TRACKED = ("send", "send_imm", "write_imm", "send_inv")     #: consume a receive at the peer
WITH_IMM = ("send_imm", "write_imm", "send_inv")            #: have a number with them; of the last one a key
ATOMIC = ("compare_swap", "fetch_add")
REMOTE = ("write", "write_imm", "read", *ATOMIC)            #: name memory at the peer
RESULT_BYTES = 8                                            #: of an atomic
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


def check_opcode(opcode, type):
    """A ValueError if queue pairs of that type have no such send."""
    known = [op for op in SEND_OP if type == "rc" or op not in RC_ONLY]
    if opcode not in known:
        beside = f": queue pairs of type {type} have none" if opcode in SEND_OP else ""
        raise ValueError(f"opcode={opcode!r} is not one of {', '.join(known)}{beside}")
    if opcode == "read" and type == "uc":
        raise ValueError("a QP of type uc can't READ: there is no such packet; use type xp or rc")


def receive_wqe(va, length, lkey, *, timeout_ns=None, absolute=False):
    if timeout_ns is None:
        ticks = absolute = 0
    elif absolute:
        ticks = time_ticks(timeout_ns) or 1     # 0 would mean none
    else:
        ticks = timeout_ticks(timeout_ns)
    return RECV_WQE.pack(va=va, length=length, lkey=lkey, timeout=ticks, absolute=int(absolute))


def send_wqe(opcode, va, length, lkey, *, inline=None, remote_va=0, rkey=0, imm=0, seq=0, tag=0, deadline_ns=None, signaled=True,
             solicited=False, operands=None):
    """`inline`: the payload itself, in the place of va, length and lkey. `deadline_ns`: a NIC time. `operands` of an atomic:
    what to swap in or to add, and what to compare with."""
    if opcode not in SEND_OP:
        raise ValueError(f"opcode={opcode!r} is not one of {', '.join(SEND_OP)}")
    if inline is not None:
        if opcode == "read" or opcode in ATOMIC:
            raise ValueError("a READ or atomic brings its payload from the peer: there is nothing to inline")
        if len(inline) > INLINE_MAX:
            raise ValueError(f"{len(inline)} bytes inline: a work request carries at most {INLINE_MAX} itself; "
                             f"send them from memory")
        va, length, lkey = 0, len(inline), 0
    if opcode not in REMOTE and (remote_va or rkey):
        raise ValueError(f"{opcode} names no memory at the peer: remote_va and rkey have no meaning")
    if opcode not in WITH_IMM and imm:
        raise ValueError(f"{opcode} carries no immediate; use {'write_imm' if opcode == 'write' else 'send_imm'}")
    if (opcode in ATOMIC) != (operands is not None):
        raise ValueError(f"{opcode} {'needs' if opcode in ATOMIC else 'has no'} operands")
    if opcode in ATOMIC and remote_va % RESULT_BYTES:
        raise ValueError(f"remote_va={remote_va:#x} of an atomic is not a multiple of {RESULT_BYTES}")
    wqe = SEND_WQE.pack(opcode=SEND_OP[opcode], signaled=int(signaled), inline=int(inline is not None),
                        deadline_set=int(deadline_ns is not None), solicited=int(solicited), tag=tag, length=length, imm=imm,
                        seq=seq, deadline=time_ticks(deadline_ns or 0), rkey=rkey, remote_va=remote_va)
    if inline is not None:
        return wqe[:INLINE_OFFSET] + bytes(inline).ljust(INLINE_MAX, b"\0")
    # va and lkey share their place with the payload, and with operands
    if operands is None:
        place = SEND_WQE.pack(va=va, lkey=lkey)
    else:
        for name, value in zip(("swap or add", "compare"), operands):
            if not 0 <= value < 1 << 64:
                raise ValueError(f"the operand {name}={value} of {opcode} does not fit 64 bits")
        place = SEND_WQE.pack(va=operands[0], lkey=operands[1] & 0xFFFFFFFF, compare_hi=operands[1] >> 32)
    return wqe[:INLINE_OFFSET] + place[INLINE_OFFSET:]
