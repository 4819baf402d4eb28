"""The controller that doesn't control: every queue pair has the rate that the driver gave it."""

from amaranth.hdl import Module
from amaranth.lib import wiring

from optinic.congestion.interface import EventKind, controller_members

__all__ = ["FixedRate"]


class FixedRate(wiring.Component):
    """SET gives the QP the interval in `value`, RESET gives it interval 0 (not paced); other events are ignored.

    An event is taken in every cycle, its rate is pushed in the next one. Nothing is remembered."""

    def __init__(self, cfg):
        super().__init__(controller_members(cfg, ()))

    @staticmethod
    def tables(cfg):
        return []

    def elaborate(self, platform):
        m = Module()
        event = self.events.payload
        m.d.comb += [self.events.ready.eq(1), self.clearing.eq(0), self.idle.eq(~self.rate.valid)]
        m.d.sync += [
            self.rate.valid.eq(self.events.valid & ((event.kind == EventKind.SET) | (event.kind == EventKind.RESET))),
            self.rate.payload.qp.eq(event.qp), self.rate.payload.interval.eq(0),
        ]
        with m.If(event.kind == EventKind.SET):
            m.d.sync += self.rate.payload.interval.eq(event.value)
        return m
