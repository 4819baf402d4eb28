"""The mailbox: which tables a command writes, in which order with its record and the fence, and its error codes."""

import pytest
from amaranth.sim import Simulator

from optinic.abi.registers import COMMAND_ERROR, COMMANDS
from optinic.config import preset
from optinic.memory.regions import Regions
from optinic.transport.commands import Commands
from optinic.transport.xp.records import WorkKind
from optinic.tx.records import Event

CFG = preset("tiny")


def run_command(name, args, *, code=None, fence_after=20, before=()):
    """The events, in order, of one command; each (what, detail). `before`: commands done earlier."""
    dut = Commands(CFG, Regions(CFG).set.shape())
    events, error = [], None

    async def bench(ctx):
        while ctx.get(dut.clearing):
            await ctx.tick()
        for other in before:
            await command(ctx, *other, None)
            events.clear()
        await command(ctx, name, args, code)

    async def command(ctx, name, args, code):
        nonlocal error
        for i, value in enumerate(args):
            ctx.set(getattr(dut, f"arg{i}"), value)
        ctx.set(dut.start.payload, COMMANDS[name][0] if code is None else code), ctx.set(dut.start.valid, 1)
        await ctx.tick()
        ctx.set(dut.start.valid, 0)
        fence = invalidate = sent = None
        for cycle in range(300):
            ctx.set(dut.records.ready, cycle > 8), ctx.set(dut.send_events.ready, 1)
            ctx.set(dut.fence_done, cycle == fence), ctx.set(dut.invalidate_done, cycle == invalidate), ctx.set(dut.send_done, cycle == sent)
            if ctx.get(dut.send_events.valid):
                events.append(("sends", ctx.get(dut.send_events.payload.kind)))
                sent = cycle + fence_after
            if ctx.get(dut.context_set.en):
                e = dut.context_set.entry
                events.append(("context", ctx.get(e.state), ctx.get(e.tag) << CFG.qp_bits | ctx.get(dut.context_set.qp)))
            for port, label in ((dut.peer_set, "peer"), (dut.cq_set, "cq"), (dut.region_set, "region")):
                if ctx.get(port.en):
                    events.append((label,))
            if CFG.arrival_map and ctx.get(dut.map_set.en):
                e = dut.map_set.entry
                events.append(("map", ctx.get(dut.map_set.qp), *(ctx.get(f) for f in (e.valid, e.pieces, e.rows, e.mtu, e.base))))
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


def through(record, sends, again=None):
    """The way of a command that takes something away: the receive half, the send half, and what that has completed. A life ends
    twice, since a refused CQE of the send half is an error of the old one."""
    return [("record", record), ("sends", sends), ("record", again or record)]


def test_a_new_life_begins_when_the_old_one_has_ended():
    qpn = 0xABC005
    events, error = run_command("qp_set", [qpn, 2 | 3 << 8 | 7 << 16, 1, 2, 3])
    assert events == [("context", 0, qpn), *through(WorkKind.RESET, Event.RESET), ("invalidate", 5), ("context", 2, qpn)]
    assert error == COMMAND_ERROR["none"]


def test_destroy_leaves_nothing_behind():
    events, _ = run_command("qp_destroy", [5, 2])
    assert events == [("context", 0, 5), *through(WorkKind.RESET, Event.RESET), ("invalidate", 5)]


def test_flush_keeps_the_context_for_its_completions():
    made = ("qp_set", [5, 2])
    assert run_command("qp_flush", [5, 3], before=[made]) == (
        [("context", 3, 5), *through(WorkKind.FLUSH, Event.FLUSH, WorkKind.FENCE)], COMMAND_ERROR["none"])


@pytest.mark.parametrize("before", [[], [("qp_set", [4, 2])], [("qp_set", [5, 2]), ("qp_destroy", [5, 0])]])
def test_what_does_not_exist_is_not_flushed(before):
    """It would become a QP, and what a stray doorbell had posted would complete."""
    assert run_command("qp_flush", [5, 3], before=before) == ([], COMMAND_ERROR["no_qp"])


def test_an_arrival_map_changes_when_nothing_is_under_way(monkeypatch):
    monkeypatch.setitem(globals(), "CFG", preset("tiny", arrival_map=True))
    base = 0xABCD_EF01_2345_67C0
    args = [5, 2 | 3 << 8 | 7 << 16 | 1 << 24, 1, 2, 3, 10 | 4 << 8, base & 0xFFFFFFFF, base >> 32]
    events, _ = run_command("qp_set", args)
    assert events == [("context", 0, 5), *through(WorkKind.RESET, Event.RESET), ("invalidate", 5),
                      ("map", 5, 1, 10, 4, 3, base >> 6), ("context", 2, 5)]       # no packet finds the new life without its map
    args[1] ^= 1 << 24          # what else stands in the arguments counts only with this bit
    assert run_command("qp_set", args)[0][-2][:3] == ("map", 5, 0)
    for name in ("qp_destroy", "qp_flush"):
        assert "map" not in [e[0] for e in run_command(name, args, before=[("qp_set", args)])[0]]


def test_a_region_is_fenced():
    assert run_command("region_set", [1 << 31 | 3, 99])[0] == [("region",), *through(WorkKind.FENCE, Event.FENCE)]


@pytest.mark.parametrize("name", ["peer", "cq"])
def test_tables_without_a_fence(name):
    assert run_command(f"{name}_set", [1])[0] == [(name,)]


@pytest.mark.parametrize("name, args", [("qp_set", [16 + 1 + (1 << 24)]), ("region_set", [CFG.num_regions // 2]),
                                        ("peer_set", [CFG.num_peers]), ("cq_set", [CFG.num_cqs])])
def test_bad_index(name, args):
    assert run_command(name, args) == ([], COMMAND_ERROR["bad_index"])


def test_index_beyond_a_table_that_is_no_power_of_two(monkeypatch):
    monkeypatch.setitem(globals(), "CFG", preset("tiny", num_qps=12))
    assert run_command("qp_set", [13]) == ([], COMMAND_ERROR["bad_index"])
    assert run_command("qp_set", [16 + 11])[1] == COMMAND_ERROR["none"]


def test_unknown_command():
    assert run_command("fence", [], code=99) == ([], COMMAND_ERROR["unknown_command"])
