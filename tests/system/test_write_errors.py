"""The bus refuses writes: the queue pair's next completion says so, nobody else's does, and the card goes on."""

import pytest

from .rig import SLOT, Rig, ends

pytestmark = pytest.mark.rtl


@pytest.fixture
def rig(seed):
    with Rig(seed=seed) as rig:
        for qpn in (1, 2, 3):
            rig.qp(qpn, "uc" if qpn == 3 else "xp")
        yield rig


@pytest.mark.parametrize("error", ["slverr", "decerr"])
def test_one_refused_write(rig, error, rng):
    data = {qpn: rng.randbytes(500) for qpn in (1, 2, 3)}
    for qpn in (1, 2, 3):
        rig.post(qpn, 3)
    rig.dev.inject(rig.memory[1] + SLOT + 200, 1, error, on="write", count=1)
    frames = [rig.message(qpn, i, data[qpn]) for i in range(3) for qpn in (1, 2, 3)]
    assert rig.exchange(*frames) == ["placed"] * 9
    done = rig.card.poll(0)
    assert ends(done, 1) == [(0, "success", "complete"), (1, "error", "complete"), (2, "success", "complete")]
    assert ends(done, 2) == ends(done, 3) == [(i, "success", "complete") for i in range(3)]
    assert [c.byte_len for c in done] == [500] * 9      # bytes that were to be placed
    assert rig.card.counter("write_errors") == 1 and rig.card.counter("frames_placed") == 9
    for qpn in (2, 3):
        assert all(rig.buffer(qpn, i, 500) == data[qpn] for i in range(3))
    rig.works(1, rng), rig.works(2, rng), rig.works(3, rng)


def test_every_write_of_one_queue_pair(rig, rng):
    """Messages of several packets, whole rings of them, while two other QPs receive: the errors stay with their QP."""
    rig.dev.inject(rig.memory[1], 64 * SLOT, "slverr", on="write")
    count, piece = 20, 96
    for qpn in (1, 2, 3):
        rig.post(qpn, count)
    frames = []
    for i in range(count):
        for qpn in (1, 2):
            frames += [rig.message(qpn, i, bytes([qpn]) * piece, msg_len=3 * piece, offset=n * piece) for n in range(3)]
        frames.append(rig.message(3, i, b"\3" * piece))
    assert set(rig.exchange(*frames)) == {"placed"}
    done = rig.card.poll(0)
    assert ends(done, 1) == [(i, "error", "complete") for i in range(count)]
    assert ends(done, 2) == ends(done, 3) == [(i, "success", "complete") for i in range(count)]
    assert rig.card.counter("write_errors") >= 3 * count
    assert all(rig.buffer(2, i, 3 * piece) == b"\2" * 3 * piece for i in range(count))
    rig.dev.clear_injections()
    rig.works(1, rng)


def test_an_error_without_completion_waits_for_the_next(rig):
    """A plain WRITE has no completion of its own: the QP's next one tells, and only that one."""
    rig.dev.inject(rig.memory[1] + 50 * SLOT, 64, "slverr", on="write", count=1)
    assert rig.exchange(rig.write(1, b"lost", 50 * SLOT), rig.write(2, b"kept", 50 * SLOT)) == ["placed", "placed"]
    assert rig.buffer(1, 50, 4) == bytes(4) and rig.buffer(2, 50, 4) == b"kept"
    for qpn in (1, 2, 3):
        rig.post(qpn, 2)
    rig.exchange(*(rig.message(qpn, i, b"m") for i in range(2) for qpn in (3, 2, 1)))
    done = rig.card.poll(0)
    assert [s for _, s, _ in ends(done, 1)] == ["error", "success"]
    assert {s for _, s, _ in ends(done, 2) + ends(done, 3)} == {"success"}


