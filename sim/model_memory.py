"""The host's memory around a card that is a Python program: sparse bytes, and which of them the card may touch."""

from bisect import bisect_right

from sim.device import Fault, SimError

__all__ = ["HostMemory"]

PAGE_BITS = 16
PAGE = 1 << PAGE_BITS
MOST_FAULTS = 1000
FAILING = ("slverr", "decerr", "short")


class HostMemory:
    """All 2^64 addresses. The host's own accesses always succeed; those of the card (`card_read`, `card_write`) need a mapped
    window for all their bytes, or they fail as a whole and are kept in `faults`. `cycle` says when."""

    def __init__(self, cycle=lambda: 0):
        self._cycle = cycle
        self._pages = {}
        self._starts, self._ends = [], []       # of the windows: sorted, disjoint, not adjacent
        self._rules = []
        self._next_alloc, self._allocated = 1 << 32, {}
        self.faults = []
        self.totals = dict.fromkeys(("writes", "write_bytes", "writes_unanswered", "reads", "read_bytes", "reads_unanswered"), 0)

    # -- the host's accesses ------------------------------------------------------------------------

    def _pieces(self, addr, n):
        """(number of a page, slice in it) for each page that n bytes from addr on touch."""
        end = addr + n
        while addr < end:
            stop = min(end, (addr >> PAGE_BITS) + 1 << PAGE_BITS)
            yield (addr & (1 << 64) - 1) >> PAGE_BITS, slice(addr % PAGE, addr % PAGE + stop - addr)
            addr = stop

    def read(self, addr, n):
        if n <= PAGE - addr % PAGE:
            page = self._pages.get(addr >> PAGE_BITS)
            return bytes(n) if page is None else bytes(page[addr % PAGE:addr % PAGE + n])
        blank = bytes(PAGE)
        return b"".join(bytes(self._pages.get(number, blank)[where]) for number, where in self._pieces(addr, n))

    def write(self, addr, data):
        n = len(data)
        if n <= PAGE - addr % PAGE and (page := self._pages.get(addr >> PAGE_BITS)) is not None:
            page[addr % PAGE:addr % PAGE + n] = data
            return
        data = bytes(data)
        done = 0
        for number, where in self._pieces(addr, n):
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = bytearray(PAGE)
            size = where.stop - where.start
            page[where] = data[done:done + size]
            done += size

    def fill(self, addr, value, n):
        for number, where in self._pieces(addr, n):
            page = self._pages.get(number)
            if page is not None or value:
                page = self._pages.setdefault(number, bytearray(PAGE))
                page[where] = bytes([value]) * (where.stop - where.start)

    # -- what the card may touch --------------------------------------------------------------------

    def map(self, addr, length):
        if length:
            self._cut(addr, addr + length, True)

    def unmap(self, addr, length):
        if length:
            self._cut(addr, addr + length, False)

    def _cut(self, start, end, keep):
        """Take start ..< end out of the windows and, to `keep` it, put it in as one."""
        windows, before, after = [], start, end
        for s, e in zip(self._starts, self._ends):
            if e < start or s > end:
                windows.append((s, e))
            elif keep:
                before, after = min(before, s), max(after, e)
            else:
                windows += [(a, b) for a, b in ((s, start), (end, e)) if a < b]
        if keep:
            windows.append((before, after))
        windows.sort()
        self._starts, self._ends = [s for s, _ in windows], [e for _, e in windows]

    def alloc(self, length, align=4096):
        """Zeroed memory that the card may use, from 4 GiB upwards; followed by a page that it may not."""
        addr = -(-self._next_alloc // align) * align
        self._next_alloc = -(-(addr + length) // 4096) * 4096 + 4096
        self.fill(addr, 0, length)
        self.map(addr, length)
        self._allocated[addr] = length
        return addr

    def free(self, addr):
        """Take back what `alloc` gave: the card may not use it any more."""
        self.unmap(addr, self._allocated.pop(addr))

    # -- the card's accesses ------------------------------------------------------------------------

    def _may(self, addr, n, kind):
        i = bisect_right(self._starts, addr) - 1
        if i < 0 or addr + n > self._ends[i]:
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(Fault(self._cycle(), addr, n, kind))
            return False
        return not self._rules or not self._spoiled(addr, n, kind)

    def _spoiled(self, addr, n, kind):
        for rule in self._rules:
            start, end, kinds, left = rule
            if kind in kinds and addr < end and start < addr + n and left:
                rule[3] -= 1
                return True
        return False

    def card_read(self, addr, n):
        """IndexError if the bus refuses."""
        self.totals["reads"] += 1
        if not self._may(addr, n, "read"):
            raise IndexError(f"the bus refused {n} bytes at {addr:#x}")
        self.totals["read_bytes"] += n
        return self.read(addr, n)

    def card_write(self, addr, data):
        """Whether the bus took it."""
        self.totals["writes"] += 1
        if not self._may(addr, len(data), "write"):
            return False
        self.totals["write_bytes"] += len(data)
        self.write(addr, data)
        return True

    def inject(self, addr, length, action, *, on="read", amount=0, count=-1):
        """Refuse accesses that touch these bytes: the next `count` of them, or all. Times and lost answers have no meaning here."""
        if action not in FAILING:
            raise SimError(f"action {action!r} is not one of {', '.join(FAILING)}, which is what a model's bus can do")
        self._rules.append([addr, addr + length, ("read", "write") if on == "both" else (on,), count])

    def clear_injections(self):
        self._rules = []
