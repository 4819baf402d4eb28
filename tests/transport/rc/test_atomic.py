"""AtomicUnit on a host memory with pauses, errors and answers that come late, never, or too long."""

from collections import deque

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.config import preset
from optinic.transport.rc.atomic import READ_ID, WRITE_ID, AtomicUnit
from tests.formal.mutate import mutant

CFG = preset("tiny", transport="rc")
MASK = (1 << 64) - 1


class Bench:
    """`plan` says of each read: (latency or None for never, rresp, beats); of each write its bresp."""

    def __init__(self, cfg, rng, *, pause=0.0, timeout=10_000, read_plan=None, write_resp=lambda n: 0, unit=AtomicUnit, taker=1.0):
        self.cfg, self.rng, self.pause, self.timeout, self.taker = cfg, rng, pause, timeout, taker
        self.read_plan, self.write_resp = read_plan or (lambda n: (rng.randrange(1, 12), 0, 1)), write_resp
        self.unit, self.rst = unit(cfg), Signal()
        self.dut = ResetInserter(self.rst)(self.unit)
        self.memory, self.cycle, self.results = {}, 0, []
        self.reads = self.writes = self.strays = 0
        self.requests = deque()
        self.restart()

    def restart(self):
        self.offer, self.inside, self.began = None, None, None
        self.due, self.beat, self.aw, self.w, self.b, self.held = deque(), None, None, None, None, {}

    def word(self, addr):
        return int.from_bytes(bytes(self.memory.get(addr + i, 0) for i in range(8)), "little")

    def store(self, addr, value):
        for i, byte in enumerate(value.to_bytes(8, "little")):
            self.memory[addr + i] = byte

    async def step(self, ctx):
        u, rng, n = self.unit, self.rng, self.cfg.beat_bytes
        go = lambda: rng.random() >= self.pause
        ctx.set(u.dma_timeout, self.timeout)
        if self.offer is None and self.requests and go():
            self.offer = self.requests.popleft()
            ctx.set(u.request.payload, self.offer)
        ctx.set(u.request.valid, self.offer is not None)
        taking = rng.random() < self.taker
        ctx.set(u.result.ready, taking)

        r = u.read
        ctx.set(r.arready, go())
        if self.beat is None and self.due and self.due[0][0] is not None and self.due[0][0] <= self.cycle and go():
            self.beat = self.due[0]
        stray = self.beat is None and rng.random() < .1
        ctx.set(r.rvalid, self.beat is not None or stray)
        if self.beat is not None:
            _, addr, resp, beats = self.beat
            ctx.set(r.rid, READ_ID), ctx.set(r.rresp, resp), ctx.set(r.rlast, beats == 1)
            ctx.set(r.rdata, int.from_bytes(bytes(self.memory.get(addr + i, 0) for i in range(n)), "little"))
        elif stray:         # of another reader
            self.strays += 1
            ctx.set(r.rid, rng.choice([READ_ID ^ 1, READ_ID ^ 64]))
            ctx.set(r.rdata, rng.getrandbits(8 * n)), ctx.set(r.rlast, 1)
        w = u.write
        ctx.set(w.awready, go()), ctx.set(w.wready, go())
        if self.b is None and None not in (self.aw, self.w) and go():
            addr, (data, strobe) = self.aw, self.w
            self.b = self.write_resp(self.writes)
            self.writes += 1
            if not self.b:
                for i in range(n):
                    if strobe >> i & 1:
                        self.memory[addr + i] = data >> 8 * i & 0xFF
            self.aw = self.w = None
            ctx.set(w.bid, WRITE_ID), ctx.set(w.bresp, self.b)
        ctx.set(w.bvalid, self.b is not None)

        address = lambda c: tuple(c + x for x in ("id", "addr", "len", "size", "burst"))
        for name, port, names in ("ar", r, address("ar")), ("aw", w, address("aw")), ("w", w, ("wdata", "wstrb", "wlast")):
            valid, ready = ctx.get(getattr(port, name + "valid")), ctx.get(getattr(port, name + "ready"))
            value = tuple(ctx.get(getattr(port, x)) for x in names)
            if name in self.held:
                assert valid and self.held.pop(name) == value, f"{name}: changed or withdrawn"
            if valid and not ready:
                self.held[name] = value
            if not (valid and ready):
                continue
            if name == "w":
                assert self.w is None and value[2] == 1 and value[1].bit_count() == 8
                self.w = value[:2]
            else:
                assert value[1] % n == 0 and value[2:] == (0, (n - 1).bit_length(), 1)
                assert value[0] == (READ_ID if name == "ar" else WRITE_ID)
                if name == "ar":
                    assert not self.due, "a second read under the same ID"
                    latency, resp, beats = self.read_plan(self.reads)
                    self.reads += 1
                    self.due.append((None if latency is None else self.cycle + latency, value[1], resp, beats))
                else:
                    assert self.aw is None
                    self.aw = value[1]
        if self.beat is not None and ctx.get(r.rready):
            due, addr, resp, beats = self.due.popleft()
            if beats > 1:
                self.due.appendleft((due, addr, resp, beats - 1))
            self.beat = None
        if self.b is not None and ctx.get(w.bready):
            self.b = None
        if self.inside is not None:
            assert self.cycle - self.began < self.timeout + 300, "stuck"
            assert not ctx.get(u.idle)
        if ctx.get(u.result.valid):
            got = ctx.get(u.result.payload)
            got = (got.failed, got.original)
            assert self.held.setdefault("result", got) == got, "the result changed"
            if taking:
                self.results.append((self.inside, *self.held.pop("result"), self.cycle - self.began))
                self.inside = None
        if self.offer is not None and ctx.get(u.request.ready):
            assert self.inside is None
            self.inside, self.began, self.offer = self.offer, self.cycle, None
        await ctx.tick()
        self.cycle += 1

    async def drain(self, ctx):
        want = len(self.results) + len(self.requests) + (self.offer is not None) + (self.inside is not None)
        while len(self.results) < want:
            await self.step(ctx)

    def run(self, body=None):
        sim = Simulator(self.dut)
        sim.add_clock(1e-8)
        sim.add_testbench(body or self.drain)
        sim.run()


