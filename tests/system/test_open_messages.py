"""A card whose QPs share the rows of open messages: what happens at the limit, and that no row is ever lost."""

import pytest

from sim.frames import xp_send

from .rig import CFG, Rig, ends

pytestmark = pytest.mark.rtl

POOLED = CFG.with_(num_qps=64, num_regions=128, open_messages=16)
MOST = POOLED.most_open
QPS = range(1, MOST + 5)


@pytest.fixture
def rig(seed):
    with Rig(POOLED, seed=seed) as rig:
        for qpn in QPS:
            rig.qp(qpn)
        rig.card.set_cq(1, 64)
        rig.card.log_refusals(1)
        yield rig


def piece(rig, qpn, seq, offset, of=8):
    return xp_send(qpn, bytes([qpn]) * 4, generation=rig.generations[qpn], seq=seq, offset=offset, msg_len=of)


def open_all(rig, seq):
    return rig.exchange(*(piece(rig, qpn, seq, 0) for qpn in QPS))


def test_at_the_limit(rig):
    """One more open message is refused and says so; a message of one packet needs no row, and the next one gets that of one that ends."""
    assert MOST == 8
    for qpn in QPS:
        rig.post(qpn, 3)
    assert open_all(rig, 0) == ["placed"] * MOST + ["overflow"] * 4
    assert rig.card.counter("drop_overflow") == 4
    assert rig.card.refusals() == {qpn: {"overflow": 1} for qpn in QPS[MOST:]}
    last = QPS[-1]
    assert rig.exchange(piece(rig, last, 0, 0, of=4)) == ["placed"]
    assert rig.exchange(piece(rig, 1, 1, 0), piece(rig, last, 1, 0)) == ["placed", "overflow"]     # the row stays with QP 1
    assert rig.exchange(piece(rig, 1, 1, 4), piece(rig, last, 1, 0)) == ["placed", "placed"]
    assert rig.exchange(piece(rig, 2, 0, 4), piece(rig, last, 1, 4)) == ["placed", "placed"]
    found = rig.card.poll(0)
    assert ends(found, 1) == [(0, "partial", "preempted"), (1, "success", "complete")]
    assert ends(found, 2) == [(0, "success", "complete")] and ends(found, last) == [(i, "success", "complete") for i in (0, 1)]
    assert rig.buffer(2, 0, 8) == bytes([2]) * 8


def test_deadlines_give_rows_back(rig):
    """All that is open ends at its deadline, what was refused too, and then as many may be open as before; four times over."""
    for seq in range(4):
        for qpn in QPS:
            rig.post(qpn, 1, timeout_ns=20_000)
        assert open_all(rig, seq) == ["placed"] * MOST + ["overflow"] * 4
        rig.dev.run(4000)
        rig.settle()
        found = rig.card.poll(0)
        assert sorted((c.qpn, c.index, c.status, c.cause, c.byte_len) for c in found) == [
            (qpn, seq, "partial", "timeout", 4 if qpn <= MOST else 0) for qpn in QPS]


def test_lives_give_rows_back(rig):
    """Rows of QPs that are flushed, or destroyed with a message open, are there for others: for more lives than there are rows."""
    for life in range(6):
        for qpn in QPS:
            rig.post(qpn, 1)
        assert open_all(rig, 0) == ["placed"] * MOST + ["overflow"] * 4
        for qpn in QPS:
            if qpn % 2:
                rig.card.flush_qp(qpn)
            rig.card.destroy_qp(qpn)
        rig.card.poll(0)
        for qpn in QPS:
            rig.qp(qpn, generation=life + 1)
