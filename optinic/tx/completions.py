"""When a packet has left: what it ends, and with which status."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.structs import CAUSE, FATAL, STATUS
from optinic.memory.job import job_layout as host_job_layout
from optinic.memory.table import Table, TableSpec
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.tx.keys import LocalKeys
from optinic.tx.packet import done_layout
from optinic.tx.records import OFFSET_UNIT, end_layout, failed_layout, followup_layout

__all__ = ["SendCompletions"]


class SendCompletions(wiring.Component):
    """Pairs `followups` with `done` pulses, both in the order of packets, and makes the completions of messages: of those
    that ask for one, and of all that did not go well. A packet that was refused or failed marks its QP; the message's
    last packet takes the mark: then it ends as an error, cause protection or bus (the last one counts).

    DEPTH packets may be under way; `room` is low when there might not be room for those that LocalKeys holds and four more.
    Four cycles a packet; a completion has the `time` at which it is made. `fence_done` pulses for a followup with `fence`, when
    the completions before it have been handed to `jobs`. `jobs` may wait; then packets do.

    With transport rc the packets of an RC QP end nothing here, as the peer's ACKs do that; each of them that went wrong is told by `failed`,
    at most one in four cycles, and more than one of a request.
    """

    DEPTH = 128

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "followups": In(PushSignature(followup_layout(cfg))), "room": Out(1), "done": In(PushSignature(done_layout())),
            "jobs": Out(stream.Signature(host_job_layout(cfg))), "fence_done": Out(1), "event_error": Out(1), "time": In(64),
            "clearing": Out(1), "idle": Out(1),
        } | ({"failed": Out(PushSignature(failed_layout(cfg)))} if cfg.rc else {}))

    @staticmethod
    def tables(cfg):
        return [TableSpec("send_error", "send completions", 2, cfg.num_qps, "qp", "message")]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        fault = {"reliable": 1, "index": 16, "wrong": 1, "bad": 1} if cfg.rc else {}
        packet = StructLayout({"qp": cfg.qp_bits, "last": 1, "fence": 1, "always": 1, "refused": 1, "answer": 1, **fault})
        end = StructLayout({"end": end_layout(cfg), "msg_len": 32, **({} if cfg.rc else {"offset": 32 - OFFSET_UNIT}), "tag": 16})
        m.submodules.packets = packets = StreamFifo(packet, self.DEPTH)
        m.submodules.ends = ends = StreamFifo(end, self.DEPTH, style="block")
        m.submodules.dones = dones = StreamFifo(1, self.DEPTH)
        m.submodules.errors = errors = Table(self.tables(cfg)[0], 2)
        f, out = self.followups.payload, self.jobs
        m.d.sync += self.room.eq(packets.level < self.DEPTH - LocalKeys.DEPTH - 4)
        m.d.comb += [
            packets.i.valid.eq(self.followups.valid), ends.i.valid.eq(self.followups.valid & f.last),
            *(getattr(packets.i.payload, name).eq(getattr(f, name)) for name in packet.members),
            *(getattr(ends.i.payload, name).eq(getattr(f, name)) for name in end.members),
            dones.i.valid.eq(self.done.valid), dones.i.payload.eq(self.done.payload.failed),
        ]
        p, c = packets.o.payload, ends.o.payload
        pushed = Signal()       # two cycles from there to the output
        m.d.sync += pushed.eq(self.followups.valid)
        step = Signal(2)
        mark = Signal(2)        # 1: bus, 2: protection
        before = Signal(2)
        both = packets.o.valid & dones.o.valid & ~errors.clearing
        m.d.comb += [errors.read0_addr.eq(p.qp), errors.write_addr.eq(p.qp), self.clearing.eq(errors.clearing),
                     self.idle.eq(~self.followups.valid & ~pushed & ~packets.o.valid)]
        m.d.comb += mark.eq(before)
        with m.If(p.refused):
            m.d.comb += mark.eq(2)
        with m.Elif(dones.o.payload):
            m.d.comb += mark.eq(1)

        job = out.payload
        d, e = job.completion, c.end
        time = Signal.like(d.time)
        m.d.comb += [
            job.complete.eq(1), job.qp.eq(p.qp), d.queue.eq(1), d.cq.eq(e.cq), d.qpn.eq(Cat(p.qp, e.tag)), d.opcode.eq(e.opcode),
            d.wqe_index.eq(e.index), d.msg_len.eq(c.msg_len), d.status.eq(e.status), d.cause.eq(e.cause), d.time.eq(time),
        ]
        with m.If(p.fence):     # there is a `skipped` instead of a tag
            m.d.comb += d.skipped.eq(c.tag)
        with m.Else():
            m.d.comb += d.tag.eq(c.tag)
        with m.If((mark != 0) & (e.status != STATUS["error"])):
            m.d.comb += [d.status.eq(STATUS["error"]), d.cause.eq(Mux(mark[1], CAUSE["protection"], CAUSE["bus"]))]
        with m.Elif(e.status == STATUS["success"]):
            m.d.comb += d.byte_len.eq(c.msg_len)
        if not cfg.rc:      # which has no deadlines
            with m.Elif(e.status == STATUS["partial"]):
                m.d.comb += d.byte_len.eq(Cat(C(0, OFFSET_UNIT), c.offset))
        if cfg.rc:
            fault_now, told = Signal(), self.failed.payload
            m.d.sync += [
                self.failed.valid.eq(fault_now), told.qp.eq(p.qp), told.index.eq(p.index),
                told.cause.eq(Mux(p.refused, FATAL["protection"], Mux(p.wrong & p.bad, FATAL["length"], FATAL["bus"]))),
            ]
        tells = p.last & (p.always | (mark != 0))
        with m.If(both & (step != 3)):
            m.d.sync += step.eq(step + 1)
        m.d.sync += before.eq(errors.read0_data)
        with m.If(step != 3):
            m.d.sync += time.eq(self.time)
        with m.If(step == 3):
            m.d.comb += out.valid.eq(tells)
            with m.If(out.ready | ~tells):
                m.d.sync += step.eq(0)
                m.d.comb += [
                    packets.o.ready.eq(1), dones.o.ready.eq(1), ends.o.ready.eq(p.last), self.fence_done.eq(p.fence),
                    errors.write_en.eq(~p.answer & (p.last | (mark != before))), errors.write_data.eq(0),
                    self.event_error.eq(p.refused | dones.o.payload),
                ]
                with m.If(~p.last):
                    m.d.comb += errors.write_data.eq(mark)
                if cfg.rc:
                    with m.If(p.reliable):
                        m.d.comb += [errors.write_en.eq(0), fault_now.eq(p.wrong | p.refused | dones.o.payload)]
        return m
