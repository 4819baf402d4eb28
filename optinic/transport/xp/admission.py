"""Admission and tracker: which message is open, what of it is in, and when it ends. The one place where messages change."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.structs import CAUSE, STATUS
from optinic.abi.verdicts import REASON
from optinic.memory.job import JobKind
from optinic.memory.table import Table, TableSpec, alarm_members, connect_alarms, protect
from optinic.transport.xp.deadlines import LaneKind, deadline_set_layout
from optinic.transport.xp.message_pool import LEAD, MessagePool
from optinic.transport.xp.records import Verdict, WorkKind, head_layout

__all__ = ["Admission", "admit_layout", "lead", "message_layout", "result_layout"]

_LEAD = 3           # cycles from a QP's index to the decision about its record, where each QP has a row


def message_layout():
    """The open message of a QP: 28 bytes."""
    return StructLayout({
        "head": 32,             # sequence of the oldest uncompleted receive
        "touched": 1,           # a packet has passed the order checks for it
        "waiting": 1,           # it is posted, and its clock runs from `deadline` although its WQE isn't known yet
        "armed": 1, "watched": 1,       # its clock has started and its WQE is known; and it has a deadline
        "deadline": 32,         # ticks; while `waiting`, the time at which it became head
        "opcode": 3,            # of its placed packets, 0: none yet
        "msg_len": 32, "missing": 32, "cover": 32,      # announced; bytes and coverage sum that are still to come
        "imm": 32, "tag": 16,
    })


def lead(cfg):
    """Cycles by which `next_qp` is ahead of the record."""
    return (LEAD if cfg.messages_pooled else _LEAD) - 1


def admit_layout(cfg):
    """A record at admission: what lookup, receive queue, regions and coverage found out."""
    return StructLayout({
        "kind": WorkKind, "verdict": Verdict, "reason": 5, "touches": 1,
        "beats": range(cfg.max_frame_beats + 1), "pay_off": 7, "pay_len": range(cfg.mtu_max + 1),
        "qp": cfg.qp_bits, "qpn": 24, "cq": cfg.cq_bits, "ready": 1, "known": 1,
        "tracked": 1, "is_uc": 1, "is_cnp": 1, "is_read": 1, "ce": 1, "opcode": 3,
        "seq": 32, "msg_len": 32, "imm": 32, "tag": 16,
        "index": 32, "has_wqe": 1, "failed": 1, "posted": 16,
        "timeout": 32, "absolute": 1,
        "addr": 64, "mem_reason": 5,
        "single": 1,            # this payload is the whole message
        "after": 32,            # msg_len - pay_len
        "delta": 32, "rest": 32,
    })


def result_layout(cfg):
    """What follows from a record: a frame's job, up to three completions in this order: old, empty, own; and an entry in the log."""
    return StructLayout({
        "job": JobKind, "beats": range(cfg.max_frame_beats + 1), "pay_off": 7, "len": range(cfg.mtu_max + 1), "addr": 64,
        "qp": cfg.qp_bits, "fence": 1, "ends_life": 1, "qpn": 24, "cq": cfg.cq_bits, "time": 48,
        "refused": 1, "reason": 5, "seq": 32,       # a frame of an existing QP was refused: for the log
        "old": StructLayout({"valid": 1, "status": 2, "cause": 3, "head": 32, "opcode": 3, "msg_len": 32, "missing": 32,
                             "imm": 32, "tag": 16}),
        "empty": StructLayout({"valid": 1, "index": 32, "skipped": 16}),
        "own": StructLayout({"valid": 1, "error": 1, "fresh": 1, "index": 32, "opcode": 3, "msg_len": 32, "imm": 32, "tag": 16}),
    })


def _equal(*pairs):
    """Whether all pairs of values are equal, by the carry of an increment over groups of three bits: a carry chain takes the place
    of two or three levels of LUTs in the one loop that has to close within a cycle."""
    groups = []
    for a, b in pairs:
        groups += [a[i:i + 3] == b[i:i + 3] for i in range(0, len(a), 3)]
    return (Cat(groups) + 1)[len(groups)]


