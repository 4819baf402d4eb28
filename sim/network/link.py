"""A link is two lanes; a lane is a transmitter with its queue, the wire behind it, and what happens on the wire."""

from collections import Counter
from heapq import heappush
import random

from .errors import NetworkError
from .impair import IMPAIRMENTS, Impairments, Jitter
from .packet import Packet
from .queue import Queue
from .units import to_ps, whole

__all__ = ["Link", "Lane"]


KNOBS = ("rate", "delay_ns", "overhead_bytes", "min_frame_bytes", "queue_bytes", "ecn", "record", "jitter_ns",
         "jitter_keeps_order")


class Lane:
    """One direction of a link, from `source` to `target` (ports or switches).

    A frame of n bytes (without FCS) takes max(n, 60) + `overhead_bytes` bytes on the wire, the 24 being preamble, FCS and
    gap; then `delay_ns`. One frame at a time; those that come meanwhile wait, in order. A frame that is lost has taken its
    time on the wire all the same.
    """

    def __init__(self, net, number, source, target, *, rate, delay_ns, overhead_bytes=24, min_frame_bytes=60, queue_bytes=None,
                 ecn=None, jitter_ns=None, jitter_keeps_order=True, record=False, **impair):
        unknown = [name for name in impair if name not in IMPAIRMENTS]
        if unknown:
            raise NetworkError(f"unknown knob {unknown[0]!r} of a link; known are {', '.join((*KNOBS, *IMPAIRMENTS))}")
        self.net, self.id, self.source, self.target = net, number, source, target
        self.name = f"{source.name}>{target.name}"
        self.rate = whole(rate, "rate", 1)
        self.delay = to_ps(delay_ns, "delay_ns")
        self.overhead_bytes = whole(overhead_bytes, "overhead_bytes")
        self.min_frame_bytes = whole(min_frame_bytes, "min_frame_bytes")
        self._wire_ps = {}                  # by length
        # A card's own transmitter holds the card back, so there is nothing to count there unless somebody asks.
        self.queue = None
        if queue_bytes is not None or ecn is not None or record or source.queues:
            self.queue = Queue(lambda: net.now_ps, queue_bytes, ecn, random.Random(f"{net.seed}/{self.name}/ecn").random, record)
        self.impairments = Impairments(net.seed, self.name, **impair)
        self._jitter = None if jitter_ns in (None, 0) else Jitter(jitter_ns, net.seed, self.name)
        self._keeps_order = jitter_keeps_order
        self.rules = []
        self.up = True
        self.busy_until = 0                 # when the transmitter is free again
        self._last_arrival = 0
        self._count = 0                     # of arrivals scheduled: breaks ties between equal times
        self._heap = net._arrivals if target.is_port else net._events
        self.frames = self.bytes = 0        #: offered to this lane
        self.arrived = 0                    #: frames at the far end, copies too
        self.busy_ps = 0                    #: time for which the wire was in use
        self.dropped = Counter()            #: by cause
        self.changed = Counter()            #: corrupted, damaged, reordered, duplicated
        self.sent_taps, self.arrival_taps = [], []
        self.reverse = None

    def __repr__(self):
        return f"<Lane {self.name}>"

    def impair(self, **knobs):
        """Set impairments from now on; None or 0 switches one off."""
        self.impairments.set(**knobs)

    def wire_ps(self, size):
        """How long a frame of `size` bytes takes, rounded up to a picosecond."""
        found = self._wire_ps.get(size)
        if found is None:
            bits = 8 * (max(size, self.min_frame_bytes) + self.overhead_bytes)
            found = self._wire_ps[size] = -(-bits * 10**12 // self.rate)
        return found

    def offer(self, time, packet):
        """A frame is there to be sent, whole, at `time`."""
        data, source, damaged, begin = packet
        size = len(data)
        self.frames += 1
        self.bytes += size
        if not self.up:
            self.dropped["down"] += 1
            return
        queue = self.queue
        if queue is not None:
            level = queue.settle(time)
            if queue.limit is not None and level + size > queue.limit:
                self.dropped["tail"] += 1
                return
            if queue.ecn is not None and level > queue.ecn.kmin:
                data = queue.mark(data, level)
        # `begin` is before `time` for a frame whose beats a card has given out one by one: the wire has kept up with them.
        start = self.busy_until
        if start < begin:
            start = begin
        taken = self._wire_ps.get(size) or self.wire_ps(size)
        end = start + taken
        if end < time:
            end = time
        self.busy_until = end
        self.busy_ps += taken
        if queue is not None:
            queue.enter(size, end)
        if self.sent_taps:
            for tap in self.sent_taps:
                tap.record(end, data)
        arrival = end + self.delay
        if self._jitter is not None:
            arrival += self._jitter.draw()
            if self._keeps_order and arrival < self._last_arrival:
                arrival = self._last_arrival
            self._last_arrival = arrival
        if self.rules or self.impairments.any:
            self._on_the_wire(arrival, data, source, damaged)
            return
        self._count = count = self._count + 1
        heappush(self._heap, (arrival, self.id, count, self, Packet(data, source, damaged, arrival)))

    def _on_the_wire(self, arrival, data, source, damaged):
        copies = ((0, data, damaged),)
        for what in (self.impairments, *self.rules):
            copies = [(extra + more, data, damaged) for extra, before, broken in copies
                      for more, data, damaged in what.befall(before, broken, source, self)]
        for extra, data, damaged in copies:
            self._count += 1
            heappush(self._heap, (arrival + extra, self.id, self._count, self, Packet(data, source, damaged, arrival + extra)))

    def land(self, time, packet):
        """A frame has arrived at the far end."""
        self.arrived += 1
        if self.arrival_taps:
            for tap in self.arrival_taps:
                tap.record(time, packet[0])
        self.target.receive(time, packet, self)

    def counters(self):
        """dict: frames and bytes offered, frames arrived, changes by kind, drops by cause, and the queue's marks."""
        found = {"frames": self.frames, "bytes": self.bytes, "arrived": self.arrived, **self.changed, "dropped": dict(self.dropped)}
        if self.queue is not None:
            found |= {"queue_max": self.queue.most, "marked": self.queue.marked, "marked_before": self.queue.marked_before,
                      "not_capable": self.queue.not_capable}
        return found


class Link:
    """Both directions between two ports or switches: `lanes[0]` from the first to the second, `lanes[1]` back."""

    def __init__(self, there, back):
        self.lanes = (there, back)
        there.reverse, back.reverse = back, there

    def lane_from(self, end):
        for lane in self.lanes:
            if lane.source is end:
                return lane
        raise NetworkError(f"{end!r} is not an end of {self!r}")

    def impair(self, **knobs):
        """Set impairments of both directions."""
        for lane in self.lanes:
            lane.impair(**knobs)

    def set_up(self, up):
        """Cut the link (False): what is offered meanwhile is dropped as `down`; what is on the wire arrives."""
        for lane in self.lanes:
            lane.up = bool(up)

    def __repr__(self):
        return f"<Link {self.lanes[0].source.name} - {self.lanes[0].target.name}>"
