"""The neighbour table: addresses on the link, and the stations that have them."""

from dataclasses import dataclass

__all__ = ["Neighbour", "Table"]

TAG_NUMBER = 0xFFF      # of a VLAN tag; the rest is priority


@dataclass
class Neighbour:
    """`mac` is six bytes, None while it is being asked for. `since_ns`: NIC time at which it was last heard of."""
    ip: object
    vlan: int
    mac: bytes = None
    since_ns: int = 0
    static: bool = False


class Table:
    """At most `room` entries; for a new one the entry that has been silent for longest goes (never a static one, nor one that is
    being asked for). An entry is believed for `lifetime_ns`."""

    def __init__(self, room=256, lifetime_ns=60_000_000_000):
        self.room, self.lifetime_ns = room, lifetime_ns
        self._entries = {}

    @staticmethod
    def _key(ip, vlan):
        return ip, None if vlan is None else vlan & TAG_NUMBER

    def get(self, ip, vlan):
        """The entry whatever its age, or None."""
        return self._entries.get(self._key(ip, vlan))

    def fresh(self, ip, vlan, now_ns):
        """The MAC address, if there is one that is still believed."""
        entry = self.get(ip, vlan)
        if entry and entry.mac and (entry.static or now_ns - entry.since_ns < self.lifetime_ns):
            return entry.mac
        return None

    def put(self, ip, vlan, mac, now_ns, static=False):
        """A new entry, or what is now known of an old one. Nothing that is heard changes a static entry. Returns the entry, None if
        there is no room."""
        key = self._key(ip, vlan)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self.room and not self._make_room():
                return None
            entry = self._entries[key] = Neighbour(*key)
        if static or not entry.static:
            entry.mac, entry.since_ns, entry.static = mac, now_ns, static
        return entry

    def _make_room(self):
        silent = [(e.since_ns, key) for key, e in self._entries.items() if not e.static and e.mac]
        if not silent:
            return False
        del self._entries[min(silent, key=lambda pair: pair[0])[1]]
        return True

    def forget(self, ip, vlan):
        self._entries.pop(self._key(ip, vlan), None)

    def __iter__(self):
        return iter(self._entries.values())

    def __len__(self):
        return len(self._entries)
