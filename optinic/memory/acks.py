"""The responses of the bus: what each one ends, in order, and what may follow it."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.axi.signatures import burst_bytes
from optinic.memory.table import Table, TableSpec
from optinic.queues.completion import acked_layout
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature

__all__ = ["WriteAcks", "job_ack_layout", "cqe_ack_layout", "max_bursts"]


def max_bursts(cfg):
    """Bursts of one packet at most, at the worst alignment."""
    return (burst_bytes(cfg.data_width) - 1 + cfg.mtu_max - 1) // burst_bytes(cfg.data_width) + 1


def job_ack_layout(cfg):
    """A job whose writes have been or will be issued. `follows`: its write is of a later message than its completion."""
    return StructLayout({"bursts": range(max_bursts(cfg) + 1), "qp": cfg.qp_bits, "record": 1, "complete": 1, "follows": 1})


def cqe_ack_layout(cfg):
    """A record that the CQ writer is done with. `write`: a CQE was written, in one burst. `ends_life`: behind it the QP is another
    one, and a mark of before is forgotten, that of a CQE before it included."""
    return StructLayout({"write": 1, "fence": 1, "ends_life": 1, "qp": cfg.qp_bits, "cq": cfg.cq_bits, "producer": 16})


class WriteAcks(wiring.Component):
    """Two queues of `cfg.writes_outstanding`: jobs, and CQEs. `burst` says of each address sent, in order, to which of them it
    belongs, and so to whom the next B response does; responses of one ID come in the order of the addresses.

    A job ends when it is the oldest one and all its responses are in. If it carries a record (a completion, a fence), the
    record is released (`released`, in the order of jobs; the payload is the completion's error bit) and not before. A
    CQE's end is reported to the CQ (`acked`), and a fence's end by `fence_done`: then all before it has been acknowledged,
    the CQEs of the completions before it included. When a queue is full its `room` is low and the writer waits.

    An error response (bresp[1]) pulses `write_error` and marks the QP of the write; the QP's next completion takes the
    mark. A write that belongs to a later message than the completion of the same job marks the completion after that one.
    The end of a life (`ends_life`) takes away what is left of its QP's mark when all before it has been answered.

    Each of the two queues ends one entry a cycle. `clearing`: the marks are being cleared after reset, no job is taken.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "job": In(PushSignature(job_ack_layout(cfg))), "job_room": Out(1),
            "cqe": In(PushSignature(cqe_ack_layout(cfg))), "cqe_room": Out(1),
            "burst": In(PushSignature(1)),
            "bresp": In(2), "bvalid": In(1), "bready": Out(1),
            "released": Out(PushSignature(1)), "acked": Out(stream.Signature(acked_layout(cfg))),
            "fence_done": Out(1), "write_error": Out(1), "completed": Out(1), "clearing": Out(1), "idle": Out(1),
        })

    @staticmethod
    def tables(cfg):
        return [TableSpec("write_error", "write acknowledgement", 1, cfg.num_qps, "qp", "message")]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        n = cfg.writes_outstanding
        bursts = 1 << (n * (max_bursts(cfg) + 1) - 1).bit_length()      # every entry's, so this one never fills
        m.submodules.jobs = jobs = StreamFifo(job_ack_layout(cfg), n)
        m.submodules.cqes = cqes = StreamFifo(cqe_ack_layout(cfg), n)
        m.submodules.order = order = StreamFifo(1, bursts)
        m.submodules.responses = responses = StreamFifo(1, 16)
        m.submodules.told = told = StreamFifo(acked_layout(cfg), 4)     # keeps the CQ's answer out of this cycle's logic
        wiring.connect(m, told.o, wiring.flipped(self.acked))
        for fifo, push in ((jobs, self.job), (cqes, self.cqe), (order, self.burst)):
            m.d.comb += [fifo.i.valid.eq(push.valid), fifo.i.payload.eq(push.payload)]
        m.d.comb += [
            responses.i.valid.eq(self.bvalid), responses.i.payload.eq(self.bresp[1]), self.bready.eq(responses.i.ready),
        ]
        # one cycle late, so two entries may still come
        m.d.sync += [self.job_room.eq((jobs.level < n - 1) & ~self.clearing), self.cqe_room.eq(cqes.level < n - 1)]
        answer = Signal()
        error = responses.o.payload
        m.d.comb += answer.eq(responses.o.valid & order.o.valid)

        # CQEs; one that failed marks its QP, the end of a life takes the mark away
        cqe = cqes.o.payload
        cqe_end = Signal()
        mark = Signal()
        forget = Signal(reset_less=True)
        mark_qp = Signal(cfg.qp_bits, reset_less=True)
        cqe_answer = answer & order.o.payload
        m.d.comb += [
            told.i.valid.eq(cqes.o.valid & cqe.write & cqe_answer), told.i.payload.cq.eq(cqe.cq),
            told.i.payload.producer.eq(cqe.producer),
            cqe_end.eq(cqes.o.valid & Mux(cqe.write, cqe_answer & told.i.ready, 1)), cqes.o.ready.eq(cqe_end),
        ]
        m.d.sync += [mark.eq(cqe_end & (cqe.ends_life | (cqe.write & error))), forget.eq(cqe.ends_life), mark_qp.eq(cqe.qp)]
        m.d.sync += [self.fence_done.eq(cqe_end & cqe.fence), self.completed.eq(cqe_end & cqe.write)]

        # jobs; what a CQE does has the way to the table first
        job = jobs.o.payload
        job_end = Signal()
        job_answer = Signal()
        seen = Signal(range(max_bursts(cfg) + 1))
        failed = Signal()
        m.d.comb += [
            job_answer.eq(answer & ~order.o.payload & jobs.o.valid & (job.bursts != 0) & ~mark),
            job_end.eq(jobs.o.valid & ~mark & self._job_is_done(job, seen, job_answer)), jobs.o.ready.eq(job_end),
        ]
        with m.If(job_end):
            m.d.sync += [seen.eq(0), failed.eq(0)]
        with m.Elif(job_answer):
            m.d.sync += [seen.eq(seen + 1), failed.eq(failed | error)]
        take = job_answer | (cqe_end & cqe.write)
        m.d.comb += [responses.o.ready.eq(take), order.o.ready.eq(take)]
        m.d.sync += self.write_error.eq(take & error)

        marks_busy = self._marks(m, job, job_end, failed | (job_answer & error), mark, mark_qp, forget)
        m.d.comb += self.idle.eq((jobs.level == 0) & (cqes.level == 0) & (told.level == 0) & ~marks_busy)
        return m

    def _job_is_done(self, job, seen, answer):
        return (job.bursts == 0) | (answer & (seen + 1 == job.bursts))

    def _marks(self, m, job, job_end, job_error, mark, mark_qp, forget):
        """One bit for each QP, read, changed and written in a pipeline of three cycles, with the two newest results forwarded."""
        m.submodules.errors = table = Table(self.tables(self.cfg)[0], 1)
        shape = StructLayout({"qp": self.cfg.qp_bits, "record": 1, "complete": 1, "follows": 1, "forget": 1, "error": 1})
        # the last stage has a reset, which it doesn't need, so that it isn't made a shift register with its slow output
        stage = [Signal(shape, name=f"event{i}", reset_less=i < 2) for i in range(3)]
        valid = [Signal(name=f"event_valid{i}") for i in range(3)]
        m.d.sync += [
            valid[0].eq(job_end | mark), stage[0].qp.eq(Mux(mark, mark_qp, job.qp)), stage[0].error.eq(Mux(mark, ~forget, job_error)),
            stage[0].record.eq(job.record & ~mark), stage[0].complete.eq(job.complete & ~mark), stage[0].follows.eq(job.follows),
            stage[0].forget.eq(mark & forget),
        ]
        for i in (1, 2):
            m.d.sync += [valid[i].eq(valid[i - 1]), stage[i].eq(stage[i - 1])]
        ev = stage[2]
        old = Signal()
        new = Signal()
        new1 = Signal()
        new2 = Signal()
        qp3 = Signal(self.cfg.qp_bits)
        valid3 = Signal()
        hit1 = Signal()
        hit2 = Signal()
        m.d.sync += [
            new1.eq(new), new2.eq(new1), qp3.eq(ev.qp), valid3.eq(valid[2]),
            hit1.eq(valid[2] & (stage[1].qp == ev.qp)), hit2.eq(valid3 & (stage[1].qp == qp3)),
        ]
        own = ev.error & ~(ev.complete & ev.follows)
        m.d.comb += [
            table.read0_addr.eq(stage[0].qp), self.clearing.eq(table.clearing),
            old.eq(Mux(hit1, new1, Mux(hit2, new2, table.read0_data))),
            new.eq(Mux(ev.complete, ev.follows & ev.error, ~ev.forget & (old | ev.error))),
            table.write_en.eq(valid[2]), table.write_addr.eq(ev.qp), table.write_data.eq(new),
            self.released.valid.eq(valid[2] & ev.record), self.released.payload.eq(ev.complete & (old | own)),
        ]
        return mark | valid[0] | valid[1] | valid[2]
