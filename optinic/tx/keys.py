"""Between plan and reading: the local key of every payload is looked up, packet by packet."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import ACCESS
from optinic.memory.regions import region_request_layout, region_result_layout
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.tx.packet import packet_layout
from optinic.tx.records import OFFSET_UNIT, followup_layout, planned_layout, query_layout
from optinic.wire.opcodes import XP_BASE

__all__ = ["LocalKeys"]


class LocalKeys(wiring.Component):
    """Asks for the region of each planned packet (`query`, of no bytes when there is nothing to look up) and, when the
    `answer` has come, passes the packet on with its bus address, or silent if the region forbids it. What is to be done when
    the packet has left goes the other way, to `followups`, in the same cycle.

    `planned` and `wanted` come together, and only when `room` is high; `room` then falls for two cycles, and until the query
    has been taken. It is also low while `follow_room` is: `followups` can't be refused, and there must be room for DEPTH + 2 more of them.
    Answers come in the order of the queries and can't be refused; at most DEPTH packets are here. The way through takes
    three cycles more than the region's. `idle`: no packet is here.
    """

    DEPTH = 16

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "planned": In(PushSignature(planned_layout(cfg))), "wanted": In(query_layout()), "room": Out(1),
            "query": Out(stream.Signature(region_request_layout(cfg))), "answer": In(PushSignature(region_result_layout())),
            "packets": Out(stream.Signature(packet_layout(cfg))),
            "followups": Out(PushSignature(followup_layout(cfg))), "follow_room": In(1), "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.staged = staged = StreamFifo(planned_layout(cfg), self.DEPTH)
        m.submodules.answers = answers = StreamFifo(StructLayout({"addr": 64, "refused": 1}), self.DEPTH)
        inside = Signal(range(self.DEPTH + 1))
        leave = Signal()
        wanted, asking = Signal(query_layout(), reset_less=True), Signal()
        q = self.query
        came, gone = Signal(), Signal()
        m.d.sync += [
            came.eq(self.planned.valid), gone.eq(leave), inside.eq(inside + came - gone), asking.eq(self.planned.valid | (asking & ~q.ready)),
            self.room.eq(~self.planned.valid & ~asking & ~inside[-1] & self.follow_room),
        ]
        with m.If(self.planned.valid):
            m.d.sync += wanted.eq(self.wanted)
        m.d.comb += [
            q.valid.eq(asking), q.payload.key.eq(wanted.key), q.payload.va.eq(wanted.va), q.payload.pd.eq(wanted.pd),
            q.payload.len.eq(wanted.len), q.payload.need.eq(Mux(wanted.remote, ACCESS["remote_read"], 0)),
            staged.i.valid.eq(self.planned.valid), staged.i.payload.eq(self.planned.payload),
            answers.i.valid.eq(self.answer.valid), answers.i.payload.addr.eq(self.answer.payload.addr),
            answers.i.payload.refused.eq(self.answer.payload.reason != 0), self.idle.eq((inside == 0) & ~came),
        ]

        s, a, out = staged.o.payload, answers.o.payload, self.packets
        p, f = out.payload, self.followups.payload
        m.d.comb += [
            out.valid.eq(staged.o.valid & answers.o.valid), leave.eq(out.valid & out.ready),
            staged.o.ready.eq(leave), answers.o.ready.eq(leave), self.followups.valid.eq(leave),
            *(getattr(p, name).eq(getattr(s, name)) for name in p.shape().members if name in s.shape().members),
            p.addr.eq(a.addr), p.silent.eq(s.silent | a.refused),
            *(getattr(f, name).eq(getattr(s, name)) for name in f.shape().members if name in s.shape().members),
            f.refused.eq(a.refused), f.answer.eq(s.remote),
        ]
        if not cfg.rc:
            request = s.opcode == XP_BASE | 0x0C
            m.d.comb += [p.offset.eq(Cat(C(0, OFFSET_UNIT), s.offset)), p.dma_len.eq(Mux(request, s.msg_len, s.len))]
        return m
