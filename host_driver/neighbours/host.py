"""The host's side of the pass-through stream: answers, questions, and frames kept for the program."""

from collections import Counter, deque
from functools import partial
import ipaddress

from ..errors import NeighbourError, UsageError
from ..queue_pairs import mac_number, mac_text
from . import packets
from .packets import Advertisement, Arp, Echo, Malformed, Solicitation
from .table import Table

__all__ = ["Neighbours"]

TIMEOUT_NS = 1_000_000      # of a question, if nothing else is said: a peer in the same simulation needs microseconds
TRIES = 4                   # the same question so often in that time
STEP_NS = 1000
BROADCAST_IP = ipaddress.IPv4Address("255.255.255.255")


class Neighbours:
    """Neighbours of one card. Nothing here runs by itself: frames are looked at in :meth:`poll`, which every wait and sleep of the
    Context calls, for all the cards of its simulation.

    Frames that are none of its business, whatever their kind, are kept in order for :meth:`frames`: at most `room`, the newest are
    dropped and counted as `dropped_for_program`. Answers are dropped while `answers` frames wait for the card to send them, and
    counted as `dropped_answers`. `counts` has everything that happened, by name; of what is malformed, `malformed` in all and
    `malformed_<reason>`.
    """

    def __init__(self, context, *, room=256, answers=64, timeout_ns=TIMEOUT_NS):
        self._context, self._device = context, context.device
        self.mac = mac_number(context.mac).to_bytes(6, "big")
        self.ip = None if context.ip is None else ipaddress.IPv4Address(context.ip)
        self.ip6 = None if context.ip6 is None else ipaddress.IPv6Address(context.ip6)
        self.timeout_ns, self.room, self.answers = timeout_ns, room, answers
        self.table, self.counts = Table(), Counter()
        self._kept = deque()
        # Frames given to the card, and those of them that it had sent when that was looked at last.
        self._sent, self._left = 0, 0
        self._left_before = context.card.counter("host_frames_sent")
        self._pings = {}            # (address, rest of the request) -> NIC time of its answer, None: not yet

    @property
    def available(self):
        """Whether frames of the host can get to the card and back at all."""
        return hasattr(self._device, "host_send") and hasattr(self._device, "host_frames")

    # -- for the program --------------------------------------------------------------------------------

    def frames(self):
        """What came for the program since the last call: Ethernet frames without FCS, oldest first."""
        self.poll()
        found = list(self._kept)
        self._kept.clear()
        return found

    def send(self, frame):
        """Have the card send a frame of the program's own."""
        self._need_stream("a frame can't be sent")
        self._device.host_send(bytes(frame))
        self._sent += 1

    def add(self, ip, mac, vlan=None):
        """A static entry, which nothing that is heard changes."""
        if self.table.put(ipaddress.ip_address(str(ip)), vlan, mac_number(mac).to_bytes(6, "big"), 0, static=True) is None:
            raise UsageError(f"the neighbour table is full: {len(self.table)} static entries; forget() some")

    def forget(self, ip, vlan=None):
        self.table.forget(ipaddress.ip_address(str(ip)), vlan)

    def entries(self):
        """[{"ip", "mac", "vlan", "static", "since_ns"}]"""
        return [{"ip": str(e.ip), "mac": e.mac and mac_text(e.mac), "vlan": e.vlan, "static": e.static, "since_ns": e.since_ns}
                for e in self.table]

    def resolve(self, ip, timeout_ns=None, vlan=None):
        """The MAC address of `ip`, as text: from the table, or asked for in simulated time. Raises NeighbourError if nobody has
        said so in `timeout_ns`, and UsageError if the address is of no single station."""
        ip = ipaddress.ip_address(str(ip))
        own = self._own(ip, "resolved")
        if own == ip:
            return mac_text(self.mac)
        mac = self.table.fresh(ip, vlan, self._context.time_ns())
        if mac:
            return mac_text(mac)
        self._need_stream(f"{ip} can't be asked for")
        timeout_ns = self.timeout_ns if timeout_ns is None else timeout_ns
        entry = self.table.put(ip, vlan, None, 0)
        if entry is None:
            raise UsageError(f"the neighbour table is full: {len(self.table)} static entries; forget() some")
        start = self._context.time_ns()
        asked = 0

        def known():
            nonlocal asked
            if entry.mac is None and self._context.time_ns() - start >= asked * timeout_ns // TRIES and asked < TRIES:
                asked += 1
                self._ask(ip, own, vlan)
            return entry.mac
        if not self._context.wait_until(known, timeout_ns, STEP_NS):
            self.table.forget(ip, vlan)
            raise NeighbourError(self._nobody(ip, own, vlan, asked, timeout_ns))
        return mac_text(entry.mac)

    def ping(self, ip, data=bytes(48), timeout_ns=None, vlan=None):
        """Send an echo request; nanoseconds of NIC time until its answer, with the same data, was here. NeighbourError without."""
        ip = ipaddress.ip_address(str(ip))
        mac = mac_number(self.resolve(ip, timeout_ns, vlan)).to_bytes(6, "big")
        timeout_ns = self.timeout_ns if timeout_ns is None else timeout_ns
        self.counts["pings"] += 1
        rest = b"ON" + (self.counts["pings"] & 0xFFFF).to_bytes(2, "big") + bytes(data)
        self._pings[ip, rest] = None
        start = self._context.time_ns()
        self.send(packets.echo(True, self.mac, self._own(ip, "pinged"), mac, ip, rest, vlan=vlan))
        self._context.wait_until(lambda: self._pings[ip, rest], timeout_ns, STEP_NS)
        end = self._pings.pop((ip, rest))
        if end is None:
            raise NeighbourError(f"{ip} ({mac_text(mac)}) did not answer an echo request of {len(data)} bytes within "
                                 f"{timeout_ns / 1000:g} us: see whether it is still there, and whether it answers pings at all")
        return end - start

    def _own(self, ip, what):
        """The port's own address of the same kind."""
        if ip.is_multicast or ip.is_unspecified or ip == BROADCAST_IP:
            raise UsageError(f"{ip} is not the address of one station: it can't be {what}")
        own = self.ip if ip.version == 4 else self.ip6
        if own is None:
            raise UsageError(f"{ip} is an IPv{ip.version} address, and this port has none; open the Context with "
                             f"{'ip' if ip.version == 4 else 'ip6'}=")
        return own

    def _need_stream(self, what):
        if not self.available:
            raise UsageError(f"{what}: nothing connects this program with the card's pass-through stream (on a board give "
                             "host_interface=); or give AHAttr the peer's mac")

    def _nobody(self, ip, own, vlan, asked, timeout_ns):
        how = "ARP requests" if ip.version == 4 else "neighbour solicitations"
        tag = "" if vlan is None else f", VLAN tag {vlan:#06x}"
        return (f"nobody says to have {ip}: {asked} {how} from {own} ({mac_text(self.mac)}{tag}) were not answered within "
                f"{timeout_ns / 1000:g} us. See whether the peer is up and has this address on the same link (no router is asked), "
                f"whether the card sends and receives (ctx.status()), and whether {timeout_ns / 1000:g} us are enough for it; or "
                "give AHAttr its mac")

    def _ask(self, ip, own, vlan):
        self.counts["asked"] += 1
        if ip.version == 4:
            self.send(packets.arp(1, self.mac, own, bytes(6), ip, destination=packets.BROADCAST, vlan=vlan))
        else:
            self.send(packets.solicitation(self.mac, own, ip, vlan=vlan))

    # -- what comes -------------------------------------------------------------------------------------

    def poll(self):
        """Look at every frame that the card has passed to the host."""
        if not self.available:
            return
        for frame in self._device.host_frames():
            try:
                packet = packets.parse(frame)
            except Malformed as error:
                self.counts["malformed"] += 1
                self.counts[f"malformed_{error.reason}"] += 1
                continue
            to_us = packet is not None and (frame[:6] == self.mac or frame[0] & 1)
            if not to_us or not self._known[type(packet)](self, packet):
                self._keep(frame)

    def _keep(self, frame):
        if len(self._kept) >= self.room:
            self.counts["dropped_for_program"] += 1
            return
        self.counts["for_program"] += 1
        self._kept.append(frame)

    def _answer(self, name, make):
        """Send `make()`, unless too many wait already for the card to take them."""
        if self._sent - self._left >= self.answers:
            self._left = self._context.card.counter("host_frames_sent") - self._left_before
            if self._sent - self._left >= self.answers:
                self.counts["dropped_answers"] += 1
                return
        self.counts[name] += 1
        self.send(make())

    def _learn(self, ip, vlan, mac, create):
        """`ip` is at `mac`. Without `create` only if somebody here has asked, or knew it."""
        entry = self.table.get(ip, vlan)
        if entry is None and not create:
            return
        if ip in (self.ip, self.ip6) or ip.is_unspecified or entry and entry.static:
            return
        self.counts["learned" if entry is None or entry.mac is None else "confirmed" if entry.mac == mac else "moved"] += 1
        self.table.put(ip, vlan, mac, self._context.time_ns())

    # Each says whether the frame was for this host; if not, the program may want it.

    def _arp(self, p):
        for_us = p.target_ip == self.ip
        self._conflict(p.sender_ip, p.sender_mac)
        self._learn(p.sender_ip, p.vlan, p.sender_mac, create=for_us and p.operation == 1)
        if for_us and p.operation == 1:
            self._answer("arp_answers", partial(packets.arp, 2, self.mac, self.ip, p.sender_mac, p.sender_ip,
                                                destination=p.sender_mac, vlan=p.vlan))
        return for_us

    def _conflict(self, ip, mac):
        if ip in (self.ip, self.ip6) and mac != self.mac:
            self.counts["conflicts"] += 1       # two stations with our address: nothing here can mend that

    def _solicitation(self, p):
        if p.target != self.ip6:
            return False
        back = p.mac or p.frame_source
        if p.mac and not p.source.is_unspecified:
            self._learn(p.source, p.vlan, p.mac, create=True)
        self._answer("nd_answers", partial(packets.advertisement, self.mac, self.ip6, p.source, back, solicited=True, vlan=p.vlan))
        return True

    def _advertisement(self, p):
        self._conflict(p.target, p.mac or self.mac)
        entry = self.table.get(p.target, p.vlan)
        if entry is None or p.mac is None:
            return False
        if entry.mac in (None, p.mac) or p.override:
            self._learn(p.target, p.vlan, p.mac, create=False)
        return True

    def _echo(self, p):
        if p.destination not in (self.ip, self.ip6) or p.to_group:
            return False
        if p.request:
            if p.source.is_multicast or p.source.is_unspecified or p.source == BROADCAST_IP:
                self.counts["malformed"] += 1
                self.counts["malformed_echo_source"] += 1
                return True
            self._answer(f"echo{p.source.version}_answers",
                         partial(packets.echo, False, self.mac, p.destination, p.frame_source, p.source, p.rest, vlan=p.vlan))
            return True
        if (p.source, p.rest) not in self._pings:
            return False
        self._pings[p.source, p.rest] = self._context.time_ns()
        return True

    _known = {Arp: _arp, Solicitation: _solicitation, Advertisement: _advertisement, Echo: _echo}
