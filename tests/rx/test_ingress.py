"""The whole ingress: right frames of every kind and length, at every width, and the verdict on wrong ones."""

import random

import pytest

from optinic.abi.verdicts import REASON
from optinic.config import preset
from optinic.rx import decode, icrc as rx_icrc
from optinic.rx.ingress import Ingress

from . import golden
from .bench import check
from .mutations import any_frame, mutate
from .reference import CNP, UC, UC_SEND, UC_WRITE, UC_WRITE_IMM, XP, XP_SEND_IMM, XP_WRITE, XP_WRITE_IMM, build
from .test_reference import VECTOR

TINY = preset("tiny")
WIDTHS = [64, 128, 256, 512, 1024]


def test_vector_and_latency():
    bench = check(TINY, [VECTOR])
    descriptor, stored = bench.results[0]
    assert (descriptor.passed, descriptor.reason, descriptor.is_uc, descriptor.is_write) == (0, 0, 1, 1)
    assert (descriptor.va, descriptor.rkey, descriptor.pay_len) == (0x123456789ABC, 0xDEADBEEF, 16)
    assert stored[descriptor.pay_off:descriptor.pay_off + 16] == bytes(range(16))
    assert bench.offered_at[0] - bench.sent_at[0] == Ingress.latency


@pytest.mark.parametrize("name", ["rc_zero_length.pcap", "v6_uc.pcap", "ud_send.pcap"])
def test_captured(name):
    check(TINY.with_(data_width=256 if name == "ud_send.pcap" else 64), golden.frames(name), gap=0.05, stall=0.2)


def test_every_small_payload():
    rng = random.Random(1)
    check(TINY, [build((UC_WRITE, XP_SEND_IMM)[n // 4 % 2], rng.randbytes(n), pad_byte=rng.randrange(256)) for n in range(131)])


@pytest.mark.parametrize("width", [512])
def test_every_small_payload_wide(width):
    rng = random.Random(2)
    check(TINY.with_(data_width=width), [build(XP_WRITE_IMM, rng.randbytes(n), v6=n % 2) for n in range(131)], read=False)


def test_around_the_mtu():
    rng = random.Random(3)
    cfg = TINY.with_(mtu_max=1024)
    frames = [build(op, rng.randbytes(n), v6=v6) for n in (1020, 1023, 1024, 1025, 1028) for op, v6 in
              ((UC_SEND, 0), (XP_WRITE, 1))]
    bench = check(cfg, frames)
    assert [d.reason != 0 for d, _ in bench.results] == [n > 1024 for n in (1020, 1023, 1024, 1025, 1028) for _ in range(2)]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_kind_without_a_gap(width):
    """Each opcode over each stack, one behind the other; at 512 and 1024 bits some frames are single beats."""
    rng = random.Random(width)
    frames = [build(op, rng.randbytes(rng.choice((0, 1, 2, 3, 4, 5, 12, 33, 64, 65))), v6=v6, vlan=vlan, tos=rng.randrange(256),
                    ttl=rng.randrange(256), bth4=rng.randrange(256), flow=rng.randrange(1 << 20) if v6 else 0,
                    udp_sum=rng.randrange(65536), tail=rng.randbytes(rng.choice((0, 0, 1, 5))), pad_to=rng.choice((0, 60, 64)),
                    seq=rng.randrange(1 << 32), imm=rng.randrange(1 << 32))
              for op in (*XP, *UC, CNP) for v6 in (0, 1) for vlan in (None, 0x2005)]
    rng.shuffle(frames)
    check(TINY.with_(data_width=width, rx_frames=64), frames)


@pytest.mark.parametrize("width", [512, 1024])
def test_single_beats_every_cycle(width):
    """One frame each cycle: the sender is never held up."""
    rng = random.Random(9)
    sizes = range(5) if width == 512 else range(59)
    frames = [build(UC_SEND, rng.randbytes(n), qpn=rng.randrange(1 << 24)) for n in sizes] * (12 if width == 512 else 1)
    frames = [f for f in frames if len(f) <= width // 8]
    frames[3::4] = [f[:-1] + bytes([f[-1] ^ 1]) for f in frames[3::4]]
    bench = check(TINY.with_(data_width=width, rx_frames=64, rx_buffer_bytes=32768), frames)
    assert bench.sent_at == list(range(bench.sent_at[0], bench.sent_at[0] + len(frames)))


@pytest.mark.parametrize("v6,vlan", [(False, None), (True, 7)])
def test_every_truncation(v6, vlan):
    frame = build(XP_WRITE_IMM, b"hello", v6=v6, vlan=vlan)
    check(TINY, [frame[:n] for n in range(1, len(frame) + 1)], read=False)


@pytest.mark.parametrize("width,count", [(64, 200), (128, 150), (512, 150)])
def test_mutations(width, count):
    rng = random.Random(100 + width)
    frames = [mutate(rng, any_frame(rng, (0, 1, 2, 3, 4, 5, 16, 30))) for _ in range(count)]
    frames = [(f, rng.random() < .03) for f in frames]
    check(TINY.with_(data_width=width), frames, read=False, gap=0.02)


@pytest.mark.parametrize("knobs", [dict(ipv6=False), dict(vlan=False), dict(uc=False), dict(vlan=False, ipv6=False, uc=False)])
def test_parts_left_out(knobs):
    rng = random.Random(7)
    frames = [mutate(rng, any_frame(rng, (0, 5))) for _ in range(60)]
    check(TINY.with_(**knobs), frames, read=False)


def test_pauses_and_back_pressure():
    """Random pauses on both sides, enough frames to wrap the buffer and both pointers."""
    rng = random.Random(8)
    frames = [build(UC_WRITE_IMM, rng.randbytes(rng.randrange(700))) for _ in range(45)]
    check(TINY, frames, gap=0.1, stall=0.9)


def test_others_pass():
    arp = bytes.fromhex("ffffffffffff0200000000010806") + bytes(46)
    frames = [arp, arp[:14], build(dport=4790), build(vlan=1, dport=53), bytes.fromhex("020000000001020000000002 8100 0001 88f7") + bytes(50)]
    bench = check(TINY, frames)
    assert all(d.passed and not d.reason for d, _ in bench.results)


# -- negative controls: a broken design is noticed -------------------------------------------------------


def broken(monkeypatch, target, name, value, frames):
    monkeypatch.setattr(target, name, value)
    with pytest.raises(AssertionError, match="got"):
        check(TINY, frames, read=False)


def test_a_wrong_residue_is_noticed(monkeypatch):
    broken(monkeypatch, rx_icrc, "RESIDUE", rx_icrc.RESIDUE ^ 1, [VECTOR])


def test_a_missing_mask_is_noticed(monkeypatch):
    right = rx_icrc.icrc_masks

    def no_ttl(l3, v6):
        return [(255, 0) if i == l3 + 8 and not v6 else pair for i, pair in enumerate(right(l3, v6))]
    broken(monkeypatch, rx_icrc, "icrc_masks", no_ttl, [VECTOR])


def test_a_checker_that_accepts_all_is_noticed(monkeypatch):
    broken(monkeypatch, decode, "REASON", {**REASON, "icrc": 0}, [VECTOR[:-1] + bytes([VECTOR[-1] ^ 0x80])])
