"""Frames of the host on their way to the cable, stored whole."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.stream.fifo import StreamFifo
from optinic.stream.packet import AxiStreamSignature

__all__ = ["HostQueue", "host_beat_layout", "MIN_FRAME"]

MIN_FRAME = 60      #: bytes, without FCS


def host_beat_layout(cfg):
    """`keep`: bytes of `data` that belong to the frame, the others are sent as zeroes if they are sent: those of any beat but
    the `last` one are, and those of a last one that is `short` up to byte 60 of the frame."""
    return StructLayout({"data": cfg.data_width, "keep": cfg.beat_bytes, "short": 1, "last": 1})


class HostQueue(wiring.Component):
    """Holds max_frame_beats beats: in LUT memory, or in block RAM if they are many. Latency four cycles, one beat a cycle.

    `go`: the frame that begins with the beat at `beats` is here to its end, so that it can be sent without a pause; or the
    queue is full, which it is without a whole frame only if that is longer than max_frame_bytes: such a frame is sent at the
    pace of the host. When full, tready is low: nothing is dropped. A frame of less than 60 bytes gets beats of zeroes up to
    there, while tready is low. `tuser` is ignored.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self.depth = 1 << max(2, (cfg.max_frame_beats - 3).bit_length())       # two more are in registers
        super().__init__({
            "host": In(AxiStreamSignature(cfg.data_width)), "beats": Out(stream.Signature(host_beat_layout(cfg))),
            "go": Out(1), "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, host = self.cfg.beat_bytes, self.host
        style = "distributed" if self.depth <= 64 else "block"
        m.submodules.queue = queue = StreamFifo(host_beat_layout(self.cfg), self.depth, style=style)
        held = Signal(host_beat_layout(self.cfg), reset_less=True)
        full = Signal()
        room = ~full | queue.i.ready
        padding = Signal()      # the frame has ended, beats of zeroes follow
        least = -(-MIN_FRAME // lanes)
        at = Signal(range(least + 1))       # number of the beat in the frame, stays at `least`
        short = Signal()
        moved = Signal()
        m.d.comb += [
            host.tready.eq(room & ~padding), moved.eq(room & (padding | host.tvalid)), short.eq(at < least - 1),
            queue.i.valid.eq(full), queue.i.payload.eq(held),
        ]
        ended = host.tlast | padding
        rest = MIN_FRAME - (least - 1) * lanes      # bytes in the last beat of the shortest frame
        under = (at == least - 1) & ~host.tkeep[rest - 1]
        with m.If(room):
            m.d.sync += full.eq(moved)
        with m.If(moved):
            m.d.sync += [
                held.data.eq(Mux(padding, 0, host.tdata)), held.last.eq(ended & ~short), padding.eq(ended & short),
                held.keep.eq(Mux(padding, (1 << rest) - 1, host.tkeep)), held.short.eq(under & ~padding),
            ]
            with m.If(ended & ~short):
                m.d.sync += at.eq(0)
            with m.Elif(at != least):
                m.d.sync += at.eq(at + 1)

        # -- whole frames in the queue; an end counts when it can be read
        entered = Signal(2)
        left = self.beats.valid & self.beats.ready & self.beats.payload.last
        whole = Signal(range(self.depth + 3))
        stuck = Signal()        # full, and no whole frame in it: a cycle late, and then still so
        m.d.sync += [entered.eq(Cat(queue.i.valid & queue.i.ready & held.last, entered)), whole.eq(whole + entered[1] - left),
                     stuck.eq(full & ~queue.i.ready & (whole == 0))]
        m.d.comb += self.go.eq((whole != 0) | stuck)
        wiring.connect(m, queue.o, wiring.flipped(self.beats))
        m.d.comb += self.idle.eq(~full & (queue.level == 0))
        return m
