"""WriteMerge: each burst whole and behind its address, each answer to its source, full rate for one source alone."""

from collections import deque

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.axi.write_merge import WriteMerge
from tests.formal.mutate import mutant

AW = ("awid", "awaddr", "awlen", "awsize", "awburst")
W = ("wdata", "wstrb", "wlast")


class Source:
    """Bursts of its own, addresses and data each at their own pace; `lead`: data may be offered before their address."""

    def __init__(self, port, number, rng, load, longest, lead):
        self.port, self.number, self.rng, self.load, self.longest, self.lead = port, number, rng, load, longest, lead
        self.addresses, self.data, self.made, self.taken, self.begun, self.answers = deque(), deque(), 0, 0, 0, 0
        self.aw = self.w = None

    def make(self, count):
        for _ in range(count):
            length = self.rng.randrange(self.longest)
            tag = self.number << 31 | self.made
            self.addresses.append((self.number << 7 | self.made % 8, tag, length, 3, 1))
            self.data.extend((tag << 8 | i, self.rng.getrandbits(8), int(i == length)) for i in range(length + 1))
            self.made += 1

    def drive(self, ctx):
        rng, p = self.rng, self.port
        if self.aw is None and self.addresses and rng.random() < self.load:
            self.aw = self.addresses.popleft()
        behind = self.taken + (self.aw is not None) > self.begun
        if self.w is None and self.data and (self.lead or behind) and rng.random() < self.load:
            self.w = self.data.popleft()
            self.begun += self.w[2]
        for names, valid, offer in (AW, "awvalid", self.aw), (W, "wvalid", self.w):
            ctx.set(getattr(p, valid), offer is not None)
            for name, value in zip(names, offer or ()):
                ctx.set(getattr(p, name), value)


class Bench:
    def __init__(self, rng, *, loads=(1, 1), longest=4, ready=1.0, answer=1.0, lead=(0, 0), taker=1.0, merge=WriteMerge):
        self.merge, self.rst, self.rng = merge(64), Signal(), rng
        self.dut = ResetInserter(self.rst)(self.merge)
        self.sources = [Source(getattr(self.merge, f"source{i}"), i, rng, loads[i], longest, lead[i]) for i in range(2)]
        self.ready, self.answer, self.taker = ready, answer, taker
        self.cycle = 0
        self.restart()

    def restart(self):
        self.order, self.open, self.due, self.beats, self.held = [], deque(), [deque(), deque()], [], {}
        self.b = None

    async def step(self, ctx):
        m, rng = self.merge, self.rng
        axi = m.axi
        for s in self.sources:
            s.drive(ctx)
            ctx.set(s.port.bready, rng.random() < self.taker)
        ctx.set(axi.awready, rng.random() < self.ready), ctx.set(axi.wready, rng.random() < self.ready)
        waiting = [q for q in self.due if q]
        if self.b is None and waiting and rng.random() < self.answer:
            self.b = rng.choice(waiting).popleft()
            ctx.set(axi.bid, self.b), ctx.set(axi.bresp, self.b & 3)
        ctx.set(axi.bvalid, self.b is not None)

        get = lambda names: tuple(ctx.get(getattr(axi, n)) for n in names)
        for names, valid, ready in (AW, "awvalid", "awready"), (W, "wvalid", "wready"):
            up, taken, value = ctx.get(getattr(axi, valid)), ctx.get(getattr(axi, ready)), get(names)
            if valid in self.held:
                assert up and self.held[valid] == value, f"{valid}: changed or withdrawn"
            self.held.pop(valid, None)
            if up and not taken:
                self.held[valid] = value
        # an address counts from its offer on: data may come with it
        if ctx.get(axi.awvalid) and not getattr(self, "offered", 0):
            ident, tag, length, size, burst = get(AW)
            assert (size, burst) == (3, 1)
            self.open.append([ident, tag, length, 0])
            self.offered = 1
        if ctx.get(axi.wvalid):
            assert self.open, "data without an address"
            ident, tag, length, done = self.open[0]
            data, strobe, last = get(W)
            assert (data, last) == (tag << 8 | done, done == length), f"beat {done} of {tag:#x}: {data:#x}"
            if ctx.get(axi.wready):
                self.beats.append((self.cycle, tag))
                self.open[0][3] += 1
                if last:
                    self.open.popleft()
                    self.order.append((ident, tag))
                    self.due[ident >> 7].append(ident)
        if ctx.get(axi.awready):
            self.offered = 0
        for i, s in enumerate(self.sources):
            if ctx.get(s.port.bvalid):
                assert self.b is not None and self.b >> 7 == i and ctx.get(s.port.bid) == self.b
                assert ctx.get(s.port.bresp) == self.b & 3
                s.answers += ctx.get(s.port.bready)
            if s.aw is not None and ctx.get(s.port.awready):
                s.aw, s.taken = None, s.taken + 1
            if s.w is not None and ctx.get(s.port.wready):
                s.w = None
        if self.b is not None and ctx.get(axi.bready):
            self.b = None
        await ctx.tick()
        self.cycle += 1

    async def drain(self, ctx, limit=20_000):
        while any(s.answers < s.made for s in self.sources):
            await self.step(ctx)
            assert self.cycle < limit, f"answers: {[(s.answers, s.made) for s in self.sources]}"
        for _ in range(20):
            await self.step(ctx)
        for s in self.sources:
            tags = [tag for _, tag in self.order if tag >> 31 == s.number]
            assert [tag & 0x7FFFFFFF for tag in tags] == list(range(s.made - len(tags), s.made)) and s.answers == s.made

    def run(self, body):
        sim = Simulator(self.dut)
        sim.add_clock(1e-8)
        sim.add_testbench(body)
        sim.run()


