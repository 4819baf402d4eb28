"""The pacer against its model, and its accuracy by what gets sent when everything is sent as early as it may."""

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.sim import Simulator
import pytest

from optinic.config import preset
from optinic.congestion import pacer
from optinic.congestion.pacer import Pacer, PARAMS
from optinic.congestion.sweep import Sweep
from sim.models.congestion import PacerModel, interval_of

CFG = preset("tiny", data_width=512, clock_hz=250_000_000)
QPS = CFG.num_qps
ROUND = QPS * 64 + 10       # cycles in which the sweep has seen everybody
MAX_AGE = 8_300_000         # ns without a round after which the card could take old times for future ones


class Bench:
    def __init__(self, rng, dut=None, burst=PARAMS["burst"].default):
        self.rng, self.dut, self.burst = rng, dut or Pacer(CFG), burst
        self.model = PacerModel(burst)
        self.time = self.aged = rng.randrange(1 << 40)

    def run(self, process, top=None):
        async def bench(ctx):
            ctx.set(self.dut.burst, self.burst)
            ctx.set(self.dut.time, self.time)
            await self.settle(ctx)
            await process(ctx)
        sim = Simulator(top or self.dut)
        sim.add_clock(4e-9)
        sim.add_testbench(bench)
        sim.run()

    async def settle(self, ctx):
        """Reset is over, and everybody has a time that is near to now."""
        while ctx.get(self.dut.clearing):
            await ctx.tick()
        # the table's zeroes are a time like any other: up to 8.4 ms ahead
        for _ in range(3):
            await self.sleep(ctx, 4_000_000)
            await ctx.tick().repeat(ROUND)

    async def sleep(self, ctx, ns):
        while ns > 0:
            step = min(ns, 4_000_000)
            if self.time + step - self.aged > MAX_AGE - self.burst:
                await ctx.tick().repeat(ROUND)
                self.aged = self.time
            self.time += step
            ns -= step
            ctx.set(self.dut.time, self.time)
            await ctx.tick()

    async def pulse(self, ctx, port, cycles, **fields):
        ctx.set(port, {"valid": 1, **fields})
        await ctx.tick()
        ctx.set(port.valid, 0)
        await ctx.tick().repeat(cycles - 1)

    async def look(self, ctx, qp):
        await self.pulse(ctx, self.dut.look, Pacer.LOOK_LATENCY, qp=qp)
        return ctx.get(self.dut.wait), ctx.get(self.dut.paced)

    async def check(self, ctx, qp):
        wait, paced = await self.look(ctx, qp)
        assert (wait, paced) == (self.model.wait(qp, self.time), self.model.paced(qp)), f"QP {qp}: wait"
        return wait

    async def charge(self, ctx, qp, size):
        await self.pulse(ctx, self.dut.charge, 8, qp=qp, bytes=size)
        self.model.charge(qp, size, self.time)

    async def rate(self, ctx, qp, interval):
        ctx.set(self.dut.rate.payload, {"qp": qp, "interval": interval})
        ctx.set(self.dut.rate.valid, 1)
        await ctx.tick()
        ctx.set(self.dut.rate.valid, 0)
        await ctx.tick().repeat(3)
        self.model.rate(qp, interval)

    async def reset(self, ctx, qp):
        await self.pulse(ctx, self.dut.reset, 8, qp=qp)
        self.model.reset(qp, self.time)


def some_interval(rng):
    return rng.choice([0, 1, 511, 512, 1023, 1024, 5243, 5242, 52_428_800, (1 << 30) - 1, 1 << rng.randrange(30),
                       rng.getrandbits(rng.randrange(1, 31)), interval_of(rng.randrange(10, 100_000))])


async def random_calls(b, ctx, count):
    rng = b.rng
    waits = 0
    for _ in range(count):
        qp = rng.randrange(QPS)
        what = rng.choices(["look", "charge", "rate", "reset", "sleep"], [6, 6, 2, .2, 2])[0]
        if what == "look":
            waits += await b.check(ctx, qp) > 0
        elif what == "charge":
            await b.charge(ctx, qp, rng.choice([0, 1, 158, 1500, 4200, 16383, rng.randrange(1 << 14)]))
        elif what == "rate":
            await b.rate(ctx, qp, some_interval(rng))
        elif what == "reset":
            await b.reset(ctx, qp)
        else:
            await b.sleep(ctx, rng.choice([1, 5, 100, 1_000, 5_000, 50_000, rng.randrange(1 << rng.randrange(1, 25))]))
    assert waits > count / 40


@pytest.mark.parametrize("burst", [8192, 0, 1 << 20])
def test_random(burst, rng):
    b = Bench(rng, burst=burst)
    b.run(lambda ctx: random_calls(b, ctx, 900))


RATES = [10, 33, 100, 1_000, 9_900, 48_000, 99_000, 100_000]        # Mb/s


@pytest.mark.parametrize("size", [158, 1500, 4200])
def test_accuracy(size, rng):
    """Sent as soon as the wait is over, every QP at its own rate, which holds within 1 %."""
    b = Bench(rng)

    async def process(ctx):
        for qp, rate in enumerate(RATES):
            await b.rate(ctx, qp, interval_of(rate))
            await b.reset(ctx, qp)
            start, count = b.time, 0
            while count < (100 if size == 158 else 60):
                await b.charge(ctx, qp, size)
                count += 1
                if wait := await b.check(ctx, qp):
                    await b.sleep(ctx, wait)
                assert await b.look(ctx, qp) == (0, 1)
            got = 8000 * count * size / (b.time - start)
            print(size, rate, got)
            assert abs(got / rate - 1) < .01, f"{rate} Mb/s, {size} bytes: {got}"
    b.run(process)


