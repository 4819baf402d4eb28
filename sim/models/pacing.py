"""How fast a queue pair may send: a congestion controller and its pacer, as :class:`sim.models.send.SendModel` asks them."""

from .congestion import SHARED, DcqcnModel, FixedRateModel, PacerModel

__all__ = ["Pacing"]

SWEEP_NS = 4_000_000        #: the card goes round all queue pairs more often than it takes their times to wrap


class Pacing:
    """`controller`: a :class:`DcqcnModel` or a :class:`FixedRateModel`. Times in ns. Queue pairs that have the low `qp_bits` bits
    of their numbers in common are lives of one."""

    def __init__(self, controller, burst=8192, qp_bits=24):
        self.controller, self.pacer = controller, PacerModel(burst)
        self._adapts = isinstance(controller, DcqcnModel)
        self._numbers = 1 << qp_bits
        self._swept = 0         # when the last round was, unless there was nothing to do

    @classmethod
    def fixed(cls, **knobs):
        return cls(FixedRateModel(), **knobs)

    def reset(self, number, now):
        """A new life: not paced."""
        number %= self._numbers
        self.controller.reset(number)
        self.pacer.reset(number, now)
        self._tell(number)

    def set(self, number, interval, now):
        """The host's wish, in ns a byte * 2^16; 0: not paced. A controller that finds out by itself doesn't listen."""
        number %= self._numbers
        if not self._adapts:
            self.controller.set(number, interval)
            self._tell(number)

    def sent(self, number, size, now):
        """A frame of `size` bytes is handed out."""
        number %= self._numbers
        self.pacer.charge(number, size, now)
        if self._adapts:
            self._sweep(number, now)
            if self.controller.sent(number, size, now):
                self._tell(number)

    def cnp(self, number, now):
        """A congestion notification arrived."""
        number %= self._numbers
        if self._adapts:
            self._sweep(number, now)
            if self.controller.cnp(number, now):
                self._tell(number)

    def not_before(self, number, now):
        """When the queue pair may send its next frame."""
        number %= self._numbers
        if self._adapts:
            self._sweep(number, now)
        return now + self.pacer.wait(number, now)

    def _tell(self, number):
        self.pacer.rate(number, self.controller.interval(number))

    def _sweep(self, number, now):
        """What the card's rounds would have done since the last call, and what the one at hand does to `number`."""
        controller = self.controller
        while (controller.state or controller.sharing) and self._swept + SWEEP_NS <= now:
            self._swept += SWEEP_NS
            for each in [*controller.state, *controller.sharing]:       # the shared row too: it may be nobody's any more
                if controller.sweep(each, self._swept) and each != SHARED:
                    self._tell(each)
        if not (controller.state or controller.sharing) or now < self._swept:
            self._swept = now
        if controller.sweep(number, now):
            self._tell(number)