def job(addr, add, operand, compare=0):
    return dict(addr=addr, add=add, swap_add=operand, compare=compare)


def expect(memory, request):
    """(original) and the memory behind it."""
    before = memory.get(request["addr"], 0)
    if request["add"]:
        memory[request["addr"]] = (before + request["swap_add"]) & MASK
    elif before == request["compare"]:
        memory[request["addr"]] = request["swap_add"]
    return before


def some(rng, bench, count):
    """Requests on few words, most comparisons true or nearly so."""
    mine = {0x7_1000_0000 + 8 * i: rng.getrandbits(64) for i in range(24)}
    for addr, value in mine.items():
        bench.store(addr, value)
    now, requests = dict(mine), []
    for _ in range(count):
        addr, add = rng.choice(list(mine)), rng.getrandbits(1)
        compare = rng.choice((now[addr], now[addr], now[addr] ^ 1 << rng.randrange(64), rng.getrandbits(64)))
        requests.append(job(addr, add, rng.choice((rng.getrandbits(64), 1, MASK)), compare))
        expect(now, requests[-1])
    bench.requests.extend(requests)
    return mine, now


def check(bench, memory, after):
    for request, failed, original, _ in bench.results:
        assert not failed and original == expect(memory, request), f"{request}: {original:#x}"
    assert memory == after and all(bench.word(addr) == value for addr, value in after.items())
    assert all(a in range(0x7_1000_0000, 0x7_1000_0000 + 192) for a in bench.memory), "written outside"


@pytest.mark.parametrize("width,pause,taker,count", [
    (64, 0, 1, 150), (64, .4, .4, 150), (128, .2, .5, 100), (512, .1, 1, 60), (1024, .1, 1, 60)])
def test_random(width, pause, taker, count, rng):
    bench = Bench(CFG.with_(data_width=width, rx_buffer_bytes=32768), rng, pause=pause, taker=taker)
    mine, after = some(rng, bench, count)
    bench.run()
    check(bench, mine, after)
    assert bench.strays and bench.reads == count and count // 3 < bench.writes < count


def test_cycles(rng):
    bench = Bench(CFG, rng, read_plan=lambda n: (1, 0, 1))
    bench.requests.extend([job(8, 1, 5), job(8, 0, 5, 5), job(8, 0, 5, 7)])
    bench.run()
    assert [r[3] for r in bench.results] == [9, 9, 7]
    assert [(r[1], r[2]) for r in bench.results] == [(0, 0), (0, 5), (0, 5)]


@pytest.mark.parametrize("resp,beats", [(2, 1), (3, 1), (0, 2), (2, 5)])
def test_failed_reads_write_nothing(resp, beats, rng):
    bench = Bench(CFG, rng, read_plan=lambda n: (3, resp, beats) if n % 2 else (3, 0, 1))
    bench.requests.extend(job(8 * i, 1, 1) for i in range(8))
    bench.run()
    assert [r[1] for r in bench.results] == [0, 1] * 4 and bench.writes == 4
    assert [bench.word(8 * i) for i in range(8)] == [1, 0] * 4


def test_failed_writes(rng):
    bench = Bench(CFG, rng, write_resp=lambda n: 2 * (n % 2))
    bench.requests.extend(job(8 * i, 1, 1) for i in range(6))
    bench.run()
    assert [r[1] for r in bench.results] == [0, 1] * 3


