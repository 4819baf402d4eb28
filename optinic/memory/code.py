"""Check bits for a row of memory: parity, and a code that corrects one wrong bit and detects two.

The code is Hsiao's (M. Y. Hsiao, "A class of optimal minimum odd-weight-column SEC-DED codes", IBM J. Res. Dev. 14, 1970), made for any
width: each data bit has a column of odd weight, no two alike, the lightest first and the check bits evenly loaded, so that the
XOR trees are small and of one depth. Check bits have the columns of weight one. Two wrong bits give the sum of two odd columns, which
is even and not zero; one gives its own column.
"""

from functools import cache, reduce
from itertools import combinations
from math import comb
from operator import xor

from amaranth.hdl import Cat, Const, Signal

__all__ = ["PROTECTIONS", "check_bits", "columns", "check_of", "encode", "Decoded", "decode"]

PROTECTIONS = ("none", "parity", "secded")


@cache
def check_bits(width, protection):
    """How many bits a row of `width` bits of data gets."""
    if protection == "none":
        return 0
    if protection == "parity":
        return 1
    r = 3
    while sum(comb(r, w) for w in range(3, r + 1, 2)) < width:
        r += 1
    return r


@cache
def columns(width):
    """For each data bit the set of check bits that it is in, as a number."""
    r, load, found = check_bits(width, "secded"), None, []
    load = [0] * r
    for weight in range(3, r + 1, 2):
        left = [sum(1 << i for i in c) for c in combinations(range(r), weight)]
        if len(left) <= width - len(found):
            chosen = left
        else:
            chosen = []         # of the last weight only some are needed: those that load the check bits evenly
            while len(found) + len(chosen) < width:
                best = min(left, key=lambda c: (max(load[i] for i in range(r) if c >> i & 1),
                                                sum(load[i] for i in range(r) if c >> i & 1), c))
                left.remove(best)
                chosen.append(best)
                for i in range(r):
                    load[i] += best >> i & 1
            return (*found, *chosen)
        for c in chosen:
            for i in range(r):
                load[i] += c >> i & 1
        found += chosen
        if len(found) == width:
            break
    return tuple(found)


def check_of(data, width, protection):
    """The check bits of a number."""
    if protection == "parity":
        return data.bit_count() & 1
    check = 0
    if protection == "secded":
        for i, column in enumerate(columns(width)):
            check ^= column if data >> i & 1 else 0
    return check


def _members(bits, width, protection):
    """For each check bit the bits of data that it is the parity of."""
    if protection == "parity":
        return [bits]
    return [[bit for bit, column in zip(bits, columns(width)) if column >> i & 1] for i in range(check_bits(width, protection))]


def _tree(m, bits, name):
    """Their parity, in groups of six that are a LUT each. Left to itself the mapping shares parts between trees, for less area and
    half as many levels again."""
    level = 0
    while len(bits) > 1:
        groups = Signal(-(-len(bits) // 6), name=f"{name}_level{level}", attrs={"keep": 1})
        m.d.comb += groups.eq(Cat(reduce(xor, bits[i:i + 6]) for i in range(0, len(bits), 6)))
        bits, level = [groups[i] for i in range(len(groups))], level + 1
    return bits[0]


def encode(data, protection):
    """`data`, a value, and above it its check bits."""
    if protection == "none":
        return data
    members = _members([data[i] for i in range(len(data))], len(data), protection)
    return Cat(data, (Cat(some).xor() if some else Const(0, 1) for some in members))


class Decoded:
    """`data`, and the `syndrome`, of which :meth:`corrected` and :meth:`detected` may be asked now or, kept in a register, later.
    Of more than two wrong bits (of parity, of an even number) nothing is promised."""

    def __init__(self, data, syndrome, protection):
        self.data, self.syndrome, self._parity = data, syndrome, protection == "parity"

    def corrected(self, syndrome):
        """One bit of the row was wrong, and isn't in the data."""
        return Const(0, 1) if self._parity else syndrome.xor()

    def detected(self, syndrome):
        """More was wrong than the code can correct."""
        return syndrome[0] if self._parity else syndrome.any() & ~syndrome.xor()


def decode(m, word, width, protection, *, name, zero=False):
    """What `word`, as encode makes it, holds. With `zero` a row that can't be corrected reads as zeroes. Combinational."""
    raw, check = word[:width], word[width:]
    syndrome = Signal(len(check), name=f"{name}_syndrome")
    members = _members([raw[i] for i in range(width)], width, protection)
    m.d.comb += syndrome.eq(Cat(_tree(m, [*some, check[i]], f"{name}_check{i}") for i, some in enumerate(members)))
    found = Decoded(Signal(width, name=f"{name}_data"), syndrome, protection)
    data = raw if protection == "parity" else raw ^ Cat(syndrome == column for column in columns(width))
    m.d.comb += found.data.eq(data & (~found.detected(syndrome)).replicate(width) if zero else data)
    return found
