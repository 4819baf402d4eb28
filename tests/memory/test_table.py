"""Table: latency, what a read sees of a write, lanes, that it clears itself after reset, and what check bits do for its rows."""

import random

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.config import preset
from optinic.memory.table import Table, TableSpec, protect


def simulate(dut, bench):
    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()


async def write(ctx, t, row, value, lanes=1):
    ctx.set(t.write_en, lanes), ctx.set(t.write_addr, row), ctx.set(t.write_data, value)
    await ctx.tick()
    ctx.set(t.write_en, 0)


async def read(ctx, t, row):
    ctx.set(t.read0_addr, row)
    await ctx.tick().repeat(t.latency)
    return ctx.get(t.read0_data)


@pytest.mark.parametrize("latency", [1, 2])
def test_read_and_write(latency):
    t = Table(TableSpec("x", "test", 20, 11, "qp", "hot"), 20, latency=latency)

    async def bench(ctx):
        cycles = 0
        while ctx.get(t.clearing):
            ctx.set(t.write_en, 1), ctx.set(t.write_addr, 3), ctx.set(t.write_data, 9)      # ignored
            await ctx.tick()
            cycles += 1
        ctx.set(t.write_en, 0)
        assert cycles == 11
        for row in range(11):
            assert await read(ctx, t, row) == 0
        for row in range(11):
            await write(ctx, t, row, row * 1001)
        for row in range(11):
            assert await read(ctx, t, row) == row * 1001
        # a read sees nothing of a write in its own cycle or later
        ctx.set(t.read0_addr, 5)
        await write(ctx, t, 5, 1)
        for _ in range(latency - 1):
            await ctx.tick()
        assert ctx.get(t.read0_data) == 5005
        assert await read(ctx, t, 5) == 1

    simulate(t, bench)


def test_lanes_and_reset():
    t, reset = Table(TableSpec("x", "test", 36, 4, "qp", "hot", rows_per=2), 36, granularity=18), Signal()

    async def bench(ctx):
        while ctx.get(t.clearing):
            await ctx.tick()
        await write(ctx, t, 2, 5 << 18 | 7, lanes=0b11)
        await write(ctx, t, 2, 1 << 18 | 1, lanes=0b10)
        assert await read(ctx, t, 2) == 1 << 18 | 7
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        assert ctx.get(t.clearing)
        while ctx.get(t.clearing):
            await ctx.tick()
        assert await read(ctx, t, 2) == 0

    simulate(ResetInserter(reset)(t), bench)


def test_a_reader_beside_the_writer():
    """It reads what is there, a cycle later, but for the cycles in which it was told that the port was busy."""
    rng = random.Random(3)
    t = Table(TableSpec("x", "test", 20, 16, "qp", "hot"), 20, aside=True)

    async def bench(ctx):
        while ctx.get(t.clearing):
            assert ctx.get(t.aside_busy)
            await ctx.tick()
        rows, seen = [0] * 16, 0
        for _ in range(500):
            en, row, value, look = rng.randrange(2), rng.randrange(16), rng.getrandbits(20), rng.randrange(16)
            ctx.set(t.write_en, en), ctx.set(t.write_addr, row), ctx.set(t.write_data, value), ctx.set(t.aside_addr, look)
            assert ctx.get(t.aside_busy) == en
            want = rows[look]
            await ctx.tick()
            if not en:
                assert ctx.get(t.aside_data) == want
                seen += want != 0
            else:
                rows[row] = value
        assert seen > 100

    simulate(t, bench)


# -- check bits ------------------------------------------------------------------------------------------


class Exposed(Table):
    """A table whose memory the bench can reach: `memory` once it is elaborated."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        self.memory = m.submodules.ram.data
        return m


def exposed(protection, **options):
    spec = TableSpec("x", "test", 20, 16, "qp", "hot", protection=protection, refuses=options.pop("refuses", True))
    return Exposed(spec, 20, **options)


async def alarms(ctx, t, cycles=6):
    """How often each alarm comes within so many cycles."""
    found = [0, 0]
    for _ in range(cycles):
        await ctx.tick()
        found[0] += ctx.get(t.table_corrected)
        found[1] += ctx.get(t.table_detected)
    return found


async def flip(ctx, t, row, *bits):
    word = ctx.get(t.memory[row])
    ctx.set(t.memory[row], word ^ sum(1 << bit for bit in bits))


@pytest.mark.parametrize("latency", [1, 2])
def test_secded_reads_right_what_is_wrong_in_one_bit(latency):
    t = exposed("secded", latency=latency, aside=True)

    async def bench(ctx):
        while ctx.get(t.clearing):
            await ctx.tick()
        for row in range(16):
            await write(ctx, t, row, row * 65537 & 0xFFFFF)
        assert await read(ctx, t, 0) == 0 and await alarms(ctx, t) == [0, 0]
        for bit in range(t.spec.row_bits):
            row = 1 + bit % 15
            await flip(ctx, t, row, bit)
            ctx.set(t.aside_addr, row)
            assert await read(ctx, t, row) == row * 65537 & 0xFFFFF == ctx.get(t.aside_data)
            seen = await alarms(ctx, t)
            assert seen[0] in (1, 2) and seen[1] == 0      # once, by each way that it is read
            assert await alarms(ctx, t, 20) == [0, 0], "the same row again and again"
            await write(ctx, t, row, row * 65537 & 0xFFFFF)
            assert await read(ctx, t, row) == row * 65537 & 0xFFFFF

    simulate(t, bench)


@pytest.mark.parametrize("protection, bits, reads, told", [
    ("secded", (3, 9), 0, [0, 1]), ("parity", (3,), 0, [0, 1]), ("parity", (20,), 0, [0, 1]), ("secded", (3, 21), 0, [0, 1]),
])
def test_a_row_that_cannot_be_corrected_is_not_acted_on(protection, bits, reads, told):
    t = exposed(protection)

    async def bench(ctx):
        while ctx.get(t.clearing):
            await ctx.tick()
        await write(ctx, t, 7, 0xABCDE)
        await flip(ctx, t, 7, *bits)
        assert await read(ctx, t, 7) == reads
        assert await alarms(ctx, t, 20) == told
        await write(ctx, t, 7, 0x12345)
        assert await read(ctx, t, 7) == 0x12345 and await alarms(ctx, t, 20) == [0, 0]

    simulate(t, bench)


def test_without_check_bits_a_wrong_row_is_read_as_it_is():
    """Negative control of the two above."""
    t = exposed("none")

    async def bench(ctx):
        while ctx.get(t.clearing):
            await ctx.tick()
        await write(ctx, t, 7, 0xABCDE)
        await flip(ctx, t, 7, 3)
        assert await read(ctx, t, 7) == 0xABCDE ^ 8

    simulate(t, bench)


def test_who_gets_which_protection():
    """Parity only where a row of zeroes is refused; what is refused reads as zeroes."""
    specs = [TableSpec(name, "test", 57, 4, "qp", "hot") for name in ("refused", "other")]
    found = {p: {s.name: (s.protection, s.refuses, s.row_bits) for s in protect(preset("tiny", table_protection=p), specs, ("refused",))}
             for p in ("none", "parity", "secded")}
    assert found == {
        "none": {"refused": ("none", True, 57), "other": ("none", False, 57)},
        "parity": {"refused": ("parity", True, 58), "other": ("none", False, 57)},
        "secded": {"refused": ("secded", True, 64), "other": ("secded", False, 64)},
    }
