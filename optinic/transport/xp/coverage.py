"""The coverage sum: whether the pieces of a message tile it, in one word of state instead of a bitmap.

For any function h, the sum of h(end) - h(start) over pieces that tile [0, n) is h(n) - h(0), because neighbours cancel. A
byte count is the case h(x) = x, and a duplicate that makes up for a loss fools it. Here h mixes its argument (XOR matrix,
addition, XOR matrix), so that a wrong set of pieces passes with a chance of about 2^-32; the tracker demands that both agree.
"""

import random

from amaranth.hdl import Module, Signal, Cat
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["mix", "Coverage"]

MASK = 0xFFFF_FFFF


def _matrix(seed):
    """32 row masks of an invertible 32x32 matrix over GF(2) with five ones a row (an even count could not be invertible): one LUT an output bit."""
    rng = random.Random(seed)
    while True:
        rows = [sum(1 << b for b in rng.sample(range(32), 5)) for _ in range(32)]
        if _rank(rows) == 32:
            return rows


def _rank(rows):
    basis = {}
    for row in rows:
        while row and row.bit_length() in basis:
            row ^= basis[row.bit_length()]
        if row:
            basis[row.bit_length()] = row
    return len(basis)


_FIRST, _SECOND = _matrix("coverage-1"), _matrix("coverage-2")
_ROTATE = 11


def _multiply(rows, x):
    return sum(((x & row).bit_count() & 1) << i for i, row in enumerate(rows))


def mix(x):
    """h(x) - h(0) of the module's docstring, 32 bits; mix(0) is 0."""
    y = _multiply(_FIRST, x & MASK)
    z = y + (y << _ROTATE | y >> 32 - _ROTATE) & MASK
    return _multiply(_SECOND, z)


class Coverage(wiring.Component):
    """What a piece adds to the coverage sum, and what is then missing if it is the message's first.

    `delta` = h(offset + length) - h(offset); `rest` = h(msg_len) - h(0) - delta. Latency ``LATENCY`` cycles, one piece a
    cycle, never stalls.
    """

    LATENCY = 6

    def __init__(self, length_shape):
        super().__init__({
            "offset": In(32), "length": In(length_shape), "msg_len": In(32), "delta": Out(32), "rest": Out(32),
        })

    def elaborate(self, platform):
        m = Module()

        def reg(value, name):
            r = Signal(32, name=name, reset_less=True)
            m.d.sync += r.eq(value)
            return r

        def xor(rows, x):
            bits = []
            for row in rows:
                picked = [x[i] for i in range(32) if row >> i & 1]
                bits.append(Cat(picked).xor())
            return Cat(bits)

        hashes = []
        start, total = reg(self.offset, "start"), reg(self.msg_len, "total")
        end = reg(self.offset + self.length, "end")
        for name, x in ("start", start), ("end", end), ("total", total):
            y = reg(xor(_FIRST, x), f"{name}_y")
            z = reg(y + y.rotate_left(_ROTATE), f"{name}_z")
            hashes.append(reg(xor(_SECOND, z), f"{name}_h"))
        delta, whole = reg(hashes[1] - hashes[0], "delta_r"), reg(hashes[2], "whole")
        m.d.sync += [self.delta.eq(delta), self.rest.eq(whole - delta)]
        return m