@pytest.mark.parametrize("late, holds", [(8_000, True), (40_000, False)])
def test_lateness_is_made_up_for(late, holds, rng):
    """A sender that is up to 8 us late keeps the rate, as the burst allowance is that long. One that is later loses."""
    b = Bench(rng)

    async def process(ctx):
        await b.rate(ctx, 0, interval_of(10_000))
        await b.charge(ctx, 0, 4200)
        start, sent = b.time, 0
        while sent < 150:
            if wait := await b.check(ctx, 0):
                await b.sleep(ctx, wait + b.rng.randrange(late))
            else:
                await b.charge(ctx, 0, 4200)
                sent += 1
        got = 8000 * sent * 4200 / (b.time - start)
        assert (abs(got / 10_000 - 1) < .02) == holds, got
    b.run(process)


async def densely(b, ctx):
    """Looks and charges as close as they may come, rates beside them; few QPs, so that they follow each other."""
    rng, dut = b.rng, b.dut
    for qp in range(QPS):
        await b.rate(ctx, qp, interval_of(rng.randrange(1000, 20_000)))
        await b.charge(ctx, qp, 1500)
    charges = 0
    for cycle in range(1600):
        if cycle % 4 == 0 and cycle % 20 != 8:
            qp, size = rng.randrange(3), rng.randrange(200, 4200)
            ctx.set(dut.charge, {"valid": 1, "qp": qp, "bytes": size})
            b.model.charge(qp, size, b.time)
            charges += 1
        ctx.set(dut.look, {"valid": cycle % 4 == cycle // 100 % 4, "qp": rng.randrange(QPS)})
        if rng.random() < .5:       # of the others, lest an interval changes under a charge
            qp, interval = rng.randrange(4, QPS), some_interval(rng)
            ctx.set(dut.rate.payload, {"qp": qp, "interval": interval})
            ctx.set(dut.rate.valid, 1)
            b.model.rate(qp, interval)
        await ctx.tick()
        for port in (dut.charge, dut.look, dut.rate):
            ctx.set(port.valid, 0)
    await ctx.tick().repeat(12)
    for qp in range(QPS):
        await b.check(ctx, qp)
    assert charges > 300


def test_dense_calls(rng):
    b = Bench(rng)
    b.run(lambda ctx: densely(b, ctx))


def test_look_knows_of_charges_eight_cycles_ago(rng):
    b = Bench(rng)

    async def process(ctx):
        await b.rate(ctx, 1, interval_of(1000))
        for _ in range(100):
            await ctx.tick().repeat(b.rng.randrange(60))
            await b.charge(ctx, 1, 100)         # takes eight cycles
            await b.check(ctx, 1)
            await b.sleep(ctx, 900)
    b.run(process)


def test_long_idle(rng):
    """Whoever has not sent for any time, whatever the wraps, may send now, and has no more credit than the burst."""
    b = Bench(rng)

    async def process(ctx):
        for idle in (10_000, 8_000_000, 9_000_000, 16_700_000, 17_000_000, 70_000_000):
            await b.rate(ctx, 2, interval_of(500))
            await b.charge(ctx, 2, 4200)
            await b.sleep(ctx, idle + 70_000)
            assert await b.check(ctx, 2) == 0
            await b.charge(ctx, 2, 4200)
            assert await b.check(ctx, 2) == 4200 * interval_of(500) // 65536 - PARAMS["burst"].default
    b.run(process)


def test_a_reset_qp_owes_nothing(rng):
    b = Bench(rng)

    async def process(ctx):
        await b.rate(ctx, 2, interval_of(10))
        await b.charge(ctx, 2, 4200)
        assert await b.check(ctx, 2) == 3_360_000 - PARAMS["burst"].default
        await b.reset(ctx, 2)
        assert await b.check(ctx, 2) == 0
        await b.charge(ctx, 2, 4200)
        await b.rate(ctx, 2, 0)
        assert await b.look(ctx, 2) == (0, 0)
    b.run(process)


def test_reset_in_the_middle(rng):
    b = Bench(rng)
    reset = Signal()

    async def process(ctx):
        await b.rate(ctx, 2, 1 << 20)
        await b.pulse(ctx, b.dut.charge, 2, qp=2, bytes=4000)
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        await ctx.tick()
        b.model = PacerModel(b.burst)
        await b.settle(ctx)
        for qp in range(QPS):
            await b.check(ctx, qp)
        await random_calls(b, ctx, 100)
    b.run(process, ResetInserter(reset)(b.dut))


def test_no_sweep_is_noticed(rng, monkeypatch):
    """Negative control: without the round, times wrap, and who was idle has to wait."""
    class Stuck(Sweep):
        def elaborate(self, platform):
            return Module()
    monkeypatch.setattr(pacer, "Sweep", Stuck)
    b = Bench(rng)

    async def process(ctx):
        await b.rate(ctx, 2, interval_of(500))
        await b.charge(ctx, 2, 4200)
        await b.sleep(ctx, 15_000_000)
        await b.check(ctx, 2)
    with pytest.raises(AssertionError, match="wait"):
        b.run(process)


def test_lost_updates_are_noticed(rng):
    """Negative control: changes that follow each other more closely overtake the forwarding."""
    class Hasty(Pacer):
        SPACING = 1
    b = Bench(rng, Hasty(CFG))
    with pytest.raises(AssertionError, match="wait"):
        b.run(lambda ctx: densely(b, ctx))
