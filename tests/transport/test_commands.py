"""The mailbox: which tables a command writes, in which order with its record and the fence, and its error codes."""

import pytest
from amaranth.sim import Simulator

from optinic.abi.registers import COMMAND_ERROR, COMMANDS
from optinic.config import preset
from optinic.memory.regions import Regions
from optinic.transport.commands import Commands
from optinic.transport.xp.records import WorkKind

CFG = preset("tiny")


def run_command(name, args, *, code=None, fence_after=20):
    """The events, in order, of one command; each (cycle, what, detail)."""
    dut = Commands(CFG, Regions(CFG).set.shape())
    events, error = [], None

    async def bench(ctx):
        nonlocal error
        for i, value in enumerate(args):
            ctx.set(getattr(dut, f"arg{i}"), value)
        ctx.set(dut.start.payload, COMMANDS[name][0] if code is None else code), ctx.set(dut.start.valid, 1)
        await ctx.tick()
        ctx.set(dut.start.valid, 0)
        fence = invalidate = None
        for cycle in range(200):
            ctx.set(dut.records.ready, cycle > 8)
            ctx.set(dut.fence_done, cycle == fence), ctx.set(dut.invalidate_done, cycle == invalidate)
            if ctx.get(dut.context_set.en):
                e = dut.context_set.entry
                events.append(("context", ctx.get(e.state), ctx.get(e.tag) << CFG.qp_bits | ctx.get(dut.context_set.qp)))
            for port, label in ((dut.peer_set, "peer"), (dut.cq_set, "cq"), (dut.region_set, "region")):
                if ctx.get(port.en):
                    events.append((label,))
            if ctx.get(dut.records.valid) and cycle > 8:
                events.append(("record", ctx.get(dut.records.payload.kind)))
                fence = cycle + fence_after
            if ctx.get(dut.invalidate):
                events.append(("invalidate", ctx.get(dut.invalidate_qp)))
                invalidate = cycle + 30
            if cycle and not ctx.get(dut.busy):
                break
            await ctx.tick()
        assert not ctx.get(dut.busy), "the command never ended"
        error = ctx.get(dut.error)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
    return events, error


def test_a_new_life_begins_when_the_old_one_has_ended():
    qpn = 0xABC005
    events, error = run_command("qp_set", [qpn, 2 | 3 << 8 | 7 << 16, 1, 2, 3])
    assert events == [("context", 0, qpn), ("record", WorkKind.RESET), ("invalidate", 5), ("context", 2, qpn)]
    assert error == COMMAND_ERROR["none"]


def test_destroy_leaves_nothing_behind():
    events, _ = run_command("qp_destroy", [5, 2])
    assert events == [("context", 0, 5), ("record", WorkKind.RESET), ("invalidate", 5)]


def test_flush_keeps_the_context_for_its_completions():
    events, _ = run_command("qp_flush", [5, 3])
    assert events == [("context", 3, 5), ("record", WorkKind.FLUSH)]


def test_a_region_is_fenced():
    assert run_command("region_set", [1 << 31 | 3, 99])[0] == [("region",), ("record", WorkKind.FENCE)]


@pytest.mark.parametrize("name", ["peer", "cq"])
def test_tables_without_a_fence(name):
    assert run_command(f"{name}_set", [1])[0] == [(name,)]


@pytest.mark.parametrize("name, args", [("qp_set", [16 + 1 + (1 << 24)]), ("region_set", [CFG.num_regions // 2]),
                                        ("peer_set", [CFG.num_peers]), ("cq_set", [CFG.num_cqs])])
def test_bad_index(name, args):
    assert run_command(name, args) == ([], COMMAND_ERROR["bad_index"])


def test_index_beyond_a_table_that_is_no_power_of_two():
    global CFG
    keep, CFG = CFG, preset("tiny", num_qps=12)
    try:
        assert run_command("qp_set", [13]) == ([], COMMAND_ERROR["bad_index"])
        assert run_command("qp_set", [16 + 11])[1] == COMMAND_ERROR["none"]
    finally:
        CFG = keep


def test_unknown_command():
    assert run_command("fence", [], code=99) == ([], COMMAND_ERROR["unknown_command"])
