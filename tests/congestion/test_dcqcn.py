"""The reaction point against its model, QP by QP and step by step, over random events, times and parameters."""

from amaranth.hdl import ResetInserter, Signal
from amaranth.lib.memory import Memory
from amaranth.sim import Simulator
import pytest

from optinic.config import preset
from optinic.congestion.dcqcn import Dcqcn, PARAMS, rate_bits, state_layout
from optinic.congestion.interface import EventKind
from optinic.congestion.slots import FIRST_OWN, NONE, SHARED as SHARED_SLOT, Slots
from optinic.congestion.sweep import Sweep
from optinic.memory.table import Table
from optinic.stream.fifo import StreamFifo
from sim.models.congestion import DCQCN_DEFAULTS, SHARED, DcqcnModel, interval_of

UNIT = 4096
CFG = preset("tiny", data_width=512, clock_hz=250_000_000)


def pooled(pool, num_qps=16):
    return CFG.with_(num_qps=num_qps, congested_qps=pool)


class Bench:
    """Gives the events one at a time and compares every interval that is told, and at the end every row. The model is told of the
    events, and of the QPs that the sweep looks at, as the card takes them."""

    def __init__(self, rng, cfg=CFG, model=None, dut=None, **params):
        self.rng, self.cfg, self.params = rng, cfg, DCQCN_DEFAULTS | params
        self.model = model or DcqcnModel(rate_bits(cfg), cfg.dcqcn_pool, **params)
        self.dut = dut or Dcqcn(cfg)
        self.round = cfg.num_qps * 64 + 200     # cycles in which the sweep has seen everybody
        self.intervals = {}             # as the card told them
        self.time = rng.randrange(1 << 40)
        self.now = self.taken = 0       # in cycles; when the last event was taken
        self.cycles = 0                 # that one took, until the next could be taken
        self.told = 0
        self.shared = set()             # QPs that shared a row at some time
        self.memories = {}              # by name of the table; and the parts in which one sees what is taken
        self.queue = self.sweep = None

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
        self._measure(ctx)
        self.now += 1
        if ctx.get(self.sweep.done):
            self.model.sweep(ctx.get(self.sweep.qp), self.time)
        elif ctx.get(self.queue.o.valid & self.queue.o.ready):
            event, self.taken = ctx.get(self.queue.o.payload), self.now
            if event.kind == EventKind.SENT:
                self.model.sent(event.qp, event.bytes, self.time)
            elif event.kind == EventKind.CNP:
                self.model.cnp(event.qp, self.time)
            elif event.kind == EventKind.RESET:
                self.model.reset(event.qp, self.time)
            self.shared |= self.model.sharing.keys()
        await ctx.tick()

    def _measure(self, ctx):
        if self.taken and ctx.get(self.sweep.done | self.queue.o.ready):
            self.cycles, self.taken = self.now + 1 - self.taken, 0

    async def ticks(self, ctx, count):
        """So many, and those until the card is idle again."""
        while count > 0 or not ctx.get(self.dut.idle):
            await self.tick(ctx)
            count -= 1
            assert count > -700

    async def event(self, ctx, kind, qp, size=0):
        ctx.set(self.dut.events.payload, {"kind": kind, "qp": qp, "bytes": size, "value": self.rng.getrandbits(32)})
        ctx.set(self.dut.events.valid, 1)
        await self.tick(ctx)
        ctx.set(self.dut.events.valid, 0)
        await self.ticks(ctx, 3)
        self._measure(ctx)
        self.check()

    def check(self):
        for qp in range(self.cfg.num_qps):
            assert self.intervals.get(qp, 0) == self.model.interval(qp), f"QP {qp}: interval"

    async def sleep(self, ctx, ns):
        """Time passes at once, but never so much that the card, slow as it is here, could not look at everybody in between."""
        while ns > 0:
            if self.stale():
                await self.ticks(ctx, self.round)
                self.check()
                assert not self.stale()
            self.time += min(ns, 6_000_000)
            ns -= 6_000_000
            ctx.set(self.dut.time, self.time)
            await self.ticks(ctx, 1)

    def stale(self):
        return [key for key, s in self.model.state.items() if ((self.time >> 12) - s.since) % 4096 >= 2048]

    def slots(self, ctx):
        """Slot by QP."""
        return [ctx.get(self.memories["dcqcn_slot"].data[qp]) for qp in range(self.cfg.num_qps)]

    def compare(self, ctx):
        if not self.cfg.dcqcn_pool:
            place = {qp: qp for qp in range(self.cfg.num_qps)}
        else:
            slots, place = self.slots(ctx), {SHARED: SHARED_SLOT}
            for qp, slot in enumerate(slots):
                if qp in self.model.state:
                    assert slot >= FIRST_OWN and slots.count(slot) == 1, f"QP {qp}: slot {slot} should be its own: {slots}"
                    place[qp] = slot
                else:
                    assert slot == (SHARED_SLOT if qp in self.model.sharing else NONE), f"QP {qp}: slot {slot}: {slots}"
        layout, memory = state_layout(self.cfg), self.memories["dcqcn"]
        rows = {i: layout.from_bits(ctx.get(memory.data[i])) for i in range(memory.depth)}
        for key, state in self.model.state.items():
            row = rows.pop(place[key])
            for name in ("rate", "target", "alpha", "since", "bytes", "timer_stage", "byte_stage"):
                assert row[name] == getattr(state, name), f"QP {key}: {name} is {row[name]}, not as in {state}"
        for i, row in rows.items():
            assert not row.rate, f"row {i} should be nobody's: {row}"


