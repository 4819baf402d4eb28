"""Admission at two queue pairs, for any sequence of records of any length (induction), against a plain account of one QP.

What is taken for granted of the stages before it:
- `next_qp` shows a record's QP two cycles earlier; `touches`, `single`, `after` are as Resolve computes them;
- the posted count of a QP never falls from record to record, and never gets further from the oldest uncompleted receive
  than the ring is long; a new life starts it at 0;
- a receive that was read is one that had been posted; a UC packet is a whole message; time doesn't go back.
Proved for the QP (and so for each: the choice of the QP is free):
- completions name every receive exactly once, in order, and none that is not posted; a new life starts again at 0;
- a packet is placed for the oldest uncompleted receive only, so never after that receive's completion, and never when the
  receive's deadline, once its clock runs, has passed; an event that comes after the deadline completes the receive;
- success means: the bytes placed sum up to the announced length, and the coverage sum to its target, with one length in
  all packets; a partial completion reports exactly the bytes that were placed;
- every frame has exactly one job, and nothing else has any; a refused frame is skipped.
"""

from amaranth.hdl import Array, Assert, Assume, Cover, Fragment, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
import pytest

from optinic.abi.structs import CAUSE
from optinic.config import NicConfig
from optinic.memory.job import JobKind
from optinic.transport.xp import admission
from optinic.transport.xp.records import Verdict, WorkKind

from .harness import Check, free, never_reset, prove
from .mutate import mutant

CFG = NicConfig(data_width=64, num_qps=2, num_regions=8, num_cqs=2, num_peers=2, mtu_max=256, rq_entries=16,
                rq_cache_lines=8, rq_prefetch_lines=0, rx_buffer_bytes=8192, rx_frames=8, reads_outstanding=2,
                writes_outstanding=8, deadline_lanes=1)


class OpenTable(wiring.Component):
    """A Table after its clearing, in registers that a check can look at."""

    made = []       # in the order of construction

    def __init__(self, spec, shape, *, latency=2):
        assert latency == 2
        address = In(range(spec.depth))
        super().__init__({"write_en": In(1), "write_addr": address, "write_data": In(shape), "clearing": Out(1),
                          "read0_addr": address, "read0_data": Out(shape)})
        self.rows = [Signal(shape, name=f"row{i}") for i in range(spec.depth)]
        OpenTable.made.append(self)

    def elaborate(self, platform):
        m = Module()
        read = Signal.like(self.read0_data)
        m.d.comb += self.clearing.eq(0)
        m.d.sync += [read.eq(Array(self.rows)[self.read0_addr]), self.read0_data.eq(read)]
        for i, row in enumerate(self.rows):
            with m.If(self.write_en & (self.write_addr == i)):
                m.d.sync += row.eq(self.write_data)
        return m


