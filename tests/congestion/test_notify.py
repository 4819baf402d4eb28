"""The notification point: the first mark at once, then none for the interval; what is lost is counted."""

from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator
import pytest

from optinic.config import preset
from optinic.congestion import notify
from optinic.congestion.notify import NotificationPoint, PARAMS, pool_size
from sim.models.congestion import NotificationModel

SLACK = 128 + 40        # ns: a tick, and the cycles until the card has forgotten


class Bench:
    def __init__(self, rng, qps=16, interval=5000, ns=4, dut=None):
        self.rng, self.ns, self.interval = rng, ns, interval
        self.cfg = preset("tiny", data_width=512, clock_hz=250_000_000, num_qps=qps)
        self.dut = dut or NotificationPoint(self.cfg)
        self.model = NotificationModel(interval, pool_size(self.cfg))
        self.time = rng.randrange(1 << 40)
        self.cnps, self.lost = [], 0        # (time, qp)

    def run(self, process, top=None):
        async def bench(ctx):
            ctx.set(self.dut.interval, self.interval)
            while ctx.get(self.dut.clearing):
                await ctx.tick()
            await process(ctx)
        sim = Simulator(top or self.dut)
        sim.add_clock(4e-9)
        sim.add_testbench(bench)
        sim.run()

    async def step(self, ctx, mark=None, ready=1):
        dut = self.dut
        ctx.set(dut.time, self.time)
        ctx.set(dut.marked.valid, mark is not None)
        ctx.set(dut.marked.payload.qp, mark or 0)
        ctx.set(dut.cnp.ready, ready)
        self.lost += ctx.get(dut.lost)
        if ctx.get(dut.cnp.valid) and ready:
            self.cnps.append((self.time, ctx.get(dut.cnp.payload.qp)))
        await ctx.tick()
        self.time += self.ns

    def check_spacing(self):
        last = {}
        for time, qp in self.cnps:
            assert time - last.get(qp, -1 << 40) >= self.interval - 8 * self.ns, f"QP {qp}: CNPs too close"
            last[qp] = time


def test_against_the_model(rng):
    """Marks one at a time: a CNP whenever the model says so, but for those that fall into the card's own delay."""
    b = Bench(rng)
    unsure = 0

    async def process(ctx):
        nonlocal unsure
        for _ in range(700):
            qp = rng.randrange(16)
            start, tick = len(b.cnps), b.model.until.get(qp)
            await b.step(ctx, qp)
            at = b.time - b.ns
            for _ in range(7):
                await b.step(ctx)
            got = b.cnps[start:]
            if tick is not None and 0 < at - tick * 128 < SLACK + 128:     # nearly over
                unsure += 1
                if not got:
                    continue
                b.model.until.pop(qp)
            wanted = b.model.marked(qp, at)
            assert [q for _, q in got] == ([qp] if wanted else []), f"QP {qp}: {got}, not {wanted}"
            for _ in range(rng.choice([0, 0, 5, 100])):
                await b.step(ctx)
        b.check_spacing()
        assert len(b.cnps) > 100 > unsure and not b.lost
    b.run(process)


@pytest.mark.parametrize("interval", [0, 100, 2_000, 50_000, 1_000_000])
def test_interval(interval, rng):
    """Marked all the time, a QP causes a CNP as soon as the interval is over, and a tick or two."""
    ns = 4 if interval < 10_000 else 32 if interval < 100_000 else 512
    b = Bench(rng, interval=interval, ns=ns)

    async def process(ctx):
        for cycle in range(int(3.5 * interval / ns) + 200):
            await b.step(ctx, 5 if cycle % 3 == 0 else None)
        gaps = [b.cnps[i + 1][0] - b.cnps[i][0] for i in range(len(b.cnps) - 1)]
        assert len(gaps) >= 2 and all(interval <= gap <= interval + 256 + 10 * ns for gap in gaps[:10]), gaps[:10]
        assert not b.lost
    b.run(process)


def test_overload(rng):
    """A mark in every cycle, and a slow way out: what finds no room is counted, and every QP gets its CNP in the end."""
    b = Bench(rng, interval=20_000)

    async def process(ctx):
        marks = 0
        for cycle in range(4000):
            qp = rng.randrange(16)
            await b.step(ctx, qp, int(rng.random() < .1))
            marks += 1
        for _ in range(300):
            await b.step(ctx)
        b.check_spacing()
        assert b.lost > 1000 and {qp for _, qp in b.cnps} == set(range(16))
        assert ctx.get(b.dut.idle)
    b.run(process)


def test_a_burst_fits_the_queue(rng):
    """As many marks in a row as the queue holds: none is lost."""
    b = Bench(rng)

    async def process(ctx):
        for qp in range(16):
            await b.step(ctx, qp)
        for _ in range(60):
            await b.step(ctx)
        assert [qp for _, qp in b.cnps] == list(range(16)) and not b.lost
    b.run(process)


def test_pool_is_used_up(rng, monkeypatch):
    """More QPs in an interval than the pool has places: the others are counted, and get theirs later."""
    monkeypatch.setattr(notify, "pool_size", lambda cfg: 4)
    b = Bench(rng, interval=4000)
    b.model.pool = 5        # one more in the queue's output register

    async def process(ctx):
        for qp in range(10):
            expect = b.model.marked(qp, b.time)
            seen = len(b.cnps)
            for _ in range(10):
                await b.step(ctx, qp if _ == 0 else None)
            assert (len(b.cnps) > seen) == bool(expect)
        assert b.lost == 5
        for _ in range(1200):
            await b.step(ctx)
        for _ in range(10):
            await b.step(ctx, 9 if _ == 0 else None)
        assert b.cnps[-1][1] == 9
    b.run(process)


@pytest.mark.parametrize("qps", [2, 1024])
def test_many(qps, rng):
    b = Bench(rng, qps, interval=3000)

    async def process(ctx):
        for cycle in range(3000):
            await b.step(ctx, rng.randrange(qps) if cycle % 4 == 0 else None)
        b.check_spacing()
        assert not b.lost and {qp for _, qp in b.cnps} == {0, 1} if qps == 2 else len(b.cnps) > 600
    b.run(process)


def test_reset_in_the_middle(rng):
    b = Bench(rng)
    reset = Signal()

    async def process(ctx):
        for qp in range(8):
            await b.step(ctx, qp, ready=0)
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        ctx.set(b.dut.marked.valid, 0)
        await ctx.tick()
        assert not ctx.get(b.dut.cnp.valid) and ctx.get(b.dut.clearing)
        while ctx.get(b.dut.clearing):
            await ctx.tick()
        for qp in range(8):
            await b.step(ctx, qp)
        for _ in range(40):
            await b.step(ctx)
        assert [qp for _, qp in b.cnps] == list(range(8))
    b.run(process, ResetInserter(reset)(b.dut))


def test_defaults():
    assert PARAMS["interval"].default == NotificationModel().interval


def test_a_shorter_interval_is_noticed(rng):
    """Negative control: the card is told another interval than the bench."""
    b = Bench(rng, interval=2000)

    async def process(ctx):
        ctx.set(b.dut.interval, 1500)
        for _ in range(2000):
            await b.step(ctx, 3)
        b.check_spacing()
    with pytest.raises(AssertionError, match="too close"):
        b.run(process)
