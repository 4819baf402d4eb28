"""The deadline scanner at four queue pairs, two lanes: events are right, and none is later than the stated bound."""

from amaranth.hdl import Assert, Assume, Cover, Signal
import pytest

from optinic.config import preset
from optinic.stream.contract import StreamContract
from optinic.transport.xp import deadlines

from .harness import Check, free, judge, never_reset, prove
from .mutate import mutant
from .tables import OpenTable, built, later

CFG = preset("tiny", num_qps=4, deadline_lanes=2)


def scanner_check(module=deadlines, covers=False):
    def build(m, free_):
        dut, m.submodules.dut, _ = built(module, "DeadlineScanner", OpenTable, CFG)
        free(m, free_, dut, "dut")
        never_reset(m)
        judge(m, StreamContract(len(dut.events.payload.as_value())), dut.events, "contract", design="source")
        q, first, then = free_(2, "q"), Signal(init=1), Signal(16)
        m.d.sync += [first.eq(0), then.eq(dut.now)]
        m.d.comb += [Assume(first | (q == later(m, q, 1, "q"))), Assume(first | ((dut.now - then)[:16] <= 1))]

        # the lane of one QP
        active, kind, coarse = Signal(), Signal(module.LaneKind), Signal(16)
        mine = dut.set.en & (dut.set.qp == q)
        with m.If(mine):
            m.d.sync += [active.eq(dut.set.active), kind.eq(dut.set.kind), coarse.eq(dut.set.coarse)]
        since = Signal(16)
        m.d.comb += since.eq(dut.now - coarse)
        due = active & ~since[15]
        m.d.comb += Assume(since[12:] != 7)     # a lane that is due is set anew long before the 16 bits of time turn over

        # a new event of it is of the lane as it was set last
        event, held = dut.events, Signal()
        m.d.sync += held.eq(event.valid & ~event.ready)
        ours = event.valid & (event.payload.qp == q)
        m.d.comb += Assert(~(ours & ~held) | (due & (event.payload.kind == kind)))

        # it comes within the bound: cycles that neither wait for the taker nor serve another lane, nor leave out an event
        # of another lane that has just been set anew
        waited, most, was_set = Signal(8), CFG.scan_rows + dut.PIPELINE, later(m, dut.set.en, 1, "was_set")
        with m.If(~due | mine | ours):
            m.d.sync += waited.eq(0)
        with m.Elif(~event.valid & ~was_set):
            m.d.sync += waited.eq(waited + 1)
        m.d.comb += Assert(waited <= most)
        if covers:
            m.d.comb += [Cover(waited == most - 2, "nearly as late as the bound says"),
                         Cover(ours & ~held & (since == 0), "it fires in the very unit"),
                         Cover(ours & held & mine, "set while it is offered")]
    return Check(build)


def test_deadlines():
    assert prove(scanner_check(), 13, name="deadlines")


@pytest.mark.soak
def test_deadlines_for_longer():
    assert prove(scanner_check(), 20, name="deadlines_longer")


def test_deadlines_reach_their_states():
    result = prove(scanner_check(covers=True), 14, "cover", name="deadlines")
    assert result and len(result.reached) == 3, result.log


@pytest.mark.parametrize("old, new", [
    ("pick.eq(Cat(front.lanes[n] & ~front.lanes[:n].any() for n in range(lanes)))", "pick.eq(front.lanes)"),
    ("found.lanes.eq(read2.lanes & fires & ~stale(read2.row))", "found.lanes.eq(read2.lanes & fires)"),
    ("cell.active & ~due[15]", "cell.active & due[15]"),
    ("free.eq(~self.events.valid | self.events.ready)", "free.eq(~self.events.valid)"),
], ids=["two at once", "stale", "early", "slow"])
def test_deadlines_broken(old, new):
    assert not prove(scanner_check(mutant(deadlines.__name__, old, new)), 16, name="deadlines_broken")
