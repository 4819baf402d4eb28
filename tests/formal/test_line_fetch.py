"""The reader of receive WQEs with two slots, against a bus that may put any beat on R at any time, asked for or not.

Whatever the bus does: each read has exactly one verdict, not later than the bound says; a good one only after a good answer of
its own ID; nothing is written to a line that isn't being read; no ID is used again before its answer is over.
"""

from amaranth.hdl import Assert, Assume, Cat, Cover, Fragment, Mux, Signal
import pytest

from optinic.config import NicConfig
from optinic.queues import line_fetch

from .harness import Check, free, never_reset, prove
from .mutate import mutant
from .tables import later

SLOTS, LINES, BEATS = 2, 8, 2
CFG = NicConfig(data_width=512, num_qps=2, num_regions=8, num_cqs=2, num_peers=2, num_vectors=1, mtu_max=256, rq_entries=32,
                rq_cache_lines=LINES, rq_prefetch_lines=0, rx_buffer_bytes=8192, rx_frames=8, reads_outstanding=SLOTS,
                writes_outstanding=8, deadline_lanes=1)
SWALLOW = 8             #: cycles from RLAST until its slot is free: two for its WQEs, and what expires meanwhile


def fetch_check(module=line_fetch, covers=False):
    def build(m, free_):
        dut = module.LineFetch(CFG)
        m.submodules.dut = Fragment.get(dut, None)
        free(m, free_, dut, "dut")
        never_reset(m)
        axi = dut.axi
        line = free_(3, "line")             # of which all is followed
        timeout = dut.dma_timeout
        start = Signal(init=1)
        m.d.sync += start.eq(0)
        for value, name in (line, "line"), (timeout, "timeout"):
            m.d.comb += Assume(start | (value == later(m, value, 1, name)))
        m.d.comb += [Assume(dut.rq_base == 0), Assume((timeout != 0) & (timeout <= 6))]

        # The card's side: one read of a line at a time, each with another mark. Mark and line are its address.
        pending, marks = Signal(LINES), Signal(LINES)
        m.d.comb += Assume(~dut.request | (~dut.full & ~pending.bit_select(dut.request_line, 1)
                                           & (dut.request_mark != marks.bit_select(dut.request_line, 1))
                                           & (dut.request_where == Cat(dut.request_line, dut.request_mark))))
        with m.If(dut.verdict):
            m.d.sync += pending.bit_select(dut.verdict_line, 1).eq(0)
        with m.If(dut.request):
            m.d.sync += [pending.bit_select(dut.request_line, 1).eq(1),
                         marks.bit_select(dut.request_line, 1).eq(dut.request_mark)]
        m.d.comb += [
            Assert(~dut.verdict | pending.bit_select(dut.verdict_line, 1)),
            Assert(~dut.verdict | (dut.verdict_mark == marks.bit_select(dut.verdict_line, 1))),
            Assert(~dut.write.any() | pending.bit_select(dut.write_addr[2:], 1)),
        ]

        # The bus: AR is held, and an ID is free again once its answer is over.
        asked, beat = axi.arvalid & axi.arready, axi.rvalid & axi.rready
        address = Cat(axi.arid, axi.araddr)
        held, address_then = later(m, axi.arvalid & ~axi.arready, 1, "ar_held"), later(m, address, 1, "ar")
        busy = Signal(SLOTS)
        number = axi.rid[:1]
        mine = beat & (axi.rid < SLOTS) & busy.bit_select(number, 1)
        with m.If(mine & axi.rlast):
            m.d.sync += busy.bit_select(number, 1).eq(0)
        with m.If(asked):
            m.d.sync += busy.bit_select(axi.arid[:1], 1).eq(1)
        m.d.comb += [
            Assert(~held | (axi.arvalid & (address == address_then))),
            Assert(~axi.arvalid | ((axi.arid < SLOTS) & ~busy.bit_select(axi.arid[:1], 1))),
        ]

        # The last read of `line`.
        age, sent, over, ident, beats, wrong = Signal(8), Signal(), Signal(), Signal(8), Signal(4), Signal()
        is_pending, mark = pending.bit_select(line, 1), marks.bit_select(line, 1)
        m.d.sync += age.eq(age + (age != 255))
        with m.If(asked & is_pending & ~sent & (axi.araddr[7:11] == Cat(line, mark))):
            m.d.sync += [sent.eq(1), ident.eq(axi.arid)]
        with m.If(beat & sent & ~over & (axi.rid == ident)):
            m.d.sync += [beats.eq(beats + (beats != 15)), wrong.eq(wrong | (axi.rresp != 0)), over.eq(axi.rlast)]
        with m.If(dut.request & (dut.request_line == line)):
            m.d.sync += [age.eq(0), sent.eq(0), over.eq(0), beats.eq(0), wrong.eq(0)]
        good = over & (beats == BEATS) & ~wrong
        verdict = dut.verdict & (dut.verdict_line == line)
        m.d.comb += [
            Assert(~is_pending | (age <= timeout + SLOTS + 1)),         # `age` is 0 in the cycle after the request
            Assert(~(verdict & ~dut.verdict_bad) | good),
            Assert(~(verdict & dut.verdict_bad) | (over & ~good) | (age >= timeout)),
        ]

        # No slot is lost, none is free too early.
        taken, quiet, filled = Signal(4), Signal(4), Signal(2)
        ended = mine & axi.rlast
        m.d.sync += [taken.eq(taken + dut.request - ended), filled.eq(filled + (filled != 3)),
                     quiet.eq(Mux(beat, 0, quiet + (quiet != SWALLOW)))]
        m.d.comb += [Assert((filled != 3) | (dut.taken >= taken)), Assert((quiet != SWALLOW) | (dut.taken == taken))]
        if covers:
            second = Signal()               # both slots answer by turns
            before = Signal(8)
            with m.If(mine):
                m.d.sync += [before.eq(axi.rid), second.eq(second | (busy.all() & ~axi.rlast & (axi.rid != before)))]
            m.d.comb += [Cover(verdict & ~dut.verdict_bad & second, "good after answers by turns"),
                         Cover(is_pending & (age == timeout + SLOTS + 1), "as late as the bound says"),
                         Cover(dut.dead & (pending == 0), "all slots by reads without an answer"),
                         Cover(verdict & ~dut.verdict_bad & (age > timeout), "good just before the watchdog comes")]
    return Check(build)


def test_fetch():
    assert prove(fetch_check(), 12, name="fetch")


@pytest.mark.soak
def test_fetch_for_longer():
    assert prove(fetch_check(), 16, name="fetch_longer")


def test_fetch_reaches_its_states():
    result = prove(fetch_check(covers=True), 18, "cover", name="fetch")
    assert result and len(result.reached) == 4, result.log


@pytest.mark.parametrize("old, new", [
    ("& ~(ended & (answering == aged))", ""), ("& ~fresh", ""), ("& ~(ended & (axi.rid == held_id))", ""),
    ("& ~(overdue & (axi.rid[:bits] == expired))", ""), ("scan.eq(scan + 1)", "scan.eq(scan + ~axi.rvalid)"),
], ids=["twice", "old time", "behind the last", "expiring", "starved"])
def test_fetch_broken(old, new):
    assert not prove(fetch_check(mutant(line_fetch.__name__, old, new)), 12, name="fetch_broken")