class Admission(wiring.Component):
    """Applies one record a cycle to the message table and says what follows.

    `next_qp` must show a record's QP lead(cfg) cycles before the record itself stands at `record` (with `valid`). The result
    appears ``LATENCY`` cycles later at `result`/`result_valid`; it can't be refused, the caller keeps room for it. State is updated
    with forwarding, so records of one QP may follow each other in every cycle.

    `now` is the NIC time in ticks, `time` in ns. Side outputs, all aligned with `result_valid`: `verdict`, `reason`, `qpn`,
    `len` for each record with `is_frame`; `head_set` and `retire` for lookup; events for the counters. `lane` sets the QP's
    deadline lane four cycles after the record.

    The state of an open message is in a row of its QP, or (knob open_messages) in one of a pool that all QPs share. A packet
    that would open one more message than the pool has room for is refused ("overflow"); a message of one packet needs no row.

    Rules: design.md section 4, and docs/architecture.md. A packet that arrives when the deadline has run out finds the message
    completed, whether the scanner has been there or not; the scanner only sees to it that this happens without a packet.
    """

    LATENCY = 3

    def __init__(self, cfg):
        self.cfg = cfg
        qp = range(1 << cfg.qp_bits)
        super().__init__({
            "next_qp": In(cfg.qp_bits), "record": In(admit_layout(cfg)), "valid": In(1),
            "now": In(32), "time": In(64),
            "result": Out(result_layout(cfg)), "result_valid": Out(1),
            "is_frame": Out(1), "verdict": Out(Verdict), "reason": Out(5), "qpn": Out(24), "len": Out(range(cfg.mtu_max + 1)),
            "cnp": Out(1), "read": Out(1), "cnp_due": Out(1), "expired": Out(1), "preempted": Out(1),
            "head_set": Out(wiring.Signature({"en": Out(1), "qp": Out(qp), "entry": Out(head_layout())})),
            "retire": Out(wiring.Signature({"en": Out(1), "qp": Out(qp)})),
            "lane": Out(deadline_set_layout(cfg)),
            "clearing": Out(1),
        } | alarm_members(cfg))

    @staticmethod
    def tables(cfg):
        if cfg.messages_pooled:
            return MessagePool.tables(cfg, message_layout())
        return protect(cfg, [TableSpec("message", "admission", message_layout().size, cfg.num_qps, "qp", "message")])

    def elaborate(self, platform):
        m = Module()
        rec, k, valid = self._prepare(m)
        # what `rec` makes of `st` is `new`
        st = Signal(message_layout())
        new = Signal(message_layout())
        state1 = Signal(message_layout(), reset_less=True)
        valid1 = Signal()
        touches1 = Signal()
        qp1 = Signal(self.cfg.qp_bits, reset_less=True)
        touches = valid & rec.touches
        m.d.sync += [state1.eq(new), valid1.eq(valid), touches1.eq(touches), qp1.eq(rec.qp)]
        keep = self._pooled if self.cfg.messages_pooled else self._by_qp
        room = keep(m, st, state1, touches, rec.qp, touches1, qp1)
        facts = self._decide(m, rec, k, st, new, room)
        self._results(m, facts, valid1)
        self._lanes(m, rec, k, state1, touches1, qp1)
        m.d.comb += [
            self.head_set.en.eq(touches1), self.head_set.qp.eq(qp1),
            self.head_set.entry.head.eq(state1.head), self.head_set.entry.touched.eq(state1.touched),
            self.retire.en.eq(valid1), self.retire.qp.eq(qp1),
        ]
        return m

    def _by_qp(self, m, st, state1, touches, qp, touches1, qp1):
        """The state from a row of the QP; there is always room."""
        m.submodules.table = table = Table(self.tables(self.cfg)[0], message_layout(), latency=1)
        connect_alarms(m, self, [table])
        # `early` is two cycles, `coming` one cycle before the decision, which is made one cycle after `record`
        early = Signal(self.cfg.qp_bits, reset_less=True)
        coming = Signal(self.cfg.qp_bits, reset_less=True)
        m.d.sync += [early.eq(self.next_qp), coming.eq(early)]
        m.d.comb += [
            table.read0_addr.eq(early), self.clearing.eq(table.clearing),
            table.write_en.eq(touches1), table.write_addr.eq(qp1), table.write_data.eq(state1),
        ]
        self._forward(m, st, table.read0_data, state1, touches, qp, early, coming)
        return C(1)

    def _pooled(self, m, st, state1, touches, qp, touches1, qp1):
        m.submodules.pool = pool = MessagePool(self.cfg, message_layout())
        connect_alarms(m, self, [pool])
        m.d.comb += [pool.next_qp.eq(self.next_qp), pool.qp.eq(qp), pool.touches.eq(touches), pool.last.eq(state1),
                     st.eq(pool.st), self.clearing.eq(pool.clearing)]
        return pool.room

    def _prepare(self, m):
        """The record in a register, and beside it what the decision needs and the record alone can tell."""
        r = self.record
        rec = Signal(admit_layout(self.cfg), reset_less=True)
        valid = Signal()
        k = Signal(StructLayout({
            "frame": 1, "xp": 1, "uc": 1,       # a tracked packet; one whose receive is posted, XP or UC
            "event": 1, "wqe_event": 1, "flush": 1, "reset": 1,
            "sound": 1, "alone": 1,             # memory says yes; and the packet is the whole message
            "seq1": 32, "more": 1,              # the next message's sequence; and a receive is posted for that
            "now": 32, "start": 32, "forever": 1,
        }), reset_less=True)
        frame = r.touches & (r.kind == WorkKind.FRAME)
        event = ((r.kind == WorkKind.SERVICE) | (r.kind == WorkKind.DEADLINE)) & r.ready
        sound = (r.mem_reason == 0) & ~r.failed
        m.d.sync += [
            rec.eq(r), valid.eq(self.valid), k.frame.eq(frame), k.xp.eq(frame & r.has_wqe & ~r.is_uc),
            k.uc.eq(frame & r.has_wqe & r.is_uc), k.event.eq(event), k.wqe_event.eq(event & r.has_wqe),
            k.flush.eq(r.kind == WorkKind.FLUSH), k.reset.eq(r.kind == WorkKind.RESET), k.sound.eq(sound),
            k.alone.eq(sound & r.single), k.seq1.eq(r.seq + 1), k.more.eq(r.posted != (r.seq + 1)[:16]), k.now.eq(self.now),
            k.start.eq(Mux(r.absolute, 0, self.now) + r.timeout), k.forever.eq(~r.absolute & (r.timeout == 0)),
        ]
        return rec, k, valid

    def _forward(self, m, st, stored, state1, touches, qp, early, coming):
        """The newest state of the record's QP: of the last three results if one is of this QP, else the table's. All but the last result
        are chosen from in front of a register, which leaves the decision's loop a choice of two."""
        state2 = Signal(message_layout(), reset_less=True)
        qp1 = Signal(self.cfg.qp_bits, name="done_qp1", reset_less=True)
        live1 = Signal(name="done1")
        m.d.sync += [state2.eq(state1), qp1.eq(qp), live1.eq(touches)]
        # compared one cycle early, when each result is one stage back
        newest, again = Signal(2), Signal()
        hits = [touches & (qp == early), live1 & (qp1 == early)]
        m.d.sync += [newest.eq(Mux(hits[0], 1, Mux(hits[1], 2, 0))), again.eq(touches & (qp == coming))]
        found = Signal(message_layout(), reset_less=True)
        with m.Switch(newest):
            for i, state in enumerate((stored, state1, state2)):
                with m.Case(i):
                    m.d.sync += found.eq(state)
        m.d.comb += st.eq(Mux(again, state1, found))

    def _decide(self, m, rec, k, st, new, room):
        """One cycle from the old state to the new one, in eight levels of logic: written as it is to be mapped. `room`: a row
        for a message that has none may be had."""
        def signal(name, value, width=1):
            out = Signal(width, name=name)
            m.d.comb += out.eq(value)
            return out

        # Message order: where the packet stands against head. Lookup has found that its receive is posted (`has_wqe`), judging
        # by a head that may be older but never newer; so it is in the ring's reach, 16 bits tell whether it is head, and
        # without `has_wqe` it is either before head or not posted. A UC packet takes the oldest receive without a packet.
        gap = signal("gap", rec.seq - st.head, 32)
        since = signal("since", k.now - st.deadline, 32)
        is_head = signal("is_head", _equal((rec.seq[:16], st.head[:16])))
        order_xp = signal("order_xp", k.xp & ~gap[31] & ~(is_head & st.watched & ~since[31]))
        order_ok = signal("order_ok", order_xp | k.uc)
        same = signal("same", Mux(rec.is_uc, ~st.touched, is_head))
        moves = signal("moves", order_ok & ~same)
        late = signal("late", k.frame & ~rec.is_uc & (gap[31] | (is_head & rec.has_wqe & st.watched & ~since[31])))
        expires = signal("expires", st.watched & ~since[31] & (k.event | (k.frame & (~rec.is_uc | st.touched))))

        # memory, and what the packet adds
        opened = signal("opened", ~rec.is_uc & is_head & (st.opcode != 0))
        same_length = signal("same_length", _equal((st.msg_len, rec.msg_len)))
        tiles = signal("tiles", _equal((st.missing, (rec.pay_len | C(0, 32)))) & _equal((st.cover, rec.delta)))
        fills = signal("fills", Mux(opened, k.sound & tiles & same_length, k.alone))
        stands = signal("stands", room | k.alone | (st.opcode != 0))       # it has a row, can have one, or needs none
        place = signal("place", order_ok & k.sound & stands & (~opened | same_length))
        begins = signal("begins", k.wqe_event & ~st.armed & _equal((rec.index, st.head)))     # an event with the head's WQE
        closes = signal("closes", (order_ok & (fills | rec.failed)) | (begins & rec.failed))
        steps = signal("steps", closes | (expires & ~order_ok))

        # the new state. `ends`: the new head has no packet, and its clock runs if it is posted. `clock`: the head's WQE is here,
        # so its deadline is known; it counts from now for one that has just become head or been posted, else from when it was
        avail = signal("avail", rec.posted - st.head[:16], 16)
        passed = k.uc & st.touched
        stay, step = signal("stay", st.head + passed, 32), signal("step", st.head + passed + 1, 32)
        # head + avail: up to the next number that ends in `posted`
        flushed = Cat(rec.posted, (st.head + Cat(~rec.posted, C(0, 16)))[16:32])
        rest = signal("rest", Mux(k.flush, flushed, Mux(k.reset, 0, stay)), 32)
        ends = signal("ends", steps | k.flush | k.reset)
        clock = signal("clock", (order_ok & (~same | ~st.armed)) | begins)
        since_head = signal("since_head", Mux(rec.absolute, 0, st.deadline) + rec.timeout, 32)
        notices = signal("notices", k.event & ~st.armed & ~st.waiting & ~begins)
        left = signal("left", avail != 1 + passed)      # receives posted behind the one that ends
        m.d.comb += [
            new.head.eq(Mux(order_xp, Mux(steps, k.seq1, rec.seq), Mux(steps, step, rest))),
            new.touched.eq(~ends & (order_ok | st.touched)),
            new.armed.eq(~ends & (clock | st.armed)),
            new.watched.eq(~ends & Mux(clock, ~k.forever, st.watched)),
            new.waiting.eq(Mux(ends, ~(k.flush | k.reset) & Mux(order_xp, k.more, left), st.waiting | (notices & (avail != 0)))),
            new.deadline.eq(Mux(ends | notices, k.now, Mux(clock & (moves | ~st.waiting), k.start,
                                                           Mux(clock, since_head, st.deadline)))),
            new.opcode.eq(Mux(ends, 0, Mux(place, rec.opcode, Mux(moves, 0, st.opcode)))),
            new.msg_len.eq(Mux(place, rec.msg_len, st.msg_len)),
            new.missing.eq(Mux(place, Mux(opened, st.missing - rec.pay_len, rec.after), st.missing)),
            new.cover.eq(Mux(place, Mux(opened, st.cover - rec.delta, rec.rest), st.cover)),
            new.imm.eq(Mux(place, rec.imm, st.imm)), new.tag.eq(Mux(place, rec.tag, st.tag)),
        ]

        # what the results are made of, one cycle later
        facts = StructLayout({
            "frame": 1, "flush": 1, "late": 1, "no_receive": 1, "other_length": 1, "no_room": 1, "moves": 1, "opened": 1, "broken": 1,
            "closes": 1, "expires": 1, "avail": 16, "gap": 16, "old": message_layout(), "rec": rec.shape(), "time": 48,
        })
        f = Signal(facts, reset_less=True)
        m.d.sync += [
            f.frame.eq(k.frame), f.flush.eq(k.flush), f.late.eq(late), f.no_receive.eq(k.frame & (~rec.has_wqe | rec.failed)),
            f.other_length.eq(k.xp & opened & ~same_length), f.no_room.eq(order_ok & k.sound & ~stands),
            f.moves.eq(moves), f.opened.eq(opened), f.broken.eq(rec.failed), f.closes.eq(closes),
            f.expires.eq(expires), f.avail.eq(avail), f.gap.eq(gap), f.old.eq(st), f.rec.eq(rec), f.time.eq(self.time),
        ]
        return f

    def _results(self, m, f, valid1):
        """From the facts of a decision to the registered outputs."""
        r, rec, old = self.result, f.rec, f.old
        is_frame = rec.kind == WorkKind.FRAME
        verdict = Signal(Verdict)
        reason = Signal(5)
        m.d.comb += [verdict.eq(rec.verdict), reason.eq(rec.reason)]
        refused = Signal(5)
        drop = Signal()
        m.d.comb += drop.eq(f.late | f.other_length | f.no_receive | f.no_room
                            | (is_frame & ((rec.verdict == Verdict.PLACED) | ((rec.verdict == Verdict.CONSUMED) & rec.is_read)) & (rec.mem_reason != 0)))
        with m.If(f.late):
            m.d.comb += refused.eq(REASON["late"])
        with m.Elif(f.no_receive):
            m.d.comb += refused.eq(REASON["no_receive"])
        with m.Elif(f.other_length):
            m.d.comb += refused.eq(REASON["length"])
        with m.Elif(f.no_room):
            m.d.comb += refused.eq(REASON["overflow"])
        with m.Else():
            m.d.comb += refused.eq(rec.mem_reason)
        with m.If(drop):
            m.d.comb += [verdict.eq(Verdict.DROPPED), reason.eq(refused)]

        job = Signal(JobKind)
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
            r.qp.eq(rec.qp), r.qpn.eq(rec.qpn), r.cq.eq(rec.cq), r.time.eq(f.time),
            r.ends_life.eq(rec.kind == WorkKind.RESET), r.fence.eq((rec.kind == WorkKind.RESET) | f.flush | (rec.kind == WorkKind.FENCE)),
        ]
        m.d.sync += [r.refused.eq(rec.known & (drop | (rec.verdict == Verdict.DROPPED))), r.reason.eq(reason), r.seq.eq(rec.seq)]
        cause = Mux(f.flush, CAUSE["flushed"], Mux(f.expires, CAUSE["timeout"], CAUSE["preempted"]))
        m.d.sync += [
            r.old.valid.eq((f.flush & (f.avail != 0)) | f.expires | f.moves),
            r.old.status.eq(Mux(f.flush, STATUS["error"], STATUS["partial"])), r.old.cause.eq(cause),
            *(r.old[k].eq(old[k]) for k in ("head", "opcode", "msg_len", "missing", "imm", "tag")),
        ]
        # gap and avail count the receives from head on; all but the first and the last of them are `skipped`
        m.d.sync += [
            r.empty.valid.eq(Mux(f.flush, f.avail[1:].any(), f.moves & ~rec.is_uc & f.gap[1:].any())),
            r.empty.index.eq(Mux(f.flush, old.head + f.avail - 1, rec.seq - 1)),
            r.empty.skipped.eq(Mux(f.flush, f.avail, f.gap) - 2),
        ]
        m.d.sync += [
            r.own.valid.eq(f.closes), r.own.error.eq(f.broken), r.own.fresh.eq(~f.opened),
            r.own.index.eq(Mux(rec.is_uc | ~f.frame, old.head + (old.touched & f.frame), rec.seq)),
            r.own.opcode.eq(rec.opcode), r.own.msg_len.eq(rec.msg_len), r.own.imm.eq(rec.imm), r.own.tag.eq(rec.tag),
        ]
        counts = valid1 & is_frame
        m.d.sync += [
            self.result_valid.eq(valid1), self.is_frame.eq(counts), self.verdict.eq(verdict), self.reason.eq(reason),
            self.qpn.eq(rec.qpn), self.len.eq(rec.pay_len),
            self.cnp.eq(counts & (verdict == Verdict.CONSUMED) & rec.is_cnp), self.read.eq(counts & (verdict == Verdict.CONSUMED) & rec.is_read),
            self.cnp_due.eq(counts & (verdict == Verdict.PLACED) & rec.ce),
            self.expired.eq(valid1 & f.expires), self.preempted.eq(valid1 & f.moves & ~f.expires),
        ]

    def _lanes(self, m, rec, k, state1, touches1, qp1):
        """What the scanner shall do for the QP: watch the head's deadline, or come back to start its clock."""
        posted1 = Signal(16, reset_less=True)
        ready1 = Signal(reset_less=True)
        now1 = Signal(32, reset_less=True)
        m.d.sync += [posted1.eq(rec.posted), ready1.eq(rec.ready), now1.eq(k.now)]
        lane = self.lane
        left = Signal(32, reset_less=True)
        due = Signal(32, reset_less=True)
        now2 = Signal(32, reset_less=True)
        armed2, watched2, wants2, en2 = (Signal(name=n, reset_less=n != "lane_en") for n in
                                         ("lane_armed", "lane_watched", "lane_wants", "lane_en"))
        qp2 = Signal.like(qp1, reset_less=True)
        m.d.sync += [
            en2.eq(touches1), qp2.eq(qp1), due.eq(state1.deadline), left.eq(state1.deadline - now1), now2.eq(now1),
            armed2.eq(state1.armed), watched2.eq(state1.watched), wants2.eq(ready1 & (posted1 != state1.head[:16])),
        ]
        # A deadline further off than the lane can say is approached in steps; rounding up, so that it never fires early. A head
        # without a clock is given a unit of time in which the next packet, which brings the WQE along, may start it.
        far = ~left[31] & left[18:31].any()
        m.d.sync += [
            lane.en.eq(en2), lane.qp.eq(qp2), lane.kind.eq(Mux(armed2, LaneKind.DEADLINE, LaneKind.SERVICE)),
            lane.active.eq(Mux(armed2, watched2, wants2)),
            lane.coarse.eq(Mux(~armed2, now2[4:20] + 1, Mux(far, now2[4:20] + (1 << 14), due[4:20] + due[:4].any()))),
        ]
