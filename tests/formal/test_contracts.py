"""The contracts themselves: each flag can be raised, a legal stream raises none; a monitor in simulation agrees."""

from amaranth.hdl import Assume, Cover, Signal
from amaranth.sim import Simulator
import pytest

from optinic.stream.contract import (AxiLiteContract, AxiReadContract, AxiWriteContract, PacketContract, StreamContract)

from .harness import Check, free, prove

CONTRACTS = {
    "stream": lambda: StreamContract(4), "packet": lambda: PacketContract(32), "write": lambda: AxiWriteContract(64, 1, depth=2),
    "read": lambda: AxiReadContract(64, 1), "lite": lambda: AxiLiteContract(within=3),
}


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_flag_can_be_raised_alone(name):
    """Each flag is reached by a stream that has been legal up to there."""
    contract = CONTRACTS[name]()
    flags = [(side, flag) for side in ("source_fault", "sink_fault") for flag in getattr(contract, side).shape().members]

    def build(m, free_):
        m.submodules.contract = contract
        free(m, free_, contract, "port")
        every = contract.source_fault.as_value().bool() | contract.sink_fault.as_value().bool()
        before = Signal()
        m.d.sync += before.eq(before | every)
        m.d.comb += Assume(~before)
        for side, flag in flags:
            m.d.comb += Cover(getattr(contract, side)[flag], f"{side}.{flag}")
    result = prove(Check(build), 8, "cover", name=f"contract_{name}")
    assert result and len(result.reached) == len(flags), result.log


def test_a_write_monitor_in_simulation():
    """Data before and after their address pass; a wrong wlast, an early response and a crossed block don't."""
    dut = AxiWriteContract(64, depth=4)
    seen = []

    async def cycle(ctx, **pins):
        for name in ("awvalid", "wvalid", "wlast", "bvalid"):
            ctx.set(getattr(dut, name), 0)
        for name, value in ({"awready": 1, "wready": 1, "bready": 1, "awsize": 3, "awburst": 1} | pins).items():
            ctx.set(getattr(dut, name), value)
        for side in "source_fault", "sink_fault":
            value = ctx.get(getattr(dut, side))
            seen.extend(f for f in dut.signature.members[side].shape.members if value[f])
        await ctx.tick()

    async def bench(ctx):
        await cycle(ctx, wvalid=1)                                              # a burst of two, data first
        await cycle(ctx, wvalid=1, wlast=1, awvalid=1, awaddr=0x1000, awlen=1)
        await cycle(ctx, wvalid=1, wlast=1)                                     # all data before the address
        await cycle(ctx, awvalid=1, awaddr=0x7F8, awlen=0)
        await cycle(ctx, bvalid=1)
        await cycle(ctx, bvalid=1)
        assert seen == []
        await cycle(ctx, bvalid=1)
        assert seen.pop() == "unasked" and not seen
        await cycle(ctx, awvalid=1, awaddr=0x7F8, awlen=1)                      # blocks are 2 KiB at 64 bits
        assert seen.pop() == "boundary" and not seen
        await cycle(ctx, wvalid=1, wlast=1)
        assert seen.pop() == "last" and not seen

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
