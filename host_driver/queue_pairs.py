"""What the driver knows of one life of a queue pair: its attributes as the card takes them, and the account of its two rings."""

from dataclasses import dataclass, field
import ipaddress

from optinic.abi.registers import MTU_CODE, QP_STATE, QP_TYPE

from .queues import WorkQueue

__all__ = ["ArrivalMap", "QueuePair", "Reliability", "TYPES", "mac_number", "mac_text", "peer_words"]

#: transport of a card -> the types of its queue pairs, the usual one first
TYPES = {"xp": ("xp", "uc"), "rc": ("rc", "uc")}


@dataclass(frozen=True)
class ArrivalMap:
    """Host memory in which the card notes what arrived of a QP's messages: `rows` rows of `pieces` bytes from bus address `addr`
    on.

    Receive i has row i modulo `rows`, and byte n of it is for the packet that begins in the n-th MTU of the message. It is
    the low byte of i once that packet is in memory. As many receives can be uncompleted as there are rows."""
    addr: int
    pieces: int
    rows: int = 1

    def __post_init__(self):
        for name, most in (("pieces", 1 << 24), ("rows", 1 << 15)):
            value = getattr(self, name)
            if not 1 <= value <= most or value & (value - 1):
                raise ValueError(f"{name}={value} of an arrival map is not a power of two from 1 to {most}")
        if self.addr % 64 or not 0 <= self.addr <= (1 << 64) - self.size:
            raise ValueError(f"addr={self.addr:#x} of an arrival map of {self.size} bytes is not a multiple of 64 in the 64-bit "
                             f"address space")

    @property
    def size(self):
        return self.pieces * self.rows

    def row(self, index):
        """Bus address of the row of receive `index`."""
        return self.addr + index % self.rows * self.pieces


@dataclass(frozen=True)
class Reliability:
    """What a QP of a card of transport rc has beside, as in verbs: first PSN sent and expected; ACK timeout (4.096 us *
    2^timeout, 0: none) and how often a request is sent again; RNR retries (7: for ever) and the code of the time that the peer
    is to wait. `window`: requests outstanding at most, 0: as many as the card was built for. Of type uc only the PSNs count."""
    sq_psn: int = 0
    rq_psn: int = 0
    timeout: int = 0
    retry_cnt: int = 7
    rnr_retry: int = 7
    min_rnr_timer: int = 1
    window: int = 0

    def __post_init__(self):
        for name, most in (("sq_psn", 0xFFFFFF), ("rq_psn", 0xFFFFFF), ("timeout", 31), ("retry_cnt", 7), ("rnr_retry", 7),
                           ("min_rnr_timer", 31), ("window", 64)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name}={getattr(self, name)} is outside 0..{most}")

    @property
    def words(self):
        return (self.sq_psn | self.retry_cnt << 24 | self.rnr_retry << 27, self.rq_psn | self.timeout << 24,
                self.min_rnr_timer | self.window << 8)


