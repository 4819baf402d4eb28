"""Rings that wrap, and interrupts that race with polling."""

import pytest

from optinic.abi.structs import CQE
from .rig import CFG, SLOT, Rig, ends

pytestmark = pytest.mark.rtl


def lap(rig, qps, first, count, payload):
    """`count` messages of each QP, posted before; polled by the caller."""
    for qpn in qps:
        rig.post(qpn, count)
    rig.send(*(rig.message(qpn, i, payload(qpn, i)) for i in range(first, first + count) for qpn in qps))
    rig.settle()


@pytest.mark.parametrize("count", [1, 5, 63, 64])
def test_laps_of_the_receive_ring(seed, count):
    """Any number of receives posted at once, over many laps, into buffers that change from lap to lap."""
    payload = lambda qpn, i: f"{qpn}:{i}".encode()
    with Rig(seed=seed) as rig:
        qps = (rig.qp(1, "xp"), rig.qp(2, "uc"))
        first = 0
        while first < 5 * CFG.rq_entries:
            lap(rig, qps, first, count, payload)
            done = rig.card.poll(0)
            for qpn in qps:
                assert ends(done, qpn) == [(i, "success", "complete") for i in range(first, first + count)]
                for i in range(first, first + count):
                    assert rig.buffer(qpn, i, len(payload(qpn, i))) == payload(qpn, i)
            first += count
        assert rig.verdicts() == ["placed"] * 2 * first


@pytest.mark.parametrize("type", ["xp", "uc"])
def test_the_counts_of_the_doorbells_wrap(seed, type):
    """More than 2^16 messages: the 16-bit counts of receives posted and completions consumed wrap, the message sequence goes on."""
    with Rig(seed=seed, cq_entries=128, read_latency=4, write_latency=4) as rig:
        rig.qp(1, type)
        card, total = rig.card, 0x1_0000 + 200
        for first in range(0, total, 64):
            rig.post(1, 64)
            frames = [rig.message(1, first + i, (first + i).to_bytes(4, "big")) for i in range(64)]
            rig.dev.send_many(frames)
            assert rig.dev.run_until("traces", first + 64, limit=20_000)
            done = card.wait(0, 64, limit_cycles=2000, step=32)
            assert len(done) == 64 and done[0].index == first and done[-1].index == first + 63
            assert all(c.status == "success" for c in done)
            if first % 4096 == 0 or first >= 0xFF80:
                assert [rig.buffer(1, i, 4) for i in range(64)] == [(first + i).to_bytes(4, "big") for i in range(64)]
        assert card.counter("frames_placed") == card.counter("completions") == first + 64 > 0x1_0000
        assert card.counter("cq_overrun") == 0
        if type == "xp":
            assert rig.exchange(rig.message(1, first, b"again"))[-1] == "late"
        assert rig.exchange(rig.message(1, first + 64, b"?"))[-1] == "no_receive"


@pytest.mark.parametrize("entries", [2, 4, 32])
def test_laps_of_a_completion_queue(seed, entries, rng):
    """Never more outstanding than it has entries: nothing is lost, over many laps and with polls of any size; and no all-zero
    entry ever looks like a completion."""
    with Rig(seed=seed, visibility="random") as rig:
        card = rig.card
        card.set_cq(1, entries)
        rig.qp(1, cq=1)
        sent = got = 0
        while got < 12 * entries:
            n = rng.randrange(entries - (sent - got) + 1)
            if n:
                rig.post(1, n)
                rig.send(*(rig.message(1, sent + i, b"c") for i in range(n)))
                sent += n
            rig.dev.run(rng.randrange(300))
            for c in card.poll(1, limit=rng.choice([None, 1, 3])):
                assert (c.index, c.status) == (got, "success")
                got += 1
        rig.settle()
        got += len(card.poll(1))
        assert got == sent and card.counter("cq_overrun") == 0
        ring = rig.dev.read(card._cqs[1].addr, 32 * entries)
        assert all(CQE.unpack(ring[i * 32:i * 32 + 32])["format"] == 1 for i in range(entries))


