"""AckBoard: what is offered is the newest that is owed, behind the answers that go before it, and nothing is forgotten."""

from collections import deque

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.config import preset
from optinic.transport.rc.ack_board import AckBoard, Put
from tests.formal.mutate import mutant

CFG = preset("tiny", transport="rc", arrival_map=False)
AETH = ("psn", "msn", "syndrome")


class Bench:
    """A board, a list of puts and answers still to be fed, and what the board must say, from what it has accepted."""

    def __init__(self, cfg, rng, *, put=1.0, ready=1.0, answer=0.05, board=AckBoard):
        self.cfg, self.rng, self.put_rate, self.ready_rate, self.answer_rate = cfg, rng, put, ready, answer
        self.board, self.rst = board(cfg), Signal()
        self.dut = ResetInserter(self.rst)(self.board)
        self.puts, self.wait = deque(), {}
        self.offers, self.cycle, self.accepted_at, self.offered_at, self.serial = [], 0, [], [], 0
        self.restart()

    def restart(self):
        self.owed, self.reads, self.jobs = {}, {}, deque()      # jobs: QPs with answers to come, in order
        self.shown = self.putting = None

    def ack(self, qp, syndrome=0x1F, again=0):
        self.serial += 1
        return dict(kind=Put.ACK, again=again, qp=qp, psn=self.serial & 0xFFFFFF, msn=self.rng.getrandbits(24), syndrome=syndrome)

    def read(self, qp, again=0):
        return dict(kind=Put.READ, again=again, qp=qp, psn=self.rng.getrandbits(24), msn=0, syndrome=0)

    def reset(self, qp):
        return dict(kind=Put.RESET, again=0, qp=qp, psn=0, msn=0, syndrome=0)

    async def step(self, ctx):
        b, rng = self.board, self.rng
        if self.putting is None and self.puts and rng.random() < self.put_rate and self.may(self.puts[0]):
            self.putting = self.puts.popleft()
            ctx.set(b.put.payload, self.putting | {"kind": self.putting["kind"].value})
        ctx.set(b.put.valid, self.putting is not None)
        answered = self.jobs and rng.random() < self.answer_rate
        ctx.set(b.answered.valid, int(bool(answered)))
        if answered:
            qp = self.jobs.popleft()
            ctx.set(b.answered.payload, qp)
        ready = rng.random() < self.ready_rate
        ctx.set(b.acks.ready, ready)

        # an offer comes from what was accepted before this cycle
        if ctx.get(b.acks.valid):
            got = ctx.get(b.acks.payload)
            got = {name: getattr(got, name) for name in ("qp", *AETH)}
            if self.shown is None:
                want = self.owed.pop(got["qp"], None)
                assert want == got, f"cycle {self.cycle}: offered {got}, owed {want}"
                assert not self.reads.get(got["qp"]), f"cycle {self.cycle}: {got} before {self.reads[got['qp']]} answers"
                self.shown = got
                self.offered_at.append(self.cycle)
            assert self.shown == got, "changed while it was offered"
            if ready:
                self.offers.append(got)
                self.shown = None
        else:
            assert self.shown is None, "withdrawn"
        if answered:
            self.reads[qp] = max(0, self.reads.get(qp, 0) - 1)
        if self.putting is not None and ctx.get(b.put.ready):
            p, self.putting = self.putting, None
            self.accepted_at.append(self.cycle)
            qp = p["qp"]
            if p["kind"] == Put.ACK:
                if not (p["again"] and self.owed.get(qp, p)["syndrome"] >= 0x20 and qp in self.owed):
                    self.owed[qp] = {name: p[name] for name in ("qp", *AETH)}
            else:
                if not p["again"]:
                    self.owed.pop(qp, None)
                self.reads[qp] = self.reads.get(qp, 0) + 1 if p["kind"] == Put.READ else 0
                if p["kind"] == Put.READ:
                    self.jobs.append(qp)
                else:
                    self.jobs = deque(q for q in self.jobs if q != qp)
        await ctx.tick()
        self.cycle += 1

    def may(self, p):
        return p["kind"] != Put.READ or len(self.jobs) < self.cfg.read_jobs + self.cfg.tx_slots

    async def clear(self, ctx):
        assert ctx.get(self.board.clearing) and not ctx.get(self.board.idle)
        await ctx.tick().until(~self.board.clearing)

    async def drain(self, ctx):
        """Until it is idle with nothing owed; the answers come too."""
        for _ in range(60 * self.cfg.num_qps + 400):
            await self.step(ctx)
            if not self.puts and self.putting is None and not self.jobs and ctx.get(self.board.idle):
                break
        assert not self.owed and not self.jobs and self.shown is None, f"still owed: {self.owed}"

    def run(self, body):
        async def bench(ctx):
            await self.clear(ctx)
            await body(ctx)
        sim = Simulator(self.dut)
        sim.add_clock(1e-8)
        sim.add_testbench(bench)
        sim.run()


