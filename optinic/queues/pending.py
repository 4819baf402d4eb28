"""Pending completion interrupts."""

from amaranth.hdl import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["PendingInterrupts"]


class PendingInterrupts(wiring.Component):
    """One level for each completion vector: up when `raised`, down when the host clears it. Raised and cleared in one cycle:
    stays up, so that no event is lost."""

    def __init__(self, cfg):
        n = cfg.num_vectors
        super().__init__({"raised": In(n), "clear_en": In(1), "clear": In(n), "pending": Out(n)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.pending.eq(self.pending & ~Mux(self.clear_en, self.clear, 0) | self.raised)
        return m
