"""LineFetch on a bus that answers its reads in any order, beat by beat, late, wrongly, never, or without having been asked."""

from random import Random

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.queues.line_fetch import LineFetch, wqe_parts
from tests.formal.mutate import mutant

from .bench import BASE, LINE, small_cfg

WIDTHS = (64, 128, 256, 512, 1024)


class Read:
    """One request, from when it is made; `id` and what follows from when AR has taken it."""

    def __init__(self, where, line, mark, asked, rng):
        self.where, self.line, self.mark, self.asked = where, line, mark, asked
        self.data = rng.randbytes(LINE)
        self.id = self.kind = self.due = self.ended = self.verdict = self.beats = None
        self.beat, self.error = 0, False


class Fetch:
    """The card around LineFetch on one side, the host on the other. Every rule of LineFetch's docstring is checked here.

    A read is of `kind`(rng), "ok" or "error", "short", "long", "never", "late", and answered `latency` cycles after AR at least;
    of those that are due any one, and with probability `mix` another one after each beat. With probability `stray` the beat
    belongs to no read."""

    def __init__(self, ctx, dut, cfg, rng, *, timeout=None, kind=lambda rng: "ok", latency=(1, 60), mix=.5, gap=.1, stray=.1,
                 ar_ready=.8):
        self.ctx, self.dut, self.cfg, self.rng = ctx, dut, cfg, rng
        self.kind, self.latency = kind, latency
        self.mix, self.gap, self.stray, self.ar_ready = mix, gap, stray, ar_ready
        self.slots, self.parts = cfg.reads_outstanding, wqe_parts(cfg.data_width)
        self.beats, self.cycle = LINE * 8 // cfg.data_width, 0
        # by default so long that answers to all slots come in time
        self.timeout = timeout or 100 + 2 * self.slots * max(4, self.beats)
        self.pending, self.waiting, self.open = {}, [], []     # by line; those for AR; those that AR took and R hasn't ended
        self.all, self.cache, self.shown, self.marks = [], {}, None, {}
        self.overtaken = self.mixed = self.strays = 0
        self.lateness = []
        ctx.set(dut.rq_base, BASE), ctx.set(dut.dma_timeout, self.timeout)

    async def step(self, want=True):
        ctx, dut, axi, rng = self.ctx, self.dut, self.dut.axi, self.rng
        ask = None
        free = sorted(set(range(self.cfg.rq_cache_lines)) - set(self.pending))
        if want and free and not ctx.get(dut.full):
            where = rng.getrandbits(dut.where_bits)
            if where not in [r.where for r in (*self.waiting, *self.open)]:
                line = rng.choice(free)
                self.marks[line] = not self.marks.get(line, 0)
                ask = Read(where, line, int(self.marks[line]), self.cycle, rng)
                ctx.set(dut.request_where, where), ctx.set(dut.request_line, line), ctx.set(dut.request_mark, ask.mark)
        ctx.set(dut.request, ask is not None)
        if self.shown is None and rng.random() >= self.gap:
            self._show()
        ctx.set(axi.rvalid, self.shown is not None)
        # a beat of no one's doesn't become one of a read that AR takes while it waits
        ready = rng.random() < self.ar_ready and not (self.shown and self.shown[0] is None and self.shown_id == ctx.get(axi.arid))
        ctx.set(axi.arready, ready)

        if ctx.get(dut.verdict):
            self._verdict(ctx.get(dut.verdict_line), ctx.get(dut.verdict_mark), ctx.get(dut.verdict_bad))
        if written := ctx.get(dut.write):
            line, place = divmod(ctx.get(dut.write_addr), 4)
            assert line in self.pending, f"cycle {self.cycle}: a write to line {line}, which nobody asked for"
            assert not written & (written - 1)
            self.cache[line, place, written.bit_length() - 1] = ctx.get(dut.write_data)
        for read in self.pending.values():
            assert self.cycle <= read.asked + self.timeout + self.slots + 2, f"cycle {self.cycle}: line {read.line} has no verdict"
        if ask is not None:
            self.pending[ask.line] = ask
            self.waiting.append(ask), self.all.append(ask)
        if self.shown is not None and ctx.get(axi.rready):
            self._taken(*self.shown)
            self.shown = None
        if ready and ctx.get(axi.arvalid):
            self._address()
        await ctx.tick()
        self.cycle += 1

    def _address(self):
        ctx, axi = self.ctx, self.dut.axi
        read, address = self.waiting.pop(0), ctx.get(axi.araddr)
        assert address == BASE + read.where * LINE and ctx.get(axi.arlen) == self.beats - 1 and ctx.get(axi.arburst) == 1
        read.id = ctx.get(axi.arid)
        assert read.id < self.slots and read.id not in [r.id for r in self.open], f"cycle {self.cycle}: ID {read.id} is in use"
        read.kind = self.kind(self.rng)
        if read.kind == "short" and self.beats == 1:
            read.kind = "error"
        read.due = self.cycle + self.rng.randint(*self.latency)
        if read.kind == "never":
            read.due = 1 << 60
        if read.kind == "late":
            read.due += self.timeout + self.slots + 2
        read.beats = {"short": self.rng.randint(1, max(1, self.beats - 1)),
                      "long": self.beats + self.rng.randint(1, 2 * self.beats)}.get(read.kind, self.beats)
        read.wrong = self.rng.randrange(self.beats) if read.kind == "error" else -1
        self.open.append(read)

    def _show(self):
        ctx, axi, rng = self.ctx, self.dut.axi, self.rng
        width = self.cfg.data_width
        due = [r for r in self.open if r.due <= self.cycle]
        if rng.random() < self.stray:
            ident = rng.choice(sorted(set(range(256)) - {r.id for r in self.open} - {ctx.get(axi.arid)}))
            read, data, resp, last = None, rng.getrandbits(width), rng.choice((0, 2)), rng.randrange(2)
            self.strays += 1
        elif due:
            begun = [r for r in due if r.beat]
            read = rng.choice(due if not begun or rng.random() < self.mix else begun)
            self.mixed += any(r is not read for r in begun)
            resp = rng.choice((2, 3)) if read.beat == read.wrong else 0
            data = int.from_bytes(read.data, "little") >> width * (read.beat % self.beats) & (1 << width) - 1
            last, ident = read.beat + 1 == read.beats, read.id
        else:
            return
        self.shown, self.shown_id = (read, last, resp), ident
        ctx.set(axi.rid, ident), ctx.set(axi.rdata, data), ctx.set(axi.rresp, resp), ctx.set(axi.rlast, last)

    def _taken(self, read, last, resp):
        if read is None:
            return
        read.beat += 1
        read.error |= resp != 0
        if last:
            read.ended = self.cycle
            self.overtaken += read is not self.open[0]
            self.open.remove(read)

    def _verdict(self, line, mark, bad):
        assert line in self.pending, f"cycle {self.cycle}: a verdict on line {line}, which has none to come"
        read = self.pending.pop(line)
        assert mark == read.mark
        read.verdict = bad
        age = self.cycle - read.asked
        if read.ended is None or self.cycle - read.ended > 8 + self.slots:      # writing the last beat, and expiries
            assert bad and self.timeout <= age, f"cycle {self.cycle}: line {line} after {age} cycles without its answer"
            self.lateness.append(age - self.timeout)
        elif not bad:
            assert read.beats == self.beats and not read.error, f"cycle {self.cycle}: a {read.kind} answer is called good"
            for place in range(4):
                wqe = int.from_bytes(read.data[32 * place:32 * place + 32], "little")
                for i, part in enumerate(self.parts):
                    width = part.stop - part.start
                    assert self.cache[line, place, i] & (1 << width) - 1 == wqe >> part.start & (1 << width) - 1, \
                        f"cycle {self.cycle}: line {line}, WQE {place}, part {i}"
        else:
            assert read.kind in ("error", "short", "long") or self.timeout <= age, f"cycle {self.cycle}: failed for nothing"

    async def drain(self):
        for _ in range(4 * self.timeout + 1000):
            if not self.pending and not self.waiting and all(r.kind == "never" for r in self.open) and self.shown is None:
                break
            await self.step(want=False)
        for _ in range(8):
            await self.step(want=False)
        assert not self.pending and self.ctx.get(self.dut.taken) == len(self.open)


