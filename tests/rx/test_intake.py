"""Which frames enter: room, overflow, hold, enable, reset in the middle of a frame."""

import random

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.config import preset

from .bench import Bench, beats_of, compare
from .reference import UC_SEND, UC_WRITE, build

TINY = preset("tiny")


def numbered(rng, count, sizes):
    return [build(UC_WRITE, rng.randbytes(rng.choice(sizes)), psn=i) for i in range(count)]


def accepted(bench):
    """Checks every descriptor against the frame that it must be of; returns those frames' numbers."""
    numbers = []
    for payload, stored in bench.results:
        numbers.append(payload.psn)
        compare(payload, stored, bench.frames[payload.psn][0], False, bench.cfg)
    assert numbers == sorted(set(numbers))
    return numbers


@pytest.mark.parametrize("width,sizes", [(64, [700, 900, 1000]), (64, [0, 1, 30]), (512, [0, 3, 300])])
def test_overflow_is_exact_when_nobody_reads(width, sizes):
    """Frames enter as long as a largest frame fits and a descriptor has its place, not one fewer, and none after that."""
    cfg, rng = TINY.with_(data_width=width), random.Random(1)
    bench = Bench(cfg, numbered(rng, 60 if sizes[0] < 100 else 25, sizes), hold=0, budget=100000)

    async def late_reader(ctx):
        while bench.sending:
            await ctx.tick()
        await Bench.reader(bench, ctx)
    bench.reader = late_reader
    bench.run()

    free, want = cfg.rx_buffer_beats, []
    for i, (frame, _) in enumerate(bench.frames):
        if free >= cfg.max_frame_beats and len(want) < cfg.rx_frames:
            free -= beats_of(frame, cfg)
            want.append(i)
    assert accepted(bench) == want
    assert bench.overflows == len(bench.frames) - len(want) > 0


@pytest.mark.parametrize("width,stall", [(64, 0.995), (512, 0.95)])
def test_overflow_with_a_slow_reader(width, stall):
    """Whole frames are lost, each with one pulse, and the others are whole."""
    rng = random.Random(2)
    bench = Bench(TINY.with_(data_width=width), numbered(rng, 40, [0, 200, 700]), hold=0, stall=stall, budget=200000)
    bench.run()
    numbers = accepted(bench)
    assert 0 < len(numbers) < 40
    assert bench.overflows == 40 - len(numbers)


def watched(bench, seen):
    """Adds up cycles in which the frame's first beat, and a later one, was held."""
    async def watch(ctx):
        within, mac = False, bench.dut.mac
        while True:
            _, _, valid, ready, last = await ctx.tick().sample(mac.tvalid, mac.tready, mac.tlast)
            if valid and not ready:
                seen["within" if within else "before"] += 1
            if valid and ready:
                within = not last
    return watch


@pytest.mark.parametrize("width,stall", [(64, 0.995), (512, 0.95)])
def test_hold_loses_nothing(width, stall):
    rng, seen = random.Random(3), {"within": 0, "before": 0}
    bench = Bench(TINY.with_(data_width=width), numbered(rng, 30, [0, 300, 900]), hold=1, stall=stall, budget=200000)
    clock, watch = bench.clock, watched(bench, seen)

    def run():
        sim = Simulator(bench.dut)
        sim.add_clock(1e-8)
        for testbench, background in ((bench.mac, False), (bench.reader, False), (clock, True), (watch, True)):
            sim.add_testbench(testbench, background=background)
        sim.run()
    run()
    assert accepted(bench) == list(range(30))
    assert bench.overflows == 0 and seen["within"] == 0 < seen["before"]


def run_script(dut, script):
    """Runs testbench `script`; returns (payload, cycle) of every descriptor, all taken at once, and the overflow pulses."""
    taken, pulses = [], []

    async def take(ctx):
        ctx.set(dut.descriptors.ready, 1)
        while True:
            _, _, valid, payload, overflow = await ctx.tick().sample(
                dut.descriptors.valid, dut.descriptors.payload, dut.overflow)
            pulses.append(overflow)
            if valid:
                taken.append(payload)

    reset = Signal()
    sim = Simulator(ResetInserter(reset)(dut))
    sim.add_clock(1e-8)

    async def main(ctx):
        await script(ctx, reset)
        ctx.set(dut.mac.tvalid, 0)
        for _ in range(30):
            await ctx.tick()
    sim.add_testbench(main)
    sim.add_testbench(take, background=True)
    sim.run()
    return taken, sum(pulses)


