"""ICRC of the frames that are being built, one beat each cycle (IBTA volume 1, annex A17.3)."""

from functools import lru_cache

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.rx.pipeline import FixedPipe
from optinic.stream.push import PushSignature
from optinic.wire.headers import ETHERNET, VLAN
from optinic.wire.icrc import CrcStep, advance, icrc_masks, xor_of

__all__ = ["IcrcMaker", "icrc_beat_layout"]


def icrc_beat_layout(cfg):
    """A beat of a frame, all zero where its ICRC will be and behind that. `cover`: the last beat of the part that the ICRC
    covers, which ends before lane 4 g + 2, g = `group`; `wrap`: the beat behind it, if the ICRC's second half is there."""
    return StructLayout({
        "data": cfg.data_width, "vlan": 1, "v6": 1,
        "last": 1, "cover": 1, "wrap": 1, "group": range(cfg.beat_bytes // 4),
    })


def _group_bits(cfg):
    return (cfg.beat_bytes // 4 - 1).bit_length()


def back_matrix(count):
    """What each bit of the CRC register adds to the register of `count` zero bytes before."""
    return [advance(1 << bit, -count) for bit in range(32)]


def times(matrix, state):
    return Cat(xor_of([state[i] for i in range(32) if matrix[i] >> bit & 1]) for bit in range(32))


class IcrcMaker(wiring.Component):
    """`icrc` of each frame, `latency` cycles after the beat marked `cover`, in the byte order of the cable from bit 0 on.
    Never stalls; frames may follow without a gap.

    Masks and seed as in wire/icrc.py; two more zero bytes in front make that the covered parts end at multiples of four. The
    register after the last covered beat has gone too far, by the n zero bytes behind the covered part; powers of A^-4, one
    for each bit of n / 4 = ~group, take it back.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self.latency = self.latency_of(cfg)
        super().__init__({"beat": In(PushSignature(icrc_beat_layout(cfg))), "icrc": Out(PushSignature(32))})

    @staticmethod
    def latency_of(cfg):
        return 1 + CrcStep.latency + _group_bits(cfg)

    def elaborate(self, platform):
        m = Module()
        cfg, beat = self.cfg, self.beat.payload
        p = FixedPipe(m, "icrc")
        ends = Signal(self.latency)         # bit i: the end of a covered part is at stage i + 1
        valid = Signal()
        m.d.sync += [valid.eq(self.beat.valid & ~beat.wrap), ends.eq(Cat(self.beat.valid & beat.cover, ends))]
        p.put("group", 1, beat.group)

        masked = self._masked(m, beat)
        carried = Signal(16)        # its last two bytes come first in the next step
        with m.If(valid):
            m.d.sync += carried.eq(masked[-16:])
            with m.If(ends[0]):
                m.d.sync += carried.eq(0)
        m.submodules.crc = crc = CrcStep(cfg.data_width)
        m.d.comb += [crc.valid.eq(valid), crc.last.eq(ends[0]), crc.data.eq(Cat(carried, masked))]

        stage, state = 1 + CrcStep.latency, crc.state
        for i in range(_group_bits(cfg)):
            back = times(back_matrix(4 << i), state)
            state = p.put(f"back{i}", stage + 1, Mux(p.get("group", stage)[i], state, back))
            stage += 1
        m.d.comb += [self.icrc.valid.eq(ends[-1]), self.icrc.payload.eq(~state)]
        return m

    def _masked(self, m, beat):
        """The beat, a cycle later, with everything before the IP header zeroed, masked fields set, and the seed added."""
        cfg, lanes = self.cfg, self.cfg.beat_bytes
        cases = {}      # bit of a beat -> the beats and kinds where it counts as 0, and those where it is inverted
        for vlan in range(1 + cfg.vlan):
            for v6 in range(1 + cfg.ipv6):
                for byte, masks in enumerate(icrc_masks(ETHERNET.size + VLAN.size * vlan, v6)):
                    index, lane = divmod(byte, lanes)
                    for j in range(8):
                        keep, flip = (mask >> j & 1 for mask in masks)
                        zero_in, flip_in = cases.setdefault(8 * lane + j, (set(), set()))
                        if not keep:
                            zero_in.add((index, vlan, v6))
                        if flip:
                            flip_in.add((index, vlan, v6))
        end = max(index for c in cases.values() for part in c for index, *_ in part) + 1
        at = Signal(range(end + 1))     # number of the beat, as far as it matters
        with m.If(self.beat.valid):
            with m.If(beat.last):
                m.d.sync += at.eq(0)
            with m.Elif(at != end):
                m.d.sync += at.eq(at + 1)

        @lru_cache
        def signal(part):
            """One function of `at` and the kind, shared by all bits that are treated alike."""
            if not part:
                return Const(0)
            which = Cat(beat.vlan, beat.v6, at)
            table = sum(1 << (index << 2 | v6 << 1 | vlan) for index, vlan, v6 in part)
            one = Signal(name=f"mask_{table:x}")
            m.d.comb += one.eq(Const(table, 1 << len(which)).bit_select(which, 1))
            return one

        # bits that only become zero, or one, do so by the resets of their registers
        alike = {}
        for bit in range(cfg.data_width):
            zero_in, flip_in = cases.get(bit, ((), ()))
            alike.setdefault((frozenset(zero_in), frozenset(flip_in)), []).append(bit)
        masked = [None] * cfg.data_width
        for i, ((zero_in, flip_in), bits) in enumerate(alike.items()):
            reg = Signal(len(bits), name=f"masked{i}", reset_less=True)
            data = Cat(beat.data[bit] for bit in bits)
            zero, flip = signal(zero_in), signal(flip_in)
            if not flip_in or flip_in == zero_in:
                m.d.sync += reg.eq(data)
                with m.If(zero):
                    m.d.sync += reg.eq(-1 if flip_in else 0)
            else:
                m.d.sync += reg.eq(data & ~zero.replicate(len(bits)) ^ flip.replicate(len(bits)))
            for bit, value in zip(bits, reg):
                masked[bit] = value
        return Cat(masked)
