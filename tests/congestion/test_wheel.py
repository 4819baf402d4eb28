"""The timing wheel: everyone comes out once, never early, and no later than the docstring says."""

from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator
import pytest

from optinic.config import preset
from optinic.congestion.wheel import BUCKETS, TimingWheel

HORIZON = (BUCKETS - 1) * 1024      # ns


class Bench:
    """Time runs with the cycles, `ns` each. `parked`: QP -> the time before which it may not come out, and the one at which it is due.
    `backlog`: ns that others may take before a QP."""

    def __init__(self, rng, qps=16, ns=4, dut=None, start=None):
        self.rng, self.ns = rng, ns
        self.cfg = preset("tiny", data_width=512, clock_hz=250_000_000, num_qps=qps, deadline_lanes=1)
        self.dut = dut or TimingWheel(self.cfg)
        self.time = rng.randrange(1 << 40) if start is None else start
        self.dut.first_bucket = (self.time >> 10) % 65536      # or it would go through all buckets up to there
        self.parked, self.out, self.worst = {}, [], 0
        self.slack = 1024 + 8 * ns
        self.backlog = 0

    def run(self, process, top=None):
        async def bench(ctx):
            ctx.set(self.dut.time, self.time)
            while ctx.get(self.dut.clearing):
                await ctx.tick()
            await process(ctx)
        sim = Simulator(top or self.dut)
        sim.add_clock(4e-9)
        sim.add_testbench(bench)
        sim.run()

    async def step(self, ctx, park=None, ready=1):
        """One cycle. `park`: (qp, delay). Returns whether it was accepted."""
        dut = self.dut
        ctx.set(dut.time, self.time)
        if park:
            ctx.set(dut.park.payload, {"qp": park[0], "delay": park[1]})
        ctx.set(dut.park.valid, park is not None)
        ctx.set(dut.due.ready, ready)
        accepted = park is not None and ctx.get(dut.park.ready)
        if accepted:
            assert park[0] not in self.parked
            self.parked[park[0]] = self.time + min(park[1], HORIZON - 1024), self.time + min(park[1], HORIZON)
        if ctx.get(dut.due.valid) and ready:
            qp = ctx.get(dut.due.payload.qp)
            assert qp in self.parked, f"QP {qp} was not parked"
            earliest, due = self.parked.pop(qp)
            assert self.time >= earliest, f"QP {qp} is early by {earliest - self.time} ns"
            self.out.append(qp)
            self.worst = max(self.worst, self.time - due)
            assert self.time - due <= self.slack + self.backlog, f"QP {qp} is late by {self.time - due} ns"
        await ctx.tick()
        self.time += self.ns
        return accepted

    async def drain(self, ctx, limit):
        for _ in range(limit):
            if not self.parked:
                return
            await self.step(ctx)
        raise AssertionError(f"{len(self.parked)} QPs never came out")


@pytest.mark.parametrize("ready", [1, .4])
def test_random(ready, rng):
    """Sixteen QPs are parked anew as they come out, for delays of every size."""
    b = Bench(rng)
    b.backlog = 16 * 6 * 4 if ready == 1 else 16 * 20 * 4

    async def process(ctx):
        park, accepted = None, 0
        for _ in range(8_000):
            if park is None and rng.random() < .1:
                free = [qp for qp in range(16) if qp not in b.parked]
                if free:
                    park = rng.choice(free), rng.choice([0, 1, 1023, 1024, 1025, rng.randrange(5000), rng.randrange(30_000)])
            if await b.step(ctx, park, int(rng.random() < ready)):
                park, accepted = None, accepted + 1
        await b.drain(ctx, 20_000)
        assert accepted == len(b.out) > 50
        print("late by at most", b.worst, "ns")
    b.run(process)


