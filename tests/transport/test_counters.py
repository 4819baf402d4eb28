"""The counters against Python integers: everything that happens is counted, however much of it at once."""

import random

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.abi.verdicts import COUNTERS, NUM_COUNTERS
from optinic.config import preset
from optinic.transport import counters
from optinic.transport.counters import EVENTS, Counters


class Bench:
    def __init__(self, name="tiny", seed=1, dut=None):
        self.cfg, self.rnd = preset(name), random.Random(seed)
        self.dut = dut or Counters(self.cfg)
        self.want = [0] * NUM_COUNTERS
        print("seed", seed)

    async def start(self, ctx):
        while ctx.get(self.dut.clearing):
            await ctx.tick()

    async def step(self, ctx, verdict=None, placed=None, events=()):
        dut = self.dut
        ctx.set(dut.verdict, {"valid": verdict is not None, "index": verdict or 0})
        ctx.set(dut.placed_bytes, {"valid": placed is not None, "bytes": placed or 0})
        for name in EVENTS:
            ctx.set(getattr(dut, f"event_{name}"), name in events)
            self.want[COUNTERS[name]] += name in events
        if verdict is not None:
            self.want[verdict] += 1
        self.want[COUNTERS["placed_bytes"]] += placed or 0
        await ctx.tick()

    async def random_step(self, ctx, rates):
        rnd = self.rnd
        verdict = rnd.choice([rnd.randrange(34), rnd.randrange(3), 0]) if rnd.random() < rates[0] else None
        placed = rnd.choice([0, 1, rnd.randrange(self.cfg.mtu_max + 1), self.cfg.mtu_max]) if rnd.random() < rates[1] else None
        await self.step(ctx, verdict, placed, [name for name in EVENTS if rnd.random() < rates[2]])

    async def read(self, ctx, index):
        ctx.set(self.dut.read.addr, index)
        for _ in range(self.dut.READ_LATENCY):
            await ctx.tick()
        return ctx.get(self.dut.read.data)

    async def check(self, ctx):
        await self.step(ctx)
        for _ in range(self.dut.SETTLE - 1):
            await ctx.tick()
        assert [await self.read(ctx, index) for index in range(NUM_COUNTERS)] == self.want

    def run(self, process, top=None):
        sim = Simulator(top or self.dut)
        sim.add_clock(4e-9)
        sim.add_testbench(process)
        sim.run()


@pytest.mark.parametrize("name, rates", [("tiny", (.3, .3, .1)), ("tiny", (1, 1, 1)), ("c100g", (1, .7, .5)),
                                         ("small", (.9, 1, .9))])
def test_random(name, rates):
    bench = Bench(name)

    async def process(ctx):
        await bench.start(ctx)
        for _ in range(4):
            for _ in range(bench.rnd.randrange(150, 350)):
                await bench.random_step(ctx, rates)
            await bench.check(ctx)
    bench.run(process)


def flat_out(bench, cycles=200):
    """Everything in every cycle, the largest payloads: the gathering registers at the limit that they are made for."""
    async def process(ctx):
        await bench.start(ctx)
        for _ in range(cycles):
            await bench.step(ctx, 0, bench.cfg.mtu_max, EVENTS)
        await bench.check(ctx)
    return process


def test_everything_every_cycle():
    bench = Bench("c100g")
    bench.run(flat_out(bench))


def test_a_narrow_register_is_noticed():
    """Negative control: gathering registers for half the MTU must lose bytes."""
    bench = Bench("c100g")
    bench.dut._cfg = bench.cfg.with_(mtu_max=2048)
    with pytest.raises(AssertionError):
        bench.run(flat_out(bench))


@pytest.mark.parametrize("gap", range(6))
def test_one_counter_at_every_distance(gap):
    """Forwarding: the same verdict again after 1 to 6 cycles, with others in between."""
    bench = Bench()

    async def process(ctx):
        await bench.start(ctx)
        for n in range(60):
            await bench.step(ctx, 5)
            for between in range(gap):
                await bench.step(ctx, (None, 6 + between, 5 if n % 7 == 0 else None)[n % 3])
        await bench.check(ctx)
    bench.run(process)


def test_carry_over_every_byte():
    """Counts beyond 2^16, where one carry is wrong in a thousand runs if the sum is not 64 bits in one piece."""
    bench = Bench("c100g")

    async def process(ctx):
        await bench.start(ctx)
        for _ in range(600):
            await bench.step(ctx, 33, 4095 if bench.rnd.random() < .5 else 4096)
        await bench.check(ctx)
    bench.run(process)


def test_single_event_of_each_kind_at_each_turn():
    bench = Bench()

    async def process(ctx):
        await bench.start(ctx)
        for name in EVENTS:
            for wait in range(bench.dut.round):
                await bench.step(ctx, events=[name])
                for _ in range(wait):
                    await bench.step(ctx)
        for wait in range(bench.dut.round):
            await bench.step(ctx, placed=1 << wait % 10)
            for _ in range(wait):
                await bench.step(ctx)
        await bench.check(ctx)
    bench.run(process)


def test_reads_go_on_meanwhile():
    """A read among events is a value that the counter had lately, and never falls."""
    bench = Bench()

    async def process(ctx):
        await bench.start(ctx)
        last = {}
        ctx.set(bench.dut.read.addr, 0)
        for cycle in range(1500):
            if cycle % 5 == 0:
                index = bench.rnd.choice([0, 1, COUNTERS["placed_bytes"], COUNTERS["completions"]])
                ctx.set(bench.dut.read.addr, index)
            await bench.random_step(ctx, (1, .5, .5))
            if cycle % 5 == 4:
                value = ctx.get(bench.dut.read.data)
                assert last.get(index, 0) <= value <= bench.want[index]
                last[index] = value
        await bench.check(ctx)
    bench.run(process)


def test_reset():
    """Reset under full load: the counts begin anew; events already count while the verdicts' bank is cleared."""
    bench = Bench()
    reset = Signal()

    async def process(ctx):
        await bench.start(ctx)
        for _ in range(100):
            await bench.random_step(ctx, (1, 1, 1))
        ctx.set(reset, 1)
        for _ in range(3):
            await bench.random_step(ctx, (1, 1, 1))
        ctx.set(reset, 0)
        bench.want = [0] * NUM_COUNTERS
        while True:
            await bench.random_step(ctx, (0, 1, .5))
            if not ctx.get(bench.dut.clearing):
                break
        for _ in range(100):
            await bench.random_step(ctx, (1, 1, .5))
        await bench.check(ctx)
    bench.run(process, ResetInserter(reset)(bench.dut))
