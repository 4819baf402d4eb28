"""The queue of whole frames to the host stream."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.stream.fifo import StreamFifo
from optinic.stream.lanes import lane_mask
from optinic.stream.packet import AxiStreamSignature
from optinic.stream.push import PushSignature

__all__ = ["PassQueue", "pass_beat_layout"]


def pass_beat_layout(cfg):
    """`bytes` counts in the last beat, modulo a beat: 0 is a full one."""
    return StructLayout({"data": cfg.data_width, "last": 1, "bytes": range(cfg.beat_bytes)})


class PassQueue(wiring.Component):
    """Holds at least 512 beats and one frame of the largest size.

    `room`: a frame of `beats` fits now. `reserve` takes that room, and `beat` then brings the frame, beat by beat. The
    source drops a frame for which there is no room; a slow host never holds anything up. Latency three cycles, one beat a
    cycle.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self.depth = max(512, 1 << (cfg.max_frame_beats - 1).bit_length())
        super().__init__({
            "beats": In(range(cfg.max_frame_beats + 1)), "room": Out(1), "reserve": In(1),
            "beat": In(PushSignature(pass_beat_layout(cfg))), "host": Out(AxiStreamSignature(cfg.data_width)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = StreamFifo(pass_beat_layout(self.cfg), self.depth, style="block")
        m.d.comb += [queue.i.valid.eq(self.beat.valid), queue.i.payload.eq(self.beat.payload)]
        free = Signal(range(self.depth + 1), init=self.depth)
        m.d.comb += self.room.eq(self.beats <= free)
        host, out = self.host, queue.o.payload
        gone = host.tvalid & host.tready
        m.d.sync += free.eq(Mux(self.reserve, free - self.beats + gone, free + gone))
        lanes = self.cfg.beat_bytes
        m.d.comb += [
            host.tdata.eq(out.data), host.tlast.eq(out.last), host.tuser.eq(0), host.tvalid.eq(queue.o.valid),
            host.tkeep.eq(lane_mask(out.bytes, lanes, lambda lane, n: lane < n or n == 0) | (~out.last).replicate(lanes)),
            queue.o.ready.eq(host.tready),
        ]
        return m
