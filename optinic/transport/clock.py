"""NIC time: nanoseconds since reset or since the driver set it."""

from amaranth.hdl import Module, Signal, Cat
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["NicClock"]

FRACTION_BITS = 32


class NicClock(wiring.Component):
    """Counts `time` in ns by the exact period of the clock, rounded to 2^-32 ns a cycle.

    `ticks` is the time in units of 64 ns, `coarse` in units of 1.024 us; both are plain slices. `set` loads `set_time`
    and clears the fraction; it takes effect in the next cycle. Setting the time moves the deadlines that are running.
    """

    def __init__(self, cfg):
        self.increment = round(1e9 / cfg.clock_hz * (1 << FRACTION_BITS))
        super().__init__({"time": Out(64), "ticks": Out(32), "coarse": Out(16), "set": In(1), "set_time": In(64)})

    def elaborate(self, platform):
        m = Module()
        fraction = Signal(FRACTION_BITS)
        with m.If(self.set):
            m.d.sync += [self.time.eq(self.set_time), fraction.eq(0)]
        with m.Else():
            m.d.sync += Cat(fraction, self.time).eq(Cat(fraction, self.time) + self.increment)
        m.d.comb += [self.ticks.eq(self.time >> 6), self.coarse.eq(self.time >> 10)]
        return m
