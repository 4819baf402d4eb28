"""The scanner against a plain dictionary of lanes: nothing missed, nothing stale, never later than it says."""

import random
from types import SimpleNamespace

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.config import preset
from optinic.transport.xp.deadlines import COARSE_SHIFT, DeadlineScanner, LaneKind

WRAP = 1 << 16


def due(lane, now):
    return lane.active and (now - lane.coarse) % WRAP < WRAP // 2


class Bench:
    """Each cycle: `stimulus` may set one lane and says whether the event is taken; every event is judged.

    `debt[qp]` counts the cycles for which a lane has been due without an event, without those that its bound doesn't
    count: cycles in which no event is taken or another lane's is.
    """

    def __init__(self, cfg, *, seed=1, ns_per_cycle=4.0, dut=None):
        self.cfg, self.rnd, self.ns_per_cycle = cfg, random.Random(seed), ns_per_cycle
        self.dut = dut or DeadlineScanner(cfg)
        self.lanes = {qp: SimpleNamespace(active=0, kind=LaneKind.DEADLINE, coarse=0) for qp in range(cfg.num_qps)}
        self.limit = cfg.scan_rows + DeadlineScanner.PIPELINE
        self.time_ns = self.rnd.randrange(1 << 26)
        self.debt, self.worst, self.events, self.taken = {}, 0, 0, []
        self.cycle = 0
        self.offered = None         # an event that was offered, and not taken, in the last cycle
        print("seed", seed)

    @property
    def now(self):
        return int(self.time_ns) >> COARSE_SHIFT & WRAP - 1

    def set(self, ctx, qp, active, kind=LaneKind.DEADLINE, coarse=None):
        coarse = self.now if coarse is None else coarse
        ctx.set(self.dut.set, {"en": 1, "qp": qp, "active": active, "kind": kind, "coarse": coarse})
        self.pending = (qp, SimpleNamespace(active=active, kind=kind, coarse=coarse))

    async def step(self, ctx, ready):
        """One cycle; the set, if any, has been driven."""
        dut = self.dut
        ctx.set(dut.now, self.now)
        ctx.set(dut.events.ready, ready)
        event = None
        if ctx.get(dut.events.valid):
            payload = ctx.get(dut.events.payload)
            event = (payload.qp, payload.kind)
            if self.offered:
                assert event == self.offered, "an offered event changed"
            else:
                lane = self.lanes.get(payload.qp)
                assert lane and due(lane, self.now) and lane.kind == payload.kind, f"stale event {event} in cycle {self.cycle}"
        else:
            assert not self.offered, "an offered event vanished"
        self.offered = event if event and not ready else None
        if event and ready:
            self.events += 1
            self.taken.append((self.cycle, *event))
        if event:
            self.debt[event[0]] = 0
        for qp, lane in self.lanes.items():
            if not due(lane, self.now):
                self.debt[qp] = 0
            elif not (event and (not ready or event[0] != qp)):
                self.debt[qp] = self.debt.get(qp, 0) + 1
                self.worst = max(self.worst, self.debt[qp])
                assert self.debt[qp] <= self.limit, f"QP {qp} is late: {self.debt[qp]} cycles"
        await ctx.tick()
        self.cycle += 1
        self.time_ns += self.ns_per_cycle
        if self.pending:
            qp, lane = self.pending
            self.lanes[qp] = lane
            self.debt[qp] = 0
        self.pending = None
        ctx.set(dut.set.en, 0)

    pending = None

    async def start(self, ctx):
        while ctx.get(self.dut.clearing):
            assert not ctx.get(self.dut.events.valid)
            await ctx.tick()

    def run(self, process, top=None):
        sim = Simulator(top or self.dut)
        sim.add_clock(4e-9)
        sim.add_testbench(process)
        sim.run()


