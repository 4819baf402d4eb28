"""The reaction point against its model, QP by QP and step by step, over random events, times and parameters."""

from amaranth.hdl import ResetInserter, Signal
from amaranth.lib.memory import Memory
from amaranth.sim import Simulator
import pytest

from optinic.config import preset
from optinic.congestion.dcqcn import Dcqcn, PARAMS, rate_bits, state_layout
from optinic.congestion.interface import EventKind
from sim.models.congestion import DCQCN_DEFAULTS, DcqcnModel, interval_of

UNIT = 4096
CFG = preset("tiny", data_width=512, clock_hz=250_000_000)
ROUND = CFG.num_qps * 64 + 200      # cycles in which the sweep has seen everybody


class Bench:
    """Gives the events one at a time and compares every interval that is told, and at the end every row."""

    def __init__(self, rng, cfg=CFG, model=None, dut=None, **params):
        self.rng, self.cfg, self.params = rng, cfg, DCQCN_DEFAULTS | params
        self.model = model or DcqcnModel(rate_bits(cfg), **params)
        self.dut = dut or Dcqcn(cfg)
        self.intervals = {}             # as the card told them
        self.time = rng.randrange(1 << 40)
        self.cycles = {}                # event kind: the most that one took
        self.told = 0

    def run(self, process, top=None):
        async def bench(ctx):
            for name, value in self.params.items():
                ctx.set(getattr(self.dut, name), value)
            ctx.set(self.dut.time, self.time)
            while ctx.get(self.dut.clearing):
                await ctx.tick()
            await process(ctx)
        sim = Simulator(top or self.dut)
        sim.add_clock(4e-9)
        sim.add_testbench(bench)
        sim.run()

    async def tick(self, ctx):
        if ctx.get(self.dut.rate.valid):
            rate = ctx.get(self.dut.rate.payload)
            self.intervals[rate.qp] = rate.interval
            self.told += 1
        await ctx.tick()

    async def event(self, ctx, kind, qp, size=0):
        ctx.set(self.dut.events.payload, {"kind": kind, "qp": qp, "bytes": size, "value": self.rng.getrandbits(32)})
        ctx.set(self.dut.events.valid, 1)
        await self.tick(ctx)
        ctx.set(self.dut.events.valid, 0)
        took = 0
        while not ctx.get(self.dut.idle) or took < 2:
            await self.tick(ctx)
            took += 1
            assert took < 700
        self.cycles[kind] = max(took, self.cycles.get(kind, 0))
        if kind == EventKind.SENT:
            self.model.sent(qp, size, self.time)
        elif kind == EventKind.CNP:
            self.model.cnp(qp, self.time)
        elif kind == EventKind.RESET:
            self.model.reset(qp, self.time)
        self.check(qp)

    def check(self, qp):
        assert self.intervals.get(qp, 0) == self.model.interval(qp), f"QP {qp}: interval"

    async def sleep(self, ctx, ns):
        """Time passes at once, but never so much that the card, slow as it is here, could not look at everybody in between."""
        while ns > 0:
            if self.stale():
                for _ in range(ROUND):
                    await self.tick(ctx)
                for qp in self.stale():
                    self.model.sweep(qp, self.time)
                    self.check(qp)
            self.time += min(ns, 6_000_000)
            ns -= 6_000_000
            ctx.set(self.dut.time, self.time)
            await self.tick(ctx)

    def stale(self):
        return [qp for qp, s in self.model.state.items() if ((self.time >> 12) - s.since) % 4096 >= 2048]

    def compare(self, ctx):
        layout, stale = state_layout(self.cfg), self.stale()
        for qp in range(self.cfg.num_qps):
            row = layout.from_bits(ctx.get(self.rows.data[qp]))
            state = self.model.state.get(qp)
            if state is None or (qp in stale and not row.rate):
                assert not row.rate, f"QP {qp} should not be congested: {row}"
            else:
                for name in ("rate", "target", "alpha", "since", "bytes", "timer_stage", "byte_stage"):
                    assert row[name] == getattr(state, name), f"QP {qp}: {name} is {row[name]}, not as in {state}"


@pytest.fixture
def bench(rng, monkeypatch):
    """Makes a bench that can look into the card's table."""
    def make(**options):
        made = Bench(rng, **options)

        class Seen(Memory):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                made.rows = self
        monkeypatch.setattr("optinic.memory.table.Memory", Seen)
        return made
    return make


