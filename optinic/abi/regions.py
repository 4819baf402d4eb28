"""Where in the region table a memory key lives: the hash of its two banks, and the software side of the cuckoo table.

No hardware library is imported here: the RTL takes its masks from :func:`row_masks`, the driver places keys with
:class:`RegionSlots`.
"""

__all__ = ["BANKS", "POLYNOMIALS", "RegionError", "RegionSlots", "region_row", "row_masks"]

BANKS = 2
KEY_BITS = 32

#: For a bank of 2^n rows: the polynomial over GF(2) of each bank, bit i the coefficient of x^i.
#:
#: The two of a size have no common factor and none has the factor x. So n key bits side by side reach all 2^n rows of
#: either bank, and keys that differ only within 2n bits side by side never share both rows: keys counted up in any
#: field of the key (index << 8, say) fill the table without a refusal, up to its last slot.
POLYNOMIALS = {
    2: (0x7, 0x5), 3: (0xb, 0xf), 4: (0x13, 0x17), 5: (0x3d, 0x31), 6: (0x61, 0x75), 7: (0x9d, 0xc1),
    8: (0x165, 0x171), 9: (0x265, 0x301), 10: (0x615, 0x4ed), 11: (0xc0b, 0xd2d), 12: (0x1909, 0x1b19),
    13: (0x2dfd, 0x21f1),
}


class RegionError(ValueError):
    """A key has no place in the region table, or is there already, or isn't there."""


def _polynomial(bank, rows):
    bits = rows.bit_length() - 1
    if rows != 1 << bits or bits not in POLYNOMIALS:
        raise RegionError(f"a bank of {rows} rows has no hash; sizes are powers of two from 4 to 8192")
    return POLYNOMIALS[bits][bank]


def region_row(bank, key, rows):
    """The row of `bank` (of `rows` rows) where `key` may live: the key as a polynomial, modulo the bank's polynomial."""
    polynomial = _polynomial(bank, rows)
    degree = polynomial.bit_length() - 1
    if not 0 <= key < 1 << KEY_BITS:
        raise RegionError(f"key {key:#x} does not fit {KEY_BITS} bits")
    for bit in reversed(range(degree, KEY_BITS)):
        if key >> bit & 1:
            key ^= polynomial << bit - degree
    return key


def row_masks(bank, rows):
    """One mask a row bit: bit j of ``region_row(bank, key, rows)`` is the parity of ``key & row_masks(bank, rows)[j]``."""
    columns = [region_row(bank, 1 << i, rows) for i in range(KEY_BITS)]
    return [sum((column >> j & 1) << i for i, column in enumerate(columns)) for j in range(rows.bit_length() - 1)]


class RegionSlots:
    """Which key is in which slot of the card's region table.

    A slot is (bank, row). `insert` and `remove` say what to write to the card and keep the account; they touch no card.
    """

    def __init__(self, num_regions):
        self.rows = num_regions // BANKS
        for bank in range(BANKS):
            _polynomial(bank, self.rows)
        self._key_at = {}       # slot -> key
        self._slot_of = {}      # key -> slot

    def __len__(self):
        return len(self._slot_of)

    def __contains__(self, key):
        return key in self._slot_of

    def keys(self):
        return self._slot_of.keys()

    def candidates(self, key):
        """The two slots where `key` may live."""
        return [(bank, region_row(bank, key, self.rows)) for bank in range(BANKS)]

    def slot(self, key):
        """Where `key` is."""
        if key not in self._slot_of:
            raise RegionError(f"key {key:#010x} is not in the region table")
        return self._slot_of[key]

    def insert(self, key):
        """Find a place for `key`; the writes that put it there: [(slot, key), ...], the last one for `key` itself.

        They must be done in this order. A key that has to make room is written to its new slot before anything
        overwrites its old one, so the card finds every key at every moment, for a while in two slots with one content.
        Raises RegionError, with nothing changed, if no arrangement of the keys has room for this one.
        """
        if key in self._slot_of:
            raise RegionError(f"key {key:#010x} is in the region table already")
        path = self._free_path(key)
        writes = []
        for target, source in zip(reversed(path), [*reversed(path[:-1]), None]):
            moved = key if source is None else self._key_at[source]
            writes.append((target, moved))
        for slot, moved in writes:
            self._key_at[slot] = moved
            self._slot_of[moved] = slot
        return writes

    def remove(self, key):
        """Forget `key`; the slot to be written as not valid."""
        slot = self.slot(key)
        del self._slot_of[key], self._key_at[slot]
        return slot

    def _free_path(self, key):
        """Slots from one where `key` may live to a free one, each one's key being at home in the next, too.

        The search sees every slot that can be reached, nearest first; if none is free, more keys than slots are at home
        there, so no arrangement would do.
        """
        came_from = {slot: None for slot in self.candidates(key)}
        frontier = list(came_from)
        for slot in frontier:       # grows while it is walked
            if slot not in self._key_at:
                path = [slot]
                while came_from[path[-1]] is not None:
                    path.append(came_from[path[-1]])
                return path[::-1]
            for other in self.candidates(self._key_at[slot]):
                if other not in came_from:
                    came_from[other] = slot
                    frontier.append(other)
        raise RegionError(
            f"no room for key {key:#010x}: all {len(came_from)} slots that it could free are taken ({len(self)} of "
            f"{BANKS * self.rows} slots are in use); choose another key, or raise num_regions")