@pytest.mark.parametrize("pause", [0, .3])
def test_late_answers_are_swallowed(pause, rng):
    """Answers before and behind the time: what comes late has no effect; the request that waits for it has its own read."""
    bench = Bench(CFG, rng, timeout=50, pause=pause, read_plan=lambda n: (rng.choice((10, 70, 140, 49, 50, 51, 52)), 0, 1))
    mine, _ = some(rng, bench, 120)
    bench.run()
    failures = 0
    for request, failed, original, cycles in bench.results:
        failures += failed
        assert cycles >= 50 if failed else original == expect(mine, request)
        if not pause:
            assert not failed or 50 <= cycles <= 53
    assert all(bench.word(addr) == value for addr, value in mine.items()) and 10 < failures < 110


def test_dead_bus_fails_each(rng):
    """Reads that never end, and a bus that takes no address; then, when the answer has come, all is well."""
    bench = Bench(CFG, rng, timeout=20, read_plan=lambda n: (None, 0, 1) if n == 0 else (2, 0, 1))
    bench.requests.extend(job(8, 1, 1) for _ in range(4))

    async def body(ctx):
        await bench.drain(ctx)
        assert [r[1] for r in bench.results] == [1] * 4 and bench.reads == 1
        assert not ctx.get(bench.unit.idle)
        bench.due[0] = (bench.cycle, *bench.due[0][1:])
        for _ in range(4):
            await bench.step(ctx)
        assert ctx.get(bench.unit.idle)
        bench.pause = 1.0
        bench.offer = job(8, 1, 1)
        ctx.set(bench.unit.request.payload, bench.offer)
        for _ in range(60):
            await bench.step(ctx)
        assert [r[1] for r in bench.results] == [1] * 5 and ctx.get(bench.unit.read.arvalid)
        bench.pause = 0
        bench.requests.append(job(8, 1, 1))
        await bench.drain(ctx)
    bench.run(body)
    assert [r[1] for r in bench.results] == [1] * 5 + [0] and bench.word(8) == 1


@pytest.mark.parametrize("timeout", [0, 1])
def test_no_time_at_all(timeout, rng):
    bench = Bench(CFG, rng, timeout=timeout)
    bench.requests.extend(job(8, 1, 1) for _ in range(4))
    bench.run()
    assert all(r[1] and r[3] <= 4 for r in bench.results) and not bench.writes


@pytest.mark.parametrize("when", range(1, 24))
def test_reset_in_mid_stream(when, rng):
    bench = Bench(CFG, rng, pause=.1)
    bench.requests.extend(job(64, 1, 1) for _ in range(4))

    async def body(ctx):
        for _ in range(when):
            await bench.step(ctx)
        ctx.set(bench.rst, 1)
        await ctx.tick()
        ctx.set(bench.rst, 0), ctx.set(bench.unit.request.valid, 0)
        bench.restart()
        bench.requests.clear()
        bench.results.clear()
        mine, after = some(rng, bench, 20)
        bench.memory = {a: b for a, b in bench.memory.items() if a >= 0x7_1000_0000}
        await bench.drain(ctx)
        check(bench, mine, after)
    bench.run(body)


MUTANTS = [
    ("with m.If(differs & ~job.add):", "with m.If(0):"),
    ("original + job.swap_add", "original | job.swap_add"),
    ("Elif(~due)", "Else()"),
    ("& (read.rid == READ_ID)", ""),
    ("bad.eq((read.rresp != 0) | ~read.rlast)", "bad.eq(0)"),
    ("[failed.eq(1), mine.eq(0)]", "failed.eq(1)"),
    ("with m.Elif(up):", "with m.Elif(0):"),
    ("failed.eq(write.bresp[1])", "failed.eq(0)"),
]


@pytest.mark.parametrize("old,new", MUTANTS, ids=range(len(MUTANTS)))
def test_a_broken_unit_is_noticed(old, new, rng):
    unit = mutant("optinic.transport.rc.atomic", old, new).AtomicUnit
    with pytest.raises(AssertionError):
        bench = Bench(CFG, rng, unit=unit)
        mine, after = some(rng, bench, 60)
        bench.run()
        check(bench, mine, after)
        bench = Bench(CFG, rng, unit=unit, timeout=30, write_resp=lambda n: 2 * (n % 2),
                      read_plan=lambda n: (rng.choice((5, 40, 100)), 2 * (n % 5 == 0), 1))
        bench.requests.extend(job(8, 1, 1) for _ in range(60))
        bench.run()
        good = sum(not r[1] for r in bench.results)
        assert bench.word(8) == good and 5 < good < 55
        assert all(r[3] < 60 for r in bench.results)
