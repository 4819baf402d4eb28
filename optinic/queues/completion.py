"""The completion queues: where the next CQE goes, and what is in it."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.structs import CQE, OPCODE, STATUS
from optinic.memory.job import completion_layout
from optinic.memory.table import Table, TableSpec, alarm_members, connect_alarms, protect
from optinic.queues.interrupts import Interrupts, acked_layout, cq_doorbell_layout, cq_set_signature
from optinic.rx.pipeline import FixedPipe
from optinic.stream.push import PushSignature

__all__ = ["CqWriter", "record_layout", "released_layout", "cqe_write_layout", "acked_layout", "cq_doorbell_layout",
           "cq_set_signature"]

def record_layout(cfg):
    """What is to be done after everything before it: a completion (`complete`), a fence, or both. `ends_life`: a fence behind
    which the QP begins anew."""
    return StructLayout({"completion": completion_layout(cfg), "qp": cfg.qp_bits, "complete": 1, "fence": 1, "ends_life": 1})


def released_layout(cfg):
    """A record whose time has come. `error`: a write of the QP failed."""
    return StructLayout({"record": record_layout(cfg), "error": 1})


def cqe_write_layout(cfg):
    """A CQE to be written at byte address 32 * `line`, or (`write` 0) only the order kept.

    `producer` is the CQ's index behind it.
    """
    return StructLayout({
        "write": 1, "fence": 1, "ends_life": 1, "line": 59, "qp": cfg.qp_bits, "cq": cfg.cq_bits, "producer": 16, "data": 8 * CQE.size,
    })


class CqWriter(wiring.Component):
    """Turns released records into CQEs, in order, one a cycle, also when all go to one CQ, as far as there are credits. Seven cycles from record to `cqe`.

    Each record comes out as one `cqe`; at most cfg.packets_on_the_way are between here and the pulse of `credit` that ends one,
    and a record waits when there are none. A CQ's producer index counts its CQEs modulo 2^16; entry and phase follow from it. When
    producer - consumer equals the number of entries, or the CQ is not valid, the CQE is not written: it is lost, and
    `cq_overrun`, or for an entry of the refusal log `log_overrun`, pulses (the driver gives a CQ as many entries as completions can be outstanding). An `error` record gets the
    status `error` and keeps its cause.

    `cq_set` begins a new life of a CQ, with producer and consumer 0 and not armed. It takes effect behind the records taken
    before it; CQEs of the old life should have been acknowledged (a fence), or they count as entries of the new one.
    A doorbell sets the consumer index. `acked` and `irq_raise`: see Interrupts. `clearing`: the tables are cleared after
    reset; nothing is taken, and `cq_set` must wait.
    """

    first_index = 0     #: producer and consumer of a new CQ; a test has it begin just before 2^16

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "records": In(stream.Signature(released_layout(cfg))),
            "cqe": Out(PushSignature(cqe_write_layout(cfg))), "credit": In(1),
            "acked": In(stream.Signature(acked_layout(cfg))), "cq_set": In(cq_set_signature(cfg)),
            "doorbell": In(stream.Signature(cq_doorbell_layout(cfg))), "irq_raise": Out(cfg.num_vectors),
            "cq_overrun": Out(1), "log_overrun": Out(1), "clearing": Out(1), "idle": Out(1),
        } | alarm_members(cfg))

    @staticmethod
    def tables(cfg):
        return [*protect(cfg, [
            TableSpec("cq_context", "cq writer", 63, cfg.num_cqs, "cq", "context"),
            TableSpec("cq_producer", "cq writer", 16, cfg.num_cqs, "cq", "message"),
            TableSpec("cq_consumer", "cq writer", 16, cfg.num_cqs, "cq", "message"),
        ], refuses=["cq_context"]), *Interrupts.tables(cfg)]

    def elaborate(self, platform):
        m = Module()
        specs = {spec.name: spec for spec in self.tables(self.cfg)}
        context_shape = StructLayout({"base": 58, "log2": 4, "valid": 1})
        m.submodules.context = context = Table(specs["cq_context"], context_shape)
        m.submodules.producer = producer = Table(specs["cq_producer"], 16)
        m.submodules.consumer = consumer = Table(specs["cq_consumer"], 16)
        m.submodules.interrupts = interrupts = Interrupts(self.cfg)
        connect_alarms(m, self, (context, producer, consumer))
        set_, bell = self.cq_set, self.doorbell
        wiring.connect(m, wiring.flipped(self.acked), interrupts.acked)
        wiring.connect(m, wiring.flipped(self.doorbell), interrupts.doorbell)
        wiring.connect(m, wiring.flipped(self.cq_set), interrupts.cq_set)
        m.d.comb += [
            self.irq_raise.eq(interrupts.irq_raise), self.clearing.eq(interrupts.clearing),
            context.write_en.eq(set_.en), context.write_addr.eq(set_.index), context.write_data.base.eq(set_.base[6:]),
            context.write_data.log2.eq(set_.log2_entries), context.write_data.valid.eq(set_.valid),
            consumer.write_en.eq(set_.en | (bell.valid & bell.ready)),
            consumer.write_addr.eq(Mux(set_.en, set_.index, bell.payload.cq)),
            consumer.write_data.eq(Mux(set_.en, self.first_index, bell.payload.consumer)),
        ]

        # -- entry: a record, or the new life of a CQ -----------------------------------------------
        credits = Signal(range(self.cfg.packets_on_the_way + 1), init=self.cfg.packets_on_the_way)
        taken = Signal()
        record = self.records.payload.record
        m.d.comb += [
            self.records.ready.eq((credits != 0) & ~set_.en & ~self.clearing), taken.eq(self.records.valid & self.records.ready),
        ]
        m.d.sync += credits.eq(credits + self.credit - taken)
        live, counts = [Signal(name=f"live{i}") for i in range(7)], [Signal(name=f"counts{i}") for i in range(6)]
        m.d.sync += [live[0].eq(taken), counts[0].eq(taken | set_.en)]
        m.d.sync += [live[i].eq(live[i - 1]) for i in range(1, 7)] + [counts[i].eq(counts[i - 1]) for i in range(1, 6)]
        pipe = FixedPipe(m, "cq")
        pipe.put("record", 0, record)
        pipe.put("error", 0, self.records.payload.error)
        pipe.put("set", 0, set_.en)
        pipe.put("cq", 0, Mux(set_.en, set_.index, record.completion.cq))
        rec = lambda stage: record_layout(self.cfg)(pipe.get("record", stage))

        # -- 0: context and consumer are addressed, here at 2; 1: producer, here at 3 ----------------
        m.d.comb += [context.read0_addr.eq(pipe.get("cq", 0)), consumer.read0_addr.eq(pipe.get("cq", 0)),
                     producer.read0_addr.eq(pipe.get("cq", 1))]
        entries = Const(1, 1) << context.read0_data.log2
        limit = pipe.put("limit", 3, (consumer.read0_data + entries)[:16])
        pipe.put("mask", 3, (entries - 1)[:15])
        pipe.put("log2", 3, context.read0_data.log2)
        pipe.put("base", 3, context.read0_data.base)
        wanted = pipe.put("wanted", 3, rec(2).complete & context.read0_data.valid & ~pipe.get("set", 2))

        # -- 3: the producer's loop; the two newest values are not in the table yet when it is read --
        at = Signal(16)
        new = Signal(16)
        new1 = Signal(16)
        new2 = Signal(16)
        writes = Signal()
        hit1 = pipe.put("hit1", 3, counts[3] & (pipe.get("cq", 2) == pipe.get("cq", 3)))
        hit2 = pipe.put("hit2", 3, counts[4] & (pipe.get("cq", 2) == pipe.get("cq", 4)))
        m.d.sync += [new1.eq(new), new2.eq(new1)]
        m.d.comb += [
            at.eq(Mux(hit1, new1, Mux(hit2, new2, producer.read0_data))), writes.eq(wanted & (at != limit)),
            new.eq(Mux(pipe.get("set", 3), self.first_index, Mux(writes, at + 1, at))),
            producer.write_en.eq(counts[3]), producer.write_addr.eq(pipe.get("cq", 3)), producer.write_data.eq(new),
        ]
        pipe.put("at", 4, at)
        pipe.put("write", 4, writes)
        lost = live[3] & rec(3).complete & ~writes
        is_log = rec(3).completion.opcode == OPCODE["refusal"]
        m.d.sync += [self.cq_overrun.eq(lost & ~is_log), self.log_overrun.eq(lost & is_log)]

        # -- 4: entry and phase; 5: address; 6: out -------------------------------------------------
        four, five = pipe.at(4), pipe.at(5)
        pipe.put("entry", 5, four.at & four.mask)
        pipe.put("phase", 5, ~four.at.bit_select(four.log2, 1))
        out = Signal(cqe_write_layout(self.cfg), reset_less=True)
        m.d.sync += [
            out.line.eq(Cat(Const(0, 1), five.base) + five.entry), out.write.eq(five.write), out.fence.eq(rec(5).fence),
            out.ends_life.eq(rec(5).ends_life),
            out.qp.eq(rec(5).qp), out.cq.eq(five.cq), out.producer.eq(five.at + 1),
            out.data.eq(self._format(rec(5).completion, five.phase, five.error)),
        ]
        m.d.comb += [self.cqe.valid.eq(live[6]), self.cqe.payload.eq(out)]
        m.d.comb += self.idle.eq((credits == self.cfg.packets_on_the_way) & interrupts.idle)
        return m

    @staticmethod
    def _format(completion, phase, error):
        own = {"phase": phase, "format": Const(1), "status": Mux(error, STATUS["error"], completion.status)}
        bits, end = [], 0
        for f in CQE.fields:
            value = own[f.name] if f.name in own else getattr(completion, f.name)
            value = value.as_value() if hasattr(value, "as_value") else value
            bits += [Const(0, f.bit - end), value[:f.width], Const(0, max(0, f.width - len(value)))]
            end = f.bit + f.width
        return Cat(*bits)