@pytest.fixture
def bench(rng, monkeypatch):
    """Makes a bench that can look into the card's tables, and sees what it takes up next."""
    def make(**options):
        made = Bench(rng, **options)
        elaborate = Table.elaborate
        building = []

        def named(table, platform):
            building.append(table.spec.name)
            return elaborate(table, platform)

        class SeenMemory(Memory):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                made.memories[building[-1]] = self

        def seen(cls, name):
            def construct(*args, **kwargs):
                setattr(made, name, part := cls(*args, **kwargs))
                return part
            monkeypatch.setattr(f"optinic.congestion.dcqcn.{cls.__name__}", construct)
        monkeypatch.setattr(Table, "elaborate", named)
        monkeypatch.setattr("optinic.memory.table.Memory", SeenMemory)
        seen(StreamFifo, "queue")
        seen(Sweep, "sweep")
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


@pytest.mark.parametrize("pool", [0, 4, 8])
@pytest.mark.parametrize("corner", range(len(CORNERS)))
def test_random(corner, pool, bench):
    b = bench(cfg=pooled(pool) if pool else CFG, **CORNERS[corner])
    b.run(lambda ctx: random_events(b, ctx, 200 if corner else 500, (6, 2, .2, .2)))
    assert b.told > 30 and (b.shared or not pool or corner)


@pytest.mark.parametrize("name", ["tiny", "c400g"])
def test_other_widths(name, bench):
    """Rates of 13 and of 19 bits."""
    cfg = preset(name, num_qps=16)
    b = bench(cfg=cfg, line_rate=500_000, rate_ai=400, byte_counter=3)
    b.run(lambda ctx: random_events(b, ctx, 250, (6, 1, .1, 0)))


@pytest.mark.parametrize("pool", [0, 4])
def test_back_to_back_events(pool, bench):
    """No pauses: the queue fills, and the second event reads what the first one wrote. With a pool: of several QPs that share."""
    b = bench(cfg=pooled(pool) if pool else CFG, byte_counter=2, decrease_interval=0)
    qps = (3, 4, 5, 6) if pool else (3,)
    dut = b.dut

    async def process(ctx):
        for _ in range(10):
            burst = [(b.rng.choice([EventKind.CNP] + 3 * [EventKind.SENT]), b.rng.choice(qps), b.rng.randrange(1 << 14))
                     for _ in range(40)]
            held = 0
            for kind, qp, size in burst:
                ctx.set(dut.events.payload, {"kind": kind, "qp": qp, "bytes": size})
                ctx.set(dut.events.valid, 1)
                while not ctx.get(dut.events.ready):
                    held += 1
                    await b.tick(ctx)
                await b.tick(ctx)
            ctx.set(dut.events.valid, 0)
            await b.ticks(ctx, 3)
            assert held
            b.check()
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
        await b.ticks(ctx, b.round)
        assert {qp for qp, i in b.intervals.items() if i} == {4, 8}
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


