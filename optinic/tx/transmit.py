"""The transmit half: from doorbells to the cable, and back to completions."""

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.axi.signatures import AxiReadSignature
from optinic.congestion.control import CongestionControl, params_of
from optinic.memory.table import alarm_members, connect_alarms
from optinic.stream.packet import AxiStreamSignature
from optinic.tx.builder import FrameBuilder
from optinic.tx.headers import local_signature
from optinic.tx.peers import peer_set_signature
from optinic.tx.reader import PayloadReader
from optinic.tx.records import common_layout
from optinic.tx.send_queue import SendQueue, rc_ports

__all__ = ["Transmit"]

_QUEUE = ("doorbells", "commands", "context_set", "reads", "query", "answer", "jobs")
_CONGESTION = ("cnp_received", "marked", "set_rate")
_RC = ("progress", "acks", "outstanding", "failed", "answered")


class Transmit(wiring.Component):
    """SendQueue, CongestionControl, PayloadReader and FrameBuilder, connected; see there. No logic of its own.

    `wqe_axi` and `payload_axi` are the two readers of host memory; `mac_tx` is the cable, `host_tx` takes frames of the host.
    `idle` has a bit for each part, set when nothing is in it: the send half is idle when all are set at once.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self.queue, self.control = SendQueue(cfg), CongestionControl(cfg)
        queue, control = self.queue.signature.members, self.control.signature.members
        super().__init__({
            **{name: queue[name] for name in _QUEUE}, "fence_done": Out(1), "sq_base": In(64), "dma_timeout": In(32),
            **{name: control[name] for name in _CONGESTION}, "burst": In(32), "cnp_interval": In(32),
            **{name: In(32) for name in params_of(cfg)},
            "common_qp": Out(cfg.qp_bits), "common": In(common_layout(cfg)), "common_busy": In(1),
            "wqe_axi": Out(AxiReadSignature(cfg.data_width)), "payload_axi": Out(AxiReadSignature(cfg.data_width)),
            "local": In(local_signature()), "peer_set": In(peer_set_signature(cfg)), "enable": In(1),
            "mac_tx": Out(AxiStreamSignature(cfg.data_width)), "time": In(64),
            "sent_bytes": Out(wiring.Signature({"valid": Out(1), "bytes": Out(16)})),
            **{f"event_{name}": Out(1) for name in ("frame_sent", "host_frame_sent", "cnp_sent", "send_error", "wqe_error", "send_expired",
                                                    "read_served", "mark_lost")},
            "clearing": Out(1), "idle": Out(len(self.queue.idle) + len(self.control.idle) + 2),
        } | alarm_members(cfg) | ({"host_tx": In(AxiStreamSignature(cfg.data_width))} if cfg.pass_through else {}) | rc_ports(cfg))

    @staticmethod
    def tables(cfg):
        return [spec for part in (SendQueue, CongestionControl, FrameBuilder) for spec in part.tables(cfg)]

    def elaborate(self, platform):
        m = Module()
        cfg, flip = self.cfg, wiring.flipped
        m.submodules.queue = queue = self.queue
        m.submodules.congestion = control = self.control
        connect_alarms(m, self, [queue])
        m.submodules.reader = reader = PayloadReader(cfg)
        m.submodules.builder = builder = FrameBuilder(cfg)
        for name in _QUEUE + (_RC if cfg.rc else ()):
            wiring.connect(m, flip(getattr(self, name)), getattr(queue, name))
        for name in _CONGESTION:
            wiring.connect(m, flip(getattr(self, name)), getattr(control, name))
        wiring.connect(m, flip(self.wqe_axi), queue.axi)
        wiring.connect(m, flip(self.payload_axi), reader.axi)
        wiring.connect(m, queue.packets, reader.packets)
        wiring.connect(m, reader.loaded, builder.packets)
        wiring.connect(m, builder.done, queue.done)
        wiring.connect(m, queue.charge, control.charge)
        wiring.connect(m, queue.restart, control.restart)
        wiring.connect(m, queue.park, control.park)
        wiring.connect(m, control.due, queue.due)
        wiring.connect(m, control.cnps, queue.cnps)
        wiring.connect(m, flip(self.local), builder.local)
        wiring.connect(m, flip(self.peer_set), builder.peer_set)
        wiring.connect(m, builder.mac_tx, flip(self.mac_tx))
        wiring.connect(m, builder.sent_bytes, flip(self.sent_bytes))
        if cfg.pass_through:
            wiring.connect(m, flip(self.host_tx), builder.host_tx)
        m.d.comb += [
            reader.rd_addr.eq(builder.rd_addr), builder.rd_data.eq(reader.rd_data), reader.rd_pointer.eq(builder.rd_pointer),
            queue.sq_base.eq(self.sq_base), queue.dma_timeout.eq(self.dma_timeout), reader.dma_timeout.eq(self.dma_timeout),
            queue.time.eq(self.time), control.time.eq(self.time), control.burst.eq(self.burst), control.cnp_interval.eq(self.cnp_interval),
            *(getattr(control, name).eq(getattr(self, name)) for name in params_of(cfg)),
            control.pace_look.eq(queue.pace_look), control.pace_qp.eq(queue.pace_qp), queue.wait.eq(control.wait),
            self.common_qp.eq(queue.common_qp), queue.common.eq(self.common), queue.common_busy.eq(self.common_busy),
            # what is planned still leaves, as commands wait for it
            queue.enable.eq(self.enable), builder.enable.eq(1), builder.host_enable.eq(self.enable),
            self.fence_done.eq(queue.fence_done),
            self.event_frame_sent.eq(builder.event_frame_sent), self.event_host_frame_sent.eq(builder.event_host_frame_sent),
            self.event_cnp_sent.eq(queue.event_cnp), self.event_send_error.eq(queue.event_error), self.event_wqe_error.eq(queue.event_wqe_error),
            self.event_send_expired.eq(queue.event_expired), self.event_read_served.eq(queue.event_read), self.event_mark_lost.eq(control.mark_lost),
            self.clearing.eq(queue.clearing | control.clearing | builder.clearing),
            self.idle.eq(Cat(queue.idle, control.idle | (~self.enable).replicate(len(control.idle)), reader.idle, builder.idle)),
        ]
        if cfg.rc:
            m.d.comb += [self.event_ack.eq(queue.event_ack), self.event_nak.eq(queue.event_nak)]
        return m