@pytest.mark.parametrize("qps", [16, 1024, 1500])
def test_all_in_one_bucket(qps, rng):
    """All of them due at once come out one in two cycles, while nobody is parked."""
    b = Bench(rng, qps)

    async def process(ctx):
        first, at = b.time, 1024 * (qps * 6 * 4 // 1024 + 3)
        todo = list(range(qps))
        rng.shuffle(todo)
        while todo:
            if await b.step(ctx, (todo[-1], first + at - b.time)):
                todo.pop()
        assert not b.out
        parking = (b.time - first) / 4 / qps
        b.backlog = qps * 2 * 4
        await b.drain(ctx, 200 + at // 4 + 2 * qps)
        assert sorted(b.out) == list(range(qps)) and parking <= 5.1
        print(f"{parking:.2f} cycles to park, late by at most {b.worst} ns")
    b.run(process)


def test_neither_side_holds_up_the_other(rng):
    """Parking without a pause while others come out, and coming out while nobody takes them, and parking goes on."""
    b = Bench(rng, 64)

    async def process(ctx):
        for qp in range(32):
            while not await b.step(ctx, (qp, 0), ready=0):
                pass
        for _ in range(1000):
            await b.step(ctx, ready=0)
        qp, cycles = 32, 0
        while qp < 64:
            qp += await b.step(ctx, (qp, 3000), ready=0)
            cycles += 1
        assert cycles < 32 * 6 and not b.out
        b.slack = 1 << 20
        qp, cycles = 0, 0
        for _ in range(1500):
            free = qp not in b.parked
            if await b.step(ctx, (qp, 0) if free else None):
                qp = (qp + 1) % 32
        assert len(b.out) > 100
        await b.drain(ctx, 3000)
    b.run(process)


def test_beyond_the_horizon(rng):
    """Longer delays come out at the horizon."""
    b = Bench(rng, ns=256)
    b.backlog = 16 * 6 * 256

    async def process(ctx):
        delays = [HORIZON - 1, HORIZON, HORIZON + 1, 2 * HORIZON, (1 << 24) - 1, HORIZON - 2000, 1, HORIZON // 2]
        for qp, delay in enumerate(delays):
            while not await b.step(ctx, (qp, delay)):
                pass
        await b.drain(ctx, 6000)
        assert b.out[:2] == [6, 7]
    b.run(process)


@pytest.mark.parametrize("start", [(1 << 26) - 20_000, (1 << 20) - 9_000, (1 << 64) - 20_000])
def test_wraps(start, rng):
    """The bucket's number, and time itself, pass their ends."""
    b = Bench(rng, start=start)
    b.backlog = 16 * 6 * 4

    async def process(ctx):
        for _ in range(12):
            for qp in range(16):
                if qp not in b.parked:
                    while not await b.step(ctx, (qp, rng.randrange(12_000))):
                        pass
            for _ in range(500):
                await b.step(ctx)
                b.time &= (1 << 64) - 1 if not b.parked else -1
        await b.drain(ctx, 4000)
    b.run(process)


def test_held_up_for_long(rng):
    """While `due` isn't taken for more than the horizon, later ones wait their time all the same."""
    b = Bench(rng, ns=512)
    b.slack = 1 << 30

    async def process(ctx):
        for qp in range(3):
            while not await b.step(ctx, (qp, 10), ready=0):
                pass
        for _ in range(5000):
            await b.step(ctx, ready=0)      # 2.6 ms
        for qp in range(3, 8):
            while not await b.step(ctx, (qp, 100_000 * qp), ready=0):
                pass
        await b.drain(ctx, 6000)
        assert sorted(b.out) == list(range(8))
    b.run(process)


def test_time_is_set_back(rng):
    """Everyone comes out, early, and then the wheel works as before."""
    b = Bench(rng, start=1 << 30)

    async def process(ctx):
        for qp in range(8):
            while not await b.step(ctx, (qp, 500_000)):
                pass
        b.time -= 60_000 << 10      # which is the wrap and 5,536 buckets ahead
        b.parked = {qp: (0, 1 << 31) for qp in b.parked}
        await b.drain(ctx, 10_000)
        await ctx.tick().repeat(12_000)
        b.backlog = 8 * 6 * 4
        for qp in range(8):
            while not await b.step(ctx, (qp, 5000)):
                pass
        await b.drain(ctx, 3000)
    b.run(process)


def test_reset_in_the_middle(rng):
    b = Bench(rng, start=5000)
    reset = Signal()

    async def process(ctx):
        for qp in range(8):
            while not await b.step(ctx, (qp, 0), ready=0):
                pass
        await b.step(ctx, (9, 3000), ready=0)
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        ctx.set(b.dut.park.valid, 0)
        await ctx.tick()
        assert not ctx.get(b.dut.due.valid)
        while ctx.get(b.dut.clearing):
            await ctx.tick()
        b.parked = {}
        await ctx.tick().repeat(10)
        b.backlog = 8 * 6 * 4
        for qp in range(8):
            while not await b.step(ctx, (qp, 9000)):
                pass
        await b.drain(ctx, 5000)
        assert sorted(b.out) == list(range(8))
    b.run(process, ResetInserter(reset)(b.dut))


@pytest.mark.parametrize("fault, message", [("early", "early"), ("late", "late")])
def test_faults_are_noticed(fault, message, rng):
    """Negative control: what the bench expects is two buckets off."""
    b = Bench(rng)
    b.backlog = 8 * 6 * 4

    async def process(ctx):
        for qp in range(8):
            while not await b.step(ctx, (qp, 5000)):
                pass
        b.parked = {qp: (e + 2048, d + 2048) if fault == "early" else (e - 2048, d - 2048) for qp, (e, d) in b.parked.items()}
        await b.drain(ctx, 5000)
    with pytest.raises(AssertionError, match=message):
        b.run(process)
