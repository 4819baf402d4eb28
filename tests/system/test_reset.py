"""Reset at every moment: what comes after it is whole."""

import pytest

from .rig import Rig

pytestmark = pytest.mark.rtl


@pytest.fixture
def rig(seed):
    with Rig(seed=seed) as rig:
        yield rig


def begin_again(rig, rng):
    rig.bring_up()
    rig.settle()
    rig.verdicts()
    for qpn in (1, 2):
        rig.qp(qpn, "xp" if qpn == 1 else "uc")
        rig.works(qpn, rng)
    counters = rig.card.counters()
    assert counters == counters | {"frames_placed": 6, "completions": 6, "fetch_errors": 0, "write_errors": 0}


@pytest.mark.parametrize("cut", [True, False], ids=["mac-too", "mac-goes-on"])
def test_in_mid_frame(rig, rng, cut):
    """At each beat of a frame. The MAC may have been reset too, or go on with the rest of the frame, which then is a frame of
    its own to a card that is not enabled."""
    rig.qp(1)
    frame = rig.write(1, bytes(200))
    beats = -(-len(frame) // rig.cfg.beat_bytes)
    for beat in (*range(0, 12), beats // 2, beats - 1, beats):
        start = rig.dev.mac_beats
        rig.send(frame, rig.message(1, 0, b"follows"))
        for _ in range(1000):
            if rig.dev.mac_beats - start >= beat:
                break
            rig.dev.run(1)
        rig.dev.reset(cut=cut)
        rig.dev.run(500)        # frames that still come are discarded: CTRL is 0
        begin_again(rig, rng)
        rig.qp(1)
    assert rig.dev.faults == []


def test_in_mid_burst(rig, rng):
    """While data is on its way to memory: some of it may be there, nothing else is, and no CQE."""
    rig.dev.set(w_pause=.5, aw_pause=.3, write_latency=(1, 80))
    for wait in range(130, 330, 9):
        rig.qp(1), rig.post(1)
        before = rig.window(1)
        rig.send(*(rig.message(1, 0, bytes([wait % 256]) * 256, msg_len=1024, offset=256 * i) for i in range(4)))
        rig.dev.run(wait)
        rig.dev.reset()
        after = rig.window(1)
        rig.dev.run(500)
        assert rig.window(1) == after and after[1024:] == before[1024:]
        begin_again(rig, rng)
    assert rig.dev.faults == []


@pytest.mark.parametrize("latency", [1, 40])
def test_during_a_read_of_wqes(rig, rng, latency):
    rig.dev.set(read_latency=latency, r_pause=.5)
    for wait in range(1, 2 * latency + 40, 3):
        rig.qp(1), rig.qp(2, "uc")
        rig.post(1, 40), rig.post(2, 40)
        rig.dev.run(wait)
        rig.dev.reset()
        begin_again(rig, rng)
    assert rig.dev.axi_totals()["reads_unanswered"] == 0


def test_during_a_command(rig, rng):
    """A command that was under way is forgotten with everything else."""
    for wait in range(0, 60, 4):
        rig.qp(1), rig.qp(2)
        rig.card.reg_write("ARG0", 1)
        rig.card.reg_write("COMMAND", 2)
        rig.dev.run(wait)
        rig.dev.reset()
        assert rig.card.reg_read("COMMAND_STATUS") == 0
        begin_again(rig, rng)


def test_forgets_everything(rig, rng):
    """No QP, region, CQ, posted receive, deadline, armed interrupt or counter outlives a reset."""
    rig.qp(1)
    rig.card.log_refusals(3)
    rig.post(1, 8, timeout_ns=100_000)
    rig.card.arm(0)
    rig.exchange(rig.message(1, 0, b"before", msg_len=100), rig.write(1, b"x"), rig.write(1, b"logged", pkey=1))
    rig.dev.reset()
    rig.dev.run(2000)
    assert not any(rig.card.counters().values())
    assert rig.card.reg_read("REFUSAL_LOG") == 0 and rig.card.pending_vectors() == 0 and rig.card.reg_read("CTRL") == 0
    assert rig.card.time_ns() < 3000 * rig.cfg.clock_ns
    rig.verdicts()
    rig.card.enable(hold=True)      # nothing but this: the QP is gone
    before = rig.window(1)
    assert rig.exchange(rig.message(1, 1, b"after"), rig.write(1, b"after")) == ["qpn", "qpn"]
    rig.dev.run(120_000 // 8)       # past the old deadline
    assert rig.window(1) == before and rig.card.counter("deadlines") == rig.card.counter("completions") == 0
    assert rig.card.counter("drop_qpn") == 2
