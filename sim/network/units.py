"""Time is an integer number of picoseconds: a byte takes 80 of them at 100 Gbit/s, so nothing is ever rounded there."""

from .errors import NetworkError

__all__ = ["NS", "US", "MS", "SECOND", "GBIT", "to_ps", "whole", "probability"]

NS = 1000
US = 1000 * NS
MS = 1000 * US
SECOND = 1000 * MS
GBIT = 10**9


def to_ps(ns, what):
    """Nanoseconds (an integer or a fraction, not negative) as picoseconds, rounded once, here."""
    try:
        ps = round(ns * NS)
    except (TypeError, ValueError, OverflowError):
        raise NetworkError(f"{what}={ns!r} is not a time in ns; give a number, for example {what}=500") from None
    if ps < 0:
        raise NetworkError(f"{what}={ns!r} is negative")
    return ps


def whole(value, what, low=0):
    """An integer not below `low`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise NetworkError(f"{what}={value!r} is not a whole number")
    if value < low:
        raise NetworkError(f"{what}={value} is below {low}")
    return value


def probability(value, what):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise NetworkError(f"{what}={value!r} is not a probability; give a number from 0 to 1")
    return float(value)
