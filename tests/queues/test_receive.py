"""ReceiveQueue against hosts of every temper: order, contents over several laps of the ring, speed, faults, invalidation."""

import pytest
from amaranth.hdl import Const

from optinic.config import preset
from optinic.queues import line_cache, receive
from optinic.queues.line_cache import LineCache
from optinic.queues.receive import ReceiveQueue
from tests.formal.mutate import mutant

from . import bench
from .bench import BASE, Bench, mutated, simulate, small_cfg


async def traffic(bench, host, rng, *, lookups, qps, burst=.7, lives=0.0, spread=6):
    """Messages of several packets on some QPs, skipped ones, reposts of the ring behind the oldest lookup."""
    head = {}
    for qp in range(qps):
        host.start(qp, rng.choice((0, 65536 - 9, 2**32 - 50, 4096 + rng.randrange(64))))
        head[qp] = host.posted[qp]
    ring, sent = bench.cfg.rq_entries, 0
    while sent < lookups:
        qp = rng.randrange(qps)
        if rng.random() < .3:
            oldest = min([head[qp], *(e["full"] for e in bench.outstanding(qp))])
            depth = min(ring, (ring, 6, 2, ring, 1, 12, 3, 9)[(qp + sent // 100) % 8])      # some rings run almost dry
            host.post(qp, max(0, min(rng.choice((1, 1, 2, 3, 7, 30)), oldest + depth - host.posted[qp])))
        ahead = host.posted[qp] - head[qp]
        if len(bench.queue) < 20 and ahead and rng.random() < burst:
            if rng.random() < .1:
                bench.lookup(qp, head[qp], need=0)
            index = head[qp] + min(ahead - 1, int(rng.expovariate(1) * spread / 4) if rng.random() < .2 else 0)
            for _ in range(rng.choice((1, 1, 2, 5))):
                bench.lookup(qp, index)
                bench.queue[-1]["full"] = index
                sent += 1
            if rng.random() < .8:
                head[qp] = max(head[qp], index + 1)
        if rng.random() < lives:
            while bench.outstanding(qp):            # the caller's part of the bargain
                await bench.step()
            await bench.invalidate(qp)
            host.start(qp, rng.choice((0, head[qp] & ~3, 2**32 - 8)))
            head[qp] = host.posted[qp]
        if rng.random() < .6:
            await bench.step()
    await bench.drain()


def random_answers(rng, faults=0.0, latest=300):
    def answer(address, cycle):
        kind = rng.choice(("error", "short", "long")) if rng.random() < faults else "ok"
        return rng.choice((0, 3, 30, rng.randrange(latest + 1))), kind
    return answer


@pytest.mark.parametrize("width, lookups", [(64, 500), (128, 300), (256, 300), (512, 500), (1024, 300)])
def test_contents_and_order(rng, seed, width, lookups):
    async def scenario(bench, host, r):
        await traffic(bench, host, r, lookups=lookups, qps=5)
    bench = simulate(small_cfg(width), scenario, seed, answer=random_answers(rng), gap=.2, room=.8, ar_ready=.7, mix=.4, stray=.1)
    assert bench.results >= lookups and not bench.failed and not bench.errors
    assert bench.overtaken > 10 and bench.strays > 20 and (bench.switched > 20 or width == 1024)


def test_few_lines_collide(rng, seed):
    async def scenario(bench, host, r):
        await traffic(bench, host, r, lookups=400, qps=8)
    cfg = small_cfg(rq_cache_lines=8, rq_entries=8, rq_prefetch_lines=1, reads_outstanding=2)
    assert not simulate(cfg, scenario, seed, answer=random_answers(rng, latest=60)).failed


def test_stale_wqes_are_noticed(seed):
    """Negative control: without the count of posted WQEs the cache gives what was in the ring a lap ago."""
    async def scenario(bench, host, r):
        await traffic(bench, host, r, lookups=1200, qps=5)
    with mutated(LineCache, _covered=lambda self, slot, have: Const(1)):
        with pytest.raises(AssertionError, match="is not"):
            for i in range(4):
                simulate(small_cfg(), scenario, seed + i)


def test_lines_in_use_stay(seed):
    """Negative control: when a miss may take the line of waiting records, they get the other message's WQE, or none."""
    async def scenario(bench, host, r):
        await traffic(bench, host, r, lookups=600, qps=8)
    with mutated(LineCache, _in_use=lambda self, record: Const(0)), pytest.raises(AssertionError, match="is not|stuck"):
        simulate(small_cfg(rq_cache_lines=8, rq_entries=8, rq_prefetch_lines=1), scenario, seed, room=.3)


def test_records_wait_for_their_lines(seed, monkeypatch):
    """Negative control: records that don't."""
    async def scenario(bench, host, r):
        await traffic(bench, host, r, lookups=300, qps=5)
    hasty = mutant("optinic.queues.receive", "(cache.judged.mark == head.mark)", "1")
    monkeypatch.setattr(bench, "ReceiveQueue", hasty.ReceiveQueue)
    with pytest.raises(AssertionError, match="is not"):
        simulate(small_cfg(), scenario, seed)


def test_same_line_number_after_65536_messages(seed):
    async def scenario(bench, host, rng):
        await bench.run(40)
        for index in (0, 65536, 2**32 - 65536):
            host.posted[1] = index
            host.post(1, 4)
            bench.lookup(1, index + 2)
            await bench.drain()
    simulate(small_cfg(), scenario, seed)


def test_sequence_numbers_may_repeat(rng, seed, monkeypatch):
    """With 8-bit sequence numbers, numbers left in the lines look current all the time: slower, never wrong or stuck."""
    for module in (line_cache, receive):
        monkeypatch.setattr(module, "RECORD_BITS", 8)

    async def scenario(bench, host, r):
        await traffic(bench, host, r, lookups=1100, qps=8, lives=.01)
    cfg = small_cfg(512, rq_cache_lines=8, rq_prefetch_lines=3)
    bench = simulate(cfg, scenario, seed, answer=random_answers(rng, latest=30))
    assert not bench.failed and len(bench.asked) > 256


# -- speed ---------------------------------------------------------------------------------------------


def test_one_lookup_a_cycle_on_hits(seed):
    async def scenario(bench, host, rng):
        await bench.run(40)
        for qp in range(4):
            host.start(qp), host.post(qp, 12)
            for index in range(0, 12, 4):
                bench.lookup(qp, index)
        await bench.drain()
        mark, reads = bench.results, len(bench.asked)
        for i in range(200):
            bench.lookup(*((0, i % 12) if i < 60 else (i % 4, i * 7 % 12) if i < 160 else (1, 5)), need=i % 13 != 5)
        await bench.drain()
        times = bench.result_at[mark:]
        assert times[-1] - times[0] == 199 and len(bench.asked) == reads
        assert times[0] - bench.accepted_at[mark] == 8
    simulate(small_cfg(512), scenario, seed)


@pytest.mark.parametrize("count", [8, 24])
def test_misses_overlap(seed, count):
    """Misses on different lines cost one latency together, as many as there are slots for."""
    async def scenario(bench, host, rng):
        await bench.run(150)
        for qp in range(count):
            host.start(qp, 4 * (qp // 16)), host.post(qp, 1)
            bench.lookup(qp, 4 * (qp // 16))
        start = bench.cycle
        await bench.drain()
        assert bench.cycle - start < 300 + 4 * count + 40, bench.cycle - start
    cfg = small_cfg(512, num_qps=32, rq_cache_lines=128, reads_outstanding=32)
    simulate(cfg, scenario, seed, answer=lambda address, cycle: (300, "ok"))


def test_hits_pass_behind_a_miss(seed):
    """A miss holds back the results behind it (they are in order), not the reads that those need."""
    async def scenario(bench, host, rng):
        await bench.run(40)
        for qp in range(3):
            host.start(qp), host.post(qp, 4)
        bench.lookup(0, 0), bench.lookup(1, 0)
        await bench.drain()
        bench.lookup(0, 1), bench.lookup(2, 0), bench.lookup(0, 2), bench.lookup(1, 1)
        start = bench.cycle
        await bench.drain()
        assert bench.cycle - start < 330 and len(bench.asked) == 3
    simulate(small_cfg(512), scenario, seed, answer=lambda address, cycle: (300, "ok"))


def test_ten_million_short_sends_a_second(seed):
    """One QP at 250 MHz, a host latency of 1 us, a driver that reposts 16 receives at a time."""
    async def scenario(bench, host, rng):
        cfg = bench.cfg
        await bench.run(cfg.rq_cache_lines + 10)
        host.start(7), host.post(7, 128)
        for index in range(200):
            if index % 16 == 0 and index >= 32:
                host.post(7, 16)
            bench.lookup(7, index)
            await bench.run(25)
        await bench.drain()
        # Cold: the first line takes one latency; each message takes one beat of the packet buffer's 512.
        assert 250 < bench.latencies[0] < 290 and max(bench.latencies[:40]) < 300
        assert max(bench.latencies[40:]) <= 10, max(bench.latencies[40:])
        assert len(bench.asked) <= 200 / 4 + cfg.rq_prefetch_lines + 1
    simulate(preset("c100g", num_qps=16), scenario, seed, answer=lambda address, cycle: (250, "ok"))


def test_many_queue_pairs_keep_their_lines(seed):
    """With a line for every QP but not for its prefetches, walks don't push out what others still use."""
    async def scenario(bench, host, rng):
        await bench.run(40)
        for qp in range(12):
            host.start(qp), host.post(qp, 32)
        for index in range(16):
            for qp in range(12):
                bench.lookup(qp, index)
                await bench.run(12)
        await bench.drain()
        assert len(bench.asked) < 16 * 12 * .6, len(bench.asked)
    simulate(small_cfg(num_qps=16), scenario, seed)


# -- faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width, lookups", [(64, 300), (256, 300), (512, 400), (1024, 300)])
def test_faulty_answers(rng, seed, width, lookups):
    async def scenario(bench, host, r):
        await traffic(bench, host, r, lookups=lookups, qps=5)
    bench = simulate(small_cfg(width), scenario, seed, answer=random_answers(rng, faults=.3, latest=60), gap=.1, room=.9,
                     mix=.3, stray=.1)
    assert bench.failed > 20 and bench.errors == sum(r.kind != "ok" for r in bench.asked)


@pytest.mark.parametrize("kind", ["error", "short", "long"])
@pytest.mark.parametrize("width", [64, 512])
def test_a_faulty_read_fails_its_lookups_once(seed, kind, width):
    kinds = iter([kind])

    async def scenario(bench, host, rng):
        await bench.run(40)
        host.start(0), host.post(0, 4)
        host.start(1), host.post(1, 4)
        for qp, index in ((0, 0), (0, 1), (1, 0), (0, 3)):
            bench.lookup(qp, index)
        lookups = list(bench.queue)
        await bench.drain()
        assert [e["failed"] for e in lookups] == [1, 1, 0, 1] and bench.errors == 1
        bench.lookup(0, 0), bench.lookup(0, 3)
        await bench.drain()
        assert bench.failed == 3 and len(bench.asked) == 3
    simulate(small_cfg(width, rq_prefetch_lines=0), scenario, seed, answer=lambda a, c: (40, next(kinds, "ok")))


def test_late_answers(rng, seed):
    """Random answers around the limit: what is failed has a reason, what is not failed is right, nothing is stuck."""
    async def scenario(bench, host, r):
        await traffic(bench, host, r, lookups=500, qps=6, lives=.01)
    bench = simulate(small_cfg(), scenario, seed, timeout=150, mix=.3, stray=.05,
                     answer=lambda a, c: (rng.choice((5, 40, 100, 140, 160, 600 if rng.random() < .2 else 20)), "ok"))
    assert 20 < bench.failed < bench.results


def test_a_read_without_an_answer_costs_its_slot_and_nothing_else(seed):
    """Reads are lost one after the other, for good. Each fails the lookups of its own line; all others are served at once,
    and when the line is asked for again, so is that one. With no slot left every miss fails at once."""
    async def scenario(bench, host, rng):
        slots, lost = bench.cfg.reads_outstanding, set()
        bench.answer = lambda address, cycle: (1 << 40 if address in lost else 20, "ok")
        await bench.run(150)
        for qp in range(12):
            host.start(qp), host.post(qp, 32)
        for victim in range(slots - 1):
            line = BASE + (victim * bench.cfg.rq_entries + 28) * 32
            lost.add(line)
            bench.lookup(victim, 29)
            for qp in range(12):
                if qp != victim:
                    bench.lookup(qp, victim + 4)
            lookups, start = list(bench.queue), bench.cycle
            while bench.queue or bench.expected:
                await bench.step()
            assert [e["failed"] for e in lookups] == [1] + 11 * [0] and 150 <= bench.cycle - start < 150 + 80
            lost.remove(line)
            bench.lookup(victim, 30)
            lookups, start = list(bench.queue), bench.cycle
            while bench.queue or bench.expected:
                await bench.step()
            assert bench.cycle - start < 60 and not lookups[0]["failed"]
        lost.add(BASE)
        bench.lookup(0, 1)
        bench.lookup(1, 24), bench.lookup(2, 24), bench.lookup(1, 10)
        lookups, start = list(bench.queue), bench.cycle
        while bench.queue or bench.expected:
            await bench.step()
        assert [e["failed"] for e in lookups] == [1, 1, 1, 0] and bench.cycle - start < 150 + 40
        assert bench.errors == slots == len(bench.reads)
    simulate(small_cfg(512, num_qps=16, rq_prefetch_lines=0, rq_cache_lines=128), scenario, seed, timeout=150)


@pytest.mark.parametrize("ar_ready", [1.0, 0.0])
def test_a_host_that_never_answers(seed, ar_ready):
    async def scenario(bench, host, rng):
        slots = bench.cfg.reads_outstanding
        await bench.run(40)
        for qp in range(12):
            host.start(qp), host.post(qp, 8)
        bench.answer, bench.ar_ready = lambda a, c: (10, "ok"), 1.0
        bench.lookup(11, 0)
        await bench.drain()
        bench.answer, bench.ar_ready = lambda a, c: (1 << 40, "ok"), ar_ready
        bench.on_failed = lambda e: None
        for qp in range(slots):
            bench.lookup(qp, 0)
        bench.lookup(11, 1)
        mark = bench.results
        await bench.run(260)
        assert bench.results - mark == slots + 1 and bench.failed == bench.errors == slots, bench.failed
        assert all(200 < l < 240 for l in bench.latencies[mark:])
        for qp in range(slots, 11):                 # no slot left, and none comes: failed at once; what is here still serves
            bench.lookup(qp, 0)
        bench.lookup(11, 2)
        mark = bench.results
        await bench.run(30)
        assert bench.results - mark == 12 - slots and bench.failed == 11 and bench.errors == slots
        assert not bench.ctx.get(bench.dut.idle)
        # The host comes back. Its old answers are swallowed: the rings have other contents by now.
        for qp in range(slots):
            host.start(qp), host.post(qp, 8)
        bench.answer, bench.ar_ready = lambda a, c: (10, "ok"), 1.0
        for read in bench.reads:
            read.due, read.data = bench.cycle + 30, b"\x5a" * 128
        for _ in range(3):
            for qp in range(slots):
                bench.lookup(qp, 4)
            await bench.run(60)
        await bench.run(600)
        failed = bench.failed
        for qp in range(11):
            bench.lookup(qp, 5)
        await bench.drain()
        assert bench.failed == failed
    simulate(small_cfg(num_qps=16, rq_prefetch_lines=0), scenario, seed, timeout=200)


@pytest.mark.parametrize("ident", [0, 7, 8, 0x80, 0xFF])
def test_unasked_beats_are_swallowed(seed, ident):
    async def scenario(bench, host, rng):
        axi = bench.dut.axi
        await bench.run(40)
        bench.ctx.set(axi.rid, ident)
        for last in (0, 0, 1, 0, 1, 0):
            bench.ctx.set(axi.rlast, last)
            for _ in range(3):
                bench.ctx.set(axi.rvalid, 1)
                assert bench.ctx.get(axi.rready)
                await bench.ctx.tick()
        bench.ctx.set(axi.rvalid, 0)
        for qp in range(4):
            host.start(qp), host.post(qp, 32)
            for index in (0, 7, 9, 15):
                bench.lookup(qp, index)
        await bench.drain()
        assert not bench.failed and not bench.errors and len(bench.asked) > 8
    simulate(small_cfg(), scenario, seed)


# -- invalidation and reset ----------------------------------------------------------------------------


async def lives(bench, host, rng):
    await traffic(bench, host, rng, lookups=350, qps=5, lives=.04)
    assert bench.done > 6


def test_new_lives(rng, seed):
    assert not simulate(small_cfg(), lives, seed, answer=random_answers(rng)).failed


def test_old_lives_are_noticed(seed):
    """Negative control: an invalidation that drops nothing leaves WQEs of the life before."""
    async def nothing(self, qp):
        self.done += 1
    with mutated(Bench, invalidate=nothing), pytest.raises(AssertionError, match="is not"):
        simulate(small_cfg(), lives, seed)


async def lives_shorter_than_a_read(bench, host, rng):
    """Walks are in flight or still to come when the QP ends; its next life has the same messages with other WQEs."""
    await bench.run(40)
    for delay in range(0, 60, 7):
        host.start(3), host.post(3, 32)
        bench.lookup(3, 0)
        while bench.queue or bench.expected:
            await bench.step()
        await bench.run(delay)
        await bench.invalidate(3)
        host.start(3), host.post(3, 12)
        for index in (0, 4, 8):
            bench.lookup(3, index)
        while bench.queue or bench.expected:
            await bench.step()
        await bench.invalidate(3)
    await bench.drain()


@pytest.mark.parametrize("latency", [(5, 5), (50, 50), (5, 90)])
def test_a_read_in_flight_does_not_outlive_its_queue_pair(rng, seed, latency):
    simulate(small_cfg(), lives_shorter_than_a_read, seed, answer=lambda a, c: (rng.randint(*latency), "ok"), mix=.3)


def test_lines_in_flight_are_remembered(seed, monkeypatch):
    """Negative control: an invalidation after which a line that is in flight counts as free."""
    forgetful = mutant("optinic.queues.line_cache", "found.flying & self.sweep_all, 1)", "found.flying, 1)")
    monkeypatch.setattr(receive, "LineCache", forgetful.LineCache)
    with pytest.raises(AssertionError, match="is not|stuck"):
        simulate(small_cfg(), lives_shorter_than_a_read, seed, answer=lambda a, c: (50, "ok"))


def test_invalidation_spares_others(seed):
    async def scenario(bench, host, rng):
        await bench.run(40)
        for qp in range(2):
            host.start(qp), host.post(qp, 4), bench.lookup(qp, 0)
        await bench.drain()
        for i in range(30):
            bench.lookup(1, i % 4)
        await bench.invalidate(0)
        await bench.drain()
        assert len(bench.asked) == 2 and bench.results == 32
    simulate(small_cfg(), scenario, seed)


def test_reset_in_mid_stream(rng, seed):
    async def scenario(bench, host, r):
        for cycles in (30, 200, 333):
            for qp in range(5):
                host.start(qp), host.post(qp, 32)
            for i in range(60):
                bench.lookup(r.randrange(5), r.randrange(32))
            await bench.run(cycles)
            await bench.reset()
            assert not bench.ctx.get(bench.dut.lookup.ready) and not bench.ctx.get(bench.dut.result_valid)
            assert not bench.ctx.get(bench.dut.axi.arvalid)
        await traffic(bench, host, r, lookups=300, qps=5)
    assert not simulate(small_cfg(), scenario, seed, answer=random_answers(rng, latest=100)).failed


@pytest.mark.parametrize("name", ["tiny", "c100g", "scale10k"])
def test_tables_are_what_the_cache_holds(name):
    tables = {t.name: t for t in ReceiveQueue.tables(preset(name))}
    assert tables["recv_wqe_data"].bits == preset(name).rq_cache_lines * 4 * 161
    assert all(t.per == "line" for t in tables.values())