@pytest.mark.parametrize("loads,ready,answer,taker", [
    ((1, 1), 1, 1, 1), ((.5, .1), .5, .3, .5), ((.2, .2), .9, .9, .2), ((1, .05), .3, 1, 1), ((.1, 1), 1, .1, .9)])
@pytest.mark.parametrize("lead", [(0, 0), (0, 1), (1, 1)])
def test_random(loads, ready, answer, taker, lead, rng):
    bench = Bench(rng, loads=loads, ready=ready, answer=answer, taker=taker, lead=lead)
    for s in bench.sources:
        s.make(60)
    bench.run(bench.drain)


@pytest.mark.parametrize("longest", [1, 2, 7])
def test_one_source_alone_has_the_whole_rate(longest, rng):
    bench = Bench(rng, longest=longest)
    bench.sources[0].make(80)
    bench.run(bench.drain)
    first, last = bench.beats[0][0], bench.beats[-1][0]
    assert first == 2 and last - first + 1 == len(bench.beats)


def test_in_turn(rng):
    bench = Bench(rng, longest=1)
    for s in bench.sources:
        s.make(40)
    bench.run(bench.drain)
    tags = [tag >> 31 for _, tag in bench.order]
    assert all(a != b for a, b in zip(tags[2:], tags[3:]))


def test_addresses_wait_for_data(rng):
    """A source whose data don't come: sixteen addresses more, and then none; all is well afterwards."""
    bench = Bench(rng, longest=2)
    bench.sources[0].make(30)
    late = bench.sources[0].data
    bench.sources[0].data = deque()

    async def body(ctx):
        for _ in range(60):
            await bench.step(ctx)
        assert bench.sources[0].taken == 17     # one more in the queue's output register
        bench.sources[0].data = late
        await bench.drain(ctx)
    bench.run(body)


@pytest.mark.parametrize("when", range(1, 40, 5))
def test_reset_in_mid_stream(when, rng):
    bench = Bench(rng, loads=(.8, .3), ready=.6, answer=.5)
    for s in bench.sources:
        s.make(40)

    async def body(ctx):
        for _ in range(when):
            await bench.step(ctx)
        ctx.set(bench.rst, 1)
        await ctx.tick()
        ctx.set(bench.rst, 0)
        bench.restart()
        bench.offered = 0
        for s in bench.sources:
            s.__init__(s.port, s.number, s.rng, s.load, s.longest, s.lead)
            s.make(30)
        await bench.drain(ctx)
    bench.run(body)


@pytest.mark.parametrize("old,new", [
    ("order.o.ready.eq(axi.wvalid & axi.wready & axi.wlast)", "order.o.ready.eq(axi.wvalid & axi.wready)"),
    ("axi.wvalid.eq(known & ", "axi.wvalid.eq("),
    ("source.bvalid.eq(axi.bvalid & (mine == i))", "source.bvalid.eq(axi.bvalid)"),
    ("open_.eq((~axi.awvalid | axi.awready) & order.i.ready)", "open_.eq(order.i.ready)"),
    ("open_.eq((~axi.awvalid | axi.awready) & order.i.ready)", "open_.eq(~axi.awvalid | axi.awready)"),
], ids=range(5))
def test_a_broken_merge_is_noticed(old, new, rng):
    merge = mutant("optinic.axi.write_merge", old, new).WriteMerge
    with pytest.raises(AssertionError):
        for late in False, True:
            bench = Bench(rng, loads=(.8, .8), ready=.6, merge=merge)
            for s in bench.sources:
                s.make(60)

            async def body(ctx):
                if late:
                    kept, bench.sources[0].data = bench.sources[0].data, deque()
                    for _ in range(60):
                        await bench.step(ctx)
                    bench.sources[0].data = kept
                await bench.drain(ctx)
            bench.run(body)
