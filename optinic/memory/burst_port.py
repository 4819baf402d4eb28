"""The last stage before the AXI write channels: queues that always have room for what was reserved."""

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.axi.signatures import AxiWriteSignature
from optinic.memory.aligner import beat_layout
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature

__all__ = ["BurstPort", "burst_layout"]

BEATS = 32      #: bus beats reserved or queued; more than the way from reservation to queue and back
BURSTS = 16


def burst_layout(data_width):
    """A burst: `beat` is the address in bus beats (what the byte address has below it is in the strobes), `len` as in awlen."""
    return StructLayout({"beat": 64 - (data_width // 8 - 1).bit_length(), "len": 8})


class BurstPort(wiring.Component):
    """AW and W of `axi`, ID 0, INCR, full width. B is not looked at here.

    `room` says that a burst and a beat may be reserved; `take_burst` and `take_beat` reserve one each, and `burst` and `beat`
    then bring it, however much later. When the bus is slow, `room` goes low and nothing else waits. wvalid waits for its
    burst's awvalid, never for awready (AXI A3.3.1), so no W beat is seen before its address.
    """

    def __init__(self, data_width):
        self.width = data_width
        super().__init__({
            "room": Out(1), "take_burst": In(1), "take_beat": In(1),
            "burst": In(PushSignature(burst_layout(data_width))), "beat": In(PushSignature(beat_layout(data_width))),
            "axi": Out(AxiWriteSignature(data_width)),
        })

    def elaborate(self, platform):
        m = Module()
        axi, lane_bits = self.axi, (self.width // 8 - 1).bit_length()
        m.submodules.bursts = bursts = StreamFifo(burst_layout(self.width), BURSTS)
        m.submodules.beats = beats = StreamFifo(beat_layout(self.width), BEATS)
        m.d.comb += [
            bursts.i.valid.eq(self.burst.valid), bursts.i.payload.eq(self.burst.payload),
            beats.i.valid.eq(self.beat.valid), beats.i.payload.eq(self.beat.payload),
        ]
        free_bursts = Signal(range(BURSTS + 1), init=BURSTS)
        free_beats = Signal(range(BEATS + 1), init=BEATS)
        aw_done, w_done = axi.awvalid & axi.awready, axi.wvalid & axi.wready
        m.d.sync += [free_bursts.eq(free_bursts + aw_done - self.take_burst), free_beats.eq(free_beats + w_done - self.take_beat)]
        m.d.sync += self.room.eq((free_bursts > 1) & (free_beats > 1))      # one cycle late, so one more may go meanwhile

        # addresses accepted less bursts whose data is through: -1 when the data overtook a slow address
        ahead = Signal(signed(BEATS.bit_length() + 2))
        m.d.sync += ahead.eq(ahead + aw_done - (w_done & axi.wlast))
        aw, w = bursts.o, beats.o
        m.d.comb += [
            axi.awid.eq(0), axi.awaddr.eq(Cat(Const(0, lane_bits), aw.payload.beat)), axi.awlen.eq(aw.payload.len),
            axi.awsize.eq(lane_bits), axi.awburst.eq(1), axi.awvalid.eq(aw.valid), aw.ready.eq(axi.awready),
            axi.wdata.eq(w.payload.data), axi.wstrb.eq(w.payload.strb), axi.wlast.eq(w.payload.last),
            axi.wvalid.eq(w.valid & ((ahead > 0) | ((ahead == 0) & aw.valid))), w.ready.eq(axi.wready & axi.wvalid),
        ]
        return m
