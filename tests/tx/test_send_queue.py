"""SendQueue against what the work requests say: packets, their order, completions; deadlines, errors, commands, pacing."""

import random

import pytest

from optinic.abi.structs import CAUSE, SEND_OP, STATUS
from optinic.config import preset
from optinic.tx.records import Event

from .send_rig import BAD, DELTA, GOOD, Rig, SQ_BASE

CFG = preset("tiny")
CODE = {"send": 0xE4, "send_imm": 0xE5, "write": 0xEA, "write_imm": 0xEB, "read": 0xEC}
UC = {"send": 0x24, "send_imm": 0x25, "write": 0x2A, "write_imm": 0x2B}


def expected(opcode, length, f, *, mtu, uc=False):
    """The packets of a work request, in plain arithmetic."""
    if opcode == "read":
        return [dict(opcode=0xEC, len=0, dma_len=length, va=f["remote_va"], seq=f["seq"], msg_len=length, offset=0, tracked=0, reth=1, immdt=0)]
    out = []
    for offset in range(0, max(length, 1), mtu):
        n = min(mtu, length - offset)
        p = dict(opcode=(UC if uc else CODE)[opcode], len=n, offset=offset, msg_len=length, reth=int("write" in opcode),
                 immdt=int("imm" in opcode), imm=f.get("imm", 0), xpeth=int(not uc))
        if n and not f.get("inline"):
            p["addr"] = (f["va"] + offset + DELTA) % (1 << 64)
        if "write" in opcode:
            p |= dict(va=f["remote_va"] + offset, dma_len=n, rkey=f["rkey"])
        if not uc:
            p |= dict(tracked=int(opcode != "write"), seq=f["seq"] if opcode != "write" else 0)
        out.append(p)
    return out


def request(rng, i, mtu, *, uc=False):
    opcode = rng.choice(["send", "send_imm", "write", "write_imm"] + ([] if uc else ["read"]))
    length = rng.choice([0, 1, 31, mtu - 1, mtu] + ([] if uc else [mtu + 1, 2 * mtu, 3 * mtu + 1, rng.randrange(4 * mtu)]))
    f = dict(va=rng.randrange(1 << 40), lkey=GOOD, remote_va=rng.randrange(1 << 40), rkey=rng.randrange(1 << 32), imm=rng.randrange(1 << 32),
             seq=i, tag=rng.randrange(1 << 16), signaled=rng.randrange(2))
    if length <= 32 and rng.randrange(2):
        f["inline"] = 1
    return opcode, length, f


@pytest.mark.parametrize("width,count", [(64, 30), (512, 30), (1024, 15)])
def test_random_requests_on_many_qps(width, count, seed):
    cfg = CFG if width == 64 else preset("small", data_width=width, num_qps=16)
    rng = random.Random(seed)
    rig = Rig(cfg, seed)
    mtus = {qp: rng.choice([256, 512, 1024]) for qp in range(5)}
    want, ends = {qp: [] for qp in mtus}, {qp: [] for qp in mtus}
    for qp, mtu in mtus.items():
        rig.context(qp, mtu=mtu, type=int(qp == 4), dest=qp + 1)
        for i in range(count):
            opcode, length, f = request(rng, i, mtu, uc=qp == 4)
            rig.post(qp, opcode, length, bell=rng.random() < 0.6 or i == count - 1, **f)
            want[qp] += expected(opcode, length, f, mtu=mtu, uc=qp == 4)
            if f["signaled"]:
                ends[qp].append((i, SEND_OP[opcode], length, f["tag"]))

    async def scenario(rig, wait):
        await wait(lambda: len(rig.packets) == sum(map(len, want.values())) and len(rig.jobs) == sum(map(len, ends.values())))
    rig.run(scenario)
    for qp in mtus:
        got = [p for p in rig.packets if p["dest_qpn"] == qp + 1]
        assert [p["psn"] for p in got] == list(range(len(got)))
        for p, w in zip(got, want[qp], strict=True):
            assert not p["silent"] and {k: p[k] for k in w} == w
        done = [j for j in rig.jobs if j["qpn"] == qp]
        assert [(j["wqe_index"], j["opcode"], j["msg_len"], j["tag"]) for j in done] == ends[qp]
        assert all(j["queue"] == 1 and j["status"] == j["cause"] == 0 and j["byte_len"] == j["msg_len"] for j in done)


def test_turns_are_shared(seed):
    """Two long messages go out packet by packet in turn, and a short one of a third QP need not wait for them."""
    rig = Rig(CFG, seed, stall=0)
    for qp in range(3):
        rig.context(qp, dest=qp)

    async def scenario(rig, wait):
        rig.post(0, "write", 256 * 40), rig.post(1, "write", 256 * 40)
        await wait(lambda: len(rig.packets) >= 20)
        rig.post(2, "send", 10)
        at = len(rig.packets)
        await wait(lambda: any(p["dest_qpn"] == 2 for p in rig.packets))
        assert len(rig.packets) - at < 20       # five cycles each: its WQE comes in up to 48, and is asked for and visited in 50 more
        await wait(lambda: len(rig.jobs) == 3)
    rig.run(scenario)
    order = [p["dest_qpn"] for p in rig.packets if p["dest_qpn"] != 2][8:60]
    assert order in ([0, 1] * 26, [1, 0] * 26)


