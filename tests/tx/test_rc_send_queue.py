"""SendQueue of transport rc against what the work requests say: cutting, PSNs, AckReq, window, going back, answers, ACKs, failures."""

import random

import pytest

from optinic.abi.structs import CAUSE, FATAL, SEND_OP, STATUS
from optinic.config import preset
from optinic.tx.records import Event

from .rc_rig import CFG, CODES, RcRig, check, expected, request
from .send_rig import BAD, DELTA, GOOD, SQ_BASE


def of(rig, qp, since=0):
    return [p for p in rig.packets[since:] if p["dest_qpn"] == 100 + qp and not p["silent"]]


def life(rig, qp, **options):
    rig.reset(qp, dest=100 + qp, **options)


@pytest.mark.parametrize("uc", [False, True])
@pytest.mark.parametrize("mtu", [256, 1024])
def test_every_opcode_at_every_cut(uc, mtu, seed):
    rng = random.Random(seed)
    rig = RcRig(CFG, seed)
    opcodes = [*(n for n in CODES if not (uc and n == "send_inv")), *([] if uc else ["read", "compare_swap", "fetch_add"])]
    works = [request(rng, mtu, opcode=o, length=n) for o in opcodes for n in (0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 1)]
    rng.shuffle(works)
    psn, want, told, done = 0xFFFFF0, [], [], []
    life(rig, 1, mtu=mtu, psn=psn, uc=int(uc))
    for i, (opcode, length, f) in enumerate(works):
        packets, behind = expected(opcode, length, f, mtu=mtu, psn=psn, uc=uc)
        want += packets
        told.append(dict(qp=1, index=i, end_psn=(behind - 1) % (1 << 24), rd=int(opcode in ("read", "compare_swap", "fetch_add"))))
        psn = behind
        if f["signaled"]:
            done.append((i, SEND_OP[opcode], length))

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 1)
        for i, (opcode, length, f) in enumerate(works):
            rig.post(1, opcode, length, bell=rng.random() < 0.5 or i == len(works) - 1, **f)
        for k in range(0, len(works) + 1, 8):
            await wait(lambda: uc or len(rig.outstanding) >= k)
            if not uc:
                rig.progress.append(dict(qp=1, una=k))
        await wait(lambda: len(rig.packets) == len(want) + 1 and (not uc or len(rig.jobs) == len(done)), 20_000)
    rig.run(scenario)
    check(of(rig, 1), want)
    assert rig.outstanding == ([] if uc else told) and not rig.failed
    if uc:
        assert [(j["wqe_index"], j["opcode"], j["byte_len"]) for j in rig.jobs] == done and all(j["status"] == 0 for j in rig.jobs)
    else:
        assert not rig.jobs
    assert any(p["psn"] == 0xFFFFFF for p in want) and any(p["psn"] == 0 for p in want) or not uc


@pytest.mark.parametrize("width,count", [(64, 20), (512, 20), (1024, 10)])
def test_random_requests_on_many_qps(width, count, seed):
    cfg = CFG if width == 64 else preset("small", transport="rc", data_width=width, num_qps=16)
    rng = random.Random(seed)
    rig = RcRig(cfg, seed)
    mtus = {qp: rng.choice([256, 512, 1024]) for qp in range(5)}
    want, psns = {}, {qp: rng.randrange(1 << 24) for qp in mtus}
    works = {qp: [request(rng, mtu, uc=qp == 4) for _ in range(count)] for qp, mtu in mtus.items()}
    for qp, mtu in mtus.items():
        life(rig, qp, mtu=mtu, psn=psns[qp], uc=int(qp == 4), window=rng.choice([1, 2, 16]))
        want[qp] = []
        for opcode, length, f in works[qp]:
            packets, psns[qp] = expected(opcode, length, f, mtu=mtu, psn=psns[qp], uc=qp == 4)
            want[qp] += packets

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 5)
        for i in range(count):
            for qp in mtus:
                opcode, length, f = works[qp][i]
                rig.post(qp, opcode, length, bell=rng.random() < 0.6 or i == count - 1, **f)
        seen = 0
        while len(rig.packets) < 5 + sum(map(len, want.values())):
            await wait(lambda: len(rig.outstanding) > seen or len(rig.packets) == 5 + sum(map(len, want.values())))
            for told in rig.outstanding[seen:]:
                rig.progress.append(dict(qp=told["qp"], una=told["index"] + 1))
            seen = len(rig.outstanding)
    rig.run(scenario)
    for qp in mtus:
        check(of(rig, qp), [*want[qp]])
    assert not rig.failed


