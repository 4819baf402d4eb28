"""One end of a connection as the tools tell it to each other, and as verbs wants it."""

from dataclasses import dataclass
import ipaddress

from ..errors import ExchangeError
from ..verbs import GID, AHAttr, GlobalRoute, QPAttr
from ..verbs.enums import mtu_code

__all__ = ["Address", "own_address", "peer_attr", "gid_bytes", "gid_of"]


@dataclass(frozen=True)
class Address:
    """`gid` is a GID; `rkey`, `vaddr`, `out_reads` (READs under way at most) and `srqn` are told by perftest only."""
    qpn: int
    psn: int
    gid: GID
    lid: int = 0
    rkey: int = 0
    vaddr: int = 0
    out_reads: int = 1
    srqn: int = 0


def gid_bytes(gid):
    return ipaddress.IPv6Address(gid.gid).packed


def gid_of(data, line):
    """A GID from 16 bytes; without one there is no RoCE."""
    if not any(data):
        raise ExchangeError(f"{line.peer} has no GID, so it can't be reached over Ethernet; start the tool with the index of a "
                            "RoCE v2 GID (-g of ibv_*_pingpong, -x of perftest; `rdma link` and `show_gids` list them)")
    return GID(ipaddress.IPv6Address(bytes(data)))


def own_address(qp, *, mr=None, offset=0, ip6=False, out_reads=1):
    """What the peer is told about a QP, and about the memory `mr` from `offset` on."""
    info = qp.info()
    ip = info["ip6" if ip6 else "ip"]
    if ip is None:
        raise ExchangeError(f"this port has no IPv{6 if ip6 else 4} address; open the Context with {'ip6' if ip6 else 'ip'}=")
    about = {} if mr is None else {"rkey": mr.rkey, "vaddr": mr.addr + offset}
    return Address(info["qp_num"], info.get("psn", 0), GID(ip), out_reads=out_reads, **about)


def peer_attr(qp, own, peer, *, mtu=1024, traffic_class=0, mac=None, **reliable):
    """The QPAttr that takes `qp` to RTR and RTS with `peer`. `reliable`: of type RC, timeout, retry_cnt and the like. Without `mac`
    the peer's is asked for."""
    if (own.gid.ip.version, peer.gid.ip.version) not in ((4, 4), (6, 6)):
        raise ExchangeError(f"the peer is at {peer.gid.ip}, IPv{peer.gid.ip.version}, and this side at {own.gid.ip}; both need "
                            "GIDs of one kind: give the tool another GID index")
    return QPAttr(path_mtu=mtu_code(mtu), dest_qp_num=peer.qpn, sq_psn=own.psn, rq_psn=peer.psn,
                  ah_attr=AHAttr(GlobalRoute(peer.gid, traffic_class=traffic_class), mac=mac), **reliable)
