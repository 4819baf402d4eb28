"""Admission and tracker: which message is open, what of it is in, and when it ends. The one place where messages change."""

from amaranth.hdl import Module, Signal, Cat, Mux
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.structs import CAUSE, OPCODE, STATUS
from optinic.abi.verdicts import REASON
from optinic.memory.job import JobKind
from optinic.memory.table import Table, TableSpec
from optinic.transport.xp.deadlines import LaneKind, deadline_set_layout
from optinic.transport.xp.records import Verdict, WorkKind, head_layout

__all__ = ["Admission", "admit_layout", "message_layout", "result_layout", "TABLE_LATENCY"]

TABLE_LATENCY = 2
_FORWARD = TABLE_LATENCY + 1        # results not yet visible to a read of the table


def message_layout():
    """The open message of a QP: 28 bytes."""
    return StructLayout({
        "head": 32,             # sequence of the oldest uncompleted receive
        "touched": 1,           # a packet has passed the order checks for it
        "armed": 1, "forever": 1,
        "deadline": 32,         # ticks; while not armed, the time at which it became head
        "opcode": 2,            # of its placed packets, 0: none yet
        "msg_len": 32, "missing": 32, "cover": 32,      # announced; bytes and coverage sum that are still to come
        "imm": 32, "tag": 16,
    })


def admit_layout(cfg):
    """A record at admission: what lookup, receive queue, regions and coverage found out."""
    return StructLayout({
        "kind": WorkKind, "verdict": Verdict, "reason": 5, "touches": 1,
        "beats": range(cfg.max_frame_beats + 1), "pay_off": 7, "pay_len": range(cfg.mtu_max + 1),
        "qp": cfg.qp_bits, "qpn": 24, "cq": cfg.cq_bits, "ready": 1,
        "tracked": 1, "is_uc": 1, "is_cnp": 1, "ce": 1, "opcode": 2,
        "seq": 32, "msg_len": 32, "imm": 32, "tag": 16,
        "index": 32, "has_wqe": 1, "failed": 1, "posted": 16,
        "timeout": 32, "absolute": 1,
        "addr": 64, "mem_reason": 5,
        "single": 1,            # this payload is the whole message
        "after": 32,            # msg_len - pay_len
        "delta": 32, "rest": 32,
    })


def result_layout(cfg):
    """What follows from a record: a frame's job, and up to three completions in this order: old, empty, own."""
    return StructLayout({
        "job": JobKind, "beats": range(cfg.max_frame_beats + 1), "pay_off": 7, "len": range(cfg.mtu_max + 1), "addr": 64,
        "qp": cfg.qp_bits, "fence": 1, "qpn": 24, "cq": cfg.cq_bits, "time": 48,
        "old": StructLayout({"valid": 1, "status": 2, "cause": 3, "head": 32, "opcode": 2, "msg_len": 32, "missing": 32,
                             "imm": 32, "tag": 16}),
        "empty": StructLayout({"valid": 1, "index": 32, "skipped": 16}),
        "own": StructLayout({"valid": 1, "error": 1, "fresh": 1, "index": 32, "opcode": 2, "msg_len": 32, "imm": 32, "tag": 16}),
    })


