"""The neighbour codec against scapy's, and what is malformed, cut short or random: counted and dropped, or left to the program."""

from collections import Counter
import ipaddress
import random
from types import SimpleNamespace

import pytest

from host_driver.neighbours import Neighbours
from host_driver.neighbours.packets import (Advertisement, Arp, Echo, Malformed, Solicitation, advertisement, arp, echo, parse,
                                            solicitation)
from .station import *
from .station import at_one_end, checked
from .test_neighbours import ADVERTISE, REPLY, REQUEST, SOLICIT

PING4 = Ether(src=MAC, dst=CARD_MAC) / IP(src=IP4, dst=CARD_IP) / ICMP(id=7, seq=1) / Raw(bytes(range(40)))
PING6 = Ether(src=MAC, dst=CARD_MAC) / IPv6(src=IP6, dst=CARD_IP6) / ICMPv6EchoRequest(id=7, seq=1, data=bytes(range(40)))
GOOD = {"request": REQUEST, "reply": REPLY, "solicit": SOLICIT, "advertise": ADVERTISE, "ping4": PING4, "ping6": PING6}


class Host:
    """Neighbours on a stream that is a pair of lists."""

    def __init__(self, mac=CARD_MAC, ip=CARD_IP, ip6=CARD_IP6):
        self.given, self.sent = [], []
        device = SimpleNamespace(host_frames=self._frames, host_send=self.sent.append)
        card = SimpleNamespace(counter=lambda name: len(self.sent))
        self.neighbours = Neighbours(SimpleNamespace(device=device, card=card, mac=mac, ip=ip, ip6=ip6, time_ns=lambda: 5))

    def _frames(self):
        found, self.given = self.given, []
        return found

    def take(self, frame):
        """(answers, kept, counts) of that one frame."""
        self.neighbours.counts.clear(), self.sent.clear()
        self.given.append(bytes(frame))
        kept = self.neighbours.frames()
        return list(self.sent), kept, Counter(self.neighbours.counts)


def mac_bytes(text):
    return bytes.fromhex(text.replace(":", ""))


def random_address(rng, version):
    if version == 4:
        return ipaddress.IPv4Address(rng.randrange(1 << 24, 224 << 24))
    return ipaddress.IPv6Address(0x20 << 120 | rng.getrandbits(120))


@pytest.mark.parametrize("vlan", [None, 0x6005])
def test_what_is_built_scapy_reads(rng, vlan):
    for _ in range(100):
        mac, other = (bytes([rng.randrange(0, 256, 2)]) + rng.randbytes(5) for _ in range(2))
        a4, b4, a6, b6 = (random_address(rng, v) for v in (4, 4, 6, 6))
        rest = rng.randbytes(4 + rng.randrange(200))
        frames = [arp(1, mac, a4, bytes(6), b4, destination=other, vlan=vlan), solicitation(mac, a6, b6, vlan=vlan),
                  advertisement(mac, a6, b6, other, solicited=True, vlan=vlan),
                  echo(True, mac, a4, other, b4, rest, vlan=vlan), echo(False, mac, a6, other, b6, rest, vlan=vlan)]
        seen = [checked(f) for f in frames]
        for packet in seen:
            assert mac_bytes(packet.src) == mac
            assert vlan is None or (packet[Dot1Q].prio, packet[Dot1Q].vlan) == (3, 5)
        assert seen[0][ARP].pdst == str(b4) and ipaddress.ip_address(seen[1][ICMPv6ND_NS].tgt) == b6
        assert ipaddress.ip_address(seen[2][ICMPv6ND_NA].tgt) == a6
        read = [parse(f) for f in frames]
        assert [type(p) for p in read] == [Arp, Solicitation, Advertisement, Echo, Echo] and {p.vlan for p in read} == {vlan}
        assert [read[3].request, read[4].request] == [True, False] and read[3].rest == read[4].rest == rest
        assert read[1].mac == read[2].mac == mac and read[0].sender_ip == read[3].source == a4


@pytest.mark.parametrize("name", GOOD)
def test_good_ones_are_taken(name):
    host = Host()
    if name in ("reply", "advertise"):      # nobody asked: an answer to nothing teaches nothing
        answers, kept, counts = host.take(GOOD[name])
        assert answers == [] and not host.neighbours.entries()
    else:
        answers, kept, counts = host.take(GOOD[name])
        assert len(answers) == 1 and kept == [] and checked(answers[0])
    assert not counts["malformed"]


