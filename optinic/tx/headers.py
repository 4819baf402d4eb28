"""The headers of a frame, side by side without gaps, made of a packet's record and its peer's addresses."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from optinic.rx.pipeline import FixedPipe
from optinic.stream.push import PushSignature
from optinic.wire.headers import (BTH, ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, IMMDT, IPV4, IPV6, PROTOCOL_UDP,
                                  RETH, ROCE_PORT, UDP, VLAN, XPETH)

from .packet import header_bytes_max, header_members
from .peers import tx_peer_layout

__all__ = ["HeaderStack", "header_layout", "route_layout", "local_signature"]

_ELSEWHERE = ("peer", "len", "silent")      # of a record: what is in its headers in another form, or not at all


def header_layout(cfg):
    """What of a packet's record is in its headers, but for the lengths."""
    return StructLayout({name: shape for name, shape in header_members(cfg).items() if name not in _ELSEWHERE})


def route_layout(cfg):
    """The peer, and the lengths: `pad` bytes behind the payload, `udp_words` of four bytes from the UDP header to the ICRC."""
    return StructLayout({"peer": tx_peer_layout(cfg), "pad": 2, "udp_words": 12})


def local_signature():
    """This card's addresses, as numbers. Set while nothing is sent."""
    return wiring.Signature({"mac": Out(48), "ip4": Out(32), "ip6": Out(128), "hop_limit": Out(8), "pkey": Out(16)})


def fields_of(header, **values):
    """The header's bytes, first byte lowest, as one Value; fields not given are zero."""
    bits = []       # in network order
    for f in header.fields:
        value = values.pop(f.name, None)
        value = Const(0, f.width) if value is None else Const(value, f.width) if isinstance(value, int) else Value.cast(value)
        assert len(value) == f.width, f"{header.name}.{f.name} has {f.width} bits, not {len(value)}"
        bits += [value[i] for i in reversed(range(f.width))]
    assert not values, f"{header.name} has no field {', '.join(values)}"
    return Cat(Cat(reversed(bits[i:i + 8])) for i in range(0, len(bits), 8))