async def random_events(bench, ctx, count, mix, qps=None):
    rng = bench.rng
    qps = qps or list(range(bench.cfg.num_qps))
    for i in range(count):
        qp = rng.choice(qps)
        kind = rng.choices([EventKind.SENT, EventKind.CNP, EventKind.RESET, EventKind.SET], mix)[0]
        await bench.event(ctx, kind, qp, rng.choice([0, 158, 1500, 4200, 16383, rng.randrange(1 << 14)]))
        await bench.sleep(ctx, rng.choice([0, 0, 10, 5_000, 60_000, 300_000, rng.randrange(1_000_000)]))
        if i % 40 == 0:
            bench.compare(ctx)
    bench.compare(ctx)


CORNERS = [
    {}, dict(byte_counter=0), dict(byte_counter=1), dict(byte_counter=2, g=64, alpha_timer=1, increase_timer=73), dict(g=1023, fast_steps=0),
    dict(fast_steps=6, rate_ai=1, rate_min=0), dict(increase_timer=0, alpha_timer=0), dict(increase_timer=1, alpha_timer=1, g=0),
    dict(line_rate=400_000, rate_hai=50_000), dict(line_rate=100, rate_min=100), dict(decrease_interval=0), dict(decrease_interval=4095),
    dict(increase_timer=1023, alpha_timer=1023), dict(alpha_timer=4095, rate_ai=0, rate_hai=0),
]


@pytest.mark.parametrize("corner", range(len(CORNERS)))
def test_random(corner, bench):
    b = bench(**CORNERS[corner])
    b.run(lambda ctx: random_events(b, ctx, 200 if corner else 500, (6, 2, .2, .2)))
    assert b.told > 40


@pytest.mark.parametrize("name", ["tiny", "c400g"])
def test_other_widths(name, bench):
    """Rates of 13 and of 19 bits."""
    cfg = preset(name, num_qps=16)
    b = bench(cfg=cfg, line_rate=500_000, rate_ai=400, byte_counter=3)
    b.run(lambda ctx: random_events(b, ctx, 250, (6, 1, .1, 0)))


def test_back_to_back_events_of_one_qp(bench):
    """No pauses: the queue fills, and the second event reads what the first one wrote."""
    b = bench(byte_counter=2, decrease_interval=0)
    dut = b.dut

    async def process(ctx):
        for _ in range(10):
            burst = [(b.rng.choice([EventKind.CNP] + 3 * [EventKind.SENT]), b.rng.randrange(1 << 14)) for _ in range(40)]
            held = 0
            for kind, size in burst:
                ctx.set(dut.events.payload, {"kind": kind, "qp": 3, "bytes": size})
                ctx.set(dut.events.valid, 1)
                while not ctx.get(dut.events.ready):
                    held += 1
                    await b.tick(ctx)
                await b.tick(ctx)
                b.model.sent(3, size, b.time) if kind == EventKind.SENT else b.model.cnp(3, b.time)
            ctx.set(dut.events.valid, 0)
            while not ctx.get(dut.idle):
                await b.tick(ctx)
            assert held
            b.check(3)
            b.compare(ctx)
            await b.sleep(ctx, 200_000)
    b.run(process)


def test_idle_ends_congestion(bench):
    """After 8.4 ms without an event a QP is free: at its next event if that comes first, else by the round."""
    b = bench(decrease_interval=0)

    async def process(ctx):
        for qp in range(16):
            await b.event(ctx, EventKind.CNP, qp)       # the target is the line rate still, to which it would recover
            await b.event(ctx, EventKind.CNP, qp)
        assert set(b.intervals.values()) == {interval_of(25_013)}
        await b.sleep(ctx, 2047 * UNIT - b.time % UNIT)
        assert not b.stale()
        await b.event(ctx, EventKind.RESET, 9)
        await b.event(ctx, EventKind.SENT, 8, 0)        # not too late for the usual way: 16 runs of the timer
        assert b.intervals[8] and b.model.state[8].timer_stage == 6
        await b.sleep(ctx, UNIT)
        await b.event(ctx, EventKind.SENT, 3, 100)
        assert b.intervals[3] == 0
        await b.event(ctx, EventKind.CNP, 4)
        assert b.model.rate(4) == 50_013
        for _ in range(ROUND):
            await b.tick(ctx)
        assert {qp for qp, i in b.intervals.items() if i} == {4, 8}
        for qp in b.stale():
            b.model.sweep(qp, b.time)
        b.compare(ctx)
        await b.sleep(ctx, 1 << 36)                     # many wraps later
        assert not any(b.intervals.values())
    b.run(process)


