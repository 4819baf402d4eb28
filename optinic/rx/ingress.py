"""Receive ingress: from the MAC to frames in the packet buffer and one descriptor for each."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from optinic.memory.table import TableSpec
from optinic.stream.fifo import StreamFifo
from optinic.stream.packet import AxiStreamSignature

from .buffer import PacketBuffer
from .capture import Capture
from .decode import Decode
from .decode_rc import DecodeRc
from .descriptor import descriptor_layout
from .icrc import IcrcCheck
from .intake import Intake

__all__ = ["Ingress"]


def _queue_style(cfg):
    return "distributed" if cfg.rx_frames <= 64 else "block"


class Ingress(wiring.Component):
    """Takes frames from `mac`, stores them and says what they are. One beat, and one frame, each cycle; no bubbles.

    `mac`, `enable`, `hold`, `overflow`: see :class:`Intake`. A frame that does not enter leaves no trace but the
    `overflow` pulse. One that enters, good or bad, is stored in the packet buffer and yields exactly one descriptor, in
    order, after its last beat is in the buffer: `latency` cycles after its last beat was accepted, or when those before
    it have been taken.

    Buffer: frames lie one behind the other, from beat 0 after reset, modulo rx_buffer_beats; each takes `beats` of its
    descriptor (of a frame longer than max_frame_bytes the first max_frame_beats). `rd_data` follows `rd_addr` by two
    cycles. `rd_pointer` counts beats since reset, modulo twice the buffer: everything before it is free again.

    Back-pressure on `descriptors` fills the queue of rx_frames; a full queue or buffer acts on whole frames at `mac`
    (the queue itself can't overflow: every frame has its place from its first beat on). A frame counts against rx_frames
    for the `latency` too, so single-beat frames in every cycle need rx_frames of 32 or more.
    `idle`: not within a frame, and no frame between here and the descriptor's acceptance.
    """

    latency = 14

    def __init__(self, cfg):
        if cfg.max_frame_bytes % cfg.beat_bytes:
            raise ValueError("max_frame_bytes is not a whole number of beats")
        self.cfg = cfg
        super().__init__({
            "mac": In(AxiStreamSignature(cfg.data_width)),
            "enable": In(1), "hold": In(1), "overflow": Out(1),
            "descriptors": Out(stream.Signature(descriptor_layout(cfg))),
            "rd_addr": In(range(cfg.rx_buffer_beats)), "rd_data": Out(cfg.data_width),
            "rd_pointer": In((cfg.rx_buffer_beats - 1).bit_length() + 1),
            "idle": Out(1),
        })

    @staticmethod
    def tables(cfg):
        return [TableSpec("packet_buffer", "Ingress", cfg.data_width, cfg.rx_buffer_beats, "beat", "hot", style="block"),
                TableSpec("descriptor_queue", "Ingress", descriptor_layout(cfg).size, cfg.rx_frames, "frame", "hot", style=_queue_style(cfg))]

    def elaborate(self, platform):
        m = Module()
        m.submodules.intake = intake = Intake(self.cfg)
        m.submodules.buffer = buffer = PacketBuffer(self.cfg)
        m.submodules.capture = capture = Capture(self.cfg)
        m.submodules.icrc = icrc = IcrcCheck(self.cfg)
        m.submodules.decode = decode = (DecodeRc if self.cfg.rc else Decode)(self.cfg)
        m.submodules.queue = queue = StreamFifo(descriptor_layout(self.cfg), self.cfg.rx_frames, style=_queue_style(self.cfg))

        connect(m, flipped(self.mac), intake.mac)
        m.d.comb += [
            intake.enable.eq(self.enable), intake.hold.eq(self.hold), intake.rd_pointer.eq(self.rd_pointer),
            intake.retire.eq(self.descriptors.valid & self.descriptors.ready),
            self.overflow.eq(intake.overflow), self.idle.eq(intake.idle),
            buffer.store.eq(intake.beat.store), buffer.wr_addr.eq(intake.beat.addr), buffer.wr_data.eq(intake.beat.data),
            buffer.rd_addr.eq(self.rd_addr), self.rd_data.eq(buffer.rd_data),
        ]
        connect(m, intake.beat, capture.beat)
        connect(m, capture.captured, decode.captured)
        m.d.comb += [getattr(icrc, name).eq(getattr(capture.captured, name))
                     for name in ("valid", "last", "data", "index", "vlan", "v6")]
        m.d.comb += [icrc.ip_length.eq(capture.ip_length), decode.icrc_ok.eq(icrc.ok),
                     queue.i.valid.eq(decode.done), queue.i.payload.eq(decode.descriptor)]
        connect(m, queue.o, flipped(self.descriptors))
        return m
