"""ARP, IPv6 neighbour discovery and echo on Ethernet: taken apart and put together.

Formats: RFC 826 (ARP), RFC 4861 section 4 and 7.1 (neighbour solicitation and advertisement, and what makes one valid), RFC 792 and
RFC 4443 section 4 (echo), RFC 2464 section 7 (group addresses on Ethernet). Frames have no FCS. One 802.1Q tag is understood.
"""

from dataclasses import dataclass
import ipaddress
import struct

__all__ = ["Arp", "Solicitation", "Advertisement", "Echo", "Malformed", "parse", "arp", "solicitation", "advertisement", "echo",
           "solicited_node", "group_mac", "checksum", "BROADCAST"]

BROADCAST = b"\xff" * 6
ETH_IP4, ETH_ARP, ETH_VLAN, ETH_IP6 = 0x0800, 0x0806, 0x8100, 0x86DD
ICMP4, ICMP6 = 1, 58
ARP_HEAD = struct.pack(">HHBB", 1, ETH_IP4, 6, 4)       # Ethernet, IPv4, and the sizes of their addresses
SOLICIT, ADVERTISE = 135, 136
ECHO_TYPES = {4: (8, 0), 6: (128, 129)}                 # IP version -> request, reply
SOURCE_LINK_LAYER, TARGET_LINK_LAYER = 1, 2
DISCOVERY_HOPS = 255        # less: it has come through a router
ALL_NODES = ipaddress.IPv6Address("ff02::1")


class Malformed(ValueError):
    """A frame that says it is one of these and is not; `reason` is what it is counted under."""

    def __init__(self, reason):
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Arp:
    operation: int              # 1: request, 2: reply
    sender_mac: bytes
    sender_ip: ipaddress.IPv4Address
    target_mac: bytes
    target_ip: ipaddress.IPv4Address
    destination: bytes = b""    # of the frame
    vlan: int = None            # the tag it came with


@dataclass(frozen=True)
class Solicitation:
    source: ipaddress.IPv6Address       # unspecified: somebody looks whether the target is taken
    destination: ipaddress.IPv6Address
    target: ipaddress.IPv6Address
    mac: bytes                          # source link-layer option, None if there is none
    frame_source: bytes = b""
    vlan: int = None


@dataclass(frozen=True)
class Advertisement:
    source: ipaddress.IPv6Address
    target: ipaddress.IPv6Address
    mac: bytes                          # target link-layer option, None if there is none
    solicited: bool
    override: bool
    vlan: int = None


@dataclass(frozen=True)
class Echo:
    request: bool
    source: object                      # IPv4Address or IPv6Address
    destination: object
    rest: bytes                         # identifier, sequence number, data
    frame_source: bytes = b""
    to_group: bool = False              # the frame was, whatever the packet says
    vlan: int = None


