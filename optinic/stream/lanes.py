"""Masks over the lanes of a beat."""

from amaranth.hdl import Cat, Const, Value

__all__ = ["lane_mask"]


def lane_mask(value, lanes, rule):
    """Bit i is ``rule(i, value)``, for each of `lanes` lanes.

    Each bit is a table over all values, and so one LUT for up to six bits of `value`; comparators would become carry
    chains.
    """
    value = Value.cast(value)
    size = 1 << len(value)
    return Cat(Const(sum(rule(lane, v) << v for v in range(size)), size).bit_select(value, 1) for lane in range(lanes))
