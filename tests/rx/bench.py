"""Sends frames through an Ingress and holds its descriptors and its buffer against the reference."""

import random

from amaranth.sim import Simulator

from optinic.abi.verdicts import REASON
from optinic.rx.ingress import Ingress

from .reference import judge
from .reference_rc import judge_rc

__all__ = ["Bench", "check", "beats_of"]

_WORD = {number: (None if word == "none" else word) for word, number in REASON.items()}


def beats_of(frame, cfg):
    return max(1, -(-len(frame) // cfg.beat_bytes))


class Bench:
    """One Ingress with a MAC that sends `frames` (bytes, or (bytes, damaged)) and a reader that takes every descriptor,
    reads the frame's beats and frees them. `results` has (descriptor as dict, the frame's bytes in the buffer)."""

    def __init__(self, cfg, frames, *, seed=1, gap=0.0, stall=0.0, hold=1, dut=None, read=True, budget=None):
        self.cfg, self.frames, self.rng = cfg, [f if isinstance(f, tuple) else (f, False) for f in frames], random.Random(seed)
        self.gap, self.stall, self.hold, self.read = gap, stall, hold, read
        self.dut = dut or Ingress(cfg)
        self.results, self.overflows, self.sent_at, self.offered_at = [], 0, [], []
        self.budget = budget or 2000 + 6 * sum(beats_of(f, cfg) + 40 for f, _ in self.frames)
        self.cycle = 0
        self.sending = True

    async def send_frame(self, ctx, frame, damaged=False, upto=None):
        """Drives one frame, or its first `upto` beats; returns after the last one was accepted."""
        mac, n = self.dut.mac, self.cfg.beat_bytes
        beats = beats_of(frame, self.cfg)
        for i in range(beats if upto is None else upto):
            while self.gap and self.rng.random() < self.gap:
                ctx.set(mac.tvalid, 0)
                await ctx.tick()
            part = frame[i * n:(i + 1) * n]
            last = i == beats - 1
            ctx.set(mac.tvalid, 1)
            ctx.set(mac.tdata, int.from_bytes(part + self.rng.randbytes(n - len(part)), "little"))
            ctx.set(mac.tkeep, (1 << len(part)) - 1)
            ctx.set(mac.tlast, last)
            ctx.set(mac.tuser, int(damaged and last))
            await ctx.tick().until(mac.tready)

    async def mac(self, ctx):
        ctx.set(self.dut.enable, 1)
        ctx.set(self.dut.hold, self.hold)
        for frame, damaged in self.frames:
            await self.send_frame(ctx, frame, damaged)
            self.sent_at.append(self.cycle)
        ctx.set(self.dut.mac.tvalid, 0)
        self.sending = False

    async def clock(self, ctx):
        while True:
            await ctx.tick()
            self.cycle += 1
            self.overflows += ctx.get(self.dut.overflow)
            assert self.cycle < self.budget, f"no end after {self.cycle} cycles: {len(self.results)} of {len(self.frames)} frames"

    async def reader(self, ctx):
        dut, pointer, size = self.dut, 0, self.cfg.rx_buffer_beats
        while self.sending or not ctx.get(dut.idle):
            ctx.set(dut.descriptors.ready, int(self.rng.random() >= self.stall))
            _, _, valid, ready, payload = await ctx.tick().sample(
                dut.descriptors.valid, dut.descriptors.ready, dut.descriptors.payload)
            if not (valid and ready):
                continue
            self.offered_at.append(self.cycle)
            ctx.set(dut.descriptors.ready, 0)
            beats, data = payload.beats, []
            if self.read:
                for i in range(beats + 2):
                    ctx.set(dut.rd_addr, (pointer + i) % size)
                    if i >= 2:
                        data.append(ctx.get(dut.rd_data))
                    await ctx.tick()
            pointer = (pointer + beats) % (2 * size)
            ctx.set(dut.rd_pointer, pointer)
            self.results.append((payload, b"".join(d.to_bytes(self.cfg.beat_bytes, "little") for d in data)))

    def run(self):
        sim = Simulator(self.dut)
        sim.add_clock(1e-8)
        sim.add_testbench(self.mac)
        sim.add_testbench(self.reader)
        sim.add_testbench(self.clock, background=True)
        sim.run()
        return self.results


def compare(payload, stored, frame, damaged, cfg, label=""):
    want = (judge_rc if cfg.rc else judge)(frame, cfg, damaged)
    got = {name: getattr(payload, name) for name in want}
    got["reason"] = _WORD[got["reason"]]
    assert got == want, f"{label}: {len(frame)} bytes {frame[:120].hex()}:\n  got  {got}\n  want {want}"
    beats = min(beats_of(frame, cfg), cfg.max_frame_beats)
    assert payload.beats == beats, f"{label}: {payload.beats} beats, not {beats}"
    if stored:
        keep = min(len(frame), beats * cfg.beat_bytes)
        assert stored[:keep] == frame[:keep], f"{label}: the buffer differs from the frame"


def check(cfg, frames, **options):
    """Every frame gets the reference's verdict and is whole in the buffer."""
    bench = Bench(cfg, frames, **options)
    results = bench.run()
    assert len(results) == len(bench.frames), f"{len(results)} descriptors for {len(bench.frames)} frames"
    for i, ((payload, stored), (frame, damaged)) in enumerate(zip(results, bench.frames)):
        compare(payload, stored, frame, damaged, cfg, f"frame {i}")
    return bench
