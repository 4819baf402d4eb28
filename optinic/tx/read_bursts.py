"""The address side of the payload reads: from runs of beats to AXI bursts."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from optinic.axi.signatures import ID_BITS, burst_bytes
from optinic.memory.acks import max_bursts
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature

__all__ = ["ReadBursts", "READ_IDS", "page_bits", "run_layout"]

READ_IDS = 0x80         #: the read in slot n has the ID READ_IDS | n

_INCR = 1


def page_bits(cfg):
    """Of a byte address, those inside one block that bursts don't cross."""
    return burst_bytes(cfg.data_width).bit_length() - 1


def run_layout(cfg):
    """Consecutive beats to be read: from beat `index` of block `page` to beat `end` of block `page + bursts`; so that is one
    burst more. `beats` is their number less one, modulo the beats of a block (it serves when there is one burst)."""
    index = page_bits(cfg) - ceil_log2(cfg.beat_bytes)
    return StructLayout({"slot": range(cfg.tx_reads_outstanding), "page": 64 - page_bits(cfg), "index": index, "end": index,
                         "beats": index, "bursts": range(max_bursts(cfg))})


class ReadBursts(wiring.Component):
    """Announces `run` on AR as full-width incrementing bursts, in order, one a cycle at best, the first two cycles later.

    At most `cfg.tx_reads_outstanding` runs wait; the sender has a slot for each that isn't free before its answers have
    come, so there is always room. `asked` pulses in the cycle after AR took a burst of the read in `asked_slot`.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "run": In(PushSignature(run_layout(cfg))),
            "arid": Out(ID_BITS), "araddr": Out(64), "arlen": Out(8), "arsize": Out(3), "arburst": Out(2),
            "arvalid": Out(1), "arready": In(1),
            "asked": Out(1), "asked_slot": Out(range(cfg.tx_reads_outstanding)),
        })

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.runs = runs = StreamFifo(run_layout(cfg), cfg.tx_reads_outstanding)
        m.d.comb += [runs.i.valid.eq(self.run.valid), runs.i.payload.eq(self.run.payload)]

        run = runs.o.payload
        slot = Signal.like(run.slot, reset_less=True)
        page = Signal.like(run.page, reset_less=True)
        index = Signal.like(run.index, reset_less=True)
        length = Signal.like(run.beats, reset_less=True)
        burst = Signal.like(run.bursts)         # of the run, counted from 0
        later = Signal()                        # not the first one
        last = burst == run.bursts
        free = Signal()
        m.d.comb += [free.eq(~self.arvalid | self.arready), runs.o.ready.eq(free & last)]
        with m.If(free):
            m.d.sync += [
                self.arvalid.eq(runs.o.valid), slot.eq(run.slot),
                page.eq(Mux(later, page, run.page) + later), index.eq(Mux(later, 0, run.index)),
                length.eq(Mux(last, Mux(later, run.end, run.beats), Mux(later, ~0, ~run.index))),
            ]
        with m.If(free & runs.o.valid):
            m.d.sync += [burst.eq(Mux(last, 0, burst + 1)), later.eq(~last)]
        m.d.comb += [
            self.arid.eq(READ_IDS | slot), self.araddr.eq(Cat(Const(0, ceil_log2(cfg.beat_bytes)), index, page)),
            self.arlen.eq(length), self.arsize.eq(ceil_log2(cfg.beat_bytes)), self.arburst.eq(_INCR),
        ]
        m.d.sync += [self.asked.eq(self.arvalid & self.arready), self.asked_slot.eq(slot)]
        return m
