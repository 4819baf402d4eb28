"""Which completion queue has something new, and which vector to raise for it."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.memory.table import Table, TableSpec

__all__ = ["Interrupts", "acked_layout", "cq_doorbell_layout", "cq_set_signature"]


def acked_layout(cfg):
    """A CQE is in memory: the CQ's producer index behind it."""
    return StructLayout({"cq": cfg.cq_bits, "producer": 16})


def cq_doorbell_layout(cfg):
    return StructLayout({"consumer": 16, "cq": cfg.cq_bits, "arm": 1})


def cq_set_signature(cfg):
    """One cycle of `en` begins a new life of CQ `index`: `1 << log2_entries` entries at bus address `base`, a multiple of 64."""
    return wiring.Signature({
        "en": Out(1), "index": Out(cfg.cq_bits), "base": Out(64), "log2_entries": Out(4), "vector": Out(5), "valid": Out(1),
    })


class Interrupts(wiring.Component):
    """Pulses `irq_raise` for a CQ's vector when an armed CQ gets an entry (and disarms it), and when a CQ is armed that holds an
    entry that the doorbell's consumer index doesn't count: so an entry that arrives between the last poll and the arming
    raises too. A doorbell without `arm` changes nothing here.

    Three kinds of event, one a cycle: `cq_set` is taken at once, `acked` and doorbells take turns. Four cycles from event to
    pulse; events of one CQ may follow each other at once. A vector beyond `cfg.num_vectors` is nobody's.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "acked": In(stream.Signature(acked_layout(cfg))), "doorbell": In(stream.Signature(cq_doorbell_layout(cfg))),
            "cq_set": In(cq_set_signature(cfg)), "irq_raise": Out(cfg.num_vectors), "clearing": Out(1), "idle": Out(1),
        })

    @staticmethod
    def tables(cfg):
        return [TableSpec("cq_interrupt", "interrupts", 23, cfg.num_cqs, "cq", "message")]

    def elaborate(self, platform):
        m = Module()
        state = StructLayout({"acked": 16, "armed": 1, "vector": 5, "valid": 1})
        m.submodules.table = table = Table(self.tables(self.cfg)[0], state)
        shape = StructLayout({"cq": self.cfg.cq_bits, "index": 16, "set": 1, "doorbell": 1, "arm": 1, "vector": 5, "valid": 1})
        # the last stage has a reset, which it doesn't need, so that it isn't made a shift register with its slow output
        stage = [Signal(shape, name=f"event{i}", reset_less=i < 2) for i in range(3)]
        valid = [Signal(name=f"event_valid{i}") for i in range(3)]

        set_ = self.cq_set
        bell = self.doorbell
        acked = self.acked
        bell_waits = Signal()
        take_bell, take_acked = bell.valid & bell.ready, acked.valid & acked.ready
        m.d.comb += [
            self.clearing.eq(table.clearing),
            bell.ready.eq(~set_.en & ~table.clearing & ~(bell_waits & acked.valid)),
            acked.ready.eq(~set_.en & ~table.clearing & (bell_waits | ~bell.valid)),
        ]
        with m.If(take_bell):
            m.d.sync += bell_waits.eq(1)
        with m.Elif(take_acked):
            m.d.sync += bell_waits.eq(0)
        m.d.sync += [
            valid[0].eq(set_.en | take_bell | take_acked),
            stage[0].set.eq(set_.en), stage[0].doorbell.eq(take_bell), stage[0].arm.eq(bell.payload.arm),
            stage[0].cq.eq(Mux(set_.en, set_.index, Mux(take_bell, bell.payload.cq, acked.payload.cq))),
            stage[0].index.eq(Mux(take_bell, bell.payload.consumer, acked.payload.producer)),
            stage[0].vector.eq(set_.vector), stage[0].valid.eq(set_.valid),
        ]
        for i in (1, 2):
            m.d.sync += [valid[i].eq(valid[i - 1]), stage[i].eq(stage[i - 1])]

        # the two newest results are not in the table yet when it is read
        ev = stage[2]
        old = Signal(state)
        new = Signal(state)
        raises = Signal()
        new1 = Signal(state, reset_less=True)
        new2 = Signal(state, reset_less=True)
        cq3 = Signal(self.cfg.cq_bits)
        valid3 = Signal()
        hit1 = Signal()
        hit2 = Signal()
        m.d.sync += [
            new1.eq(new), new2.eq(new1), cq3.eq(ev.cq), valid3.eq(valid[2]),
            hit1.eq(valid[2] & (stage[1].cq == ev.cq)), hit2.eq(valid3 & (stage[1].cq == cq3)),
        ]
        newest = lambda of: Mux(hit1, of(new1), Mux(hit2, of(new2), of(table.read0_data)))
        behind = Signal()       # compared before it is known which is the newest, as the comparison is long
        m.d.comb += [
            table.read0_addr.eq(stage[0].cq), old.eq(newest(lambda state: state)), new.eq(old),
            behind.eq(newest(lambda state: self._behind(state, ev.index))),
            table.write_en.eq(valid[2]), table.write_addr.eq(ev.cq), table.write_data.eq(new),
        ]
        with m.If(ev.set):
            m.d.comb += [new.acked.eq(0), new.armed.eq(0), new.vector.eq(ev.vector), new.valid.eq(ev.valid)]
        with m.Elif(ev.doorbell):
            with m.If(ev.arm):
                m.d.comb += [raises.eq(old.valid & behind), new.armed.eq(old.valid & ~raises)]
        with m.Else():
            m.d.comb += [new.acked.eq(ev.index), raises.eq(old.armed), new.armed.eq(0)]
        raised = Signal()
        vector = Signal.like(old.vector, reset_less=True)
        m.d.sync += [raised.eq(valid[2] & raises), vector.eq(old.vector)]
        for i in range(self.cfg.num_vectors):
            m.d.sync += self.irq_raise[i].eq(raised & (vector == i))
        m.d.comb += self.idle.eq(~(valid[0] | valid[1] | valid[2]))
        return m

    def _behind(self, state, consumer):
        """The CQ holds an entry that a driver with this consumer index hasn't seen."""
        return state.acked != consumer