@pytest.mark.parametrize("width", [64, 512])
def test_enable_acts_between_frames(width):
    cfg = TINY.with_(data_width=width)
    bench = Bench(cfg, [])
    frames = [build(UC_SEND, bytes(200), psn=i) for i in range(6)]
    beats = beats_of(frames[0], cfg)

    async def script(ctx, reset):
        for i, enabled in enumerate((0, 1, 1, 0, 1, 0)):
            ctx.set(bench.dut.enable, enabled)
            ctx.set(bench.dut.hold, i % 2)
            await bench.send_frame(ctx, frames[i], upto=beats - 2)
            ctx.set(bench.dut.enable, not enabled)          # in the middle of the frame: no matter
            await rest(ctx, bench, frames[i], beats - 2)
    taken, overflows = run_script(bench.dut, script)
    assert [d.psn for d in taken] == [1, 2, 4] and not overflows
    assert all(d.reason == 0 for d in taken)


async def rest(ctx, bench, frame, sent):
    """The beats of `frame` from number `sent` on."""
    n = bench.cfg.beat_bytes
    await bench.send_frame(ctx, frame[sent * n:])


@pytest.mark.parametrize("width", [64, 128, 512])
def test_reset_in_the_middle_of_a_frame(width):
    """At every beat the next frame is whole, whatever the MAC does with the one that was cut."""
    cfg = TINY.with_(data_width=width)
    bench = Bench(cfg, [])
    dut = bench.dut
    cut, after = build(UC_WRITE, bytes(range(150)), v6=True, vlan=1, psn=1), build(UC_WRITE, bytes(30), psn=2)
    want = []       # frames whose descriptors must come, in order

    async def script(ctx, reset):
        ctx.set(dut.enable, 1)
        ctx.set(dut.hold, 1)
        for sent in range(1, beats_of(cut, cfg), 1 if width > 64 else 3):
            for goes_on in ("next frame", "rest swallowed", "rest taken"):
                await bench.send_frame(ctx, cut, upto=sent)
                ctx.set(dut.mac.tvalid, 0)
                ctx.set(reset, 1)
                await ctx.tick()
                ctx.set(reset, 0)
                assert ctx.get(dut.idle)
                if goes_on != "next frame":
                    ctx.set(dut.enable, goes_on == "rest taken")
                    await rest(ctx, bench, cut, sent)
                    ctx.set(dut.enable, 1)
                    if goes_on == "rest taken":
                        want.append(cut[sent * cfg.beat_bytes:])
                await bench.send_frame(ctx, after)
                want.append(after)
                ctx.set(dut.mac.tvalid, 0)
                await ctx.tick().repeat(20)
    taken, _ = run_script(dut, script)
    assert len(taken) == len(want)
    for payload, frame in zip(taken, want):
        compare(payload, b"", frame, False, cfg)


def test_idle():
    """Low from a frame's first beat to its descriptor's departure."""
    bench = Bench(TINY, [])
    dut, frame = bench.dut, build()

    async def script(ctx):
        ctx.set(dut.enable, 1)
        assert ctx.get(dut.idle)
        await bench.send_frame(ctx, frame, upto=1)
        for _ in range(3):
            ctx.set(dut.mac.tvalid, 0)
            assert not ctx.get(dut.idle)
            await ctx.tick()
        await rest(ctx, bench, frame, 1)
        ctx.set(dut.mac.tvalid, 0)
        while not ctx.get(dut.descriptors.valid):
            assert not ctx.get(dut.idle)
            await ctx.tick()
        for _ in range(20):
            assert not ctx.get(dut.idle) and ctx.get(dut.descriptors.valid)
            await ctx.tick()
        ctx.set(dut.descriptors.ready, 1)
        await ctx.tick().repeat(3)
        assert ctx.get(dut.idle) and not ctx.get(dut.descriptors.valid)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(script)
    sim.run()
