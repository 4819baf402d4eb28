"""From jobs to bus writes: which beats to read, how to turn them, which bursts to announce."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.structs import CAUSE, OPCODE
from optinic.axi.signatures import burst_bytes
from optinic.memory.acks import cqe_ack_layout, job_ack_layout, max_bursts
from optinic.memory.aligner import Aligner, beat_layout, cqe_beats, step_layout
from optinic.memory.burst_port import burst_layout
from optinic.memory.job import JobKind, job_layout
from optinic.memory.pass_queue import PassQueue
from optinic.queues.completion import cqe_write_layout, record_layout
from optinic.rx.pipeline import FixedPipe
from optinic.stream.fifo import StreamFifo
from optinic.stream.packet import AxiStreamSignature
from optinic.stream.push import PushSignature

__all__ = ["WriteEngine"]


class WriteEngine(wiring.Component):
    """Takes `jobs` in order and CQEs (`cqe`, at most cfg.packets_on_the_way of them; `cqe_credit` gives one back), issues their bursts.

    Jobs (memory/job.py), by kind: PLACE writes `len` bytes that begin at byte `pay_off` of the frame to `addr`; PASS copies
    the frame to `host`, where `pay_off` modulo a beat is the number of bytes in its last beat (0: all), or drops it with a
    pulse on `pass_overflow` if the queue there has no room for all of it; SKIP does nothing with the frame; NONE has none. A
    PLACE with `beats` 0 leaves the frame in the buffer, and the next job with a frame is about the same one.

    `rd_data` must be the beat at the `rd_addr` of two cycles ago. `rd_pointer`, free-running, passes a beat once it has been
    read and the frame is done with.

    A PLACE takes max(source beats, target beats) cycles, counting only beats that hold payload; a PASS its beats; a CQE one
    cycle (32 bytes / beat on a narrow bus) in which another job without beats to read may be taken too; every other job one
    cycle. Jobs follow each other without a pause. CQEs and jobs take turns when both wait; a job's beats and bursts are never
    parted by a CQE. A job waits while `job_room` or the record's queue (`records`) or the bus queue (`bus_room`) has no room.

    `records` gets a job's completion or fence at once, `job_ack` one entry for each job that has a record or bursts, in the
    same order; `cqe_ack` one for each CQE; `sent` the order of all bursts (1: a CQE's).
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self.lane_bits = (cfg.beat_bytes - 1).bit_length()
        self.page_bits = burst_bytes(cfg.data_width).bit_length() - 1
        width = cfg.data_width
        super().__init__({
            "jobs": In(stream.Signature(job_layout(cfg))),
            "rd_addr": Out(range(cfg.rx_buffer_beats)), "rd_data": In(width),
            "rd_pointer": Out(range(2 * cfg.rx_buffer_beats)),
            "records": Out(stream.Signature(record_layout(cfg))),
            "cqe": In(PushSignature(cqe_write_layout(cfg))), "cqe_credit": Out(1),
            "bus_room": In(1), "take_burst": Out(1), "take_beat": Out(1),
            "burst": Out(PushSignature(burst_layout(width))), "beat": Out(PushSignature(beat_layout(width))),
            "job_ack": Out(PushSignature(job_ack_layout(cfg))), "job_room": In(1),
            "cqe_ack": Out(PushSignature(cqe_ack_layout(cfg))), "cqe_room": In(1),
            "sent": Out(PushSignature(1)), "pass_overflow": Out(1), "idle": Out(1),
        } | ({"host": Out(AxiStreamSignature(width))} if cfg.pass_through else {}))

    def _span_layout(self):
        """A job after its arithmetic."""
        cfg, lane = self.cfg, range(self.cfg.beat_bytes)
        self.steps = range(max(cfg.max_frame_beats, cfg.mtu_max // cfg.beat_bytes + 2))
        return StructLayout({
            "place": 1, "pass_": 1, "beats": range(cfg.max_frame_beats + 1), "skip": range(128 // cfg.beat_bytes + 1),
            "steps": self.steps, "dests": self.steps,       # both less one
            "bursts": range(max_bursts(cfg) + 1),
            "page": 64 - self.page_bits, "index": self.page_bits - self.lane_bits,  # of the first bus beat
            "first_lane": lane, "last_lane": lane, "rotate": lane, "early": 1, "tail": lane,
            "qp": cfg.qp_bits, "record": 1, "complete": 1, "follows": 1,
        })

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        span = self._span_layout()
        ready_job = Signal(span, reset_less=True)
        ready_valid = Signal()
        load = Signal()
        decoding = self._decode(m, ready_job, ready_valid, load)

        # -- the job in work, and the CQE that waits ------------------------------------------------
        job = Signal(span, reset_less=True)
        active = Signal()
        first = Signal()
        past = Signal()
        address = Signal.like(self.rd_addr, reset_less=True)
        m.submodules.cqes = cqes = StreamFifo(
            StructLayout({n: s for n, s in cqe_write_layout(cfg).members.items() if n != "data"}), cfg.packets_on_the_way)
        m.submodules.cqe_data = cqe_data = StreamFifo(cqe_write_layout(cfg).members["data"], cfg.packets_on_the_way)
        cqe = cqes.o.payload
        for name in cqes.i.payload.shape().members:
            m.d.comb += getattr(cqes.i.payload, name).eq(getattr(self.cqe.payload, name))
        m.d.comb += [cqes.i.valid.eq(self.cqe.valid), cqe_data.i.valid.eq(self.cqe.valid),
                     cqe_data.i.payload.eq(self.cqe.payload.data)]
        part = Signal(range(cqe_beats(cfg.data_width)))
        parts = cqe_beats(cfg.data_width)

        # -- whose turn it is -----------------------------------------------------------------------
        step_job = Signal()
        step_cqe = Signal()
        last_step = Signal()        # of the job in work: job.steps is 0
        job_ends = Signal()
        cqes_turn = Signal()
        cqe_wants = cqes.o.valid & self.cqe_room
        pick_cqe, parted = Signal(), Signal()       # parted: part != 0, from a register
        m.d.comb += [
            pick_cqe.eq(parted | (cqe_wants & ~(active & ~first) & (cqes_turn | ~active))),
            step_cqe.eq(pick_cqe & self.bus_room), step_job.eq(active & ~pick_cqe & self.bus_room),
            job_ends.eq(step_job & last_step),
        ]
        with m.If(job_ends):
            m.d.sync += cqes_turn.eq(1)
        with m.Elif(step_cqe & (part == parts - 1)):
            m.d.sync += cqes_turn.eq(0)
        if parts > 1:
            m.d.sync += [part.eq(part + step_cqe), parted.eq((part + step_cqe)[:len(part)] != 0)]
        m.d.comb += [
            cqes.o.ready.eq(step_cqe & (part == parts - 1)), self.cqe_ack.valid.eq(step_cqe & (part == 0)),
            *(getattr(self.cqe_ack.payload, n).eq(getattr(cqe, n)) for n in ("write", "fence", "ends_life", "qp", "cq", "producer")),
        ]

        # -- one step of the job in work ------------------------------------------------------------
        dest = Signal()
        last_dest = Signal()
        page_end = Signal()
        burst_begins = Signal()
        m.d.comb += [
            dest.eq(job.place & ~past), last_dest.eq(job.dests == 0), page_end.eq(job.index.all()),
            burst_begins.eq(dest & (first | (job.index == 0))),
        ]
        with m.If(step_job):
            m.d.sync += [first.eq(0), job.steps.eq(job.steps - 1), last_step.eq(job.steps == 1), address.eq(address + 1)]
            with m.If(dest):
                m.d.sync += [job.dests.eq(job.dests - 1), job.index.eq(job.index + 1), past.eq(last_dest)]
                with m.If(page_end):
                    m.d.sync += [job.page.eq(job.page + 1), job.bursts.eq(job.bursts - 1)]

        # -- taking the next job; written below the step that ends the last one, which it overrides --
        frame_end = Signal.like(self.rd_pointer)
        done_with = Signal.like(self.rd_pointer)
        next_end = (frame_end + ready_job.beats)[:len(frame_end)]
        passes = self._pass_room(m, ready_job, ready_valid, load)
        works = Signal()
        m.d.comb += [
            load.eq(ready_valid & self.job_room & (~active | job_ends)), works.eq(ready_job.place | passes),
            self.job_ack.valid.eq(load & (ready_job.record | ready_job.place)),
            self.job_ack.payload.bursts.eq(Mux(ready_job.place, ready_job.bursts, 0)),
            *(getattr(self.job_ack.payload, n).eq(getattr(ready_job, n)) for n in ("qp", "record", "complete", "follows")),
        ]
        with m.If(load):
            m.d.sync += [active.eq(works), first.eq(1), past.eq(0), job.eq(ready_job), last_step.eq(ready_job.steps == 0),
                         address.eq(frame_end + ready_job.skip), frame_end.eq(next_end)]
        with m.Elif(job_ends):
            m.d.sync += active.eq(0)
        with m.If(load & ~works):
            m.d.sync += done_with.eq(next_end)
        with m.Elif(job_ends):
            m.d.sync += done_with.eq(frame_end)
        # the last beat's address leaves together with `done_with`; two cycles later its data is here
        done1 = Signal.like(done_with)
        moved = Signal(2)
        m.d.sync += [done1.eq(done_with), self.rd_pointer.eq(done1), moved.eq(Cat(load | job_ends, moved))]

        # -- what the step asks of the aligner ------------------------------------------------------
        step = Signal(step_layout(cfg.data_width), reset_less=True)
        valid = Signal()
        passing = Signal()
        m.d.sync += [
            self.rd_addr.eq(address), valid.eq((step_job & job.place) | step_cqe), passing.eq(step_job & job.pass_),
            step.dest.eq(Mux(step_cqe, cqe.write, dest)), step.wlast.eq(Mux(step_cqe, part == parts - 1, last_dest | page_end)),
            step.alone.eq(step_cqe | ~job.early | last_step), step.early.eq(job.early), step.rotate.eq(job.rotate),
            step.inline.eq(step_cqe), step.part.eq(part), step.inline_last.eq(part == parts - 1),
            step.low.eq(Mux(first, job.first_lane, 0)), step.high.eq(Mux(last_dest, job.last_lane, cfg.beat_bytes - 1)),
        ]
        with m.If(step_cqe):
            low = cqe.line[:max(0, self.lane_bits - 5)] << 5        # more than one CQE fits into a wide beat
            m.d.sync += [step.low.eq(low), step.high.eq(low | min(31, cfg.beat_bytes - 1))]
        self._announce(m, job, burst_begins, step_job, step_cqe, cqe, part)
        m.d.comb += [self.take_burst.eq((step_job & burst_begins) | (step_cqe & cqe.write & (part == 0))),
                     self.take_beat.eq((step_job & dest) | (step_cqe & cqe.write))]

        # -- two cycles later the data is here ------------------------------------------------------
        valid2 = Signal(2)
        passing2 = Signal(2)
        m.d.sync += [valid2.eq(Cat(valid, valid2)), passing2.eq(Cat(passing, passing2))]
        pipe = FixedPipe(m, "step")
        pipe.put("step", 1, step)
        pipe.put("tail", 0, job.tail)
        pipe.put("frame_last", 0, last_step)
        m.submodules.aligner = aligner = Aligner(cfg.data_width)
        m.d.comb += [
            aligner.step.valid.eq(valid2[1]), aligner.step.payload.eq(pipe.get("step", 2)), aligner.rd_data.eq(self.rd_data),
            aligner.cqe_data.eq(cqe_data.o.payload), cqe_data.o.ready.eq(aligner.cqe_taken),
            self.cqe_credit.eq(aligner.cqe_taken),
            self.beat.valid.eq(aligner.beat.valid), self.beat.payload.eq(aligner.beat.payload),
        ]
        if cfg.pass_through:
            beat = m.submodules.pass_queue.beat
            m.d.comb += [beat.valid.eq(passing2[1]), beat.payload.data.eq(self.rd_data),
                         beat.payload.last.eq(pipe.get("frame_last", 2)), beat.payload.bytes.eq(pipe.get("tail", 2))]
        m.d.comb += self.idle.eq(~self.jobs.valid & ~decoding & ~active & ~moved.any()
                                & (cqes.level == 0) & (cqe_data.level == 0))
        return m

    def _decode(self, m, out, out_valid, load):
        """Two stages of arithmetic; returns whether one of them holds a job."""
        cfg, lanes = self.cfg, self.lane_bits
        job, beat_bytes = self.jobs.payload, self.cfg.beat_bytes
        place = (job.kind == JobKind.PLACE) & (job.len != 0)
        passes = job.kind == JobKind.PASS
        record = job.complete | job.fence
        s = Signal(StructLayout({
            "place": 1, "pass_": 1, "beats": range(cfg.max_frame_beats + 1), "skip": range(128 // beat_bytes + 1),
            "source": range(beat_bytes), "rotate": lanes + 1, "len": range(cfg.mtu_max + 1), "addr": 64,
            "qp": cfg.qp_bits, "record": 1, "complete": 1, "follows": 1,
        }), name="entered", reset_less=True)
        valid = Signal(name="entered_valid")
        room = Signal()
        m.d.comb += [
            room.eq(~valid | ~out_valid | load),
            self.jobs.ready.eq(room & self.records.ready), self.records.valid.eq(self.jobs.valid & room & record),
            *(getattr(self.records.payload, n).eq(getattr(job, n)) for n in ("completion", "qp", "complete", "fence", "ends_life")),
        ]
        with m.If(room):
            m.d.sync += [
                valid.eq(self.jobs.valid & self.records.ready),
                s.place.eq(place), s.pass_.eq(passes), s.beats.eq(Mux(job.kind == JobKind.NONE, 0, job.beats)),
                s.skip.eq(Mux(passes, 0, job.pay_off >> lanes)), s.source.eq(job.pay_off[:lanes]),
                s.rotate.eq(job.addr[:lanes] - job.pay_off[:lanes]), s.len.eq(job.len - 1), s.addr.eq(job.addr),
                s.qp.eq(job.qp), s.record.eq(record),
                # a send, or an entry of the refusal log, completes no receive, so it takes no mark of a failed write
                s.complete.eq(job.complete & ~job.completion.queue & (job.completion.opcode != OPCODE["refusal"])),
                # the packet that preempts a message carries its completion, but writes for the next one
                s.follows.eq(place & (job.completion.cause == CAUSE["preempted"])),
            ]
        early = s.rotate[lanes]
        source_end = Signal(14)
        target_end = Signal(14)
        page_end = Signal(14)
        m.d.comb += [
            source_end.eq(s.source + s.len), target_end.eq(s.addr[:lanes] + s.len), page_end.eq(s.addr[:self.page_bits] + s.len),
        ]
        with m.If(~out_valid | load):
            m.d.sync += [
                out_valid.eq(valid),
                *(getattr(out, n).eq(getattr(s, n)) for n in (
                    "place", "pass_", "beats", "skip", "qp", "record", "complete", "follows")),
                out.steps.eq(Mux(s.pass_, s.beats - 1, Mux(early, source_end >> lanes, target_end >> lanes))),
                out.dests.eq(target_end >> lanes), out.bursts.eq((page_end >> self.page_bits) + 1),
                out.page.eq(s.addr[self.page_bits:]), out.index.eq(s.addr[lanes:self.page_bits]),
                out.first_lane.eq(s.addr[:lanes]), out.last_lane.eq(target_end[:lanes]),
                out.rotate.eq(s.rotate[:lanes]), out.early.eq(early), out.tail.eq(s.source),
            ]
        return valid | out_valid

    def _pass_room(self, m, job, valid, load):
        """Whether `job` is a frame for the host, and can go there."""
        if not self.cfg.pass_through:
            return 0
        m.submodules.pass_queue = queue = PassQueue(self.cfg)
        wiring.connect(m, wiring.flipped(self.host), queue.host)
        passes = job.pass_ & queue.room
        m.d.comb += [queue.beats.eq(job.beats), queue.reserve.eq(load & passes)]
        m.d.sync += self.pass_overflow.eq(load & job.pass_ & ~queue.room)
        return passes

    def _announce(self, m, job, burst_begins, step_job, step_cqe, cqe, part):
        """The address of a burst goes out with its first step."""
        begins_cqe = step_cqe & cqe.write & (part == 0)
        burst = Signal(self.burst.payload.shape(), reset_less=True)
        length = Mux(job.bursts == 1, job.dests, ~job.index)    # to the end of the page, but for the last burst
        if self.lane_bits >= 5:
            line = cqe.line[self.lane_bits - 5:]
        else:
            line = cqe.line << 5 - self.lane_bits
        m.d.sync += [
            self.burst.valid.eq((step_job & burst_begins) | begins_cqe),
            burst.beat.eq(Mux(step_cqe, line, Cat(job.index, job.page))),
            burst.len.eq(Mux(step_cqe, cqe_beats(self.cfg.data_width) - 1, length)),
            self.sent.payload.eq(step_cqe),
        ]
        m.d.comb += [self.burst.payload.eq(burst), self.sent.valid.eq(self.burst.valid)]
