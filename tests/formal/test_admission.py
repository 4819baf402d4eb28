"""Admission at two queue pairs, for any sequence of records of any length (induction), against a plain account of one QP.

Taken for granted of the stages before it (the records' own arithmetic is tested where it is made):
- `next_qp` shows a record's QP two cycles earlier; `touches`, `single`, `after` are as Resolve computes them;
- the posted count of a QP never falls from record to record and is never further than the ring from the oldest
  uncompleted receive; a new life starts it at 0;
- a receive counts as posted (`has_wqe`) by lookup's rule, judged by a head that may be out of date but not ahead, and for a
  UC packet not out of date; a UC packet is a whole message.
Proved for the QP that the checker chooses, and so for each:
- order: completions name every receive exactly once, in order, and none that is not posted; a new life starts again at 0.
  A packet is placed for the oldest uncompleted receive only, so never after that receive's completion, and not when its
  deadline has passed; an event behind the deadline completes the receive as timed out, an earlier one doesn't. Every frame
  has exactly one job, nothing else has any, and a refused frame is skipped.
- bytes: success means that the bytes placed sum up to the announced length and the coverage sum to its target, with one
  length in all packets; any other completion reports exactly the bytes that were placed.
"""

from amaranth.hdl import Assert, Assume, Cover, Mux, Shape, Signal
import pytest

from optinic.abi.structs import CAUSE
from optinic.config import NicConfig
from optinic.memory.job import JobKind
from optinic.transport.xp import admission
from optinic.transport.xp.records import Verdict, WorkKind

from .harness import Check, free, never_reset, prove
from .mutate import mutant
from .tables import OpenTable, built, later

CFG = NicConfig(data_width=64, num_qps=2, num_regions=8, num_cqs=2, num_peers=2, mtu_max=256, rq_entries=16,
                rq_cache_lines=8, rq_prefetch_lines=0, rx_buffer_bytes=8192, rx_frames=8, reads_outstanding=2,
                writes_outstanding=8, deadline_lanes=1)
LATENCY = 3         #: of Admission, record to result
FOUND = 2           #: cycles from a decision to its result


def _built(module, **methods):
    """Admission with an OpenTable, elaborated, and the table. `methods` take the place of its own."""
    dut, fragment, tables = built(module, "Admission", OpenTable, CFG, **methods)
    return dut, fragment, tables[-1]


def _at_once(dut, m, st, stored, state1, touches, qp, early, coming):
    """Instead of the table's read port and the forwarding: what they amount to (see test_forwarding)."""
    m.d.comb += st.eq(OpenTable.made[-1].newest(m, qp))