class HeaderStack(wiring.Component):
    """Queues of the parts of each packet's headers, in LUT memory, and the packed headers of the oldest one on demand.

    `header`, `route` and `checksum` (of the IPv4 header; anything if the packet isn't one) bring the parts, each in the order
    of the packets. `take`, which may come every cycle, asks for the oldest packet's headers, whose parts must be here: `word`
    has them three cycles later, byte 0 lowest, zeroes behind the last header. At most cfg.packets_on_the_way packets are ahead of
    `take`.
    """

    latency = 3

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "header": In(PushSignature(header_layout(cfg))), "route": In(PushSignature(route_layout(cfg))),
            "checksum": In(PushSignature(unsigned(16))),
            "local": In(local_signature()),
            "take": In(1), "word": Out(8 * header_bytes_max(cfg)),
        })

    def elaborate(self, platform):
        m = Module()
        slots = self.cfg.packets_on_the_way
        take_at = Signal(range(slots))
        m.d.sync += take_at.eq(take_at + self.take)
        p = FixedPipe(m, "stack")
        for name, port, shape in (("header", self.header, header_layout(self.cfg)), ("route", self.route, route_layout(self.cfg)),
                                  ("checksum", self.checksum, unsigned(16))):
            payload = Value.cast(port.payload)
            m.submodules[name] = ram = Memory(shape=unsigned(len(payload)), depth=slots, init=[],
                                              attrs={"ram_style": "distributed"})
            write, read = ram.write_port(), ram.read_port(domain="comb")
            at = Signal(range(slots), name=f"{name}_at")
            m.d.sync += at.eq(at + port.valid)
            m.d.comb += [write.en.eq(port.valid), write.addr.eq(at), write.data.eq(payload), read.addr.eq(take_at)]
            p.put(name, 1, read.data)
        header = header_layout(self.cfg)(p.get("header", 1))
        p.put("extension", 2, self._extension(header))
        p.put("ip4_words", 2, route_layout(self.cfg)(p.get("route", 1)).udp_words + IPV4.size // 4)
        p.put("word", 3, self._packed(p))
        m.d.comb += self.word.eq(p.get("word", 3))
        return m

    def _extension(self, h):
        """XPETH, RETH and ImmDt, those that are there, without gaps."""
        if self.cfg.rc:
            return self._rc_extension(h)
        xp = fields_of(XPETH, **{name: getattr(h, name) for name in (
            "tracked", "echo", "generation", "tag", "seq", "msg_len", "offset")})
        reth = fields_of(RETH, va=h.va, rkey=h.rkey, length=h.dma_len)
        imm = fields_of(IMMDT, imm=h.imm)
        low, high = slice(0, 32), slice(32, 128)
        both, either = h.xpeth & h.reth, h.xpeth ^ h.reth
        return Cat(
            Mux(h.xpeth, xp[low], Mux(h.reth, reth[low], Mux(h.immdt, imm, 0))),
            Mux(h.xpeth, xp[high], Mux(h.reth, reth[high], 0)),
            Mux(both, reth[low], Mux(either & h.immdt, imm, 0)),
            Mux(both, reth[high], 0),
            Mux(both & h.immdt, imm, 0),
        )

    def _rc_extension(self, h):
        """RETH, or what AtomicETH begins with, and the word behind it; see packet.header_members."""
        reth, imm = fields_of(RETH, va=h.va, rkey=h.rkey, length=h.dma_len), fields_of(IMMDT, imm=h.imm)
        return Cat(
            Mux(h.reth | h.atomic, reth[:32], Mux(h.immdt, imm, 0)),
            Mux(h.reth | h.atomic, reth[32:96], 0),
            Mux(h.reth, reth[96:], 0),
            Mux(h.reth & h.immdt, imm, 0),
        )

    def _packed(self, p):
        cfg, local = self.cfg, self.local
        v = p.at(2)
        h, route = header_layout(cfg)(v.header), route_layout(cfg)(v.route)
        peer = route.peer
        udp_length = Cat(Const(0, 2), route.udp_words)
        transport = Cat(
            fields_of(UDP, src_port=h.sport, dst_port=ROCE_PORT, length=_to16(udp_length)),
            fields_of(BTH, opcode=h.opcode, solicited=h.solicited, pad_count=route.pad, pkey=local.pkey, becn=h.becn,
                      dest_qp=h.dest_qpn, psn=h.psn, **({"ack_req": h.ack_req} if cfg.rc else {})),
            v.extension)
        ip4 = fields_of(IPV4, version=4, ihl=5, dscp=h.tclass[2:], ecn=h.tclass[:2], flags=2, ttl=local.hop_limit,
                        total_length=_to16(Cat(Const(0, 2), v.ip4_words)), protocol=PROTOCOL_UDP, checksum=v.checksum,
                        src=local.ip4, dst=peer.ip[:32])

        def by_version(four, six):
            return Mux(peer.v6, six, four) if cfg.ipv6 else four

        network = Cat(ip4, transport)
        if cfg.ipv6:
            ip6 = fields_of(IPV6, version=6, dscp=h.tclass[2:], ecn=h.tclass[:2], payload_length=_to16(udp_length),
                            next_header=PROTOCOL_UDP, hop_limit=local.hop_limit, src=local.ip6, dst=peer.ip)
            network = by_version(network, Cat(ip6, transport))

        link = fields_of(ETHERNET, dst=peer.mac, src=local.mac, ethertype=by_version(ETHERTYPE_IPV4, ETHERTYPE_IPV6))
        if not cfg.vlan:
            return Cat(link, network)
        # the tag goes between the addresses and the EtherType
        addresses, kind = link[:96], link[96:]
        tag = fields_of(VLAN, pcp=peer.tci[13:], dei=peer.tci[12], vid=peer.tci[:12])[:16]
        tpid = Cat(Const(ETHERTYPE_VLAN >> 8, 8), Const(ETHERTYPE_VLAN & 0xFF, 8))
        return Cat(addresses, Mux(peer.vlan, Cat(tpid, tag, kind, network), Cat(kind, network)))


def _to16(value):
    return Cat(value, Const(0, 16 - len(value)))
