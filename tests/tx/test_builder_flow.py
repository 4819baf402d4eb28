"""FrameBuilder under pauses of everybody: no gap in a frame, turns with the host's frames, enable, reset."""

import pytest

from optinic.tx.builder import FrameBuilder

from .frame_bench import TINY, Bench, Packet, check, host_frames, run


@pytest.mark.parametrize("width,mac,packet", [(64, 0.3, 0.0), (64, 0.7, 0.9), (128, 0.1, 0.5), (128, 0.6, 0.0)])
def test_pauses(width, mac, packet, rng):
    """Any pauses of the MAC and of the packets; tvalid never drops within a frame (checked by the bench in every test)."""
    packets = [Packet.random(rng, rng.choice([0, 1, 30, 200, 600]), lane=rng.randrange(width // 8), peer=rng.randrange(4),
                             silent=rng.random() < 0.1) for _ in range(25)]
    run(packets, rng, width=width, mac_pause=mac, packet_pause=packet)


@pytest.mark.parametrize("ready", [lambda c: c // 70 % 2, lambda c: c % 90 > 60, lambda c: c % 37 != 5, lambda c: c // 20 % 2 and c % 2])
def test_long_pauses_of_the_mac(ready, rng):
    """Everything on the way has come to rest, or half of it, when the MAC goes on: still no gap."""
    run([Packet.random(rng, rng.choice([10, 300, 600])) for _ in range(12)], rng, ready=ready)


SIZES = [1, 14, 15, 16, 17, 20, 33, 48, 49, 55, 56, 57, 59, 60, 61, 63, 64, 65, 100, 333]


@pytest.mark.parametrize("width,mac,host", [(64, 0.0, 0.0), (64, 0.4, 0.5), (128, 0.2, 0.7)])
def test_frames_of_the_host(width, mac, host, rng):
    """Stored whole before they begin, so that a slow host makes no gap; padded to 60 with zeroes."""
    frames = host_frames(rng, rng.sample(SIZES, len(SIZES)) + [TINY.max_frame_bytes, 1514])
    packets = [Packet.random(rng, rng.choice([0, 30, 200]), peer=rng.randrange(4), silent=rng.random() < 0.1) for _ in range(20)]
    run(packets, rng, width=width, host=frames, mac_pause=mac, host_pause=host, packet_pause=0.3)


def test_turns(rng):
    """When both wait, one frame of ours, one of the host's."""
    bench = run([Packet.random(rng, 40) for _ in range(14)], rng, host=host_frames(rng, [70] * 10))
    kinds = [k for k, _ in bench.sent_bytes]
    first = kinds.index(1)
    assert kinds[first:first + 16] == [1, 0] * 8
    beats = sum(-(-len(f) // 8) for *_, f in bench.frames[first:first + 16])
    assert bench.frames[first + 15][1] - bench.frames[first][0] + 1 == beats       # changing sides costs nothing


def test_overlong_frame_of_the_host(rng):
    """Longer than the queue: sent at the host's pace, whatever follows is not disturbed."""
    frames = host_frames(rng, [100, TINY.max_frame_bytes + 700, 60])
    run([Packet.random(rng, 20) for _ in range(3)], rng, host=frames, host_pause=0.2, gaps=False)
    run([], rng, host=frames)


def test_enable(rng):
    """Low: nothing begins, what has begun is finished."""
    enable = lambda cycle: cycle // 40 % 2
    packets = [Packet.random(rng, rng.choice([0, 100, 300])) for _ in range(20)]
    bench = run(packets, rng, host=host_frames(rng, [70, 300, 20, 90]), enable=enable)
    assert all(bench.enabled[begin - 1] for begin, *_ in bench.frames)
    assert any(not bench.enabled[cycle - 1] for begin, end, _ in bench.frames for cycle in range(begin, end + 1))
    blocked = Bench(FrameBuilder(TINY), rng, enable=lambda cycle: 0).run(packets[:4], [bytes(100)], cycles=200)
    assert not blocked.frames and blocked.begun is None


@pytest.mark.parametrize("at", [37, 60, 71, 95])
def test_reset_in_mid_frame(at, rng):
    packets = lambda: [Packet.random(rng, rng.choice([0, 50, 150]), lane=rng.randrange(8), peer=rng.randrange(4)) for _ in range(6)]
    dut = FrameBuilder(TINY)
    bench = Bench(dut, rng, mac_pause=0.1).run(packets() + packets(), host_frames(rng, [300, 300]), reset_at=at, after_reset=packets())
    assert len(bench.taken) == 6
    check(bench)
