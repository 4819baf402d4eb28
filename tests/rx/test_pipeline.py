"""FixedPipe: values arrive at the stage that asks for them."""

import pytest
from amaranth.hdl import Fragment, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from optinic.rx.pipeline import FixedPipe


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


def test_misuse_is_refused():
    m = Module()
    p = FixedPipe(m)
    p.put("x", 2, Signal(3))
    with pytest.raises(AssertionError, match="from stage 2 on"):
        p.get("x", 1)
    with pytest.raises(AssertionError, match="put twice"):
        p.put("x", 3, Signal(3))
    Fragment.get(m, None)      # elaborated, or it is reported as unused
