"""Congestion control as the card has it: the controller of the configuration, its pacer, and who is to be notified."""

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.congestion import DCQCN
from optinic.congestion.dcqcn import Dcqcn
from optinic.congestion.fixed import FixedRate
from optinic.congestion.interface import INTERVAL_BITS, EventKind, event_layout
from optinic.congestion.notify import NotificationPoint
from optinic.congestion.pacer import Pacer
from optinic.congestion.wheel import TimingWheel
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature

__all__ = ["CongestionControl", "CONTROLLERS", "params_of"]

CONTROLLERS = {"dcqcn": Dcqcn, "fixed": FixedRate}


def params_of(cfg):
    """Names of the controller's parameter registers."""
    return tuple(DCQCN) if cfg.congestion == "dcqcn" else ()


class CongestionControl(wiring.Component):
    """Brings the events of both halves of the card to the controller, and its rates to the pacer.

    `charge` (a packet of the QP has been planned), `cnp_received` and `marked` (a CE-marked packet was placed) can't be
    refused: charges and CNPs wait in queues of 16 and 64 for the controller and, when these are full, are lost to it (a charge
    never to the pacer); what NotificationPoint has no time for pulses `mark_lost`. `restart` and `set_rate` are never
    lost: eight restarts wait, and in the longest time that the controller takes for an event (110 cycles) no more commands than
    that end. With congestion `none` there is no controller, no pacer and no wheel: `wait` is 0; the card still sends CNPs. `idle`: a bit for the controller, and one for all else.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        qp = StructLayout({"qp": cfg.qp_bits})
        super().__init__({
            "charge": In(PushSignature(StructLayout({"qp": cfg.qp_bits, "bytes": 14}))), "restart": In(PushSignature(cfg.qp_bits)),
            "cnp_received": In(PushSignature(qp)), "marked": In(PushSignature(qp)), "cnps": Out(stream.Signature(cfg.qp_bits)),
            "set_rate": In(stream.Signature(StructLayout({"qp": cfg.qp_bits, "interval": INTERVAL_BITS}))),
            "pace_look": In(1), "pace_qp": In(cfg.qp_bits), "wait": Out(24),
            "park": In(stream.Signature(StructLayout({"qp": cfg.qp_bits, "delay": 24}))), "due": Out(stream.Signature(cfg.qp_bits)),
            "time": In(64), "burst": In(32), "cnp_interval": In(32), **{name: In(32) for name in params_of(cfg)},
            "mark_lost": Out(1), "clearing": Out(1), "idle": Out(2),
        })

    @staticmethod
    def tables(cfg):
        parts = [NotificationPoint]
        if cfg.congestion != "none":
            parts += [CONTROLLERS[cfg.congestion], Pacer, TimingWheel]
        return [spec for part in parts for spec in part.tables(cfg)]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.notify = notify = NotificationPoint(cfg)
        wiring.connect(m, wiring.flipped(self.marked), notify.marked)
        m.d.comb += [
            self.cnps.payload.eq(notify.cnp.payload.qp), self.cnps.valid.eq(notify.cnp.valid), notify.cnp.ready.eq(self.cnps.ready),
            notify.time.eq(self.time), notify.interval.eq(self.cnp_interval), self.mark_lost.eq(notify.lost),
        ]
        if cfg.congestion == "none":
            m.d.comb += [self.set_rate.ready.eq(1), self.clearing.eq(notify.clearing), self.idle.eq(Cat(1, notify.idle)), self.park.ready.eq(1)]
            return m
        m.submodules.controller = controller = CONTROLLERS[cfg.congestion](cfg)
        m.submodules.pacer = pacer = Pacer(cfg)
        m.submodules.wheel = wheel = TimingWheel(cfg)
        wiring.connect(m, wiring.flipped(self.park), wheel.park)
        wiring.connect(m, controller.rate, pacer.rate)
        m.d.comb += [
            wheel.time.eq(self.time), pacer.time.eq(self.time), controller.time.eq(self.time), pacer.burst.eq(self.burst),
            self.due.payload.eq(wheel.due.payload.qp), self.due.valid.eq(wheel.due.valid), wheel.due.ready.eq(self.due.ready),
            pacer.look.valid.eq(self.pace_look), pacer.look.qp.eq(self.pace_qp), self.wait.eq(pacer.wait),
            pacer.charge.valid.eq(self.charge.valid), pacer.charge.qp.eq(self.charge.payload.qp), pacer.charge.bytes.eq(self.charge.payload.bytes),
            pacer.reset.valid.eq(self.restart.valid), pacer.reset.qp.eq(self.restart.payload),
            *(getattr(controller, name).eq(getattr(self, name)) for name in params_of(cfg)),
            self.clearing.eq(notify.clearing | controller.clearing | pacer.clearing | wheel.clearing),
        ]

        # what the controller is told: new lives and rates first, then CNPs, then what has been sent
        m.submodules.sent = sent = StreamFifo(StructLayout({"qp": cfg.qp_bits, "bytes": 14}), 16)
        m.submodules.received = received = StreamFifo(cfg.qp_bits, 64)
        m.submodules.restarts = restarts = StreamFifo(cfg.qp_bits, 8)
        m.submodules.events = events = StreamFifo(event_layout(cfg), 2)
        wiring.connect(m, events.o, controller.events)
        m.d.comb += [sent.i.valid.eq(self.charge.valid), sent.i.payload.eq(self.charge.payload),
                     received.i.valid.eq(self.cnp_received.valid), received.i.payload.eq(self.cnp_received.payload.qp),
                     restarts.i.valid.eq(self.restart.valid), restarts.i.payload.eq(self.restart.payload)]
        e = events.i
        with m.If(restarts.o.valid):
            m.d.comb += [e.valid.eq(1), e.payload.kind.eq(EventKind.RESET), e.payload.qp.eq(restarts.o.payload), restarts.o.ready.eq(e.ready)]
        with m.Elif(self.set_rate.valid):
            m.d.comb += [e.valid.eq(1), e.payload.kind.eq(EventKind.SET), e.payload.qp.eq(self.set_rate.payload.qp),
                         e.payload.value.eq(self.set_rate.payload.interval), self.set_rate.ready.eq(e.ready)]
        with m.Elif(received.o.valid):
            m.d.comb += [e.valid.eq(1), e.payload.kind.eq(EventKind.CNP), e.payload.qp.eq(received.o.payload), received.o.ready.eq(e.ready)]
        with m.Elif(sent.o.valid):
            m.d.comb += [e.valid.eq(1), e.payload.kind.eq(EventKind.SENT), e.payload.qp.eq(sent.o.payload.qp),
                         e.payload.bytes.eq(sent.o.payload.bytes), sent.o.ready.eq(e.ready)]
        m.d.comb += self.idle.eq(Cat(controller.idle, notify.idle & (sent.level == 0) & (received.level == 0) & (events.level == 0) & (restarts.level == 0)))
        return m
