"""Slots of the send side: whatever ends the use of one, it is given back once, and no message gets another's work request."""

import pytest

from optinic.abi.structs import CAUSE
from optinic.config import preset
from optinic.tx.records import Event

from .send_rig import GOOD, SQ_BASE, Rig

CFG = preset("tiny")


@pytest.mark.parametrize("kind", ["FLUSH", "RESET"])
def test_command_while_requests_are_read(kind, seed):
    """None of them has come when the command begins; each slot is given back, and nothing of the old life is sent after it."""
    rig = Rig(CFG, seed, latency=(100, 200))
    rig.dma_timeout = 2000
    rig.context(3, dest=1), rig.context(5, dest=2)
    asked = lambda: sum(at // (64 * CFG.sq_entries) == SQ_BASE // (64 * CFG.sq_entries) + 3 for at in rig.asked)

    async def a_life_that_ends(rig, wait):
        before, fences, others = asked(), rig.fences, sum(j["tag"] == 2 for j in rig.jobs)
        for _ in range(7):
            rig.post(3, "send", 10, tag=1)
        rig.post(5, "send", 10, tag=2)
        await wait(lambda: asked() >= before + 4)
        rig.context(3, state=3 if kind == "FLUSH" else 0, dest=9)
        rig.commands.append((Event[kind], 3))
        await wait(lambda: rig.fences > fences)
        rig.context(3, state=2, dest=1)
        rig.commands.append((Event.RESET, 3))
        await wait(lambda: rig.fences > fences + 1 and sum(j["tag"] == 2 for j in rig.jobs) > others)
        rig.posted[3] = 0

    async def scenario(rig, wait):
        for _ in range(2):
            await a_life_that_ends(rig, wait)
        for _ in range(20):
            rig.post(3, "send", 10, tag=5)
        await wait(lambda: sum(j["tag"] == 5 for j in rig.jobs) == 20)
    rig.run(scenario)
    mine = [p for p in rig.packets if p["dest_qpn"] == 1 and not p["silent"]]
    assert [(p["tag"], p["psn"]) for p in mine] == [(5, i) for i in range(20)]
    ends = [(j["cause"], j["wqe_index"], j["skipped"]) for j in rig.jobs if j["qpn"] == 3 and j["tag"] != 5]
    assert ends == [(CAUSE["flushed"], 6, 6)] * (2 if kind == "FLUSH" else 0)


def test_requests_that_are_fetched_behind_those_given_back(seed):
    """They are too late for their place in the ring: their slots are given back too, each once, and they are fetched again."""
    next_time = {}
    cfg = preset("small", data_width=512, num_qps=16, tx_slots=16)      # a work request is one beat, so the first is soon there
    rig = Rig(cfg, seed, latency=(1, 3), stall=0, wait=lambda qp, now: max(0, next_time.get(qp, 0) - now))
    rig.context(5, dest=0), rig.context(1, dest=1)

    async def scenario(rig, wait):
        for lap in range(3):
            next_time[5] = rig.cycle * 4 + 3000
            for i in range(9 + lap):
                rig.post(5, "send", 10, tag=lap, bell=i == 8 + lap)
            await wait(lambda: 5 in rig.parked)
            assert not [p for p in rig.packets if p["tag"] == lap and p["dest_qpn"] == 0]
            for _ in range(9):
                rig.post(1, "send", 10)
            await wait(lambda: len(rig.jobs) == sum(rig.posted.values()))
    rig.run(scenario)
    for qp in (5, 1):
        assert [(j["wqe_index"], j["status"]) for j in rig.jobs if j["qpn"] == qp] == [(i, 0) for i in range(rig.posted[qp])]
    assert len(rig.asked) > len(rig.jobs)


def test_answers_beside_sends(seed):
    """A READ that is the only one of its QP, over and over, while others send: whatever slots they all have, no message changes."""
    rig = Rig(CFG, seed)
    rig.context(0, dest=0), rig.context(1, dest=1)

    async def scenario(rig, wait):
        for lap in range(9):
            sends, answers = rig.posted.get(0, 0), 2 * lap
            for i in range(5):
                rig.post(0, "send", 300 + i)
            asked = sends + lap % 5
            await wait(lambda n=asked: len(rig.asked) > n)
            rig.requests.append({"qp": 1, "generation": 0, "seq": lap, "tag": lap, "length": 300, "va": 0, "key": GOOD})
            await wait(lambda n=sends + 5: len(rig.jobs) == n)
            await wait(lambda n=answers + 2: sum(p["dest_qpn"] == 1 for p in rig.packets) == n)
    rig.run(scenario)
    assert [(j["wqe_index"], j["status"], j["byte_len"]) for j in rig.jobs] == [(i, 0, 300 + i % 5) for i in range(45)]
    answers = [(p["opcode"], p["seq"], p["len"]) for p in rig.packets if p["dest_qpn"] == 1]
    assert answers == [(0xF0, lap, n) for lap in range(9) for n in (256, 44)]
