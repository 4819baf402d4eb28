"""Captures with times in nanoseconds, in order of time although taps report in the order of events."""

from heapq import heappop, heappush
import struct

from .errors import NetworkError

__all__ = ["Capture"]

NANOSECOND_MAGIC, ETHERNET, SNAP = 0xA1B23C4D, 1, 1 << 18


class Capture:
    """A pcap file that grows as the network's time does; complete once it is closed."""

    def __init__(self, path):
        try:
            self._file = open(path, "wb")
        except OSError as error:
            raise NetworkError(f"{path} can't be written: {error.strerror}") from None
        self._file.write(struct.pack("<IHHiIII", NANOSECOND_MAGIC, 2, 4, 0, 0, SNAP, ETHERNET))
        self._waiting, self._count = [], 0
        self.frames = 0

    def record(self, time, data):
        self._count += 1
        heappush(self._waiting, (time, self._count, data))

    def flush(self, until=None):
        """Write what happened by `until`: nothing older can come any more."""
        while self._waiting and (until is None or self._waiting[0][0] <= until):
            time, _, data = heappop(self._waiting)
            second, ns = divmod(time // 1000, 10**9)
            self._file.write(struct.pack("<IIII", second, ns, len(data), len(data)) + data)
            self.frames += 1

    def close(self):
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
