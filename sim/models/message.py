"""The open message of a queue pair: which bytes of it are in memory."""

from bisect import bisect_right

__all__ = ["Message"]


class Message:
    """Exact coverage: complete means that every byte was placed once, and none twice."""

    def __init__(self):
        self.placed = None      # the last packet that was placed
        self.byte_len = 0       # bytes placed, those placed twice counted twice
        self.doubled = False
        self._starts, self._ends = [], []

    def place(self, packet):
        self.placed = packet
        size = len(packet.payload)
        self.byte_len = self.byte_len + size & 0xFFFF_FFFF
        if size:
            self._cover(packet.offset, packet.offset + size)

    def _cover(self, start, end):
        i = bisect_right(self._starts, start)
        if i and self._ends[i - 1] > start or i < len(self._starts) and self._starts[i] < end:
            self.doubled = True
            return
        self._starts.insert(i, start)
        self._ends.insert(i, end)

    @property
    def complete(self):
        # Pieces that don't overlap and lie in the message fill it when their lengths add up.
        covered = sum(self._ends) - sum(self._starts)
        return self.placed is not None and not self.doubled and covered == self.placed.msg_len