@pytest.mark.parametrize("name", GOOD)
def test_cut_short_anywhere(name):
    host, frame = Host(), bytes(GOOD[name])
    end = len(frame) if name != "request" else 42       # scapy's ARP is not padded
    for n in range(end):
        answers, kept, counts = host.take(frame[:n])
        assert answers == [] and not host.neighbours.entries(), n
        assert counts["malformed"] == 1 and kept == [] or kept == [frame[:n]], n
        if n >= (14 if name in ("request", "reply") else 34 if name == "ping4" else 54):
            assert counts["malformed_truncated"] == 1, n


@pytest.mark.parametrize("name, start", [("solicit", 22), ("advertise", 22), ("ping6", 22), ("ping4", 34)])
def test_any_bit_that_a_checksum_covers(name, start):
    """Addresses of the IPv6 header and all of the message: none of it may be answered or learned."""
    host, frame = Host(), bytes(GOOD[name])
    for bit in range(8 * start, 8 * len(frame)):
        bad = bytearray(frame)
        bad[bit // 8] ^= 1 << bit % 8
        answers, kept, counts = host.take(bad)
        assert answers == [] and not host.neighbours.entries() and counts["malformed_icmp_checksum"] == 1, bit


def test_any_bit_of_the_ip4_header():
    host, frame = Host(), bytes(PING4)
    for bit in range(8 * 14, 8 * 34):
        bad = bytearray(frame)
        bad[bit // 8] ^= 1 << bit % 8
        answers, kept, counts = host.take(bad)
        assert answers == [] and (counts["malformed"] == 1) != (kept == [bytes(bad)])


def nd(message, source=IP6, destination=SOLICITED, hlim=255, mac=SOLICITED_MAC):
    return Ether(src=MAC, dst=mac) / IPv6(src=source, dst=destination, hlim=hlim) / message


@pytest.mark.parametrize("reason, frame", [
    ("arp_format", Ether(src=MAC, dst=CARD_MAC) / ARP(op=1, hwtype=6, hwsrc=MAC, psrc=IP4, pdst=CARD_IP)),
    ("arp_format", Ether(src=MAC, dst=CARD_MAC) / ARP(op=1, plen=16, hwsrc=MAC, psrc=IP4, pdst=CARD_IP) / Raw(bytes(30))),
    ("arp_operation", Ether(src=MAC, dst=CARD_MAC) / ARP(op=9, hwsrc=MAC, psrc=IP4, pdst=CARD_IP)),
    ("arp_sender", Ether(src=MAC, dst=CARD_MAC) / ARP(op=1, hwsrc="03:00:00:00:00:01", psrc=IP4, pdst=CARD_IP)),
    ("arp_sender", Ether(src=MAC, dst=CARD_MAC) / ARP(op=1, hwsrc="00:00:00:00:00:00", psrc=IP4, pdst=CARD_IP)),
    ("arp_sender", Ether(src=MAC, dst=CARD_MAC) / ARP(op=1, hwsrc=MAC, psrc="224.0.0.1", pdst=CARD_IP)),
    ("hop_limit", nd(ICMPv6ND_NS(tgt=CARD_IP6), hlim=254)),
    ("icmp_code", nd(ICMPv6ND_NS(tgt=CARD_IP6, code=1))),
    ("nd_target", nd(ICMPv6ND_NS(tgt="ff02::1"))),
    ("nd_source", nd(ICMPv6ND_NS(tgt=CARD_IP6) / ICMPv6NDOptSrcLLAddr(lladdr=MAC), source="::")),
    ("nd_source", nd(ICMPv6ND_NS(tgt=CARD_IP6), source="::", destination=CARD_IP6, mac=CARD_MAC)),
    ("nd_option", nd(ICMPv6ND_NS(tgt=CARD_IP6) / Raw(b"\1\0" + bytes(6)))),          # of no length
    ("nd_option", nd(ICMPv6ND_NS(tgt=CARD_IP6) / Raw(b"\1\2" + bytes(6)))),          # longer than what is there
    ("nd_option", nd(ICMPv6ND_NS(tgt=CARD_IP6) / ICMPv6NDOptSrcLLAddr(lladdr="ff:ff:ff:ff:ff:ff"))),
    ("nd_flags", nd(ICMPv6ND_NA(tgt=IP6, R=0, S=1, O=1), destination="ff02::1", mac="33:33:00:00:00:01")),
    ("icmp_code", Ether(src=MAC, dst=CARD_MAC) / IP(src=IP4, dst=CARD_IP) / ICMP(code=1)),
    ("ip_checksum", Ether(src=MAC, dst=CARD_MAC) / IP(src=IP4, dst=CARD_IP, chksum=1) / ICMP()),
    ("echo_source", Ether(src=MAC, dst=CARD_MAC) / IP(src="224.0.0.1", dst=CARD_IP) / ICMP()),
    ("truncated", Ether(src=MAC, dst=CARD_MAC) / IP(src=IP4, dst=CARD_IP, len=1000) / ICMP()),
    ("truncated", Ether(src=MAC, dst=CARD_MAC) / IP(src=IP4, dst=CARD_IP, ihl=15, len=30) / ICMP() / Raw(bytes(60))),
], ids=lambda value: value if isinstance(value, str) else "")
def test_malformed(reason, frame):
    host = Host()
    answers, kept, counts = host.take(frame)
    assert (answers, kept, counts["malformed"], counts[f"malformed_{reason}"]) == ([], [], 1, 1)
    assert host.neighbours.entries() == []


def test_not_answered():
    """Good frames that ask nothing of us, or might multiply: a ping to a group address, to a group MAC, an echo reply."""
    host = Host()
    group, to_card = "ff:ff:ff:ff:ff:ff", Ether(src=MAC, dst=CARD_MAC) / IP(src=IP4, dst=CARD_IP)
    for frame in (Ether(src=MAC, dst=group) / IP(src=IP4, dst="10.0.0.255") / ICMP(),
                  Ether(src=MAC, dst=group) / IP(src=IP4, dst=CARD_IP) / ICMP(), to_card / ICMP(type=0), to_card / ICMP(type=13),
                  nd(ICMPv6ND_NS(tgt="fd00::5")),
                  Ether(src=MAC, dst="02:00:00:00:00:09") / ARP(op=1, hwsrc=MAC, psrc=IP4, pdst=CARD_IP)):
        assert host.take(frame)[:2] == ([], [bytes(frame)])


def fuzzed(rng, frame):
    data = bytearray(bytes(frame))
    for _ in range(rng.randrange(1, 5)):
        what = rng.randrange(4)
        if what == 0 and data:
            data[rng.randrange(len(data))] = rng.choice((0, 0xFF, rng.randrange(256)))
        elif what == 1:
            del data[rng.randrange(len(data) + 1):]
        elif what == 2:
            data += rng.randbytes(rng.randrange(64))
        elif data:
            at = rng.randrange(len(data))
            data[at:at + rng.randrange(8)] = rng.randbytes(rng.randrange(8))
    return bytes(data)


def test_fuzz_of_the_codec(seed):
    """Nothing but Malformed is raised, every frame has one end, and every answer is one that scapy can read."""
    rng, host = random.Random(seed), Host()
    ends = Counter()
    for _ in range(20_000):
        frame = fuzzed(rng, rng.choice(list(GOOD.values())))
        try:
            parse(frame)
        except Malformed:
            pass
        answers, kept, counts = host.take(frame)
        assert (len(kept), counts["malformed"]) in ((0, 0), (1, 0), (0, 1)) and len(answers) <= 1
        ends["kept" if kept else "malformed" if counts["malformed"] else "taken"] += 1
        if answers and rng.random() < 0.1:
            checked(answers[0])
    assert min(ends.values()) > 500 and len(ends) == 3 and len(host.neighbours.table) <= host.neighbours.table.room


def test_fuzz_through_the_card(backend, seed):
    """Afterwards both still answer."""
    rng = random.Random(seed)
    with at_one_end(backend) as station:
        for _ in range(300):
            station.world.send(1, fuzzed(rng, rng.choice(list(GOOD.values()))).ljust(60, b"\0"))
            station.card.sleep_ns(300)
        station.card.sleep_ns(20_000)
        assert station.counts["malformed"] > 20
        station.neighbours.frames(), station.take()
        assert len(station.ask(REQUEST, SOLICIT, PING4, PING6)) == 4


def test_negative_control_without_a_checksum(monkeypatch):
    """A codec that doesn't look at checksums is found out by the test above."""
    from host_driver.neighbours import packets
    monkeypatch.setattr(packets, "checksum", lambda data: 0)
    with pytest.raises(AssertionError):
        test_any_bit_that_a_checksum_covers("ping6", 22)
