"""FrameBuilder on beats of 512 and 1024 bits: bytes at every lane and length, and the exact number of cycles."""

import pytest

from optinic.config import preset
from optinic.tx.builder import FrameBuilder

from .frame_bench import Bench, Packet, check

CONFIGS = {512: preset("c100g", num_peers=16), 1024: preset("c400g", num_peers=16)}


def payload_at(packet):
    """Where the payload begins in the frame; one that has payload is not padded to 60 bytes."""
    return len(packet.frame()) - 4 - -(-len(packet.payload) // 4) * 4


def cycles(packets, lanes):
    """What FrameBuilder promises: a cycle a beat; one more for a frame whose first beat needs two source beats, unless the step
    for the last beat of the frame before needed no source beat. From the first beat on; all packets wait from the start."""
    total, spare = 0, True
    for p in packets:
        beats = -(-len(p.frame()) // lanes)
        source = p.beats(lanes)
        head = payload_at(p) if p.payload else 0
        early = bool(p.payload) and p.lane > head % lanes
        before = early and head < lanes
        total += beats + (before and not spare)
        spare = beats - 1 - head // lanes + early >= source or not p.payload
    return total


@pytest.mark.parametrize("width", [512, 1024])
def test_bytes_and_cycles(width, rng):
    """Short frames of one to four beats without a pause, from every lane, and one of the MTU."""
    lanes = width // 8
    places = [rng.randrange(lanes) for _ in range(110 if width == 512 else 40)]
    packets = [Packet.random(rng, rng.choice([0, 4, rng.randrange(1, 3 * lanes)]), lane=lane, kind=rng.choice([0, 0, 1, 3, 4, 7]),
                             peer=rng.randrange(4)) for lane in places]
    packets.append(Packet.random(rng, CONFIGS[width].mtu_max, lane=lanes - 1))
    bench = check(Bench(FrameBuilder(CONFIGS[width]), rng).run(packets))
    assert bench.frames[-1][1] - bench.frames[0][0] + 1 == cycles(packets, lanes)


def test_no_cycle_is_lost(rng):
    """512 bits, back to back: frames of one, two and three beats take as many cycles, at any lane that needs no more source."""
    packets = [Packet.random(rng, n, kind=kind, lane=lane) for _ in range(4) for n, kind, lane in (
        (0, 0, 0), (0, 1, 0), (16, 0, 0), (60, 1, 63), (100, 3, 17), (2, 0, 0), (64, 1, 0), (120, 7, 5), (0, 4, 0), (128, 1, 40))]
    bench = check(Bench(FrameBuilder(CONFIGS[512]), rng).run(packets))
    beats = [-(-len(f) // 64) for *_, f in bench.frames]
    assert set(beats) == {1, 2, 3, 4} and bench.frames[-1][1] - bench.frames[0][0] + 1 == sum(beats)


@pytest.mark.parametrize("width", [512])
def test_pauses_and_the_host(width, rng):
    lanes = width // 8
    packets = [Packet.random(rng, rng.choice([0, 1, 60, 200, 900]), lane=rng.randrange(lanes), peer=rng.randrange(4),
                             silent=rng.random() < 0.1, failed=rng.random() < 0.1) for _ in range(30)]
    host = [rng.randbytes(n) for n in (1, 14, 59, 60, 61, 63, 64, 65, 127, 128, 129, 300, CONFIGS[width].max_frame_bytes)]
    check(Bench(FrameBuilder(CONFIGS[width]), rng, mac_pause=0.3, packet_pause=0.3, host_pause=0.4).run(packets, host))
