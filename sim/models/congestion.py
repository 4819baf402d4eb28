"""Congestion control as plain sequential programs, exact to the bit: the oracles for optinic/congestion.

Times come in with each call, in ns. Each class keeps all queue pairs in a dictionary. Nothing is shared with the hardware.
"""

from dataclasses import dataclass, replace

__all__ = ["SHARED", "DcqcnModel", "FixedRateModel", "PacerModel", "NotificationModel", "DCQCN_DEFAULTS", "interval_of"]

#: times in units of 4096 ns, bytes in units of 65,536, rates in Mb/s, g in 1/1024
DCQCN_DEFAULTS = {
    "g": 4, "alpha_timer": 13, "increase_timer": 13, "decrease_interval": 1, "byte_counter": 153, "fast_steps": 5,
    "rate_ai": 40, "rate_hai": 100, "rate_min": 100, "line_rate": 100_000,
}


def interval_of(rate):
    """ns a byte * 2^16 at `rate` Mb/s; 0, not paced, for rate 0."""
    return 8000 * 65536 // rate if rate else 0


@dataclass
class Reaction:
    """A congested QP. One that isn't has none."""
    rate: int
    target: int = 0
    alpha: int = 4095       #: of 4096
    since: int = 0          #: in the unit, modulo 4096
    bytes: int = 0
    timer_stage: int = 0
    byte_stage: int = 0


SHARED = "shared"       #: the key of the row that any number of queue pairs have


class DcqcnModel:
    """`sent`, `cnp`, `reset` and `sweep` return whether the QP's interval was told anew; `interval` is what it is.

    `sweep` is the card's slow round coming by; when it isn't called, nothing is missed as long as no QP goes without an event for 16.7 ms.

    `pool`: rows that there are for all queue pairs together; 0: one for each. Two of them are not for one QP each: one is always
    empty, and one is shared by those that got their first CNP when no other one was free. These react as if they were one QP, but
    each hears of it at its own events only; it gets a row of its own, a copy, at the first of them at which there is one.
    """

    IDLE, MAX_RUNS, MAX_TICKS = 2048, 16, 16

    def __init__(self, rate_bits=17, pool=0, **params):
        self.p = DCQCN_DEFAULTS | params
        self.rate_bits, self.pool = rate_bits, pool
        self.state = {}         # rows by QP, and the shared one
        self.sharing = {}       # QPs that share it: the interval that each was told last
        self.dice = 0x2A5F17

    # -- what is drawn by chance ---------------------------------------------------------------------

    def _roll(self):
        """The sixteen bits in use now; then the register x^23 + x^18 + 1 goes on by sixteen bits."""
        now, word = self.dice & 0xFFFF, self.dice
        for _ in range(16):
            word = (word << 1 | (word >> 22 ^ word >> 17) & 1) & 0x7F_FFFF
        self.dice = word
        return now

    def _share(self, value):
        return (value * self.p["g"] + (self._roll() & 1023)) >> 10

    # -- the events ----------------------------------------------------------------------------------

    @property
    def line(self):
        return min(self.p["line_rate"], (1 << self.rate_bits) - 1)

    def interval(self, qp):
        return self.sharing[qp] if qp in self.sharing else interval_of(self.state[qp].rate) if qp in self.state else 0

    def rate(self, qp):
        """By its row; one that shares may have been told another one."""
        return self.state[self._key(qp)].rate if self._key(qp) in self.state else self.line

    def reset(self, qp, time=0):
        self.state.pop(qp, None)
        self.sharing.pop(qp, None)
        return True

    def sweep(self, qp, time):
        """Whoever has no row looks after the shared one, which may be nobody's any more."""
        key = qp if qp in self.state else SHARED
        if self._is_stale(key, time):
            del self.state[key]
            self.sharing.pop(qp, None)
            return True
        return self._left_behind(qp)

    def sent(self, qp, size, time):
        if self._left_behind(qp):
            return True
        if self._is_stale(self._key(qp), time):
            self._release(qp)
            return True
        if self._key(qp) not in self.state:
            return False
        shared = self._move_out(qp)
        s = self.state[self._key(qp)]
        steps = self._timers(s, time)[0]
        if not self._full(s):
            if self._roll() < size and self.p["byte_counter"]:
                s.bytes += 1
                if s.bytes >= self.p["byte_counter"]:
                    s.bytes = 0
                    self._step(s)
                    s.byte_stage += s.byte_stage <= self.p["fast_steps"]
                    steps += 1
        return self._settle(qp) or steps > 0 or shared

    def cnp(self, qp, time):
        self._left_behind(qp)
        shared = self._move_out(qp)
        if qp not in self.state and not self._room():
            self.sharing[qp], shared = 0, True
        key = self._key(qp)
        if self._is_stale(key, time):
            del self.state[key]
        s = self.state.get(key)
        at = (time >> 12) % 4096
        if s is None:
            s = self.state[key] = Reaction(self.line)
        else:
            elapsed = (at - s.since) % 4096
            if s.timer_stage == 0 and elapsed < self.p["decrease_interval"]:
                if shared:          # the rate may be new to this QP
                    self._settle(qp)
                return shared
            _, left = self._timers(s, time)
            if self._full(s):       # it had recovered before
                s = self.state[key] = Reaction(self.line)
            else:
                self._decay(s, left)
        s.target, s.rate = s.rate, s.rate - (s.rate * s.alpha >> 13)
        s.since, s.bytes, s.timer_stage, s.byte_stage = at, 0, 0, 0
        s.alpha += self._share(4095 - s.alpha)
        s.rate = max(s.rate, self.p["rate_min"], 1)
        self._settle(qp)
        return True

    # -- who has which row ---------------------------------------------------------------------------

    def _key(self, qp):
        return SHARED if qp in self.sharing else qp

    def _room(self):
        return not self.pool or len(self.state.keys() - {SHARED}) < self.pool - 2

    def _left_behind(self, qp):
        """The row that the QP shares was released at an event of another one."""
        if qp in self.sharing and SHARED not in self.state:
            del self.sharing[qp]
            return True
        return False

    def _move_out(self, qp):
        """From the shared row to one of its own, if there is one. Returns whether the QP was there."""
        shared = qp in self.sharing
        if shared and self._room():
            del self.sharing[qp]
            self.state[qp] = replace(self.state[SHARED])
        return shared

    def _release(self, qp):
        del self.state[self._key(qp)]
        self.sharing.pop(qp, None)

    # -- its parts -----------------------------------------------------------------------------------

    def _is_stale(self, key, time):
        return key in self.state and ((time >> 12) - self.state[key].since) % 4096 >= self.IDLE

    def _full(self, s):
        return s.rate >= self.line

    def _settle(self, qp):
        """The end of an event: a QP that is back at the line rate is not congested any more."""
        if self._full(self.state[self._key(qp)]):
            self._release(qp)
            return True
        if qp in self.sharing:
            self.sharing[qp] = interval_of(self.state[SHARED].rate)
        return False

    def _timers(self, s, time):
        """Make good what has run out; returns the number of steps and the time that is left over."""
        elapsed = ((time >> 12) - s.since) % 4096
        period, runs = self.p["increase_timer"], 0
        while not self._full(s) and elapsed >= period:
            if runs == self.MAX_RUNS:
                s.since = (time >> 12) % 4096
                return runs, -1
            self._decay(s, period)
            self._step(s)
            s.timer_stage += s.timer_stage <= self.p["fast_steps"]
            s.since = (s.since + period) % 4096
            elapsed -= period
            runs += 1
        return runs, elapsed

    def _decay(self, s, span):
        ticks = 0
        while span >= self.p["alpha_timer"] and ticks < self.MAX_TICKS:
            s.alpha -= self._share(s.alpha)
            span -= self.p["alpha_timer"]
            ticks += 1

    def _step(self, s):
        f = self.p["fast_steps"]
        stages = [s.timer_stage] + ([s.byte_stage] if self.p["byte_counter"] else [])
        gain = 0 if max(stages) < f else self.p["rate_hai"] if min(stages) > f else self.p["rate_ai"]
        s.target = min(s.target + gain, self.line)
        s.rate = (s.rate + s.target + 1) // 2