def checksum(data):
    """The internet checksum of RFC 1071: 0 over data that contains a right one."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def solicited_node(ip):
    """The multicast address at which the owner of `ip` listens for solicitations."""
    return ipaddress.IPv6Address(int(ipaddress.IPv6Address("ff02::1:ff00:0")) | int(ip) & 0xFFFFFF)


def group_mac(group):
    """The Ethernet address of an IPv6 multicast address."""
    return b"\x33\x33" + group.packed[12:]


# -- taking apart ---------------------------------------------------------------------------------------


def parse(frame):
    """One of the classes above; None if the frame is none of these; raises Malformed."""
    if len(frame) < 14:
        return None
    kind, at, vlan = int.from_bytes(frame[12:14], "big"), 14, None
    if kind == ETH_VLAN and len(frame) >= 18:
        vlan, kind = struct.unpack_from(">HH", frame, 14)
        at = 18
    reader = {ETH_ARP: _arp, ETH_IP4: _ip4, ETH_IP6: _ip6}.get(kind)
    return reader and reader(frame, frame[at:], vlan)


def _arp(frame, body, vlan):
    if len(body) < 28:
        raise Malformed("truncated")
    if body[:6] != ARP_HEAD:
        raise Malformed("arp_format")
    operation = int.from_bytes(body[6:8], "big")
    if operation not in (1, 2):
        raise Malformed("arp_operation")
    found = Arp(operation, body[8:14], ipaddress.IPv4Address(body[14:18]), body[18:24], ipaddress.IPv4Address(body[24:28]),
                frame[:6], vlan)
    if not _one_station(found.sender_mac) or found.sender_ip.is_multicast or int(found.sender_ip) == 0xFFFFFFFF:
        raise Malformed("arp_sender")
    return found


def _one_station(mac):
    return len(mac) == 6 and not mac[0] & 1 and any(mac)


def _ip4(frame, packet, vlan):
    """An ICMP echo; None of any other datagram."""
    if len(packet) < 20 or packet[0] >> 4 != 4 or packet[9] != ICMP4:
        return None
    head, length = 4 * (packet[0] & 15), int.from_bytes(packet[2:4], "big")
    if head < 20 or length < head or length > len(packet):
        raise Malformed("truncated")
    if checksum(packet[:head]):
        raise Malformed("ip_checksum")
    if int.from_bytes(packet[6:8], "big") & 0x3FFF:
        return None                 # a fragment: nobody here puts them together
    return _echo(4, packet[head:length], checksum(packet[head:length]), packet[12:16], packet[16:20], frame, vlan)


def _echo(version, message, total, source, destination, frame, vlan):
    if len(message) < 8:
        raise Malformed("truncated")
    if total:
        raise Malformed("icmp_checksum")
    if message[0] not in ECHO_TYPES[version]:
        return None
    if message[1]:
        raise Malformed("icmp_code")
    return Echo(message[0] == ECHO_TYPES[version][0], ipaddress.ip_address(source), ipaddress.ip_address(destination), message[4:],
                frame[6:12], bool(frame[0] & 1), vlan)


def _ip6(frame, packet, vlan):
    """Neighbour discovery or an ICMPv6 echo without extension headers; None of any other packet."""
    if len(packet) < 40 or packet[0] >> 4 != 6 or packet[6] != ICMP6:
        return None
    length = int.from_bytes(packet[4:6], "big")
    message = packet[40:40 + length]
    if len(message) < length or length < 8:
        raise Malformed("truncated")
    source, destination = ipaddress.IPv6Address(packet[8:24]), ipaddress.IPv6Address(packet[24:40])
    total = checksum(_pseudo(source, destination, length) + message)
    if message[0] not in (SOLICIT, ADVERTISE):
        return _echo(6, message, total, packet[8:24], packet[24:40], frame, vlan)
    if total:
        raise Malformed("icmp_checksum")
    if packet[7] != DISCOVERY_HOPS:
        raise Malformed("hop_limit")
    if message[1]:
        raise Malformed("icmp_code")
    if length < 24:
        raise Malformed("truncated")
    target, options = ipaddress.IPv6Address(message[8:24]), _options(message[24:])
    if target.is_multicast:
        raise Malformed("nd_target")
    if message[0] == SOLICIT:
        mac = options.get(SOURCE_LINK_LAYER)
        if source.is_unspecified and (mac is not None or destination != solicited_node(target)):
            raise Malformed("nd_source")
        return Solicitation(source, destination, target, mac, frame[6:12], vlan)
    if destination.is_multicast and message[4] & 0x40:
        raise Malformed("nd_flags")
    return Advertisement(source, target, options.get(TARGET_LINK_LAYER), bool(message[4] & 0x40), bool(message[4] & 0x20), vlan)


def _options(data):
    """type -> the first link-layer address given as such an option."""
    found = {}
    while data:
        size = 8 * data[1] if len(data) > 1 else 0
        if not 0 < size <= len(data):
            raise Malformed("nd_option")
        if data[0] in (SOURCE_LINK_LAYER, TARGET_LINK_LAYER):
            if size != 8 or not _one_station(data[2:8]):
                raise Malformed("nd_option")
            found.setdefault(data[0], data[2:8])
        data = data[size:]
    return found


def _pseudo(source, destination, length):
    return source.packed + destination.packed + struct.pack(">II", length, ICMP6)


# -- putting together -------------------------------------------------------------------------------------


def _ethernet(destination, source, kind, body, vlan):
    tag = b"" if vlan is None else struct.pack(">HH", ETH_VLAN, vlan)
    return destination + source + tag + struct.pack(">H", kind) + body


def arp(operation, sender_mac, sender_ip, target_mac, target_ip, *, destination, vlan=None):
    """MAC addresses are six bytes, addresses those of `ipaddress`."""
    body = ARP_HEAD + struct.pack(">H", operation) + sender_mac + sender_ip.packed + target_mac + target_ip.packed
    return _ethernet(destination, sender_mac, ETH_ARP, body, vlan)


def _icmp6(mac, source, target_mac, destination, message, hops, vlan):
    total = checksum(_pseudo(source, destination, len(message)) + message)
    message = message[:2] + total.to_bytes(2, "big") + message[4:]
    head = struct.pack(">IHBB", 6 << 28, len(message), ICMP6, hops) + source.packed + destination.packed
    return _ethernet(target_mac, mac, ETH_IP6, head + message, vlan)


def solicitation(mac, source, target, *, vlan=None):
    """Who has `target`? Sent to its solicited-node group."""
    group = solicited_node(target)
    message = struct.pack(">BBHI", SOLICIT, 0, 0, 0) + target.packed + bytes((SOURCE_LINK_LAYER, 1)) + mac
    return _icmp6(mac, source, group_mac(group), group, message, DISCOVERY_HOPS, vlan)


def advertisement(mac, target, destination, destination_mac, *, solicited, override=True, vlan=None):
    """`mac` has `target`. To an unspecified address: to all nodes."""
    if destination.is_unspecified:
        destination, destination_mac, solicited = ALL_NODES, group_mac(ALL_NODES), False
    flags = solicited << 30 | override << 29
    message = struct.pack(">BBHI", ADVERTISE, 0, 0, flags) + target.packed + bytes((TARGET_LINK_LAYER, 1)) + mac
    return _icmp6(mac, target, destination_mac, destination, message, DISCOVERY_HOPS, vlan)


def echo(request, mac, source, target_mac, destination, rest, *, vlan=None):
    """An echo request, or the answer to one; `rest` is identifier, sequence number and data."""
    kind = ECHO_TYPES[source.version][0 if request else 1]
    message = bytes((kind, 0, 0, 0)) + rest
    if source.version == 6:
        return _icmp6(mac, source, target_mac, destination, message, 64, vlan)
    message = message[:2] + checksum(message).to_bytes(2, "big") + rest
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0x4000, 64, ICMP4, 0) + source.packed + destination.packed
    head = head[:10] + checksum(head).to_bytes(2, "big") + head[12:]
    return _ethernet(target_mac, mac, ETH_IP4, head + message, vlan)
