"""What can befall a frame on a wire. Each kind draws from a generator of its own: to switch one on leaves the others alone."""

import random

from .errors import NetworkError
from .units import probability, to_ps, whole

__all__ = ["IMPAIRMENTS", "Impairments", "Jitter"]

#: knob -> what it takes
IMPAIRMENTS = {
    "loss": "probability: lost, each frame for itself",
    "burst": "(p, r, loss) or (p, r): bursty loss after Gilbert and Elliott. Before each frame the state goes from good to bad "
             "with p, from bad to good with r; in the bad state a frame is lost with `loss`, by default 1, in the good one never",
    "corrupt": "probability, or (probability, bits): bits of the frame, anywhere, are inverted, unseen by the Ethernet FCS",
    "damage": "probability: arrives with a wrong FCS; a switch drops it, a card gets it marked by its MAC",
    "reorder": "(probability, ns) or (probability, (min, max)): arrives so much later, and so behind others",
    "duplicate": "probability, or (probability, ns): arrives twice, the copy so much later",
}


class Impairments:
    """The knobs of IMPAIRMENTS; `name` makes the seeds of the generators, drops are counted under `cause` or their kind."""

    def __init__(self, seed, name, cause=None, **knobs):
        self._streams = {}
        self._seed, self._name = seed, name
        self._cause = lambda kind: cause or kind
        self.bad = False                    # state of Gilbert and Elliott's channel
        for kind in IMPAIRMENTS:
            setattr(self, kind, None)
        self.set(**knobs)

    def random(self, kind):
        """The generator of one kind; it goes on where it was when knobs change."""
        if kind not in self._streams:
            self._streams[kind] = random.Random(f"{self._seed}/{self._name}/{kind}").random
        return self._streams[kind]

    def set(self, **knobs):
        for name, value in knobs.items():
            if name not in IMPAIRMENTS:
                raise NetworkError(f"unknown impairment {name!r}; known are {', '.join(IMPAIRMENTS)}")
            setattr(self, name, getattr(self, f"_read_{name}")(value) if value not in (None, 0) else None)
        self.any = any(getattr(self, kind) is not None for kind in IMPAIRMENTS)

    # -- values as they are kept: what a switched-off knob would be is None -----------------------------

    @staticmethod
    def _tuple(name, value, sizes):
        if not isinstance(value, (tuple, list)) or len(value) not in sizes:
            raise NetworkError(f"{name}={value!r}; it takes {IMPAIRMENTS[name]}")
        return value

    def _read_loss(self, value):
        return probability(value, "loss")

    def _read_damage(self, value):
        return probability(value, "damage")

    def _read_burst(self, value):
        p, r, *bad = self._tuple("burst", value, (2, 3))
        return probability(p, "burst p"), probability(r, "burst r"), probability(bad[0] if bad else 1, "burst loss")

    def _read_corrupt(self, value):
        chance, bits = self._tuple("corrupt", value, (2,)) if isinstance(value, (tuple, list)) else (value, 1)
        return probability(chance, "corrupt"), whole(bits, "corrupt bits", 1)

    def _read_reorder(self, value):
        chance, extra = self._tuple("reorder", value, (2,))
        low, high = self._tuple("reorder", extra, (2,)) if isinstance(extra, (tuple, list)) else (extra, extra)
        low, high = to_ps(low, "reorder"), to_ps(high, "reorder")
        if low > high:
            raise NetworkError(f"reorder={value!r}: {extra[0]} ns is more than {extra[1]} ns")
        return probability(chance, "reorder"), low, high

    def _read_duplicate(self, value):
        chance, extra = self._tuple("duplicate", value, (2,)) if isinstance(value, (tuple, list)) else (value, 0)
        return probability(chance, "duplicate"), to_ps(extra, "duplicate")

    # -- a frame ----------------------------------------------------------------------------------------

    def befall(self, data, damaged, source, lane):
        """What becomes of a frame on `lane`: (delay in ps, data, damaged) for each copy that arrives. Counts there."""
        dropped, changed = lane.dropped, lane.changed
        if self.loss is not None and self.random("loss")() < self.loss:
            dropped[self._cause("loss")] += 1
            return ()
        if self.burst is not None:
            p, r, lost = self.burst
            draw = self.random("burst")
            if draw() < (r if self.bad else p):
                self.bad = not self.bad
            if self.bad and (lost == 1 or draw() < lost):
                dropped[self._cause("burst")] += 1
                return ()
        if self.corrupt is not None and data and self.random("corrupt")() < self.corrupt[0]:
            data = self._flip(data, self.corrupt[1])
            changed["corrupted"] += 1
        if self.damage is not None and self.random("damage")() < self.damage:
            damaged = True
            changed["damaged"] += 1
        extra = 0
        if self.reorder is not None:
            chance, low, high = self.reorder
            draw = self.random("reorder")
            if draw() < chance:
                extra = low + int(draw() * (high - low + 1))
                changed["reordered"] += 1
        if self.duplicate is not None and self.random("duplicate")() < self.duplicate[0]:
            changed["duplicated"] += 1
            return (extra, data, damaged), (extra + self.duplicate[1], data, damaged)
        return ((extra, data, damaged),)

    def _flip(self, data, bits):
        out, draw = bytearray(data), self.random("corrupt")
        chosen = set()
        while len(chosen) < min(bits, 8 * len(out)):        # different ones, so that none is inverted back
            chosen.add(int(draw() * 8 * len(out)))
        for bit in chosen:
            out[bit // 8] ^= 1 << bit % 8
        return bytes(out)


class Jitter:
    """A random delay of each frame: `n` or ("uniform", low, high), ("exponential", mean), ("normal", mean, sigma), in ns.

    A normal one below 0 counts as 0.
    """

    SIZES = {"uniform": 2, "exponential": 1, "normal": 2}

    def __init__(self, spec, seed, name):
        spec = ("uniform", 0, spec) if not isinstance(spec, (tuple, list)) else tuple(spec)
        if not spec or spec[0] not in self.SIZES or len(spec) != 1 + self.SIZES[spec[0]]:
            raise NetworkError(f'jitter_ns={spec!r} is not a number, ("uniform", low, high), ("exponential", mean) or '
                               f'("normal", mean, sigma)')
        self.kind, values = spec[0], [to_ps(v, "jitter_ns") for v in spec[1:]]
        if self.kind == "uniform" and values[0] > values[1]:
            raise NetworkError(f"jitter_ns={spec!r}: the lower bound is above the upper one")
        self._values = values
        self._rng = random.Random(f"{seed}/{name}/jitter")

    def draw(self):
        if self.kind == "uniform":
            low, high = self._values
            return low + int(self._rng.random() * (high - low + 1))
        if self.kind == "exponential":
            return round(self._rng.expovariate(1) * self._values[0])
        return max(0, round(self._rng.gauss(*self._values)))
