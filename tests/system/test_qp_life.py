"""The lives of a queue pair: destroyed, flushed and created anew while frames keep coming."""

import pytest

from .rig import SLOT, Rig, ends

pytestmark = pytest.mark.rtl

TYPES = ["xp", "uc"]


@pytest.fixture
def rig(seed):
    with Rig(seed=seed, cq_entries=4096) as rig:
        rig.qp(2), rig.post(2, 60)
        yield rig


def stream(rig, qpn, count, size=64, fill=1, first=0):
    """Messages of one packet for receives first, first + 1, ..., and WRITEs between them to the upper half of the window."""
    out = []
    for i in range(first, first + count):
        out += [rig.message(qpn, i, bytes([fill]) * size), rig.write(qpn, bytes([fill]) * size, (32 + i % 32) * SLOT + size)]
    return out


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("bus", [{}, dict(write_latency=(1, 300), w_pause=.3, read_latency=200)], ids=["fast", "slow-bus"])
def test_destroy_under_traffic(rig, type, bus):
    """At many moments: from the end of the command on no byte of the QP is written, every frame is refused as qpn, and the
    other QP notices nothing."""
    rig.dev.set(**bus)
    sent, mine = 0, 0
    for life, wait in enumerate((0, 20, 40, 90, 140, 333, 1000)):
        rig.qp(1, type, generation=life)
        rig.post(1, 30)
        frames = stream(rig, 1, 30, fill=life + 1)
        for i, frame in enumerate(frames):
            rig.send(frame)
            if i % 8 == 0:
                rig.send(rig.message(2, sent, b"other"))
                sent += 1
        rig.dev.run(wait)
        rig.card.destroy_qp(1)
        after = rig.window(1)
        judged = rig.dev.trace_count
        rig.settle()
        assert rig.window(1) == after
        late = [t for t in rig.dev.traces(judged) if t.qpn == 1]
        assert late == [] or {(t.verdict, t.reason) for t in late} == {("dropped", "qpn")}
        mine += len(late)
        assert rig.exchange(*frames) == ["qpn"] * 60 and rig.window(1) == after
    print(f"{mine} frames were on the way")
    assert mine > 40        # there were frames on the way when the command ended
    done = rig.card.poll(0)
    assert ends(done, 2) == [(i, "success", "complete") for i in range(sent)] and rig.dev.faults == []


@pytest.mark.parametrize("type", TYPES)
def test_a_new_life_under_the_old_ones_traffic(rig, type, rng):
    """The old life's packets are of another generation (XP carries one; a UC packet can't tell lives apart, so between two lives
    its sender stops). What was posted in the old life is never used again, also not from the cache."""
    rig.qp(1, type, generation=7)
    for life in range(8, 14):
        rig.post(1, 40)
        old = stream(rig, 1, 20, fill=0xEE)
        rig.send(*old)
        rig.dev.run(rng.randrange(400))
        if type == "uc":
            rig.settle()
        rig.qp(1, type, generation=life)            # new life; receive 0 is the next, nothing is posted
        rig.card.fence()
        rig.card.poll(0)
        after = rig.window(1)
        rig.settle(), rig.verdicts()
        if type == "xp":
            assert set(rig.exchange(*old)) == {"generation"} and rig.window(1) == after
        assert rig.exchange(rig.message(1, 0, b"early")) == ["no_receive"] and rig.window(1) == after
        # receives of the new life are other buffers than those that stood in the same slots of the ring
        for i in range(5):
            rig.card.post_receive(1, rig.va(1, 50 + i), SLOT, rig.key(1), wr_id=(life, i))
        data = [rng.randbytes(100) for _ in range(5)]
        assert rig.exchange(*(rig.message(1, i, d) for i, d in enumerate(data))) == ["placed"] * 5
        done = rig.card.poll(0)
        assert [(c.wr_id, c.status) for c in done] == [((life, i), "success") for i in range(5)]
        for i, d in enumerate(data):
            assert rig.buffer(1, 50 + i, 100) == d
        assert rig.window(1)[:SLOT] == after[:SLOT]
        if type == "xp":
            assert set(rig.exchange(*old)) == {"generation"}
    assert rig.exchange(rig.message(2, 0, b"other")) == ["placed"]


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("posted, begun", [(1, 0), (1, 1), (2, 1), (17, 0), (64, 3), (64, 0)])
def test_flush(rig, type, posted, begun):
    """Every posted receive completes once and in order, those without a packet too; an open message says what it has."""
    rig.qp(1, type)
    rig.post(1, posted)
    data = b"f" * 90
    for i in range(begun):
        whole = type == "uc" or i < begun - 1
        rig.send(rig.message(1, i, data, **({} if whole else dict(msg_len=200))))
    rig.settle()
    done = rig.card.poll(0)
    full = begun if type == "uc" else max(0, begun - 1)
    assert ends(done) == [(i, "success", "complete") for i in range(full)]
    rig.card.flush_qp(1)
    done = rig.card.poll(0)
    assert ends(done) == [(i, "error", "flushed") for i in range(full, posted)]
    assert [c.byte_len for c in done] == [90 if full < begun and i == 0 else 0 for i in range(posted - full)]
    assert rig.card.outstanding(1) == 0
    rig.card.flush_qp(1)                    # once more: nothing is left to complete
    assert rig.card.poll(0) == []
    after = rig.window(1)
    assert set(rig.exchange(rig.message(1, full, data), rig.write(1, data))) == {"state"} and rig.window(1) == after
    assert rig.exchange(rig.message(2, 0, data)) == ["placed"] and ends(rig.card.poll(0)) == [(0, "success", "complete")]
    # and again from the beginning
    rig.qp(1, type, generation=1)
    rig.post(1, 3)
    assert rig.exchange(*(rig.message(1, i, data) for i in range(3))) == ["placed"] * 3
    assert ends(rig.card.poll(0)) == [(i, "success", "complete") for i in range(3)]


@pytest.mark.parametrize("type", TYPES)
def test_flush_under_traffic(rig, type, rng):
    """Wherever the flush falls, completions are one for each receive, in order: successes, then flushed ones."""
    flushed = 0
    for life in range(12):
        rig.qp(1, type, generation=life)
        rig.post(1, 40)
        rig.send(*stream(rig, 1, 40))
        rig.dev.run(rng.randrange(0, 1500))
        rig.card.flush_qp(1)
        after = rig.window(1)
        done = ends(rig.card.poll(0), 1)
        good = [e for e in done if e[1] == "success"]
        assert done == [(i, "success", "complete") for i in range(len(good))] + [
            (i, "error", "flushed") for i in range(len(good), 40)]
        rig.settle()
        assert rig.window(1) == after and rig.card.poll(0) == []
        flushed += 40 - len(good)
    assert 0 < flushed < 12 * 40
    assert rig.exchange(rig.message(2, 0, b"other"))[-1] == "placed"


def test_a_region_taken_away_under_traffic(rig):
    """From the end of the command on nothing is written under the key, and the frames are refused as rkey."""
    rig.qp(1)
    for wait in (0, 50, 150, 400):
        rig.send(*(rig.write(1, bytes([wait % 251 + 1]) * 200, i * SLOT) for i in range(30)))
        rig.dev.run(wait)
        rig.card.remove_region(rig.key(1))
        rig.regions.discard(1)
        after, judged = rig.window(1), rig.dev.trace_count
        rig.settle()
        assert rig.window(1) == after
        assert {t.reason for t in rig.dev.traces(judged)} <= {"rkey"} and rig.dev.trace_count > judged
        rig.qp(1)
