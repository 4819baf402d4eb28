"""NIC time is right at several clocks (field case 30: the tick at two frequencies)."""

import pytest
from amaranth.sim import Simulator

from optinic.config import preset
from optinic.transport.clock import NicClock


@pytest.mark.parametrize("hz", [125_000_000, 250_000_000, 322_265_625, 402_832_031])
def test_time(hz):
    dut, cycles = NicClock(preset("tiny", clock_hz=hz)), 5000

    async def bench(ctx):
        await ctx.tick().repeat(cycles)
        assert abs(ctx.get(dut.time) - cycles * 1e9 / hz) < 1.01
        assert ctx.get(dut.ticks) == ctx.get(dut.time) // 64
        assert ctx.get(dut.coarse) == ctx.get(dut.time) // 1024
        ctx.set(dut.set, 1), ctx.set(dut.set_time, (7 << 32) + 1_000_000)
        await ctx.tick()
        ctx.set(dut.set, 0)
        assert ctx.get(dut.time) == (7 << 32) + 1_000_000
        await ctx.tick().repeat(1000)
        assert abs(ctx.get(dut.time) - (7 << 32) - 1_000_000 - 1000e9 / hz) < 1.01

    sim = Simulator(dut)
    sim.add_clock(1 / hz)
    sim.add_testbench(bench)
    sim.run()