@pytest.mark.parametrize("pool", [0, 4])
def test_cycles(pool, bench):
    """SENT of QPs that are not congested: one in three cycles, for as long as they come. The others as the docstring says."""
    b = bench(cfg=pooled(pool) if pool else CFG)
    dut, more = b.dut, 2 if pool else 0

    async def process(ctx):
        accepted = 0
        ctx.set(dut.events.valid, 1)
        for cycle in range(1200):
            ctx.set(dut.events.payload, {"kind": EventKind.SENT, "qp": cycle % 16, "bytes": 1500})
            accepted += ctx.get(dut.events.ready)
            await b.tick(ctx)
        ctx.set(dut.events.valid, 0)
        assert accepted > 1200 / 3.3 and not b.told
        await b.ticks(ctx, 100)
        again = 3                       # a look at the shared row, when no other one is free
        for kind, qp, runs, cycles in (
                (EventKind.SENT, 0, 0, 3), (EventKind.RESET, 0, 0, 4), (EventKind.CNP, 0, 0, 8 + more),
                (EventKind.SENT, 0, 0, 6 + more),
                (EventKind.CNP, 0, 0, 3 + more), (EventKind.SENT, 0, 1, 12 + more), (EventKind.CNP, 0, 2, 9 + 2 * 6 + more),
                (EventKind.SENT, 0, 20, 6 + 16 * 6 + more), (EventKind.CNP, 0, 16, 9 + 16 * 6 + more),
                *([(EventKind.CNP, 1, 0, 8 + more), (EventKind.CNP, 2, 0, 8 + more + again),
                   (EventKind.SENT, 2, 0, 6 + more), (EventKind.CNP, 3, 0, 4 + more + again),
                   (EventKind.RESET, 2, 0, 4)] if pool else [])):
            await b.sleep(ctx, runs * 13 * UNIT)
            await b.event(ctx, kind, qp)
            assert b.cycles == cycles, (kind, qp, runs)
            b.compare(ctx)
    b.run(process)


@pytest.mark.parametrize("pool", [0, 8])
def test_reset_in_the_middle(pool, bench):
    """Afterwards nothing is known of the time before, and with a pool all slots are free."""
    b = bench(cfg=pooled(pool) if pool else CFG)
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
        b.model, b.intervals = DcqcnModel(rate_bits(CFG), pool), {}
        b.compare(ctx)
        if pool:
            for qp in range(pool - 2):
                await b.event(ctx, EventKind.CNP, qp)
            assert set(b.slots(ctx)[:pool - 2]) == set(range(FIRST_OWN, pool)) and not b.model.sharing
        await random_events(b, ctx, 60, (4, 2, 0, 0))
    b.run(process, ResetInserter(reset)(b.dut))


# -- the pool ----------------------------------------------------------------------------------------------


POOL = pooled(8, num_qps=64)
OWN = 6                     # of its rows are for one QP each


@pytest.mark.parametrize("mix", [(6, 2, .2, 0), (6, 1, .5, 0), (2, 1, 1, 0)], ids=["crowded", "coming and going", "short lives"])
def test_random_with_many_qps(mix, bench):
    b = bench(cfg=POOL, rate_ai=4000, rate_hai=20_000)
    b.run(lambda ctx: random_events(b, ctx, 400, mix))
    assert len(b.shared) > 4