def run(cfg, scenario, seed, fetch=LineFetch, **options):
    rng = Random(seed)
    dut, reset, kept = fetch(cfg), Signal(), []
    sim = Simulator(ResetInserter(reset)(dut))
    sim.add_clock(1e-6)

    async def testbench(ctx):
        bench = Fetch(ctx, dut, cfg, rng, **options)
        bench.reset = reset
        kept.append(bench)
        await scenario(bench)
    sim.add_testbench(testbench)
    sim.run()
    return kept[0]


def traffic(cycles, busy=.5):
    async def scenario(bench):
        for _ in range(cycles):
            await bench.step(bench.rng.random() < busy)
        await bench.drain()
    return scenario


@pytest.mark.parametrize("width", WIDTHS)
def test_answers_in_any_order(seed, width):
    bench = run(small_cfg(width), traffic(1200), seed)
    assert not any(r.verdict for r in bench.all) and bench.strays > 20
    assert bench.overtaken > len(bench.all) / 4 and (bench.mixed > 50 or width == 1024)


@pytest.mark.parametrize("slots, lines", [(2, 16), (8, 8), (128, 256)])
@pytest.mark.parametrize("width", WIDTHS)
def test_answers_of_every_kind(seed, width, slots, lines):
    kinds = iter(["ok", "never"] * (slots // 4))        # so many slots are lost, no more

    def kind(rng):
        return next(kinds, None) or rng.choice(("ok", "ok", "ok", "error", "short", "long", "late"))
    bench = run(small_cfg(width, reads_outstanding=slots, rq_cache_lines=lines), traffic(1000), seed, kind=kind)
    verdicts = {k: {r.verdict for r in bench.all if r.kind == k} for k in ("ok", "error", "never", "late")}
    assert verdicts["error"] == verdicts["late"] == {1} and 0 in verdicts["ok"] and verdicts["never"] <= {1}
    assert len(bench.open) == slots // 4 and max(bench.lateness) <= slots + 2


def test_answers_around_the_timeout(seed):
    """A small timeout, so that answers and expiries meet in every way."""
    bench = run(small_cfg(512, reads_outstanding=4), traffic(4000, .9), seed, timeout=16, latency=(1, 20), stray=.2)
    assert 50 < sum(r.verdict for r in bench.all) < len(bench.all) - 50


def test_all_at_once_and_a_bus_that_is_never_idle(seed):
    """Every slot runs out in the same few cycles while beats of no one's keep coming: the bound holds for each one."""
    async def scenario(bench):
        for _ in range(400):
            await bench.step()
        assert [r.verdict for r in bench.all] == [1] * 8 and bench.ctx.get(bench.dut.dead)
        assert max(bench.lateness) <= 10
        for read in bench.open:                         # and they come after all
            read.due = bench.cycle + bench.rng.randrange(40)
        bench.kind, bench.stray = lambda rng: "ok", .1
        await traffic(800)(bench)
        assert not any(r.verdict for r in bench.all[8:]) and len(bench.all) > 20 and not bench.ctx.get(bench.dut.dead)
    run(small_cfg(64), scenario, seed, kind=lambda rng: "never", gap=0, stray=.6)


def test_a_reset_in_the_middle_of_answers(seed):
    async def scenario(bench):
        for cycles in (9, 60, 200):
            for _ in range(cycles):
                await bench.step(bench.rng.random() < .7)
            bench.ctx.set(bench.reset, 1)
            bench.ctx.set(bench.dut.request, 0), bench.ctx.set(bench.dut.axi.rvalid, 0)
            await bench.ctx.tick()
            bench.ctx.set(bench.reset, 0)
            bench.pending, bench.waiting, bench.open, bench.shown = {}, [], [], None
        first = len(bench.all)
        await traffic(600)(bench)
        assert not any(r.verdict for r in bench.all[first:])
    run(small_cfg(64), scenario, seed)


@pytest.mark.parametrize("old, new", [
    ("& ~(overdue & (axi.rid[:bits] == expired))", ""),                 # a beat that comes just when its read expires
    ("with m.Elif(overdue & (answering == expired)):", "with m.Elif(0):"),
    ("& ~(ended & (answering == aged))", ""),                           # an answer that ends just when it would be overdue
    ("& ~fresh", ""),                                                   # the time of the slot's last read
    ("& ~(ended & (axi.rid == held_id))", ""),                          # a beat behind RLAST
    ("(axi.rid[bits:] == 0)", "1"),                                     # an ID beyond the slots
    ("held_last, 0,", "0, 0,"),                                         # the next read of the slot begins at its first beat
    ("wrong | held_error", "held_error"),
], ids=range(8))
def test_broken(seed, old, new):
    broken = mutant("optinic.queues.line_fetch", old, new).LineFetch
    with pytest.raises(AssertionError):
        for i in range(3):
            run(small_cfg(512, reads_outstanding=4), traffic(4000, .9), seed + i, broken, timeout=12, latency=(1, 16), stray=.5,
                kind=lambda rng: rng.choice(("ok", "ok", "ok", "error")))
