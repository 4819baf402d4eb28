"""A store-and-forward Ethernet switch: addresses learned or given, one drop-tail queue for each way out."""

from .errors import NetworkError
from .packet import Packet
from .units import to_ps

__all__ = ["Switch", "mac_bytes"]


def mac_bytes(mac):
    """A MAC address from text or from its six bytes."""
    try:
        found = bytes(mac) if not isinstance(mac, str) else bytes.fromhex(mac.replace(":", "").replace("-", ""))
    except (TypeError, ValueError):
        found = b""
    if len(found) != 6:
        raise NetworkError(f"{mac!r} is not a MAC address; write 02:00:00:00:00:01, or give six bytes")
    return found


class Switch:
    """Forwards by destination address `latency_ns` after a frame's last bit.

    An address is learned from where a frame with it as source came in, unless it was given with :meth:`static`. Unknown
    and group addresses go out everywhere but where they came from. Dropped, and counted on the lane by which they came:
    frames with a wrong FCS (`damaged`), shorter than an Ethernet header (`runt`), for the lane that they came by
    (`filtered`), with nowhere to go (`nowhere`).
    """

    is_port, queues = False, True

    def __init__(self, net, name, *, latency_ns=0, learning=True):
        self.net, self.name = net, name
        self.latency = to_ps(latency_ns, "latency_ns")
        self.learning = learning
        self.out = []                   # lanes
        self._table, self._static = {}, set()

    def __repr__(self):
        return f"<Switch {self.name}>"

    def static(self, mac, towards):
        """Frames for `mac` go out by the lane to `towards`, a port or a switch beside this one."""
        mac = mac_bytes(mac)
        for lane in self.out:
            if lane.target is towards:
                self._table[mac] = lane
                self._static.add(mac)
                return
        raise NetworkError(f"{self!r} has no link to {towards!r}")

    def forget(self):
        """Forget what was learned."""
        self._table = {mac: lane for mac, lane in self._table.items() if mac in self._static}

    @property
    def table(self):
        """{address: the port or switch that it is reached by}"""
        return {mac: lane.target for mac, lane in self._table.items()}

    def receive(self, time, packet, lane):
        data, source, damaged, _ = packet
        if damaged:
            lane.dropped["damaged"] += 1
            return
        if len(data) < 14:
            lane.dropped["runt"] += 1
            return
        back, table = lane.reverse, self._table
        sender, target = data[6:12], data[:6]
        if self.learning and table.get(sender) is not back and not sender[0] & 1 and sender not in self._static:
            table[sender] = back
        time += self.latency
        packet = Packet(data, source, False, time)
        out = None if target[0] & 1 else table.get(target)
        if out is None:
            ways = [way for way in self.out if way is not back]
            if not ways:
                lane.dropped["nowhere"] += 1
                return
            self.net.flooded += len(ways) - 1
            for way in ways:
                way.offer(time, packet)
        elif out is back:
            lane.dropped["filtered"] += 1
        else:
            out.offer(time, packet)
