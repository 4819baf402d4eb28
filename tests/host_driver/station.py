"""A station at the other end of one card's cable, in scapy: a codec that is not ours."""

from contextlib import contextmanager

from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import (ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, ICMPv6NDOptSrcLLAddr,
                                IPv6)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Raw

from host_driver.verbs import open_cards
from sim.network import GBIT, back_to_back

CARD_MAC, CARD_IP, CARD_IP6 = "02:00:00:00:00:01", "10.0.0.1", "fd00::1"
MAC, IP4, IP6 = "02:00:00:00:00:77", "10.0.0.77", "fd00::77"
SOLICITED = "ff02::1:ff00:1"            # group of CARD_IP6
SOLICITED_MAC = "33:33:ff:00:00:01"
REQUEST_TO_CARD = Ether(src=MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=MAC, psrc=IP4, pdst=CARD_IP)


class Station:
    def __init__(self, card, world):
        self.card, self.world = card, world
        self.neighbours, self.counts = card.neighbours, card.neighbours.counts

    def give(self, *frames):
        """Send frames (scapy's, or bytes) to the card, one after another."""
        for frame in frames:
            self.world.send(1, bytes(frame).ljust(60, b"\0"))
            self.card.sleep_ns(1000)        # one behind another, as scapy knows nothing of the cable's time
        self.card.sleep_ns(20_000)

    def take(self):
        """What the card has sent, taken apart; lengths and checksums that scapy finds wrong are an AssertionError."""
        return [checked(delivery.frame) for delivery in self.world.deliveries(1)]

    def ask(self, *frames):
        self.give(*frames)
        return self.take()


def checked(frame):
    """As scapy reads it, once it has built the same again from the fields, checksums and lengths included."""
    packet = Ether(frame)
    again = packet.copy()
    layer = again
    while layer:
        for name in ("chksum", "cksum", "len", "plen"):
            if name in layer.fields:
                delattr(layer, name)
        layer = layer.payload if layer.payload else None
    assert bytes(again) == bytes(packet) == frame, packet.show(dump=True)
    return packet


@contextmanager
def at_one_end(backend, **more):
    """A card, and the station that its cable leads to."""
    with open_cards(backend, 1, cfg="tiny", network=back_to_back(rate=100 * GBIT, delay_ns=500), **more) as cards:
        yield Station(cards[0], cards.world)