def test_ack_is_asked_for_inside_long_messages(seed):
    rig = RcRig(CFG, seed, stall=0)
    life(rig, 0, psn=5)

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 1)
        rig.post(0, "write", 256 * 150, remote_va=0x5000, rkey=1)
        await wait(lambda: len(of(rig, 0)) == 150)
    rig.run(scenario)
    assert [i for i, p in enumerate(of(rig, 0)) if p["ack_req"]] == [58, 122, 149]


@pytest.mark.parametrize("window", [1, 2, 16])
def test_window(window, seed):
    """Never more unacknowledged requests than it, and as many if there are any."""
    rig = RcRig(CFG, seed)
    life(rig, 3, window=window)
    count = 8 + 2 * window

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 1)
        for _ in range(count):
            rig.post(3, "send", 300)
        una = 0
        while una < count:
            await wait(lambda: len(rig.outstanding) == min(una + window, count))
            at = rig.cycle
            await wait(lambda: rig.cycle > at + 150)
            assert len(rig.outstanding) <= una + window
            una = min(count, una + rig.rng.randint(1, window))
            rig.progress.append(dict(qp=3, una=una))
    rig.run(scenario)
    assert [t["index"] for t in rig.outstanding] == list(range(count))


def test_a_window_of_the_whole_ring(seed):
    """No window then, though the counts are modulo twice the ring."""
    cfg = preset("tiny", transport="rc", sq_entries=16)
    rig = RcRig(cfg, seed, stall=0)
    life(rig, 3, window=0)

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 1)
        for _ in range(16):
            rig.post(3, "send", 3)
        await wait(lambda: len(rig.outstanding) == 16)
        rig.progress.append(dict(qp=3, una=16))
        rig.go_back(3, 0)
        await wait(lambda: len(rig.outstanding) == 32)
        for _ in range(16):
            rig.post(3, "send", 3)
        await wait(lambda: len(rig.outstanding) == 48)
    rig.run(scenario)
    assert [t["index"] for t in rig.outstanding] == [*range(16), *range(32)]


@pytest.mark.parametrize("opcode", ["write", "write_imm", "send_inv", "read"])
def test_go_back_into_a_message(opcode, seed):
    """From its middle on, with the PSN that is said; others are not disturbed, and answers go on."""
    rng = random.Random(seed)
    rig = RcRig(CFG, seed)
    works = [request(rng, 256, opcode=opcode, length=256 * 6 + 9) for _ in range(6)]
    life(rig, 0, psn=1000), life(rig, 1, psn=7)
    again = []

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 2)
        for o, n, f in works:
            rig.post(0, o, n, **f)
        rig.requests.append(dict(qp=0, atomic=0, psn=500, msn=9, length=256 * 20, va=0, key=GOOD))
        for _ in range(10):
            rig.post(1, "send", 1000)
        await wait(lambda: any(t["qp"] == 0 and t["index"] == 3 for t in rig.outstanding))
        rig.go_back(0, 2, 3, 1000 + 2 * 7 + 3)
        rig.post(0, "send", 0)
        await wait(lambda: not rig.commands)
        again.append(len(rig.packets))
        await wait(lambda: any(t["qp"] == 0 and t["index"] == 6 for t in rig.outstanding) and len(rig.answered) == 1)
        await wait(lambda: sum(t["qp"] == 1 for t in rig.outstanding) == 10 and len(of(rig, 1)) == 40)
        await wait(lambda: any(p["opcode"] == 4 for p in of(rig, 0)))
    rig.run(scenario)
    got = of(rig, 0)
    answers = [p for p in got if p["opcode"] in (0xD, 0xE, 0xF)]
    assert [p["psn"] for p in answers] == list(range(500, 520)) and [p["opcode"] for p in answers] == [0xD, *[0xE] * 18, 0xF]
    own = [p for p in got if p not in answers]
    want, psn = [], 1014
    for i, (o, n, f) in enumerate(works[2:]):
        packets, psn = expected(o, n, f, mtu=256, psn=psn + (3 if i == 0 else 0), offset=768 if i == 0 else 0)
        want += packets
    check(own[-len(want) - 1:-1], want)
    assert own[-1]["psn"] == psn and [p["psn"] for p in of(rig, 1)] == list(range(7, 47))
    first = [{"psn": p["psn"], "opcode": p["opcode"]} for p in own[:-len(want) - 1]]
    plain, at = [], 1000
    for o, n, f in works:
        packets, at = expected(o, n, f, mtu=256, psn=at)
        plain += [{"psn": p["psn"], "opcode": p["opcode"]} for p in packets]
    assert first == plain[:len(first)]


