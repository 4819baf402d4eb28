"""Frames that are not for the transport reach the host's own network stack, byte for byte."""

import pytest

from sim.frames import build
from .rig import Rig, ends

pytestmark = pytest.mark.rtl

LENGTHS = (*range(14, 201), 255, 256, 257, 600, 1000, 1513, 1514)


def foreign(rng, n):
    """A frame of n bytes that is passed: an EtherType that nobody knows, or UDP to another port where it is long enough."""
    if n >= 90 and rng.random() < .4:
        frame = build(0x04, 1, payload=rng.randbytes(n - 58), dport=rng.choice((53, 4790, 4792)), pad=0)
        assert len(frame) == n
        return frame
    return rng.randbytes(12) + rng.choice((b"\x08\x06", b"\x88\xcc", b"\x90\x00")) + rng.randbytes(n - 14)


@pytest.mark.parametrize("knobs", [{}, dict(pause=.3, host_pause=.4, w_pause=.3, gap=(0, 4))], ids=["plain", "pauses"])
def test_every_length_between_transport_frames(seed, rng, knobs):
    with Rig(seed=seed, **knobs) as rig:
        rig.qp(1), rig.qp(2, "uc")
        rig.post(1, 60), rig.post(2, 60)
        lengths = list(LENGTHS)
        rng.shuffle(lengths)
        frames, passed, places = [], [], []
        for i, n in enumerate(lengths):
            passed.append(foreign(rng, n))
            frames.append(passed[-1])
            data = rng.randbytes(rng.randrange(120))
            if i < 120:
                frames.append(rig.message(1 + i % 2, i // 2, data))
                places.append(data)
        verdicts, out = [], []
        for at in range(0, len(frames), 8):     # slowly enough for the queue to the host
            verdicts += rig.exchange(*frames[at:at + 8])
            out += rig.dev.host_frames()
        assert out == passed
        assert verdicts == ["passed" if f in passed else "placed" for f in frames]
        assert rig.card.counter("frames_passed") == len(passed) and rig.card.counter("pass_overflow") == 0
        assert [s for _, s, _ in ends(rig.card.poll(0))] == ["success"] * 120
        for i, data in enumerate(places):
            assert rig.buffer(1 + i % 2, i // 2, len(data)) == data


@pytest.mark.parametrize("host_pause", [1, .97])
def test_a_host_that_is_slow_loses_frames_of_its_own_only(seed, rng, host_pause):
    with Rig(seed=seed, host_pause=host_pause) as rig:
        rig.qp(1)
        passed = [foreign(rng, rng.choice((60, 64, 300, 1514))) for _ in range(80)]
        frames = []
        for i, f in enumerate(passed):
            frames += [f, rig.write(1, bytes([i + 1]) * 64, 64 * i)]
        stalled = rig.dev.mac_stalls
        rig.send(*frames)
        assert rig.dev.run_until("traces", len(frames), limit=200_000)
        assert rig.dev.mac_stalls == stalled        # the transport's frames never wait for the host
        rig.dev.set(host_pause=0)
        rig.settle()
        out = rig.dev.host_frames()
        lost = rig.card.counter("pass_overflow")
        assert lost > 0 and len(out) + lost == len(passed) == rig.card.counter("frames_passed")
        rest = iter(passed)
        assert all(f in rest for f in out)      # those that came are whole and in order
        assert rig.window(1)[:80 * 64] == b"".join(bytes([i + 1]) * 64 for i in range(80))
        again = [foreign(rng, 100) for _ in range(3)]
        assert rig.exchange(*again) == ["passed"] * 3 and rig.dev.host_frames() == again
        rig.works(1, rng)


def test_a_damaged_foreign_frame_is_not_passed(seed, rng):
    with Rig(seed=seed) as rig:
        rig.dev.send(foreign(rng, 100), user=1)
        good = foreign(rng, 101)
        rig.dev.send(good)
        rig.settle()
        assert rig.dev.host_frames() == [good] and rig.verdicts() == ["runt", "passed"]
