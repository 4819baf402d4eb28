"""A slow round over all queue pairs, for what has to be looked at before a narrow time stamp wraps."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Sweep", "sweep_spacing"]

SPACING = 64        #: cycles from one QP to the next, unless there isn't the time for it


def sweep_spacing(cfg, within_ns):
    """Cycles from QP to QP, a power of two, so that a round takes at most half of `within_ns`."""
    spacing = SPACING
    while spacing > 1 and cfg.num_qps * spacing * cfg.clock_ns > within_ns / 2:
        spacing //= 2
    assert cfg.num_qps * cfg.clock_ns * 4 < within_ns, f"{cfg.num_qps} QPs at {cfg.clock_hz} Hz: no round within {within_ns} ns"
    return spacing


class Sweep(wiring.Component):
    """`wanted` says that it is time to look at `qp`; it and `qp` stay until `done` pulses. Then the next QP is wanted
    `spacing` cycles after this one was, or at once if that is past."""

    def __init__(self, cfg, within_ns):
        self.num_qps, self.spacing = cfg.num_qps, sweep_spacing(cfg, within_ns)
        super().__init__({"wanted": Out(1), "qp": Out(cfg.qp_bits), "done": In(1)})

    def elaborate(self, platform):
        m = Module()
        count = Signal(range(self.spacing)) if self.spacing > 1 else None
        turn = Signal(init=1) if count is None else count == self.spacing - 1
        if count is not None:
            m.d.sync += count.eq(count + 1)
        m.d.sync += self.wanted.eq(turn | (self.wanted & ~self.done))
        with m.If(self.done):
            m.d.sync += self.qp.eq(self.qp + 1)
            with m.If(self.qp == self.num_qps - 1):
                m.d.sync += self.qp.eq(0)
        return m
