"""The pool of open messages, in two parts. Rows: from reset on, for whatever is decided, a row is at hand whenever one may be taken, and no
row has two owners. States: given that, a record finds what the last decision about its QP has left (induction).
"""

from types import SimpleNamespace

from amaranth.hdl import C, Assert, Assume, Cover, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out
import pytest

from optinic.transport.xp import message_pool

from .harness import Check, free, never_reset, prove
from .mutate import mutant
from .tables import OpenTable, built, later

# a state of a few bits: the pool only carries it
MESSAGE = StructLayout({"head": 1, "opcode": 1, "msg_len": 1, "missing": 1, "cover": 1, "imm": 1, "tag": 1})
CFG = SimpleNamespace(num_qps=4, qp_bits=2, open_messages=2, messages_pooled=True, table_protection="none")
ROWS = SimpleNamespace(num_qps=32, qp_bits=5, open_messages=16, most_open=8, messages_pooled=True, table_protection="none")
FILL = ROWS.open_messages + 3


def states_check(module=message_pool):
    def build(m, free_):
        candidate = free_(1, "candidate")
        dut, m.submodules.dut, tables = built(module, "MessagePool", OpenTable, CFG, MESSAGE,
                                              _rows=lambda self, m_, kept, row1: (candidate, C(0)))
        heads, bodies = tables
        free(m, free_, dut, "dut")
        never_reset(m)
        q = free_(CFG.qp_bits, "q")
        first = Signal(init=1)
        m.d.sync += first.eq(0)
        m.d.comb += [Assume(first | (q == later(m, q, 1, "q"))),
                     Assume(~dut.touches | (dut.qp == later(m, dut.next_qp, message_pool.LEAD, "ahead")))]
        # what is decided of a QP a cycle later is in the write ports; nobody else takes or has its row
        head, body = Signal(heads.rows[0].shape()), Signal(bodies.rows[0].shape())
        m.d.comb += [head.eq(heads.newest(m, q)), body.eq(bodies.newest(m, head.row))]
        other = heads.write_en & (heads.write_addr != q) & heads.write_data.opcode
        m.d.comb += Assume(~(other & head.opcode & (heads.write_data.row == head.row)))
        looks = dut.touches & (dut.qp == q)
        m.d.comb += [
            Assert(~looks | ((dut.st.head == head.head) & (dut.st.opcode == head.opcode))),
            *(Assert(~(looks & head.opcode) | (dut.st[name] == body[name])) for name, _ in bodies.rows[0].shape()),
        ]
    return Check(build)


def rows_check(module=message_pool, covers=False):
    class Rows(wiring.Component):
        """The part of the pool that gives rows out, with what it needs to know of a decision as ports."""
        def __init__(self):
            row = range(ROWS.open_messages)
            super().__init__({"touches": In(1), "held": In(1), "holds": In(1), "row": In(row), "room": Out(1), "valid": Out(1),
                              "candidate": Out(row), "filling": Out(1)})

        def elaborate(self, platform):
            m = Module()
            pool = module.MessagePool(ROWS, MESSAGE)
            kept = Signal(StructLayout({"state": MESSAGE, "row": range(ROWS.open_messages)}))
            last = pool.last
            pool._MustUse__silence = True       # only a part of it is elaborated
            m.d.comb += [kept.state.opcode.eq(self.held), kept.row.eq(self.row), pool.touches.eq(self.touches), last.opcode.eq(self.holds)]
            candidate, filling = pool._rows(m, kept, None)
            m.d.comb += [self.candidate.eq(candidate), self.filling.eq(filling), self.room.eq(pool.room),
                         self.valid.eq(pool.candidate_valid)]
            return m

    def build(m, free_):
        m.submodules.dut = dut = Rows()
        free(m, free_, dut, "dut")
        never_reset(m)
        mine = free_(range(ROWS.open_messages), "mine")     # any row
        begun = Signal()
        m.d.sync += begun.eq(1)
        m.d.comb += [Assume(~begun | (mine == later(m, mine, 1, "mine"))), Assume(~(dut.touches & dut.filling))]
        touched, held, row = (later(m, s, 1, n) for s, n in ((dut.touches, "touched"), (dut.held, "held"), (dut.row, "row")))
        room, candidate, valid = (later(m, s, 1, n) for s, n in ((dut.room, "room"), (dut.candidate, "candidate"), (dut.valid, "valid")))
        takes, gives = touched & ~held & dut.holds, touched & held & ~dut.holds
        m.d.comb += Assume(~takes | room)
        owned, out = Signal(), Signal(range(ROWS.open_messages + 1))
        m.d.sync += out.eq(out + takes - gives)
        m.d.comb += [Assume(~gives | (out != 0)), Assume(~(gives & (row == mine)) | owned)]
        with m.If(takes & (candidate == mine)):
            m.d.sync += owned.eq(1)
        with m.If(gives & (row == mine)):
            m.d.sync += owned.eq(0)
        m.d.comb += [Assert(~takes | valid), Assert(~(takes & (candidate == mine)) | ~owned),
                     Assert(out <= ROWS.most_open)]
        if covers:
            m.d.comb += [Cover(~dut.room & (out == ROWS.most_open), "no room"),
                         Cover(takes & later(m, takes & later(m, takes, 1, "t2"), 1, "t1") & owned, "rows for three in a row")]
    return Check(build)


def test_states():
    result = prove(states_check(), 8, "prove", name="message_pool_states")
    assert result, result.failed


BLOCK = 'style="block" if cfg.open_messages >= 512 else "distributed"', 'style="block"'


@pytest.mark.parametrize("module", [message_pool, mutant(message_pool.__name__, *BLOCK)], ids=["lut", "block"])
def test_rows(module):
    """With a free list in either RAM: they differ in latency."""
    result = prove(rows_check(module), FILL + 12, name="message_pool_rows")
    assert result, result.failed


def test_rows_reach_the_limit():
    result = prove(rows_check(covers=True), FILL + 12, "cover", name="message_pool_rows")
    assert result, result.log


@pytest.mark.parametrize("check, old, new", [
    (states_check, "hits = [live[i] & (qps[i] == qp2)", "hits = [live[i] & (qps[i] == qp1)"),
    (states_check, "again.eq(live[0] & (qps[0] == qp1))", "again.eq(0)"),
    (rows_check, "fetch = takes | ~other.valid", "fetch = ~other.valid"),           # a row is given out twice
    (rows_check, "Mux(takes, taken < most - 1, taken < most)", "(taken < most)"),   # one too many
], ids=["stale", "last", "twice", "room"])
def test_pool_broken(check, old, new):
    assert not prove(check(mutant(message_pool.__name__, old, new)), FILL + 12 if check is rows_check else 9, name="message_pool_broken")