class Admission(wiring.Component):
    """Applies one record a cycle to the message table and says what follows.

    `next_qp` must show a record's QP two cycles before the record itself stands at `record` (with `valid`). The result
    appears one cycle later at `result`/`result_valid`; it can't be refused, the caller keeps room for it. State is updated
    with forwarding, so records of one QP may follow each other in every cycle.

    `now` is the NIC time in ticks, `time` in ns. Side outputs, all aligned with `result_valid`: `verdict`, `reason`, `qpn`,
    `len` for each record with `is_frame`; `head_set` and `retire` for lookup; events for the counters. `lane` sets the QP's
    deadline lane two cycles later.

    Rules: design.md section 4, and docs/architecture.md. A packet that arrives when the deadline has run out finds the message
    completed, whether the scanner has been there or not; the scanner only sees to it that this happens without a packet.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        qp = range(1 << cfg.qp_bits)
        super().__init__({
            "next_qp": In(cfg.qp_bits), "record": In(admit_layout(cfg)), "valid": In(1),
            "now": In(32), "time": In(64),
            "result": Out(result_layout(cfg)), "result_valid": Out(1),
            "is_frame": Out(1), "verdict": Out(Verdict), "reason": Out(5), "qpn": Out(24), "len": Out(range(cfg.mtu_max + 1)),
            "cnp": Out(1), "cnp_due": Out(1), "expired": Out(1), "preempted": Out(1),
            "head_set": Out(wiring.Signature({"en": Out(1), "qp": Out(qp), "entry": Out(head_layout())})),
            "retire": Out(wiring.Signature({"en": Out(1), "qp": Out(qp)})),
            "lane": Out(deadline_set_layout(cfg)),
            "clearing": Out(1),
        })

    @staticmethod
    def tables(cfg):
        return [TableSpec("message", "admission", message_layout().size, cfg.num_qps, "qp", "message")]

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = Table(self.tables(self.cfg)[0], message_layout())
        m.d.comb += [table.read0_addr.eq(self.next_qp), self.clearing.eq(table.clearing)]

        rec, st = self.record, Signal(message_layout())
        new = Signal(message_layout())          # what rec makes of st
        state1 = Signal(message_layout(), reset_less=True)
        valid1, touches1, qp1 = Signal(), Signal(), Signal(self.cfg.qp_bits, reset_less=True)
        touches = self.valid & rec.touches
        m.d.sync += [state1.eq(new), valid1.eq(self.valid), touches1.eq(touches), qp1.eq(rec.qp)]
        m.d.comb += [table.write_en.eq(touches1), table.write_addr.eq(qp1), table.write_data.eq(state1)]
        self._forward(m, st, table.read0_data, state1, touches, rec.qp)
        self._decide(m, rec, st, new)
        self._lanes(m, rec, state1, touches1, qp1)
        m.d.comb += [
            self.head_set.en.eq(touches1), self.head_set.qp.eq(qp1),
            self.head_set.entry.head.eq(state1.head), self.head_set.entry.touched.eq(state1.touched),
            self.retire.en.eq(valid1), self.retire.qp.eq(qp1), self.result_valid.eq(valid1),
        ]
        return m

    def _forward(self, m, st, stored, state1, touches, qp):
        """The newest state of the record's QP: of the last three results if one is of this QP, else the table's."""
        # `ahead` is the QP of the record that comes to `record` in the next cycle
        ahead = Signal(self.cfg.qp_bits, reset_less=True)
        m.d.sync += ahead.eq(self.next_qp)
        states, qps, live = [state1], [qp], [touches]
        for i in range(2, _FORWARD + 1):
            s = Signal(message_layout(), name=f"state{i}", reset_less=True)
            q, v = Signal(self.cfg.qp_bits, name=f"done_qp{i}", reset_less=True), Signal(name=f"done{i}")
            m.d.sync += [s.eq(states[-1]), q.eq(qps[-1]), v.eq(live[-1])]
            states.append(s), qps.append(q), live.append(v)
        hits = []
        for i in range(_FORWARD):       # compared one cycle early: the result is then one stage further on
            hit = Signal(name=f"hit{i}")
            m.d.sync += hit.eq(live[i] & (qps[i] == ahead))
            hits.append(hit)
        with m.If(hits[0]):
            m.d.comb += st.eq(states[0])
        for hit, state in zip(hits[1:], states[1:]):
            with m.Elif(hit):
                m.d.comb += st.eq(state)
        with m.Else():
            m.d.comb += st.eq(stored)

    def _decide(self, m, rec, st, new):
        frame = rec.tracked & (rec.kind == WorkKind.FRAME) & (rec.verdict == Verdict.PLACED)
        event = ((rec.kind == WorkKind.SERVICE) | (rec.kind == WorkKind.DEADLINE)) & rec.ready
        flush, reset = rec.kind == WorkKind.FLUSH, rec.kind == WorkKind.RESET

        # message order: where the packet stands against head. A UC packet takes the oldest receive without a packet.
        gap, since = Signal(32), Signal(32)
        m.d.comb += [gap.eq(rec.seq - st.head), since.eq(self.now - st.deadline)]
        out_of_time = Signal()
        m.d.comb += out_of_time.eq(st.armed & ~st.forever & ~since[31] & ~(rec.is_uc & frame & ~st.touched))
        same = Signal()
        m.d.comb += same.eq(Mux(rec.is_uc, ~st.touched, rec.seq == st.head))
        avail = Signal(16)
        m.d.comb += avail.eq(rec.posted - st.head[:16])
        ahead16 = Mux(rec.is_uc, st.touched, gap[:16])
        late, absent, order_ok = Signal(), Signal(), Signal()
        m.d.comb += [
            late.eq(~rec.is_uc & (gap[31] | (same & out_of_time))),
            absent.eq((~rec.is_uc & gap[16:31].any()) | (ahead16 >= avail)),
            order_ok.eq(frame & ~late & ~absent),
        ]
        moves = order_ok & ~same

        # memory, and what the packet adds
        opened = same & (st.opcode != 0)
        other_length = opened & (st.msg_len != rec.msg_len)
        sound = (rec.mem_reason == 0) & ~rec.failed
        place = order_ok & sound & ~other_length
        full = Mux(opened, (st.missing == rec.pay_len) & (st.cover == rec.delta), rec.single)
        event_wqe = event & ~out_of_time & ~st.armed & rec.has_wqe & (rec.index == st.head)
        broken = (order_ok | event_wqe) & rec.failed
        closes = (place & full) | broken
        expires = (frame | event) & out_of_time

        # the new state
        s = Signal(32)      # the message that the record is about
        m.d.comb += s.eq(Mux(rec.is_uc | ~frame, st.head + (st.touched & frame), rec.seq))
        # head moves by a choice of base and increment, so that there is one adder
        base, step = Signal(32), Signal(16)
        m.d.comb += base.eq(Mux(order_ok & ~rec.is_uc, rec.seq, st.head))
        with m.If(flush):
            m.d.comb += step.eq(avail)
        with m.Elif(order_ok):
            m.d.comb += step.eq(closes + (rec.is_uc & st.touched))
        with m.Else():
            m.d.comb += step.eq(expires | broken)
        ends = closes | (expires & ~order_ok) | flush | reset       # the new head has no packet and no clock yet
        starts = order_ok & ~closes & (moves | ~st.armed)           # its clock starts now, or started when it became head
        clock = starts | (event_wqe & ~rec.failed)
        m.d.comb += [
            new.head.eq(Mux(reset, 0, base + step)),
            new.touched.eq(~ends & (order_ok | st.touched)),
            new.armed.eq(~ends & (clock | st.armed)),
            new.forever.eq(Mux(clock, ~rec.absolute & (rec.timeout == 0), st.forever)),
            new.opcode.eq(Mux(ends, 0, Mux(place, rec.opcode, Mux(moves, 0, st.opcode)))),
            new.msg_len.eq(Mux(place, rec.msg_len, st.msg_len)),
            new.missing.eq(Mux(place, Mux(opened, st.missing - rec.pay_len, rec.after), st.missing)),
            new.cover.eq(Mux(place, Mux(opened, st.cover - rec.delta, rec.rest), st.cover)),
            new.imm.eq(Mux(place, rec.imm, st.imm)), new.tag.eq(Mux(place, rec.tag, st.tag)),
        ]
        with m.If(ends):
            m.d.comb += new.deadline.eq(self.now)
        with m.Elif(clock):
            origin = Mux(moves, self.now, st.deadline)
            m.d.comb += new.deadline.eq(Mux(rec.absolute, 0, origin) + rec.timeout)     # ticks, modulo 2^32
        with m.Else():
            m.d.comb += new.deadline.eq(st.deadline)
        self._results(m, rec, st, locals())

    def _results(self, m, rec, st, d):
        """Registered outputs; `d` holds the decisions."""
        r, frame, flush = self.result, d["frame"], d["flush"]
        verdict, reason = Signal(Verdict), Signal(5)
        m.d.comb += [verdict.eq(rec.verdict), reason.eq(rec.reason)]
        candidate = (rec.kind == WorkKind.FRAME) & (rec.verdict == Verdict.PLACED)
        with m.If(candidate & rec.tracked & d["late"]):
            m.d.comb += [verdict.eq(Verdict.DROPPED), reason.eq(REASON["late"])]
        with m.Elif(candidate & rec.tracked & d["absent"]):
            m.d.comb += [verdict.eq(Verdict.DROPPED), reason.eq(REASON["no_receive"])]
        with m.Elif(candidate & rec.tracked & d["other_length"]):
            m.d.comb += [verdict.eq(Verdict.DROPPED), reason.eq(REASON["length"])]
        with m.Elif(candidate & rec.tracked & rec.failed):
            m.d.comb += [verdict.eq(Verdict.DROPPED), reason.eq(REASON["no_receive"])]
        with m.Elif(candidate & (rec.mem_reason != 0)):
            m.d.comb += [verdict.eq(Verdict.DROPPED), reason.eq(rec.mem_reason)]

        is_frame, job = rec.kind == WorkKind.FRAME, Signal(JobKind)
        with m.If(is_frame):
            with m.Switch(verdict):
                with m.Case(Verdict.PLACED):
                    m.d.comb += job.eq(JobKind.PLACE)
                with m.Case(Verdict.PASSED):
                    m.d.comb += job.eq(JobKind.PASS)
                with m.Default():
                    m.d.comb += job.eq(JobKind.SKIP)
        m.d.sync += [
            r.job.eq(job), r.beats.eq(rec.beats), r.pay_off.eq(rec.pay_off), r.len.eq(rec.pay_len), r.addr.eq(rec.addr),
            r.qp.eq(rec.qp), r.qpn.eq(rec.qpn), r.cq.eq(rec.cq), r.time.eq(self.time),
            r.fence.eq((rec.kind == WorkKind.RESET) | flush | (rec.kind == WorkKind.FENCE)),
        ]
        any_posted = d["avail"] != 0
        old = (flush & any_posted) | d["expires"] | d["moves"]
        m.d.sync += [
            r.old.valid.eq(old), r.old.status.eq(Mux(flush, STATUS["error"], STATUS["partial"])),
            r.old.cause.eq(Mux(flush, CAUSE["flushed"], Mux(d["expires"], CAUSE["timeout"], CAUSE["preempted"]))),
            *(r.old[k].eq(st[k]) for k in ("head", "opcode", "msg_len", "missing", "imm", "tag")),
        ]
        # gap and avail count the receives from head on; all but the first and the last of them are `skipped`
        m.d.sync += [
            r.empty.valid.eq(Mux(flush, d["avail"][1:].any(), d["moves"] & ~rec.is_uc & d["gap"][1:].any())),
            r.empty.index.eq(Mux(flush, st.head + d["avail"] - 1, rec.seq - 1)),
            r.empty.skipped.eq(Mux(flush, d["avail"], d["gap"][:16]) - 2),
        ]
        m.d.sync += [
            r.own.valid.eq(d["closes"]), r.own.error.eq(d["broken"]), r.own.fresh.eq(~d["opened"]), r.own.index.eq(d["s"]),
            r.own.opcode.eq(rec.opcode), r.own.msg_len.eq(rec.msg_len), r.own.imm.eq(rec.imm), r.own.tag.eq(rec.tag),
        ]
        placed = is_frame & (verdict == Verdict.PLACED)
        m.d.sync += [
            self.is_frame.eq(is_frame & self.valid), self.verdict.eq(verdict), self.reason.eq(reason), self.qpn.eq(rec.qpn),
            self.len.eq(rec.pay_len),
            self.cnp.eq(self.valid & is_frame & (verdict == Verdict.CONSUMED) & rec.is_cnp),
            self.cnp_due.eq(self.valid & placed & rec.ce),
            self.expired.eq(self.valid & d["expires"]), self.preempted.eq(self.valid & d["moves"] & ~d["expires"]),
        ]

    def _lanes(self, m, rec, state1, touches1, qp1):
        """What the scanner shall do for the QP: watch the head's deadline, or come back to start its clock."""
        posted1, ready1, now1 = Signal(16, reset_less=True), Signal(reset_less=True), Signal(32, reset_less=True)
        m.d.sync += [posted1.eq(rec.posted), ready1.eq(rec.ready), now1.eq(self.now)]
        lane = self.lane
        left = Signal(32, reset_less=True)
        due, now2 = Signal(32, reset_less=True), Signal(32, reset_less=True)
        armed2, forever2, wants2, en2 = (Signal(name=n, reset_less=n != "lane_en") for n in
                                         ("lane_armed", "lane_forever", "lane_wants", "lane_en"))
        qp2 = Signal.like(qp1, reset_less=True)
        m.d.sync += [
            en2.eq(touches1), qp2.eq(qp1), due.eq(state1.deadline), left.eq(state1.deadline - now1), now2.eq(now1),
            armed2.eq(state1.armed), forever2.eq(state1.forever), wants2.eq(ready1 & (posted1 != state1.head[:16])),
        ]
        # a deadline further off than the lane can say is approached in steps; rounding up, so that it never fires early
        far = ~left[31] & left[18:31].any()
        m.d.sync += [
            lane.en.eq(en2), lane.qp.eq(qp2), lane.kind.eq(Mux(armed2, LaneKind.DEADLINE, LaneKind.SERVICE)),
            lane.active.eq(Mux(armed2, ~forever2, wants2)),
            lane.coarse.eq(Mux(far, now2[4:20] + (1 << 14), due[4:20] + due[:4].any())),
        ]