def admission_check(module=admission, covers=False):
    def build(m, free_):
        before, module.Table = module.Table, OpenTable
        dut = module.Admission(CFG)
        m.submodules.dut = Fragment.get(dut, None)
        module.Table = before
        free(m, free_, dut, "dut")
        never_reset(m)
        q = _constant(m, free_, 1, "q")
        rec, valid, kind = dut.record, dut.valid, dut.record.kind
        ours, tracked = valid & (rec.qp == q), Signal()
        m.d.comb += tracked.eq((kind == WorkKind.FRAME) & rec.tracked & (rec.verdict == Verdict.PLACED))
        account = _Account(m, rec, dut, q, tracked)
        _environment(m, free_, dut, ours, tracked, account)
        _jobs(m, rec, valid, dut, tracked)

        # induction: the newest state of the QP is what the account says
        table = OpenTable.made[-1]
        pending = table.write_en & (table.write_addr == q)
        for here, state, book in ((pending, table.write_data, account.after),
                                  (~pending, Array(table.rows)[q], account.now)):
            some = state.opcode != 0
            m.d.comb += [
                Assert(~here | (state.head == book["expect"])), Assert(~here | (some == book["some"])),
                Assert(~(here & some) | ((state.msg_len == book["length"])
                                         & (state.missing == (book["length"] - book["sum"])[:32])
                                         & (state.cover == (book["target"] - book["cover"])[:32]))),
                Assert(~here | (state.armed == book["armed"])), Assert(~here | (state.touched == book["touched"])),
                Assert(~(here & book["armed"]) | (state.forever == book["forever"])),
                Assert(~(here & book["armed"] & ~book["forever"]) | (state.deadline == book["deadline"])),
                Assert(~(here & ~book["armed"]) | (state.deadline == book["deadline"])),
                Assert(~(here & some) | book["touched"]), Assert(~(here & book["touched"]) | book["armed"]),
            ]
        if covers:
            r, mine = dut.result, dut.result_valid & (dut.result.qp == q)
            m.d.comb += [
                Cover(mine & r.own.valid & ~r.own.error & (r.own.index == 2), "the third receive is a success"),
                Cover(mine & r.old.valid & r.empty.valid & r.own.valid, "preempts, skips and completes at once"),
                Cover(mine & r.old.valid & (r.old.cause == CAUSE["timeout"]) & (r.old.missing == 5), "a partial message times out"),
                Cover(mine & r.old.valid & (r.old.cause == CAUSE["flushed"]) & (r.empty.skipped == 3), "a flush"),
                Cover(mine & r.own.valid & ~r.own.fresh & ~r.own.error & (account.now["sum"] == 7), "success from pieces"),
                Cover(mine & r.own.error, "a receive that could not be read"),
            ]
    return Check(build)


def _constant(m, free_, shape, name):
    value, first, kept = free_(shape, name), Signal(init=1, name=f"{name}_first"), Signal(shape, name=f"{name}_kept")
    m.d.sync += [first.eq(0), kept.eq(value)]
    m.d.comb += Assume(first | (kept == value))
    return value


def _environment(m, free_, dut, ours, tracked, account):
    rec, kind = dut.record, dut.record.kind
    ahead = [Signal.like(dut.next_qp, name=f"ahead{i}") for i in range(2)]
    m.d.sync += [ahead[0].eq(dut.next_qp), ahead[1].eq(ahead[0])]
    events = (kind != WorkKind.FRAME) & (kind != WorkKind.FENCE)
    m.d.comb += [
        Assume(~dut.valid | (rec.qp == ahead[1])), Assume(kind.as_value() <= WorkKind.FENCE.value),
        Assume(rec.touches == (events | tracked)), Assume(rec.opcode != 0),
        Assume((rec.verdict != Verdict.PLACED) | (rec.reason == 0)),
        Assume(rec.single == (rec.pay_len == rec.msg_len)), Assume(rec.after == (rec.msg_len - rec.pay_len)[:32]),
        Assume(~rec.single | (rec.rest == 0)), Assume(~rec.is_uc | rec.single), Assume(~rec.failed | rec.has_wqe),
    ]
    # what is posted, counted from the oldest uncompleted receive as the record finds it
    posted, room = Signal(16), Signal(16)
    expect = account.found["expect"]
    m.d.comb += room.eq(rec.posted - expect[:16])
    m.d.comb += Assume(~ours | (kind == WorkKind.RESET) | (room <= CFG.rq_entries))
    m.d.comb += Assume(~ours | (kind == WorkKind.RESET) | ((rec.posted - posted)[:16] <= CFG.rq_entries))
    m.d.comb += Assert((posted - account.found["expect"][:16])[:16] <= CFG.rq_entries)
    with m.If(ours):
        m.d.sync += posted.eq(Mux(kind == WorkKind.RESET, 0, rec.posted))
    # a receive that was read had been posted (it may be completed since)
    m.d.comb += Assume(~(ours & rec.has_wqe) | (((rec.posted - rec.index - 1)[:16]) < 1 << 15))
    # time goes on
    then = Signal(32)
    m.d.sync += then.eq(dut.now)
    m.d.comb += Assume((dut.now - then)[:32] < 1 << 20)
    m.d.comb += Assume(rec.timeout < 1 << 31)


