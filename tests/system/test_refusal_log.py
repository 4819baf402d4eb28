"""The log of refusals: exact by queue pair and reason, and without influence on anything else."""

from collections import Counter

import pytest

from optinic.abi.registers import offset_of
from sim.frames import cnp, flip, xp_write
from .rig import PEER, SLOT, Rig, ends

pytestmark = pytest.mark.rtl

LOG = 5


@pytest.fixture
def rig(seed):
    with Rig(seed=seed) as rig:
        for qpn in (1, 2, 3):
            rig.qp(qpn, "uc" if qpn == 3 else "xp", generation=9)
            rig.post(qpn, 40)
        yield rig


def refused(rig, qpn):
    """Frames of a QP by the reason for which they are refused, by what comes after the QP is found."""
    xp = rig.types[qpn] == "xp"
    out = {
        "length": [rig.write(qpn, bytes(600))] if qpn == 2 else [], "pkey": [rig.write(qpn, b"p", pkey=0x7F)],
        "source": [rig.write(qpn, b"s", src="10.0.0.77")],
        "bounds": [rig.write(qpn, b"b" * 8, 64 * SLOT - 7)],
    }
    if xp:
        out |= {"generation": [rig.write(qpn, b"g", generation=8)], "no_receive": [rig.message(qpn, 100_000, b"n")]}
    else:
        out |= {"opcode": [xp_write(qpn, b"o", rig.va(qpn), rig.key(qpn))]}
    return {reason: frames for reason, frames in out.items() if frames}


def test_counts_by_queue_pair_and_reason(rig, rng):
    rig.qp(2, generation=9, mtu=512)
    rig.card.log_refusals(LOG, 1024)
    expected, frames = {qpn: Counter() for qpn in (1, 2, 3)}, []
    for _ in range(150):
        qpn = rng.choice((1, 2, 3))
        reason, some = rng.choice(sorted(refused(rig, qpn).items()))
        expected[qpn][reason] += len(some)
        frames += some
    # what is refused before a QP is found, or of no QP, is in the card's own counters only; so is what is not refused
    frames += [flip(rig.write(1, b"icrc"), 400), rig.write(1, b"v", tver=1), b"runt", rig.write(1, b"fine"), cnp(1, src=PEER)] * 3
    rig.types[12], rig.generations[12] = "xp", 0
    frames += [rig.write(12, b"no such QP")] * 5
    rng.shuffle(frames)
    rig.exchange(*frames)
    assert rig.card.refusals() == {qpn: dict(counts) for qpn, counts in expected.items()}
    assert rig.card.refusals(1) == dict(expected[1]) and rig.card.refusals(12) == {}
    total = sum(expected.values(), Counter())
    counters = rig.card.counters()
    assert all(counters[f"drop_{reason}"] == n for reason, n in total.items())
    assert counters["log_overrun"] == counters["cq_overrun"] == 0 and counters["drop_qpn"] == 5
    assert rig.card.poll(0) == []       # no completion of anybody comes of it
    rig.exchange(*refused(rig, 1)["pkey"])
    assert rig.card.refusals(1)["pkey"] == expected[1]["pkey"] + 1


def test_off_unless_it_is_asked_for(rig):
    assert rig.card.reg_read("REFUSAL_LOG") == 0
    frames = [f for some in refused(rig, 1).values() for f in some]
    completions = rig.card.counter("completions")
    writes = rig.dev.axi_totals()["writes"]
    rig.exchange(*frames * 4)
    assert rig.card.counter("completions") == completions and rig.dev.axi_totals()["writes"] == writes
    rig.card.log_refusals(LOG)
    rig.exchange(*frames)
    assert sum(rig.card.refusals(1).values()) == len(frames)
    rig.card.reg_write("REFUSAL_LOG", LOG)      # enable 0
    writes = rig.dev.axi_totals()["writes"]
    rig.exchange(*frames)
    assert sum(rig.card.refusals(1).values()) == len(frames) and rig.dev.axi_totals()["writes"] == writes


def test_an_overrun_of_the_log_is_counted_apart(rig, rng):
    rig.card.log_refusals(LOG, 8)
    rig.exchange(*[rig.write(1, b"p", pkey=1)] * 30)
    assert rig.card.counter("log_overrun") == 22 and rig.card.counter("cq_overrun") == 0
    assert rig.card.refusals(1) == {"pkey": 8} and rig.card.counter("drop_pkey") == 30
    rig.exchange(*[rig.write(2, b"p", pkey=1)] * 3)
    assert rig.card.refusals(2) == {"pkey": 3} and rig.card.counter("log_overrun") == 22
    rig.exchange(*(rig.message(q, 0, b"works") for q in (1, 2, 3)))
    assert len(rig.card.poll(0)) == 3


def test_a_log_without_a_queue_is_an_overrun(rig):
    rig.card.reg_write("REFUSAL_LOG", 1 << 31 | 6)      # CQ 6 was never set
    assert rig.exchange(rig.write(1, b"p", pkey=1), rig.message(1, 0, b"good")) == ["pkey", "placed"]
    assert rig.card.counter("log_overrun") == 1 and ends(rig.card.poll(0)) == [(0, "success", "complete")]


def test_a_refusal_does_not_take_a_write_error(rig):
    """The mark of a refused write is for the QP's next completion; an entry of the log is none."""
    rig.card.log_refusals(LOG)
    rig.dev.inject(rig.memory[1] + 50 * SLOT, 64, "slverr", on="write", count=1)
    rig.exchange(rig.write(1, b"lost", 50 * SLOT), *[rig.write(1, b"p", pkey=1)] * 3, rig.message(1, 0, b"next"),
                 rig.message(1, 1, b"after"))
    assert rig.card.counter("write_errors") == 1 and rig.card.refusals(1) == {"pkey": 3}
    assert [s for _, s, _ in ends(rig.card.poll(0))] == ["error", "success"]


def test_the_log_can_be_waited_for(rig):
    rig.card.log_refusals(LOG)
    rig.card.arm(LOG)
    rig.exchange(rig.message(1, 0, b"good"))
    assert rig.dev.irq == 0
    rig.exchange(rig.write(1, b"p", pkey=1))
    assert rig.dev.irq == 1 and rig.card.refusals(1) == {"pkey": 1}
    assert rig.dev.reg_read(offset_of("IRQ_STATUS")) == 1
