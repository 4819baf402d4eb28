"""The network: who is connected with whom, what is under way, and time.

Each event is one frame at one place: (time, number of the place, count there). That order, and generators of their own for
every lane and kind of fault, make a run the same however the calls to `inject` and `advance` are cut up.
"""

from collections import Counter, deque
from heapq import heappop, heappush
from typing import NamedTuple

from .errors import NetworkError
from .link import Lane, Link
from .packet import Packet
from .pcap import Capture
from .rules import Rule
from .switch import Switch

__all__ = ["Network", "Port", "Delivery"]


class Delivery(NamedTuple):
    time_ps: int        #: when the last bit arrived
    port: int
    frame: bytes
    damaged: bool       #: its FCS is wrong


class Port:
    """Where a card is plugged in. `out` and `into` are the lanes from and to it."""

    is_port, queues = True, False

    def __init__(self, net, index, name, number):
        self.net, self.index, self.name, self.id = net, index, name, number
        self.out = self.into = None
        self.injected = self.delivered = 0

    def __repr__(self):
        return f"<Port {self.index} {self.name}>"

    def land(self, time, packet):
        """A frame from the card is whole."""
        self.out.offer(time, packet)

    def receive(self, time, packet, lane):
        self.delivered += 1


class Network:
    """Ports, switches and links, without loops; see docs/network.md. All that is random follows from `seed`."""

    def __init__(self, seed=1):
        self.seed = seed
        self.now_ps = 0
        self.lookahead_ps = 0           #: a frame that arrives at a port up to so much after `now_ps` is known now
        self.ports, self.switches, self.links, self.lanes, self.rules = [], [], [], [], []
        self.flooded = 0                # copies that switches made
        self._names, self._group = {}, {}
        self._events, self._arrivals = [], []       # heaps: at switches and where cards send; at ports
        self._early = deque()                       # told of already by `advance`, not arrived yet
        self._captures = []

    # -- building -------------------------------------------------------------------------------------

    def _register(self, node, name):
        if name in self._names:
            raise NetworkError(f"there is a {name!r} already")
        self._names[name] = node
        self._group[node] = {node}
        return node

    def port(self, name=None):
        """A new port; its `index` counts from 0."""
        index = len(self.ports)
        name = f"port{index}" if name is None else name
        # Numbers of places: ports before lanes, so a frame that a card gives out at the very time goes first.
        self.ports.append(self._register(Port(self, index, name, index - (1 << 20)), name))
        return self.ports[-1]

    def switch(self, name=None, *, latency_ns=0, learning=True):
        name = f"switch{len(self.switches)}" if name is None else name
        self.switches.append(self._register(Switch(self, name, latency_ns=latency_ns, learning=learning), name))
        return self.switches[-1]

    def node(self, name):
        """The port or switch of that name."""
        if name not in self._names:
            raise NetworkError(f"there is no {name!r}; there are {', '.join(self._names)}")
        return self._names[name]

    def link(self, a, b, *, there=None, back=None, **options):
        """A link between two ports or switches; `options` as of Lane (`rate` in bit/s and `delay_ns` must be given), those in the
        dictionaries `there` and `back` for the direction from `a` to `b` and from `b` to `a` only."""
        for end in (a, b):
            if self._names.get(getattr(end, "name", None)) is not end:
                raise NetworkError(f"{end!r} is not a port or switch of this network")
            if end.is_port and end.out is not None:
                raise NetworkError(f"{end!r} has its link already")
        if self._group[a] is self._group[b]:
            raise NetworkError(f"a link from {a!r} to {b!r} closes a loop; switches here know no spanning tree")
        made = []
        for source, target, own in ((a, b, there), (b, a, back)):
            knobs = options | (own or {})
            missing = [name for name in ("rate", "delay_ns") if name not in knobs]
            if missing:
                raise NetworkError(f"a link needs {missing[0]}, for example rate=100 * GBIT, delay_ns=500")
            made.append(Lane(self, len(self.lanes) + len(made), source, target, **knobs))
        self._group[a] |= self._group[b]
        for node in self._group[a]:
            self._group[node] = self._group[a]
        for lane in made:
            self.lanes.append(lane)
            if lane.source.is_port:
                lane.source.out = lane
            else:
                lane.source.out.append(lane)
            if lane.target.is_port:
                lane.target.into = lane
        self.lookahead_ps = min((port.into.delay for port in self.ports if port.into is not None), default=0)
        self.links.append(Link(*made))
        return self.links[-1]

    def _port(self, what):
        if isinstance(what, Port) and what.net is self:
            return what
        if isinstance(what, str):
            what = self.node(what)
            if what.is_port:
                return what
        elif isinstance(what, int) and 0 <= what < len(self.ports):
            return self.ports[what]
        raise NetworkError(f"{what!r} is not a port of this network; it has {len(self.ports)}")

    def rule(self, on=None, *, source=None, destination=None, match=None, nth=None, name=None, **impair):
        """Impairments for some frames, beside those of the lanes; returns the :class:`Rule`.

        `on`: a lane, a link or a list of them; without it the lane into the destination port, or those into all ports, so
        that a frame meets the rule once on its way. `source`: only frames that entered by this port. `match(frame)`: only
        those for which it is true. `nth`: of the frames that match only these, counted from 1: a number or several.
        """
        if on is not None:
            places = on if isinstance(on, (list, tuple)) else [on]
            lanes = [lane for place in places for lane in (place.lanes if isinstance(place, Link) else [place])]
            if destination is not None:
                target = self._port(destination)
                lanes = [lane for lane in lanes if lane.target is target]
        else:
            targets = self.ports if destination is None else [self._port(destination)]
            lanes = [port.into for port in targets if port.into is not None]
        if not lanes or any(lane not in self.lanes for lane in lanes):
            raise NetworkError("a rule needs lanes or links of this network, made before it")
        rule = Rule(name or f"rule{len(self.rules)}", self.seed, lanes, None if source is None else self._port(source),
                    match, nth, impair)
        if any(rule.name == other.name for other in self.rules):
            raise NetworkError(f"there is a rule {rule.name!r} already")
        self.rules.append(rule)
        for lane in lanes:
            lane.rules.append(rule)
        return rule

    def capture(self, path, at, when="sent"):
        """Record to a pcap file with times in ns, until it is closed: returns the :class:`Capture`.

        `at` a port: what its card sends and gets. `at` a lane, link, or list: what is `sent` there, stamped with the end of
        the transmission, faults not seen yet, or what `arrived`.
        """
        if when not in ("sent", "arrived"):
            raise NetworkError(f"when={when!r} is not 'sent' or 'arrived'")
        found = Capture(path)
        for place in at if isinstance(at, (list, tuple)) else [at]:
            if isinstance(place, (Port, str, int)):
                port = self._port(place)
                if port.out is None:
                    raise NetworkError(f"{port!r} has no link")
                port.out.sent_taps.append(found), port.into.arrival_taps.append(found)
                continue
            for lane in place.lanes if isinstance(place, Link) else [place]:
                (lane.sent_taps if when == "sent" else lane.arrival_taps).append(found)
        self._captures.append(found)
        return found

    # -- time -----------------------------------------------------------------------------------------

    def inject(self, port, frame, time_ps, begin_ps=None, *, damaged=False):
        """A card has given out a frame, its last byte at `time_ps`; from `begin_ps`, by default `time_ps`, the wire may have been
        busy with it. Frames of a port are sent in order of time."""
        if type(port) is not Port:
            port = self._port(port)
        if time_ps < self.now_ps:
            raise NetworkError(f"{port!r}: a frame at {time_ps} ps, but it is {self.now_ps} ps already")
        if port.out is None:
            raise NetworkError(f"{port!r} has no link")
        if begin_ps is None:
            begin_ps = time_ps
        elif begin_ps > time_ps:
            raise NetworkError(f"{port!r}: a frame that begins at {begin_ps} ps and ends at {time_ps} ps")
        port.injected += 1
        heappush(self._events, (time_ps, port.id, port.injected, port, Packet(frame, port, damaged, begin_ps)))

    def advance(self, until_ps, ahead_ps=0):
        """Let time pass to `until_ps`, that included; returns the deliveries since the last call in order of time.

        With `ahead_ps`, at most `lookahead_ps`, also those after that which nothing can change any more.
        """
        if until_ps < self.now_ps:
            raise NetworkError(f"advance to {until_ps} ps, but it is {self.now_ps} ps already")
        if ahead_ps and ahead_ps > self.lookahead_ps:
            raise NetworkError(f"ahead_ps={ahead_ps}: only the next {self.lookahead_ps} ps are certain")
        events = self._events
        while events and events[0][0] <= until_ps:
            time, _, _, place, packet = heappop(events)
            place.land(time, packet)
        self.now_ps = until_ps
        arrivals, early, horizon, found = self._arrivals, self._early, until_ps + ahead_ps, []
        while arrivals and arrivals[0][0] <= horizon:
            time, _, _, lane, packet = event = heappop(arrivals)
            found.append(Delivery(time, lane.target.index, packet[0], packet[2]))
            early.append(event)
        while early and early[0][0] <= until_ps:        # counted when its time has come
            time, _, _, lane, packet = early.popleft()
            lane.land(time, packet)
        for capture in self._captures:
            capture.flush(until_ps)
        return found

    @property
    def next_ps(self):
        """Time of the next event, or None when nothing is under way."""
        return min((line[0][0] for line in (self._events, self._arrivals, self._early) if line), default=None)

    # -- looking --------------------------------------------------------------------------------------

    def totals(self):
        """What became of the frames: injected + copied = delivered + the sum of dropped + in_flight, always.

        `copied`: made by switches and by duplication. `dropped`: by cause.
        """
        dropped = Counter()
        for lane in self.lanes:
            dropped.update(lane.dropped)
        return {"injected": sum(port.injected for port in self.ports),
                "copied": self.flooded + sum(lane.changed["duplicated"] for lane in self.lanes),
                "delivered": sum(port.delivered for port in self.ports), "dropped": dict(dropped),
                "in_flight": len(self._events) + len(self._arrivals) + len(self._early)}

    def counters(self):
        """{lane: its counters}, lanes by their names, `source>target`."""
        return {lane.name: lane.counters() for lane in self.lanes}

    def close(self):
        """Complete the captures."""
        for capture in self._captures:
            capture.close()
        self._captures = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