class _Account:
    """What the results have said so far about the QP: `now` before this cycle's result, `after` behind it.

    `found` is what a record finds: behind the result of the record before it, which appears in the same cycle.
    """

    def __init__(self, m, rec, dut, q, tracked):
        shapes = dict(expect=32, some=1, sum=32, cover=32, target=32, length=32, armed=1, forever=1, deadline=32, touched=1)
        self.now = now = {k: Signal(s, name=f"now_{k}") for k, s in shapes.items()}
        self.after = after = {k: Signal(s, name=f"after_{k}") for k, s in shapes.items()}
        self.found = after
        m.d.sync += [now[k].eq(after[k]) for k in shapes]
        m.d.comb += [after[k].eq(now[k]) for k in shapes]

        # the record that the result belongs to
        then = {k: Signal.like(getattr(rec, k), name=f"then_{k}") for k in (
            "kind", "seq", "pay_len", "msg_len", "delta", "rest", "posted", "is_uc", "timeout", "absolute", "has_wqe",
            "failed", "index", "ready", "reason")}
        m.d.sync += [then[k].eq(getattr(rec, k)) for k in then]
        frame, clock = Signal(), Signal(32)
        m.d.sync += [frame.eq(tracked), clock.eq(dut.now)]

        r, old, empty, own = dut.result, dut.result.old, dut.result.empty, dut.result.own
        mine = dut.result_valid & (r.qp == q)
        e1, e2, e3 = Signal(32), Signal(32), Signal(32)
        m.d.comb += [
            e1.eq(now["expect"] + old.valid), e2.eq(Mux(empty.valid, empty.index + 1, e1)), e3.eq(e2 + own.valid),
        ]
        # in order, each once, none that is not posted
        left, left_after = Signal(16), Signal(16)
        m.d.comb += [left.eq(then["posted"] - now["expect"][:16]), left_after.eq(then["posted"] - e3[:16])]
        reset = then["kind"] == WorkKind.RESET
        for promise in (
            ~old.valid | (old.head == now["expect"]),
            ~empty.valid | (old.valid & ((empty.index - empty.skipped)[:32] == e1) & (empty.skipped < CFG.rq_entries)),
            ~own.valid | (own.index == e2),
            reset | (left_after <= left),
            ~(reset & (old.valid | empty.valid | own.valid)),
        ):
            m.d.comb += Assert(~mine | promise)

        # placing
        placed = mine & (r.job == JobKind.PLACE) & frame
        fresh = old.valid | ~now["some"]                # no byte is there yet of the message that the packet is for
        base_sum, base_cover = Mux(fresh, 0, now["sum"]), Mux(fresh, 0, now["cover"])
        target = Mux(fresh, then["delta"] + then["rest"], now["target"])
        total, covered = Signal(32), Signal(32)
        m.d.comb += [total.eq(base_sum + then["pay_len"]), covered.eq(base_cover + then["delta"])]
        in_time = ~now["armed"] | now["forever"] | (clock - now["deadline"])[31]
        uc_moves_on = then["is_uc"] & now["touched"]
        for promise in (
            then["is_uc"] | (then["seq"] == e2),
            (then["posted"] - e2[:16])[:16] != 0,
            old.valid | in_time | (then["is_uc"] & ~now["touched"]),
            fresh | (then["msg_len"] == now["length"]),
            ~uc_moves_on | old.valid,
        ):
            m.d.comb += Assert(~placed | promise)
        success = mine & own.valid & ~own.error
        m.d.comb += [
            Assert(~success | placed), Assert(~success | ((total == then["msg_len"]) & (own.msg_len == then["msg_len"]))),
            Assert(~success | (covered == target[:32])), Assert(~(mine & own.valid) | (own.fresh == fresh)),
        ]
        # what a partial completion reports
        tells = mine & (old.valid | (own.valid & own.error & ~own.fresh))
        m.d.comb += [
            Assert(~tells | ((old.opcode != 0) == now["some"])),
            Assert(~(tells & now["some"]) | ((old.msg_len == now["length"]) & (old.missing == (now["length"] - now["sum"])[:32]))),
        ]
        # an event behind the deadline ends the message
        event = ((then["kind"] == WorkKind.DEADLINE) | (then["kind"] == WorkKind.SERVICE)) & then["ready"]
        m.d.comb += Assert(~(mine & event) | (old.valid == ~in_time))
        m.d.comb += Assert(~(mine & event & old.valid) | (old.cause == CAUSE["timeout"]))

        # the account goes on
        ordered = frame & self._in_order(then, e2, now, old, in_time)
        m.d.comb += Assert(~placed | ordered)
        starts = Signal()
        service = event & ~old.valid & ~now["armed"] & then["has_wqe"] & (then["index"] == now["expect"][:16]) & ~then["failed"]
        m.d.comb += starts.eq((ordered & ~own.valid & (old.valid | ~now["armed"])) | service)
        with m.If(mine):
            m.d.comb += [after["expect"].eq(Mux(reset, 0, e3))]
            with m.If((e3 != now["expect"]) | reset | (then["kind"] == WorkKind.FLUSH)):
                m.d.comb += [after["some"].eq(0), after["armed"].eq(0), after["touched"].eq(0), after["deadline"].eq(clock)]
            with m.If(ordered & ~own.valid):
                m.d.comb += after["touched"].eq(1)
            with m.If(placed & ~own.valid):
                m.d.comb += [after["some"].eq(1), after["sum"].eq(total), after["cover"].eq(covered),
                             after["target"].eq(target), after["length"].eq(then["msg_len"])]
            with m.If(starts):
                origin = Mux(old.valid, clock, now["deadline"])     # while it is not armed: when it became the oldest
                m.d.comb += [
                    after["armed"].eq(1), after["forever"].eq(~then["absolute"] & (then["timeout"] == 0)),
                    after["deadline"].eq(Mux(then["absolute"], 0, origin) + then["timeout"]),
                ]

    @staticmethod
    def _in_order(then, e2, now, old, in_time):
        """A packet that memory refuses has passed message order all the same: for the oldest receive, or one that became it."""
        posted = (then["posted"] - e2[:16])[:16] != 0
        same = Mux(then["is_uc"], 1, then["seq"] == e2)
        usable = old.valid | in_time | (then["is_uc"] & ~now["touched"])
        return posted & same & usable


def _jobs(m, rec, valid, dut, tracked):
    r = dut.result
    frame, was, verdict = Signal(), Signal(), Signal(Verdict)
    m.d.sync += [frame.eq(rec.kind == WorkKind.FRAME), was.eq(valid), verdict.eq(rec.verdict)]
    m.d.comb += [
        Assert(dut.result_valid == was),
        Assert(~was | (frame == (r.job != JobKind.NONE))),
        Assert(~(was & frame) | ((verdict != Verdict.PASSED) == (r.job != JobKind.PASS))),
        Assert(~(was & (r.job == JobKind.PLACE)) | ((verdict == Verdict.PLACED) & (dut.reason == 0))),
        Assert(~(was & (dut.reason != 0) & (verdict == Verdict.PLACED) & frame) | (r.job == JobKind.SKIP)),
    ]


def test_admission():
    result = prove(admission_check(), 7, "prove", name="admission")
    assert result, result.failed


def test_admission_reaches_its_states():
    result = prove(admission_check(covers=True), 10, "cover", name="admission")
    assert result and len(result.reached) == 6, result.log
