"""The queue in front of a transmitter: its room, how full it is over time, and marks of congestion."""

from array import array
from dataclasses import dataclass
from collections import deque

import numpy as np

from .errors import NetworkError
from .units import probability, whole

__all__ = ["Ecn", "Queue", "mark_ce", "ecn_at"]

IPV4, IPV6, TAGS = b"\x08\x00", b"\x86\xdd", (b"\x81\x00", b"\x88\xa8")
NOT_ECT, CE = 0, 3


@dataclass(frozen=True)
class Ecn:
    """Mark never up to `kmin` bytes, always above `kmax`, between them with a probability that grows linearly to `pmax`."""
    kmin: int
    kmax: int
    pmax: float

    @classmethod
    def of(cls, value):
        """From None, an Ecn, or (kmin, kmax, pmax)."""
        if value is None or isinstance(value, cls):
            return value
        try:
            kmin, kmax, pmax = value
        except (TypeError, ValueError):
            raise NetworkError(f"ecn={value!r} is not (kmin, kmax, pmax); for example ecn=(5000, 200_000, 0.01)") from None
        return cls(kmin, kmax, pmax)

    def __post_init__(self):
        whole(self.kmin, "kmin"), whole(self.kmax, "kmax"), probability(self.pmax, "pmax")
        if self.kmin > self.kmax:
            raise NetworkError(f"kmin={self.kmin} is above kmax={self.kmax}")

    def chance(self, level):
        """Of a mark for a frame that finds `level` bytes waiting."""
        if level <= self.kmin:
            return 0.0
        if level > self.kmax:
            return 1.0
        return self.pmax * (level - self.kmin) / (self.kmax - self.kmin)


def ecn_at(frame):
    """(where the IP header begins, its version, its ECN field), or None if the frame isn't IP; one VLAN tag is skipped."""
    at, kind = 14, frame[12:14]
    if kind in TAGS:
        at, kind = 18, frame[16:18]
    if kind == IPV4 and len(frame) >= at + 20:
        return at, 4, frame[at + 1] & 3
    if kind == IPV6 and len(frame) >= at + 40:
        return at, 6, frame[at + 1] >> 4 & 3
    return None


def mark_ce(frame):
    """The frame with Congestion Experienced set: the same object if it is set already, None if the frame doesn't take it.

    The IPv4 checksum is updated by the difference (RFC 1624, equation 3), so a wrong one stays as wrong as it was. The
    ICRC leaves out the bits that change.
    """
    found = ecn_at(frame)
    if found is None or found[2] == NOT_ECT:
        return None
    at, version, ecn = found
    if ecn == CE:
        return frame
    out = bytearray(frame)
    if version == 6:
        out[at + 1] |= CE << 4
        return bytes(out)
    before = out[at] << 8 | out[at + 1]
    out[at + 1] |= CE
    after = out[at] << 8 | out[at + 1]
    checksum = (~(out[at + 10] << 8 | out[at + 11]) & 0xFFFF) + (~before & 0xFFFF) + after
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    checksum = ~((checksum & 0xFFFF) + (checksum >> 16)) & 0xFFFF
    out[at + 10], out[at + 11] = checksum >> 8, checksum & 0xFF
    return bytes(out)


class Queue:
    """Bytes of frames whose last bit hasn't been sent, the frame on the wire included.

    Overflow: a frame that doesn't fit whole into `limit` is dropped (drop-tail). `ecn` marks by what a frame finds in
    front of it. With `record`, every change is kept for :meth:`series`.
    """

    def __init__(self, now, limit=None, ecn=None, random=None, record=False):
        self._now = now                     # function: the network's time
        self.limit = None if limit is None else whole(limit, "queue_bytes", 1)
        self.ecn = Ecn.of(ecn)
        self._random = random
        self._leaving = deque()             # (when its last bit is sent, bytes)
        self.level = 0                      # as of `_since`
        self._since = self._start = 0
        self._area = 0                      # bytes x ps
        self.most = 0                       #: highest level since the last reset_stats
        self.marked = self.marked_before = self.not_capable = 0
        self._times = self._levels = None
        if record:
            self.record()

    def record(self):
        """From now on keep every change of the level."""
        if self._times is None:
            self._times, self._levels = array("q", [self._since]), array("q", [self.level])

    # -- what a lane does, in order of time -----------------------------------------------------------

    def settle(self, time):
        """Let go what was sent by `time`; returns the level."""
        leaving, level, since = self._leaving, self.level, self._since
        while leaving and leaving[0][0] <= time:
            end, size = leaving.popleft()
            self._area += level * (end - since)
            level, since = level - size, end
            if self._times is not None:
                self._times.append(end), self._levels.append(level)
        if time > since:
            self._area += level * (time - since)
            since = time
        self.level, self._since = level, since
        return level

    def enter(self, size, end):
        """A frame joins at the time of the last `settle`; it will have been sent at `end`."""
        self._leaving.append((end, size))
        self.level = level = self.level + size
        if level > self.most:
            self.most = level
        if self._times is not None:
            self._times.append(self._since), self._levels.append(level)

    def mark(self, frame, level):
        """The frame, with CE if its turn has come."""
        chance = self.ecn.chance(level)
        if chance < 1 and self._random() >= chance:
            return frame
        marked = mark_ce(frame)
        if marked is None:
            self.not_capable += 1
            return frame
        if marked is frame:
            self.marked_before += 1
        else:
            self.marked += 1
        return marked

    # -- what a test asks -----------------------------------------------------------------------------

    def bytes_now(self):
        return self.settle(self._now())

    def reset_stats(self):
        """Begin `most` and `mean` anew."""
        self.settle(self._now())
        self._start, self._area, self.most = self._since, 0, self.level

    def mean(self):
        """Mean level, weighted by time, since the last reset_stats."""
        self.settle(self._now())
        span = self._since - self._start
        return self._area / span if span else float(self.level)

    def series(self):
        """Two arrays, times in ps and the level from then on; needs `record`."""
        if self._times is None:
            raise NetworkError("the queue's length was not recorded; give record=True, or call record() first")
        self.settle(self._now())
        return np.array(self._times, np.int64), np.array(self._levels, np.int64)

    def stats(self, start, end, edges=None):
        """Of the recorded series between two times: dict with max, mean, percentiles p50, p99, each weighted by time, and
        with `edges` (bytes) a histogram: the share of time in each bin, numpy.histogram's convention."""
        if not start < end <= self._now():
            raise NetworkError(f"from {start} to {end} ps is not a span of time before now, {self._now()} ps")
        times, levels = self.series()
        first = max(0, int(np.searchsorted(times, start, "right")) - 1)
        last = int(np.searchsorted(times, end, "left"))
        times, levels = times[first:last], levels[first:last]
        spans = np.diff(np.append(np.maximum(times, start), end))
        order = np.argsort(levels, kind="stable")
        reached = np.cumsum(spans[order])
        at = lambda share: int(levels[order][min(len(order) - 1, int(np.searchsorted(reached, share * (end - start))))])
        found = {"max": int(levels[spans > 0].max(initial=0)), "mean": float((levels * spans).sum() / (end - start)),
                 "p50": at(0.5), "p99": at(0.99)}
        if edges is not None:
            found["histogram"] = np.histogram(levels, edges, weights=spans)[0] / (end - start)
        return found
