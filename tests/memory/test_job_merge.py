"""JobMerge: each source's order, nothing lost, and neither waits for the other for ever."""

import random

from amaranth.sim import Simulator
import pytest

from optinic.config import preset
from optinic.memory.job_merge import JobMerge

SOURCES = ("receive", "send")


@pytest.mark.parametrize("ready", [1.0, 0.3])
@pytest.mark.parametrize("loads", [(1.0, 0.2), (1.0, 1.0), (0.1, 1.0)])
def test_order_and_turns(ready, loads, seed):
    dut, rng = JobMerge(preset("tiny")), random.Random(seed)
    sent, got = {name: 0 for name in SOURCES}, []

    async def bench(ctx):
        for _ in range(600):
            ctx.set(dut.jobs.ready, rng.random() < ready)
            for name, load in zip(SOURCES, loads):
                port = getattr(dut, name)
                if not ctx.get(port.valid) and rng.random() < load:
                    ctx.set(port.valid, 1), ctx.set(port.payload.addr, sent[name] << 1 | (name == "send"))
            took = [name for name in SOURCES if ctx.get(getattr(dut, name).valid) and ctx.get(getattr(dut, name).ready)]
            assert len(took) < 2
            if ctx.get(dut.jobs.valid) and ctx.get(dut.jobs.ready):
                got.append(ctx.get(dut.jobs.payload.addr))
            await ctx.tick()
            for name in took:
                sent[name] += 1
                ctx.set(getattr(dut, name).valid, 0)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
    for i, name in enumerate(SOURCES):
        mine = [a >> 1 for a in got if a & 1 == i]
        assert mine == list(range(len(mine))) and sent[name] - len(mine) <= 3
    if loads == (1.0, 1.0):     # in turn, without a pause
        assert len(got) >= (590 if ready == 1 else 120)
        assert all(a & 1 != b & 1 for a, b in zip(got[1:], got[2:]))
