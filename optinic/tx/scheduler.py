"""Whose packet is next: the rotation of QPs with a WQE at hand, where each message stands, and when it is over."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import QP_STATE
from optinic.memory.table import Table, TableSpec, alarm_members, connect_alarms, protect
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.tx.active import DELAY_NS, Settle, settle_layout
from optinic.transport.rc import planner as rc_planner
from optinic.tx import planner as xp_planner
from optinic.tx.planner import last_byte_of
from optinic.tx.records import (OFFSET_UNIT, PIECE, WQE_BITS, Event, ack_layout, common_layout, context_layout, count_bits, event_layout,
                                job_layout, kind_shape, outstanding_layout, planned_layout, position_layout, query_layout, send_wqe_layout)
from optinic.tx.wqe_fetch import answer_slots

__all__ = ["SendScheduler", "PATIENCE_NS"]

PATIENCE_NS = 2048      #: a QP that has to wait longer than this for its rate gives its slots back meanwhile


class Op(Enum, shape=3):
    """What the machine is doing, and the state that follows the tables' answer."""
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
    slot isn't ready costs two cycles, one whose QP must wait costs six. Otherwise it emits one packet (`planned`) and returns to the end of the rotation, or,
    when that was the last, frees the slot and hands the turn to the QP's next one. A QP that its pacer holds back goes round
    (a wait of up to PATIENCE_NS) or gives all its slots back and is parked until its time, or its deadline, has come.

    With `enable` low no packet is planned, but commands are carried out, and sends whose time has passed end. When slots are short
    then, each QP gives its own back by turns.
    READ answers may take a quarter of the slots; a job waits at `jobs` when they are taken. A QP gives its answers one after
    the other, in the order of the requests: at the other end they are messages, of which a later one ends an earlier one.
    A command (RESET, FLUSH) first goes once round the rotation, in which all slots of the QP are given back, then ends with
    a silent packet that is marked `fence`. While `room` is low no packet is planned, and everything here waits.

    With transport rc there are ACKs to be sent, too (`acks`; they and the rest alternate when both wait), and answers have the PSNs of
    their requests. GOBACK and HALT go round like RESET, but answers stay, the QP stands at `target` then, and nothing is planned for
    them. `outstanding` tells of each request of an RC QP that begins to be sent, again too, a cycle after its first packet; `answered`
    of each job that was done or given up.

    What the pacer says (`wait`) must belong to the `pace_qp` of four cycles after `pace_look`. `charge` and `restart` come a
    cycle after their packet; so does what is written to the tables, which is in time for the next operation's read.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        slot = range(cfg.tx_slots)
        super().__init__({
            "events": In(stream.Signature(event_layout(cfg))), "settle": Out(stream.Signature(settle_layout(cfg))),
            "settle_done": In(1), "posted": In(count_bits(cfg)),
            "chain_qp": In(cfg.qp_bits), "chain_len": Out(range(cfg.tx_slots + 1)), "chain_busy": Out(1),
            "common_qp": Out(cfg.qp_bits), "common": In(common_layout(cfg)), "common_busy": In(1),
            "jobs": In(stream.Signature(job_layout(cfg))), "cnps": In(stream.Signature(cfg.qp_bits)),
            "alloc": In(stream.Signature(slot)), "want_slot": Out(1),
            "store": Out(PushSignature(StructLayout({"slot": slot, "job": job_layout(cfg)}))),
            "give_back": Out(PushSignature(slot)), "ask": Out(slot), "ready": In(1), "failed": In(1),
            "look": Out(slot), "blank": Out(1), "wqe": In(WQE_BITS), "free": In(range(cfg.tx_slots + 1)),
            "context_set": In(wiring.Signature({"en": Out(1), "qp": Out(range(1 << cfg.qp_bits)), "entry": Out(context_layout(cfg))})),
            "pace_qp": Out(cfg.qp_bits), "pace_look": Out(1), "wait": In(24),
            "charge": Out(PushSignature(StructLayout({"qp": cfg.qp_bits, "bytes": 14}))),
            "restart": Out(PushSignature(cfg.qp_bits)),
            "planned": Out(PushSignature(planned_layout(cfg))), "wanted": Out(query_layout()), "room": In(1),
            "enable": In(1), "now": In(32), "event_expired": Out(1), "event_cnp": Out(1),
            "clearing": Out(1), "idle": Out(1),
        } | alarm_members(cfg) | ({
            "acks": In(stream.Signature(ack_layout(cfg))), "target": In(position_layout()),
            "outstanding": Out(PushSignature(outstanding_layout(cfg))), "answered": Out(PushSignature(cfg.qp_bits)),
            "event_ack": Out(1), "event_nak": Out(1),
        } if cfg.rc else {}))

    @staticmethod
    def chain_layout(cfg):
        return StructLayout({"tail": range(cfg.tx_slots), "len": range(cfg.tx_slots + 1)})

    @staticmethod
    def tables(cfg):
        return protect(cfg, [
            TableSpec("sq_position", "send scheduler", position_layout().size, cfg.num_qps, "qp", "hot"),
            TableSpec("sq_chain", "send scheduler", SendScheduler.chain_layout(cfg).size, cfg.num_qps, "qp", "hot"),
            TableSpec("tx_context", "send scheduler", context_layout(cfg).size, cfg.num_qps, "qp", "context"),
        ])

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        specs = {spec.name: spec for spec in self.tables(cfg)}
        planner = rc_planner if cfg.rc else xp_planner
        Kind = planner.Kind
        m.submodules.position = position = Table(specs["sq_position"], position_layout(), latency=1)
        m.submodules.chains = chains = Table(specs["sq_chain"], self.chain_layout(cfg), latency=1, aside=True)
        m.submodules.context = context = Table(specs["tx_context"], context_layout(cfg), latency=1)
        connect_alarms(m, self, (position, chains, context))
        put = self.context_set
        m.d.comb += [
            context.write_en.eq(put.en), context.write_addr.eq(put.qp), context.write_data.eq(put.entry),
            self.clearing.eq(position.clearing | chains.clearing | context.clearing), chains.aside_addr.eq(self.chain_qp),
            self.chain_busy.eq(chains.aside_busy),
        ]
        m.d.sync += self.chain_len.eq(chains.aside_data.len)
        # at most one entry for each slot, and a marker: one fits the output register
        slot_shape = range(cfg.tx_slots)
        entry_layout = StructLayout({"qp": cfg.qp_bits, "slot": slot_shape, "answer": 1, "marker": 1})
        m.submodules.rotation = rotation = StreamFifo(entry_layout, cfg.tx_slots)
        turn = rotation.o.payload

        # per slot: the slot of the QP's next WQE; of a READ being answered, how far it is, and in transport rc its next PSN
        def memory(name, shape):
            m.submodules[name] = ram = Memory(shape=shape, depth=cfg.tx_slots, init=[], attrs={"ram_style": "distributed"})
            return ram.write_port(), ram.read_port(domain="comb")
        link, following = memory("links", slot_shape)
        advance, progress = memory("progress", StructLayout({"offset": 32 - OFFSET_UNIT, **({"psn": 24} if cfg.rc else {})}))

        event = self.events.payload
        count = Signal(2)
        piece_slots = Array([getattr(event, f"slot{i}") for i in range(PIECE)])

        # the operation under way, and in registers what the tables say of its QP
        op = Signal(Op)
        kind = Signal(Kind)
        qp = Signal(cfg.qp_bits)
        slot = Signal(slot_shape)
        failed = Signal()                       # its WQE could not be read
        pos = Signal(position_layout())
        offset = Signal(32 - OFFSET_UNIT)       # in the message that is visited
        last_byte = Signal(33)                  # see last_byte_of
        chain = Signal(self.chain_layout(cfg))
        ctx, own = Signal(context_layout(cfg)), Signal(common_layout(cfg))
        facts, coming = Signal(planner.facts_layout(cfg)), Signal(planner.facts_layout(cfg))
        until = Signal(32)                      # ticks to the WQE's deadline
        fits = Signal()                         # the piece follows on what is here of its QP
        run = Signal(StructLayout({"count": 16, "last": 16}))       # what a flush completes
        wqe = send_wqe_layout()(self.wqe)
        answer = kind == Kind.ANSWER
        settle = self.settle.payload
        if cfg.rc:                              # in a register, like its `valid`
            settle = Signal(settle_layout(cfg))
            m.d.sync += self.settle.payload.eq(settle)
        m.d.comb += [
            position.read0_addr.eq(qp), chains.read0_addr.eq(qp), context.read0_addr.eq(qp), self.common_qp.eq(qp), self.pace_qp.eq(turn.qp),
            following.addr.eq(slot), progress.addr.eq(slot), self.ask.eq(turn.slot), self.look.eq(slot),
            self.blank.eq(planner.has_no_wqe(kind) | failed),
            settle.qp.eq(qp), settle.index.eq(pos.sent), self.give_back.payload.eq(slot),
            advance.addr.eq(slot), self.store.payload.slot.eq(slot), self.store.payload.job.eq(self.jobs.payload),
        ]
        grown, none = Signal.like(chain.len), Signal()      # with the piece; nothing is here
        final = Signal()                        # the slot is the last one of its QP, or of its answers
        m.d.sync += [until.eq(wqe.deadline - self.now), fits.eq(event.index == (pos.sent + chain.len)[:len(event.index)]),
                     grown.eq(chain.len + event.count + 1), none.eq(chain.len == 0)]

        # what is to be written, a cycle later
        save, save_qp = Signal(), Signal(cfg.qp_bits)
        new_pos, new_chain = Signal.like(pos), Signal.like(chain)
        saves, saved_pos, saved_chain = Signal(), Signal.like(pos), Signal.like(chain)
        m.d.comb += [
            new_pos.eq(pos), new_chain.eq(chain), position.write_data.eq(saved_pos), chains.write_data.eq(saved_chain),
            *(port.eq(save_qp) for port in (position.write_addr, chains.write_addr)),
            *(port.eq(saves) for port in (position.write_en, chains.write_en)),
        ]
        m.d.sync += [saves.eq(save), save_qp.eq(qp), saved_pos.eq(new_pos), saved_chain.eq(new_chain)]

        def link_piece():
            """One slot of a piece a cycle, three cycles long: which one follows."""
            with m.If(op == Op.PIECE):
                m.d.comb += [link.en.eq(count < event.count), link.addr.eq(piece_slots[count]), link.data.eq(piece_slots[(count + 1)[:2]])]
                m.d.sync += count.eq(count + 1)

        to = rotation.i.payload
        # what most states put there, whether they do or not
        m.d.comb += [to.qp.eq(qp), to.slot.eq(slot), to.answer.eq(answer)]

        def rotate(**other):
            m.d.comb += [rotation.i.valid.eq(1), *(getattr(to, name).eq(value) for name, value in other.items())]

        answers = Signal(range(answer_slots(cfg) + 1))
        entries, answering = self._answering(m, qp)
        m.d.sync += final.eq(Mux(answer, answering.last == slot, chain.len == 1))

        # its slot's answer has been given, or given up; the QP's next one may begin, if there is one
        answer_ends = Signal()
        with m.If(answer_ends):
            m.d.sync += answers.eq(answers - 1)
            for entry, hit in zip(entries, answering.hits):
                with m.If(hit & final):
                    m.d.sync += entry.valid.eq(0)

        # a command that is being carried out: the QP's slots are given back as their turn comes
        purging = Signal()
        purged = Signal()                       # the operation's QP is the one
        purge_qp = Signal(cfg.qp_bits)
        purge_kind = Signal(kind_shape(cfg))
        moves = Signal()                        # it is GOBACK or HALT, which leave the answers alone
        piece = event.kind == Event.PIECE
        mine = purging & (qp == purge_qp)
        m.d.sync += purged.eq(mine & ~(moves & answer) if cfg.rc else mine)

        visits_turn = Signal()
        job_waits = Signal()
        event_waits = Signal()
        cnp_waits = Signal()
        other = event_waits | cnp_waits | (job_waits & self.alloc.valid)
        if cfg.rc:
            acks, ack_waits, acked = self.acks, Signal(), Signal()      # whether the last thing that wasn't a visit was an ACK
            other |= ack_waits
            m.d.sync += ack_waits.eq(acks.valid & ~acks.ready & self.enable)
        m.d.sync += event_waits.eq(self.events.valid & ~self.events.ready & (piece | ~purging))
        m.d.sync += cnp_waits.eq(self.cnps.valid & ~self.cnps.ready & self.enable)
        m.d.sync += job_waits.eq(self.jobs.valid & ~self.jobs.ready & (answers != answer_slots(cfg)) & (self.free > PIECE))

        busy = Signal()                         # the port of the shared context was
        m.d.sync += busy.eq(self.common_busy)
        settling = Signal()                     # in a register, as the other side has much to choose from
        m.d.comb += self.settle.valid.eq(settling)

        # what is planned, and when
        out = self.planned
        ends, over, length = planner.plan(m, cfg, out.payload, self.wanted, facts, kind, wqe, pos, offset, ctx, own, qp, run,
                                          self.acks.payload if cfg.rc else None)
        psn_behind = planner.psn_behind(facts, kind, pos, ends)
        charge = Signal()
        event_expired = Signal()
        restart = Signal()
        m.d.sync += [
            self.charge.valid.eq(charge), self.charge.payload.qp.eq(qp), self.charge.payload.bytes.eq(length),
            self.restart.valid.eq(restart), self.restart.payload.eq(qp), self.event_expired.eq(event_expired),
        ]
        if cfg.rc:
            begins, told = Signal(), self.outstanding.payload
            m.d.sync += [
                self.outstanding.valid.eq(begins), told.qp.eq(qp), told.index.eq(pos.sent), told.end_psn.eq(pos.psn + facts.span),
                told.rd.eq(facts.read | facts.atomic), self.answered.valid.eq(answer_ends), self.answered.payload.eq(qp),
            ]
        pause = Signal(10)                      # of the QP that the pacer holds back
        long = Signal()                         # that it should give its slots back, or others need them while nothing is sent
        m.d.sync += [pause.eq(Mux(self.enable, self.wait // DELAY_NS, 2)),
                     long.eq(Mux(self.enable, self.wait >= PATIENCE_NS, self.free < PIECE + answer_slots(cfg)))]

        # outside of the machine, whose state would come before all of it
        planner.weigh(m, cfg, coming, kind, wqe, until, offset, last_byte, ctx, own, failed)

        with m.FSM():
            with m.State("CHOOSE"):
                nothing = ~rotation.o.valid & ~self.events.valid & ~self.cnps.valid & ~self.jobs.valid
                m.d.comb += self.idle.eq(nothing & ~acks.valid if cfg.rc else nothing)
                # the pacer is asked in case it will be a visit
                m.d.comb += self.pace_look.eq(rotation.o.valid)
                m.d.comb += self.want_slot.eq(job_waits)
                m.d.sync += [count.eq(0), failed.eq(0), run.eq(0)]
                with m.If(self.clearing):
                    pass
                with m.Elif(rotation.o.valid & (visits_turn | ~other)):
                    m.d.comb += rotation.o.ready.eq(1)
                    m.d.sync += [visits_turn.eq(0), slot.eq(turn.slot), op.eq(Op.VISIT), qp.eq(turn.qp),
                                 kind.eq(Mux(turn.marker, Kind.SILENT, Mux(turn.answer, Kind.ANSWER, Kind.OWN))),
                                 failed.eq(self.failed & ~turn.answer & ~turn.marker)]
                    m.next = "READ"
                    with m.If(turn.marker):
                        m.d.sync += op.eq(Op.CLOSE)
                    with m.Elif(~self.ready):
                        m.next = "ROUND"
                with m.Elif(other):
                    m.d.sync += [visits_turn.eq(1), kind.eq(Kind.SILENT)]
                    m.next = "READ"
                    if cfg.rc:
                        m.d.sync += acked.eq(0)
                    with m.If(event_waits):
                        m.d.sync += [qp.eq(event.qp), op.eq(Mux(piece, Op.PIECE, Op.COMMAND))]
                    with m.Elif(cnp_waits):
                        m.d.sync += [qp.eq(self.cnps.payload), op.eq(Op.CNP), kind.eq(Kind.CNP)]
                    if cfg.rc:
                        with m.Elif(ack_waits & ~(acked & job_waits & self.alloc.valid)):
                            m.d.sync += [qp.eq(acks.payload.qp), op.eq(Op.CNP), kind.eq(Kind.ACK), acked.eq(1)]
                    with m.Else():
                        m.d.sync += [qp.eq(self.jobs.payload.qp), slot.eq(self.alloc.payload)]
                        m.next = "MATCH"
            with m.State("ROUND"):
                rotate()
                m.next = "CHOOSE"
                with m.If(purging & ~answer):
                    m.d.comb += rotation.i.valid.eq(0)
                    m.next = "UNREADY"
            with m.State("UNREADY"):        # slots of the command's QP are given back, ready or not
                m.next = "READ"
                with m.If(~purged):
                    rotate()
                    m.next = "CHOOSE"
            with m.State("READ"):
                link_piece()
                m.next = "WAIT"
            with m.State("WAIT"):
                link_piece()
                at = Mux(answer, progress.data.offset, position.read0_data.offset)
                m.d.sync += [pos.eq(position.read0_data), chain.eq(chains.read0_data), ctx.eq(context.read0_data), own.eq(self.common),
                             offset.eq(at), last_byte.eq(last_byte_of(wqe, at))]
                if cfg.rc:
                    with m.If(answer):
                        m.d.sync += pos.psn.eq(progress.data.psn)
                    with m.Elif(kind == Kind.ACK):
                        m.d.sync += pos.psn.eq(acks.payload.psn)
                m.next = "LOOK"
                with m.If(busy):
                    m.d.sync += count.eq(0)
                    m.next = "READ"
            with m.State("LOOK"):
                link_piece()
                m.d.sync += facts.eq(coming)
                with m.Switch(op):
                    for each in Op:
                        with m.Case(each):
                            m.next = each.name
            with m.State("VISIT"):
                # the data first, whatever becomes of it
                m.d.comb += [
                    new_pos.psn.eq(psn_behind), new_pos.sent.eq(Mux(over & ~answer, pos.sent + 1, pos.sent)),
                    to.slot.eq(Mux(over, following.data, slot)), to.answer.eq(answer),
                ]
                with m.If(~answer):
                    m.d.comb += [new_pos.offset.eq(Mux(over, 0, facts.onward)), new_chain.len.eq(Mux(over, chain.len - 1, chain.len))]
                goes = ends | (self.enable & (self.wait == 0))
                with m.If(~purged & goes & self.room):
                    m.d.comb += [
                        out.valid.eq(1), charge.eq(~ends), event_expired.eq(out.payload.last & ends & planner.expires(facts)), save.eq(~answer if cfg.rc else 1),
                        rotation.i.valid.eq(~over | ~final), advance.en.eq(~over & answer), self.give_back.valid.eq(over),
                        answer_ends.eq(over & answer),
                    ]
                    if cfg.rc:
                        m.d.comb += begins.eq(~ends & facts.begins)
                    m.next = "CHOOSE"
                with m.Elif(purged):
                    m.next = "GIVE_BACK"
                    with m.If(answer):
                        m.next = "LET_GO"
                with m.Elif(~goes):
                    m.next = "HELD"
            with m.State("HELD"):           # its turn comes again, if it is soon
                rotate()
                m.next = "CHOOSE"
                with m.If(long & ~answer):
                    m.d.comb += rotation.i.valid.eq(0)
                    m.next = "GIVE_UP"
            with m.State("LET_GO"):         # an answer that is given up
                m.d.comb += [rotation.i.valid.eq(~final), to.slot.eq(following.data), to.answer.eq(1), self.give_back.valid.eq(1),
                             answer_ends.eq(1)]
                m.next = "CHOOSE"
                if cfg.rc:              # and all of the QP's that follow, for none of them may outlive it
                    m.d.comb += rotation.i.valid.eq(0)
                    with m.If(~final):
                        m.d.sync += slot.eq(following.data)
                        m.next = "NEXT_ANSWER"
            if cfg.rc:
                with m.State("NEXT_ANSWER"):
                    m.next = "LET_GO"
            with m.State("GIVE_UP"):        # until its time has come
                m.d.sync += settling.eq(~self.settle_done)
                m.d.comb += [settle.kind.eq(Settle.RELEASE),
                             settle.delay.eq(planner.delay_of(facts, pause))]
                with m.If(self.settle_done):
                    m.next = "GIVE_BACK"
            with m.State("GIVE_BACK"):      # all slots of the QP, oldest first
                m.d.comb += [self.give_back.valid.eq(1), new_chain.len.eq(0)]
                m.d.sync += [slot.eq(following.data), chain.len.eq(chain.len - 1)]
                with m.If(chain.len == 1):
                    m.d.comb += save.eq(1)
                    m.next = "CHOOSE"
            with m.State("PIECE"):
                m.d.comb += [
                    link.addr.eq(chain.tail), link.data.eq(event.slot0), new_chain.len.eq(grown), new_chain.tail.eq(piece_slots[event.count]),
                    to.slot.eq(event.slot0), rotation.i.valid.eq(fits & none), link.en.eq(fits & ~none),
                ]
                with m.If(fits):
                    m.d.comb += [self.events.ready.eq(1), save.eq(1)]
                    m.next = "CHOOSE"
                with m.Else():              # fetched before the scheduler went back to an older WQE
                    m.d.sync += count.eq(0)
                    m.next = "REFUSE"
            with m.State("REFUSE"):
                m.d.comb += [self.give_back.valid.eq(1), self.give_back.payload.eq(piece_slots[count])]
                m.d.sync += count.eq(count + 1)
                with m.If(count == event.count):
                    m.d.comb += self.events.ready.eq(1)
                    m.next = "CHOOSE"
            with m.State("MATCH"):          # for two cycles
                m.d.comb += self.want_slot.eq(1)
                m.d.sync += count.eq(count + 1)
                with m.If(count[0]):
                    m.next = "STORE"
            with m.State("STORE"):
                m.d.comb += [
                    self.want_slot.eq(1), self.store.valid.eq(1), self.jobs.ready.eq(1), self.alloc.ready.eq(1), advance.en.eq(1),
                    # behind the answer that the QP is already giving, if there is one
                    link.en.eq(answering.found), link.addr.eq(answering.last), link.data.eq(slot),
                ]
                m.d.sync += answers.eq(answers + 1)
                with m.If(~answering.found):
                    rotate(answer=1)
                # a new entry, or the QP's gets a new last one
                for entry, hit, free in zip(entries, answering.hits, answering.free):
                    with m.If(Mux(answering.found, hit, free)):
                        m.d.sync += [entry.valid.eq(1), entry.qp.eq(qp), entry.last.eq(slot)]
                m.next = "CHOOSE"
            with m.State("CNP"):
                there = own.state != QP_STATE["free"]
                with m.If(self.room | ~there):
                    m.d.comb += [out.valid.eq(there), self.cnps.ready.eq(1), self.event_cnp.eq(there)]
                    if cfg.rc:
                        with m.If(kind == Kind.ACK):
                            m.d.comb += [self.cnps.ready.eq(0), self.event_cnp.eq(0), acks.ready.eq(1), self.event_ack.eq(there),
                                         self.event_nak.eq(there & acks.payload.syndrome[5:].any())]
                    m.next = "CHOOSE"
            with m.State("COMMAND"):
                with m.If(event.kind == Event.FENCE):
                    with m.If(self.room):
                        m.d.comb += [out.valid.eq(1), self.events.ready.eq(1)]
                        m.next = "CHOOSE"
                with m.Else():
                    m.d.comb += self.events.ready.eq(1)
                    m.d.sync += [purging.eq(1), purge_qp.eq(qp), purge_kind.eq(event.kind)]
                    if cfg.rc:
                        m.d.sync += moves.eq((event.kind == Event.GOBACK) | (event.kind == Event.HALT))
                    rotate(marker=1)
                    m.next = "CHOOSE"
            with m.State("CLOSE"):
                m.d.sync += settling.eq(~self.settle_done)
                m.d.comb += [settle.kind.eq(Mux(purge_kind == Event.RESET, Settle.RESET, Settle.FLUSH))]
                if cfg.rc:
                    with m.If(moves):
                        m.d.comb += [settle.kind.eq(Settle.GO_BACK), settle.index.eq(self.target.sent), settle.halt.eq(purge_kind == Event.HALT)]
                with m.If(self.settle_done):
                    m.next = "SUM"
                    if cfg.rc:              # the target may be another command's from now on
                        with m.If(purge_kind != Event.FLUSH):
                            m.d.sync += pos.eq(self.target)
                    with m.If(purge_kind == Event.FLUSH):
                        m.d.sync += run.count.eq((self.posted - pos.sent)[:len(self.posted)])
            with m.State("SUM"):
                m.d.sync += run.last.eq(pos.sent + run.count - 1)
                m.next = "CLOSED"
            with m.State("CLOSED"):
                m.d.comb += [new_chain.eq(0), new_pos.sent.eq(pos.sent + run.count), new_pos.offset.eq(0)]
                if cfg.rc:
                    with m.If(purge_kind != Event.FLUSH):
                        m.d.comb += new_pos.eq(pos)
                else:
                    with m.If(purge_kind == Event.RESET):
                        m.d.comb += new_pos.eq(0)
                with m.If(self.room | moves if cfg.rc else self.room):
                    m.d.comb += [out.valid.eq(~moves if cfg.rc else 1), save.eq(1), restart.eq(purge_kind == Event.RESET)]
                    m.d.sync += purging.eq(0)
                    m.next = "CHOOSE"
        # an answer begins at its first byte
        m.d.comb += advance.data.offset.eq(Mux(self.alloc.ready, 0, facts.onward))
        if cfg.rc:
            m.d.comb += advance.data.psn.eq(Mux(self.alloc.ready, self.jobs.payload.psn, psn_behind))
        return m

    def _answering(self, m, qp):
        """The QPs that are giving answers, with the slot of the last one that each has to give; and in registers which entry is
        of `qp` (one-hot), a cycle later what it says, and which one is free. There are as many as answers, so one is when it is needed."""
        cfg, number = self.cfg, answer_slots(self.cfg)
        entries = [Signal(StructLayout({"valid": 1, "qp": cfg.qp_bits, "last": range(cfg.tx_slots)}), name=f"answering{i}")
                   for i in range(number)]
        answering = Signal(StructLayout({"found": 1, "hits": number, "free": number, "last": range(cfg.tx_slots)}))
        unused = Signal(number)
        m.d.comb += unused.eq(~Cat(entry.valid for entry in entries))
        m.d.sync += [answering.hits.eq(Cat(entry.valid & (entry.qp == qp) for entry in entries)),
                     answering.found.eq(answering.hits.any()), answering.free.eq(unused & (~unused + 1))]
        for bit in range(len(answering.last)):
            m.d.sync += answering.last[bit].eq(Cat(hit & entry.last[bit] for hit, entry in zip(answering.hits, entries)).any())
        return entries, answering