def test_errors_stand_alone(seed):
    """A bad key, a payload and a WQE that can't be read, an inline payload that is too long: each ends its own request only."""
    rig = Rig(CFG, seed)
    rig.context(0)
    rig.bad_reads.add(SQ_BASE + 3 * 64)
    rig.failing = lambda p: p["seq"] == 77 and p["offset"] == 256

    async def scenario(rig, wait):
        rig.post(0, "send", 100)
        rig.post(0, "send", 600, lkey=BAD, signaled=0)
        rig.post(0, "send", 600, seq=77, signaled=0)
        rig.post(0, "send", 100)                    # its WQE can't be read
        rig.post(0, "send", 33, inline=1, signaled=0)
        rig.post(0, "send", 100)
        await wait(lambda: len(rig.jobs) == 6)
    rig.run(scenario)
    ok = (STATUS["success"], CAUSE["complete"], 100)
    assert [(j["status"], j["cause"], j["byte_len"]) for j in rig.jobs] == [
        ok, (STATUS["error"], CAUSE["protection"], 0), (STATUS["error"], CAUSE["bus"], 0), (STATUS["error"], CAUSE["bus"], 0),
        (STATUS["error"], CAUSE["length"], 0), ok]
    assert [j["wqe_index"] for j in rig.jobs] == list(range(6))


def test_a_read_without_an_answer(seed):
    """It costs its own request and, until a reset, one slot; everything else goes on."""
    rig = Rig(CFG, seed)
    rig.context(0), rig.context(1, dest=1)
    rig.lost_reads.add(SQ_BASE)

    async def scenario(rig, wait):
        for _ in range(30):
            rig.post(0, "send", 10)
        rig.post(1, "send", 10)
        await wait(lambda: len(rig.jobs) == 31)
    rig.run(scenario)
    mine = [j for j in rig.jobs if j["qpn"] == 0]
    assert [j["wqe_index"] for j in mine] == list(range(30))
    assert [j["status"] for j in mine] == [STATUS["error"]] + [STATUS["success"]] * 29


