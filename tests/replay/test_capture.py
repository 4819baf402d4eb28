"""Captures of every flavour are read, and what is cut short or foreign is refused with one line."""

from pathlib import Path
import struct

import pytest

from sim.replay.capture import Frame, read_capture, write_pcap
from sim.replay.errors import ReplayError

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
FRAMES = [Frame(bytes(range(60)), 1_700_000_000_123_456_789), Frame(b"\xff" * 61, 1_700_000_001_000_000_001), Frame(b"", 0)]


def pcap(frames, order="<", nanoseconds=True, network=1, major=2):
    unit = 1 if nanoseconds else 1000
    out = struct.pack(order + "IHHiIII", 0xA1B23C4D if nanoseconds else 0xA1B2C3D4, major, 4, 0, 0, 65535, network)
    for f in frames:
        out += struct.pack(order + "IIII", f.time // 10**9, f.time % 10**9 // unit, len(f.data), len(f.data)) + f.data
    return out


def block(order, kind, body):
    body += bytes(-len(body) % 4)
    return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)


def section(order="<"):
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order="<", link=1, options=b"", snap=0):
    return block(order, 1, struct.pack(order + "HHI", link, 0, snap) + options)


def option(order, code, value):
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def enhanced(data, ticks, order="<", number=0, original=None):
    original = len(data) if original is None else original
    return block(order, 6, struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), original) + data)


@pytest.fixture
def read(tmp_path):
    def read(data):
        path = tmp_path / "capture"
        path.write_bytes(data)
        return read_capture(path)
    return read


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("nanoseconds", [True, False])
def test_pcap(read, order, nanoseconds):
    expected = FRAMES if nanoseconds else [Frame(f.data, f.time // 1000 * 1000) for f in FRAMES]
    assert read(pcap(FRAMES, order, nanoseconds)) == expected


def test_written_capture_is_read_back(tmp_path):
    write_pcap(tmp_path / "a.pcap", FRAMES)
    assert read_capture(tmp_path / "a.pcap") == FRAMES


def test_scapy_agrees():
    scapy = pytest.importorskip("scapy.utils")
    for path in sorted(GOLDEN.glob("uc_*.pcap")):
        reader = scapy.RawPcapReader(str(path))
        expected = [(bytes(data), meta.sec * 10**9 + meta.usec * 1000) for data, meta in reader]
        assert [(f.data, f.time) for f in read_capture(path)] == expected


@pytest.mark.parametrize("order", "<>")
def test_pcapng(read, order):
    data = section(order) + interface(order) + enhanced(b"a" * 60, 5_000_001, order)
    data += block(order, 0xBAD, b"what nobody knows is skipped")
    data += interface(order, options=option(order, 9, b"\x09") + option(order, 14, struct.pack(order + "q", 2)) + option(order, 0, b""))
    data += enhanced(b"b" * 61, 7, order, number=1)
    data += interface(order, options=option(order, 9, b"\x8a"))           # 1/1024 s
    data += enhanced(b"c" * 62, 3, order, number=2)
    data += block(order, 3, struct.pack(order + "I", 3) + b"ddd")
    data += block(order, 2, struct.pack(order + "HHIIII", 0, 0, 0, 9, 4, 4) + b"eeee")
    assert read(data) == [Frame(b"a" * 60, 5_000_001_000), Frame(b"b" * 61, 2_000_000_007), Frame(b"c" * 62, 2_929_687),
                          Frame(b"ddd", 2_929_687), Frame(b"eeee", 9_000)]


def test_pcapng_sections_of_both_byte_orders(read):
    data = b"".join(section(o) + interface(o) + enhanced(b"x" * 14, 1, o) for o in "<>")
    assert len(read(data)) == 2


def test_checksum_bytes_of_the_link_are_taken_off(read):
    assert read(pcap([Frame(b"abcdefgh", 0)], network=1 | 1 << 26 | 2 << 28))[0].data == b"abcd"
    data = section() + interface(options=option("<", 13, b"\x04")) + enhanced(b"abcdefgh", 0)
    assert read(data)[0].data == b"abcd"


def test_no_frames(read):
    assert read(pcap([])) == []
    assert read(section() + interface()) == []


@pytest.mark.parametrize("data", [pcap(FRAMES[:2]), section() + interface() + enhanced(b"abcde", 1)], ids=["pcap", "pcapng"])
def test_cut_anywhere(read, data):
    # Whole at the ends of records only; anywhere else it is an error, never fewer frames.
    whole = {24: 0, 24 + 76: 1} if data[0] != 0x0A else {28: 0, 48: 0}
    for end in range(len(data)):
        if end in whole:
            assert len(read(data[:end])) == whole[end]
        else:
            with pytest.raises(ReplayError, match="truncated") as error:
                read(data[:end])
            assert "\n" not in str(error.value)


def damaged(data, at, value):
    return data[:at] + value + data[at + len(value):]


NG = section() + interface() + enhanced(b"abcd", 1)
FOREIGN = {
    "text": (b"hello, world\n", "not a pcap or pcapng"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(20), "unpack"),
    "raw IP": (pcap(FRAMES, network=101), "link type 101 is not Ethernet"),
    "pcap of another version": (pcap(FRAMES, major=3), "version 3"),
    "huge record": (pcap([]) + struct.pack("<IIII", 0, 0, 1 << 30, 1 << 30), "damaged"),
    "frame cut by the capture": (pcap([]) + struct.pack("<IIII", 0, 0, 2, 60) + b"ab", "only 2 of the 60 bytes of frame 0"),
    "frame cut by the capture, pcapng": (section() + interface() + enhanced(b"ab", 0, original=60), "only 2 of the 60"),
    "short simple packet": (section() + interface(snap=2) + block("<", 3, struct.pack("<I", 60) + b"ab"), "only 2 of the 60"),
    "raw IP, pcapng": (section() + interface(link=101) + enhanced(b"ab", 0), "link type 101"),
    "raw IP without frames": (section() + interface(link=101), "link type 101"),
    "no such interface": (section() + enhanced(b"ab", 0), "interface 0 of 0"),
    "block length": (damaged(NG, 32, b"\x13"), "claims 19 bytes"),
    "block lengths differ": (damaged(NG, 44, b"\x18"), "differ"),
    "byte order mark": (damaged(NG, 8, b"abcd"), "byte-order mark"),
    "packet longer than its block": (damaged(NG, 68, b"\x08"), "truncated"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_refused(read, name):
    data, text = FOREIGN[name]
    with pytest.raises(ReplayError, match=text) as error:
        read(data)
    assert "\n" not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(ReplayError, match="No such file"):
        read_capture(tmp_path / "none.pcap")
    with pytest.raises(ReplayError, match="directory"):
        read_capture(tmp_path)