def test_a_preempted_message_is_not_charged_with_the_next_ones_error(rig):
    """The packet that preempts a message comes in one job with the completion of the old one; its error is the new one's."""
    rig.post(1, 2)
    rig.dev.inject(rig.memory[1] + SLOT, 64, "slverr", on="write", count=1)
    rig.exchange(rig.message(1, 0, b"a" * 64, msg_len=128), rig.message(1, 1, b"b" * 64))
    assert ends(rig.card.poll(0)) == [(0, "partial", "preempted"), (1, "error", "complete")]


def test_a_refused_cqe(rig, rng):
    """A CQE that the bus refuses is lost as the host wants it; the next completion of that QP has status error."""
    cq = rig.card._cqs[0]
    for qpn in (1, 2):
        rig.post(qpn, 2)
    rig.dev.inject(cq.addr, 32, "slverr", on="write", count=1)
    assert rig.exchange(rig.message(1, 0, b"x"), rig.message(1, 1, b"y"), rig.message(2, 0, b"z")) == ["placed"] * 3
    assert rig.card.counter("write_errors") == 1 and rig.card.counter("completions") == 3
    assert rig.card.poll(0) == []       # the ring's first entry never came
    raw = [rig.dev.read(cq.addr + 32 * i, 32) for i in range(4)]
    assert [any(r) for r in raw] == [False, True, True, False]
    # a driver that finds a hole begins the queue anew
    rig.card.fence()
    rig.card.set_cq(0)
    rig.qp(2, generation=1)
    rig.works(2, rng)
    rig.qp(1, generation=1)
    rig.post(1, 2)
    rig.exchange(rig.message(1, 0, b"x"), rig.message(1, 1, b"y"))
    assert rig.card.poll(0)[1].status == "success"


@pytest.mark.parametrize("how", ["qp_set", "qp_destroy"])
def test_a_new_life_starts_without_the_old_ones_errors(rig, how, rng):
    rig.dev.inject(rig.memory[1], 64, "slverr", on="write", count=1)
    assert rig.exchange(rig.write(1, b"lost")) == ["placed"] and rig.card.counter("write_errors") == 1
    if how == "qp_destroy":
        rig.card.destroy_qp(1)
    rig.qp(1, generation=1)
    rig.works(1, rng)


@pytest.mark.parametrize("how", ["qp_set", "qp_destroy"])
@pytest.mark.parametrize("latency", [20, 100, 400])
def test_a_refused_cqe_is_not_the_next_lifes_error(rig, how, latency, rng):
    """The command comes while the CQE is still on the bus, and waits for its answer."""
    rig.card.set_cq(1)
    rig.post(1, 1), rig.post(2, 2)
    rig.dev.inject(rig.card._cqs[0].addr, 32, "slverr", on="write", count=1)
    rig.dev.set(write_latency=latency)
    rig.send(rig.message(1, 0, b"x"))
    rig.dev.run(2 * latency + 60)
    if how == "qp_destroy":
        rig.card.destroy_qp(1)
    rig.qp(1, generation=1, cq=1)
    assert rig.card.counter("write_errors") == 1
    rig.works(1, rng, cq=1)


def test_a_region_that_leads_nowhere(rig, rng):
    """Memory that the host has taken away: DECERR from the bus, no byte anywhere, and the QP's completions say error."""
    rig.dev.unmap(rig.memory[1], 64 * SLOT)
    rig.post(1, 3), rig.post(2, 3)
    rig.exchange(*(rig.message(qpn, i, b"?" * 300) for i in range(3) for qpn in (1, 2)))
    assert [f.kind for f in rig.dev.faults] and all(f.kind == "write" for f in rig.dev.faults)
    done = rig.card.poll(0)
    assert [s for _, s, _ in ends(done, 1)] == ["error"] * 3 and [s for _, s, _ in ends(done, 2)] == ["success"] * 3
    rig.dev.map(rig.memory[1], 64 * SLOT)
    rig.dev.clear_faults()
    rig.works(1, rng)
    assert rig.dev.faults == []