CASES = [   # preset, knobs, how often a set comes, how often an event is taken
    ("tiny", {}, .1, 1), ("tiny", {}, 1, 1), ("tiny", {}, .5, .3),
    ("tiny", dict(deadline_lanes=8, num_qps=24), .3, 1), ("tiny", dict(deadline_lanes=8, num_qps=21), 1, .8),
    ("tiny", dict(deadline_lanes=16, num_qps=16), .5, .5), ("tiny", dict(num_qps=2), .5, .7),
    ("tiny", dict(num_qps=3, deadline_lanes=2), .5, .7), ("small", dict(deadline_lanes=4), .2, 1),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_random(case):
    name, knobs, set_rate, take_rate = CASES[case]
    bench = Bench(preset(name, **knobs), seed=case, ns_per_cycle=64)
    rnd = bench.rnd

    async def process(ctx):
        await bench.start(ctx)
        hot = None
        for cycle in range(1200):
            if rnd.random() < set_rate:
                # often the QP just offered or its neighbours: what is on its way is what can go stale
                if rnd.random() < .6 and bench.taken:
                    hot = (bench.taken[-1][1] + rnd.randrange(-3, 12)) % bench.cfg.num_qps
                qp = hot if hot is not None and rnd.random() < .6 else rnd.randrange(bench.cfg.num_qps)
                kind = LaneKind.SERVICE if rnd.random() < .15 else LaneKind.DEADLINE
                coarse = (bench.now + rnd.choice([0, 0, 0, -1, 1, 2, 3, rnd.randrange(-5, 40), 0x7FFF, 0x8000, 0x8000 + 400])) % WRAP
                bench.set(ctx, qp, rnd.random() < .6, kind, coarse)
            quiet = cycle % 350 > 250       # now and then everything due is taken, or nothing at all
            await bench.step(ctx, ready=int(rnd.random() < take_rate) if not quiet else cycle // 350 & 1)
        assert bench.events > 50
    bench.run(process)
    print("worst", bench.worst, "limit", bench.limit)


@pytest.mark.parametrize("lanes", [1, 8])
def test_set_on_the_row_being_scanned(lanes):
    """A set at every distance from the scan of its own row, for arming, disarming and re-arming (field case 30)."""
    cfg = preset("tiny", num_qps=16, deadline_lanes=lanes)
    bench = Bench(cfg)

    async def process(ctx):
        await bench.start(ctx)
        for phase in range(cfg.scan_rows + 12):
            for qp in (0, lanes, 15):
                bench.set(ctx, qp, 1, coarse=bench.now)
                for _ in range(phase):
                    await bench.step(ctx, ready=1)
                bench.set(ctx, qp, 1, coarse=(bench.now + 100) % WRAP)
                await bench.step(ctx, ready=1)
                bench.set(ctx, qp, 1, LaneKind.SERVICE)
                await bench.step(ctx, ready=1)
                for _ in range(cfg.scan_rows + bench.dut.PIPELINE + 2):
                    await bench.step(ctx, ready=1)
                bench.set(ctx, qp, 0)
                for _ in range(3):
                    await bench.step(ctx, ready=1)
        assert bench.events > 50
    bench.run(process)


@pytest.mark.parametrize("qps, lanes", [(16, 1), (64, 8), (256, 8), (96, 16)])
def test_everything_fires(qps, lanes):
    """Every lane is a SERVICE: one event a cycle, each QP once a pass, and a hold changes nothing about that."""
    bench = Bench(preset("tiny", num_qps=qps, deadline_lanes=lanes))

    async def process(ctx):
        await bench.start(ctx)
        for qp in range(qps):
            bench.set(ctx, qp, 1, LaneKind.SERVICE)
            await bench.step(ctx, ready=0)
        for _ in range(40):
            await bench.step(ctx, ready=0)
        bench.taken.clear()
        for cycle in range(4 * qps + 60):
            await bench.step(ctx, ready=int(not 2 * qps < cycle < 2 * qps + 50))
        order = [qp for _, qp, _ in bench.taken]
        cycles = [cycle for cycle, _, _ in bench.taken if cycle < bench.taken[0][0] + 2 * qps]
        if qps >= 64:
            assert cycles == list(range(cycles[0], cycles[0] + 2 * qps)), "a cycle without an event"
        steady = order[2 * DeadlineScanner.QUEUE * lanes:]
        assert all((b - a) % qps == 1 for a, b in zip(steady, steady[1:])), "a QP before its turn"
    bench.run(process)


def test_one_lane_in_every_row():
    """A row a cycle and an event a cycle at once."""
    bench = Bench(preset("tiny", num_qps=256, deadline_lanes=8))

    async def process(ctx):
        await bench.start(ctx)
        for row in range(32):
            bench.set(ctx, 8 * row + row % 8, 1, LaneKind.SERVICE)
            await bench.step(ctx, ready=1)
        for _ in range(40):
            await bench.step(ctx, ready=1)
        bench.taken.clear()
        for _ in range(100):
            await bench.step(ctx, ready=1)
        assert bench.events >= 100 and len(bench.taken) == 100
    bench.run(process)


@pytest.mark.parametrize("clock_hz", [125_000_000, 400_000_000])
@pytest.mark.parametrize("qps", [64, 2048])
def test_lateness(clock_hz, qps):
    """A deadline rounded up to the coarse unit: never early, and late by the stated bound at most, at two clocks."""
    cfg = preset("tiny", num_qps=qps, deadline_lanes=8, clock_hz=clock_hz)
    bench = Bench(cfg, ns_per_cycle=cfg.clock_ns)
    rnd, unit = random.Random(qps), 1 << COARSE_SHIFT
    bound = unit + (cfg.scan_rows + DeadlineScanner.PIPELINE + 1) * cfg.clock_ns

    async def process(ctx):
        await bench.start(ctx)
        for _ in range(4):
            qp = rnd.randrange(qps)
            deadline = bench.time_ns + rnd.randrange(3 * unit)
            bench.set(ctx, qp, 1, coarse=-(-int(deadline) // unit) % WRAP)
            bench.lanes = {}        # only the lane in use is looked after: the others stay as they are
            bench.taken.clear()
            while not bench.taken:
                await bench.step(ctx, ready=1)
            late = bench.time_ns - bench.ns_per_cycle - deadline
            assert -1 <= late <= bound, f"{late} ns"
            bench.set(ctx, qp, 0)
            await bench.step(ctx, ready=1)
    bench.run(process)


def test_reset():
    """Reset with lanes armed and an event on offer: all of it is gone, and the scanner works again."""
    bench = Bench(preset("tiny", num_qps=64, deadline_lanes=8))
    reset = Signal()

    async def process(ctx):
        await bench.start(ctx)
        for qp in range(64):
            bench.set(ctx, qp, 1, LaneKind.SERVICE)
            await bench.step(ctx, ready=0)
        assert bench.offered
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        await ctx.tick()
        assert ctx.get(bench.dut.clearing)
        bench.offered, bench.debt = None, {}
        for lane in bench.lanes.values():
            lane.active = 0
        await bench.start(ctx)
        for _ in range(30):
            await bench.step(ctx, ready=1)
        assert not bench.events
        bench.set(ctx, 63, 1, coarse=bench.now)
        for _ in range(30):
            await bench.step(ctx, ready=1)
        assert bench.events
    bench.run(process, ResetInserter(reset)(bench.dut))


class Forgetful(DeadlineScanner):
    """A scanner with a fault: what it has read before a set it takes to be true after it."""

    @staticmethod
    def stale(row, set_row, set_lane):
        return 0 & set_lane


def test_stale_events_are_noticed():
    """Negative control: without the drop of lanes that were set behind the scan's back, the bench must complain."""
    with pytest.raises(AssertionError, match="stale"):
        cfg = preset("tiny", num_qps=24, deadline_lanes=8)
        bench = Bench(cfg, dut=Forgetful(cfg))

        async def process(ctx):
            await bench.start(ctx)
            for cycle in range(2000):
                bench.set(ctx, bench.rnd.randrange(24), bench.rnd.random() < .5, coarse=bench.now)
                await bench.step(ctx, ready=1)
        bench.run(process)


def test_lateness_is_noticed():
    """Negative control: less than a pass is not enough, and the bench must say so."""
    cfg = preset("tiny", num_qps=64, deadline_lanes=4)
    bench = Bench(cfg)
    bench.limit = cfg.scan_rows - 1

    async def process(ctx):
        await bench.start(ctx)
        for qp in range(0, 64, 16):
            bench.set(ctx, qp, 1, LaneKind.SERVICE)
            await bench.step(ctx, ready=1)
        for _ in range(100):
            await bench.step(ctx, ready=1)
    with pytest.raises(AssertionError, match="late"):
        bench.run(process)
