"""Frames of the captures in tests/data/golden."""

import struct
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "golden"


def frames(name):
    data = (FOLDER / name).read_bytes()
    assert data[:4] == b"\xd4\xc3\xb2\xa1", "little-endian pcap with microseconds"
    at, found = 24, []
    while at < len(data):
        size, = struct.unpack_from("<I", data, at + 8)
        found.append(data[at + 16:at + 16 + size])
        at += 16 + size
    return found


def names():
    return sorted(path.name for path in FOLDER.glob("*.pcap"))
