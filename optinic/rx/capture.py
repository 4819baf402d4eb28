"""The first bytes of each frame, side by side, and what kind of frame they make it."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.wire.headers import ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, IPV4, IPV6, VLAN

from .intake import beat_signature

__all__ = ["Capture", "captured_signature", "variants", "HEADER_BYTES", "slice_field"]

HEADER_BYTES = 128          #: more than the longest stack of headers: 18 + 40 + 8 + 12 + 16 + 16 + 4


def captured_signature(cfg):
    """A beat with what is known of its frame by then.

    `header` holds the frame's bytes so far, also the beat's own (byte 0 lowest), up to HEADER_BYTES; bytes that have not
    come are undefined. `vlan`, `v4`, `v6` are right from the beat that holds the EtherType. `length` is that of the frame,
    in bytes, on its last beat.
    """
    return wiring.Signature({
        "valid": Out(1), "last": Out(1), "data": Out(cfg.data_width),
        "index": Out(range(cfg.max_frame_beats + 1)),
        "header": Out(8 * HEADER_BYTES),
        "vlan": Out(1), "v4": Out(1), "v6": Out(1),
        "length": Out(range(cfg.max_frame_bytes + cfg.beat_bytes + 1)),
        "damaged": Out(1), "over": Out(1), "beats": Out(range(cfg.max_frame_beats + 1)),
    })


def slice_field(byte, base, header, name):
    """Field `name` of `header` at byte `base`, of bytes that ``byte(i)`` gives: a Value."""
    f = header[name]
    first, last = f.bit // 8, (f.bit + f.width - 1) // 8
    low = 8 * (last + 1) - f.bit - f.width
    return Cat(byte(base + i) for i in range(last, first - 1, -1))[low:low + f.width]


def variants(cfg, vlan, v6, value):
    """``value(l3, v6)`` chosen by the kind of frame: `l3` is where the IP header begins."""
    def by_version(l3):
        return Mux(v6, value(l3, True), value(l3, False)) if cfg.ipv6 else value(l3, False)
    untagged = by_version(ETHERNET.size)
    return Mux(vlan, by_version(ETHERNET.size + VLAN.size), untagged) if cfg.vlan else untagged


class Capture(wiring.Component):
    """Follows `beat` by one cycle; never stalls.

    `header` and the kind are overwritten beat by beat by the next frame, which may come at once: take them in the cycle
    of the last beat. `ip_length` is the field of that name in the IP header: total length (IPv4), payload length (IPv6).
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "beat": In(beat_signature(cfg)),
            "captured": Out(captured_signature(cfg)),
            "ip_length": Out(16),
        })

    def elaborate(self, platform):
        m = Module()
        cfg, beat, out = self.cfg, self.beat, self.captured

        valid = Signal()
        m.d.sync += valid.eq(beat.valid)
        m.d.comb += out.valid.eq(valid)
        length = (beat.index * cfg.beat_bytes + beat.count)[:len(out.length)]
        for target, value in [(out.last, beat.last), (out.data, beat.data), (out.index, beat.index), (out.length, length),
                              (out.damaged, beat.damaged), (out.over, beat.over), (out.beats, beat.beats)]:
            reg = Signal.like(target, name=f"captured_{target.name.split('__')[-1]}", reset_less=True)
            m.d.sync += reg.eq(value)
            m.d.comb += target.eq(reg)

        header = Signal(8 * HEADER_BYTES, reset_less=True)
        m.d.comb += out.header.eq(header)
        for i in range(HEADER_BYTES // cfg.beat_bytes):
            with m.If(beat.valid & (beat.index == i)):
                m.d.sync += header[i * cfg.data_width:(i + 1) * cfg.data_width].eq(beat.data)

        def ethertype(byte, value, name):
            """Whether the two bytes at `byte` are `value`, known together with them."""
            flag = Signal(name=name, reset_less=True)
            lane = byte % cfg.beat_bytes
            with m.If(beat.valid & (beat.index == byte // cfg.beat_bytes)):
                m.d.sync += flag.eq(Cat(beat.data.word_select(lane + 1, 8), beat.data.word_select(lane, 8)) == value)
            return flag

        plain, tagged = ETHERNET.size - 2, ETHERNET.size + VLAN.size - 2
        v4, v6 = ethertype(plain, ETHERTYPE_IPV4, "plain_v4"), ethertype(plain, ETHERTYPE_IPV6, "plain_v6")
        if cfg.vlan:
            m.d.comb += out.vlan.eq(ethertype(plain, ETHERTYPE_VLAN, "is_tagged"))
            v4 = Mux(out.vlan, ethertype(tagged, ETHERTYPE_IPV4, "tagged_v4"), v4)
            v6 = Mux(out.vlan, ethertype(tagged, ETHERTYPE_IPV6, "tagged_v6"), v6)
        m.d.comb += out.v4.eq(v4)
        if cfg.ipv6:
            m.d.comb += out.v6.eq(v6)

        byte = lambda i: header.word_select(i, 8)
        m.d.comb += self.ip_length.eq(variants(cfg, out.vlan, out.v6, lambda l3, is_v6:
            slice_field(byte, l3, IPV6, "payload_length") if is_v6 else slice_field(byte, l3, IPV4, "total_length")))
        return m
