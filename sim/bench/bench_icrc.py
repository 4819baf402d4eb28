"""The invariant CRC in Ingress: every length, every kind of covered and of masked bit, frames without a gap."""

import cocotb

from sim import frames as f

from .bfm import begin, config
from .ingress import IngressBench


@cocotb.test()
async def every_length(dut):
    """Pad bytes are inside the ICRC; it sits at the end of the padded payload, at any length, in IPv4 and IPv6."""
    rng = await begin(dut)
    top = config().mtu_max
    sizes = [*range(72), *range(top - 5, top + 1)]
    frames = [f.uc_send(1, rng.randbytes(n), src=rng.choice(f.REMOTE[1:]), pad_bytes=rng.randbytes(-n % 4)) for n in sizes]
    assert set(await IngressBench(dut, rng).run(frames)) == {"none"}


def masked(frame, change):
    """`frame` with bits of fields changed that the ICRC masks: {byte: bits}."""
    out = bytearray(frame)
    for at, bits in change.items():
        out[at] ^= bits
    return bytes(out)


@cocotb.test()
async def flipped_bits(dut):
    """A covered bit that is wrong drops the frame; bits that are masked don't matter."""
    rng = await begin(dut)
    bench = IngressBench(dut, rng)
    for src, header in zip(f.REMOTE[1:], (20, 40)):
        frame = f.uc_write(0x11, rng.randbytes(19), 0x123456789ABC, 0xDEADBEEF, src=src)
        bth, udp = 14 + header + 8, 14 + header
        covered = [*range(8 * (bth + 8), 8 * (bth + 12)), *range(8 * (bth + 12 + 16), 8 * len(frame))]  # PSN; behind the RETH
        wrong = [f.flip(frame, bit) for bit in rng.sample(covered, 50)]
        assert set(await bench.run(wrong)) == {"icrc"}
        free = [{bth + 4: bits} for bits in (0x80, 0x40, 0x3F)]             # FECN, BECN, reserved
        free += [{udp + 6: 0xA5, udp + 7: 0x5A}]                            # UDP checksum
        if header == 40:
            free += [{14: 0x0F, 15: 0xFF, 16: 0xFF, 17: 0xFF}, {21: 0xFF}]  # traffic class, flow label; hop limit
        assert set(await bench.run([masked(frame, change) for change in free])) == {"none"}
        # anywhere at all: what the model says
        await bench.run([f.flip(frame, bit) for bit in rng.sample(range(8 * 14, 8 * len(frame)), 60)])
    for fields in ({"tos": 0x5D}, {"ttl": 1}):      # IPv4's, with the header checksum that goes with them
        assert await bench.run([masked(f.uc_send(1, b"abc", **fields), {})]) == ["none"]


@cocotb.test()
async def no_gap_between_frames(dut):
    """The next frame begins while the last one is still being checked, at every number of bytes in the last beat."""
    rng = await begin(dut)
    lanes = config().beat_bytes
    frames, expected = [], []
    for n in range(2 * lanes):
        bad = n % 3 == 1
        frames.append(f.xp_send(n, rng.randbytes(4 + n), icrc_xor=bad << n % 32, trailer=rng.randbytes(n % 5)))
        expected.append("icrc" if bad else "none")
    assert await IngressBench(dut, rng).run(frames) == expected
