"""Verdicts one by one: the IPv4 checksum, lengths that disagree, versions, fragments, opcodes, what the MAC says."""

import random

import pytest

from optinic.abi.verdicts import REASON
from optinic.config import preset
from optinic.rx import decode

from .bench import check
from .reference import (CNP, UC_SEND, UC_WRITE, XP_SEND, XP_SEND_IMM, XP_WRITE, XP_WRITE_IMM, build, checksum, num, reseal)

TINY = preset("tiny")


def changed(frame, at, value, size=2):
    """Number `value` at byte `at`; checksum and ICRC made right again."""
    f = frame[:at] + value.to_bytes(size, "big") + frame[at + size:]
    if f[12:14] == b"\x08\x00":
        f = f[:24] + checksum(f[14:24] + b"\0\0" + f[26:34]).to_bytes(2, "big") + f[26:]
    return reseal(f)


def reasons(frames, cfg=TINY, **options):
    return [d.passed or d.reason for d, _ in check(cfg, frames, read=False, **options).results]


def test_checksum_carries():
    """Random addresses; words of FFFF and 0, so that the carries of the first fold carry again."""
    rng = random.Random(1)
    frames = [build(src=rng.choice((rng.randbytes(4), b"\xff" * 4, bytes(4))), dst=rng.choice((rng.randbytes(4), b"\xff" * 4)),
                    ident=rng.choice((0, 0xFFFF, rng.randrange(65536)))) for _ in range(60)]
    for ident in range(65536):      # a sum whose first fold is 1FFFF or more: the second carry is needed
        f = build(src=b"\xff" * 4, dst=b"\xff" * 4, ident=ident)
        total = sum(num(f[14 + i:16 + i]) for i in range(0, 20, 2))
        if (total & 0xFFFF) + (total >> 16) > 0xFFFF:
            frames.append(f)
            break
    assert set(reasons(frames)) == {0}
    wrong = [f[:24] + ((num(f[24:26]) + d) % 65536).to_bytes(2, "big") + f[26:] for f, d in zip(frames, range(1, 40))]
    assert set(reasons(wrong)) == {REASON["checksum"]}


@pytest.mark.parametrize("width", [64, 512])
def test_lengths_that_disagree(width):
    cfg = TINY.with_(data_width=width)
    v4, v6 = build(UC_WRITE, bytes(20)), build(UC_WRITE, bytes(20), v6=True)
    frames = [changed(v4, 16, n) for n in (0, 19, 43, 44, len(v4) - 15, len(v4) - 13, 0xFFFF)]
    frames += [changed(v6, 18, n) for n in (0, 23, 24, len(v6) - 55, len(v6) - 53, 0xFFFF)]
    frames += [changed(v4, 38, n) for n in (0, 7, len(v4) - 35, len(v4) - 33, 0xFFFF)]
    frames += [changed(v6, 58, n) for n in (0, len(v6) - 55, len(v6) - 53)]
    assert set(reasons(frames, cfg)) == {REASON["length"]}
    # consistent, but too small for the extension headers
    small = [build(op, ext=bytes(n)) for op, n in ((UC_WRITE, 12), (XP_SEND, 12), (XP_SEND_IMM, 16), (XP_WRITE, 28), (XP_WRITE_IMM, 32))]
    small += [build(UC_SEND, ext=b"", bth1=0x30), build(CNP, ext=b"", bth1=0x10)]
    assert set(reasons(small, cfg)) == {REASON["length"]}
    assert reasons([build(CNP), build(CNP, bytes(16)), build(CNP, bytes(400))], cfg) == [0, 0, 0]


def test_payload_against_reth_and_message():
    frames = [build(XP_WRITE, bytes(9), reth_len=n) for n in (8, 9, 10, 9 + 65536, 1 << 31)]
    frames += [build(UC_WRITE, bytes(9), reth_len=n) for n in (0, 9, 12)]
    frames += [build(XP_SEND, bytes(9), msg_len=m, offset=o) for m, o in
               ((9, 0), (8, 0), (100, 91), (100, 92), (0xFFFFFFFF, 0xFFFFFFF6), (0xFFFFFFFF, 0xFFFFFFF7), (5, 0xFFFFFFFF))]
    frames += [build(XP_WRITE, bytes(9), msg_len=0, offset=7)]       # untracked: not looked at
    bad = REASON["length"]
    assert reasons(frames) == [bad, 0, bad, bad, bad, bad, 0, bad, 0, bad, 0, bad, 0, bad, bad, 0]


def test_versions_options_fragments():
    v4, v6 = build(), build(v6=True)
    assert reasons([changed(v4, 14, b, 1) for b in (0x44, 0x46, 0x4F, 0x35, 0x65)]) == [REASON["length"]] * 5
    assert reasons([changed(v6, 14, b, 1) for b in (0x50, 0x40, 0x70, 0x61)])[:3] == [REASON["length"]] * 3
    assert reasons([changed(v4, 20, n) for n in (0x0000, 0x4000, 0x8000, 0x2000, 0x0001, 0x1000, 0x2001)]) == [0] * 3 + [REASON["length"]] * 4
    assert reasons([build(bth1=n) for n in (1, 8, 15, 0x40, 0x80)]) == [REASON["version"]] * 3 + [0, 0]


@pytest.mark.parametrize("uc", [True, False])
def test_every_opcode(uc):
    check(TINY.with_(uc=uc), [build(op, ext=bytes(36)) for op in range(0 if uc else 0x1F, 256 if uc else 0x2D)], read=False)


def test_which_reason_wins():
    """All faults from the last to the first, added one by one."""
    f = build(0x3F, bytes(8))
    want = [(f, "opcode")]
    f = changed(f, 43, 0x0F, 1)
    want.append((f, "version"))
    f = f[:-1] + bytes([f[-1] ^ 1])
    want.append((f, "icrc"))
    f = f[:24] + bytes([f[24] ^ 1]) + f[25:]
    want.append((f, "checksum"))
    f = f[:38] + b"\0\0" + f[40:]
    want.append((f, "length"))
    want.append((f[:50], "runt"))
    assert reasons([f for f, _ in want]) == [REASON[r] for _, r in want]


@pytest.mark.parametrize("width", [64, 1024])
def test_damaged_frames(width):
    cfg = TINY.with_(data_width=width)
    frames = [build(), (build(), True), (b"x" * 60, True), b"x" * 60, (b"x", True), (bytes(2000), True)]
    assert [d.reason for d, _ in check(cfg, frames).results] == [0, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("width", [64, 512])
def test_oversize_frames(width):
    """The largest one is taken whole, longer ones are refused and cut; what follows is whole."""
    cfg = TINY.with_(data_width=width)
    most = cfg.max_frame_bytes
    arp = bytes.fromhex("ffffffffffff0200000000010806")
    frames = [arp + bytes(most - 14), arp + bytes(most - 13), build(), build(UC_WRITE, bytes(100), tail=bytes(2 * most)), build(),
              build(pad_to=most), build(pad_to=most + 1), build(pad_to=most + 64), build(pad_to=most - 1)]
    assert reasons(frames, cfg) == [1, 2, 0, 2, 0, 0, 2, 2, 0]


def test_a_decoder_without_a_check_is_noticed(monkeypatch):
    monkeypatch.setattr(decode, "REASON", {**REASON, "checksum": 0})
    f = build()
    with pytest.raises(AssertionError, match="got"):
        check(TINY, [f[:24] + bytes([f[24] ^ 1]) + f[25:]], read=False)