@dataclass
class QueuePair:
    """One life of a QP. `mtu_max` is the card's; `slots` are the entries of its receive and its send ring, `rings` the
    CompletionRings where receives and sends end (None: unknown). `failure`: of type rc, the completion by which it failed.
    `contradiction`: what the card said of it that can't be; from then on nothing that it says of this life is believed."""
    qpn: int
    mtu_max: int
    slots: tuple
    rings: tuple = (None, None)
    transport: str = "xp"       # of the card
    type: str = None            # None: the usual one
    state: str = "ready"
    mtu: int = 1024
    generation: int = 0
    pd: int = 0
    peer: int = 0
    cq: int = 0
    send_cq: int = 0
    map: ArrivalMap = None
    peer_qpn: int = 0
    peer_generation: int = 0
    traffic_class: int = 0
    paths: int = 1
    reliable: Reliability = Reliability()       # transport rc only
    failure: object = None
    contradiction: str = None
    results: int = 0            # READs and atomics so far: the n-th has entry n of the read ring
    messages: int = 0           # tracked sends so far: the k-th consumes receive k at the peer
    signal_every: int = field(init=False)       # at least one send of so many asks for a CQE, so that slots come free again
    receives: WorkQueue = field(init=False)
    sends: WorkQueue = field(init=False)

    def __post_init__(self):
        if self.mtu not in MTU_CODE or self.mtu > self.mtu_max:
            known = ", ".join(str(m) for m in MTU_CODE if m <= self.mtu_max)
            raise ValueError(f"mtu={self.mtu} is not one of {known}")
        types = TYPES[self.transport]
        self.type = types[0] if self.type is None else self.type
        if self.type not in types:
            raise ValueError(f"type={self.type!r}: this card is of transport {self.transport}, its queue pairs of type "
                             f"{' or '.join(types)}")
        if self.state not in QP_STATE:
            raise ValueError(f"state={self.state!r} is not one of {', '.join(QP_STATE)}")
        if self.transport == "rc" and self.paths != 1:
            raise ValueError(f"paths={self.paths}: this card is of transport rc, which keeps packets in order, over one path")
        for name, bits in (("generation", 8), ("peer_qpn", 24), ("peer_generation", 8), ("traffic_class", 8)):
            if not 0 <= getattr(self, name) < 1 << bits:
                raise ValueError(f"{name}={getattr(self, name)} does not fit {bits} bits")
        if not 1 <= self.paths <= 128 or self.paths & (self.paths - 1):
            raise ValueError(f"paths={self.paths} is not a power of two from 1 to 128")
        if self.map and self.type != "xp":
            raise ValueError(f"type={self.type!r} has no arrival map: its packets don't say which piece of a message they are")
        self.receives = WorkQueue(self.qpn, "receive", self.slots[0], self.rings[0])
        self.sends = WorkQueue(self.qpn, "send", self.slots[1], self.rings[1], whole=self.type == "rc")
        self.signal_every = max(1, min(self.slots[1], self.rings[1].entries if self.rings[1] else self.slots[1]) // 4)

    @property
    def posted(self):
        """Receives posted in this life."""
        return self.receives.posted

    @property
    def completed(self):
        return self.receives.completed

    def queue(self, name):
        return {"receive": self.receives, "send": self.sends}[name]

    def arguments(self, state):
        """Of qp_set and qp_flush."""
        word = (QP_STATE[state] | QP_TYPE[self.type] << 4 | MTU_CODE[self.mtu] << 8 | self.generation << 16 |
                (self.map is not None) << 24)
        place = self.reliable.words if self.transport == "rc" else (0, 0, 0)
        if self.map:
            place = (self.map.pieces.bit_length() - 1 | self.map.rows.bit_length() - 1 << 8, self.map.addr & 0xFFFFFFFF,
                     self.map.addr >> 32)
        return (self.qpn, word, self.pd, self.peer, self.cq, *place, self.peer_qpn | self.peer_generation << 24,
                self.send_cq | self.traffic_class << 16 | self.paths.bit_length() - 1 << 24)


def mac_number(mac):
    """A MAC address ("02:00:00:00:00:01", six bytes, or a number) as a number, its first byte the highest."""
    if isinstance(mac, str):
        parts = mac.replace("-", ":").split(":")
        if len(parts) != 6 or not all(len(p) in (1, 2) and set(p.lower()) <= set("0123456789abcdef") for p in parts):
            raise ValueError(f"{mac!r} is not a MAC address like 02:00:00:00:00:01")
        mac = bytes(int(p, 16) for p in parts)
    if isinstance(mac, (bytes, bytearray)):
        if len(mac) != 6:
            raise ValueError(f"a MAC address has 6 bytes, not {len(mac)}")
        mac = int.from_bytes(mac, "big")
    if not 0 <= mac < 1 << 48:
        raise ValueError(f"{mac:#x} is not a MAC address of 48 bits")
    return mac


def mac_text(mac):
    return ":".join(f"{b:02x}" for b in mac_number(mac).to_bytes(6, "big"))


def peer_words(ip, mac, vlan):
    """The arguments of peer_set behind the index."""
    ip, mac = ipaddress.ip_address(ip), mac_number(mac)
    if vlan is not None and not 0 <= vlan < 1 << 16:
        raise ValueError(f"vlan={vlan} is not a VLAN tag of 16 bits (priority, DEI, number)")
    return (*(int(ip) >> 32 * i & 0xFFFFFFFF for i in range(4)), int(ip.version == 6), mac & 0xFFFFFFFF, mac >> 32,
            0 if vlan is None else vlan | 1 << 16)
