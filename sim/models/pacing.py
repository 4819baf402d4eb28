"""How fast a queue pair may send: a congestion controller and its pacer, as :class:`sim.models.send.SendModel` asks them."""

from .congestion import DcqcnModel, FixedRateModel, PacerModel

__all__ = ["Pacing"]

SWEEP_NS = 4_000_000        #: the card goes round all queue pairs more often than it takes their times to wrap


class Pacing:
    """`controller`: a :class:`DcqcnModel` or a :class:`FixedRateModel`. Times in ns."""

    def __init__(self, controller, burst=8192):
        self.controller, self.pacer = controller, PacerModel(burst)
        self._adapts = isinstance(controller, DcqcnModel)
        self._seen = {}         # when the controller was last told of a queue pair, or swept it

    @classmethod
    def fixed(cls, **knobs):
        return cls(FixedRateModel(), **knobs)

    def reset(self, number, now):
        """A new life: not paced."""
        self.controller.reset(number)
        self.pacer.reset(number, now)
        self._tell(number)

    def set(self, number, interval, now):
        """The host's wish, in ns a byte * 2^16; 0: not paced. A controller that finds out by itself doesn't listen."""
        if not self._adapts:
            self.controller.set(number, interval)
            self._tell(number)

    def sent(self, number, size, now):
        """A frame of `size` bytes is handed out."""
        self.pacer.charge(number, size, now)
        if self._adapts:
            self._sweep(number, now)
            if self.controller.sent(number, size, now):
                self._tell(number)

    def cnp(self, number, now):
        """A congestion notification arrived."""
        if self._adapts:
            self._sweep(number, now)
            if self.controller.cnp(number, now):
                self._tell(number)

    def not_before(self, number, now):
        """When the queue pair may send its next frame."""
        if self._adapts:
            self._sweep(number, now)
        return now + self.pacer.wait(number, now)

    def _tell(self, number):
        self.pacer.rate(number, self.controller.interval(number))

    def _sweep(self, number, now):
        """What the card's round would have done since the last call."""
        time, self._seen[number] = self._seen.get(number, now), now
        while number in self.controller.state and time < now:
            time = min(time + SWEEP_NS, now)
            if self.controller.sweep(number, time):
                self._tell(number)
