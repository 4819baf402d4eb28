"""The last stage of transport rc: what memory says of a record, and all that follows from it, in order."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.structs import OPCODE
from optinic.abi.verdicts import REASON
from optinic.memory.job import job_layout
from optinic.memory.table import Table, TableSpec
from optinic.stream.fifo import StreamFifo
from optinic.transport.rc import outcome
from optinic.transport.rc.ack_board import Put, put_layout
from optinic.transport.rc.atomic import atomic_layout, result_layout
from optinic.transport.rc.records import (NAK_ACCESS, NAK_INVALID, NAK_OPERATION, Place, Reply, Turn, atomic_operands,
                                          settled_layout, turn_layout)
from optinic.transport.xp.records import Verdict, WorkKind
from optinic.tx.records import job_layout as answer_layout

__all__ = ["RcCommit"]


class RcCommit(wiring.Component):
    """Takes settled records one at a time and does what they say: jobs for the host writer, what is owed to the peer (`puts`),
    READs and atomics for the send half to answer (`answers`), turns and `progress` for its scheduler. A QP that has failed is
    dead from that record on: nothing of it is carried out but a command. A UC message of which memory refuses a piece is
    dropped from there on, and if it takes a receive, this one completes as an error at the message's end.

    A READ is handed on when all that was written before it is in memory. An atomic is done here, by the AtomicUnit, and the
    records behind it wait meanwhile (two accesses of the host); its result is kept, the last `cfg.rc_resources` of each QP, for
    those who ask again.

    Five cycles a record and more when an output waits; a search for an old result takes two for each that is kept. Takes a
    record every cycle into a queue of ``DEPTH`` and can't refuse one, so `room` says whether one more may set out for here;
    `leave` is high when it does. `job_over` pulses for each READ or atomic that was granted and is now with the send half, or
    given up. The frame's fate is told as by xp's Admission.
    """

    DEPTH = 32

    def __init__(self, cfg):
        self.cfg = cfg
        qp = cfg.qp_bits
        super().__init__({
            "record": In(settled_layout(cfg)), "record_valid": In(1), "room": Out(1), "leave": In(1),
            "jobs": Out(stream.Signature(job_layout(cfg))), "puts": Out(stream.Signature(put_layout(cfg))),
            "progress": Out(stream.Signature(StructLayout({"qp": qp, "una": 16}))),
            "turns": Out(stream.Signature(StructLayout({"turn": Turn, "qp": qp, **turn_layout().members}))),
            "answers": Out(stream.Signature(answer_layout(cfg))), "job_over": Out(2),
            "request": Out(stream.Signature(atomic_layout())), "result": In(stream.Signature(result_layout())),
            "fence_done": In(1), "command_done": Out(1),
            "log_en": In(1), "log_cq": In(cfg.cq_bits), "time": In(64),
            "is_frame": Out(1), "verdict": Out(Verdict), "reason": Out(5), "qpn": Out(24), "len": Out(range(cfg.mtu_max + 1)),
            "qp": Out(qp), "cnp": Out(1), "read": Out(1), "cnp_due": Out(1), "clearing": Out(1), "idle": Out(1),
        })

    @staticmethod
    def row_layout(cfg):
        """`spoiled`: of a UC message under way. `head`, `una`: the first receive, and the first request of ours, that has not
        completed; RcOrder may have given away and taken off more."""
        return StructLayout({"dead": 1, "spoiled": 1, "head": 16, "una": 16, "at": range(max(2, cfg.rc_resources))})

    @staticmethod
    def replay_layout():
        return StructLayout({"valid": 1, "psn": 24, "original": 64})

    @staticmethod
    def tables(cfg):
        specs = [TableSpec("rc_row", "rc commit", RcCommit.row_layout(cfg).size, cfg.num_qps, "qp", "hot")]
        if cfg.rc_atomics:
            specs.append(TableSpec("rc_replay", "rc commit", RcCommit.replay_layout().size, cfg.num_qps * cfg.rc_resources, "qp",
                                   "message", rows_per=1 / cfg.rc_resources))
        return specs

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        specs = {spec.name: spec for spec in self.tables(cfg)}
        m.submodules.rows = rows = Table(specs["rc_row"], self.row_layout(cfg), latency=1)
        m.submodules.queue = queue = StreamFifo(settled_layout(cfg), self.DEPTH)
        m.submodules.waiting = waiting = StreamFifo(answer_layout(cfg), cfg.read_jobs)      # never full: Order counts them
        m.submodules.fences = fences = StreamFifo(2, 16)        # whose each fence is, as they end in order
        r = queue.o.payload
        m.d.comb += [queue.i.payload.eq(self.record), queue.i.valid.eq(self.record_valid), rows.read0_addr.eq(r.qp),
                     rows.write_addr.eq(r.qp), self.clearing.eq(rows.clearing)]
        OURS, READ, ATOMIC = 0, 1, 2
        credit = Signal(range(self.DEPTH + 1), init=self.DEPTH)
        m.d.sync += [credit.eq(credit - self.leave + queue.o.ready), self.room.eq((credit > 1) | ~self.leave & (credit == 1))]

        # -- fences: of commands, of READs (which may be answered then), of the atomic that waits
        fence_over = Signal()
        released = Signal(range(cfg.read_jobs + 1))
        releases, takes, atomic_ready = Signal(), Signal(), Signal()
        m.d.comb += [
            fences.o.ready.eq(fence_over), fence_over.eq(self.fence_done),
            self.command_done.eq(fence_over & (fences.o.payload == OURS)),
            releases.eq(fence_over & (fences.o.payload == READ)), atomic_ready.eq(fence_over & (fences.o.payload == ATOMIC)),
            self.answers.payload.eq(waiting.o.payload), self.answers.valid.eq(waiting.o.valid & (released != 0)),
            takes.eq(self.answers.valid & self.answers.ready), waiting.o.ready.eq(takes),
        ]
        frees = Signal()        # an atomic's answer needs no fence any more
        m.d.sync += released.eq(released + releases + frees - takes)

        # -- what is known when the row is here, in registers
        row, f, reason = Signal(self.row_layout(cfg)), Signal(outcome.flags_layout()), Signal(5)
        frame, place, ours = r.kind == WorkKind.FRAME, r.place, r.place == Place.ANSWER

        def look():
            m.d.sync += row.eq(rows.read0_data)
            outcome.weigh(m, f, reason, r, rows.read0_data, self.log_en)

        una, retired = Signal(16), Signal.like(r.retired)
        back = f.refused & ours & r.whole       # what this packet would have completed
        m.d.comb += [una.eq(r.una - back), retired.eq(r.retired - back)]
        sends = Mux(f.refused, ours, r.ours)    # it is a request of our own that fails
        step = Signal(2)
        job = self.jobs.payload
        outcome.fill_job(m, job, step, f, reason, r, row, una, retired, self.log_cq, self.time)

        # -- what is owed to the peer, and what the send half shall do
        p, turn = self.puts.payload, self.turns.payload
        there = turn_layout()(r.va)
        m.d.comb += [
            p.qp.eq(r.qp), p.again.eq(r.again), p.psn.eq(r.psn), p.msn.eq(r.msn + (r.ends & ~f.fatal)), p.syndrome.eq(r.syndrome),
            p.kind.eq(Mux(r.kind == WorkKind.RESET, Put.RESET, Mux((r.reply == Reply.READ) & ~f.fatal, Put.READ, Put.ACK))),
            turn.qp.eq(r.qp), turn.turn.eq(Mux(f.fatal, Turn.HALT, r.turn)), turn.offset.eq(there.offset), turn.psn.eq(there.psn),
            turn.index.eq(Mux(f.refused, una + 1, Mux(r.kind == WorkKind.FLUSH, row.una, there.index))),
            self.progress.payload.qp.eq(r.qp), self.progress.payload.una.eq(una),
        ]
        with m.If(f.refused):
            m.d.comb += p.syndrome.eq(Mux(outcome.too_long(r), NAK_INVALID, Mux(place == Place.SEND, NAK_OPERATION, NAK_ACCESS)))
        with m.If(f.atomic & f.fatal):
            m.d.comb += p.syndrome.eq(NAK_OPERATION)
        a = waiting.i.payload
        original, found = Signal(64), Signal()
        m.d.comb += [a.qp.eq(r.qp), a.life.eq(r.life), a.psn.eq(r.psn), a.msn.eq(r.msn + r.ends), a.length.eq(r.length),
                     a.va.eq(r.va), a.key.eq(r.rkey)]
        if cfg.rc_atomics:
            m.submodules.replay = replay = Table(specs["rc_replay"], self.replay_layout(), latency=1)
            spot = Signal(range(max(2, cfg.rc_resources)))
            bits = (cfg.rc_resources - 1).bit_length()
            at = Cat(spot[:bits], r.qp)
            operands = atomic_operands(r)
            q = self.request.payload
            m.d.comb += [
                replay.read0_addr.eq(at), replay.write_addr.eq(at), replay.write_data.psn.eq(r.psn),
                replay.write_data.original.eq(original),
                self.clearing.eq(rows.clearing | replay.clearing), q.addr.eq(r.addr), q.add.eq(r.opcode == OPCODE["fetch_add"]),
                q.swap_add.eq(Cat(operands[0], operands[1])), q.compare.eq(Cat(operands[2], operands[3])),
            ]
            with m.If(f.atomic | f.search):
                m.d.comb += [a.atomic.eq(1), a.va.eq(original)]

        # -- one record after another
        jobs_left, put_left, turn_left, progress_left = (
            Signal(name=n) for n in ("jobs_left", "put_left", "turn_left", "progress_left"))
        fence_kind = Signal(2)
        m.d.comb += [fences.i.payload.eq(fence_kind), rows.write_data.eq(row), self.idle.eq(0)]
        m.d.comb += fence_kind.eq(Mux(f.answer, READ, OURS))
        over = Signal()

        def send_jobs():
            """The jobs from `step` on."""
            with m.If(jobs_left):
                with m.If(((step == 0) & ~f.first) | ((step == 1) & ~f.second) | ((step == 2) & ~f.log)):
                    m.d.sync += [step.eq(step + 1), jobs_left.eq(step != 2)]
                # behind a command's fence the driver goes on: what the send half shall do for it comes first
                with m.Elif(~job.fence | (fences.i.ready & ~turn_left & ~put_left & ~progress_left)):
                    m.d.comb += self.jobs.valid.eq(1)
                    with m.If(self.jobs.ready):
                        m.d.comb += fences.i.valid.eq(job.fence)
                        m.d.sync += [step.eq(step + 1),
                                     jobs_left.eq((step != 2) & ~((step == 0) & ~f.second & ~f.log) & ~((step == 1) & ~f.log))]
        with m.FSM():
            with m.State("TAKE"):
                m.d.comb += self.idle.eq(~queue.o.valid & (queue.level == 0) & ~waiting.o.valid & ~fences.o.valid)
                m.d.sync += [step.eq(0), jobs_left.eq(1), progress_left.eq(0), found.eq(0)]
                if cfg.rc_atomics:
                    m.d.sync += spot.eq(0)
                with m.If(queue.o.valid & ~self.clearing):
                    m.next = "LOOK"
            with m.State("LOOK"):
                look()
                m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.sync += [put_left.eq(f.put), turn_left.eq(f.turn), progress_left.eq(f.retires)]
                m.next = "ACT"
                if cfg.rc_atomics:
                    with m.If(f.atomic):
                        m.next = "FENCE"
                    with m.Elif(f.search):
                        m.next = "SEARCH"
                    with m.Elif(r.kind == WorkKind.RESET):
                        m.next = "WIPE"
                with m.If((r.reply == Reply.READ) & (place == Place.READ) & ~f.answer):
                    m.d.comb += over.eq(1)      # granted, and given up
                if cfg.rc_atomics:
                    with m.If(((r.reply == Reply.REPLAY) & ~f.search) | ((place == Place.ATOMIC) & ~f.atomic)):
                        m.d.comb += over.eq(1)
            with m.State("ACT"):
                send_jobs()
                m.d.comb += [self.puts.valid.eq(put_left), self.turns.valid.eq(turn_left), self.progress.valid.eq(progress_left)]
                with m.If(self.puts.ready):
                    m.d.sync += put_left.eq(0)
                with m.If(self.turns.ready):
                    m.d.sync += turn_left.eq(0)
                with m.If(self.progress.ready):
                    m.d.sync += progress_left.eq(0)
                with m.If(~jobs_left & ~put_left & ~turn_left & ~progress_left):
                    m.d.comb += [queue.o.ready.eq(1), waiting.i.valid.eq(f.answer | found), frees.eq(found & ~f.answer)]
                    with m.If(f.fatal):
                        m.d.comb += [rows.write_en.eq(1), rows.write_data.dead.eq(1)]
                    with m.If(f.retires | f.fatal):
                        m.d.comb += rows.write_en.eq(1)
                        with m.If(f.retires | (f.fatal & sends)):
                            m.d.comb += rows.write_data.una.eq(una + (f.fatal & sends))
                    with m.If(frame & r.complete & (~f.drop | f.spoiled)):
                        m.d.comb += [rows.write_en.eq(1), rows.write_data.head.eq(r.index + 1)]
                    with m.If(r.kind == WorkKind.FLUSH):
                        m.d.comb += [rows.write_en.eq(1), rows.write_data.head.eq(r.posted), rows.write_data.una.eq(r.una)]
                    with m.If(r.uc):
                        m.d.comb += [rows.write_en.eq(1), rows.write_data.spoiled.eq(f.spoiled)]
                    with m.If(r.kind == WorkKind.RESET):
                        m.d.comb += [rows.write_en.eq(1), rows.write_data.eq(0)]
                    if cfg.rc_atomics:
                        with m.If(f.atomic & ~f.fatal):
                            m.d.comb += [rows.write_en.eq(1),
                                         rows.write_data.at.eq(Mux(row.at == cfg.rc_resources - 1, 0, row.at + 1))]
                    m.next = "TAKE"
            if cfg.rc_atomics:
                with m.State("FENCE"):          # all that was written before it is in memory
                    m.d.comb += [fence_kind.eq(ATOMIC), job.as_value().eq(0), job.qp.eq(r.qp), job.fence.eq(1),
                                 self.jobs.valid.eq(fences.i.ready)]
                    with m.If(self.jobs.ready & fences.i.ready):
                        m.d.comb += fences.i.valid.eq(1)
                        m.next = "WAIT"
                with m.State("WAIT"):
                    with m.If(atomic_ready):
                        m.next = "ASK"
                with m.State("ASK"):
                    m.d.comb += self.request.valid.eq(1)
                    with m.If(self.request.ready):
                        m.next = "RESULT"
                with m.State("RESULT"):
                    m.d.comb += self.result.ready.eq(1)
                    m.d.sync += [original.eq(self.result.payload.original), spot.eq(row.at)]
                    with m.If(self.result.valid):
                        with m.If(self.result.payload.failed):
                            m.d.comb += over.eq(1)
                            m.d.sync += [f.fatal.eq(1), f.second.eq(1), f.drop.eq(1), f.log.eq(self.log_en & r.known),
                                         reason.eq(REASON["access"]), put_left.eq(1), turn_left.eq(1)]
                            m.next = "ACT"
                        with m.Else():
                            m.next = "KEEP"
                with m.State("KEEP"):
                    m.d.comb += [replay.write_en.eq(1), replay.write_data.valid.eq(1)]
                    m.d.sync += [found.eq(1), put_left.eq(1)]
                    m.next = "ACT"
                with m.State("SEARCH"):
                    m.next = "COMPARE"
                with m.State("COMPARE"):
                    e = replay.read0_data
                    m.d.sync += [original.eq(e.original), spot.eq(spot + 1)]
                    m.next = "SEARCH"
                    with m.If(e.valid & (e.psn == r.psn)):
                        m.d.sync += [found.eq(1), f.answer.eq(1), put_left.eq(1)]     # behind a fence, as READs that wait before it
                        m.next = "ACT"
                    with m.Elif(spot == cfg.rc_resources - 1):
                        m.d.comb += over.eq(1)
                        m.d.sync += [f.drop.eq(1), f.log.eq(self.log_en & r.known), reason.eq(REASON["psn"])]
                        m.next = "ACT"
                with m.State("WIPE"):
                    m.d.comb += replay.write_en.eq(1)
                    m.d.sync += spot.eq(spot + 1)
                    with m.If(spot == cfg.rc_resources - 1):
                        m.next = "ACT"
        with m.If(found):
            m.d.comb += p.kind.eq(Put.READ)
        m.d.comb += self.job_over.eq(over + takes)

        # -- what became of the frame
        tells = queue.o.ready & frame
        verdict = Mux(f.drop, Verdict.DROPPED, r.verdict)
        m.d.sync += [
            self.is_frame.eq(tells), self.verdict.eq(verdict), self.reason.eq(Mux(f.drop, reason, 0)), self.qpn.eq(r.qpn),
            self.len.eq(r.pay_len), self.qp.eq(r.qp), self.cnp.eq(tells & r.is_cnp & (verdict == Verdict.CONSUMED)),
            self.read.eq(tells & (verdict == Verdict.CONSUMED) & (place == Place.READ)),
            self.cnp_due.eq(tells & (verdict == Verdict.PLACED) & r.ce),
        ]
        return m

