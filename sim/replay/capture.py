"""Captures: a strict reader of pcap and pcapng, and a writer of pcap.

Strict, because a replay of half a capture would look like a result: a file that ends inside a record, or a frame that
the capture itself cut short, is an error.
"""

from dataclasses import dataclass
from fractions import Fraction
import struct

from .errors import ReplayError

__all__ = ["Frame", "read_capture", "write_pcap"]

ETHERNET = 1
PCAP_MAGIC = {b"\xd4\xc3\xb2\xa1": ("<", 1000), b"\xa1\xb2\xc3\xd4": (">", 1000),      # ns in a fraction's unit
              b"\x4d\x3c\xb2\xa1": ("<", 1), b"\xa1\xb2\x3c\x4d": (">", 1)}
SECTION, INTERFACE, OLD_PACKET, SIMPLE_PACKET, ENHANCED_PACKET = 0x0A0D0D0A, 1, 2, 3, 6
BYTE_ORDER = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
LARGEST_FRAME = 1 << 18


@dataclass(frozen=True)
class Frame:
    data: bytes     #: without FCS
    time: int       #: ns since the capture's epoch


def read_capture(path):
    """The frames of the file at `path`, in the file's order."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ReplayError(f"{path}: {error.strerror}") from None
    try:
        if len(data) < 4:
            raise ReplayError(f"truncated: {len(data)} bytes are less than the header of any capture")
        if data[:4] in PCAP_MAGIC:
            return list(read_pcap(data))
        if int.from_bytes(data[:4], "big") == SECTION:
            return list(read_pcapng(data))
        raise ReplayError(f"not a pcap or pcapng file (it begins with {data[:4].hex(' ')}); unpack a compressed one first")
    except ReplayError as error:
        raise ReplayError(f"{path}: {error}") from None


class Cursor:
    """Reads structures from `data`; running past its end is a truncation."""

    def __init__(self, data, order, what):
        self.data, self.order, self.what, self.at = data, order, what, 0

    def take(self, size):
        if self.at + size > len(self.data):
            raise ReplayError(f"truncated: ends inside {self.what}")
        self.at += size
        return self.data[self.at - size:self.at]

    def unpack(self, fields):
        fields = self.order + fields
        return struct.unpack(fields, self.take(struct.calcsize(fields)))

    @property
    def more(self):
        return self.at < len(self.data)


def whole(data, original, index, fcs):
    """Frame `index` without its FCS of `fcs` bytes, unless the capture holds only a part of it."""
    if len(data) < original:
        raise ReplayError(f"truncated: the capture holds only {len(data)} of the {original} bytes of frame {index}; "
                          f"capture again with a larger snapshot length")
    if len(data) > LARGEST_FRAME:
        raise ReplayError(f"frame {index} has {len(data)} bytes, which no Ethernet frame has")
    return data[:max(0, len(data) - fcs)]


def ethernet(link_type):
    if link_type != ETHERNET:
        raise ReplayError(f"link type {link_type} is not Ethernet (link type 1)")


def read_pcap(data):
    order, unit = PCAP_MAGIC[data[:4]]
    cursor = Cursor(data, order, "the file header")
    _, major, _, _, _, _, network = cursor.unpack("IHHiIII")
    if major != 2:
        raise ReplayError(f"pcap version {major} is unknown; version 2 is read")
    ethernet(network & 0xFFFF)
    fcs = 2 * (network >> 28) if network >> 26 & 1 else 0
    index = 0
    while cursor.more:
        cursor.what = f"the record of frame {index}"
        seconds, fraction, size, original = cursor.unpack("IIII")
        if size > LARGEST_FRAME:
            raise ReplayError(f"damaged: frame {index} claims {size} bytes")
        yield Frame(whole(cursor.take(size), original, index, fcs), seconds * 10**9 + fraction * unit)
        index += 1


@dataclass
class Interface:
    link_type: int
    snap_len: int
    unit: Fraction = Fraction(1000)     # ns in a unit of its time stamps
    offset: int = 0                     # ns
    fcs: int = 0


def read_interface(body):
    link_type, _, snap_len = body.unpack("HHI")
    interface = Interface(link_type, snap_len)
    while body.more:
        code, size = body.unpack("HH")
        value = body.take(size)
        body.take(-size % 4)
        if code == 0:
            break
        if code == 9 and size == 1:
            base, exponent = (2, value[0] & 0x7F) if value[0] & 0x80 else (10, value[0])
            interface.unit = Fraction(10**9, base**exponent)
        elif code == 13 and size == 1:
            interface.fcs = value[0]
        elif code == 14 and size == 8:
            interface.offset = struct.unpack(body.order + "q", value)[0] * 10**9
    return interface


def read_pcapng(data):
    cursor = Cursor(data, "<", "a block header")
    interfaces, time, index, block = [], 0, 0, 0
    while cursor.more:
        cursor.what = f"the header of block {block}"
        start = cursor.at
        if int.from_bytes(cursor.take(4), "big") == SECTION:       # the same number in either byte order
            cursor.take(4)
            magic = cursor.take(4)
            if magic not in BYTE_ORDER:
                raise ReplayError(f"damaged: block {block} has the byte-order mark {magic.hex()}")
            cursor.order = BYTE_ORDER[magic]
            interfaces = []
        cursor.at = start
        kind, total = cursor.unpack("II")
        if total < 12 or total % 4:
            raise ReplayError(f"damaged: block {block} claims {total} bytes")
        cursor.what = f"block {block}"
        body = Cursor(cursor.take(total - 12), cursor.order, f"the fields of block {block}")
        if cursor.unpack("I") != (total,):
            raise ReplayError(f"damaged: the two lengths of block {block} differ")
        block += 1
        if kind == INTERFACE:
            interfaces.append(read_interface(body))
        if kind not in (OLD_PACKET, SIMPLE_PACKET, ENHANCED_PACKET):
            continue

        number, ticks = 0, None
        if kind == ENHANCED_PACKET:
            number, high, low, size, original = body.unpack("IIIII")
            ticks = high << 32 | low
        elif kind == OLD_PACKET:
            number, _, high, low, size, original = body.unpack("HHIIII")
            ticks = high << 32 | low
        else:
            original, = body.unpack("I")
        if number >= len(interfaces):
            raise ReplayError(f"damaged: frame {index} names interface {number} of {len(interfaces)}")
        interface = interfaces[number]
        ethernet(interface.link_type)
        if kind == SIMPLE_PACKET:
            size = min(original, interface.snap_len or original)
        if ticks is not None:       # a simple packet has no time of its own: it follows the one before at once
            time = interface.offset + int(ticks * interface.unit)
        yield Frame(whole(body.take(size), original, index, interface.fcs), time)
        index += 1
    if interfaces and all(interface.link_type != ETHERNET for interface in interfaces):
        ethernet(interfaces[0].link_type)


def write_pcap(path, frames):
    """Write `frames` as pcap with nanosecond time stamps."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, LARGEST_FRAME, ETHERNET))
        for frame in frames:
            seconds, fraction = divmod(frame.time, 10**9)
            file.write(struct.pack("<IIII", seconds, fraction, len(frame.data), len(frame.data)) + frame.data)