def test_an_overrun_is_counted_and_harms_nobody_else(seed, rng):
    with Rig(seed=seed) as rig:
        card = rig.card
        card.set_cq(1, 8)
        rig.qp(1, cq=1), rig.qp(2)
        rig.post(1, 30), rig.post(2, 30)
        assert set(rig.exchange(*(rig.message(q, i, bytes([q]) * 40) for i in range(30) for q in (1, 2)))) == {"placed"}
        assert card.counter("cq_overrun") == 22 and card.counter("completions") == 38
        assert len(card.poll(0)) == 30 and ends(card.poll(1)) == [(i, "success", "complete") for i in range(8)]
        assert all(rig.buffer(1, i, 40) == b"\1" * 40 for i in range(30))
        # room again: completions come again, where the card left off
        rig.qp(1, generation=1, cq=1)
        rig.works(1, rng, cq=1)
        assert card.counter("cq_overrun") == 22


def test_arming_races_with_completions(seed):
    """A completion at every distance before and after the arming: exactly one interrupt, and polling finds it in any case."""
    with Rig(seed=seed) as rig:
        card = rig.card
        rig.qp(1)
        raised_at = []
        for i, delay in enumerate(range(0, 260, 4)):
            rig.post(1)
            rig.settle()
            rig.send(rig.message(1, i, b"i"))
            rig.dev.run(delay)
            card.arm(0)
            before = len(card.poll(0))
            assert rig.dev.run_until("irq", 1, limit=1000), delay
            raised_at.append(before)
            assert card.pending_vectors() == 1
            card.clear_vectors(1)
            assert before + len(card.poll(0)) == 1
            rig.settle()
            assert rig.dev.irq == 0 and card.pending_vectors() == 0 and card.poll(0) == []
        assert 0 < sum(raised_at) < len(raised_at)      # the race was lost and won


def test_arming(seed):
    with Rig(seed=seed) as rig:
        card = rig.card
        rig.qp(1), rig.post(1, 20)
        rig.exchange(rig.message(1, 0, b"unarmed"))
        assert rig.dev.irq == 0 and len(card.poll(0)) == 1              # not armed: no interrupt
        card.arm(0)
        rig.settle()
        assert rig.dev.irq == 0                                         # all consumed: none yet
        rig.exchange(*(rig.message(1, i, b"x") for i in range(1, 5)))
        assert list(rig.dev.irq_edges()["value"]) == [1]                # once, however many come
        card.clear_vectors(1)
        assert rig.dev.irq == 0
        card.arm(0)                                                     # there are some beyond the consumed ones: at once
        assert rig.dev.run_until("irq", 1, limit=100)
        card.clear_vectors(1)
        assert len(card.poll(0)) == 4
        # several armings are one; an interrupt that nobody clears stays, and one that nobody sees strands nothing
        for _ in range(3):
            card.arm(0)
        rig.exchange(rig.message(1, 5, b"x"))
        card.clear_vectors(1)
        rig.exchange(rig.message(1, 6, b"x"), rig.message(1, 7, b"x"))
        assert rig.dev.irq == 0 and [c.index for c in card.poll(0)] == [5, 6, 7]


def test_a_completion_and_its_interrupt_come_after_the_data(seed):
    """However slow the bus is: the interrupt after the CQE, the CQE after the payload, each of them acknowledged."""
    with Rig(seed=seed, write_latency=500, log=True) as rig:
        rig.qp(1), rig.post(1)
        rig.card.arm(0)
        rig.send(rig.message(1, 0, b"d" * 200))
        assert rig.dev.run_until("irq", 1, limit=5000)
        at = int(rig.dev.irq_edges()["cycle"][0])
        writes = [t for t in rig.dev.transfers() if t["write"]]
        cq = rig.card._cqs[0].addr
        cqe, = (t for t in writes if t["addr"] == cq)
        data = [t for t in writes if rig.memory[1] <= t["addr"] < rig.memory[1] + SLOT]
        assert data and max(int(t["end_cycle"]) for t in data) <= int(cqe["cycle"]) and int(cqe["end_cycle"]) < at
