"""From a record with its receive WQE to one that admission can decide on: where the payload would go, and may it."""

from amaranth.hdl import Module, Signal, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import ACCESS
from optinic.abi.structs import OPCODE
from optinic.abi.verdicts import REASON
from optinic.memory.regions import Regions
from optinic.transport.xp.admission import TABLE_LATENCY, admit_layout
from optinic.transport.xp.coverage import Coverage
from optinic.transport.xp.records import Verdict, WorkKind, work_layout

__all__ = ["Resolve"]


class Resolve(wiring.Component):
    """Looks up the region of a payload and computes its coverage. Fixed latency (``Resolve.LATENCY`` cycles to `record`), one
    record a cycle, never stalls: the caller has room for what comes out.

    `next_qp` shows a record's QP two cycles before the record, for admission's read of its table.
    """

    LATENCY = max(Regions.LATENCY + 2, Coverage.LATENCY + 1) + 1

    def __init__(self, cfg, wqe_layout):
        self.cfg = cfg
        self.regions = Regions(cfg)
        super().__init__({
            "work": In(work_layout(cfg)), "wqe": In(wqe_layout), "failed": In(1), "valid": In(1),
            "record": Out(admit_layout(cfg)), "record_valid": Out(1), "next_qp": Out(cfg.qp_bits),
            "region_set": In(self.regions.signature.members["set"].shape),
            "clearing": Out(1), "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        cfg, latency = self.cfg, self.LATENCY
        m.submodules.regions = regions = self.regions
        m.submodules.coverage = coverage = Coverage(range(cfg.mtu_max + 1))
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
        send = ~w.is_write
        key = Signal(32, reset_less=True)
        va = Signal(64, reset_less=True)
        length = Signal(range(cfg.mtu_max + 1), reset_less=True)
        pd = Signal(16, reset_less=True)
        need = Signal(4, reset_less=True)
        too_long = Signal(reset_less=True)
        at = Signal(65)
        m.d.comb += at.eq(wqe.va + w.offset)
        m.d.sync += [
            key.eq(Mux(send, wqe.lkey, w.rkey)), va.eq(Mux(send, at[:64], w.va)), length.eq(w.pay_len), pd.eq(w.pd),
            need.eq(Mux(send, ACCESS["local_write"], ACCESS["remote_write"])),
            # beyond the buffer, or a buffer that runs over the end of the address space to where a region may lie
            too_long.eq(send & ((w.offset + w.pay_len > wqe.length) | at[64]) & (w.pay_len != 0)),
        ]
        m.d.comb += [regions.i.key.eq(key), regions.i.va.eq(va), regions.i.len.eq(length), regions.i.pd.eq(pd),
                     regions.i.need.eq(need)]

        rec = Signal(admit_layout(cfg))
        same = ("kind", "verdict", "reason", "beats", "pay_off", "pay_len", "qp", "qpn", "cq", "ready", "known", "tracked", "is_uc", "is_cnp",
                "ce", "seq", "msg_len", "imm", "tag", "index", "has_wqe", "posted")
        m.d.comb += [rec[name].eq(w[name]) for name in same]
        m.d.comb += [
            rec.failed.eq(failed), rec.timeout.eq(wqe.timeout), rec.absolute.eq(wqe.absolute),
            rec.single.eq(w.pay_len == w.msg_len), rec.after.eq(w.msg_len - w.pay_len),
            rec.opcode.eq(Mux(w.is_write, OPCODE["write_imm"], Mux(w.has_imm, OPCODE["send_imm"], OPCODE["send"]))),
        ]
        events = (w.kind != WorkKind.FRAME) & (w.kind != WorkKind.FENCE)
        m.d.comb += rec.touches.eq(events | ((w.kind == WorkKind.FRAME) & w.tracked & (w.verdict == Verdict.PLACED)))
        with m.If(~w.has_imm):
            m.d.comb += rec.imm.eq(0)

        # the rest waits for the slower of the two lookups
        stages = [rec]
        for i in range(2, latency):
            r = Signal(admit_layout(cfg), name=f"rec{i}", reset_less=True)
            m.d.sync += r.eq(stages[-1])
            stages.append(r)
        out = Signal(admit_layout(cfg), name="rec_out", reset_less=True)
        m.d.sync += out.eq(stages[-1])
        bring = lambda name, signal, stage: self._delay(m, signal, latency - 1 - stage, name)     # bring to stage latency - 1
        long_ = bring("too_long", too_long, 2)
        reason = bring("region_reason", regions.o.reason, 2 + Regions.LATENCY)
        addr = bring("region_addr", regions.o.addr, 2 + Regions.LATENCY)
        delta = bring("delta", coverage.delta, 1 + Coverage.LATENCY)
        rest = bring("rest", coverage.rest, 1 + Coverage.LATENCY)
        m.d.sync += [out.addr.eq(addr), out.delta.eq(delta), out.rest.eq(rest),
                     out.mem_reason.eq(Mux((reason == 0) & long_, REASON["bounds"], reason))]
        m.d.comb += [self.record.eq(out), self.record_valid.eq(valid[latency - 1])]
        m.d.comb += self.next_qp.eq(stages[latency - 1 - TABLE_LATENCY].qp)
        return m

    @staticmethod
    def _delay(m, signal, cycles, name):
        for i in range(cycles):
            later = Signal.like(signal, name=f"{name}_d{i}", reset_less=True)
            m.d.sync += later.eq(signal)
            signal = later
        return signal
