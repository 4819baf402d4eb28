"""RC and UC frames for tests, taken apart and put together with no code of a model: names of packets, headers, ICRC."""

import struct
import zlib

from sim.frames import build

__all__ = [
    "ACK",
    "CODES",
    "NAK_ACCESS",
    "NAK_INVALID",
    "NAK_OPERATION",
    "NAK_SEQUENCE",
    "NAMES",
    "Packet",
    "ack",
    "covered_part",
    "request",
    "response",
]

NAMES = {0x00: "SEND_FIRST", 0x01: "SEND_MIDDLE", 0x02: "SEND_LAST", 0x03: "SEND_LAST_IMM", 0x04: "SEND_ONLY",
         0x05: "SEND_ONLY_IMM",
         0x06: "WRITE_FIRST", 0x07: "WRITE_MIDDLE", 0x08: "WRITE_LAST", 0x09: "WRITE_LAST_IMM", 0x0A: "WRITE_ONLY",
         0x0B: "WRITE_ONLY_IMM", 0x0C: "READ_REQ", 0x0D: "READ_RESP_FIRST", 0x0E: "READ_RESP_MIDDLE", 0x0F: "READ_RESP_LAST",
         0x10: "READ_RESP_ONLY", 0x11: "ACK", 0x12: "ATOMIC_ACK", 0x13: "CMP_SWAP", 0x14: "FETCH_ADD", 0x16: "SEND_LAST_INV",
         0x17: "SEND_ONLY_INV"}
NAMES |= {0x20 + code: "UC_" + name for code, name in NAMES.items() if code < 0x0C}
NAMES[0x81] = "CNP"
CODES = {name: code for code, name in NAMES.items()}
ACK, NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS, NAK_OPERATION = 0x1F, 0x60, 0x61, 0x62, 0x63

#: extension headers of a packet, in their order
PARTS = {name: ("reth",) for name in ("WRITE_FIRST", "WRITE_ONLY", "READ_REQ")}
PARTS |= {"WRITE_ONLY_IMM": ("reth", "imm"), "WRITE_LAST_IMM": ("imm",), "SEND_LAST_IMM": ("imm",), "SEND_ONLY_IMM": ("imm",),
          "SEND_LAST_INV": ("ieth",), "SEND_ONLY_INV": ("ieth",), "CMP_SWAP": ("atomic",), "FETCH_ADD": ("atomic",),
          "READ_RESP_FIRST": ("aeth",), "READ_RESP_LAST": ("aeth",), "READ_RESP_ONLY": ("aeth",), "ACK": ("aeth",),
          "ATOMIC_ACK": ("aeth", "original")}
FORMATS = {"reth": ">QII", "imm": ">I", "ieth": ">I", "atomic": ">QIQQ", "aeth": ">I", "original": ">Q"}


class Packet:
    """A frame taken apart; wrong lengths or a wrong ICRC are an AssertionError. Headers that it hasn't got are None."""

    def __init__(self, frame):
        self.frame = frame
        at = 14
        if frame[12:14] == b"\x81\x00":
            at = 18
        self.v6 = frame[at - 2:at] == b"\x86\xdd"
        size = 40 if self.v6 else 20
        length = size + int.from_bytes(frame[at + 4:at + 6], "big") if self.v6 else int.from_bytes(frame[at + 2:at + 4], "big")
        datagram = frame[at:at + length]
        assert len(datagram) == length and int.from_bytes(datagram[size + 4:size + 6], "big") == length - size
        masked = bytearray(b"\xff" * 8 + datagram[:-4])
        for i in ((9, 16, 18, 19) if not self.v6 else (9, 10, 11, 15)):
            masked[i] = 0xFF
        masked[8] |= 0x0F if self.v6 else 0
        for i in (size + 8 + 6, size + 8 + 7, size + 8 + 8 + 4):
            masked[i] = 0xFF
        assert datagram[-4:] == zlib.crc32(bytes(masked)).to_bytes(4, "little"), "ICRC"
        self.datagram, self.ip_size = datagram, size
        self.tclass = datagram[1] if not self.v6 else int.from_bytes(datagram[:2], "big") >> 4 & 0xFF
        self.destination = datagram[24:40] if self.v6 else datagram[16:20]
        code, flags, self.pkey, qpn, psn = struct.unpack_from(">BBHII", datagram, size + 8)
        self.code, self.name = code, NAMES.get(code, hex(code))
        self.solicited, self.migrated, pad = flags >> 7, flags >> 6 & 1, flags >> 4 & 3
        self.qpn, self.becn, self.ack_req, self.psn = qpn & 0xFFFFFF, qpn >> 30 & 1, psn >> 31, psn & 0xFFFFFF
        self.reth = self.imm = self.ieth = self.atomic = self.aeth = self.original = None
        here = size + 8 + 12
        for part in PARTS.get(self.name.removeprefix("UC_"), ()):
            values = struct.unpack_from(FORMATS[part], datagram, here)
            setattr(self, part, values if len(values) > 1 else values[0])
            here += struct.calcsize(FORMATS[part])
        self.payload = datagram[here:len(datagram) - 4 - pad]
        self.padding = datagram[len(datagram) - 4 - pad:-4]

    @property
    def syndrome(self):
        return None if self.aeth is None else self.aeth >> 24

    @property
    def msn(self):
        return None if self.aeth is None else self.aeth & 0xFFFFFF

    @property
    def is_answer(self):
        return 0x0D <= self.code <= 0x12

    def __repr__(self):
        more = "" if self.aeth is None else f" {self.syndrome:02x}/{self.msn}"
        return f"<{self.name} {self.psn:#x}{' ack' if self.ack_req else ''}{more} {len(self.payload)}>"


def covered_part(frame):
    """What two frames of one packet have in common, however their senders number and route: all of the Ethernet header and of the
    IP datagram but IP identification, TTL, IP checksum, UDP source port and ICRC."""
    packet = Packet(frame)
    data = bytearray(packet.datagram[:-4])
    if not packet.v6:
        data[4:6] = data[10:12] = bytes(2)
        data[8] = 0
    else:
        data[7] = 0
    data[packet.ip_size:packet.ip_size + 2] = bytes(2)
    return frame[:14] + bytes(data)


def request(name, qpn, psn, payload=b"", *, reth=None, imm=None, ieth=None, atomic=None, aeth=None, original=None, ack=1, **fields):
    """A frame of packet `name`, or of an opcode; extension headers in the order of the format. `fields` as of sim.frames.build."""
    headers = b""
    for part, value in (("reth", reth), ("atomic", atomic), ("ieth", ieth), ("imm", imm), ("aeth", aeth), ("original", original)):
        if value is not None:
            headers += struct.pack(FORMATS[part], *(value if isinstance(value, tuple) else (value,)))
    return build(CODES[name] if isinstance(name, str) else name, qpn, headers=headers, payload=payload, psn=psn % (1 << 24),
                 ack=ack, **fields)


def ack(qpn, psn, syndrome=ACK, msn=0, **fields):
    return request("ACK", qpn, psn, aeth=syndrome << 24 | msn, ack=0, **fields)


def response(name, qpn, psn, payload=b"", *, original=None, msn=0, **fields):
    """READ_RESP_*, or ATOMIC_ACK with the original value."""
    aeth = None if name == "READ_RESP_MIDDLE" else ACK << 24 | msn
    return request(name, qpn, psn, payload, aeth=aeth, original=original, ack=0, **fields)
