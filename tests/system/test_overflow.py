"""More than the card can take: with CTRL.rx_hold nothing is lost, without it frames are, each of them counted."""

import pytest

from .rig import SLOT, Rig

pytestmark = pytest.mark.rtl

FRAMES = 400


def burst(rig, rng):
    """WRITEs of all sizes to places of their own, refused frames between them, and what should be in memory of each."""
    frames, places = [], []
    for i in range(FRAMES):
        if i % 7 == 6:
            frames.append(rig.write(1, bytes(30), generation=3))
            places.append(None)
            continue
        data = rng.randbytes(rng.choice((1, 8, 63, 64, 65, 100, 160)))
        frames.append(rig.write(1, data, i * 160))
        places.append(data)
    return frames, places


STALLS = {"no-data": dict(w_pause=1), "no-address": dict(aw_pause=1), "no-answer": dict(b_pause=1), "slow": dict(w_pause=.95)}


@pytest.mark.parametrize("stall", STALLS)
@pytest.mark.parametrize("hold", [False, True], ids=["drop", "hold"])
def test_a_bus_that_stalls(seed, rng, stall, hold):
    with Rig(seed=seed, hold=hold) as rig:
        rig.qp(1), rig.qp(2, "uc"), rig.qp(3)
        frames, places = burst(rig, rng)
        rig.dev.set(**STALLS[stall])
        rig.dev.send_many(frames)
        rig.dev.run(6000)
        assert rig.dev.mac_stalls > 0 if hold else rig.dev.mac_stalls == 0
        rig.dev.set(w_pause=0, aw_pause=0, b_pause=0)
        rig.settle()
        dropped = [int(n) for n in rig.dev.overflows()["value"]]
        traces = rig.dev.traces()
        assert len(traces) + len(dropped) == FRAMES == rig.dev.frames_sent
        assert rig.card.counter("drop_overflow") == len(dropped)
        assert (not dropped) if hold else len(dropped) > 20
        # the pulse comes behind the first beat of a frame, so the number of those wholly taken before is that frame's index
        lost = set(dropped)
        assert len(lost) == len(dropped)
        rest = [(f, p) for i, (f, p) in enumerate(zip(frames, places)) if i not in lost]
        assert [t.verdict for t in traces] == ["placed" if p is not None else "dropped" for _, p in rest]
        window = rig.window(1)
        for i, data in enumerate(places):
            if data is not None:
                assert window[i * 160:i * 160 + len(data)] == (bytes(len(data)) if i in lost else data), i
        assert rig.dev.faults == []
        rig.works(1, rng), rig.works(2, rng), rig.works(3, rng)


def test_many_small_frames_overflow_the_descriptors(seed, rng):
    """Frames that take little of the buffer run out of the places for frames (rx_frames) first."""
    with Rig(seed=seed, hold=False) as rig:
        rig.qp(1)
        rig.dev.set(aw_pause=1)
        frames = [rig.write(1, bytes([i % 255 + 1]), i * 8) for i in range(600)]
        rig.dev.send_many(frames)
        rig.dev.run(12_000)
        rig.dev.set(aw_pause=0)
        rig.settle()
        lost = len(rig.dev.overflows())
        assert lost > 100 and rig.dev.trace_count + lost == 600 and rig.card.counter("frames_placed") == 600 - lost
        written = sum(1 for i in range(600) if rig.window(1)[i * 8])
        assert written == 600 - lost
        rig.works(1, rng)


def test_lost_packets_leave_messages_partial_not_wedged(seed, rng):
    with Rig(seed=seed, hold=False) as rig:
        rig.qp(1)
        for _ in range(30):
            rig.post(1, timeout_ns=200_000)
        rig.dev.set(w_pause=1)
        quarter = SLOT // 4
        rig.send(*(rig.message(1, s, bytes(quarter), msg_len=SLOT, offset=quarter * n) for s in range(30) for n in range(4)))
        rig.dev.run(8000)
        rig.dev.set(w_pause=0)
        done = rig.card.wait(0, 30, limit_cycles=800_000, step=1000)
        assert [c.index for c in done] == list(range(30))
        assert {c.status for c in done} == {"success", "partial"}
        rig.works(1, rng)


def test_frames_while_not_enabled_are_nobodys(seed, rng):
    with Rig(seed=seed) as rig:
        rig.qp(1), rig.post(1, 4)
        rig.card.disable()
        before = rig.card.counters()
        rig.send(*(rig.message(1, 0, b"off") for _ in range(50)))
        rig.settle()
        assert rig.card.counters() == before and rig.dev.trace_count == 0 and rig.dev.frames_sent == 50
        rig.card.enable(hold=True)
        assert rig.exchange(rig.message(1, 0, b"on")) == ["placed"]
