"""Impairments for some frames only: of one pair of cards, of those that a function picks, of the k-th such frame."""

from .errors import NetworkError
from .impair import Impairments
from .units import whole

__all__ = ["Rule"]


class Rule:
    """Made by :meth:`Network.rule`. `seen`: frames that matched; `hits`: those of them that it was applied to."""

    def __init__(self, name, seed, lanes, source, match, nth, impair):
        if not impair:
            raise NetworkError("a rule without an impairment does nothing; give loss=1, for example")
        if match is not None and not callable(match):
            raise NetworkError(f"match={match!r} is not a function of a frame")
        self.name, self.lanes, self._source, self._match = name, lanes, source, match
        if nth is None or isinstance(nth, int):
            nth = None if nth is None else (nth,)
        self._nth = None if nth is None else frozenset(whole(k, "nth", 1) for k in nth)
        self._impairments = Impairments(seed, name, cause=name, **impair)
        self.active = True
        self.seen = self.hits = 0

    def __repr__(self):
        return f"<Rule {self.name}: {self.hits} of {self.seen}>"

    def set(self, **knobs):
        self._impairments.set(**knobs)

    def befall(self, data, damaged, source, lane):
        alone = ((0, data, damaged),)
        if not self.active or self._source is not None and source is not self._source:
            return alone
        if self._match is not None and not self._match(data):
            return alone
        self.seen += 1
        if self._nth is not None and self.seen not in self._nth:
            return alone
        self.hits += 1
        return self._impairments.befall(data, damaged, source, lane)
