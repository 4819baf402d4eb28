"""From a record with its WQE to one that RcCommit can carry out: where the payload goes, and may it."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import ACCESS
from optinic.abi.verdicts import REASON
from optinic.memory.regions import Regions, region_request_layout, region_result_layout
from optinic.memory.table import alarm_members, connect_alarms
from optinic.rx.pipeline import FixedPipe
from optinic.stream.push import PushSignature
from optinic.transport.rc.records import Place, settled_layout, work_layout

__all__ = ["RcResolve"]


class RcResolve(wiring.Component):
    """Looks up the region of each record's payload. Fixed latency (``LATENCY`` cycles to `record`), one record a cycle, never
    stalls: the caller has room for what comes out.

    A WRITE's region is checked for the whole message at its first packet and for the packet at each further one. The send half's
    queries are answered in between, as in xp's Resolve: `query`, `answer`, `hold`.
    """

    LATENCY = Regions.LATENCY + 3

    def __init__(self, cfg, wqe_layout):
        self.cfg = cfg
        self.regions = Regions(cfg)
        super().__init__({
            "work": In(work_layout(cfg)), "wqe": In(wqe_layout), "failed": In(1), "valid": In(1),
            "record": Out(settled_layout(cfg)), "record_valid": Out(1),
            "region_set": In(self.regions.signature.members["set"].shape),
            "query": In(stream.Signature(region_request_layout(cfg))), "answer": Out(PushSignature(region_result_layout())),
            "hold": Out(1), "clearing": Out(1), "idle": Out(1),
        } | alarm_members(cfg))

    def elaborate(self, platform):
        m = Module()
        cfg, latency = self.cfg, self.LATENCY
        m.submodules.regions = regions = self.regions
        connect_alarms(m, self, [regions])
        m.d.comb += [regions.set.eq(self.region_set), self.clearing.eq(regions.clearing)]

        # stage 1: inputs in registers
        w, wqe = Signal(work_layout(cfg), reset_less=True), Signal.like(self.wqe, reset_less=True)
        valid = Signal(latency)
        failed = Signal(reset_less=True)
        m.d.sync += [w.eq(self.work), wqe.eq(self.wqe), failed.eq(self.failed & self.work.has_wqe),
                     valid.eq((valid << 1) | self.valid)]
        m.d.comb += self.idle.eq(~valid.any())

        # stage 2: the address that is meant
        key, va, length, pd, need = (Signal(n, name=name, reset_less=True) for name, n in (
            ("key", 32), ("va", 64), ("length", 32), ("pd", 16), ("need", 4)))
        buffer = (w.place == Place.SEND) | (w.place == Place.ANSWER)
        at, end = Signal(65), Signal(33)
        too_long, short = Signal(reset_less=True), Signal(reset_less=True)
        m.d.comb += [at.eq(wqe.va + w.offset), end.eq(w.offset + w.pay_len)]
        m.d.sync += [
            key.eq(Mux(buffer, wqe.lkey, w.rkey)), va.eq(Mux(buffer, at[:64], w.va)), pd.eq(w.pd),
            too_long.eq(buffer & ((end > wqe.length) | at[64]) & (w.pay_len != 0)),
            short.eq((w.place == Place.ANSWER) & w.whole & (end != wqe.length)),
        ]
        with m.Switch(w.place):
            for place, size, access in ((Place.WRITE, w.offset, "remote_write"), (Place.READ, w.length, "remote_read"),
                                        (Place.ATOMIC, 8, "remote_atomic"),
                                        (Place.SEND, w.pay_len, "local_write"), (Place.ANSWER, w.pay_len, "local_write")):
                with m.Case(place):
                    m.d.sync += [length.eq(size), need.eq(ACCESS[access])]
            with m.Default():
                m.d.sync += length.eq(0)
        m.d.comb += [regions.i.key.eq(key), regions.i.va.eq(va), regions.i.len.eq(length), regions.i.pd.eq(pd),
                     regions.i.need.eq(need)]

        # the send half's queries go where a record leaves a gap
        q, free, waited = self.query.payload, Signal(), Signal(4)
        m.d.comb += [free.eq(~valid[0] | (w.place == Place.NONE)), self.query.ready.eq(free)]
        m.d.sync += [waited.eq(Mux(self.query.valid & ~free, waited + ~waited.all(), 0)), self.hold.eq(waited.all())]
        with m.If(free):
            m.d.sync += [key.eq(q.key), va.eq(q.va), length.eq(q.len), pd.eq(q.pd), need.eq(q.need)]
        lent = Signal(Regions.LATENCY + 1)
        m.d.sync += lent.eq((lent << 1) | (self.query.valid & free))
        m.d.comb += [self.answer.valid.eq(lent[-1]), self.answer.payload.eq(regions.o)]

        # the record waits for the region: it stands at stage LATENCY - 1 when the answer does
        pipe = FixedPipe(m, "resolve")
        for name, stage, value in (("rec", 1, w), ("too_long", 2, too_long), ("short", 2, short), ("failed", 1, failed)):
            pipe.take(name, stage, value)
        late = pipe.at(latency - 1)
        rec = work_layout(cfg)(late.rec)
        out = Signal(settled_layout(cfg), reset_less=True)
        m.d.sync += [
            *(out[name].eq(rec[name]) for name in work_layout(cfg).members), out.addr.eq(regions.o.addr), out.failed.eq(late.failed),
            out.short.eq(late.short | (late.too_long & (regions.o.reason == 0))),
            out.mem_reason.eq(Mux(regions.o.reason != 0, regions.o.reason, Mux(late.too_long, REASON["bounds"], 0))),
        ]
        m.d.comb += [self.record.eq(out), self.record_valid.eq(valid[latency - 1])]
        return m
