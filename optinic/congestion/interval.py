"""From a rate to the time that a byte takes at it."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.congestion.interface import INTERVAL_BITS, INTERVAL_FRACTION, rate_layout
from optinic.stream.push import PushSignature

__all__ = ["IntervalDivider"]

BYTE_NS = 8000                      # that a byte takes at 1 Mb/s
TAIL = 6 + INTERVAL_FRACTION        # 8000 << 16 is 125 and this many zeroes
HEAD = BYTE_NS >> 6


class IntervalDivider(wiring.Component):
    """Turns `rate` (Mb/s, not 0) of `qp` into the interval floor(8000 * 2^16 / rate), or into 0, "not paced", with `unpaced`.

    One at a time: `start` is ignored while `busy`. The interval is pushed 30 cycles after `start`, that of `unpaced` in the
    next cycle; so pushes are in the order of the starts, and the next start may coincide with a push."""

    STEPS = HEAD.bit_length() + TAIL

    def __init__(self, cfg, rate_bits):
        self.rate_bits = rate_bits
        assert self.STEPS <= INTERVAL_BITS
        super().__init__({
            "start": In(1), "qp": In(cfg.qp_bits), "rate": In(rate_bits), "unpaced": In(1), "busy": Out(1),
            "o": Out(PushSignature(rate_layout(cfg))),
        })

    def elaborate(self, platform):
        m = Module()
        steps = Signal(range(self.STEPS + 1))
        divisor = Signal(self.rate_bits, reset_less=True)
        rest = Signal(self.rate_bits, reset_less=True)
        word = Signal(self.STEPS, reset_less=True)      # dividend going out at the top, quotient coming in below
        trial = Signal(self.rate_bits + 2)
        m.d.comb += [
            trial.eq(Cat(word[-1], rest) - divisor), self.busy.eq(steps != 0),
            self.o.payload.interval.eq(word),
        ]
        m.d.sync += self.o.valid.eq(0)
        with m.If(self.busy):
            fits = ~trial[-1]
            m.d.sync += [
                rest.eq(Mux(fits, trial, Cat(word[-1], rest))), word.eq(Cat(fits, word[:-1])),
                steps.eq(steps - 1), self.o.valid.eq(steps == 1),
            ]
        with m.Elif(self.start):
            m.d.sync += [
                self.o.payload.qp.eq(self.qp), divisor.eq(self.rate), rest.eq(0), word.eq(Mux(self.unpaced, 0, HEAD << TAIL)),
                steps.eq(Mux(self.unpaced, 0, self.STEPS)), self.o.valid.eq(self.unpaced),
            ]
        return m
