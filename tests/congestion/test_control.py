"""Congestion control as a whole: what its callers are promised when the controller is busy."""

from amaranth.sim import Simulator
import pytest

from optinic.abi.congestion import DCQCN
from optinic.config import preset
from optinic.congestion import control

from ..formal.mutate import mutant

CFG = preset("tiny")


def still_paced(module, qps, others, spacing):
    """The QPs that are paced after all of them have been slowed down and then given a new life, `spacing` cycles apart, while
    the controller has CNPs of others to deal with."""
    dut, paced = module.CongestionControl(CFG), []

    async def bench(ctx):
        time = 0

        async def tick(cycles=1):
            nonlocal time
            for _ in range(cycles):
                ctx.set(dut.time, time)
                await ctx.tick()
                time += 8

        async def pulse(port, qp, then=0):
            ctx.set(port.valid, 1)
            ctx.set(port.payload, {"qp": qp} if port is not dut.restart else qp)
            await tick()
            ctx.set(port.valid, 0)
            await tick(then)

        for name, param in DCQCN.items():
            ctx.set(getattr(dut, name), param.default)
        ctx.set(dut.line_rate, 8000)
        await tick()
        while ctx.get(dut.clearing):
            await tick()
        for qp in qps:
            await pulse(dut.cnp_received, qp, 60)
        for i in range(60):
            await pulse(dut.cnp_received, others[i % len(others)])
        for qp in qps:
            await pulse(dut.restart, qp, spacing - 1)
        for _ in range(4000):
            await tick()
        assert ctx.get(dut.idle) == 3
        for qp in qps:
            ctx.set(dut.charge.payload, {"qp": qp, "bytes": 9000})
            ctx.set(dut.charge.valid, 1)
            await tick()
            ctx.set(dut.charge.valid, 0)
            await tick(30)
            ctx.set(dut.pace_look, 1)
            ctx.set(dut.pace_qp, qp)
            await tick()
            ctx.set(dut.pace_look, 0)
            await tick(4)
            if ctx.get(dut.wait):
                paced.append(qp)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
    return paced


def test_no_new_life_is_forgotten():
    """Eight restarts at the least distance that the scheduler keeps, while events wait: each of the QPs is free of its past."""
    assert still_paced(control, range(8), range(8, 16), 5) == []


@pytest.mark.parametrize("old, new", [("restarts = StreamFifo(cfg.qp_bits, 8)", "restarts = StreamFifo(cfg.qp_bits, 1)"),
                                      ("EventKind.RESET", "EventKind.SENT")])
def test_a_forgotten_life_is_seen(old, new):
    assert still_paced(mutant(control.__name__, old, new), range(8), range(8, 16), 5) != []