class Observed:
    """The design with its results beside the records that they belong to, and the state that those records found."""

    def __init__(self, m, free_, module):
        dut, m.submodules.dut, table = _built(module, _forward=_at_once)
        self.dut = dut
        free(m, free_, dut, "dut")
        never_reset(m)
        self.q = q = free_(1, "q")
        first = Signal(init=1)
        m.d.sync += first.eq(0)
        m.d.comb += Assume(first | (q == later(m, q, 1, "q")))

        rec = dut.record
        self.record, self.valid = later(m, rec, LATENCY, "record"), later(m, dut.valid, LATENCY, "valid")
        self.clock = later(m, dut.now, LATENCY, "clock")
        self.mine = self.valid & (self.record.qp == q)
        self.tracked = ((self.record.kind == WorkKind.FRAME) & self.record.tracked
                        & (self.record.verdict == Verdict.PLACED))
        self.found = later(m, table.newest(m, q), FOUND, "found")
        m.d.comb += [Assert(dut.result_valid == self.valid), Assert(~self.valid | (dut.result.qp == self.record.qp))]

        # the environment
        ahead = later(m, dut.next_qp, 2, "ahead")
        events = (rec.kind != WorkKind.FRAME) & (rec.kind != WorkKind.FENCE)
        m.d.comb += [
            Assume(~dut.valid | (rec.qp == ahead)), Assume(rec.kind.as_value() <= WorkKind.FENCE.value),
            Assume(rec.touches == (events | ((rec.kind == WorkKind.FRAME) & rec.tracked & (rec.verdict == Verdict.PLACED)))),
            Assume(rec.opcode != 0), Assume((rec.verdict != Verdict.PLACED) | (rec.reason == 0)),
            Assume(rec.single == (rec.pay_len == rec.msg_len)), Assume(rec.after == (rec.msg_len - rec.pay_len)[:32]),
            Assume(~rec.single | (rec.rest == 0)), Assume(~rec.is_uc | rec.single), Assume(~rec.failed | rec.has_wqe),
        ]

    def posting(self, m, free_, expect, touched):
        """What of the environment depends on the oldest uncompleted receive, `expect`, as the record finds it."""
        r, lag = self.record, free_(12, "lag")
        reset = r.kind == WorkKind.RESET
        posted = Signal(16)
        with m.If(self.mine):
            m.d.sync += posted.eq(Mux(reset, 0, r.posted))
        rise, room = Signal(16), Signal(16)
        m.d.comb += [rise.eq(r.posted - posted), room.eq(r.posted - expect[:16])]
        seen, distance, avail = Signal(32), Signal(32), Signal(16)      # lookup's head, and what it made of it
        m.d.comb += [seen.eq(expect - lag), distance.eq(r.index - seen), avail.eq(r.posted - seen[:16])]
        wants = self.tracked | (r.kind == WorkKind.SERVICE)
        m.d.comb += [
            Assume(~self.mine | reset | ((rise <= CFG.rq_entries) & (room <= CFG.rq_entries))),
            Assume(~(self.mine & ~reset & wants) | (r.has_wqe == (distance < avail))), Assume(wants | ~r.has_wqe),
            Assume(lag <= expect), Assume(~r.is_uc | (lag == 0)),
            Assume(~self.tracked | (r.index == Mux(r.is_uc, expect + touched, r.seq))),
            Assume((r.kind != WorkKind.SERVICE) | (r.index == seen)),
        ]
        # for the induction: how the parts of a message's state hang together
        ahead, found = Signal(16), self.found
        m.d.comb += [
            ahead.eq(posted - expect[:16]), Assert(ahead <= CFG.rq_entries),
            Assert(~found.touched | found.armed), Assert(~found.watched | found.armed),
            Assert(~(found.armed | found.waiting) | (ahead != 0)),
        ]


