"""CRC algebra and CrcStep against zlib."""

import random
import zlib

import pytest
from amaranth.sim import Simulator

from optinic.wire import icrc as wire_icrc
from optinic.wire.icrc import RESIDUE, SEED, CrcStep, advance, beat_matrix, icrc_masks

ONES = 0xFFFFFFFF


def test_constants():
    assert SEED == zlib.crc32(b"\xff" * 8) ^ ONES == 0xDEBB20E3
    for n in (0, 1, 5, 64):
        message = random.Random(n).randbytes(n)
        message += zlib.crc32(message).to_bytes(4, "little")
        assert zlib.crc32(message) ^ ONES == RESIDUE


def test_advance_is_zero_bytes_and_can_be_undone():
    rng = random.Random(1)
    for n in (1, 2, 3, 8, 63, 128):
        state = rng.getrandbits(32)
        assert advance(state, n) ^ ONES == zlib.crc32(bytes(n), state ^ ONES)
        assert advance(advance(state, n), -n) == state


@pytest.mark.parametrize("nbytes", [1, 8, 16, 64, 128])
def test_beat_matrix(nbytes):
    rng = random.Random(nbytes)
    feedback, data = beat_matrix(nbytes)
    state, beat = rng.getrandbits(32), rng.randbytes(nbytes)
    want, got = zlib.crc32(beat, state ^ ONES) ^ ONES, 0
    for i in range(32):
        got ^= feedback[i] * (state >> i & 1)
    for i in range(8 * nbytes):
        got ^= data[i] * (beat[i // 8] >> i % 8 & 1)
    assert got == want


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("l3", [14, 18])
def test_masks_make_a_frame_from_state_zero(l3, v6):
    """From state 0 over the changed frame = from ones over FF * 8 and the masked datagram."""
    rng = random.Random(l3)
    frame = bytearray(rng.randbytes(l3 + 90))
    frame[l3] = 0x60 | frame[l3] & 15 if v6 else 0x45
    masked = bytearray(frame[l3:])
    if v6:
        masked[0] |= 15
    for i in (1, 2, 3, 7, 46, 47, 52) if v6 else (1, 8, 10, 11, 26, 27, 32):
        masked[i] = 0xFF
    changed = bytearray(frame)
    for i, (keep, flip) in enumerate(icrc_masks(l3, v6)):
        changed[i] = changed[i] & keep ^ flip
    assert zlib.crc32(bytes(changed), ONES) == zlib.crc32(bytes(masked), zlib.crc32(b"\xff" * 8))


def run_step(width, packets, seed, gap):
    """States after each packet's last beat, as CrcStep gives them."""
    rng, dut, nbytes = random.Random(seed), CrcStep(width), width // 8
    beats = [(packet[i:i + nbytes], i + nbytes >= len(packet)) for packet in packets for i in range(0, len(packet), nbytes)]
    states = []

    async def drive(ctx):
        for beat, last in beats:
            while rng.random() < gap:
                ctx.set(dut.valid, 0)
                ctx.set(dut.data, rng.getrandbits(width))
                ctx.set(dut.last, 1)
                await ctx.tick()
            ctx.set(dut.valid, 1)
            ctx.set(dut.data, int.from_bytes(beat, "little"))
            ctx.set(dut.last, last)
            await ctx.tick()
        ctx.set(dut.valid, 0)
        for _ in range(5):
            await ctx.tick()

    async def watch(ctx):
        ends = [0] * CrcStep.latency
        while True:
            _, _, valid, last, state = await ctx.tick().sample(dut.valid, dut.last, dut.state)
            if ends.pop():
                states.append(state)
            ends.insert(0, valid & last)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(drive)
    sim.add_testbench(watch, background=True)
    sim.run()
    return states


@pytest.mark.parametrize("gap", [0, 0.4])
@pytest.mark.parametrize("width", [64, 128, 256, 512, 1024])
def test_step(width, gap):
    rng = random.Random(width)
    packets = [rng.randbytes(width // 8 * rng.choice((1, 1, 1, 2, 3, 7))) for _ in range(20)]
    assert run_step(width, packets, 1, gap) == [zlib.crc32(p, ONES) ^ ONES for p in packets]


def test_a_wrong_matrix_is_noticed(monkeypatch):
    right = beat_matrix(8)
    wrong = (right[0], (right[1][0] ^ 1, *right[1][1:]))
    monkeypatch.setattr(wire_icrc, "beat_matrix", lambda nbytes: wrong)
    packets = [random.Random(3).randbytes(8 * 5) for _ in range(8)]
    assert run_step(64, packets, 1, 0) != [zlib.crc32(p, ONES) ^ ONES for p in packets]
