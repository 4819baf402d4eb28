"""Handing out pieces of memory that is contiguous for the card: a first-fit allocator over one or more blocks."""

from bisect import insort
from dataclasses import dataclass

from ..errors import BackendError

__all__ = ["Block", "Blocks"]

GRAIN = 64


@dataclass(frozen=True)
class Block:
    """`memory`, a writable buffer, that the card finds at bus address `bus`."""
    bus: int
    memory: memoryview

    @property
    def end(self):
        return self.bus + len(self.memory)


class Blocks:
    """Memory for the card: alloc and free, and access by bus address."""

    def __init__(self, blocks):
        self.blocks = sorted(blocks, key=lambda b: b.bus)
        for block in self.blocks:
            if block.bus % GRAIN:
                raise BackendError(f"memory at bus address {block.bus:#x} is not aligned to {GRAIN} bytes")
        for a, b in zip(self.blocks, self.blocks[1:]):
            if a.end > b.bus:
                raise BackendError(f"memory at bus address {b.bus:#x} overlaps that at {a.bus:#x}")
        self._free = [(b.bus, b.end) for b in self.blocks]      # spans, sorted, not adjacent within a block
        self._taken = {}                                        # bus address -> end

    @property
    def largest(self):
        """Bytes of the largest free span."""
        return max((end - start for start, end in self._free), default=0)

    def alloc(self, length, align=4096):
        """Zeroed memory; its bus address."""
        align = max(align, GRAIN)
        for i, (start, end) in enumerate(self._free):
            at = -(-start // align) * align
            stop = at + -(-max(1, length) // GRAIN) * GRAIN
            if stop <= end:
                self._free[i:i + 1] = [span for span in ((start, at), (stop, end)) if span[0] < span[1]]
                self._taken[at] = stop
                self.view(at, stop - at)[:] = bytes(stop - at)
                return at
        raise BackendError(f"{length} bytes that are contiguous for the card are not to be had: the largest free piece has "
                           f"{self.largest}; give the backend more memory, or in larger pieces")

    def free(self, addr):
        """Give back what alloc gave."""
        end = self._taken.pop(addr, None)
        if end is None:
            raise BackendError(f"{addr:#x} is not the address of anything that was allocated")
        insort(self._free, (addr, end))
        starts = {b.bus for b in self.blocks}
        merged = []
        for span in self._free:
            if merged and merged[-1][1] == span[0] and span[0] not in starts:
                merged[-1] = (merged[-1][0], span[1])
            else:
                merged.append(span)
        self._free = merged

    def view(self, addr, n):
        """That memory itself, writable."""
        for block in self.blocks:
            if block.bus <= addr and addr + n <= block.end:
                return block.memory[addr - block.bus:addr - block.bus + n]
        raise BackendError(f"{addr:#x} to {addr + n:#x} is not memory of this backend")

    def read(self, addr, n):
        return bytes(self.view(addr, n))

    def write(self, addr, data):
        self.view(addr, len(data))[:] = data