def order_check(module=admission, covers=False):
    def build(m, free_):
        o = Observed(m, free_, module)
        then, mine, found, r = o.record, o.mine, o.found, o.dut.result
        old, empty, own = r.old, r.empty, r.own
        expect, touched = Signal(32), Signal()      # the account: the next receive to complete; it has a packet
        o.posting(m, free_, expect, touched)
        e1, e2, e3 = Signal(32), Signal(32), Signal(32)
        left, left_after, since = Signal(16), Signal(16), Signal(32)
        m.d.comb += [
            e1.eq(expect + old.valid), e2.eq(Mux(empty.valid, empty.index + 1, e1)), e3.eq(e2 + own.valid),
            left.eq(then.posted - expect[:16]), left_after.eq(then.posted - e3[:16]), since.eq(o.clock - found.deadline),
        ]
        reset = then.kind == WorkKind.RESET
        event = ((then.kind == WorkKind.DEADLINE) | (then.kind == WorkKind.SERVICE)) & then.ready
        placed = mine & o.tracked & (r.job == JobKind.PLACE)
        over = found.watched & ~since[31]
        for promise in (
            # each once, in order, none that is not posted
            ~old.valid | (old.head == expect),
            ~empty.valid | (old.valid & ((empty.index - empty.skipped)[:32] == e1) & (empty.skipped < CFG.rq_entries)),
            ~own.valid | (own.index == e2),
            reset | (left_after <= left), ~(reset & (old.valid | empty.valid | own.valid)),
            # deadlines
            ~event | (old.valid == over), ~(event & old.valid) | (old.cause == CAUSE["timeout"]),
            ~(old.valid & (old.cause == CAUSE["timeout"])) | over,
            # the state that the record found is the one that the account says: this closes the induction
            (found.head == expect) & (found.touched == touched),
        ):
            m.d.comb += Assert(~mine | promise)
        m.d.comb += [Assert(found.head == expect), Assert(found.touched == touched)]
        for promise in (
            then.is_uc | (then.seq == e2), (then.posted - e2[:16])[:16] != 0,
            old.valid | ~over | then.is_uc, ~(then.is_uc & touched) | old.valid,
        ):
            m.d.comb += Assert(~placed | promise)
        # a packet passes message order if its receive is posted and it is the oldest one, in time, or becomes the oldest
        ordered = o.tracked & then.has_wqe & Mux(then.is_uc, 1, (then.seq == e2) & (old.valid | ~over))
        m.d.comb += Assert(~placed | ordered)
        with m.If(mine):
            m.d.sync += expect.eq(Mux(reset, 0, e3))
            with m.If((e3 != expect) | reset | (then.kind == WorkKind.FLUSH)):
                m.d.sync += touched.eq(0)
            with m.If(ordered & ~own.valid):
                m.d.sync += touched.eq(1)

        # jobs
        dut, frame = o.dut, o.record.kind == WorkKind.FRAME
        for promise in (
            frame == (r.job != JobKind.NONE), ~frame | ((then.verdict == Verdict.PASSED) == (r.job == JobKind.PASS)),
            (r.job != JobKind.PLACE) | ((then.verdict == Verdict.PLACED) & (dut.reason == 0)),
            ~(frame & (then.verdict == Verdict.PLACED) & (dut.reason != 0)) | (r.job == JobKind.SKIP),
        ):
            m.d.comb += Assert(~o.valid | promise)
        if covers:
            m.d.comb += [
                Cover(mine & own.valid & ~own.error & (own.index == 2), "the third receive is a success"),
                Cover(mine & old.valid & empty.valid & own.valid, "preempts, skips and completes at once"),
                Cover(mine & old.valid & (old.cause == CAUSE["timeout"]) & placed, "timed out, and the packet is for the next"),
                Cover(mine & old.valid & (old.cause == CAUSE["flushed"]) & (empty.skipped == 3), "a flush"),
                Cover(mine & own.error, "a receive that could not be read"),
                Cover(mine & event & old.valid & touched, "an event times out a message with packets"),
            ]
    return Check(build)