def test_who_finds_no_room_shares(bench):
    """The rows are used up; then all others react as one QP, of whose rate each hears at its own events."""
    b = bench(cfg=POOL, decrease_interval=0, byte_counter=0)

    async def process(ctx):
        half, quarter = interval_of(50_013), interval_of(25_013)
        for qp in range(OWN):
            await b.event(ctx, EventKind.CNP, qp)
        assert set(b.slots(ctx)[:OWN]) == set(range(FIRST_OWN, 8)) and not b.model.sharing
        await b.event(ctx, EventKind.CNP, 10)                   # the first to share: like any first CNP
        assert set(b.intervals.values()) == {half}
        await b.event(ctx, EventKind.CNP, 11)                   # the shared row's second one
        assert b.intervals[10] == half and b.intervals[11] == quarter and b.slots(ctx)[10:12] == [SHARED_SLOT] * 2
        await b.event(ctx, EventKind.SENT, 10, 1500)            # changes nothing, but the QP hears of it
        assert b.intervals[10] == quarter
        await b.event(ctx, EventKind.SENT, 12, 1500)            # not congested, whatever the others are
        assert 12 not in b.intervals and b.slots(ctx)[12] == NONE
        await b.event(ctx, EventKind.RESET, 11)                 # one leaves, the row stays the other's
        assert b.intervals[11] == 0 and b.intervals[10] == quarter
        b.compare(ctx)
        await b.event(ctx, EventKind.RESET, 4)                  # room, for the next event of one that shares or is new
        freed = (set(range(FIRST_OWN, 8)) - set(b.slots(ctx))).pop()
        await b.event(ctx, EventKind.SENT, 20, 1500)
        assert freed not in b.slots(ctx)
        await b.event(ctx, EventKind.SENT, 10, 1500)
        assert b.slots(ctx)[10] == freed and b.model.state[10] == b.model.state[SHARED] and b.intervals[10] == quarter
        b.compare(ctx)
    b.run(process)


def test_a_cnp_merged_into_the_shared_row_is_heard(bench):
    """Who comes to share it just after a decrease causes no further one, but slows down all the same."""
    b = bench(cfg=POOL)

    async def process(ctx):
        for qp in range(OWN + 3):
            await b.event(ctx, EventKind.CNP, qp)
        assert [b.intervals[qp] for qp in range(OWN + 3)] == [interval_of(50_013)] * (OWN + 3)
        b.compare(ctx)
    b.run(process)


def test_release_of_the_shared_row(bench):
    """Back at the line rate at an event of one QP; the others find out at theirs, a CNP being a first one then, or by the round."""
    b = bench(cfg=POOL, rate_ai=90_000, rate_hai=90_000, increase_timer=1, fast_steps=0)

    async def process(ctx):
        for qp in range(OWN + 5):
            await b.event(ctx, EventKind.CNP, qp)
        await b.sleep(ctx, 16 * UNIT)
        while ctx.get(b.sweep.qp) != OWN + 6:                   # so that the round takes its time to come by
            await b.tick(ctx)
        await b.ticks(ctx, 1)
        await b.event(ctx, EventKind.SENT, OWN, 1500)
        assert b.intervals[OWN] == 0 and SHARED not in b.model.state
        assert len(b.model.sharing) == 4 and all(b.intervals[OWN + i] for i in range(1, 5))
        await b.event(ctx, EventKind.SENT, OWN + 1, 1500)
        assert b.intervals[OWN + 1] == 0 and b.slots(ctx)[OWN + 1] == NONE
        await b.event(ctx, EventKind.CNP, OWN + 2)              # no room: the row begins anew
        assert b.model.rate(OWN + 2) == 50_013 and b.slots(ctx)[OWN + 2] == SHARED_SLOT and OWN + 3 in b.model.sharing
        await b.event(ctx, EventKind.SENT, OWN + 3, 1500)
        assert b.intervals[OWN + 3] == b.intervals[OWN + 2] == interval_of(50_013)
        b.compare(ctx)
        await b.event(ctx, EventKind.RESET, 0)
        await b.sleep(ctx, 16 * UNIT)
        await b.event(ctx, EventKind.SENT, OWN + 2, 1500)       # moves out, and recovers there: the shared row is left as it was
        assert b.intervals[OWN + 2] == 0 and SHARED in b.model.state
        b.compare(ctx)
        await b.ticks(ctx, b.round)
        assert b.slots(ctx)[OWN + 3] == SHARED_SLOT             # not stale yet, so the round leaves it
        await b.event(ctx, EventKind.CNP, 40)                   # takes the room again
        await b.event(ctx, EventKind.SENT, OWN + 3, 1500)
        await b.ticks(ctx, b.round)                             # and those who shared and said nothing
        assert SHARED not in b.model.state and not b.model.sharing
        assert not any(b.intervals[OWN + i] for i in range(5))
        b.compare(ctx)
    b.run(process)


