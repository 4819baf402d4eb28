"""What the ICRC covers and what it doesn't, bit by bit."""

import random

import pytest

from optinic.config import preset

from . import golden
from .bench import check
from .reference import UC_WRITE, XP_WRITE, build, checksum

TINY = preset("tiny")


def flip(frame, bit):
    b = bytearray(frame)
    b[bit // 8] ^= 1 << bit % 8
    return bytes(b)


def masked_bits(l3, v6):
    """Bits of the frame that may change on the way, without those of the IPv4 checksum: that one is checked for itself."""
    ip = 40 if v6 else 20
    whole = [1, 2, 3, 7] if v6 else [1, 8]
    bits = [8 * (l3 + i) + j for i in [*whole, ip + 6, ip + 7, ip + 12] for j in range(8)]
    return bits + ([8 * l3 + j for j in range(4)] if v6 else [])


def with_checksum(frame, l3):
    """IPv4 header checksum right again."""
    header = frame[l3:l3 + 10] + b"\0\0" + frame[l3 + 12:l3 + 20]
    return frame[:l3 + 10] + checksum(header).to_bytes(2, "big") + frame[l3 + 12:]


@pytest.mark.parametrize("width", [64, 128, 512])
@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("vlan", [None, 9])
def test_masked_fields(width, v6, vlan):
    """Every masked bit alone, and all of them at random: still accepted."""
    rng, l3 = random.Random(4), 14 if vlan is None else 18
    frame = build(XP_WRITE, bytes(5), v6=v6, vlan=vlan)
    bits, frames = masked_bits(l3, v6), []
    for bit in bits if width == 64 else rng.sample(bits, 12):
        frames.append(flip(frame, bit))
    for _ in range(8):
        f = frame
        for bit in rng.sample(bits, 12):
            f = flip(f, bit)
        frames.append(f)
    if not v6:
        frames = [with_checksum(f, l3) for f in frames]
    bench = check(TINY.with_(data_width=width), frames, read=False)
    assert all(d.reason == 0 for d, _ in bench.results)


@pytest.mark.parametrize("width,step", [(64, 5), (128, 7), (512, 7), (1024, 19)])
@pytest.mark.parametrize("v6", [False, True])
def test_covered_bits(width, step, v6):
    """One flipped bit from the UDP header to the ICRC's end, payload and pad included: never accepted."""
    rng = random.Random(width)
    frame = build(UC_WRITE, rng.randbytes(29), v6=v6)
    first = 8 * (14 + (40 if v6 else 20))
    allowed = set(masked_bits(14, v6))
    bits = [b for b in range(first + rng.randrange(step), 8 * len(frame), step) if b not in allowed]
    bench = check(TINY.with_(data_width=width), [flip(frame, b) for b in bits], read=False)
    assert all(d.reason or d.passed for d, _ in bench.results)


def test_covered_bits_of_the_ip_header():
    """IPv4 with its checksum made right again: only the ICRC can tell."""
    frame = build(UC_WRITE, bytes(3))
    allowed = set(masked_bits(14, False))
    bits = [8 * (14 + i) + j for i in (4, 5, *range(12, 20)) for j in range(8)]
    bench = check(TINY, [with_checksum(flip(frame, b), 14) for b in bits if b not in allowed], read=False)
    assert all(d.reason == 4 for d, _ in bench.results)


@pytest.mark.parametrize("width", [64, 512])
def test_what_follows_the_datagram_is_ignored(width):
    """Ethernet padding and trailing bytes, none to more than a beat, at every place of the datagram's end in a beat."""
    rng = random.Random(6)
    frames = []
    for size in range(0, 68 if width == 512 else 12, 4):
        frames += [build(UC_WRITE, rng.randbytes(size), tail=rng.randbytes(n)) for n in (0, 1, 3, 4, 7, 8, 9, 63, 64, 65)[::width // 256 + 1]]
    bench = check(TINY.with_(data_width=width), frames, read=False)
    assert all(d.reason == 0 for d, _ in bench.results)


def test_captured_frames_with_one_bit_flipped():
    rng = random.Random(7)
    frames = []
    for name in ("rc_zero_length.pcap", "rc_atomic.pcap", "v6_rc_linklocal.pcap"):
        for frame in golden.frames(name):
            l3, v6 = 14, frame[12] == 0x86
            first = 8 * (l3 + (40 if v6 else 20) + 8)
            allowed = set(masked_bits(l3, v6))
            frames += [flip(frame, rng.choice([b for b in range(first, 8 * len(frame)) if b not in allowed]))]
    bench = check(TINY, frames, read=False)
    assert all(d.reason for d, _ in bench.results)
