"""Lookup: each check against the QP alone and in order of precedence, who goes first, and that UC packets wait for their turn."""

import random

from amaranth.sim import Simulator

from optinic.abi.registers import MTU_CODE, QP_STATE, QP_TYPE
from optinic.abi.verdicts import REASON
from optinic.config import preset
from optinic.transport.xp.deadlines import LaneKind
from optinic.transport.xp.lookup import Lookup
from optinic.transport.xp.records import WorkKind

CFG = preset("tiny", num_qps=12)
PEERS = {0: (0x0A000001, 0), 1: (0xFD << 120 | 1, 1)}
NAMES = {v: k for k, v in REASON.items()}


def simulate(dut, *benches):
    sim = Simulator(dut)
    sim.add_clock(1e-8)
    for bench in benches:
        sim.add_testbench(bench)
    sim.run()


async def set_up(ctx, dut, qps):
    while ctx.get(dut.clearing):
        await ctx.tick()
    await ctx.tick().repeat(70)
    ctx.set(dut.pkey, 0xFFFF), ctx.set(dut.work.ready, 1)
    for index, (ip, v6) in PEERS.items():
        port = dut.peer_set
        ctx.set(port.en, 1), ctx.set(port.index, index), ctx.set(port.entry.ip, ip), ctx.set(port.entry.v6, v6)
        await ctx.tick()
    ctx.set(dut.peer_set.en, 0)
    for qpn, q in qps.items():
        port = dut.context_set
        ctx.set(port.en, 1), ctx.set(port.qp, qpn & 15)
        values = dict(state=QP_STATE[q["state"]], type=QP_TYPE[q["type"]], mtu=MTU_CODE[q["mtu"]], generation=q["generation"], pd=7,
                      peer=q["peer"], cq=3, tag=qpn >> 4)
        for name, value in values.items():
            ctx.set(getattr(port.entry, name), value)
        await ctx.tick()
    ctx.set(dut.context_set.en, 0)


def put(ctx, port, frame):
    for name, value in frame.items():
        ctx.set(getattr(port, name), value)


QP = dict(state="ready", type="xp", mtu=512, generation=9, peer=0)
QPS = {0x1235: QP, 2: QP | dict(type="uc", peer=1), 3: QP | dict(state="error"), 4: QP | dict(state="init")}


def expected(frame):
    """(verdict, reason name) by the documented order."""
    if frame["passed"]:
        return "PASSED", "none"
    if frame["reason"]:
        return "DROPPED", NAMES[frame["reason"]]
    q = QPS.get(frame["qpn"])
    if q is None:
        return "DROPPED", "qpn"
    pkey = frame["pkey"]
    checks = {
        "length": frame["pay_len"] > q["mtu"] and (frame["is_xp"] or frame["is_uc"]),
        "state": q["state"] != "ready",
        "opcode": frame["other"] or (frame["is_xp"] and q["type"] != "xp"),
        "pkey": pkey & 0x7FFF != 0x7FFF,
        "source": (frame["src_ip"], frame["src_v6"]) != PEERS[q["peer"]],
        "generation": frame["is_xp"] and frame["generation"] != q["generation"],
    }
    for name, wrong in checks.items():
        if wrong:
            return "DROPPED", name
    return ("CONSUMED" if frame["is_cnp"] else "PLACED"), "none"


def random_frame(rng):
    kind = rng.choice(["is_xp", "is_xp", "is_uc", "is_cnp", "other"])
    qpn = rng.choice([*QPS, *QPS, 0x1235, 0x1235, 5, 0x2235, 13, 0x1235 ^ 1 << 23])
    peer = rng.choice([0, 0, 1])
    frame = dict(passed=0, reason=0, is_xp=0, is_uc=0, is_cnp=0, other=0, tracked=0, is_write=1, qpn=qpn, pkey=0xFFFF, pay_len=64,
                 src_ip=PEERS[peer][0], src_v6=PEERS[peer][1], generation=9, beats=2)
    frame[kind] = 1
    for name, value in (("pkey", rng.choice([0x7FFF, 1, 0xFFFE])), ("pay_len", rng.choice([512, 513, 1024])), ("generation", 8),
                        ("passed", 1), ("reason", REASON["icrc"]), ("src_ip", 0x0A000002)):
        if rng.random() < 0.12:
            frame[name] = value
    if frame["passed"]:
        frame["reason"] = 0
    return frame


def test_checks_and_their_order(seed):
    rng, dut = random.Random(seed), Lookup(CFG)
    frames = [random_frame(rng) for _ in range(700)]
    got = []

    async def source(ctx):
        await set_up(ctx, dut, QPS)
        for frame in frames:
            while rng.random() < 0.2:
                await ctx.tick()
            put(ctx, dut.frames.payload, frame), ctx.set(dut.frames.valid, 1)
            await ctx.tick().until(dut.frames.ready)
            ctx.set(dut.frames.valid, 0)

    async def sink(ctx):
        while len(got) < len(frames):
            ready = rng.random() < 0.8
            ctx.set(dut.work.ready, ready)
            if ready and ctx.get(dut.work.valid):
                work = dut.work.payload
                got.append((ctx.get(work.verdict).name, NAMES[ctx.get(work.reason)]))
            await ctx.tick()

    simulate(dut, source, sink)
    want = [expected(f) for f in frames]
    assert got == want
    assert {reason for _, reason in want} >= {"qpn", "length", "state", "opcode", "pkey", "source", "generation", "icrc", "none"}