def traffic(bench, count, qps, kinds=(Put.ACK,) * 12 + (Put.READ,) * 5 + (Put.RESET,)):
    for _ in range(count):
        qp, kind = bench.rng.choice(qps), bench.rng.choice(kinds)
        again = int(bench.rng.random() < .3)
        bench.puts.append(bench.ack(qp, bench.rng.choice((0x1F, 0x2E, 0x60)), again) if kind == Put.ACK else
                          bench.read(qp, again) if kind == Put.READ else bench.reset(qp))


@pytest.mark.parametrize("put,ready,answer,qps", [
    (1, 1, .1, range(16)), (1, .1, .3, range(16)), (.1, 1, .02, range(3)), (.15, .3, .1, [5]), (1, 1, 1, range(0, 16, 5))])
def test_random(put, ready, answer, qps, rng):
    bench = Bench(CFG, rng, put=put, ready=ready, answer=answer)
    traffic(bench, 500, list(qps))

    async def body(ctx):
        while bench.puts:
            await bench.step(ctx)
        bench.ready_rate, bench.answer_rate = 1, 1
        await bench.drain(ctx)
    bench.run(body)
    assert len(bench.offers) > 30


def test_latency_and_rate(rng):
    """Ten cycles from a put to its offer; a put each eight cycles with an offer between, each four without."""
    bench = Bench(CFG, rng)
    bench.puts.append(bench.ack(3))

    async def body(ctx):
        await bench.drain(ctx)
        assert bench.offered_at[0] - bench.accepted_at[0] == 10
        del bench.accepted_at[:], bench.offered_at[:]
        bench.puts.extend(bench.ack(qp) for qp in range(16))
        await bench.drain(ctx)
        bench.ready_rate = 0
        bench.puts.extend(bench.ack(qp % 16) for qp in range(40))
        del bench.accepted_at[:]
        while bench.puts or bench.putting:
            await bench.step(ctx)
        assert {b - a for a, b in zip(bench.accepted_at[4:], bench.accepted_at[5:])} == {4}
        bench.ready_rate = 1
        await bench.drain(ctx)
    bench.run(body)
    assert len(bench.offers) == 1 + 16 + 16 + 1     # and of the last 40, one that was in the output already


def test_newest_is_offered_in_order(rng):
    """While one waits to be taken, three more of the same QP: the last of them follows."""
    bench = Bench(CFG, rng, ready=0)

    async def body(ctx):
        bench.puts.append(bench.ack(7))
        for _ in range(15):
            await bench.step(ctx)
        bench.puts.extend(bench.ack(7) for _ in range(3))
        for _ in range(60):
            await bench.step(ctx)
        bench.ready_rate = 1
        await bench.drain(ctx)
    bench.run(body)
    assert [o["psn"] for o in bench.offers] == [1, 4]


def test_answers_go_first(rng):
    bench = Bench(CFG, rng, answer=0)

    async def body(ctx):
        bench.puts.extend([bench.read(2), bench.read(2), bench.ack(2), bench.ack(9), bench.ack(2, 0x60)])
        for _ in range(80):
            await bench.step(ctx)
        assert [o["qp"] for o in bench.offers] == [9] and bench.reads[2] == 2
        assert ctx.get(bench.board.idle)
        bench.answer_rate = 1
        await bench.step(ctx)
        bench.answer_rate = 0
        for _ in range(40):
            await bench.step(ctx)
        assert len(bench.offers) == 1
        bench.answer_rate = 1
        await bench.drain(ctx)
        # an answer acknowledges what is owed before it
        bench.put_rate, bench.ready_rate, n = 1, 0, len(bench.offers)
        bench.puts.extend([bench.ack(1), bench.ack(4), bench.read(4)])
        for _ in range(60):
            await bench.step(ctx)
        bench.ready_rate = 1
        await bench.drain(ctx)
        assert [o["qp"] for o in bench.offers[n:]] == [1]
    bench.run(body)
    assert [o["syndrome"] for o in bench.offers if o["qp"] == 2] == [0x60]


def test_all_answers_at_once(rng):
    """As many as the send half holds, one a cycle: none is lost."""
    cfg = CFG.with_(rc_resources=64, num_qps=4)
    bench = Bench(cfg, rng, answer=0)
    count = cfg.read_jobs + cfg.tx_slots

    async def body(ctx):
        bench.puts.extend(bench.read(i % 2) for i in range(count))
        bench.puts.extend([bench.ack(0), bench.ack(1)])
        while bench.puts or bench.putting:
            await bench.step(ctx)
        bench.answer_rate = 1
        for _ in range(count):
            await bench.step(ctx)
        assert not bench.jobs
        await bench.drain(ctx)
    bench.run(body)
    assert len(bench.offers) == 2