@pytest.mark.parametrize("paced", [False, True])
def test_random_going_back(paced, seed):
    """Any place of what was sent, again and again, on QPs side by side: the stream from there on is always the same."""
    rng = random.Random(seed)
    rig = RcRig(CFG, seed, wait=(lambda qp, now: (now // 700 % 7 - 4) * 900 if now // 700 % 7 > 4 and qp < 2 else 0) if paced else None)
    count, qps = 14, range(3)
    works = {qp: [request(rng, 256) for _ in range(count)] for qp in qps}
    starts, plain = {}, {}
    for qp in qps:
        life(rig, qp, psn=0xFFFFF8)
        psn, plain[qp], starts[qp] = 0xFFFFF8, [], []
        for i, (o, n, f) in enumerate(works[qp]):
            packets, behind = expected(o, n, f, mtu=256, psn=psn)
            starts[qp].append(psn)
            plain[qp] += packets
            psn = behind
    jumps = {qp: [] for qp in qps}

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 3)
        for i in range(count):
            for qp in qps:
                o, n, f = works[qp][i]
                rig.post(qp, o, n, **f)
        for _ in range(12):
            at = rig.cycle
            await wait(lambda: rig.cycle > at + rng.randrange(400))
            qp = rng.choice(qps)
            sent = [t["index"] for t in rig.outstanding if t["qp"] == qp]
            if sent:
                k = rng.randrange(sent[-1] + 1)
                o, n, f = works[qp][k]
                offset = rng.randrange(-(-n // 256)) if n and o not in ("compare_swap", "fetch_add") else 0
                if rng.randrange(2):
                    rig.go_back(qp, 0, kind=Event.HALT)
                rig.go_back(qp, k, offset, (starts[qp][k] + offset) % (1 << 24))
                jumps[qp].append((k, offset))
                await wait(lambda: not rig.commands)
        await wait(lambda: all([t["index"] for t in rig.outstanding if t["qp"] == qp][-1:] == [count - 1] for qp in qps))
        await wait(lambda: all(of(rig, qp) and of(rig, qp)[-1]["psn"] == plain[qp][-1]["psn"] for qp in qps))
    rig.run(scenario)
    for qp in qps:
        got = of(rig, qp)
        streams = [plain[qp]]
        for k, offset in jumps[qp]:
            o, n, f = works[qp][k]
            packets, _ = expected(o, n, f, mtu=256, psn=(starts[qp][k] + offset) % (1 << 24), offset=256 * offset)
            rest = []
            for i in range(k + 1, count):
                rest += expected(*works[qp][i], mtu=256, psn=starts[qp][i])[0]
            streams.append(packets + rest)
        # each stream in turn, cut short where the next one begins
        at, number = 0, 0
        place = 0
        while at < len(got):
            here = number < len(streams) and place < len(streams[number]) and all(got[at][k] == v for k, v in streams[number][place].items())
            if here:
                at, place = at + 1, place + 1
            else:
                number, place = number + 1, 0
                assert number < len(streams), f"packet {at} of QP {qp}: {got[at]}"
        assert number <= len(streams) - 1
    assert not rig.failed and not rig.jobs


def test_halt(seed):
    """Nothing leaves, whatever is posted or acknowledged; GOBACK wakes it, and a new life does."""
    rig = RcRig(CFG, seed)
    life(rig, 2, psn=50, window=2), life(rig, 1)

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 2)
        for i in range(8):
            rig.post(2, "send", 300, imm=i)
        await wait(lambda: len(rig.outstanding) == 2)
        rig.go_back(2, 1, 0, 52, kind=Event.HALT)
        rig.commands.append((Event.FENCE, 2))
        await wait(lambda: rig.fences == 3)
        before = len(of(rig, 2))
        rig.post(2, "send", 300)
        rig.progress.append(dict(qp=2, una=1))
        for i in range(5):
            rig.post(1, "send", 300)
        await wait(lambda: sum(t["qp"] == 1 for t in rig.outstanding) == 5)
        at = rig.cycle
        await wait(lambda: rig.cycle > at + 600)
        assert len(of(rig, 2)) <= before + 1 and not [t for t in rig.outstanding if t["qp"] == 2][2:]
        rig.go_back(2, 1, 0, 52)
        await wait(lambda: len([t for t in rig.outstanding if t["qp"] == 2]) == 4)
        rig.progress.append(dict(qp=2, una=3))
        await wait(lambda: len([t for t in rig.outstanding if t["qp"] == 2]) == 6)
        rig.go_back(2, 3, 0, 56, kind=Event.HALT)
        rig.context(2, state=3, dest=102)
        rig.commands.append((Event.FLUSH, 2))
        await wait(lambda: rig.fences == 4)
        await wait(lambda: len(rig.jobs) == 1)
        life(rig, 2, psn=9)
        await wait(lambda: rig.fences == 5)
        rig.post(2, "send", 1)
        await wait(lambda: of(rig, 2)[-1]["psn"] == 9)
    rig.run(scenario)
    told = [(t["index"], t["end_psn"]) for t in rig.outstanding if t["qp"] == 2]
    assert told == [(0, 51), (1, 53), (1, 53), (2, 55), (3, 57), (4, 59), (0, 9)]
    j = rig.jobs[0]
    assert (j["wqe_index"], j["skipped"], j["status"], j["cause"]) == (8, 5, STATUS["error"], CAUSE["flushed"])


@pytest.mark.parametrize("kind", ["FLUSH", "RESET", "GOBACK", "HALT"])
@pytest.mark.parametrize("uc", [0, 1])
def test_command_while_wqes_are_being_read(kind, uc, seed):
    """They are given back like those that are here, and nothing of them is left behind."""
    rig = RcRig(CFG, seed, latency=(150, 200), stall=0)
    life(rig, 3, psn=40, uc=uc)

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 1)
        for round in range(3):
            at = len(rig.asked)
            for _ in range(4):
                rig.post(3, "send", 100, signaled=0)
            await wait(lambda: len(rig.asked) >= at + 4)
            if kind == "RESET":
                life(rig, 3, psn=40, uc=uc)
            else:
                rig.commands.append((Event[kind], 3, dict(index=4 * round, psn=40 + 4 * round)))
            rig.commands.append((Event.FENCE, 3))
            fences, before = rig.fences, len(rig.packets)
            await wait(lambda: rig.fences == fences + (2 if kind in ("FLUSH", "RESET") else 1))
            await wait(lambda: kind != "GOBACK" or len(rig.packets) == before + 5)
            at = rig.cycle
            await wait(lambda: rig.cycle > at + 600)
            if kind == "HALT":
                assert len(rig.packets) == before + 1
                rig.go_back(3, 4 * round, 0, 40 + 4 * round)
                await wait(lambda: len(rig.packets) == before + 5)
    rig.run(scenario)
    assert [p["psn"] for p in of(rig, 3)] == (list(range(40, 52)) if kind in ("GOBACK", "HALT") else [])
    assert [(j["wqe_index"], j["skipped"], j["cause"]) for j in rig.jobs] == (
        [(4 * i + 3, 3, CAUSE["flushed"]) for i in range(3)] if kind == "FLUSH" else [])


def test_failures(seed):
    """Told for the request, with no completion; the PSNs it would have had stay unused."""
    rig = RcRig(CFG, seed)
    for qp in range(6):
        life(rig, qp, mtu=256)
    life(rig, 6, mtu=256, uc=1)
    rig.bad_reads.add(SQ_BASE + (2 * CFG.sq_entries + 1) * 64)
    rig.failing = lambda p: p["dest_qpn"] == 103 and p["psn"] == 3

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 7)
        for qp in range(7):
            rig.post(qp, "send", 300)
        rig.post(0, "send", 300, lkey=BAD)
        rig.post(1, "send", 33, inline=1)
        rig.post(2, "send", 300)                # its WQE can't be read
        rig.post(3, "write", 700)               # nor the payload of its second packet
        rig.post(6, "read", 700, signaled=0), rig.post(6, "send_inv", 3, signaled=0), rig.post(6, "send", 300, lkey=BAD, signaled=0)
        for qp in range(7):
            rig.post(qp, "send", 10, signaled=qp == 6)
        await wait(lambda: len(rig.failed) >= 4 and len(rig.jobs) == 5)
        at = rig.cycle
        await wait(lambda: rig.cycle > at + 300)
    rig.run(scenario)
    told = {(f["qp"], f["index"], f["cause"]) for f in rig.failed}
    assert told == {(0, 1, FATAL["protection"]), (1, 1, FATAL["length"]), (2, 1, FATAL["bus"]), (3, 1, FATAL["bus"])}
    assert [(j["wqe_index"], j["status"], j["cause"]) for j in rig.jobs] == [
        (0, 0, 0), (1, STATUS["error"], CAUSE["length"]), (2, STATUS["error"], CAUSE["length"]), (3, STATUS["error"], CAUSE["protection"]), (4, 0, 0)]
    for qp, sent in ((0, [0, 1, 4]), (1, [0, 1, 3]), (2, [0, 1, 3]), (3, [0, 1, 2, 3, 4, 5]), (4, [0, 1, 2])):
        assert [p["psn"] for p in of(rig, qp)] == sent
    assert not [t for t in rig.outstanding if t["qp"] in (1, 2) and t["index"] == 1]


def test_answers_and_acks(seed):
    """READs and atomics in order, ACKs between them, beside sends of the same QP."""
    rng = random.Random(seed)
    rig = RcRig(CFG, seed)
    life(rig, 1, psn=77, tclass=0x6A), life(rig, 2)
    jobs, acks = [], []
    for i in range(24):
        length = rng.choice([0, 1, 255, 256, 257, 512, 1025])
        jobs.append(dict(qp=1, atomic=int(i % 3 == 2), psn=(0xFFFFF0 + 10 * i) % (1 << 24), msn=i, length=length, va=rng.getrandbits(64), key=GOOD))
        acks.append(dict(qp=rng.choice([1, 2]), psn=rng.getrandbits(24), msn=rng.getrandbits(24), syndrome=rng.choice([0x1F, 0x2E, 0x60])))

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 2)
        rig.requests.extend(jobs), rig.acks.extend(acks)
        for _ in range(10):
            rig.post(1, "write", 600)
        await wait(lambda: len(rig.answered) == 24 and not rig.acks)
        await wait(lambda: sum(p["opcode"] == 0x11 and not p["silent"] for p in rig.packets) == 24 and len([t for t in rig.outstanding if t["qp"] == 1]) == 10)
        at = rig.cycle
        await wait(lambda: rig.cycle > at + 300)
    rig.run(scenario)
    got = [p for p in of(rig, 1) if p["opcode"] in (0xD, 0xE, 0xF, 0x10, 0x12)]
    want = []
    for j in jobs:
        aeth = 0x1F << 24 | j["msn"]
        if j["atomic"]:
            want.append(dict(opcode=0x12, psn=j["psn"], immdt=1, imm=aeth, len=8, inline=1))
            assert got[len(want) - 1]["inline_data"] & (1 << 64) - 1 == int.from_bytes(j["va"].to_bytes(8, "big"), "little")
            continue
        count = max(1, -(-j["length"] // 256))
        for i in range(count):
            code = 0x10 if count == 1 else 0xD if i == 0 else 0xF if i == count - 1 else 0xE
            p = dict(opcode=code, psn=(j["psn"] + i) % (1 << 24), immdt=int(code != 0xE), len=min(256, j["length"] - 256 * i), reth=0, ack_req=0, tclass=0x6A)
            if code != 0xE:
                p["imm"] = aeth
            if p["len"]:
                p["addr"] = (j["va"] + 256 * i + DELTA) % (1 << 64)
            want.append(p)
    check(got, want)
    assert rig.answered == [1] * 24 and not rig.jobs and not rig.failed
    sent = [p for p in rig.packets if p["opcode"] == 0x11 and not p["silent"]]
    assert [(p["dest_qpn"], p["psn"], p["imm"], p["len"], p["immdt"], p["ack_req"]) for p in sent] == [
        (100 + a["qp"], a["psn"], a["syndrome"] << 24 | a["msn"], 0, 1, 0) for a in acks]
    own = [p for p in of(rig, 1) if p["opcode"] in (6, 7, 8)]
    assert [p["psn"] for p in own] == list(range(77, 107))


def test_reset_gives_answers_up(seed):
    rig = RcRig(CFG, seed)
    life(rig, 1), life(rig, 2)

    async def scenario(rig, wait):
        await wait(lambda: rig.fences == 2)
        for i in range(4):
            rig.requests.append(dict(qp=1, atomic=0, psn=i << 12, msn=i, length=100_000, va=0, key=GOOD))
        await wait(lambda: len(of(rig, 1)) > 10)
        life(rig, 1, psn=3)
        await wait(lambda: rig.fences == 3)
        assert rig.answered == [1] * 4
        before = len(rig.packets)
        rig.post(1, "send", 3)
        rig.requests.append(dict(qp=1, atomic=1, psn=5, msn=6, length=0, va=7, key=0))
        await wait(lambda: len(rig.answered) == 5 and len([t for t in rig.outstanding if t["qp"] == 1]) == 1)
        await wait(lambda: len(rig.packets) == before + 2)
        assert sorted((p["opcode"], p["psn"]) for p in rig.packets[before:]) == [(4, 3), (0x12, 5)]
    rig.run(scenario)


def test_pacing_and_going_back(seed):
    """A QP that waits for its rate goes back meanwhile, and sends from there when its time has come."""
    next_time = {}

    def wait(qp, now):
        return max(0, next_time.get(qp, 0) - now) if qp == 5 else 0
    rig = RcRig(CFG, seed, stall=0, wait=wait)
    life(rig, 5, psn=0), life(rig, 1)

    async def scenario(rig, wait_for):
        await wait_for(lambda: rig.fences == 2)
        for _ in range(6):
            rig.post(5, "send", 600)
        await wait_for(lambda: len(of(rig, 5)) >= 10)
        next_time[5] = rig.cycle * 4 + 12_000
        await wait_for(lambda: 5 in rig.parked)
        sent = len(of(rig, 5))
        rig.go_back(5, 1, 1, 4)
        at = rig.cycle
        await wait_for(lambda: rig.cycle > at + 500)
        assert len(of(rig, 5)) == sent
        await wait_for(lambda: of(rig, 5)[-1]["psn"] == 17 and len(of(rig, 5)) > sent)
        assert [p["psn"] for p in of(rig, 5)[sent:]] == list(range(4, 18)) and rig.cycle * 4 >= next_time[5]
    rig.run(scenario)