class FixedRateModel:
    """Every QP has the interval that it was given."""

    def __init__(self):
        self.intervals = {}

    def set(self, qp, interval):
        self.intervals[qp] = interval % (1 << 30)

    def reset(self, qp):
        self.intervals.pop(qp, None)

    def interval(self, qp):
        return self.intervals.get(qp, 0)


class PacerModel:
    """Times are kept exactly as long as they matter: as whole numbers of 1/64 ns that don't wrap."""

    CHARGE = 1 << 22        #: ns; no charge is longer, and who owes as much is not charged

    def __init__(self, burst=8192):
        self.burst = burst
        self.next, self.intervals = {}, {}

    def rate(self, qp, interval):
        """The interval as the card keeps it: ten significant bits."""
        if 0 < interval < 512:
            interval += 512
        cut = max(0, interval.bit_length() - 10)
        self.intervals[qp] = interval >> cut << cut

    def paced(self, qp):
        return self.intervals.get(qp, 0) > 0

    def wait(self, qp, now):
        return max(0, (self.next.get(qp, 0) >> 6) - now) if self.paced(qp) else 0

    def charge(self, qp, size, now):
        if not self.paced(qp):
            self.next[qp] = now << 6
            return
        ahead = (self.next.get(qp, 0) >> 6) - now
        start = self.next.get(qp, 0) if ahead >= -self.burst else now - self.burst << 6
        if ahead < self.CHARGE:
            start += min(size * self.intervals[qp] + 512 >> 10, self.CHARGE << 6)
        self.next[qp] = start

    def reset(self, qp, now):
        self.next[qp] = now << 6


class NotificationModel:
    """Which marks cause a CNP. `pool`: QPs that may have caused one within the interval."""

    TICK = 128

    def __init__(self, interval=50_000, pool=512):
        self.interval, self.pool = interval, pool
        self.until = {}         # QP: the tick that must be past

    def forget(self, now):
        """What the card does by itself, some cycles after it may."""
        gone = [qp for qp, tick in self.until.items() if now // self.TICK > tick]
        for qp in gone:
            del self.until[qp]
        return gone

    def marked(self, qp, now):
        """True: a CNP. None: there should be one, but there is no room."""
        self.forget(now)
        if qp in self.until:
            return False
        if len(self.until) >= self.pool:
            return None
        self.until[qp] = now // self.TICK + self.interval // self.TICK + 1
        return True