def test_counts_stay_in_range(rng):
    """More answers than READs leave the count at 0; all jobs of the card may be one QP's."""
    bench = Bench(CFG, rng)
    most = CFG.read_jobs + CFG.tx_slots

    async def pulse(ctx, qp, times):
        ctx.set(bench.board.acks.ready, 0), ctx.set(bench.board.answered.payload, qp), ctx.set(bench.board.answered.valid, 1)
        await ctx.tick().repeat(times)
        ctx.set(bench.board.answered.valid, 0)
        await ctx.tick().repeat(10 + 5 * times)

    async def body(ctx):
        await pulse(ctx, 6, 5)
        bench.puts.append(bench.ack(6))
        await bench.drain(ctx)
        bench.answer_rate = 0
        bench.puts.extend(bench.read(6) for _ in range(most))
        bench.puts.append(bench.ack(6))
        for _ in range(6 * (most + 5)):
            await bench.step(ctx)
        assert len(bench.offers) == 1 and bench.reads[6] == most
        bench.answer_rate = 1
        await bench.drain(ctx)
    bench.run(body)
    assert len(bench.offers) == 2


def test_duplicates_take_nothing_away(rng):
    """An ACK of a duplicate doesn't replace a NAK that is owed, nor does the answer to a duplicate READ drop what is owed."""
    bench = Bench(CFG, rng)

    async def body(ctx):
        bench.answer_rate, bench.ready_rate = 0, 0
        bench.puts.extend([bench.read(3), bench.ack(3, 0x60), bench.ack(3, again=1), bench.read(3, again=1)])
        for _ in range(60):
            await bench.step(ctx)
        bench.answer_rate, bench.ready_rate = 1, 1
        await bench.drain(ctx)
    bench.run(body)
    assert [o["syndrome"] for o in bench.offers] == [0x60]


@pytest.mark.parametrize("when", range(6, 40, 3))
def test_reset_in_mid_stream(when, rng):
    bench = Bench(CFG, rng, answer=.1)
    traffic(bench, 30, range(16))

    async def body(ctx):
        for _ in range(when):
            await bench.step(ctx)
        ctx.set(bench.rst, 1)
        await ctx.tick()
        ctx.set(bench.rst, 0), ctx.set(bench.board.put.valid, 0), ctx.set(bench.board.answered.valid, 0)
        bench.puts.clear()
        bench.restart()
        await bench.clear(ctx)
        bench.answer_rate = 1
        traffic(bench, 40, range(16), (Put.ACK, Put.READ))
        bench.puts.extend(bench.ack(qp) for qp in range(16))
        await bench.drain(ctx)
    bench.run(body)
    assert {o["qp"] for o in bench.offers} == set(range(16))


MUTANTS = [
    ("with m.If(row.owed & (row.reads == 0)):", "with m.If(row.owed):"),
    ("[new.owed.eq(row.owed & asked.again), new.reads.eq(row.reads + 1)]", "new.reads.eq(row.reads + 1)"),
    ("[new.owed.eq(row.owed & asked.again), new.reads.eq(row.reads + 1)]", "[new.owed.eq(0), new.reads.eq(row.reads + 1)]"),
    ("with m.If(~(asked.again & row.owed & row.syndrome[5:].any())):", "with m.If(1):"),
    ("with m.If((row.reads == 1) & row.owed & ~row.listed):", "with m.If(0):"),
    ("with m.If((row.reads == 0) & ~row.listed):", "with m.If(row.reads == 0):"),
    ("m.d.comb += new.listed.eq(0)", "pass"),
    ("[new.owed.eq(0), new.reads.eq(0)]", "new.owed.eq(0)"),
]


@pytest.mark.parametrize("old,new", MUTANTS, ids=range(len(MUTANTS)))
def test_a_broken_board_is_noticed(old, new, rng):
    board = mutant("optinic.transport.rc.ack_board", old, new).AckBoard
    with pytest.raises(AssertionError):
        for ready, answer, qps in (1, .02, 3), (.1, .02, 3), (.005, .1, 16):
            bench = Bench(CFG, rng, put=.2, ready=ready, answer=answer, board=board)
            traffic(bench, 300, range(qps))

            async def body(ctx):
                while bench.puts:
                    await bench.step(ctx)
                    assert bench.cycle < 30_000, "stuck"
                bench.ready_rate, bench.answer_rate = 1, 1
                await bench.drain(ctx)
            bench.run(body)