@pytest.mark.parametrize("reset", [False, True])
def test_nobody_is_paced_for_ever(reset, bench):
    """Without further events the round frees all, the shared row too when nobody is left to share it; the slots serve again."""
    b = bench(cfg=POOL)

    async def process(ctx):
        for _ in range(3):
            qps = b.rng.sample(range(64), 20)
            for qp in qps:
                await b.event(ctx, EventKind.CNP, qp)
            for qp in list(b.model.sharing) if reset else []:
                await b.event(ctx, EventKind.RESET, qp)
            assert SHARED in b.model.state and bool(b.model.sharing) != reset
            await b.sleep(ctx, 2048 * UNIT)
            await b.ticks(ctx, b.round)
            assert not any(b.intervals.values()) and not any(b.slots(ctx)) and not b.model.state and not b.model.sharing
            b.compare(ctx)
    b.run(process)


def test_last_slot_freed_is_taken_first(bench):
    b = bench(cfg=POOL)

    async def process(ctx):
        for qp in range(OWN - 1):
            await b.event(ctx, EventKind.CNP, qp)
        slots = b.slots(ctx)
        for qp in (3, 1, 4):
            await b.event(ctx, EventKind.RESET, qp)
        for qp in (10, 11, 12, 13):
            await b.event(ctx, EventKind.CNP, qp)
        unused = (set(range(FIRST_OWN, 8)) - set(slots)).pop()
        assert b.slots(ctx)[10:14] == [slots[4], slots[1], slots[3], unused]
    b.run(process)


class Leaking(Slots):
    """Gives no slot back."""
    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.free.write_en.eq(0)
        return m


class Forgetting(Slots):
    """Leaves the QP where it was when it is released."""
    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.map.write_en.eq(self.assign)
        return m


@pytest.mark.parametrize("broken", [Leaking, Forgetting])
def test_broken_slots_are_noticed(broken, bench, monkeypatch):
    """Negative control."""
    b = bench(cfg=POOL)
    monkeypatch.setattr("optinic.congestion.dcqcn.Slots", broken)
    with pytest.raises(AssertionError):
        b.run(lambda ctx: random_events(b, ctx, 200, (6, 2, .5, 0)))


class Deaf(DcqcnModel):
    """Who finds no room doesn't hear its CNP."""
    def cnp(self, qp, time):
        return self._room() and super().cnp(qp, time)


class Private(DcqcnModel):
    """A reset of one that shares takes the row away from the others."""
    def reset(self, qp, time=0):
        if qp in self.sharing:
            self.state.pop(SHARED, None)
        return super().reset(qp, time)


class Staying(DcqcnModel):
    """Who shares stays there."""
    def _move_out(self, qp):
        return qp in self.sharing


@pytest.mark.parametrize("model, pool", [(Deaf, 8), (Private, 8), (Staying, 8), (DcqcnModel, 9), (DcqcnModel, 7), (DcqcnModel, 0)])
def test_other_policies_are_noticed(model, pool, bench):
    """Negative control."""
    b = bench(cfg=POOL, model=model(rate_bits(POOL), pool))
    with pytest.raises(AssertionError):
        b.run(lambda ctx: random_events(b, ctx, 300, (2, 2, 1, 0)))


def test_a_pool_that_holds_all_is_none():
    assert not pooled(16).dcqcn_pool and [t.name for t in Dcqcn.tables(pooled(16))] == ["dcqcn"]
    assert pooled(8).dcqcn_pool == 8 and [(t.name, t.width, t.depth, t.per) for t in Dcqcn.tables(pooled(8))] == [
        ("dcqcn", 72, 8, "qp"), ("dcqcn_slot", 3, 16, "qp"), ("dcqcn_free", 3, 8, "qp")]


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
