"""What the benches share: clock and reset, frames in and out. Everything moves on the clock's rising edge and samples there,
so a bench needs no sleeps and behaves alike on every simulator."""

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from sim.runner import bench_parameters

__all__ = ["begin", "config", "reset", "cycles", "until", "FrameSource", "FrameSink", "StreamSink", "StreamSource", "unpack"]


def config():
    """The NicConfig of this bench."""
    from optinic.config import preset
    parameters = bench_parameters()
    return preset(parameters.get("preset", "tiny"), **parameters.get("knobs", {}))


async def begin(dut):
    """Start the clock, hold every input at 0, reset. Returns the random numbers of this run."""
    parameters = bench_parameters()
    for name, _, is_input in parameters["ports"]:
        if is_input:
            getattr(dut, name).value = 0
    cocotb.start_soon(Clock(dut.clk, 4, "ns").start())
    await reset(dut)
    return random.Random(parameters["seed"])


async def reset(dut, n=3):
    dut.rst.value = 1
    await cycles(dut, n)
    dut.rst.value = 0
    await cycles(dut, 1)


async def cycles(dut, n):
    for _ in range(n):
        await RisingEdge(dut.clk)


async def until(dut, condition, limit=20_000, what="the end"):
    """Wait for a condition; a bench that hangs says for what."""
    for _ in range(limit):
        if condition():
            return
        await RisingEdge(dut.clk)
    raise AssertionError(f"waited {limit} cycles for {what}")


def unpack(layout, word):
    """{field: number} of a flattened struct of plain fields, given as one number."""
    from amaranth.hdl import Shape
    return {name: word >> field.offset & (1 << Shape.cast(field.shape).width) - 1 for name, field in layout}


class StreamSource:
    """Drives a valid/ready port from a queue of dicts {suffix: number}, with idle cycles at random. A reset empties the queue."""

    def __init__(self, dut, prefix, rng, pause=0.0, valid="valid", ready="ready"):
        self.dut, self.prefix, self.rng, self.pause, self.queue = dut, prefix, rng, pause, []
        self.valid, self.ready = getattr(dut, prefix + valid), getattr(dut, prefix + ready)
        self.accepted = 0
        cocotb.start_soon(self._run())

    @property
    def idle(self):
        return not self.queue

    async def _run(self):
        showing = False
        while True:
            await RisingEdge(self.dut.clk)
            if self.dut.rst.value:
                showing = False
                self.queue.clear()
                self.valid.value = 0
                continue
            if showing and self.ready.value:
                self.queue.pop(0)
                self.accepted += 1
                showing = False
            if not showing and self.queue and self.rng.random() >= self.pause:
                for suffix, value in self.queue[0].items():
                    getattr(self.dut, self.prefix + suffix).value = value
                showing = True
            self.valid.value = int(showing)


class StreamSink:
    """Accepts a valid/ready port with pauses at random; keeps {suffix: number} of each transfer, and watches that the
    payload stays while it waits."""

    def __init__(self, dut, prefix, rng, suffixes, pause=0.0, valid="valid", ready="ready"):
        self.dut, self.rng, self.pause, self.got = dut, rng, pause, []
        self.valid, self.ready = getattr(dut, prefix + valid), getattr(dut, prefix + ready)
        self.signals = {s: getattr(dut, prefix + s) for s in suffixes if hasattr(dut, prefix + s)}
        self.prefix = prefix
        cocotb.start_soon(self._run())

    async def _run(self):
        waiting = None
        while True:
            await RisingEdge(self.dut.clk)
            if self.dut.rst.value:
                waiting = None
                self.ready.value = 0
                continue
            if self.valid.value:
                now = {s: int(signal.value) for s, signal in self.signals.items()}
                assert waiting in (None, now), f"{self.prefix}: payload changed before it was accepted"
                waiting = now
                if self.ready.value:
                    self.got.append(now)
                    waiting = None
            else:
                assert waiting is None, f"{self.prefix}: valid withdrawn before it was accepted"
            self.ready.value = int(self.rng.random() >= self.pause)


class FrameSource(StreamSource):
    """Frames into an AXI-Stream port; lanes beyond a frame's end carry rubbish."""

    def __init__(self, dut, prefix, rng, pause=0.0):
        super().__init__(dut, prefix, rng, pause, "tvalid", "tready")
        self.lanes = len(getattr(dut, prefix + "tkeep"))

    def send(self, frame, user=0):
        n = self.lanes
        for at in range(0, len(frame), n):
            part, last = frame[at:at + n], at + n >= len(frame)
            data = part + self.rng.randbytes(n - len(part))
            self.queue.append({"tdata": int.from_bytes(data, "little"), "tkeep": (1 << len(part)) - 1, "tlast": int(last),
                               "tuser": int(last and user)})


class FrameSink(StreamSink):
    """Frames out of an AXI-Stream port."""

    def __init__(self, dut, prefix, rng, pause=0.0):
        super().__init__(dut, prefix, rng, ("tdata", "tkeep", "tlast"), pause, "tvalid", "tready")
        self.lanes = len(getattr(dut, prefix + "tkeep"))

    def frames(self):
        found, part = [], b""
        for beat in self.got:
            part += beat["tdata"].to_bytes(self.lanes, "little")[:beat["tkeep"].bit_count()]
            if beat["tlast"]:
                found.append(part)
                part = b""
        return found
