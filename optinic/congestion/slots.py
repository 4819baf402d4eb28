"""Who of the queue pairs has which slot of a pool: a map, and the slots that are free."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.memory.table import Table, TableSpec

__all__ = ["Slots", "NONE", "SHARED", "FIRST_OWN"]

NONE, SHARED, FIRST_OWN = 0, 1, 2       #: no slot; the one that any number of QPs may have; those from here on are for one QP each


class Slots(wiring.Component):
    """`found` is the slot of the QP `find` of one cycle ago. `assign`: from now on `qp` has `slot`. `release`: it has none, and its
    `slot`, if that was its own, is free.

    While `room` is high, `next` is a free slot, and `take` takes it; at least three cycles from any take or release to the
    next time that these three are looked at. `take` and `release` never come together. During `clearing`, after reset, nothing may
    be done; then no QP has a slot.

    Slots that were given back are in a stack, the last one is taken first; those that nobody has had yet are only counted, so there
    is nothing to be filled after reset.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        slot, qp = cfg.dcqcn_slot_bits, cfg.qp_bits
        super().__init__({
            "find": In(qp), "found": Out(slot),
            "qp": In(qp), "slot": In(slot), "assign": In(1), "release": In(1),
            "take": In(1), "next": Out(slot), "room": Out(1), "clearing": Out(1),
        })

    @staticmethod
    def tables(cfg):
        return [
            TableSpec("dcqcn_slot", "congestion.slots", cfg.dcqcn_slot_bits, cfg.num_qps, "qp", "hot"),
            TableSpec("dcqcn_free", "congestion.slots", cfg.dcqcn_slot_bits, cfg.dcqcn_pool, "qp", "hot", rows_per=cfg.num_qps / cfg.dcqcn_pool),
        ]

    def elaborate(self, platform):
        m = Module()
        bits = self.cfg.dcqcn_slot_bits
        slot_spec, free_spec = self.tables(self.cfg)
        m.submodules.map = slots = Table(slot_spec, bits, latency=1)
        m.submodules.free = free = Table(free_spec, bits, latency=1)
        level = Signal(bits)                            # of the stack
        unused = Signal(bits + 1, init=FIRST_OWN)       # this one and those above it were never taken
        own = self.slot >= FIRST_OWN
        m.d.comb += [
            self.clearing.eq(slots.clearing | free.clearing),
            slots.read0_addr.eq(self.find), self.found.eq(slots.read0_data),
            slots.write_en.eq(self.assign | self.release), slots.write_addr.eq(self.qp),
            slots.write_data.eq(Mux(self.assign, self.slot, NONE)),
            free.write_en.eq(self.release & own), free.write_addr.eq(level), free.write_data.eq(self.slot),
            free.read0_addr.eq(level - 1),
        ]
        m.d.sync += [
            self.room.eq(level.any() | ~unused[bits]),
            self.next.eq(Mux(level.any(), free.read0_data, unused[:bits])),
        ]
        with m.If(free.write_en):
            m.d.sync += level.eq(level + 1)
        with m.Elif(self.take):
            with m.If(level.any()):
                m.d.sync += level.eq(level - 1)
            with m.Else():
                m.d.sync += unused.eq(unused + 1)
        return m