def bytes_check(module=admission, covers=False):
    def build(m, free_):
        o = Observed(m, free_, module)
        then, mine, found, r = o.record, o.mine, o.found, o.dut.result
        old, own = r.old, r.own
        o.posting(m, free_, found.head, found.touched)
        # the account: what has been placed of the oldest uncompleted receive
        some, total, cover, target, length = Signal(), Signal(32), Signal(32), Signal(32), Signal(32)
        placed = mine & o.tracked & (r.job == JobKind.PLACE)
        fresh = old.valid | ~some
        total1, cover1, target1, left, uncovered = (Signal(32) for _ in range(5))
        m.d.comb += [
            total1.eq(Mux(fresh, 0, total) + then.pay_len), cover1.eq(Mux(fresh, 0, cover) + then.delta),
            target1.eq(Mux(fresh, then.delta + then.rest, target)), left.eq(length - total), uncovered.eq(target - cover),
        ]
        success = mine & own.valid & ~own.error
        tells = mine & (old.valid | (own.valid & own.error & ~own.fresh))
        m.d.comb += [
            Assert(~placed | fresh | (then.msg_len == length)),
            Assert(~success | (placed & (total1 == then.msg_len) & (own.msg_len == then.msg_len) & (cover1 == target1))),
            Assert(~(mine & own.valid) | (own.fresh == fresh)),
            Assert(~tells | ((old.opcode != 0) == some)),
            Assert(~(tells & some) | ((old.msg_len == length) & (old.missing == left))),
            # this closes the induction
            Assert((found.opcode != 0) == some),
            Assert(~some | ((found.msg_len == length) & (found.missing == left) & (found.cover == uncovered))),
            Assert(~some | found.touched),
        ]
        with m.If(mine & (old.valid | own.valid | (then.kind == WorkKind.RESET) | (then.kind == WorkKind.FLUSH))):
            m.d.sync += some.eq(0)
        with m.If(placed & ~own.valid):
            m.d.sync += [some.eq(1), total.eq(total1), cover.eq(cover1), target.eq(target1), length.eq(then.msg_len)]
        if covers:
            m.d.comb += [
                Cover(success & ~own.fresh & (total == 7), "success from pieces"),
                Cover(mine & old.valid & (old.cause == CAUSE["timeout"]) & some & (old.missing == 5), "a partial message"),
                Cover(placed & ~fresh & (total1 == then.msg_len) & ~own.valid, "enough bytes, but they don't tile the message"),
            ]
    return Check(build)


def forwarding_check(module=admission):
    """Whatever the decisions are, a record finds what the records before it have left."""
    def build(m, free_):
        def forward(dut, m_, st, stored, state1, touches, qp, early, coming):
            module.Admission._forward(dut, m_, st, stored, state1, touches, qp, early, coming)
            direct = Signal.like(st, name="direct")
            m_.d.comb += [direct.eq(OpenTable.made[-1].newest(m_, qp)), Assert(~touches | (st == direct))]

        def decide(dut, m_, rec, k, st, new, room):
            m_.d.comb += new.eq(free_(Shape.cast(new.shape()), "new"))
            return module.Admission._decide(dut, m_, rec, k, st, Signal.like(new, name="not_new"), room)

        dut, m.submodules.dut, table = _built(module, _forward=forward, _decide=decide)
        free(m, free_, dut, "dut")
        never_reset(m)
        ahead = later(m, dut.next_qp, 2, "ahead")
        m.d.comb += Assume(~dut.valid | (dut.record.qp == ahead))
    return Check(build)


CHECKS = {"order": order_check, "bytes": bytes_check}


def test_forwarding():
    assert prove(forwarding_check(), 8, "prove", name="admission_forwarding")


@pytest.mark.parametrize("what", CHECKS)
def test_admission(what):
    result = prove(CHECKS[what](), 5, "prove", name=f"admission_{what}")
    assert result, result.failed


@pytest.mark.parametrize("what", CHECKS)
def test_admission_reaches_its_states(what):
    result = prove(CHECKS[what](covers=True), 12, "cover", name=f"admission_{what}")
    assert result, result.log


@pytest.mark.parametrize("check, old, new", [
    (order_check, "k.xp & ~gap[31] & ~(is_head & st.watched & ~since[31])", "k.xp & ~gap[31]"),      # places behind the deadline
    (order_check, "k.xp & ~gap[31] & ", "k.xp & "),                                                 # places what is completed
    (order_check, "Mux(steps, k.seq1, rec.seq)", "rec.seq"),                                        # completes twice
    (bytes_check, " & _equal((st.cover, rec.delta))", ""),           # a duplicate can stand for a lost piece
    (bytes_check, "tiles & same_length", "tiles"),          # two lengths in one message
    (forwarding_check, "Mux(hits[0], 1, Mux(hits[1], 2,", "Mux(hits[1], 2, Mux(hits[0], 1,"),
], ids=["deadline", "late", "twice", "duplicate", "length", "stale"])
def test_admission_broken(check, old, new):
    assert not prove(check(mutant(admission.__name__, old, new)), 9, name=f"admission_broken_{check.__name__}")
