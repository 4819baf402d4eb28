"""Everything that writes to the host: payload, completions, and what follows their acknowledgement."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from optinic.axi.signatures import AxiWriteSignature
from optinic.memory.acks import WriteAcks
from optinic.memory.burst_port import BurstPort
from optinic.memory.job import job_layout
from optinic.memory.table import alarm_members, connect_alarms
from optinic.memory.write_engine import WriteEngine
from optinic.queues.completion import CqWriter, cq_doorbell_layout, cq_set_signature, record_layout
from optinic.stream.fifo import StreamFifo
from optinic.stream.packet import AxiStreamSignature

__all__ = ["HostWriter"]


class HostWriter(wiring.Component):
    """Carries out `jobs` in order: bus writes, the frames' release (`rd_pointer`), completions, fences, interrupts.

    A job's completion is written when the bus has acknowledged every write of it and of all jobs before it; the interrupt is
    raised when the CQE is acknowledged; `fence_done` pulses when all this is so for everything before the fence. One ID, so
    the bus answers in order. Pulses for the counters: `completed` (a CQE acknowledged), `cq_overrun` (a completion lost, see
    CqWriter), `write_error` (an error response), `pass_overflow` (a frame for the host dropped, its queue was full).

    Jobs wait when the bus is slow (queues of 32 beats and 16 bursts) or `cfg.writes_outstanding` jobs, completions, or CQEs
    are unacknowledged. `idle`: no job, no unacknowledged write, no CQE to come; frames in the host queue don't count.
    `clearing`: tables are being cleared after reset; jobs and doorbells wait, `cq_set` is lost.
    """

    acks_class = WriteAcks

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "jobs": In(stream.Signature(job_layout(cfg))),
            "rd_addr": Out(range(cfg.rx_buffer_beats)), "rd_data": In(cfg.data_width),
            "rd_pointer": Out(range(2 * cfg.rx_buffer_beats)),
            "axi": Out(AxiWriteSignature(cfg.data_width)),
            "cq_set": In(cq_set_signature(cfg)), "doorbell": In(stream.Signature(cq_doorbell_layout(cfg))),
            "irq_raise": Out(cfg.num_vectors),
            "fence_done": Out(1), "write_error": Out(1), "pass_overflow": Out(1), "cq_overrun": Out(1), "log_overrun": Out(1), "completed": Out(1),
            "clearing": Out(1), "idle": Out(1),
        } | alarm_members(cfg) | ({"host": Out(AxiStreamSignature(cfg.data_width))} if cfg.pass_through else {}))

    @staticmethod
    def tables(cfg):
        return WriteAcks.tables(cfg) + CqWriter.tables(cfg)

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.engine = engine = WriteEngine(cfg)
        m.submodules.port = port = BurstPort(cfg.data_width)
        m.submodules.acks = acks = self.acks_class(cfg)
        m.submodules.cq_writer = cq_writer = CqWriter(cfg)
        connect_alarms(m, self, [cq_writer])
        m.submodules.records = records = StreamFifo(
            record_layout(cfg), cfg.writes_outstanding, style="block" if cfg.writes_outstanding >= 128 else "distributed")
        m.submodules.released = released = StreamFifo(1, cfg.writes_outstanding)    # never more than there are records

        wiring.connect(m, wiring.flipped(self.jobs), engine.jobs)
        wiring.connect(m, engine.records, records.i)
        wiring.connect(m, engine.cqe, cq_writer.cqe)
        wiring.connect(m, engine.burst, port.burst)
        wiring.connect(m, engine.beat, port.beat)
        wiring.connect(m, engine.job_ack, acks.job)
        wiring.connect(m, engine.cqe_ack, acks.cqe)
        wiring.connect(m, engine.sent, acks.burst)
        wiring.connect(m, acks.acked, cq_writer.acked)
        wiring.connect(m, wiring.flipped(self.cq_set), cq_writer.cq_set)
        wiring.connect(m, wiring.flipped(self.doorbell), cq_writer.doorbell)
        if cfg.pass_through:
            wiring.connect(m, engine.host, wiring.flipped(self.host))
        m.d.comb += [
            self.rd_addr.eq(engine.rd_addr), engine.rd_data.eq(self.rd_data), self.rd_pointer.eq(engine.rd_pointer),
            engine.bus_room.eq(port.room), port.take_burst.eq(engine.take_burst), port.take_beat.eq(engine.take_beat),
            engine.job_room.eq(acks.job_room), engine.cqe_room.eq(acks.cqe_room), cq_writer.credit.eq(engine.cqe_credit),
        ]
        axi = self.axi
        m.d.comb += [getattr(axi, n).eq(getattr(port.axi, n)) for n in (
            "awid", "awaddr", "awlen", "awsize", "awburst", "awvalid", "wdata", "wstrb", "wlast", "wvalid")]
        m.d.comb += [
            port.axi.awready.eq(axi.awready), port.axi.wready.eq(axi.wready), port.axi.bvalid.eq(0),
            acks.bvalid.eq(axi.bvalid), acks.bresp.eq(axi.bresp), axi.bready.eq(acks.bready),
        ]

        # a record goes on when its release and the record itself are at hand
        both = records.o.valid & released.o.valid
        m.d.comb += [
            released.i.valid.eq(acks.released.valid), released.i.payload.eq(acks.released.payload),
            cq_writer.records.valid.eq(both), cq_writer.records.payload.record.eq(records.o.payload),
            cq_writer.records.payload.error.eq(released.o.payload),
            records.o.ready.eq(both & cq_writer.records.ready), released.o.ready.eq(both & cq_writer.records.ready),
        ]
        m.d.comb += [
            self.irq_raise.eq(cq_writer.irq_raise), self.cq_overrun.eq(cq_writer.cq_overrun), self.log_overrun.eq(cq_writer.log_overrun),
            self.fence_done.eq(acks.fence_done), self.write_error.eq(acks.write_error), self.completed.eq(acks.completed),
            self.pass_overflow.eq(engine.pass_overflow), self.clearing.eq(acks.clearing | cq_writer.clearing),
            self.idle.eq(engine.idle & acks.idle & cq_writer.idle & (records.level == 0)),
        ]
        return m
