"""Whose packet is next: the rotation of QPs with a WQE at hand, where each message stands, and when it is over."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import QP_STATE
from optinic.memory.table import Table, TableSpec
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.tx.active import DELAY_NS, Settle, settle_layout
from optinic.tx.planner import facts_layout, plan_cnp, plan_packet, plan_run, weigh
from optinic.tx.records import (PIECE, READ_RESPONSE, Event, context_layout, event_layout, job_layout, planned_layout,
                                send_wqe_layout)
from optinic.tx.wqe_fetch import WQE_BITS, answer_slots

__all__ = ["SendScheduler", "PATIENCE_NS"]

PATIENCE_NS = 2048      #: a QP that has to wait longer than this for its rate gives its slots back meanwhile


class Op(Enum, shape=3):
    """What the machine is doing; VISIT to CLOSE are also the names of the states that follow the tables' answer."""
    VISIT = 0
    PIECE = 1
    COMMAND = 2
    CNP = 3
    CLOSE = 4


class SendScheduler(wiring.Component):
    """A sequential machine that does one thing at a time, about five cycles each: it lets the QP whose turn it is send one
    packet, or takes a piece of fetched WQEs (`events`), a READ to be answered (`jobs`), or a CNP to be sent (`cnps`). Turns
    and the rest alternate when both wait.

    The rotation has one entry for each QP that holds slots, the slot of its oldest WQE, and one for each READ being answered. A visit whose
    slot isn't ready costs two cycles. Otherwise it emits one packet (`planned`) and returns to the end of the rotation, or,
    when that was the last, frees the slot and hands the turn to the QP's next one. A QP that its pacer holds back goes round
    (a wait of up to PATIENCE_NS) or gives all its slots back and is parked until its time, or its deadline, has come.

    With `enable` low no packet is planned, but commands are carried out.
    READ answers may take a quarter of the slots; a job waits at `jobs` when they are taken. A QP gives its answers one after
    the other, in the order of the requests: at the other end they are messages, of which a later one ends an earlier one.
    A command (RESET, FLUSH) first goes once round the rotation, in which all slots of the QP are given back, then ends with
    a silent packet that is marked `fence`. `planned` may be held back; then everything here waits.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        slot = range(cfg.tx_slots)
        super().__init__({
            "events": In(stream.Signature(event_layout(cfg))), "settle": Out(stream.Signature(settle_layout(cfg))),
            "settle_done": In(1), "posted": In(16),
            "chain_qp": In(cfg.qp_bits), "chain_len": Out(range(cfg.tx_slots + 1)),
            "jobs": In(stream.Signature(job_layout(cfg))), "cnps": In(stream.Signature(cfg.qp_bits)),
            "alloc": In(stream.Signature(slot)), "want_slot": Out(1),
            "store": Out(PushSignature(StructLayout({"slot": slot, "wqe": WQE_BITS}))),
            "give_back": Out(PushSignature(slot)), "ready": In(cfg.tx_slots), "failed": In(cfg.tx_slots),
            "look": Out(slot), "wqe": In(WQE_BITS), "free": In(range(cfg.tx_slots + 1)),
            "context_set": In(wiring.Signature({"en": Out(1), "qp": Out(range(1 << cfg.qp_bits)), "entry": Out(context_layout(cfg))})),
            "pace_qp": Out(cfg.qp_bits), "pace_look": Out(1), "wait": In(24),
            "charge": Out(PushSignature(StructLayout({"qp": cfg.qp_bits, "bytes": 14}))),
            "restart": Out(PushSignature(cfg.qp_bits)),
            "planned": Out(stream.Signature(planned_layout(cfg))),
            "enable": In(1), "now": In(32), "time": In(64), "event_expired": Out(1), "event_cnp": Out(1),
            "clearing": Out(1), "idle": Out(1),
        })

    @staticmethod
    def position_layout():
        """Of the oldest WQE: its index, bytes of it that are planned; and the next PSN."""
        return StructLayout({"sent": 16, "offset": 32, "psn": 24})

    @staticmethod
    def chain_layout(cfg):
        return StructLayout({"tail": range(cfg.tx_slots), "len": range(cfg.tx_slots + 1)})

    @staticmethod
    def tables(cfg):
        return [TableSpec("sq_position", "send scheduler", SendScheduler.position_layout().size, cfg.num_qps, "qp", "hot"),
                TableSpec("sq_chain", "send scheduler", SendScheduler.chain_layout(cfg).size, cfg.num_qps, "qp", "hot", reads=2),
                TableSpec("tx_context", "send scheduler", context_layout(cfg).size, cfg.num_qps, "qp", "context")]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        specs = {spec.name: spec for spec in self.tables(cfg)}
        m.submodules.position = position = Table(specs["sq_position"], self.position_layout())
        m.submodules.chains = chains = Table(specs["sq_chain"], self.chain_layout(cfg))
        m.submodules.context = context = Table(specs["tx_context"], context_layout(cfg))
        put = self.context_set
        m.d.comb += [
            context.write_en.eq(put.en), context.write_addr.eq(put.qp), context.write_data.eq(put.entry),
            chains.read1_addr.eq(self.chain_qp), self.chain_len.eq(chains.read1_data.len),
            self.clearing.eq(position.clearing | chains.clearing | context.clearing),
        ]
        m.submodules.rotation = rotation = StreamFifo(StructLayout({"marker": 1, "slot": range(cfg.tx_slots)}), 2 * cfg.tx_slots)
        m.submodules.out = out = StreamFifo(planned_layout(cfg), 2)
        wiring.connect(m, out.o, wiring.flipped(self.planned))

        # per slot: whose it is; the slot of the QP's next WQE; of a READ being answered, how far it is
        def memory(name, shape):
            m.submodules[name] = ram = Memory(shape=shape, depth=cfg.tx_slots, init=[], attrs={"ram_style": "distributed"})
            return ram.write_port(), ram.read_port(domain="comb")
        own, owner = memory("owners", StructLayout({"qp": cfg.qp_bits, "answer": 1}))
        link, following = memory("links", range(cfg.tx_slots))
        advance, progress = memory("progress", 32)

        event = self.events.payload
        count = Signal(2)
        piece_slots = Array([getattr(event, f"slot{i}") for i in range(PIECE)])

        # the operation under way, and in registers what the tables say of its QP
        op = Signal(Op)
        qp = Signal(cfg.qp_bits)
        slot = Signal(range(cfg.tx_slots))
        answer = Signal()                       # the slot is a READ being answered
        pos = Signal(self.position_layout())
        chain = Signal(self.chain_layout(cfg))
        ctx = Signal(context_layout(cfg))
        facts = Signal(facts_layout(cfg))
        new_pos, new_chain = Signal.like(pos), Signal.like(chain)
        planned = out.i.payload
        wqe = send_wqe_layout()(self.wqe)
        m.d.comb += [
            position.read0_addr.eq(qp), chains.read0_addr.eq(qp), context.read0_addr.eq(qp), self.pace_qp.eq(owner.data.qp),
            position.write_addr.eq(qp), chains.write_addr.eq(qp),
            new_pos.eq(pos), new_chain.eq(chain), position.write_data.eq(new_pos), chains.write_data.eq(new_chain),
            owner.addr.eq(rotation.o.payload.slot), following.addr.eq(slot), progress.addr.eq(slot), self.look.eq(slot),
            advance.addr.eq(slot), self.settle.payload.qp.eq(qp), self.settle.payload.index.eq(pos.sent), self.charge.payload.qp.eq(qp), self.restart.payload.eq(qp), self.give_back.payload.eq(slot),
        ]
        save = Signal()
        m.d.comb += [position.write_en.eq(save), chains.write_en.eq(save)]

        def link_piece():
            """One slot of a piece a cycle, four cycles long: whose it is, and which one follows."""
            with m.If(op == Op.PIECE):
                m.d.comb += [
                    own.en.eq(count <= event.count), own.addr.eq(piece_slots[count]), own.data.qp.eq(qp),
                    link.en.eq(count < event.count), link.addr.eq(piece_slots[count]), link.data.eq(piece_slots[(count + 1)[:2]]),
                ]
                m.d.sync += count.eq(count + 1)

        def rotate(entry, marker=0):
            m.d.comb += [rotation.i.valid.eq(1), rotation.i.payload.slot.eq(entry), rotation.i.payload.marker.eq(marker)]

        # QPs that are giving answers, and the slot of the last one that each has to give
        entries = [Signal(StructLayout({"valid": 1, "qp": cfg.qp_bits, "last": range(cfg.tx_slots)}), name=f"answering{i}")
                   for i in range(answer_slots(cfg))]
        answering = Signal(StructLayout({"found": 1, "which": range(len(entries)), "last": range(cfg.tx_slots)}))
        self._find_answer(m, entries, answering, qp)

        def end_answer():
            """The slot's answer is given, or given up; the QP's next one may begin."""
            m.d.comb += self.give_back.valid.eq(1)
            m.d.sync += answers.eq(answers - 1)
            with m.If(answering.last != slot):
                rotate(following.data)
            with m.Else():
                for i, entry in enumerate(entries):
                    with m.If(answering.which == i):
                        m.d.sync += entry.valid.eq(0)

        # a command that is being carried out: the QP's slots are given back as their turn comes
        purging = Signal()
        purge_qp = Signal(cfg.qp_bits)
        purge_kind = Signal(Event)
        piece = event.kind == Event.PIECE
        posted = Signal(16)

        answers = Signal(range(answer_slots(cfg) + 1))
        visits_turn = Signal()
        event_waits = self.events.valid & (piece | ~purging)
        job_waits = self.jobs.valid & (answers != answer_slots(cfg)) & (self.free > PIECE)
        other = event_waits | self.cnps.valid | (job_waits & self.alloc.valid)
        m.d.comb += self.want_slot.eq(job_waits)
        with m.FSM():
            with m.State("CHOOSE"):
                m.d.comb += self.idle.eq(~rotation.o.valid & ~self.events.valid & ~self.cnps.valid & ~self.jobs.valid & ~out.o.valid)
                m.d.sync += count.eq(0)
                with m.If(self.clearing):
                    pass
                with m.Elif(rotation.o.valid & (visits_turn | ~other)):
                    m.d.comb += [rotation.o.ready.eq(1), self.pace_look.eq(1)]
                    m.d.sync += [visits_turn.eq(0), slot.eq(rotation.o.payload.slot), op.eq(Op.VISIT), qp.eq(owner.data.qp),
                                 answer.eq(owner.data.answer)]
                    m.next = "READ"
                    with m.If(rotation.o.payload.marker):
                        m.d.sync += [op.eq(Op.CLOSE), qp.eq(purge_qp)]
                    with m.Elif(~self.ready.bit_select(rotation.o.payload.slot, 1)):
                        m.next = "ROUND"
                with m.Elif(other):
                    m.d.sync += [visits_turn.eq(1), answer.eq(0)]
                    m.next = "READ"
                    with m.If(event_waits):
                        m.d.sync += [qp.eq(event.qp), op.eq(Mux(piece, Op.PIECE, Op.COMMAND))]
                    with m.Elif(self.cnps.valid):
                        m.d.sync += [qp.eq(self.cnps.payload), op.eq(Op.CNP)]
                    with m.Else():
                        m.d.sync += [qp.eq(self.jobs.payload.qp), slot.eq(self.alloc.payload)]
                        m.next = "MATCH"
            with m.State("ROUND"):
                rotate(slot)
                m.next = "CHOOSE"
            with m.State("READ"):
                link_piece()
                m.next = "WAIT"
            with m.State("WAIT"):
                link_piece()
                m.next = "LOOK"
            with m.State("LOOK"):
                link_piece()
                m.d.sync += [pos.eq(position.read0_data), chain.eq(chains.read0_data), ctx.eq(context.read0_data)]
                weigh(m, cfg, facts, wqe, Mux(answer, progress.data, position.read0_data.offset), context.read0_data, answer,
                      self.failed.bit_select(slot, 1), self.now)
                with m.Switch(op):
                    for kind in Op:
                        with m.Case(kind):
                            m.next = kind.name
            with m.State("VISIT"):
                ends, over, length = plan_packet(m, cfg, planned, facts, wqe, pos, ctx, qp, answer, self.time)
                waits = Signal()
                m.d.comb += [waits.eq(~ends & ((self.wait != 0) | ~self.enable)), self.charge.payload.bytes.eq(length)]
                with m.If(purging & (qp == purge_qp)):
                    with m.If(answer):
                        end_answer()
                        m.next = "CHOOSE"
                    with m.Else():
                        m.next = "GIVE_BACK"
                with m.Elif(waits & self.enable & (self.wait >= PATIENCE_NS) & ~answer):
                    m.next = "GIVE_UP"
                with m.Elif(waits):
                    rotate(slot)
                    m.next = "CHOOSE"
                with m.Else():
                    m.d.comb += out.i.valid.eq(1)
                    with m.If(out.i.ready):
                        m.d.comb += [self.charge.valid.eq(~ends), self.event_expired.eq(planned.last & ends & facts.expired)]
                        m.next = "CHOOSE"
                        m.d.comb += [save.eq(1), new_pos.psn.eq(pos.psn + ~ends)]
                        with m.If(over):
                            with m.If(~answer):
                                m.d.comb += [self.give_back.valid.eq(1), new_pos.sent.eq(pos.sent + 1), new_pos.offset.eq(0), new_chain.len.eq(chain.len - 1)]
                                with m.If(chain.len != 1):
                                    rotate(following.data)
                            with m.Else():
                                end_answer()
                        with m.Else():
                            rotate(slot)
                            with m.If(answer):
                                m.d.comb += [advance.en.eq(1), advance.data.eq(facts.offset + facts.mtu)]
                            with m.Else():
                                m.d.comb += new_pos.offset.eq(facts.offset + facts.mtu)
            with m.State("GIVE_UP"):        # until its time has come
                waited = Signal(10)
                m.d.sync += waited.eq(self.wait // DELAY_NS)
                m.d.comb += [self.settle.valid.eq(1), self.settle.payload.kind.eq(Settle.RELEASE),
                             self.settle.payload.delay.eq(Mux(facts.due < waited, facts.due, waited))]
                with m.If(self.settle_done):
                    m.next = "GIVE_BACK"
            with m.State("GIVE_BACK"):      # all slots of the QP, oldest first
                m.d.comb += [self.give_back.valid.eq(1), new_chain.len.eq(0)]
                m.d.sync += [slot.eq(following.data), chain.len.eq(chain.len - 1)]
                with m.If(chain.len == 1):
                    m.d.comb += save.eq(1)
                    m.next = "CHOOSE"
            with m.State("PIECE"):
                link_piece()
                with m.If(event.index == (pos.sent + chain.len)[:16]):
                    m.d.comb += [self.events.ready.eq(1), link.en.eq(chain.len != 0), link.addr.eq(chain.tail),
                                 link.data.eq(event.slot0)]
                    m.d.comb += [save.eq(1), new_chain.len.eq(chain.len + event.count + 1), new_chain.tail.eq(piece_slots[event.count])]
                    with m.If(chain.len == 0):
                        rotate(event.slot0)
                    m.next = "CHOOSE"
                with m.Else():              # fetched before the scheduler went back to an older WQE
                    m.next = "REFUSE"
            with m.State("REFUSE"):
                m.d.comb += [self.give_back.valid.eq(1), self.give_back.payload.eq(piece_slots[count])]
                m.d.sync += count.eq(count + 1)
                with m.If(count == event.count):
                    m.d.comb += self.events.ready.eq(1)
                    m.next = "CHOOSE"
            with m.State("MATCH"):
                m.next = "STORE"
            with m.State("STORE"):
                job, made = self.jobs.payload, Signal(send_wqe_layout())
                m.d.comb += [
                    made.opcode.eq(READ_RESPONSE), made.length.eq(job.length), made.va.eq(job.va), made.lkey.eq(job.key),
                    made.seq.eq(job.seq), made.tag.eq(job.tag), made.imm.eq(job.generation),
                    self.store.valid.eq(1), self.store.payload.slot.eq(slot), self.store.payload.wqe.eq(made),
                    self.jobs.ready.eq(1), self.alloc.ready.eq(1), advance.en.eq(1), own.en.eq(1), own.addr.eq(slot), own.data.qp.eq(qp), own.data.answer.eq(1),
                ]
                # behind the answer that the QP is already giving, if there is one
                m.d.comb += [link.en.eq(1), link.addr.eq(answering.last), link.data.eq(slot)]
                m.d.sync += answers.eq(answers + 1)
                with m.If(~answering.found):
                    rotate(slot)
                self._begin_answer(m, entries, answering, qp, slot)
                m.next = "CHOOSE"
            with m.State("CNP"):
                plan_cnp(m, planned, ctx, qp)
                m.d.comb += out.i.valid.eq(ctx.state != QP_STATE["free"])
                with m.If(out.i.ready | ~out.i.valid):
                    m.d.comb += [self.cnps.ready.eq(1), self.event_cnp.eq(out.i.valid)]
                    m.next = "CHOOSE"
            with m.State("COMMAND"):
                with m.If(event.kind == Event.FENCE):
                    m.d.comb += [out.i.valid.eq(1), planned.packet.silent.eq(1), planned.fence.eq(1)]
                    with m.If(out.i.ready):
                        m.d.comb += self.events.ready.eq(1)
                        m.next = "CHOOSE"
                with m.Else():
                    m.d.comb += self.events.ready.eq(1)
                    m.d.sync += [purging.eq(1), purge_qp.eq(qp), purge_kind.eq(event.kind)]
                    rotate(0, marker=1)
                    m.next = "CHOOSE"
            with m.State("CLOSE"):
                m.d.comb += [self.settle.valid.eq(1), self.settle.payload.kind.eq(Mux(purge_kind == Event.RESET, Settle.RESET, Settle.FLUSH))]
                m.d.sync += posted.eq(self.posted)
                with m.If(self.settle_done):
                    m.next = "CLOSED"
            with m.State("CLOSED"):
                plan_run(m, planned, ctx, qp, pos.sent, posted, self.time)
                m.d.comb += [out.i.valid.eq(1), new_chain.eq(0), new_pos.sent.eq(posted), new_pos.offset.eq(0)]
                with m.If(purge_kind == Event.RESET):
                    m.d.comb += [planned.last.eq(0), new_pos.eq(0)]
                with m.If(out.i.ready):
                    m.d.comb += [save.eq(1), self.restart.valid.eq(purge_kind == Event.RESET)]
                    m.d.sync += purging.eq(0)
                    m.next = "CHOOSE"

        return m

    @staticmethod
    def _find_answer(m, entries, answering, qp):
        """Which entry is of `qp`: in the register `answering`."""
        hits = [entry.valid & (entry.qp == qp) for entry in entries]
        m.d.sync += [answering.found.eq(Cat(hits).any())]
        for bit in range(len(answering.which)):
            m.d.sync += answering.which[bit].eq(Cat(hit for i, hit in enumerate(hits) if i >> bit & 1).any())
        for bit in range(len(answering.last)):
            m.d.sync += answering.last[bit].eq(Cat(hit & entry.last[bit] for hit, entry in zip(hits, entries)).any())

    @staticmethod
    def _begin_answer(m, entries, answering, qp, slot):
        """A new entry, or the QP's gets a new last one. There are as many entries as answers, so one is free."""
        taken = 0
        for i, entry in enumerate(entries):
            first_free = ~entry.valid & ~taken if i else ~entry.valid
            with m.If(Mux(answering.found, answering.which == i, first_free)):
                m.d.sync += [entry.valid.eq(1), entry.qp.eq(qp), entry.last.eq(slot)]
            taken = taken | ~entry.valid if i else ~entry.valid
