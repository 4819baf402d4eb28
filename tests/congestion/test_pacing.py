"""Pacer and timing wheel together, with a sender that does what the card's send queue does: look, then send or park."""

from amaranth.hdl import Module
from amaranth.sim import Simulator

from optinic.config import preset
from optinic.congestion.pacer import Pacer, PARAMS
from optinic.congestion.wheel import TimingWheel
from sim.models.congestion import interval_of

CFG = preset("tiny", data_width=512, clock_hz=250_000_000)
RATES = {0: 2_000, 3: 5_000, 5: 12_000, 6: 20_000, 9: 25_000, 15: 30_000}
SIZE = 4200


def test_rates_hold_side_by_side(rng):
    """Six QPs wait on the wheel between their packets; each one's rate holds to the packet, though a bucket is coarse."""
    pacer, wheel, m = Pacer(CFG), TimingWheel(CFG), Module()
    m.submodules.pacer, m.submodules.wheel = pacer, wheel
    time, sent, start = 0, dict.fromkeys(RATES, 0), None

    async def tick(ctx, cycles=1):
        nonlocal time
        for _ in range(cycles):
            await ctx.tick()
            time += 4
            ctx.set(pacer.time, time)
            ctx.set(wheel.time, time)

    async def bench(ctx):
        nonlocal start
        ctx.set(pacer.burst, PARAMS["burst"].default)
        while ctx.get(pacer.clearing) or ctx.get(wheel.clearing):
            await tick(ctx)
        for qp, rate in RATES.items():
            ctx.set(pacer.rate.payload, {"qp": qp, "interval": interval_of(rate)})
            ctx.set(pacer.rate.valid, 1)
            ctx.set(pacer.reset, {"valid": 1, "qp": qp})
            await tick(ctx)
            ctx.set(pacer.rate.valid, 0)
            ctx.set(pacer.reset.valid, 0)
            await tick(ctx, 7)
        active, start = list(RATES), time
        while time < start + 90_000:
            ctx.set(wheel.due.ready, 1)
            if ctx.get(wheel.due.valid):
                active.append(ctx.get(wheel.due.payload.qp))
            await tick(ctx)
            ctx.set(wheel.due.ready, 0)
            if not active:
                continue
            qp = active.pop(0)
            ctx.set(pacer.look, {"valid": 1, "qp": qp})
            await tick(ctx)
            ctx.set(pacer.look.valid, 0)
            await tick(ctx, Pacer.LOOK_LATENCY - 1)
            assert ctx.get(pacer.paced)
            if wait := ctx.get(pacer.wait):
                ctx.set(wheel.park.payload, {"qp": qp, "delay": wait})
                ctx.set(wheel.park.valid, 1)
                while not ctx.get(wheel.park.ready):
                    await tick(ctx)
                await tick(ctx)
                ctx.set(wheel.park.valid, 0)
            else:
                ctx.set(pacer.charge, {"valid": 1, "qp": qp, "bytes": SIZE})
                await tick(ctx)
                ctx.set(pacer.charge.valid, 0)
                await tick(ctx, 7)
                sent[qp] += 1
                active.append(qp)

    sim = Simulator(m)
    sim.add_clock(4e-9)
    sim.add_testbench(bench)
    sim.run()
    for qp, rate in RATES.items():
        due = (time - start) * rate / 8000 / SIZE
        print(f"{rate} Mb/s: {sent[qp]} packets, {due:.1f} due")
        # the first goes at once; the last may wait for its bucket
        assert due - 1.1 - 1100 * rate / 8000 / SIZE <= sent[qp] <= due + 1.1
