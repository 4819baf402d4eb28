"""What each frame will look like, in beats and lanes, before its first beat is made."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.rx.pipeline import FixedPipe
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.wire.headers import BTH, ETHERNET, ICRC_BYTES, IMMDT, IPV4, IPV6, RETH, UDP, VLAN, XPETH

from .headers import header_layout, local_signature, route_layout
from .packet import loaded_layout
from .peers import PeerTable, peer_set_signature

__all__ = ["FramePlanner", "plan_layout"]

# Ethernet ends two bytes behind a multiple of four, everything behind it is a multiple of four long: so every boundary but
# the payload's end is at 4 w + 2, and lengths are counted in words of four bytes.
_LINK_WORDS = (ETHERNET.size - 2) // 4
_MIN_FRAME = 60


def words(header):
    return header.size // 4


def plan_layout(cfg):
    lane, group = range(cfg.beat_bytes), range(cfg.beat_bytes // 4)
    return StructLayout({
        "silent": 1, "failed": 1,       # nothing is sent
        "vlan": 1, "v6": 1,
        "addr": range(cfg.tx_buffer_beats),     # source beat to read for the first step of the frame
        "beats": range(cfg.mtu_max // cfg.beat_bytes + 2),      # that the packet gives back
        "pre": 1,           # a step without a beat comes first: the frame's first beat needs two source beats
        "rotate": lane,     # payload, upwards
        "spare": 1,         # the last step needs no source beat
        "head_beats": range(128 // cfg.beat_bytes + 1), "head_group": group,    # beats full of headers; their end: lane 4 g + 2
        "last": range(cfg.max_frame_beats),     # number of the last beat
        "data_end": lane, "data_in_last": 1,    # first lane behind the payload, in the last beat or in the one before it
        "group": group,     # the ICRC begins at lane 4 g + 2; if it is in two beats, the last one has two bytes
        "runt": 1,          # 58 bytes, to be padded to 60
    })


class FramePlanner(wiring.Component):
    """Takes `packets`, one each cycle, looks up their peers and hands out a plan and the parts of the headers for each.

    `plans` follow in order, seven cycles later; the header parts (see HeaderStack) are there when the plan is. At most
    cfg.packets_on_the_way packets are between here and `taken` (the headers of one have left); then `packets` waits.
    A packet's peer is read when it arrives: a later change doesn't touch it.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "packets": In(stream.Signature(loaded_layout(cfg))),
            "peer_set": In(peer_set_signature(cfg)), "clearing": Out(1),
            "local": In(local_signature()),
            "header": Out(PushSignature(header_layout(cfg))), "route": Out(PushSignature(route_layout(cfg))),
            "checksum": Out(PushSignature(unsigned(16))),
            "plans": Out(stream.Signature(plan_layout(cfg))), "taken": In(1),
            "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        cfg, packet = self.cfg, self.packets.payload

        # -- room for one more
        ahead = Signal(range(cfg.packets_on_the_way + 1))
        ahead_next = Signal.like(ahead)
        room = Signal()
        accept = Signal()
        m.d.comb += [self.packets.ready.eq(room), accept.eq(self.packets.valid & room),
                     ahead_next.eq(ahead + accept - self.taken), self.idle.eq(ahead == 0)]
        m.d.sync += [ahead.eq(ahead_next), room.eq(ahead_next < cfg.packets_on_the_way)]
        valid = Signal(6)       # bit i: at stage i + 1
        m.d.sync += valid.eq(Cat(accept, valid))

        # -- the parts of the headers: record at once, peer with stage 2, checksum with stage 6
        m.submodules.peers = peers = PeerTable(cfg)
        m.d.comb += [peers.set.en.eq(self.peer_set.en),
                     peers.set.index.eq(self.peer_set.index), peers.set.entry.eq(self.peer_set.entry),
                     self.clearing.eq(peers.clearing), peers.index.eq(packet.peer)]
        peer = peers.entry
        p = FixedPipe(m, "plan")
        self._lengths(p, packet, peer)
        v = p.at(2)
        m.d.comb += [
            self.header.valid.eq(accept),
            *(getattr(self.header.payload, name).eq(getattr(packet, name)) for name in header_layout(cfg).members),
            self.route.valid.eq(valid[1]), self.route.payload.peer.eq(peer), self.route.payload.pad.eq(v.pad),
            self.route.payload.udp_words.eq(v.udp_words),
            self.checksum.valid.eq(valid[5]), self.checksum.payload.eq(self._checksum(m, p, packet, peer)),
        ]

        m.submodules.queue = queue = StreamFifo(plan_layout(cfg), cfg.packets_on_the_way)        # never full: a packet is counted in `ahead`
        m.d.comb += queue.i.valid.eq(valid[4])
        v = p.at(5)
        for name in plan_layout(cfg).members:
            m.d.comb += getattr(queue.i.payload, name).eq(getattr(v, name))
        wiring.connect(m, queue.o, wiring.flipped(self.plans))
        return m

    def _lengths(self, p, packet, peer):
        cfg = self.cfg
        lanes = cfg.beat_bytes
        lane_bits = lanes.bit_length() - 1
        group_bits = lane_bits - 2

        # -- stage 1: of the packet alone
        assert words(XPETH) == words(RETH) == 4 and words(IMMDT) == 1
        if cfg.rc:      # an atomic has three words
            extension = Cat(packet.immdt | packet.atomic, packet.atomic, packet.reth)
        else:
            extension = Cat(packet.immdt, Const(0, 1), packet.xpeth ^ packet.reth, packet.xpeth & packet.reth)
        fixed = words(UDP) + words(BTH) + ICRC_BYTES // 4
        p.put("extension", 1, extension)
        p.put("udp_words", 1, ((extension + fixed) + (packet.len >> 2) + packet.len[:2].any())[:12])
        p.put("pad", 1, (-packet.len)[:2])
        p.put("some", 1, packet.len.any() & ~packet.silent & ~packet.failed)
        for name in ("silent", "failed", "lane", "beat", "beats"):
            p.put(name, 1, getattr(packet, name))

        # -- stage 3: with the peer; `end` is that of the frame, `head` that of its headers
        v = p.at(2)
        network = _LINK_WORDS + (Mux(peer.v6, words(IPV6), words(IPV4)) if cfg.ipv6 else words(IPV4))
        tag = peer.vlan * words(VLAN)
        p.put("vlan", 3, peer.vlan)
        p.put("v6", 3, peer.v6)
        p.put("end", 3, (v.udp_words + network + tag)[:12])
        p.put("head", 3, (v.extension + (words(UDP) + words(BTH)) + network + tag)[:5])

        # -- stage 4: in beats and lanes
        v = p.at(3)
        p.put("last", 4, v.end[group_bits:][:(cfg.max_frame_beats - 1).bit_length()])
        p.put("group", 4, (v.end - 1)[:group_bits])
        p.put("runt", 4, v.end == (_MIN_FRAME - 2) // 4)
        p.put("head_beats", 4, v.head[group_bits:])
        p.put("head_group", 4, v.head[:group_bits])
        turn = Cat(Const(2, 2), v.head[:group_bits]) - v.lane       # negative: source lanes are above the target's
        p.put("rotate", 4, turn[:lane_bits])
        p.put("early", 4, turn[-1])
        behind = Cat(Const(0, 2), v.end[:group_bits]) - (v.pad + 2)
        p.put("data_end", 4, behind[:lane_bits])
        p.put("data_in_last", 4, ~behind[-1])

        # -- stage 5: which source beat goes with which step
        v = p.at(4)
        pre = v.early & (v.head_beats == 0) & v.some if lanes > 54 else Const(0)
        p.put("pre", 5, pre)
        p.put("addr", 5, (v.beat + (v.early & ~pre) - v.head_beats)[:len(v.beat)])
        p.put("spare", 5, ~v.some | ~v.data_in_last | (v.data_end <= v.rotate))

    def _checksum(self, m, p, packet, peer):
        """Of the IPv4 header, at stage 6: the one's complement of the one's complement sum of its 16-bit words."""
        local = self.local
        addresses = Signal(17)
        with_ttl = Signal(18)
        constant = Signal(19)
        m.d.sync += [
            addresses.eq(local.ip4[:16] + local.ip4[16:]), with_ttl.eq(addresses + Cat(Const(17, 8), local.hop_limit)),
            constant.eq(with_ttl + (0x4500 + 0x4000)),      # version and IHL; don't fragment
        ]
        p.put("tclass", 1, packet.tclass)
        p.put("length", 2, Cat(Const(0, 2), p.get("udp_words", 1) + words(IPV4)) + p.get("tclass", 1))
        p.put("target", 3, peer.ip[:16] + peer.ip[16:32])
        p.put("own", 4, p.get("target", 3) + p.get("length", 3))
        p.put("sum", 5, p.get("own", 4) + constant)
        total = p.get("sum", 5)
        p.put("once", 6, total[:16] + total[16:])
        once = p.get("once", 6)
        return ~(once[:16] + once[16])[:16]
