"""The check bits: what the code promises, for many widths, and that the hardware does what the arithmetic says."""

from itertools import combinations
import random

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from optinic.memory.code import check_bits, check_of, columns, decode, encode


@pytest.mark.parametrize("width", [*range(1, 70), 120, 121, 128, 197, 212, 215, 246, 247, 256])
def test_every_pair_of_errors_differs_from_every_single_one(width):
    """Of a linear code that is all there is to show: columns of one bit are odd and all different, so the sum of two is even and not
    zero. Holds for every data, as the syndrome depends on the error alone."""
    bits, found = check_bits(width, "secded"), columns(width)
    every = [*found, *(1 << i for i in range(bits))]
    assert len(found) == width and len(set(every)) == len(every)
    assert all(column.bit_count() % 2 == 1 and 0 < column < 1 << bits for column in every)


def test_sizes_of_the_code():
    """As few check bits as such a code can have: 8 for 64 bits, 9 for 215; and evenly loaded."""
    assert [check_bits(n, "secded") for n in (1, 4, 5, 11, 26, 57, 58, 64, 120, 121, 215)] == [3, 4, 5, 5, 6, 7, 8, 8, 8, 9, 9]
    for width in (57, 64, 215):
        loads = [sum(column >> i & 1 for column in columns(width)) for i in range(check_bits(width, "secded"))]
        assert max(loads) - min(loads) <= 2, loads
    assert check_bits(100, "parity") == 1 and check_bits(100, "none") == 0


class Both(wiring.Component):
    """The encoder, an error, and the decoder behind it."""

    def __init__(self, width, protection, zero=False):
        self.width, self.protection, self.zero = width, protection, zero
        whole = width + check_bits(width, protection)
        super().__init__({"data": In(width), "error": In(whole), "word": Out(whole),
                          "out": Out(width), "corrected": Out(1), "detected": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.word.eq(encode(self.data, self.protection))
        noisy = Signal(len(self.error))
        m.d.comb += noisy.eq(self.word ^ self.error)
        found = decode(m, noisy, self.width, self.protection, name="it", zero=self.zero)
        m.d.comb += [self.out.eq(found.data), self.corrected.eq(found.corrected(found.syndrome)),
                     self.detected.eq(found.detected(found.syndrome))]
        return m


def simulate(dut, bench):
    sim = Simulator(dut)
    sim.add_testbench(bench)
    sim.run()


@pytest.mark.parametrize("width, zero", [(1, False), (5, True), (16, False), (57, True)])
def test_secded_with_every_error_of_one_and_two_bits(width, zero):
    rng = random.Random(width)
    dut, bits = Both(width, "secded", zero), width + check_bits(width, "secded")

    async def bench(ctx):
        async def look(error):
            data = rng.getrandbits(width)
            ctx.set(dut.data, data), ctx.set(dut.error, error)
            await ctx.delay(1e-9)
            return data, ctx.get(dut.out), ctx.get(dut.corrected), ctx.get(dut.detected)
        for _ in range(50):
            data, out, corrected, detected = await look(0)
            assert (out, corrected, detected) == (data, 0, 0)
            assert ctx.get(dut.word) == data | check_of(data, width, "secded") << width
        for i in range(bits):
            data, out, corrected, detected = await look(1 << i)
            assert (out, corrected, detected) == (data, 1, 0), i
        for i, j in combinations(range(bits), 2):
            data, out, corrected, detected = await look(1 << i | 1 << j)
            assert (corrected, detected) == (0, 1), (i, j)
            assert not zero or out == 0

    simulate(dut, bench)


def test_parity_detects_every_odd_error():
    rng, width = random.Random(2), 33
    dut = Both(width, "parity", zero=True)

    async def bench(ctx):
        for n in (0, 1, 2, 3):
            for _ in range(40):
                data = rng.getrandbits(width)
                ctx.set(dut.data, data), ctx.set(dut.error, sum(1 << i for i in rng.sample(range(width + 1), n)))
                await ctx.delay(1e-9)
                assert ctx.get(dut.detected) == n % 2 and not ctx.get(dut.corrected)
                assert n or ctx.get(dut.out) == data
                assert n % 2 == 0 or ctx.get(dut.out) == 0
                assert ctx.get(dut.word) == data | check_of(data, width, "parity") << width

    simulate(dut, bench)


def test_a_row_of_zeroes_needs_no_check_bits():
    """So that a memory that was cleared, or configured with zeroes, is sound."""
    for width in (1, 57, 215):
        assert check_of(0, width, "secded") == check_of(0, width, "parity") == 0


def test_another_code_would_be_found_out():
    """Negative control: a column of even weight makes two errors look like one."""
    width = 10
    spoiled = [*columns(width)[:-1], 0b11]
    every = [*spoiled, *(1 << i for i in range(check_bits(width, "secded")))]
    assert any(a ^ b in every for a, b in combinations(every, 2))
    good = [*columns(width), *(1 << i for i in range(check_bits(width, "secded")))]
    assert not any(a ^ b in good for a, b in combinations(good, 2))