def test_posted_receives_and_the_order_of_a_qp():
    """A doorbell is seen by the frame behind it; a UC packet waits until admission has ended what is before it of its QP."""
    dut = Lookup(CFG)
    send = dict(is_uc=1, tracked=1, is_write=0, qpn=2, pkey=0xFFFF, src_ip=PEERS[1][0], src_v6=1, pay_len=4, beats=1)
    seen = []

    async def bench(ctx):
        await set_up(ctx, dut, QPS)

        async def ring(value):
            ctx.set(dut.doorbells.payload, value), ctx.set(dut.doorbells.valid, 1)
            await ctx.tick().until(dut.doorbells.ready)
            ctx.set(dut.doorbells.valid, 0)

        async def drain(cycles):
            for _ in range(cycles):
                if ctx.get(dut.work.valid):
                    w = dut.work.payload
                    seen.append((ctx.get(w.kind), ctx.get(w.has_wqe), ctx.get(w.index), ctx.get(w.posted)))
                await ctx.tick()

        async def retire(head, touched):
            port = dut.head_set
            ctx.set(port.en, 1), ctx.set(port.qp, 2), ctx.set(port.entry.head, head), ctx.set(port.entry.touched, touched)
            ctx.set(dut.retire.en, 1), ctx.set(dut.retire.qp, 2)
            await ctx.tick()
            ctx.set(port.en, 0), ctx.set(dut.retire.en, 0)

        await ring(2 << 16 | 3)
        put(ctx, dut.frames.payload, send), ctx.set(dut.frames.valid, 1)
        await drain(30)
        assert seen == [(WorkKind.SERVICE, 1, 0, 3)], "the packet must wait for the service record of its QP"
        await retire(0, 0)
        await drain(80)
        # UC packets with a receive follow each other; the one without takes nothing, and the next must wait
        assert seen[1:] == [(WorkKind.FRAME, 1, 0, 3), (WorkKind.FRAME, 1, 1, 3), (WorkKind.FRAME, 1, 2, 3), (WorkKind.FRAME, 0, 3, 3)]
        for head in (1, 2, 3):
            await retire(head, 0)
        await drain(30)
        assert len(seen) == 5
        ctx.set(dut.frames.valid, 0)
        await retire(3, 0)
        await drain(20)             # the packet that waited has no receive either
        assert seen[5:] == [(WorkKind.FRAME, 0, 3, 3)]
        await retire(3, 0)
        await ring(2 << 16 | 9)
        ctx.set(dut.frames.valid, 1)
        await drain(30)
        assert seen[6:] == [(WorkKind.SERVICE, 1, 3, 9)], "an event may move head: no chain over it"
        await retire(3, 1)          # head 3 has a packet: the next takes 4
        await drain(12)
        assert seen[7:8] == [(WorkKind.FRAME, 1, 4, 9)]
        await drain(100)
        assert [index for _, _, index, _ in seen[7:13]] == [4, 5, 6, 7, 8, 9]
        ctx.set(dut.frames.valid, 0)
        before = len(seen)
        await ring(13 << 16 | 1)    # no such QP; nor this one, whose lower bits are QP 2's
        await ring((16 + 2) << 16 | 1)
        await drain(40)
        assert len(seen) == before
        ctx.set(dut.deadlines.payload.kind, LaneKind.SERVICE), ctx.set(dut.deadlines.payload.qp, 2), ctx.set(dut.deadlines.valid, 1)
        await ctx.tick().until(dut.deadlines.ready)
        ctx.set(dut.deadlines.valid, 0)
        await drain(40)
        assert seen[before:] == [(WorkKind.SERVICE, 1, 3, 9)], "its count is not theirs"

    simulate(dut, bench)


def test_nobody_starves():
    """Frames and deadlines take turns, and commands go before both."""
    dut = Lookup(CFG)
    kinds = []

    async def bench(ctx):
        await set_up(ctx, dut, QPS)
        put(ctx, dut.frames.payload, dict(is_xp=1, qpn=0x1235, is_write=1, beats=1))
        ctx.set(dut.frames.valid, 1), ctx.set(dut.deadlines.valid, 1), ctx.set(dut.deadlines.payload.kind, LaneKind.DEADLINE)
        for cycle in range(200):
            ctx.set(dut.commands.valid, cycle == 100), ctx.set(dut.commands.payload.kind, WorkKind.FENCE)
            if ctx.get(dut.work.valid):
                kinds.append(ctx.get(dut.work.payload.kind))
            await ctx.tick()

    simulate(dut, bench)
    assert kinds.count(WorkKind.FENCE) == 1
    assert abs(kinds.count(WorkKind.FRAME) - kinds.count(WorkKind.DEADLINE)) <= 2
    assert len(kinds) > 180, "one record a cycle"



def test_idle_and_levels_of_work():
    dut = Lookup(CFG)

    async def bench(ctx):
        await set_up(ctx, dut, QPS)
        await ctx.tick().repeat(5)
        assert ctx.get(dut.idle)
        ctx.set(dut.work.ready, 0), ctx.set(dut.frames.valid, 1)
        put(ctx, dut.frames.payload, dict(is_xp=1, qpn=0x1235, beats=1))
        taken = 0
        for _ in range(60):
            taken += ctx.get(dut.frames.ready)
            await ctx.tick()
        assert 16 <= taken <= 17 and not ctx.get(dut.idle), "output queue and one register, then it refuses"

    simulate(dut, bench)
