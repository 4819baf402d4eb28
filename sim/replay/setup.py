"""SETUP.json: what the card is told before the first frame. Every mistake is named by its full path."""

from dataclasses import dataclass
import ipaddress
import json
from math import ceil

from optinic.config import PRESETS, ConfigError, NicConfig, preset

from .errors import ReplayError
from .reader import Reader, show

__all__ = ["Setup", "RegionSetup", "QpSetup", "ReceiveSetup", "read_setup", "parse_setup", "ACCESS_WORDS"]

ACCESS_WORDS = ("local_write", "remote_write", "remote_read", "remote_atomic")
QP_TYPES = {"xp": ("xp", "uc"), "rc": ("rc", "uc")}     # by transport, the usual one first
PORT = "02:00:00:00:00:01", "10.0.0.1", "fd00::1"       # what the card is called if the setup doesn't say
MTUS = (256, 512, 1024, 2048, 4096)
MEMORY_LIMIT = 1 << 30
LARGEST_TIMEOUT_US = ((1 << 31) - 1) * 64 / 1000
LARGEST_RING = 32768
LARGEST_MAP = 1 << 24, 1 << 15      # pieces, rows


@dataclass(frozen=True)
class RegionSetup:
    rkey: int
    va: int
    length: int
    access: frozenset
    pd: int
    fill: object            #: a byte value, or "index"

    def content(self):
        if self.fill == "index":
            lap = bytes(range(251))
            return (lap * (self.length // 251 + 1))[:self.length]
        return bytes([self.fill]) * self.length


@dataclass(frozen=True)
class ReceiveSetup:
    va: int
    length: int
    lkey: int
    timeout_ns: int         #: 0: none


@dataclass(frozen=True)
class QpSetup:
    qpn: int
    type: str
    pd: int
    mtu: int
    generation: int
    peer: object            #: ipaddress
    receives: tuple
    arrival_map: tuple = None       #: pieces, rows
    peer_mac: str = "00:00:00:00:00:00"
    peer_qpn: int = 0
    peer_generation: int = 0
    expected_psn: int = 0           #: transport rc
    min_rnr_timer: int = 1
    traffic_class: int = 0


@dataclass(frozen=True)
class Setup:
    config: NicConfig
    regions: tuple
    qps: tuple
    port: tuple = PORT              #: MAC, IPv4, IPv6 address
    frame_gap_cycles: int = 0
    end_ns: int = 0


# -- the parts ---------------------------------------------------------------------------------------

def read_setup(path):
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ReplayError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ReplayError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        return parse_setup(json.loads(text, object_pairs_hook=no_doubles, parse_constant=no_constant))
    except json.JSONDecodeError as error:
        raise ReplayError(f"{path}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError):
        raise ReplayError(f"{path}: nested too deeply, or a number with thousands of digits") from None
    except ReplayError as error:
        raise ReplayError(f"{path}: {error}") from None


def no_doubles(pairs):
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ReplayError(f"key {name!r} stands twice in one object")
    return dict(pairs)


def no_constant(text):
    raise ReplayError(f"{text} is not a number that JSON knows")


def parse_setup(value):
    """The :class:`Setup` in a decoded JSON value."""
    top = Reader(value, "", ("config", "port", "regions", "qps", "frame_gap_cycles", "end_us"))
    port = parse_port(top)
    regions = parse_regions(top)
    transport = transport_of(top)
    qps = tuple(parse_qp(*item, transport) for item in top.array("qps", []))
    return Setup(config=parse_config(top, regions, qps), regions=regions, qps=qps, port=port,
                 frame_gap_cycles=top.integer("frame_gap_cycles", 0, 1_000_000, 0),
                 end_ns=round(1000 * top.number("end_us", 0, 1e9, 0)))


def transport_of(top):
    """Which one the queue pairs are for; what is wrong with it is said when the whole configuration is read."""
    config = top.get("config", {})
    transport = config.get("transport") if isinstance(config, dict) else None
    return transport if isinstance(transport, str) and transport in QP_TYPES else "xp"


def parse_port(top):
    found = dict(zip(("mac", "ipv4", "ipv6"), PORT))
    if "port" in top.value:
        port = Reader(top.value["port"], "port", ("mac", "ipv4", "ipv6"))
        checks = {"mac": port.mac, "ipv4": lambda name: port.address(name, ipaddress.IPv4Address),
                  "ipv6": lambda name: port.address(name, ipaddress.IPv6Address)}
        for name in port.value:
            found[name] = str(checks[name](name))
    return tuple(found.values())


def parse_regions(top):
    regions = []
    for item, path in top.array("regions", []):
        r = Reader(item, path, ("rkey", "va", "length", "access", "pd", "fill"))
        access = r.array("access")
        for i, (word, where) in enumerate(access):
            if word not in ACCESS_WORDS:
                raise ReplayError(f"{where}: {show(word)} is not an access word; known are {', '.join(ACCESS_WORDS)}")
        fill = r.get("fill", 0)
        if fill != "index":
            if isinstance(fill, str):
                r.fail("fill", f"{fill!r} is neither a byte value nor \"index\"")
            fill = r.integer("fill", 0, 255, 0)
        region = RegionSetup(rkey=r.integer("rkey", 0, 2**32 - 1), va=r.integer("va", 0, 2**64 - 1),
                             length=r.integer("length", 1, 2**64 - 1), pd=r.integer("pd", 0, 0xFFFF, 0),
                             access=frozenset(word for word, _ in access), fill=fill)
        if region.va + region.length > 1 << 64:
            r.fail("length", f"the region ends beyond the last address, 2^64 - 1; at most {2**64 - region.va} fit behind its va")
        if any(region.rkey == other.rkey for other in regions):
            r.fail("rkey", f"{region.rkey} is also the key of an earlier region; keys must differ")
        regions.append(region)
        if sum(other.length for other in regions) > MEMORY_LIMIT:
            r.fail("length", f"the regions have more than {MEMORY_LIMIT} bytes together, more than a replay holds in memory")
    return tuple(regions)


def parse_qp(item, path, transport):
    q = Reader(item, path, ("qpn", "type", "pd", "mtu", "generation", "peer", "expected_psn", "receives", "arrival_map",
                            "min_rnr_timer", "traffic_class"))
    types = QP_TYPES[transport]
    kind = q.text("type", types[0])
    if kind not in types:
        q.fail("type", f"{kind!r} is not one of {', '.join(types)}, which a card of config.transport {transport!r} has")
    mtu = q.integer("mtu", 0, 2**32 - 1, 1024)
    if mtu not in MTUS:
        q.fail("mtu", f"{mtu} is not one of {', '.join(map(str, MTUS))}")
    peer = Reader(q.get("peer"), q.at("peer"), ("mac", "ipv4", "ipv6", "qpn", "generation"))
    if ("ipv4" in peer.value) == ("ipv6" in peer.value):
        raise ReplayError(f"{peer.path}: must have exactly one of ipv4 and ipv6")
    address = peer.address("ipv4", ipaddress.IPv4Address) if "ipv4" in peer.value else \
        peer.address("ipv6", ipaddress.IPv6Address)
    receives = tuple(parse_receive(*receive, transport) for receive in q.array("receives", []))
    return QpSetup(qpn=q.integer("qpn", 0, 2**24 - 1), type=kind, pd=q.integer("pd", 0, 0xFFFF, 0), mtu=mtu,
                   generation=q.integer("generation", 0, 255, 0), peer=address,
                   receives=receives, arrival_map=parse_map(q, kind, receives) if "arrival_map" in item else None,
                   peer_mac=peer.mac("mac") if "mac" in peer.value else QpSetup.peer_mac,
                   peer_qpn=peer.integer("qpn", 0, 2**24 - 1, 0),
                   peer_generation=peer.integer("generation", 0, 255, 0),
                   # of transport xp packets are taken in any order of PSN
                   expected_psn=q.integer("expected_psn", 0, 2**24 - 1, 0),
                   min_rnr_timer=q.integer("min_rnr_timer", 0, 31, QpSetup.min_rnr_timer),
                   traffic_class=q.integer("traffic_class", 0, 255, 0))


def parse_map(q, kind, receives):
    if kind != "xp":
        q.fail("arrival_map", f"queue pairs of type {kind!r} have none: their packets don't say which piece of a message they are")
    m = Reader(q.get("arrival_map"), q.at("arrival_map"), ("pieces", "rows"))
    pieces, rows = m.integer("pieces", 1, LARGEST_MAP[0]), m.integer("rows", 1, LARGEST_MAP[1], 1)
    for name, value in (("pieces", pieces), ("rows", rows)):
        if value & (value - 1):
            m.fail(name, f"{value} is not a power of two")
    if pieces * rows > MEMORY_LIMIT:
        m.fail("rows", f"the map has more than {MEMORY_LIMIT} bytes, more than a replay holds in memory")
    if len(receives) > rows:
        m.fail("rows", f"{rows} is too small: each of the {len(receives)} receives needs a row of its own")
    return pieces, rows


def parse_receive(item, path, transport="xp"):
    r = Reader(item, path, ("va", "length", "lkey", "timeout_us"))
    if transport == "rc" and r.get("timeout_us", 0):
        r.fail("timeout_us", "receives of a card of config.transport \"rc\" wait until a message comes; leave it out")
    return ReceiveSetup(va=r.integer("va", 0, 2**64 - 1), length=r.integer("length", 0, 2**32 - 1),
                        lkey=r.integer("lkey", 0, 2**32 - 1),
                        timeout_ns=ceil(1000 * r.number("timeout_us", 0, LARGEST_TIMEOUT_US, 0)))


# -- the configuration -------------------------------------------------------------------------------

def parse_config(top, regions, qps):
    knobs = top.get("config", {})
    if not isinstance(knobs, dict):
        raise ReplayError(f"config: must be an object, not {show(knobs)}")
    knobs = dict(knobs)
    name = knobs.pop("preset", "small")
    if not isinstance(name, str) or name not in PRESETS:
        raise ReplayError(f"config.preset: {show(name)} is not a preset; known are {', '.join(PRESETS)}")
    known = {f.name for f in NicConfig.knobs()}
    for knob in knobs:
        if knob not in known:
            raise ReplayError(f"config.{knob}: unknown key; known here are preset, {', '.join(sorted(known))}")
    given = set(knobs)
    try:
        cfg = preset(name, **knobs)
        wanted = room_for(cfg, given, regions, qps)
        cfg = cfg.with_(**wanted)
    except ConfigError as error:
        raise ReplayError(f"config: {error}") from None
    check_qps(cfg, qps)
    return cfg


def room_for(cfg, given, regions, qps):
    """Knobs to raise so that the setup fits; one that the user gave is not touched but refused."""
    needs = {
        "rq_entries": (max((len(qp.receives) for qp in qps), default=0), LARGEST_RING, "the longest list of receives has"),
        "num_regions": (2 * len(regions), 16384, "twice the number of regions, so that the hash table takes them all, is"),
        "num_peers": (len({(qp.peer, qp.peer_mac) for qp in qps}), 16384, "the number of different peers is"),
    }
    wanted = {}
    for knob, (need, limit, what) in needs.items():
        if need <= getattr(cfg, knob):
            continue
        enough = 1 << (need - 1).bit_length()
        if enough > limit:
            raise ReplayError(f"config.{knob}: {what} {need}, and the largest card has {limit}")
        if knob in given:
            raise ReplayError(f"config.{knob}: {getattr(cfg, knob)} is too small: {what} {need}; "
                              f"give {enough}, or leave {knob} out")
        wanted[knob] = enough
    return wanted


def check_qps(cfg, qps):
    taken = {}
    for i, qp in enumerate(qps):
        index = qp.qpn & (1 << cfg.qp_bits) - 1
        if index >= cfg.num_qps:
            raise ReplayError(f"qps[{i}].qpn: {qp.qpn} has the index {index} in its low {cfg.qp_bits} bits, and "
                              f"config.num_qps is {cfg.num_qps}; raise it to {1 << cfg.qp_bits} or choose another QPN")
        if index in taken:
            other = taken[index]
            differ = qps[other].qpn ^ qp.qpn
            remedy = "give each queue pair its own QPN" if not differ else "choose another QPN" \
                if (differ & -differ).bit_length() > 14 else \
                f"raise config.num_qps to {1 << (differ & -differ).bit_length()} or choose another QPN"
            raise ReplayError(f"qps[{i}].qpn: {qp.qpn} and the {qps[other].qpn} of qps[{other}] share their low "
                              f"{cfg.qp_bits} bits, by which the card tells them apart; {remedy}")
        taken[index] = i
        if qp.mtu > cfg.mtu_max:
            raise ReplayError(f"qps[{i}].mtu: {qp.mtu} exceeds config.mtu_max={cfg.mtu_max}; lower it or raise mtu_max")
        if qp.arrival_map and not cfg.arrival_map:
            raise ReplayError(f"qps[{i}].arrival_map: needs config.arrival_map, which is off")
        if qp.type == "uc" and not cfg.uc:
            raise ReplayError(f"qps[{i}].type: \"uc\" needs config.uc, which is off")
        if qp.peer.version == 6 and not cfg.ipv6:
            raise ReplayError(f"qps[{i}].peer.ipv6: needs config.ipv6, which is off")
