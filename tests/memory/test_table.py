"""Table: latency, what a read sees of a write, lanes, and that it clears itself after reset."""

import random

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.memory.table import Table, TableSpec


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
