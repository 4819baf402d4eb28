"""The first stage behind the ingress: which QP a frame is for, and whether it may speak to it."""

from amaranth.hdl import Module, Signal, Cat, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import QP_STATE, QP_TYPE
from optinic.abi.verdicts import REASON
from optinic.memory.table import Table, TableSpec, alarm_members, connect_alarms, protect
from optinic.rx.descriptor import descriptor_layout
from optinic.rx.pipeline import FixedPipe
from optinic.stream.fifo import StreamFifo
from optinic.transport.xp.deadlines import LaneKind, deadline_event_layout
from optinic.transport.xp.records import (Verdict, WorkKind, context_layout, head_layout, peer_layout, work_layout)

__all__ = ["Lookup"]

_BUCKETS = 64       # QPs are hashed to these to know whether work of a QP is under way
_BUCKET_BITS = 6
_STAGES = 6
_OUTPUT_DEPTH = 16
#: fields of a frame that nothing here looks at: they meet the rest of the record at the last stage
_CARRIED = ("beats", "pay_off", "is_write", "has_imm", "is_read", "is_answer", "generation", "ce", "msg_len", "offset", "va", "rkey", "imm", "tag")
_CHECKED = {"pkey": 16, "generation": 8, "src_ip": 128, "src_v6": 1, "is_xp": 1, "other": 1, "chained": 1}