def test_deadline(seed):
    """What is unsent when it has passed is abandoned, and the completion says how much went out."""
    rig = Rig(CFG, seed, stall=0)
    rig.context(0)

    async def scenario(rig, wait):
        rig.post(0, "write", 256 * 4000, deadline_set=1, deadline=1500 * 4 // 64, signaled=0)
        rig.post(0, "write", 256, deadline_set=1, deadline=(-100) % (1 << 32))
        rig.post(0, "write", 256, deadline_set=1, deadline=1 << 30)
        await wait(lambda: len(rig.jobs) == 3)
    rig.run(scenario)
    first, second, third = rig.jobs
    assert first["status"] == STATUS["partial"] and first["cause"] == CAUSE["timeout"]
    assert 0 < first["byte_len"] < first["msg_len"]
    assert first["byte_len"] == sum(p["len"] for p in rig.packets if p["msg_len"] == first["msg_len"])
    assert (second["status"], second["byte_len"]) == (STATUS["partial"], 0) and third["status"] == STATUS["success"]


@pytest.mark.parametrize("kind", ["FLUSH", "RESET"])
def test_command_on_a_busy_qp(kind, seed):
    rig = Rig(CFG, seed)
    rig.context(3, dest=0), rig.context(1, dest=1)

    async def scenario(rig, wait):
        for _ in range(20):
            rig.post(3, "write", 2000), rig.post(1, "write", 300)
        await wait(lambda: len(rig.packets) > 12)
        rig.context(3, state=3 if kind == "FLUSH" else 0, dest=9)
        rig.commands.append((Event[kind], 3))
        await wait(lambda: rig.fences == 1)
        before = len(rig.packets)
        rig.posted[3] = 20 if kind == "FLUSH" else 0
        await wait(lambda: sum(j["qpn"] == 1 for j in rig.jobs) == 20)
        assert not [p for p in rig.packets[before:] if p["dest_qpn"] != 1]
        rig.context(3, state=2, dest=9)
        for _ in range(9):
            rig.post(3, "send", 10, tag=5)
        await wait(lambda: sum(j["tag"] == 5 for j in rig.jobs) == 9)
    rig.run(scenario)
    ends = [(j["wqe_index"], j["skipped"]) for j in rig.jobs if j["qpn"] == 3]
    if kind == "FLUSH":     # each of the 20, once
        run = [j for j in rig.jobs if j["cause"] == CAUSE["flushed"]][-1]
        assert run["wqe_index"] == 19 and run["status"] == STATUS["error"]
        count = sum(1 + s for _, s in ends)
        assert count == 29 and [i for i, _ in ends] == sorted(i for i, _ in ends)
    else:
        assert [i for i, s in ends][-9:] == list(range(9)) and all(j["cause"] != CAUSE["flushed"] for j in rig.jobs)
    assert kind == "FLUSH" or [p["psn"] for p in rig.packets if p["dest_qpn"] == 9 and not p["silent"]] == list(range(9))


def test_posting_to_a_qp_that_is_not_ready(seed):
    rig = Rig(CFG, seed)
    rig.context(0, state=3), rig.context(1, state=0)

    async def scenario(rig, wait):
        rig.post(0, "send", 10, signaled=0), rig.post(0, "send", 10), rig.post(1, "send", 10)
        rig.commands.append((Event.FENCE, 0))
        await wait(lambda: len(rig.jobs) == 2)
        await wait(lambda: rig.fences == 1)
    rig.run(scenario)
    assert [(j["qpn"], j["status"], j["cause"]) for j in rig.jobs] == [(0, STATUS["error"], CAUSE["flushed"])] * 2
    assert all(p["silent"] for p in rig.packets)


def test_reads_of_peers_are_answered(seed):
    """More requests than there are slots for them, beside sends; each answered whole, in MTU pieces, and no completion here."""
    rig = Rig(CFG, seed)
    rig.context(0), rig.context(1, dest=1)

    async def scenario(rig, wait):
        for i in range(10):
            rig.requests.append(dict(qp=1, generation=0, seq=100 + i, tag=i, length=256 * i + 1, va=0x100 * i, key=GOOD))
            rig.post(0, "write", 600)
        await wait(lambda: not rig.requests and len(rig.jobs) == 10)
        await wait(lambda: sum(p["len"] for p in rig.packets if p["dest_qpn"] == 1) == sum(256 * i + 1 for i in range(10)))
    rig.run(scenario)
    for i in range(10):
        mine = [p for p in rig.packets if p["seq"] == 100 + i]
        assert [(p["offset"], p["len"]) for p in mine] == [(o, min(256, 256 * i + 1 - o)) for o in range(0, 256 * i + 1, 256)]
        assert {(p["opcode"], p["tracked"], p["tag"], p["msg_len"]) for p in mine} == {(0xF0, 1, i, 256 * i + 1)}
        assert mine[0]["addr"] == 0x100 * i + DELTA
    order = [p["seq"] for p in rig.packets if p["opcode"] == 0xF0]
    assert order == sorted(order)       # one after the other: at the peer a later one would end an earlier one


def test_pacing_gives_slots_back(seed):
    """A QP that has to wait for long holds no slot meanwhile, comes back in time, and loses nothing; the fast one doesn't notice."""
    next_time = {}

    def wait(qp, now):
        return max(0, next_time.get(qp, 0) - now) if qp == 5 else 0
    rig = Rig(CFG, seed, stall=0, wait=wait)
    rig.context(5, dest=0), rig.context(1, dest=1)
    sent = []

    async def scenario(rig, wait_for):
        rig.post(5, "send", 10), rig.post(5, "send", 10)        # so that it is not the first WQE that is given back
        await wait_for(lambda: len(rig.jobs) == 2)
        rig.jobs.clear(), rig.packets.clear()
        next_time[5] = rig.cycle * 4 + 20_000
        for i in range(12):
            rig.post(5, "send", 600, tag=i), rig.post(1, "send", 600)
        await wait_for(lambda: sum(j["qpn"] == 1 for j in rig.jobs) == 12)
        assert not [p for p in rig.packets if p["dest_qpn"] != 1] and rig.cycle * 4 < next_time[5]
        sent.append(len(rig.asked))
        await wait_for(lambda: sum(j["qpn"] == 5 for j in rig.jobs) == 12)
    rig.run(scenario)
    mine = [p for p in rig.packets if p["dest_qpn"] != 1]
    assert [(p["tag"], p["offset"]) for p in mine] == [(i, o) for i in range(12) for o in (0, 256, 512)]
    assert sent[0] < 2 + 12 + 12 + 16      # it was not fetched over and over again


def test_commands_on_a_qp_with_nothing_to_do(seed):
    """Neither a flush nor a new life completes anything, however much had been sent before."""
    rig = Rig(CFG, seed)
    rig.context(1)

    async def scenario(rig, wait):
        for kind in ("FLUSH", "RESET"):
            for _ in range(4):
                rig.post(1, "send", 10)
            await wait(lambda: len(rig.jobs) == 4)
            rig.commands.append((Event[kind], 1))
            await wait(lambda: rig.fences == (1 if kind == "FLUSH" else 2))
            assert len(rig.jobs) == 4
            rig.jobs.clear()
    rig.run(scenario)
