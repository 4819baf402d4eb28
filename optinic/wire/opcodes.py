"""BTH opcodes: every one that is defined, its extension headers, and what the receiver does with it.

The upper three bits name the transport, the lower five the operation (IBTA volume 1, table "OpCode field"). XP takes
the manufacturer range 0xE0 and up with the low bits of the standard single-packet forms.
"""

from dataclasses import dataclass

from .headers import AETH, ATOMIC_ACK_ETH, ATOMIC_ETH, DETH, FETH, IETH, IMMDT, RETH, XPETH

__all__ = ["Opcode", "OPCODES", "OPERATION", "XP_BASE", "UC_BASE", "CNP"]

RC_BASE, UC_BASE, UD_BASE, XP_BASE = 0x00, 0x20, 0x60, 0xE0
CNP = 0x81


@dataclass(frozen=True)
class Opcode:
    code: int
    name: str
    transport: str          #: rc, uc, ud, cnp, xp
    headers: tuple = ()     #: behind the BTH, in order
    placed: bool = False    #: XP or UC: one packet that says all that its placement needs
    is_read: bool = False   #: XP: asks for data
    connected: bool = False  #: RC or UC: what the reliable baseline speaks

    @property
    def low(self):
        """The operation, whatever the transport."""
        return self.code & 0x1F

    @property
    def ext_bytes(self):
        return sum(h.size for h in self.headers)

    @property
    def is_write(self):
        return self.placed and RETH in self.headers

    @property
    def has_imm(self):
        return self.placed and IMMDT in self.headers

    @property
    def tracked(self):
        """Belongs to a receive: SEND, WRITE with immediate, and the answer to a READ."""
        return self.placed and (not self.is_write or self.has_imm)


_OPERATIONS = {     # low five bits: name, headers
    0x00: ("send_first", ()), 0x01: ("send_middle", ()), 0x02: ("send_last", ()), 0x03: ("send_last_imm", (IMMDT,)),
    0x04: ("send_only", ()), 0x05: ("send_only_imm", (IMMDT,)),
    0x06: ("write_first", (RETH,)), 0x07: ("write_middle", ()), 0x08: ("write_last", ()),
    0x09: ("write_last_imm", (IMMDT,)), 0x0A: ("write_only", (RETH,)), 0x0B: ("write_only_imm", (RETH, IMMDT)),
    0x0C: ("read_request", (RETH,)), 0x0D: ("read_response_first", (AETH,)), 0x0E: ("read_response_middle", ()),
    0x0F: ("read_response_last", (AETH,)), 0x10: ("read_response_only", (AETH,)), 0x11: ("acknowledge", (AETH,)),
    0x12: ("atomic_acknowledge", (AETH, ATOMIC_ACK_ETH)), 0x13: ("compare_swap", (ATOMIC_ETH,)),
    0x14: ("fetch_add", (ATOMIC_ETH,)), 0x16: ("send_last_invalidate", (IETH,)),
    0x17: ("send_only_invalidate", (IETH,)), 0x1C: ("flush", (FETH, RETH)), 0x1D: ("atomic_write", (RETH,)),
}
_SINGLE = (0x04, 0x05, 0x0A, 0x0B)
_NOT_SPOKEN = (0x1C, 0x1D)

#: name -> low five bits of the opcode
OPERATION = {name: code for code, (name, _) in _OPERATIONS.items()}


def _all():
    for op, (name, headers) in _OPERATIONS.items():
        yield Opcode(RC_BASE | op, f"rc_{name}", "rc", headers, connected=op not in _NOT_SPOKEN)
        if op <= 0x0B:
            yield Opcode(UC_BASE | op, f"uc_{name}", "uc", headers, op in _SINGLE, connected=True)
        if op in (0x04, 0x05):
            yield Opcode(UD_BASE | op, f"ud_{name}", "ud", (DETH, *headers))
        if op in (*_SINGLE, 0x0C):
            yield Opcode(XP_BASE | op, f"xp_{name}", "xp", (XPETH, *headers), op in _SINGLE, op == 0x0C)
    yield Opcode(XP_BASE | 0x10, "xp_read_response", "xp", (XPETH,), True)
    yield Opcode(XP_BASE | 0x11, "xp_feedback", "xp", (XPETH,))
    yield Opcode(XP_BASE | 0x1E, "xp_credit", "xp", (XPETH,))
    yield Opcode(CNP, "cnp", "cnp")         # its 16 reserved bytes count as payload, which nobody reads


#: code -> Opcode
OPCODES = {op.code: op for op in sorted(_all(), key=lambda op: op.code)}
