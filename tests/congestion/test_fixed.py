"""The fixed controller: what the driver says, and nothing else."""

from amaranth.sim import Simulator

from optinic.config import preset
from optinic.congestion.fixed import FixedRate
from optinic.congestion.interface import EventKind
from sim.models.congestion import FixedRateModel


def test_against_the_model(rng):
    dut, model = FixedRate(preset("tiny")), FixedRateModel()
    told, paces = {}, 0

    async def bench(ctx):
        nonlocal paces
        expected = False
        for _ in range(1500):
            kind, qp, value = rng.choice(list(EventKind)), rng.randrange(16), rng.getrandbits(32)
            valid = rng.random() < .8
            ctx.set(dut.events.payload, {"kind": kind, "qp": qp, "value": value, "bytes": rng.getrandbits(14)})
            ctx.set(dut.events.valid, valid)
            assert ctx.get(dut.events.ready) and ctx.get(dut.rate.valid) == expected
            await ctx.tick()
            expected = valid and kind in (EventKind.SET, EventKind.RESET)
            if valid and kind == EventKind.SET:
                model.set(qp, value)
            if valid and kind == EventKind.RESET:
                model.reset(qp)
            if ctx.get(dut.rate.valid):
                rate = ctx.get(dut.rate.payload)
                told[rate.qp] = rate.interval
            for qp in range(16):
                assert told.get(qp, 0) == model.interval(qp)
            paces += sum(told.values()) > 0
        assert paces > 500 and FixedRate.tables(preset("tiny")) == []

    sim = Simulator(dut)
    sim.add_clock(4e-9)
    sim.add_testbench(bench)
    sim.run()
