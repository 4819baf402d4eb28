"""The coverage sum: what tiles is accepted, what doesn't is not, and the hardware computes what Python computes."""

import random

from amaranth.sim import Simulator

from optinic.transport.xp.coverage import Coverage, mix

M32 = (1 << 32) - 1


def total(pieces):
    return sum(mix(start + n) - mix(start) for start, n in pieces) & M32


def test_tilings_agree(rng):
    for _ in range(200):
        cuts = sorted({0, *(rng.randrange(1, 1 << 20) for _ in range(rng.randrange(6))), 1 << 20})
        pieces = [(a, b - a) for a, b in zip(cuts, cuts[1:])]
        rng.shuffle(pieces)
        assert total(pieces) == mix(1 << 20)


def test_a_duplicate_never_makes_up_for_a_loss(rng):
    """Every pair (lost, doubled) of equal pieces, at many piece sizes: the byte count agrees, the coverage sum must not."""
    for piece in (1, 64, 256, 1000, 1024, 4096):
        n = 200
        deltas = [mix((i + 1) * piece) - mix(i * piece) & M32 for i in range(n)]
        assert len(set(deltas)) == n, piece


def test_the_mixing_is_not_a_byte_count():
    assert mix(0) == 0
    assert len({mix(x + 64) - mix(x) & M32 for x in range(0, 1 << 16, 64)}) == 1 << 10


def test_hardware_agrees(rng):
    dut = Coverage(range(4097))
    cases = [(rng.getrandbits(32), rng.randrange(4097), rng.getrandbits(32)) for _ in range(200)]
    cases += [(0, 0, 0), (M32, 4096, M32), (M32 - 4095, 4096, 0)]

    async def bench(ctx):
        for cycle in range(len(cases) + Coverage.LATENCY):
            if cycle < len(cases):
                offset, length, msg_len = cases[cycle]
                ctx.set(dut.offset, offset), ctx.set(dut.length, length), ctx.set(dut.msg_len, msg_len)
            if cycle >= Coverage.LATENCY:
                offset, length, msg_len = cases[cycle - Coverage.LATENCY]
                delta = mix(offset + length) - mix(offset) & M32
                assert ctx.get(dut.delta) == delta
                assert ctx.get(dut.rest) == mix(msg_len) - delta & M32
            await ctx.tick()

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