def test_recovers_to_the_line_rate(bench):
    """Without CNPs the rate rises to the line's, and then the QP is not paced any more; the first CNP after halves it."""
    b = bench(rate_ai=4000, rate_hai=8000, increase_timer=5, alpha_timer=5)

    async def process(ctx):
        await b.event(ctx, EventKind.CNP, 1)
        rates = [b.model.rate(1)]
        while b.intervals[1]:
            await b.sleep(ctx, 5 * UNIT)
            await b.event(ctx, EventKind.SENT, 1, 1500)
            rates.append(b.model.rate(1))
        assert rates == sorted(rates) and rates[0] == 50_013 and rates[-1] == 100_000 and 6 < len(rates) < 20
        await b.event(ctx, EventKind.CNP, 1)
        assert b.model.rate(1) == 50_013
    b.run(process)


def test_cnps_close_together_count_once(bench):
    b = bench(decrease_interval=2)

    async def process(ctx):
        await b.sleep(ctx, UNIT - b.time % UNIT)
        await b.event(ctx, EventKind.CNP, 1)
        first = b.intervals[1]
        await b.sleep(ctx, UNIT)
        await b.event(ctx, EventKind.CNP, 1)
        assert b.intervals[1] == first
        await b.sleep(ctx, UNIT)
        await b.event(ctx, EventKind.CNP, 1)
        assert b.intervals[1] > 1.9 * first
    b.run(process)


def test_cycles(bench):
    """SENT of QPs that are not congested: one in three cycles, for as long as they come. The others as the docstring says."""
    b = bench()
    dut = b.dut

    async def process(ctx):
        accepted = 0
        ctx.set(dut.events.valid, 1)
        for cycle in range(1200):
            ctx.set(dut.events.payload, {"kind": EventKind.SENT, "qp": cycle % 16, "bytes": 1500})
            accepted += ctx.get(dut.events.ready)
            await b.tick(ctx)
        ctx.set(dut.events.valid, 0)
        assert accepted > 1200 / 3.3 and not b.told
        for _ in range(100):
            await b.tick(ctx)
        for kind, runs in ((EventKind.CNP, 0), (EventKind.SENT, 1), (EventKind.CNP, 2), (EventKind.SENT, 20)):
            b.cycles = {}
            await b.sleep(ctx, runs * 13 * UNIT)
            await b.event(ctx, kind, 0, 1500)
            print(kind, runs, b.cycles)
            assert b.cycles[kind] <= 12 + 31 + 4 + 7 * min(runs, 16) + 2 + 3
    b.run(process)


def test_reset_in_the_middle(bench):
    b = bench()
    reset = Signal()

    async def process(ctx):
        for qp in range(12):
            await b.event(ctx, EventKind.CNP, qp)
        ctx.set(b.dut.events.payload, {"kind": EventKind.CNP, "qp": 5, "bytes": 0})
        ctx.set(b.dut.events.valid, 1)
        for _ in range(9):
            await b.tick(ctx)
        ctx.set(b.dut.events.valid, 0)
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        assert ctx.get(b.dut.clearing)
        while ctx.get(b.dut.clearing):
            await b.tick(ctx)
        b.model, b.intervals = DcqcnModel(rate_bits(CFG)), {}
        b.compare(ctx)
        await random_events(b, ctx, 60, (4, 2, 0, 0))
    b.run(process, ResetInserter(reset)(b.dut))


def test_defaults_agree():
    assert {name: p.default for name, p in PARAMS.items()} == DCQCN_DEFAULTS


@pytest.mark.parametrize("fault", ["MAX_RUNS", "MAX_TICKS", "IDLE", "dice"])
def test_faults_are_noticed(fault, bench):
    """Negative control: a model that is off by a little must not pass."""
    model = DcqcnModel(rate_bits(CFG), byte_counter=2, alpha_timer=1, increase_timer=40)
    if fault == "dice":
        model.dice ^= 1 << 3
    else:
        setattr(model, fault, {"MAX_RUNS": 15, "MAX_TICKS": 15, "IDLE": 2000}[fault])
    b = bench(model=model, byte_counter=2, alpha_timer=1, increase_timer=40)

    async def process(ctx):
        await b.event(ctx, EventKind.CNP, 3)
        for ns in (100_000, 7_000_000, 2_020 * UNIT, 100_000) * 3:
            await b.sleep(ctx, ns)
            await b.event(ctx, EventKind.SENT, 3, 9000)
            b.compare(ctx)
            await b.event(ctx, EventKind.CNP, 3)
    with pytest.raises(AssertionError):
        b.run(process)
