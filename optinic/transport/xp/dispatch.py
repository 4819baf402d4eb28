"""Puts what follows from each record into the order in which the host shall see it."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.structs import CAUSE, OPCODE, STATUS
from optinic.memory.job import JobKind, job_layout
from optinic.stream.fifo import StreamFifo
from optinic.transport.xp.admission import result_layout
from optinic.transport.xp.arrival import mark_layout

__all__ = ["Dispatch"]


class Dispatch(wiring.Component):
    """Turns results of admission into jobs for the host writer: one for the completion of the old message, one for the receives
    that completed empty, then the frame's own with its completion, then with `log_en` a completion to `log_cq` for a refused
    frame. A record without any of these makes no job.

    With arrival maps, `mark` comes beside `result`. A placed frame that has one makes two jobs of its own: the payload, which
    keeps the frame in the packet buffer, then one byte out of the frame for the map, which frees it and carries the completion.

    Takes a result every cycle into a queue of cfg.packets_on_the_way and can't refuse one, so `room` says whether one more record may set
    out for here; `leave` is high when it does. One job a cycle; a result takes as many cycles as it makes jobs, at least one.
    `jobs` ends a long path and its `ready` begins one, so it should go into a queue at once. A change of `log_en`
    or `log_cq` also changes an entry of the log that waits there.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "result": In(result_layout(cfg)), "result_valid": In(1), "room": Out(1), "leave": In(1), "log_en": In(1), "log_cq": In(cfg.cq_bits),
            "jobs": Out(stream.Signature(job_layout(cfg))), "idle": Out(1),
        } | ({"mark": In(mark_layout())} if cfg.arrival_map else {}))

    def elaborate(self, platform):
        m = Module()
        maps = self.cfg.arrival_map
        layout = StructLayout({"result": result_layout(self.cfg)} | ({"mark": mark_layout()} if maps else {}))
        m.submodules.queue = queue = StreamFifo(layout, self.cfg.packets_on_the_way)
        m.d.comb += [queue.i.payload.result.eq(self.result), queue.i.valid.eq(self.result_valid)]
        r = queue.o.payload.result
        if maps:
            m.d.comb += [queue.i.payload.mark.eq(self.mark),
                         queue.i.payload.mark.valid.eq(self.mark.valid & (self.result.job == JobKind.PLACE))]

        # what of the result at the queue's output has become a job already
        did_old = Signal()
        did_empty = Signal()
        did_main = Signal()
        do_mark = Signal()
        if maps:
            mark, did_mark = queue.o.payload.mark, Signal(name="did_mark")
            m.d.comb += do_mark.eq(mark.valid & ~did_mark)
        m.d.comb += self.idle.eq(queue.level == 0)
        free = self.jobs.ready
        do_old, do_empty = r.old.valid & ~did_old, r.empty.valid & ~did_empty
        main = ((r.job != JobKind.NONE) | r.fence | r.own.valid) & ~did_main
        log = r.refused & self.log_en

        job = Signal(job_layout(self.cfg))
        last = Signal()
        c = job.completion
        m.d.comb += [c.cq.eq(r.cq), c.qpn.eq(r.qpn), c.time.eq(r.time), job.qp.eq(r.qp)]
        make = Signal()
        with m.If(do_old):
            m.d.comb += [
                make.eq(1), last.eq(~do_empty & ~main & ~log),
                job.complete.eq(1), c.status.eq(r.old.status), c.cause.eq(r.old.cause), c.wqe_index.eq(r.old.head),
            ]
            with m.If(r.old.opcode != OPCODE["none"]):
                m.d.comb += [c.opcode.eq(r.old.opcode), c.msg_len.eq(r.old.msg_len), c.byte_len.eq(r.old.msg_len - r.old.missing),
                             c.imm.eq(r.old.imm), c.tag.eq(r.old.tag)]
        with m.Elif(do_empty):
            m.d.comb += [
                make.eq(1), last.eq(~main & ~log),
                job.complete.eq(1), c.status.eq(r.old.status), c.wqe_index.eq(r.empty.index), c.skipped.eq(r.empty.skipped),
                c.cause.eq(Mux(r.old.cause == CAUSE["flushed"], CAUSE["flushed"], CAUSE["preempted"])),
            ]
        with m.Elif(main | do_mark):
            m.d.comb += [
                make.eq(1), last.eq(~log & ~(main & do_mark)), job.kind.eq(r.job), job.beats.eq(r.beats), job.pay_off.eq(r.pay_off),
                job.len.eq(r.len), job.addr.eq(r.addr), job.fence.eq(r.fence), job.ends_life.eq(r.ends_life), job.complete.eq(r.own.valid),
                c.wqe_index.eq(r.own.index),
            ]
            if maps:
                with m.If(~main):
                    m.d.comb += [job.pay_off.eq(mark.source), job.len.eq(1), job.addr.eq(mark.addr)]
                with m.Elif(do_mark):
                    m.d.comb += [job.beats.eq(0), job.complete.eq(0)]
            with m.If(~r.own.error):
                m.d.comb += [c.status.eq(STATUS["success"]), c.cause.eq(CAUSE["complete"]), c.opcode.eq(r.own.opcode),
                             c.msg_len.eq(r.own.msg_len), c.byte_len.eq(r.own.msg_len), c.imm.eq(r.own.imm), c.tag.eq(r.own.tag)]
            with m.Else():
                # the receive WQE could not be read: what had been placed before is all there will be
                m.d.comb += [c.status.eq(STATUS["error"]), c.cause.eq(CAUSE["flushed"])]
                with m.If(~r.own.fresh):
                    m.d.comb += [c.opcode.eq(r.old.opcode), c.msg_len.eq(r.old.msg_len),
                                 c.byte_len.eq(r.old.msg_len - r.old.missing), c.imm.eq(r.old.imm), c.tag.eq(r.old.tag)]
        with m.Else():
            m.d.comb += [
                make.eq(log), last.eq(1), job.complete.eq(log), c.cq.eq(self.log_cq), c.opcode.eq(OPCODE["refusal"]),
                c.status.eq(STATUS["error"]), c.wqe_index.eq(r.seq), c.byte_len.eq(r.len), c.imm.eq(r.reason),
            ]
        go = queue.o.valid & free
        m.d.comb += queue.o.ready.eq(free & last)
        credit = Signal(range(queue.depth + 1), init=queue.depth)
        m.d.sync += [credit.eq(credit - self.leave + (go & last)), self.room.eq((credit > 1) | ~self.leave & (credit == 1))]
        m.d.comb += [self.jobs.payload.eq(job), self.jobs.valid.eq(queue.o.valid & make)]
        with m.If(go):
            m.d.sync += [did_old.eq(do_old | did_old), did_empty.eq(did_empty | (do_empty & ~do_old)),
                         did_main.eq(did_main | (main & ~do_old & ~do_empty))]
            if maps:
                m.d.sync += did_mark.eq((did_mark | (do_mark & ~main & ~do_old & ~do_empty)) & ~last)
            with m.If(last):
                m.d.sync += [did_old.eq(0), did_empty.eq(0), did_main.eq(0)]
        return m
