"""The invariant CRC of RoCEv2 as linear algebra, and its datapath: CRC-32 over a beat of any width each cycle.

The register of the (reflected) CRC-32 is a vector of 32 bits over GF(2). One beat of B bytes takes it from s to
A^B s + L d, where A is the step by a zero byte and L is the linear map of the beat's bits. `CrcStep` computes L d in
a pipelined XOR tree; only A^B s closes in one cycle.

The ICRC (IBTA volume 1, annex A17.3) starts from all ones, covers 8 bytes FF in place of the LRH, and ends with an
inversion. Two identities save work:
- Starting from state s is the same as starting from 0 with s added to the first four bytes, least significant first.
  Zero bytes leave state 0 alone. So a frame may be fed from its first byte on, with everything before the IP header
  zeroed and :data:`SEED` added to the first four bytes of the IP header.
- A message followed by its own CRC ends in one constant state, :data:`RESIDUE`, and n zero bytes after it take that
  to ``advance(RESIDUE, n)``, also a constant.
"""

from functools import lru_cache

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .headers import BTH, IPV4, IPV6, UDP

__all__ = ["advance", "beat_matrix", "icrc_masks", "CrcStep", "SEED", "RESIDUE"]

_POLY = 0xEDB88320


def _back_one_bit(state):
    return state << 1 & 0xFFFFFFFF if not state >> 31 else (state ^ _POLY) << 1 & 0xFFFFFFFF | 1


def advance(state, count):
    """The CRC register `state` after `count` zero bytes; before them, if `count` is negative."""
    for _ in range(8 * count):
        state = state >> 1 ^ (_POLY if state & 1 else 0)
    for _ in range(-8 * count):
        state = _back_one_bit(state)
    return state


#: state after the masked LRH, 8 bytes FF
SEED = advance(0xFFFFFFFF, 4)
#: state after any message and its CRC
RESIDUE = advance(0xFFFFFFFF, 4)


@lru_cache
def beat_matrix(nbytes):
    """What each input of a step adds to the next state: (32 words for the state's bits, 8 * nbytes for the data's)."""
    columns = [1 << bit for bit in range(8)]
    data = []
    for _ in range(nbytes):                     # from the last byte of the beat to the first
        columns = [advance(c, 1) for c in columns]
        data[:0] = columns
    return tuple(advance(1 << bit, nbytes) for bit in range(32)), tuple(data)


def icrc_masks(l3, v6):
    """How the first bits of a frame enter the ICRC when its IP header begins at byte `l3`: for each byte a pair (and, xor).

    Bytes before the IP header become zero, masked fields become ones, and the seed is added to the first four bytes.
    """
    ip = IPV6 if v6 else IPV4
    keep = [0x00] * l3 + [0xFF] * (ip.size + UDP.size + BTH.size)
    flip = [0x00] * len(keep)
    at = l3
    for header in (ip, UDP, BTH):
        for bit in header.masked_bits():
            byte, mask = at + bit // 8, 0x80 >> bit % 8
            keep[byte] &= ~mask
            flip[byte] |= mask
        at += header.size
    for i, byte in enumerate(SEED.to_bytes(4, "little")):
        flip[l3 + i] ^= byte
    return list(zip(keep, flip))


def xor_of(bits):
    """Sum over GF(2). As one reduction, so that synthesis makes a balanced tree of it."""
    return Cat(bits).xor() if bits else Const(0, 1)


class CrcStep(wiring.Component):
    """CRC-32 register of a stream of packets, from state 0, one beat of `width` bits each cycle.

    A beat enters with `valid`; the packet's last one also with `last`. Three cycles later `state` is the register after
    that beat: no inversion, and bytes that don't belong to the packet must have been zeroed. Never stalls; packets may
    follow each other without a gap. Reset: the beats under way are forgotten.
    """

    latency = 3

    def __init__(self, width):
        self._width = width
        super().__init__({"valid": In(1), "last": In(1), "data": In(width), "state": Out(32)})

    def elaborate(self, platform):
        m = Module()
        feedback, data = beat_matrix(self._width // 8)

        # 36 bits are two levels of six-input gates; 36 such sums are two levels again, so any width up to 1296 bits fits.
        partial = []
        for start in range(0, self._width, 36):
            group = range(start, min(start + 36, self._width))
            part = Signal(32, name=f"partial_{start}", reset_less=True)
            m.d.sync += part.eq(Cat(xor_of([self.data[i] for i in group if data[i] >> bit & 1]) for bit in range(32)))
            partial.append(part)
        added = Signal(32, reset_less=True)
        m.d.sync += added.eq(Cat(xor_of([part[bit] for part in partial]) for bit in range(32)))

        valid = Signal(2)
        last = Signal(2, reset_less=True)
        m.d.sync += [valid.eq(Cat(self.valid, valid[0])), last.eq(Cat(self.last, last[0]))]

        # `running` is `state` again, but zero between packets.
        running = Signal(32)
        after = Cat(xor_of([added[bit], *(running[i] for i in range(32) if feedback[i] >> bit & 1)]) for bit in range(32))
        state = Signal(32, reset_less=True)
        m.d.sync += state.eq(after)
        with m.If(valid[1]):
            m.d.sync += running.eq(after)
            with m.If(last[1]):
                m.d.sync += running.eq(0)
        m.d.comb += self.state.eq(state)
        return m
