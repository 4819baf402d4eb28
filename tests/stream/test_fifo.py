"""StreamFifo: order, nothing lost, full rate, level, reset in mid-stream; both kinds of memory."""

import random

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.stream.fifo import StreamFifo


def simulate(dut, bench, *more):
    sim = Simulator(dut)
    sim.add_clock(1e-8)
    for b in (bench, *more):
        sim.add_testbench(b)
    sim.run()


@pytest.mark.parametrize("style", ["distributed", "block"])
@pytest.mark.parametrize("depth", [2, 8])
def test_random_pauses(style, depth, seed):
    dut, rng = StreamFifo(16, depth, style=style), random.Random(seed)
    sent = [rng.getrandbits(16) for _ in range(600)]
    got = []

    async def source(ctx):
        for word in sent:
            while rng.random() < 0.4:
                await ctx.tick()
            ctx.set(dut.i.payload, word), ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)

    async def sink(ctx):
        while len(got) < len(sent):
            ready = rng.random() < 0.5
            ctx.set(dut.o.ready, ready)
            valid, word = ctx.get(dut.o.valid), ctx.get(dut.o.payload)
            assert ctx.get(dut.level) <= depth + 1
            await ctx.tick()
            if valid and ready:
                got.append(word)
            elif valid:
                assert ctx.get(dut.o.valid) and ctx.get(dut.o.payload) == word

    simulate(dut, source, sink)
    assert got == sent


@pytest.mark.parametrize("style", ["distributed", "block"])
def test_full_rate_and_full_queue(style):
    dut = StreamFifo(8, 4, style=style)

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        accepted = 0
        for _ in range(20):
            accepted += ctx.get(dut.i.ready)
            await ctx.tick()
        assert accepted == 5 and ctx.get(dut.level) == 5        # memory and output register, then it refuses
        ctx.set(dut.o.ready, 1)
        await ctx.tick().repeat(3)
        for _ in range(20):
            assert ctx.get(dut.i.ready) and ctx.get(dut.o.valid)
            await ctx.tick()

    simulate(dut, bench)


@pytest.mark.parametrize("style", ["distributed", "block"])
def test_reset_in_mid_stream(style):
    reset = Signal()
    inner = StreamFifo(8, 4, style=style)
    dut = ResetInserter(reset)(inner)

    async def bench(ctx):
        ctx.set(inner.i.valid, 1)
        await ctx.tick().repeat(3)
        ctx.set(inner.i.valid, 0), ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        assert not ctx.get(inner.o.valid) and ctx.get(inner.level) == 0
        ctx.set(inner.i.payload, 77), ctx.set(inner.i.valid, 1)
        await ctx.tick()
        ctx.set(inner.i.valid, 0)
        await ctx.tick().until(inner.o.valid)
        assert ctx.get(inner.o.payload) == 77

    simulate(dut, bench)
