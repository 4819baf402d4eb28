"""ICRC check of received frames (IBTA volume 1, annex A17.3), without moving a byte from its place in the beat."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.wire.headers import ETHERNET, IPV6, VLAN
from optinic.wire.icrc import CrcStep, RESIDUE, advance, icrc_masks

from .pipeline import FixedPipe

__all__ = ["IcrcCheck"]


def at_least(value):
    """``value >= n`` for every n that `value` can be. Built by halves, so that it maps to one function of its bits each."""
    if not len(value):
        return [Const(1, 1)]
    top, rest = value[-1], at_least(value[:-1])
    return [top | r for r in rest] + [top & r for r in rest]


class IcrcCheck(wiring.Component):
    """Whether the IP datagram in each frame ends with its right ICRC. Never stalls; frames may follow without a gap.

    A beat of a frame enters each cycle with the frame's kind (`vlan`, `v6`, right from the beat that holds the EtherType
    on) and the length field of its IP header (`ip_length`, right from the beat that holds byte 23 on; it may be undefined
    before). `ok` belongs to the last beat that entered `latency` cycles before. It means something only if the datagram
    is long enough for its headers and not longer than the frame; what follows it in the frame is ignored.

    Everything before the IP header and behind the ICRC is zeroed, masked fields are set, and the seed is added to the
    first four IP bytes, see wire/icrc.py. The register after the beat that holds the ICRC's last byte, with n zeroed
    bytes behind it, must be RESIDUE advanced by n: a constant for each n.
    """

    latency = 9

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "valid": In(1), "last": In(1), "data": In(cfg.data_width), "index": In(range(cfg.max_frame_beats + 1)),
            "vlan": In(1), "v6": In(1), "ip_length": In(16),
            "ok": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        lanes = cfg.beat_bytes
        lane_bits = lanes.bit_length() - 1

        valid = Signal(self.latency)        # bit i: at stage i + 1
        m.d.sync += valid.eq(Cat(self.valid, valid))
        p = FixedPipe(m, "icrc")
        for name in ("last", "data", "index", "vlan", "v6"):
            p.put(name, 1, getattr(self, name))

        # -- where the datagram ends, from its length and kind
        base = Cat(self.vlan, self.v6)
        starts = [ETHERNET.size + VLAN.size * vlan + IPV6.size * v6 - 1 for v6 in (0, 1) for vlan in (0, 1)]
        p.put("end", 1, self.ip_length + Array(Const(s, 7) for s in starts)[base])
        v = p.at(1)
        early = (24 - 1) // lanes           # in beats before this one the length is not known; none of them is the end
        known = v.index >= early if early else Const(1)
        end_beat = v.end[lane_bits:]
        p.put("inside", 2, ~known | (v.index < end_beat))
        p.put("ends", 2, known & (v.index == end_beat))
        p.put("end_lane", 2, v.end[:lane_bits])

        # -- which bytes count, and how the bits of the headers are changed
        v = p.at(2)
        for lane, covered in enumerate(at_least(v.end_lane)):
            p.put(f"keep{lane}", 3, v.inside | v.ends & covered)
        use, flip = self._header_masks(p)
        v = p.at(3)
        masked = []
        for bit in range(cfg.data_width):
            value = v.data[bit] & p.get(f"keep{bit // 8}", 3)
            if bit in use:
                value &= ~use[bit]
            if bit in flip:
                value ^= flip[bit]
            masked.append(value)
        p.put("masked", 4, Cat(masked))

        m.submodules.crc = crc = CrcStep(cfg.data_width)
        m.d.comb += [crc.valid.eq(valid[3]), crc.last.eq(p.get("last", 4)), crc.data.eq(p.get("masked", 4))]

        # -- the verdict: stage 7 has the register
        behind = ~p.get("end_lane", 6)      # zeroed bytes in the beat where it ends
        residues = Array(Const(advance(RESIDUE, n), 32) for n in range(lanes))
        p.put("residue", 7, residues[behind[:lane_bits]])
        p.put("match", 8, crc.state == p.get("residue", 7))
        held = Signal(reset_less=True)      # the verdict of a frame that goes on behind its datagram
        now = Mux(p.get("ends", 8), p.get("match", 8), held)
        with m.If(valid[7]):
            m.d.sync += held.eq(now)
        m.d.comb += self.ok.eq(held)
        return m

    def _header_masks(self, p):
        """For each bit of a beat that needs it, a signal at stage 3: use[bit] zeroes it, flip[bit] inverts it after that.

        Bits that are treated alike in the same beats of the same kinds of frame share one signal.
        """
        cfg, lanes = self.cfg, self.cfg.beat_bytes
        use, flip = {}, {}
        for vlan in range(1 + cfg.vlan):
            for v6 in range(1 + cfg.ipv6):
                for byte, (keep, change) in enumerate(icrc_masks(ETHERNET.size + VLAN.size * vlan, v6)):
                    index, lane = divmod(byte, lanes)
                    for j in range(8):
                        bit = 8 * lane + j
                        if not keep >> j & 1:
                            use.setdefault(bit, set()).add((index, vlan, v6))
                        if change >> j & 1:
                            flip.setdefault(bit, set()).add((index, vlan, v6))
        v, shared = p.at(2), {}

        def signal(cases):
            cases = frozenset(cases)
            if cases not in shared:
                value = Const(0)
                for index, vlan, v6 in sorted(cases):
                    value |= (v.index == index) & (v.vlan == vlan) & (v.v6 == v6)
                shared[cases] = p.put(f"mask{len(shared)}", 3, value)
            return shared[cases]

        return {b: signal(c) for b, c in use.items()}, {b: signal(c) for b, c in flip.items()}
