"""FixedPipe: values arrive at the stage that asks for them, through registers or through rings."""

import random

import pytest
from amaranth.hdl import Fragment, Module, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from optinic.rx.pipeline import Delays, FixedPipe


class Sum(wiring.Component):
    """2 a + b, four cycles later."""
    a: In(8)
    b: In(8)
    o: Out(12)

    def elaborate(self, platform):
        m = Module()
        p = FixedPipe(m)
        p.put("a", 1, self.a)
        p.put("b", 1, self.b)
        p.put("sum", 3, p.get("a", 2) + p.get("b", 2))
        v = p.at(4)
        m.d.comb += self.o.eq(v.sum + v.a)
        return m


def test_delays():
    dut, out = Sum(), []

    async def drive(ctx):
        for i in range(30):
            ctx.set(dut.a, i)
            ctx.set(dut.b, 100 + i)
            out.append(ctx.get(dut.o))
            await ctx.tick()
    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(drive)
    sim.run()
    assert out[4:] == [3 * i + 100 for i in range(26)]


TAPS = (1, 2, Delays.FAR, 11, 11 + Delays.FAR, 33)     # by one, nearly far, far, and further than a ring of 16


class Far(wiring.Component):
    """Two values of one stage and one of another, at several later ones."""

    def __init__(self):
        self.stages = {(name, stage): Signal(width, name=f"{name}_at{stage}")
                       for name, width, first in (("a", 7, 0), ("b", 30, 0), ("c", 1, 3)) for stage in (first + tap for tap in TAPS)}
        super().__init__({"a": In(7), "b": In(30), "c": In(1)})

    def elaborate(self, platform):
        m = Module()
        p = FixedPipe(m)
        p.take("a", 0, self.a)
        p.take("b", 0, self.b)
        p.take("c", 3, self.c)
        m.d.comb += [signal.eq(p.get(name, stage)) for (name, stage), signal in reversed(self.stages.items())]
        return m


def _far(seed):
    """Whether each tap shows what its input was, all its cycles ago; resets in the midst, after which what came before doesn't count."""
    dut, reset, rng, fine = Far(), Signal(), random.Random(seed), True
    first = {"a": 0, "b": 0, "c": 3}

    async def drive(ctx):
        nonlocal fine
        past, since = [], 0
        for cycle in range(400):
            now = {name: rng.getrandbits(len(getattr(dut, name))) for name in first}
            for name, value in now.items():
                ctx.set(getattr(dut, name), value)
            past.append(now)
            resets = cycle in (150, 151, 222)
            ctx.set(reset, resets)
            since = 0 if resets else since + 1
            for (name, stage), signal in dut.stages.items():
                ago = stage - first[name]
                if ago < since:             # a ring that was reset finds its place anew
                    fine &= ctx.get(signal) == past[-1 - ago][name]
            await ctx.tick()
    sim = Simulator(ResetInserter(reset)(dut))
    sim.add_clock(1e-8)
    sim.add_testbench(drive)
    sim.run()
    return fine


@pytest.mark.parametrize("seed", range(3))
def test_far_values_come_in_their_cycle(seed):
    assert _far(seed)


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_ring_of_another_length_is_noticed(monkeypatch, wrong):
    ring = Delays._ring
    monkeypatch.setattr(Delays, "_ring", staticmethod(lambda m, cycles, *ends: ring(m, cycles + wrong, *ends)))
    assert not _far(0)


def test_misuse_is_refused():
    m = Module()
    p = FixedPipe(m)
    p.put("x", 2, Signal(3))
    with pytest.raises(AssertionError, match="from stage 2 on"):
        p.get("x", 1)
    with pytest.raises(AssertionError, match="put twice"):
        p.put("x", 3, Signal(3))
    Fragment.get(m, None)      # elaborated, or it is reported as unused
