"""The first stage behind the ingress of transport rc: every decision about a frame that doesn't need memory."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import QP_STATE, QP_TYPE
from optinic.abi.verdicts import REASON
from optinic.memory.table import Table, TableSpec, alarm_members, connect_alarms, protect
from optinic.rx.descriptor import descriptor_layout
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.transport.rc import checks, intake, requester, responder
from optinic.transport.rc.records import Turn, context_layout, rules_layout, turn_layout, work_layout
from optinic.transport.xp.deadlines import deadline_event_layout, deadline_set_layout
from optinic.transport.xp.records import Verdict, WorkKind, peer_layout
from optinic.tx.records import failed_layout, outstanding_layout as sent_layout

__all__ = ["RcOrder", "command_layout"]


def command_layout(cfg):
    """RESET begins a life with these PSNs: the first one expected, and the first one sent."""
    return StructLayout({"kind": WorkKind, "qp": cfg.qp_bits, "expected": 24, "psn": 24})


class RcOrder(wiring.Component):
    """A sequential machine that takes one input at a time: a frame, a doorbell, a command, what the send half tells (`failed`), or
    a time that has come (`deadlines`). It owns the PSNs of both directions, the message under way, the requests that are
    not acknowledged, the timers and retry counts, and decides all that follows from these (responder.py, requester.py). What needs
    memory, or the order of what has been decided before, is left to RcCommit: `work` says what to do, in order.

    A request takes six cycles, an answer four more and two for each request that it completes. Commands go first, then
    doorbells and what the send half tells; frames and deadlines take turns. All inputs wait; nothing is lost. `outstanding`
    can't wait, and need not: its table has no other writer, but for RESET, which clears the QP's part (the send half begins the
    new life behind it). READs and atomics are taken as long as at most `cfg.read_jobs` - 1 of them wait (`job_over` pulses
    when one has been taken by the send half, or given up).

    `lane` sets the QP's timer in the scanner. `aside` as in xp's Lookup.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        qp = range(1 << cfg.qp_bits)
        super().__init__({
            "frames": In(stream.Signature(descriptor_layout(cfg))), "deadlines": In(stream.Signature(deadline_event_layout(cfg))),
            "doorbells": In(stream.Signature(32)), "sq_doorbells": In(stream.Signature(32)),
            "commands": In(stream.Signature(command_layout(cfg))), "failed": In(stream.Signature(failed_layout(cfg))),
            "outstanding": In(PushSignature(sent_layout(cfg))), "job_over": In(2),
            "work": Out(stream.Signature(work_layout(cfg))), "lane": Out(deadline_set_layout(cfg)),
            "context_set": In(wiring.Signature({"en": Out(1), "qp": Out(qp), "entry": Out(context_layout(cfg))})),
            "rules_set": In(wiring.Signature({"en": Out(1), "qp": Out(qp), "entry": Out(rules_layout(cfg))})),
            "peer_set": In(wiring.Signature({"en": Out(1), "index": Out(range(cfg.num_peers)), "entry": Out(peer_layout(cfg))})),
            "pkey": In(16), "now": In(32),
            "aside_qp": In(cfg.qp_bits), "aside": Out(context_layout(cfg)), "aside_busy": Out(1),
            "event_timeout": Out(1), "event_back": Out(1), "event_rnr": Out(1), "event_duplicate": Out(1),
            "clearing": Out(1), "idle": Out(1),
        } | alarm_members(cfg))

    @staticmethod
    def tables(cfg):
        own = dict(owner="rc order", depth=cfg.num_qps, per="qp")
        return protect(cfg, [
            TableSpec("qp_context", width=context_layout(cfg).size, kind="context", **own),
            TableSpec("rc_rules", width=rules_layout(cfg).size, kind="context", **own),
            TableSpec("posted", width=16, kind="hot", **own),
            *responder.tables(cfg), *requester.tables(cfg),
            TableSpec("peer", owner="rc order", width=peer_layout(cfg).size, depth=cfg.num_peers, per="peer", kind="address"),
        ], refuses=("qp_context", "peer"))

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        specs = {spec.name: spec for spec in self.tables(cfg)}

        def table(name, shape, **options):
            m.submodules[name] = t = Table(specs[name], shape, latency=1, **options)
            return t
        context = table("qp_context", context_layout(cfg), aside=True)
        rule_table = table("rc_rules", rules_layout(cfg))
        posted = table("posted", 16)
        responses, inbound = table("rc_responder", responder.responder_layout()), table("rc_inbound", responder.inbound_layout())
        requests = table("rc_requester", requester.requester_layout())
        ring = table("rc_outstanding", requester.outstanding_layout())
        peers = table("peer", peer_layout(cfg))
        for t, port, at in ((context, self.context_set, self.context_set.qp), (rule_table, self.rules_set, self.rules_set.qp),
                            (peers, self.peer_set, self.peer_set.index)):
            m.d.comb += [t.write_en.eq(port.en), t.write_addr.eq(at), t.write_data.eq(port.entry)]
        m.d.comb += [
            context.aside_addr.eq(self.aside_qp), self.aside.eq(context.aside_data), self.aside_busy.eq(context.aside_busy),
        ]
        owned = (context, rule_table, posted, responses, inbound, requests, ring, peers)
        connect_alarms(m, self, owned)
        m.d.comb += self.clearing.eq(Cat(t.clearing for t in owned).any())
        m.submodules.output = output = StreamFifo(work_layout(cfg), 4)
        wiring.connect(m, output.o, wiring.flipped(self.work))

        # -- the operation under way --------------------------------------------------------------------
        frame = Signal(descriptor_layout(cfg), reset_less=True)
        have_frame, take_frame = Signal(), Signal()
        m.d.comb += self.frames.ready.eq(~have_frame | take_frame)
        with m.If(self.frames.ready):
            m.d.sync += [frame.eq(self.frames.payload), have_frame.eq(self.frames.valid)]
        k = checks.kinds(m, frame)
        kind = Signal(WorkKind)
        bell, note, rings = Signal(), Signal(), Signal()      # an SQ doorbell; `failed`; an RQ doorbell
        qp = Signal(cfg.qp_bits)
        number = Signal(16)
        command, told = self.commands.payload, Signal(failed_layout(cfg))
        ctx, rules = Signal(context_layout(cfg)), Signal(rules_layout(cfg))
        rsp, msg, req = (Signal(responder.responder_layout()), Signal(responder.inbound_layout()),
                         Signal(requester.requester_layout()))
        receives = Signal(16)
        head = Signal(requester.outstanding_layout())
        facts = Signal(responder.facts_layout())
        late = Signal()                     # the QP's time has come
        lost, peek, unsent = Signal(), Signal(), Signal()
        retired = Signal(range(cfg.rc_outstanding + 1))
        slot = Signal(requester.slot_bits(cfg))
        is_frame = kind == WorkKind.FRAME
        m.d.comb += [
            *(t.read0_addr.eq(qp) for t in (context, rule_table, posted, responses, inbound, requests)),
            peers.read0_addr.eq(context.read0_data.peer), ring.read0_addr.eq(Cat((req.una + peek)[:len(slot)], qp)),
        ]

        # -- what is concluded, in registers; it takes effect in EMIT --------------------------------------------
        w, told_w = Signal(work_layout(cfg)), Signal(work_layout(cfg))
        new_rsp, new_msg, new_req = Signal.like(rsp), Signal.like(msg), Signal.like(req)
        then_rsp, then_msg, then_req = Signal.like(rsp), Signal.like(msg), Signal.like(req)
        acts = StructLayout({name: 1 for name in ("tell", "rsp", "msg", "req", "lane", "frame", "command", "job", "posted", "back",
                                                  "wait", "late", "again")})
        do, act = Signal(acts), Signal(acts)
        emitting = Signal()
        with m.If(~emitting):
            m.d.sync += [told_w.eq(w), then_rsp.eq(new_rsp), then_msg.eq(new_msg), then_req.eq(new_req), act.eq(do)]
        clears, effective = Signal(), Signal()
        o = self.outstanding.payload
        entry = requester.outstanding_layout()(ring.write_data)
        m.d.comb += [
            *(t.write_addr.eq(qp) for t in (responses, inbound, requests, posted)),
            responses.write_data.eq(then_rsp), inbound.write_data.eq(then_msg), requests.write_data.eq(then_req),
            posted.write_data.eq(number), output.i.payload.eq(told_w), output.i.valid.eq(emitting & act.tell),
            effective.eq(emitting & (output.i.ready | ~act.tell)), responses.write_en.eq(effective & act.rsp),
            inbound.write_en.eq(effective & act.msg), requests.write_en.eq(effective & act.req),
            posted.write_en.eq(effective & act.posted), take_frame.eq(effective & act.frame),
            self.commands.ready.eq(effective & act.command), self.event_back.eq(effective & act.back),
            self.event_rnr.eq(effective & act.wait), self.event_timeout.eq(effective & act.late),
            self.event_duplicate.eq(effective & act.again),
            new_rsp.eq(rsp), new_msg.eq(msg), new_req.eq(req),
            ring.write_en.eq(self.outstanding.valid | clears), ring.write_addr.eq(Cat(o.index[:len(slot)], o.qp)),
            entry.valid.eq(1), entry.lap.eq(o.index[len(slot)]), entry.rd.eq(o.rd), entry.end.eq(o.end_psn),
        ]
        with m.If(~self.outstanding.valid):
            m.d.comb += [ring.write_addr.eq(Cat(slot, qp)), entry.valid.eq(0)]

        # -- room for READs and atomics; the pace of timers --------------------------------------------------
        jobs = Signal(range(cfg.read_jobs + 1))
        room = Signal()
        m.d.sync += [jobs.eq(jobs + (effective & act.job) - self.job_over), room.eq(jobs < cfg.read_jobs - 1)]

        mtu = Signal(14)
        with m.Switch(ctx.mtu):
            for code in range(1, 6):
                with m.Case(code):
                    m.d.comb += mtu.eq(128 << code)
        same_source = Signal()
        sure = Signal()         # what RESET and doorbells change of a QP that is there
        m.d.comb += sure.eq((ctx.state == QP_STATE["ready"]) & (ctx.type == QP_TYPE["rc"]))
        ours = k.response | k.ack           # an answer to a request of our own
        plain, asked, answered = (Signal(work_layout(cfg), name=n) for n in ("plain", "asked", "answered"))
        checks.common(m, plain, frame, kind, qp, ctx, rules, receives)
        refused = checks.judge(m, cfg, plain, frame, k, ctx, same_source, is_frame, self.pkey)
        # Both decisions are made all the time, outside of the machine, whose state would come before all of it.
        rsp_put, msg_moves, rsp_then, msg_then, req_then = Signal(), Signal(), Signal.like(rsp), Signal.like(msg), Signal.like(req)
        takes, seen = Signal(), Signal(requester.measured_layout())
        m.d.comb += [asked.eq(plain), answered.eq(plain), rsp_then.eq(rsp), msg_then.eq(msg), req_then.eq(req), w.eq(plain)]
        m.d.comb += takes.eq(responder.respond(
            m, cfg, asked, rsp_put, msg_moves, frame, k, facts, ctx, rules, rsp, msg, rsp_then, msg_then, room))
        responder.weigh(m, cfg, facts, frame, k, ctx.type == QP_TYPE["rc"], mtu, ctx.mtu, rsp, msg, receives)
        said = Signal(checks.kinds_layout())       # of the frame, if there is one
        m.d.sync += said.eq(Mux(is_frame, Cat(k[name] for name in checks.KINDS), 0))
        requester.measure(m, seen, frame, said, facts, rules, req, head, retired, lost, unsent)
        v = requester.judge(m, answered, frame, said, ctx.mtu, seen, req, req_then, retired, late)
        # when the timer would run out, if it is started anew, or after an RNR NAK; a few cycles old
        anew, later = Signal(32), Signal(32)
        m.d.sync += [anew.eq(self.now + requester.ack_ticks(rules.timeout)),
                     later.eq(self.now + requester.rnr_ticks(m, frame.syndrome[:5]))]
        turn = Signal()                     # deadlines first
        m.d.comb += self.idle.eq(0)
        checks.set_lane(m, self.lane, self.now, effective & act.lane, qp, then_req.armed, then_req.deadline)

        def rearm(busy, starts=0, wait=0):
            """After a change of new_req: does a timer run, and until when?"""
            m.d.comb += new_req.armed.eq((new_req.waits | (busy & (rules.timeout != 0))) & ~new_req.stopped & sure)
            with m.If(wait):
                m.d.comb += new_req.deadline.eq(later)
            with m.Elif(starts | ~req.armed):
                m.d.comb += new_req.deadline.eq(anew)

        with m.FSM():
            with m.State("CHOOSE"):
                m.d.comb += self.idle.eq(
                    ~have_frame & ~self.frames.valid & ~self.commands.valid & ~self.doorbells.valid & ~self.sq_doorbells.valid
                    & ~self.failed.valid & ~self.deadlines.valid & (output.level == 0) & ~self.clearing)
                m.d.sync += [bell.eq(0), note.eq(0), rings.eq(0), late.eq(0), lost.eq(0), peek.eq(0), unsent.eq(0), retired.eq(0),
                             slot.eq(0), head.eq(0)]
                intake.choose(m, self, kind, qp, number, told, bell, note, rings, turn, have_frame, frame.qpn)
            with m.State("READ"):           # the rows come
                m.next = "ROWS"
            with m.State("ROWS"):
                m.d.sync += [
                    ctx.eq(context.read0_data), rules.eq(rule_table.read0_data), rsp.eq(responses.read0_data),
                    msg.eq(inbound.read0_data), req.eq(requests.read0_data), receives.eq(posted.read0_data),
                ]
                m.next = "FACTS"
            with m.State("FACTS"):
                m.d.sync += [late.eq((kind == WorkKind.DEADLINE) & req.armed & ~(self.now - req.deadline)[31]),
                             same_source.eq(checks.same_source(cfg, frame, peers.read0_data))]
                with m.Switch(kind):
                    with m.Case(WorkKind.FRAME):
                        m.next = "FRAME"
                    with m.Case(WorkKind.DEADLINE):
                        m.next = "TIME"
                    with m.Case(WorkKind.SERVICE):
                        m.next = "SERVICE"
                    with m.Case(WorkKind.RESET):
                        m.next = "RESET"
                    with m.Default():
                        m.next = "TELL"
            with m.State("FRAME"):
                m.d.comb += [do.tell.eq(1), do.frame.eq(1)]
                m.next = "EMIT"
                with m.If(~(refused | k.none | frame.is_cnp)):
                    with m.If(~ours):
                        m.d.comb += [w.eq(asked), new_rsp.eq(rsp_then), new_msg.eq(msg_then), do.rsp.eq(rsp_put),
                                     do.msg.eq(msg_moves), do.job.eq(takes), do.again.eq(asked.again)]
                    with m.Elif(req.stopped):
                        m.d.comb += [w.verdict.eq(Verdict.DROPPED), w.reason.eq(REASON["psn"])]
                    with m.Else():
                        m.next = "WALK"

            # -- the answers: requests that are acknowledged are taken off one by one
            requester.walk(m, frame, k, is_frame, req, ring.read0_data, head, retired, lost, peek, unsent)
            with m.State("MEASURE"):
                m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.comb += [w.eq(answered), new_req.eq(req_then), do.tell.eq(1), do.frame.eq(is_frame), do.req.eq(~v.ghost),
                             do.lane.eq(~v.ghost), do.back.eq(v.back), do.wait.eq(v.rnr), do.late.eq(late & v.back & ~req.waits)]
                rearm(v.busy, ((v.progress | v.back) & ~req.waits) | late, v.wait)
                m.next = "EMIT"

            # -- what is not a frame
            with m.State("TIME"):
                m.next = "WALK"
                with m.If(~late | req.stopped):     # too early: it is approached in steps
                    m.d.comb += [do.req.eq(1), do.lane.eq(1), new_req.armed.eq(req.armed & ~req.stopped)]
                    m.next = "EMIT"
            with m.State("SERVICE"):
                m.next = "EMIT"
                place, news = turn_layout()(w.va), note & ~req.failed & ~req.stopped
                m.d.comb += [do.posted.eq(rings), do.req.eq(~rings), do.lane.eq(~rings)]
                with m.If(bell):
                    m.d.comb += new_req.posted.eq(number)
                # it sends nothing more for the QP; the failure is told when those before it are done
                with m.If(news):
                    m.d.comb += [
                        new_req.failed.eq(1), new_req.failed_index.eq(told.index), new_req.failed_cause.eq(told.cause),
                        do.tell.eq(1), w.turn.eq(Turn.HALT), place.index.eq(told.index), place.psn.eq(req.psn), w.ours.eq(1),
                        w.una.eq(req.una),
                    ]
                    with m.If(told.index == req.una):
                        m.d.comb += [w.fatal.eq(1), w.cause.eq(told.cause), place.index.eq(req.una + 1), new_req.stopped.eq(1),
                                     new_req.una.eq(req.una + 1)]
                rearm(req.una != Mux(bell, number, req.posted))
            with m.State("RESET"):
                m.d.sync += slot.eq(slot + ~self.outstanding.valid)
                m.d.comb += clears.eq(1)
                with m.If((slot == cfg.rc_outstanding - 1) & ~self.outstanding.valid):
                    m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.sync += number.eq(0)
                m.d.comb += [
                    new_rsp.eq(0), new_rsp.psn.eq(command.expected), new_req.eq(0), new_req.psn.eq(command.psn),
                    new_req.first.eq(command.psn), do.rsp.eq(1), do.req.eq(1), do.posted.eq(1), do.lane.eq(1), do.tell.eq(1),
                    do.command.eq(1),
                ]
                m.next = "EMIT"
            with m.State("TELL"):
                place = turn_layout()(w.va)
                m.d.comb += [do.tell.eq(1), do.command.eq(1), w.index.eq(rsp.head), w.una.eq(req.una), w.ours.eq(1)]
                with m.If(kind == WorkKind.FLUSH):      # behind it nothing is posted
                    m.d.comb += [
                        # the send half knows by itself how far a UC QP has come
                        w.turn.eq(Mux(ctx.type == QP_TYPE["rc"], Turn.HALT, Turn.NONE)), place.psn.eq(req.psn),
                        w.una.eq(req.posted), new_req.una.eq(req.posted), new_req.stopped.eq(1), new_req.armed.eq(0),
                        do.req.eq(1), do.rsp.eq(1), do.lane.eq(1),
                        new_rsp.head.eq(Cat(receives, Mux(receives < rsp.head[:16], rsp.head[16:] + 1, rsp.head[16:]))),
                    ]
                m.next = "EMIT"
            with m.State("EMIT"):
                m.d.comb += emitting.eq(1)
                with m.If(effective):
                    m.next = "CHOOSE"
        return m
