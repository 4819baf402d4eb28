"""What a frame was that a card of transport rc consumed: by its opcode, for its verdict says that it is well formed."""

__all__ = ["kind_of"]

CNP, READ, ACKNOWLEDGE, ATOMICS = 0x81, 0x0C, 0x11, (0x13, 0x14)
VLAN, IPV4, BTH = b"\x81\x00", b"\x08\x00", 12
NAK_CLASSES = (1, 3)        # of an AETH syndrome, its upper three bits: receiver not ready, NAK


def kind_of(frame):
    """cnp, ack, nak, read, atomic; "duplicate" of what would otherwise have been placed: a SEND or WRITE that had come before."""
    at = 18 if frame[12:14] == VLAN else 14
    at += (20 if frame[at - 2:at] == IPV4 else 40) + 8
    opcode = frame[at]
    if opcode == CNP:
        return "cnp"
    if opcode == ACKNOWLEDGE:
        return "nak" if frame[at + BTH] >> 5 in NAK_CLASSES else "ack"
    return "read" if opcode == READ else "atomic" if opcode in ATOMICS else "duplicate"
