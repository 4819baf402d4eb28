"""PayloadReader: order, payload, bursts, faults of the host, recovery, reset; and that the bench notices what it should."""

from random import Random

import pytest

import optinic.tx.reader
from tests.formal.mutate import mutant

from .reader_bench import simulate, small_cfg

PAUSES = dict(gap=.25, packet_gap=.2, ar_ready=.7, out_ready=.7, rd_ready=.85, mix=.3, stray=.15)


def any_latency(seed, most=80):
    rng = Random(seed)
    return lambda packet, burst, cycle: (rng.randrange(most), "ok")


def inline_beats(bench):
    return sum(bench.beats_of(p)[1] for p in bench.log if p.inline)


@pytest.mark.parametrize("width, mtu, buffer, packets", [
    (64, 256, 4096, 200), (128, 512, 4096, 200), (512, 1024, 8192, 200), (1024, 1024, 8192, 100)])
def test_random_packets(width, mtu, buffer, packets):
    async def scenario(bench):
        for _ in range(packets):
            bench.send_any()
        await bench.drain()
    bench = simulate(small_cfg(width, mtu_max=mtu, tx_buffer_bytes=buffer), scenario, width,
                     answer=any_latency(width), **PAUSES)
    assert len(bench.log) == packets and not bench.failed
    assert bench.overtaken > packets // 10 and bench.strays > packets // 10
    assert any(p.asked == 2 for p in bench.log) and any(p.reads and p.addr + p.len == 1 << 64 for p in bench.log)
    # R waits for nothing but inline payload, and for the slots to be cleared after reset
    assert sum(not ready for _, ready in bench.r_log) == bench.slots + inline_beats(bench)


def test_every_length():
    async def scenario(bench):
        for size in range(257):
            bench.send(size, bench.rng.getrandbits(12))
        for size in range(33):
            bench.send(size, inline=1)
        await bench.drain()
    bench = simulate(small_cfg(128), scenario, 3, answer=any_latency(3))
    assert [p.len for p in bench.log] == [*range(257), *range(33)] and not bench.failed


def test_three_bursts():
    """On a narrow bus 256 beats end a burst too."""
    async def scenario(bench):
        for addr, size in ((2047, 4096), (8191, 2050), (4096 * 5 - 1, 4096), ((1 << 64) - 4097, 4096), (2048, 4096)):
            bench.send(size, addr)
        await bench.drain()
    bench = simulate(small_cfg(64, mtu_max=4096, tx_buffer_bytes=32768), scenario, 4, mix=.2)
    assert [p.asked for p in bench.log] == [3, 3, 3, 3, 2] and not bench.failed


def test_latencies():
    """Those that the docstring states."""
    async def scenario(bench):
        await bench.run(20)
        for kind in (dict(size=0), dict(size=20, addr=5), dict(size=8, inline=1), dict(size=9, silent=1)):
            packet = bench.send(**kind)
            await bench.drain()
            waits.append((packet.accepted, packet.first_asked, packet.complete, packet.shown))
    waits = []
    simulate(small_cfg(64), scenario, 5, answer=lambda *_: (30, "ok"))
    (a0, _, _, s0), (a1, f1, c1, s1), (a2, _, _, s2), (a3, _, _, s3) = waits
    assert s0 - a0 == s3 - a3 == 4 and f1 - a1 == 4 and s1 - c1 == 3 and s2 - a2 == 5


def faulty(seed, timeout, share=.12):
    """Every kind of fault, a few reads that are never answered, and some late ones."""
    rng, never = Random(seed), []

    def answer(packet, burst, cycle):
        kind, latency = "ok", rng.randrange(60)
        if rng.random() < share:
            kind = rng.choice(("error", "short", "long", "late", "never"))
            if kind == "never" and len(never) >= 3:
                kind = "error"
            if kind == "never":
                never.append(packet)
            if kind == "late":
                kind, latency = "ok", timeout + rng.randrange(2 * timeout)
        return latency, kind
    return answer


@pytest.mark.parametrize("width, packets, seed", [(64, 120, 1), (128, 200, 2), (512, 200, 3)])
def test_faults_of_the_host(width, packets, seed):
    """All packets but the damaged and late ones come through; the payload of none is hurt by the others' answers."""
    async def scenario(bench):
        for _ in range(packets):
            bench.send_any()
        await bench.drain(60_000)
    timeout = 600
    bench = simulate(small_cfg(width), scenario, seed, answer=faulty(seed, timeout), timeout=timeout, **PAUSES)
    assert len(bench.log) == packets and bench.swallowed > 5
    assert packets // 20 < bench.failed < packets // 4
    assert bench.hopeless == 0


def test_faults_are_told_apart():
    """One fault at a time, on the first and the last of two bursts; the next packet is whole."""
    async def scenario(bench):
        for kind in ("error", "short", "long"):
            for burst in (0, 1):
                fault[:] = [kind, burst]
                packet = bench.send(200, 4096 - 100)
                await bench.drain()
                assert packet.failed and packet.asked == 2, fault
                fault.clear()
                packet = bench.send(200, 4096 - 100)
                await bench.drain()
                assert not packet.failed
    fault = []
    simulate(small_cfg(64), scenario, 7, timeout=2000,
             answer=lambda packet, burst, cycle: (9, fault[0] if fault and fault[1] == burst else "ok"))


