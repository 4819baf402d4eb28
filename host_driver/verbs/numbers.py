"""Which queue pair numbers, generations, keys, protection domains, completion queues and peers are taken."""

from collections import deque
import random

from optinic.abi.regions import RegionError

from ..errors import ResourceError

__all__ = ["Numbers", "Peers"]

KEY_TRIES = 256


class Numbers:
    """Hands out the card's numbers. What can be seen on the wire begins at random, by `seed` if given, so that packets for a
    driver that has died don't fit into the life of this one: the bits of a QPN above its index, generations, and keys."""

    def __init__(self, card, seed=None):
        rng = random.Random(seed)
        self._card = card
        self._bits = max(1, (card.num_qps - 1).bit_length())
        self._high = rng.randrange(1, 1 << 24 - self._bits) << self._bits
        self._qps, self._cqs = deque(range(card.num_qps)), deque(range(card.num_cqs))
        self._generation = [rng.randrange(256) for _ in range(card.num_qps)]
        self._pds = deque(range(1, 1 << 16))
        self._key, self._salt = rng.randrange(1 << 24), rng.randrange(1, 256)
        self._psns = rng

    @staticmethod
    def _take(free, what, knob):
        if not free:
            raise ResourceError(f"all {what} of the card are taken; close some, or generate the card with more ({knob})")
        return free.popleft()

    def qpn(self):
        """One that has been free for the longest time."""
        return self._high | self._take(self._qps, "queue pairs", "num_qps")

    def free_qpn(self, qpn):
        self._qps.append(self._card.qp_index(qpn))

    def generation(self, qpn):
        """That of the next life of the queue pair."""
        index = self._card.qp_index(qpn)
        self._generation[index] = (self._generation[index] + 1) % 256
        return self._generation[index]

    def psn(self):
        """The first one of a life: far from those of the one before, by all likelihood."""
        return self._psns.randrange(1 << 24)

    def cq(self):
        return self._take(self._cqs, "completion queues", "num_cqs")

    def free_cq(self, index):
        self._cqs.append(index)

    def pd(self):
        return self._take(self._pds, "65535 protection domains", "the field has 16 bits")

    def free_pd(self, number):
        self._pds.append(number)

    def register(self, add):
        """Call `add(key)` with a key that nobody had for long, until the region table has a place for it; the key."""
        for _ in range(KEY_TRIES):
            self._key = (self._key + 1) % (1 << 24)
            key = self._key << 8 | self._salt
            try:
                add(key)
                return key
            except RegionError:
                continue
        raise ResourceError(f"the card has no place for one more memory region: {len(self._card.slots)} of "
                            f"{self._card.num_regions} are in use; close some, or generate the card with more (num_regions)")


class Peers:
    """The card's table of peers, shared by the queue pairs with the same one."""

    def __init__(self, card):
        self._card = card
        self._free = deque(range(card.num_peers))
        self._entries = {}          # address -> [index, users]

    def take(self, ip, mac, vlan):
        """The index of the entry with this address. It is written anew for each who comes: so a new life of a queue pair also mends a
        row that is not what it was."""
        entry = self._entries.get((ip, mac, vlan))
        if entry is None:
            if not self._free:
                raise ResourceError(f"all {self._card.num_peers} peers of the card are taken; close the queue pairs to some of "
                                    f"them, or generate the card with more (num_peers)")
            entry = [self._free[0], 0]
        self._card.set_peer(entry[0], ip, mac=mac, vlan=vlan)
        if not entry[1]:
            self._entries[ip, mac, vlan] = entry
            self._free.popleft()
        entry[1] += 1
        return entry[0]

    def give_back(self, index):
        address, entry = next((a, e) for a, e in self._entries.items() if e[0] == index)
        entry[1] -= 1
        if not entry[1]:
            del self._entries[address]
            self._free.append(index)
