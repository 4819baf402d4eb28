"""Host memory and the regions that the card may touch in it."""

from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["Memory", "Region", "spans"]


@dataclass(frozen=True)
class Region:
    key: int
    va: int
    length: int
    access: frozenset
    pd: int
    delta: int = 0          #: where it lies in memory, less va


def spans(ranges):
    """Sorted disjoint (start, end) that cover the (start, length) of `ranges`; ranges that share a byte become one."""
    out = []
    for start, length in sorted(ranges):
        if out and start < out[-1][1]:
            out[-1][1] = max(out[-1][1], start + length)
        else:
            out.append([start, start + length])
    return [tuple(span) for span in out]


class Memory:
    """Bytes at the addresses of `ranges`; any access outside is an error of the caller, never silent."""

    def __init__(self, ranges):
        self._spans = spans(ranges)
        self._starts = [start for start, _ in self._spans]
        self._bytes = [bytearray(end - start) for start, end in self._spans]

    def _find(self, address, size):
        i = bisect_right(self._starts, address) - 1
        if i < 0 or address + size > self._spans[i][1]:
            raise IndexError(f"{size} bytes at {address:#x} are outside the memory")
        at = address - self._starts[i]
        return self._bytes[i], slice(at, at + size)

    def write(self, address, data):
        block, where = self._find(address, len(data))
        block[where] = data

    def read(self, address, size):
        block, where = self._find(address, size)
        return bytes(block[where])