def release(bench, latency=1):
    """The host answers what it never would have."""
    for bursts in bench.open.values():
        for burst in bursts:
            if burst.kind == "never":
                burst.kind, burst.due = "ok", bench.cycle + latency


def test_reads_that_are_never_answered():
    """Each of N reads is given up in time; then reads fail at once, other packets don't; answers bring the slots back."""
    timeout = 150

    async def scenario(bench):
        n = bench.slots
        lost = [bench.send(40, 100 * i) for i in range(n)]
        await bench.drain()
        before = 0
        for packet in lost:
            assert packet.failed and not bench.hopeless
            due = max(packet.accepted + 1 + timeout, before)
            assert due < packet.shown <= due + 4
            before = packet.shown
        for _ in range(3):
            more = [bench.send(40, 7), bench.send(32, inline=1), bench.send(0), bench.send(9, 3, silent=1), bench.send(256, 4000)]
            await bench.drain()
            assert [p.failed for p in more] == [1, 0, 0, 0, 1] and more[0].shown - more[0].accepted == 4
        assert bench.hopeless == 6 and len(bench.open) == n
        # one of them is answered: from then on reads wait for that slot
        burst = bench.open[0x80 + 5][0]
        burst.kind, burst.due = "ok", bench.cycle
        await bench.until(lambda: len(bench.open) == n - 1)
        await bench.run(4)
        more, bench.answer = [bench.send(40, 7 * i) for i in range(5)], lambda *_: (10, "ok")
        await bench.drain()
        assert not any(p.failed for p in more) and {p.id for p in more} == {0x80 + 5}
        release(bench)
        bench.set_timeout(100_000)
        await bench.until(lambda: not bench.open)
        more = [bench.send_any() for _ in range(60)]
        await bench.drain()
        assert not any(p.failed for p in more) and len({p.id for p in more if p.id}) == n
    bench = simulate(small_cfg(64), scenario, 8, timeout=timeout, answer=lambda *_: (0, "never"))
    assert bench.swallowed > 30


def test_few_slots_many_of_them_retired():
    """With all of them retired now and then; answers come at random, and in the end nothing is left of it."""
    async def scenario(bench):
        for _ in range(150):
            bench.send_any()
        while bench.queue or bench.inside:
            await bench.run(bench.rng.randrange(30, 200))
            if bench.rng.random() < .5:
                release(bench, bench.rng.randrange(1, 40))
        await bench.drain()
        release(bench)
        bench.set_timeout(100_000)
        await bench.until(lambda: not bench.open and not bench.to_ask)
        bench.answer = any_latency(15)
        more = [bench.send_any() for _ in range(30)]
        await bench.drain()
        assert not any(p.failed for p in more)
    rng = Random(15)
    bench = simulate(small_cfg(128, tx_reads_outstanding=4), scenario, 15, timeout=80, **PAUSES | {"gap": 0},
                     answer=lambda *_: (rng.randrange(60), rng.choice(("ok", "ok", "ok", "never"))))
    assert bench.hopeless > 5 and bench.swallowed > 50 and sum(p.reads and not p.failed for p in bench.log) > 20


def test_only_the_late_read_fails():
    """Not the one behind it, whose time isn't over when it becomes the oldest; nor one that is complete by then, though late."""
    timeout = 100

    async def scenario(bench):
        lost, late = bench.send(9), bench.send(10)
        await bench.run(timeout - 10)
        young = bench.send(11)
        await bench.drain()
        assert [p.failed for p in (lost, late, young)] == [1, 0, 0] and young.shown - lost.shown > 10
        assert late.complete > late.accepted + 1 + timeout
    latency = {9: (0, "never"), 10: (timeout - 2, "ok"), 11: (60, "ok")}
    options = dict(timeout=timeout, answer=lambda packet, *_: latency[packet.len])
    simulate(small_cfg(64), scenario, 14, **options)
    right = "aged.eq(present & oldest.read & ~take)"
    careless = mutant("optinic.tx.reader", right, right.replace(" & ~take", "")).PayloadReader
    with pytest.raises(AssertionError, match="failed for nothing"):
        simulate(small_cfg(64), scenario, 14, **options, reader=careless)


def test_complete_packets_wait_without_failing():
    """While the frame builder takes nothing, as on a slow or paused cable, for many times the timeout of a read."""
    timeout = 100

    async def scenario(bench):
        bench.out_ready = 0.0
        packets = [bench.send(20 + i) for i in range(bench.slots)]
        await bench.run(8 * timeout)
        bench.out_ready = 1.0
        await bench.drain()
        assert not any(p.failed for p in packets) and not bench.errors
    options = dict(timeout=timeout, answer=lambda *_: (30, "ok"))
    simulate(small_cfg(64), scenario, 15, **options)
    right = "(age >= self.dma_timeout) & ~done"
    hasty = mutant("optinic.tx.reader", right, right.replace("~done", "~take")).PayloadReader
    with pytest.raises(AssertionError, match="failed for nothing"):
        simulate(small_cfg(64), scenario, 15, **options, reader=hasty)


