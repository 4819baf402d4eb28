"""Where a peer is: GID, GlobalRoute and AHAttr as in pyverbs, with the MAC address and the VLAN."""

from dataclasses import dataclass, field
import ipaddress

__all__ = ["GID", "GlobalRoute", "AHAttr"]


class GID:
    """A RoCE v2 GID: an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d. Takes either, with or without that prefix."""

    def __init__(self, value="::"):
        ip = ipaddress.ip_address(str(value))
        self.ip = getattr(ip, "ipv4_mapped", None) or ip       #: IPv4Address or IPv6Address

    @property
    def gid(self):
        """As text, the eight groups of its IPv6 form."""
        six = self.ip if self.ip.version == 6 else ipaddress.IPv6Address(0xFFFF << 32 | int(self.ip))
        return six.exploded

    def __str__(self):
        return self.gid

    def __repr__(self):
        return f"GID({str(self.ip)!r})"

    def __eq__(self, other):
        return isinstance(other, GID) and self.ip == other.ip

    def __hash__(self):
        return hash(self.ip)


@dataclass
class GlobalRoute:
    """`hop_limit` and `flow_label` are the port's own (register HOP_LIMIT) and 0: what is given here is not used."""
    dgid: GID = field(default_factory=GID)
    flow_label: int = 0
    sgid_index: int = 0
    hop_limit: int = 64
    traffic_class: int = 0


@dataclass
class AHAttr:
    """`mac` and `vlan` (a tag: priority, DEI, number; None: untagged) are the addition. Without `mac` it is asked for when the
    queue pair goes to RTR: Context.neighbours."""
    gr: GlobalRoute = field(default_factory=GlobalRoute)
    is_global: int = 1
    port_num: int = 1
    mac: str = None
    vlan: int = None