class Lookup(wiring.Component):
    """Merges frames with events, reads the QP's tables, and checks a frame against its QP.

    In: `frames` (descriptors), `deadlines` (scanner events), `doorbells` (QP index << 16 | posted), `commands` (RESET, FLUSH,
    FENCE). Commands go first, then doorbells; frames and deadlines take turns, so neither starves. A doorbell updates the
    posted count and passes on as a SERVICE record behind it.
    Out: `work`, in order, one a cycle, nine cycles later. Back-pressure holds the inputs; nothing is lost.

    A tracked UC packet takes the next receive in line, so it waits until what is before it of its QP has passed the checks here,
    if that is another UC packet with a receive (one of a QP in 8 cycles), else until no earlier work of its QP is on the way to
    admission (`retire`, one for each record that admission has ended). QPs share 64 hash buckets for this.

    The send half reads contexts here as well: `aside` is that of the `aside_qp` of one cycle ago, if `aside_busy` was low then.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        qp = range(1 << cfg.qp_bits)
        super().__init__({
            "frames": In(stream.Signature(descriptor_layout(cfg))),
            "deadlines": In(stream.Signature(deadline_event_layout(cfg))),
            "doorbells": In(stream.Signature(32)),
            "commands": In(stream.Signature(StructLayout({"kind": WorkKind, "qp": cfg.qp_bits}))),
            "work": Out(stream.Signature(work_layout(cfg))),
            "context_set": In(wiring.Signature({"en": Out(1), "qp": Out(qp), "entry": Out(context_layout(cfg))})),
            "peer_set": In(wiring.Signature({"en": Out(1), "index": Out(range(cfg.num_peers)), "entry": Out(peer_layout(cfg))})),
            "head_set": In(wiring.Signature({"en": Out(1), "qp": Out(qp), "entry": Out(head_layout())})),
            "retire": In(wiring.Signature({"en": Out(1), "qp": Out(qp)})),
            "pkey": In(16),
            "aside_qp": In(cfg.qp_bits), "aside": Out(context_layout(cfg)), "aside_busy": Out(1),
            "clearing": Out(1),
            "idle": Out(1),
        } | alarm_members(cfg))

    @staticmethod
    def tables(cfg):
        own = dict(owner="lookup", depth=cfg.num_qps, per="qp")
        return protect(cfg, [
            TableSpec("qp_context", width=context_layout(cfg).size, kind="context", **own),
            TableSpec("posted", width=16, kind="hot", **own),
            TableSpec("head_copy", width=head_layout().size, kind="hot", **own),
            TableSpec("peer", owner="lookup", width=peer_layout(cfg).size, depth=cfg.num_peers, per="peer", kind="address"),
        ], refuses=("qp_context", "peer"))

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        specs = {s.name: s for s in self.tables(cfg)}
        m.submodules.context = context = Table(specs["qp_context"], context_layout(cfg), aside=True)
        m.submodules.posted = posted = Table(specs["posted"], 16)
        m.submodules.head = head = Table(specs["head_copy"], head_layout())
        m.submodules.peer = peer = Table(specs["peer"], peer_layout(cfg))
        for table, port, addr in ((context, self.context_set, self.context_set.qp), (peer, self.peer_set, self.peer_set.index),
                                  (head, self.head_set, self.head_set.qp)):
            m.d.comb += [table.write_en.eq(port.en), table.write_addr.eq(addr), table.write_data.eq(port.entry)]
        m.d.comb += [context.aside_addr.eq(self.aside_qp), self.aside.eq(context.aside_data), self.aside_busy.eq(context.aside_busy)]
        connect_alarms(m, self, (context, posted, head, peer))
        m.d.comb += self.clearing.eq(context.clearing | posted.clearing | head.clearing | peer.clearing)

        # stage 1 of the pipeline: what has been chosen, and the parts of a frame that only the checks need
        work = [None] + [Signal(work_layout(cfg), name=f"work{i}", reset_less=True) for i in range(1, _STAGES + 1)]
        valid = [None] + [Signal(name=f"valid{i}") for i in range(1, _STAGES + 1)]
        checks = [None] + [Signal(StructLayout(_CHECKED), name=f"checks{i}", reset_less=True) for i in range(1, _STAGES)]
        m.submodules.output = out = StreamFifo(work_layout(cfg), _OUTPUT_DEPTH)
        wiring.connect(m, out.o, wiring.flipped(self.work))
        self.consumes = Signal()
        waiting = self._choose(m, posted, work, valid, checks[1], self.work.valid & self.work.ready)
        self._check(m, work, valid, checks, context, posted, head, peer, out)
        m.d.comb += self.idle.eq(~Cat(valid[1:]).any() & ~out.o.valid & (out.level == 0) & ~self.clearing & ~waiting)
        return m

    def _choose(self, m, posted, work, valid, checks1, popped):
        """Choose what goes next into stage 1; returns whether anything waits."""
        cfg, work1, valid1 = self.cfg, work[1], valid[1]
        # room in the output FIFO for all that is in the pipeline; a cycle old, so one less than there is
        credit = Signal(range(_OUTPUT_DEPTH + 1), init=_OUTPUT_DEPTH)
        issue = Signal()
        may_issue = Signal()
        m.d.sync += credit.eq(Mux(issue, credit - 1 + popped, credit + popped))

        # one frame waits in a register, so that the choice doesn't start from a FIFO's output
        frame = Signal(descriptor_layout(cfg), reset_less=True)
        have_frame = Signal()
        take_frame = Signal()
        m.d.comb += self.frames.ready.eq(~have_frame | take_frame)
        with m.If(self.frames.ready):
            m.d.sync += [frame.eq(self.frames.payload), have_frame.eq(self.frames.valid)]
        frame_qp = frame.qpn[:cfg.qp_bits]

        # Work under way by bucket: two counters with one writer each, and what differs is under way. The comparison is a cycle
        # old when it is used; what has left for stage 1 meanwhile is still there.
        started, start_f = self._bucket_counter(m, "started", valid1, work1.qp, frame_qp)
        retired, retire_f = self._bucket_counter(m, "retired", self.retire.en, self.retire.qp, frame_qp)
        just_left = Signal()
        all_ended = Signal()
        m.d.comb += just_left.eq(valid1 & (work1.qp[:_BUCKET_BITS] == frame_qp[:_BUCKET_BITS]))
        m.d.sync += all_ended.eq(have_frame & ~self.frames.ready & (start_f == retire_f) & ~just_left)
        chained = self._chain(m, work, valid, have_frame & ~self.frames.ready, frame_qp)
        m.d.sync += may_issue.eq((credit > 1) & ~self.clearing & ~started & ~retired)

        # the scanner's events in a queue of their own, which keeps its handshake out of the choice
        m.submodules.events = events = StreamFifo(deadline_event_layout(cfg), 2)
        wiring.connect(m, wiring.flipped(self.deadlines), events.i)
        turn = Signal()     # 1: deadlines first
        frame_ready = Signal()
        choose_deadline = Signal()
        # a UC packet whose turn it is also waits for what has just left, whatever QP that is of; no event goes before it then
        takes_next = frame.is_uc & frame.tracked
        may_come = Signal()
        m.d.comb += may_come.eq(have_frame & (~takes_next | all_ended | chained.valid))
        m.d.comb += frame_ready.eq(may_come & ~(takes_next & valid1))
        m.d.comb += choose_deadline.eq(events.o.valid & (turn | ~may_come))
        with m.If(may_issue):
            with m.If(self.commands.valid):
                m.d.comb += [issue.eq(1), self.commands.ready.eq(1)]
            with m.Elif(self.doorbells.valid):
                # a bell for a QP that doesn't exist is swallowed
                m.d.comb += [issue.eq(self.doorbells.payload[16:] < cfg.num_qps), self.doorbells.ready.eq(1)]
            with m.Elif(choose_deadline):
                m.d.comb += [issue.eq(1), events.o.ready.eq(1)]
                m.d.sync += turn.eq(0)
            with m.Elif(frame_ready):
                m.d.comb += [issue.eq(1), take_frame.eq(1)]
                m.d.sync += turn.eq(1)

        # the record of the choice, without the tables' part
        command, bell, event = self.commands.payload, self.doorbells.payload, events.o.payload
        qp = Signal(cfg.qp_bits)
        kind = Signal(WorkKind)
        with m.If(self.commands.valid):
            m.d.comb += [kind.eq(command.kind), qp.eq(command.qp)]
        with m.Elif(self.doorbells.valid):
            m.d.comb += [kind.eq(WorkKind.SERVICE), qp.eq(bell[16:])]
        with m.Elif(choose_deadline):
            m.d.comb += [kind.eq(Mux(event.kind == LaneKind.SERVICE, WorkKind.SERVICE, WorkKind.DEADLINE)), qp.eq(event.qp)]
        with m.Else():
            m.d.comb += [kind.eq(WorkKind.FRAME), qp.eq(frame.qpn)]
        m.d.sync += [valid1.eq(issue), work1.kind.eq(kind), work1.qp.eq(qp)]
        m.d.sync += [checks1[name].eq(frame[name]) for name in _CHECKED if name != "chained"]
        m.d.sync += [checks1.chained.eq(chained.valid), work1.index.eq(chained.index)]
        m.d.sync += [work1[name].eq(frame[name]) for name in (
            "beats", "pay_off", "pay_len", "qpn", "tracked", "is_uc", "is_write", "has_imm", "is_read", "is_answer", "generation", "is_cnp", "ce", "seq", "msg_len",
            "offset", "va", "rkey", "imm", "reason")]
        m.d.sync += work1.tag.eq(Mux(frame.is_xp, frame.tag, 0))
        with m.If(frame.passed):
            m.d.sync += work1.verdict.eq(Verdict.PASSED)
        with m.Elif(frame.reason != 0):
            m.d.sync += work1.verdict.eq(Verdict.DROPPED)
        with m.Else():
            m.d.sync += work1.verdict.eq(Mux(frame.is_cnp | frame.is_read, Verdict.CONSUMED, Verdict.PLACED))

        # The posted count has one writer: doorbells, and zero with a new life. A bell for a QP behind the last row finds no row to write;
        # one whose number doesn't fit a row's is left out here.
        reset = self.commands.valid & (command.kind == WorkKind.RESET)
        rings = ~self.commands.valid & self.doorbells.valid & ~bell[16 + cfg.qp_bits:].any()
        m.d.comb += [
            posted.write_en.eq(may_issue & (reset | rings)),
            posted.write_addr.eq(Mux(self.commands.valid, command.qp, bell[16:16 + cfg.qp_bits])),     # not of all four that may come next
            posted.write_data.eq(Mux(reset, 0, bell[:16])),
        ]
        return have_frame | events.o.valid | self.frames.valid | self.commands.valid | self.doorbells.valid

    def _chain(self, m, work, valid, stays, frame_qp):
        """What lets a UC packet follow another one of its QP without waiting for it to reach admission.

        A tracked UC packet that has passed its checks and has a receive takes exactly that one, whatever memory then says of it.
        So if nothing else of its bucket has set out since, the next UC packet of the QP takes the receive behind. Returns
        {valid, index} in registers, for the frame that `stays` in its register."""
        layout = StructLayout({"valid": 1, "qp": self.cfg.qp_bits, "index": 32})
        ram = Memory(shape=layout, depth=_BUCKETS, init=[], attrs={"ram_style": "distributed"})
        m.submodules.consumers = ram
        write, read = ram.write_port(), ram.read_port(domain="comb")
        sweep = Signal(_BUCKET_BITS, name="chain_sweep")
        clearing = Signal(init=1, name="chain_clearing")
        with m.If(clearing):
            m.d.sync += [sweep.eq(sweep + 1), clearing.eq(sweep != _BUCKETS - 1)]
        end = work[_STAGES]
        m.d.comb += [
            read.addr.eq(frame_qp), write.en.eq(valid[_STAGES] | clearing), write.addr.eq(Mux(clearing, sweep, end.qp)),
            write.data.qp.eq(end.qp), write.data.index.eq(end.index),
            write.data.valid.eq(~clearing & self.consumes),
        ]
        inside = [v & (w.qp[:_BUCKET_BITS] == frame_qp[:_BUCKET_BITS]) for v, w in zip(valid[1:], work[1:])]
        chained = Signal(StructLayout({"valid": 1, "index": 32}))
        last = read.data
        m.d.sync += [
            chained.valid.eq(stays & ~Cat(inside).any() & last.valid & (last.qp == frame_qp)),
            chained.index.eq(last.index + 1),
        ]
        return chained

    def _bucket_counter(self, m, name, en, qp, look_qp):
        """Counts, modulo 256, the events of each hash bucket; returns (clearing, count of the bucket of look_qp)."""
        ram = Memory(shape=8, depth=_BUCKETS, init=[], attrs={"ram_style": "distributed"})
        m.submodules[name] = ram
        write, old, look = ram.write_port(), ram.read_port(domain="comb"), ram.read_port(domain="comb")
        sweep = Signal(_BUCKET_BITS, name=f"{name}_sweep")
        clearing = Signal(init=1, name=f"{name}_clearing")
        with m.If(clearing):
            m.d.sync += [sweep.eq(sweep + 1), clearing.eq(sweep != _BUCKETS - 1)]
        m.d.comb += [
            old.addr.eq(qp), look.addr.eq(look_qp), write.en.eq(en | clearing),
            write.addr.eq(Mux(clearing, sweep, qp)), write.data.eq(Mux(clearing, 0, old.data + 1)),
        ]
        return clearing, look.data

    def _check(self, m, work, valid, checks, context, posted, head, peer, out):
        """Stages 1 to 6: the tables' answers become a verdict."""
        cfg = self.cfg
        for i in range(1, _STAGES):
            m.d.sync += [work[i + 1].eq(work[i]), valid[i + 1].eq(valid[i])]
        pipe = FixedPipe(m, "lookup")
        pipe.take("carried", 1, Cat(work[1][name] for name in _CARRIED))
        for i in range(1, _STAGES - 1):
            m.d.sync += checks[i + 1].eq(checks[i])

        # stage 1: addresses out; stage 3: the tables' answer
        for table in (context, posted, head):
            m.d.comb += table.read0_addr.eq(work[1].qp)
        ctx, w, d = context.read0_data, work[3], checks[3]
        m.d.comb += peer.read0_addr.eq(ctx.peer)
        fails = Signal(REASON["overflow"] + 1)      # bit r: refused for reason r
        mtu = Signal(14)
        with m.Switch(ctx.mtu):
            for code in range(1, 6):
                with m.Case(code):
                    m.d.comb += mtu.eq(128 << code)
        low, full = d.pkey[:15] == self.pkey[:15], d.pkey[15] | self.pkey[15]
        m.d.comb += [
            fails[REASON["qpn"]].eq((ctx.state == QP_STATE["free"]) | (w.qpn[cfg.qp_bits:] != ctx.tag)
                                    | (w.qpn[:cfg.qp_bits] >= cfg.num_qps)),
            fails[REASON["length"]].eq((w.pay_len > mtu) & ~d.other & ~w.is_cnp),
            fails[REASON["state"]].eq(ctx.state != QP_STATE["ready"]),
            fails[REASON["opcode"]].eq(d.other | (d.is_xp & (ctx.type != QP_TYPE["xp"]))),
            fails[REASON["pkey"]].eq(~(low & full)),
            fails[REASON["generation"]].eq(d.is_xp & (d.generation != ctx.generation)),
        ]
        ours = (w.kind == WorkKind.FRAME) & (w.reason == 0) & (w.verdict != Verdict.PASSED)
        fails4 = Signal.like(fails, reset_less=True)
        ours4 = Signal(reset_less=True)
        m.d.sync += [fails4.eq(fails), ours4.eq(ours)]

        # the receive that the record is about, and whether it is posted
        heads, count = head.read0_data, posted.read0_data
        index = Signal(32)
        avail = Signal(16)
        ahead = Signal(32)
        with m.If(w.kind != WorkKind.FRAME):
            m.d.comb += index.eq(heads.head)
        with m.Elif(w.is_uc):
            m.d.comb += index.eq(Mux(d.chained, w.index, heads.head + heads.touched))
        with m.Else():
            m.d.comb += index.eq(w.seq)
        m.d.comb += [avail.eq(count - heads.head[:16]), ahead.eq(index - heads.head)]
        index4 = Signal(32, reset_less=True)
        avail4 = Signal(16, reset_less=True)
        ahead4 = Signal(32, reset_less=True)
        m.d.sync += [index4.eq(index), avail4.eq(avail), ahead4.eq(ahead), work[4].posted.eq(count), work[4].pd.eq(ctx.pd)]
        m.d.sync += [work[4].cq.eq(ctx.cq), work[4].ready.eq(ctx.state == QP_STATE["ready"])]
        with m.If(w.kind != WorkKind.FRAME):
            m.d.sync += [work[4].qpn.eq(Cat(w.qp, ctx.tag)), work[4].verdict.eq(Verdict.CONSUMED), work[4].reason.eq(0)]

        # stage 4: is a WQE wanted; the reason but for the source
        wants = ((work[4].kind == WorkKind.FRAME) & ours4 & work[4].tracked) | ((work[4].kind == WorkKind.SERVICE) & work[4].ready)
        m.d.sync += [work[5].index.eq(index4), work[5].has_wqe.eq(wants & (ahead4 < avail4))]
        order = ["qpn", "length", "state", "opcode", "pkey", "source", "generation"]
        fails5 = Signal.like(fails, reset_less=True)
        ours5 = Signal(reset_less=True)
        m.d.sync += [fails5.eq(fails4), ours5.eq(ours4)]

        # stage 5: the peer's answer
        them, d5 = peer.read0_data, checks[5]
        if cfg.ipv6:
            left, right = Cat(them.ip, them.v6), Cat(d5.src_ip, d5.src_v6)
        else:
            left, right = them.ip, d5.src_ip[:32]
        same = Signal(-(-len(left) // 16), reset_less=True)
        m.d.sync += same.eq(Cat(left[i:i + 16] == right[i:i + 16] for i in range(0, len(left), 16)))
        fails6 = Signal.like(fails, reset_less=True)
        ours6 = Signal(reset_less=True)
        m.d.sync += [fails6.eq(fails5), ours6.eq(ours5)]

        # stage 6: the verdict so far; and whether it takes a receive for certain
        final = Signal(work_layout(cfg))
        m.d.comb += self.consumes.eq((final.kind == WorkKind.FRAME) & (final.verdict == Verdict.PLACED) & final.is_uc
                                     & final.tracked & final.has_wqe)
        m.d.comb += [final.eq(work[6]), Cat(final[name] for name in _CARRIED).eq(pipe.get("carried", 6)),
                     out.i.payload.eq(final), out.i.valid.eq(valid[6])]
        m.d.comb += final.known.eq(ours6 & ~fails6[REASON["qpn"]])
        with m.If(ours6):
            for i, name in enumerate(order):
                wrong = ~same.all() if name == "source" else fails6[REASON[name]]
                with (m.If if i == 0 else m.Elif)(wrong):
                    m.d.comb += [final.reason.eq(REASON[name]), final.verdict.eq(Verdict.DROPPED), final.has_wqe.eq(0)]
