"""From a record with its receive WQE to one that admission can decide on: where the payload would go, and may it."""

from amaranth.hdl import Module, Signal, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import ACCESS
from optinic.abi.structs import OPCODE
from optinic.abi.verdicts import REASON
from optinic.memory.regions import Regions, region_request_layout, region_result_layout
from optinic.memory.table import alarm_members, connect_alarms
from optinic.rx.pipeline import FixedPipe
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.transport.xp.admission import admit_layout, lead
from optinic.transport.xp.coverage import Coverage
from optinic.transport.xp.records import Verdict, WorkKind, work_layout
from optinic.tx.records import job_layout

__all__ = ["Resolve"]


class Resolve(wiring.Component):
    """Looks up the region of a payload and computes its coverage. Fixed latency (``Resolve.LATENCY`` cycles to `record`), one
    record a cycle, never stalls: the caller has room for what comes out.

    `next_qp` shows a record's QP ahead of the record, by as much as admission wants (its `lead`).

    The region table also answers the send half: a `query` is taken in a cycle without a record that needs a region, and its
    `answer` comes Regions.LATENCY + 1 cycles later. One that has waited for 15 cycles raises `hold`, which asks the caller
    for a gap. `reads` brings READ requests to the send half; when `cfg.read_jobs` of them wait, a further one is refused
    as `overflow`.
    """

    LATENCY = max(Regions.LATENCY + 2, Coverage.LATENCY + 1) + 1

    def __init__(self, cfg, wqe_layout):
        self.cfg = cfg
        self.regions = Regions(cfg)
        super().__init__({
            "work": In(work_layout(cfg)), "wqe": In(wqe_layout), "failed": In(1), "valid": In(1),
            "record": Out(admit_layout(cfg)), "record_valid": Out(1), "next_qp": Out(cfg.qp_bits),
            "region_set": In(self.regions.signature.members["set"].shape),
            "query": In(stream.Signature(region_request_layout(cfg))), "answer": Out(PushSignature(region_result_layout())), "hold": Out(1),
            "reads": Out(stream.Signature(job_layout(cfg))),
            "clearing": Out(1), "idle": Out(1),
        } | alarm_members(cfg))

    def elaborate(self, platform):
        m = Module()
        cfg, latency = self.cfg, self.LATENCY
        m.submodules.regions = regions = self.regions
        m.submodules.coverage = coverage = Coverage(range(cfg.mtu_max + 1))
        connect_alarms(m, self, [regions])
        m.d.comb += [regions.set.eq(self.region_set), self.clearing.eq(regions.clearing)]

        # stage 1: inputs in registers
        w = Signal(work_layout(cfg), reset_less=True)
        wqe = Signal.like(self.wqe, reset_less=True)
        valid = Signal(latency)
        failed = Signal(reset_less=True)
        m.d.sync += [w.eq(self.work), wqe.eq(self.wqe), failed.eq(self.failed & self.work.has_wqe),
                     valid.eq((valid << 1) | self.valid)]
        m.d.comb += self.idle.eq(~valid.any())
        m.d.comb += [coverage.offset.eq(w.offset), coverage.length.eq(w.pay_len), coverage.msg_len.eq(w.msg_len)]

        # stage 2: the address that the payload is meant for
        send = ~(w.is_write | w.is_read)
        key = Signal(32, reset_less=True)
        va = Signal(64, reset_less=True)
        length = Signal(32, reset_less=True)
        pd = Signal(16, reset_less=True)
        need = Signal(4, reset_less=True)
        too_long = Signal(reset_less=True)
        at = Signal(65)
        m.d.comb += at.eq(wqe.va + w.offset)
        m.d.sync += [
            key.eq(Mux(send, wqe.lkey, w.rkey)), va.eq(Mux(send, at[:64], w.va)), length.eq(Mux(w.is_read, w.msg_len, w.pay_len)), pd.eq(w.pd),
            need.eq(Mux(send, ACCESS["local_write"], Mux(w.is_read, ACCESS["remote_read"], ACCESS["remote_write"]))),
            # beyond the buffer, or a buffer that runs over the end of the address space to where a region may lie
            too_long.eq(send & ((w.offset + w.pay_len > wqe.length) | at[64]) & (w.pay_len != 0)),
        ]
        m.d.comb += [regions.i.key.eq(key), regions.i.va.eq(va), regions.i.len.eq(length), regions.i.pd.eq(pd),
                     regions.i.need.eq(need)]
        self._lend(m, w, valid, regions, key, va, length, pd, need)

        rec = Signal(admit_layout(cfg))
        same = ("kind", "verdict", "reason", "beats", "pay_off", "pay_len", "qp", "qpn", "cq", "ready", "known", "tracked", "is_uc", "is_cnp", "is_read",
                "ce", "seq", "msg_len", "imm", "tag", "index", "has_wqe", "posted")
        m.d.comb += [rec[name].eq(w[name]) for name in same]
        m.d.comb += [
            rec.failed.eq(failed), rec.timeout.eq(wqe.timeout), rec.absolute.eq(wqe.absolute),
            rec.single.eq(w.pay_len == w.msg_len), rec.after.eq(w.msg_len - w.pay_len),
            rec.opcode.eq(Mux(w.is_write, OPCODE["write_imm"],
                              Mux(w.is_answer, OPCODE["read"], Mux(w.has_imm, OPCODE["send_imm"], OPCODE["send"])))),
        ]
        events = (w.kind != WorkKind.FRAME) & (w.kind != WorkKind.FENCE)
        m.d.comb += rec.touches.eq(events | ((w.kind == WorkKind.FRAME) & w.tracked & (w.verdict == Verdict.PLACED)))
        with m.If(~w.has_imm):
            m.d.comb += rec.imm.eq(0)

        # the rest waits for the slower of the two lookups, which are answered at stage `latency` - 1
        pipe = FixedPipe(m, "resolve")
        pipe.put("rec", 2, rec)
        pipe.put("next_qp", 2, rec.qp)
        for name, stage, value in [
                ("too_long", 2, too_long), ("region_reason", 2 + Regions.LATENCY, regions.o.reason),
                ("region_addr", 2 + Regions.LATENCY, regions.o.addr), ("delta", 1 + Coverage.LATENCY, coverage.delta),
                ("rest", 1 + Coverage.LATENCY, coverage.rest), ("job_va", 1, w.va), ("job_key", 1, w.rkey), ("job_generation", 1, w.generation)]:
            pipe.take(name, stage, value)
        layout, last = admit_layout(cfg), pipe.at(latency - 1)
        out = Signal(layout, name="rec_out", reset_less=True)
        m.d.sync += out.eq(last.rec)
        asks = self._reads(m, layout(last.rec), valid[latency - 2], last.region_reason, last.job_va, last.job_key, last.job_generation)
        m.d.sync += [out.addr.eq(last.region_addr), out.delta.eq(last.delta), out.rest.eq(last.rest), out.mem_reason.eq(Mux(
            last.region_reason != 0, last.region_reason, Mux(last.too_long, REASON["bounds"], Mux(asks & ~self.jobs.i.ready, REASON["overflow"], 0))))]
        m.d.comb += [self.record.eq(out), self.record_valid.eq(valid[latency - 1])]
        m.d.comb += self.next_qp.eq(pipe.get("next_qp", latency - lead(cfg)))
        return m

    def _lend(self, m, w, valid, regions, *inputs):
        """The send half's queries go where a record leaves a gap: one that needs no region."""
        q, free = self.query.payload, Signal()
        waited = Signal(4)
        m.d.comb += [free.eq(~valid[0] | (w.kind != WorkKind.FRAME) | (w.verdict == Verdict.DROPPED) | (w.verdict == Verdict.PASSED)),
                     self.query.ready.eq(free)]
        m.d.sync += [waited.eq(Mux(self.query.valid & ~free, waited + ~waited.all(), 0)), self.hold.eq(waited.all())]
        with m.If(free):
            m.d.sync += [signal.eq(value) for signal, value in zip(inputs, (q.key, q.va, q.len, q.pd, q.need))]
        lent = Signal(Regions.LATENCY + 1)
        m.d.sync += lent.eq((lent << 1) | (self.query.valid & free))
        m.d.comb += [self.answer.valid.eq(lent[-1]), self.answer.payload.eq(regions.o)]

    def _reads(self, m, rec, valid, reason, va, key, generation):
        """A READ request that its region allows becomes a job for the send half, if there is room for one more."""
        m.submodules.jobs = self.jobs = jobs = StreamFifo(job_layout(self.cfg), self.cfg.read_jobs)
        wiring.connect(m, jobs.o, wiring.flipped(self.reads))
        asks = Signal()
        j = jobs.i.payload
        m.d.comb += [
            asks.eq(rec.is_read & (rec.kind == WorkKind.FRAME) & (rec.verdict == Verdict.CONSUMED)),
            jobs.i.valid.eq(valid & asks & (reason == 0)), j.qp.eq(rec.qp), j.generation.eq(generation), j.seq.eq(rec.seq), j.tag.eq(rec.tag), j.length.eq(rec.msg_len),
            j.va.eq(va), j.key.eq(key),
        ]
        return asks