def test_address_channel_stands_still():
    """An AR that takes nothing doesn't hold the packets up for longer than the timeout; later it all comes right."""
    timeout = 150

    async def scenario(bench):
        bench.ar_ready = 0.0
        packets = [bench.send(60, 4096 - 30) for _ in range(bench.slots + 4)]
        await bench.drain()
        assert all(p.failed for p in packets) and max(p.shown for p in packets) < 40 + timeout + 4 * len(packets)
        bench.ar_ready = 1.0
        bench.set_timeout(100_000)
        await bench.until(lambda: not bench.to_ask and not bench.open)
        more = [bench.send_any() for _ in range(30)]
        await bench.drain()
        assert not any(p.failed for p in more)
    bench = simulate(small_cfg(64), scenario, 9, timeout=timeout)
    assert bench.hopeless == 4 and bench.swallowed == 2 * 4 * bench.slots


def test_buffer_full():
    """While the frame builder reads nothing, only so much is asked for as the buffer holds."""
    async def scenario(bench):
        bench.rd_ready = 0.0
        packets = [bench.send(*args) for args in [(256, 8), (250, 5), (32, 0)] * 10]
        packets += [bench.send(20, inline=1) for _ in range(40)]
        await bench.run(1500)
        beats = sum(bench.beats_of(p)[1] for p in packets if p.first_asked)
        room = bench.cfg.tx_buffer_beats
        assert room - 33 < beats <= room and bench.queue
        bench.rd_ready = .5
        await bench.drain()
        assert len(bench.log) == 70 and not bench.failed
    simulate(small_cfg(64, tx_reads_outstanding=64), scenario, 10, answer=any_latency(10))


@pytest.mark.parametrize("width", [64, 512])
def test_reset_in_mid_stream(width):
    async def scenario(bench):
        for _ in range(5):
            for _ in range(60):
                bench.send_any()
            await bench.run(bench.rng.randrange(3, 400))
            await bench.reset()
        for _ in range(60):
            bench.send_any()
        await bench.drain()
    timeout = 200
    bench = simulate(small_cfg(width), scenario, 11, answer=faulty(11, timeout, .05), timeout=timeout, **PAUSES)
    assert len(bench.log) > 60


# -- negative controls ---------------------------------------------------------------------------------

MUTATIONS = {
    "late beats are stored": ("read_slots", "mine & ~swallow & ~at.wrong", "mine & ~at.wrong"),
    "stored behind the end": ("read_slots", "mine & ~swallow & ~at.wrong", "mine & ~swallow"),
    "errors don't count": ("read_slots", "spoilt.eq(at.wrong | error)", "spoilt.eq(at.wrong)"),
    "RLAST doesn't count": ("read_slots", "| (ends != last)", ""),
    "strays are taken": ("read_slots", "ours & (turn != read(over, slot).turn)", "ours"),
    "retired slots are used": ("reader", "read.eq(reads & ~slots.next_owed), void.eq(reads & slots.next_owed & ~dead)",
                               "read.eq(reads)"),
    "no room is needed": ("reader", "return ~left[-1]", "return 1"),
    "given up too early": ("reader", "(age >= self.dma_timeout)", "(age >= self.dma_timeout - 40)"),
    "second burst misplaced": ("read_bursts", "Mux(later, 0, run.index)", "run.index"),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_mutations_are_noticed(what, monkeypatch):
    file, old, new = MUTATIONS[what]
    module = mutant(f"optinic.tx.{file}", old, new)
    for name in ("ReadSlots", "ReadBursts", "PayloadReader"):
        if hasattr(module, name):
            monkeypatch.setattr(optinic.tx.reader, name, getattr(module, name))

    async def scenario(bench):
        for _ in range(500):
            bench.send_any(inline=.2)
        await bench.drain()
    timeout = 400
    with pytest.raises(AssertionError, match="cycle|not so after"):
        simulate(small_cfg(128), scenario, 12, answer=faulty(12, timeout, .25), timeout=timeout,
                 **PAUSES | {"rd_ready": .5}, reader=optinic.tx.reader.PayloadReader)


def test_inline_that_is_shown_too_early_is_noticed():
    async def scenario(bench):
        for _ in range(100):
            bench.send(16, inline=1)
        await bench.drain()
    simulate(small_cfg(128), scenario, 13, packet_gap=.3)
    early = mutant("optinic.tx.reader", "present.eq(head != visible)", "present.eq(head != filled)").PayloadReader
    with pytest.raises(AssertionError, match="wrong payload"):
        simulate(small_cfg(128), scenario, 13, packet_gap=.3, reader=early)
