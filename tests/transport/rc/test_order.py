"""RcOrder against a plain reading of its rules: frames, doorbells, commands, complaints and timers in; records out."""

import pytest

from optinic.abi.structs import FATAL
from optinic.abi.verdicts import REASON
from optinic.transport.rc import order as order_module
from optinic.transport.rc.order import RcOrder
from optinic.transport.rc.records import NAK_ACCESS, NAK_INVALID, NAK_OPERATION, NAK_SEQUENCE, RNR, Place, Reply, Turn
from optinic.transport.xp.records import WorkKind
from tests.formal.mutate import mutant
from tests.transport.rc.order_rig import (ACK, ADD, ANSWER, CFG, DROPPED, M24, MTU, READ, ROOM, SEND, SWAP, WRITE, Rig, frame)

RULES = {0: (7, 7, 0), 1: (7, 7, 0), 2: (2, 1, 0), 3: (3, 2, 1)}       # QP: retries, rnr_retries, timeout


# -- random traffic ----------------------------------------------------------------------------------------------------------

def request(rng, q):
    """A frame of the peer, mostly the one that should come."""
    m, psn = q.message, q.expected
    if rng.random() < .2:
        psn += rng.choice([-3, -2, -1, 1, 2])
    n = MTU
    word = rng.getrandbits(32)
    common = dict(ack_req=rng.getrandbits(1), imm=word, va=8 * rng.getrandbits(40), rkey=word, swap_add=rng.getrandbits(64),
                  compare=rng.getrandbits(64), ce=rng.getrandbits(1))
    if m is not None and rng.random() < .93:
        ops = SEND if m["kind"] == "send" else WRITE
        part = rng.choice(["middle", "last", "last_imm"]) if m["kind"] == "send" else (
            "middle" if m["left"] > MTU else rng.choice(["last", "last_imm"]))
        op = 0x16 if part == "last" and m["kind"] == "send" and rng.random() < .3 else ops[part]
        if part != "middle":
            n = rng.randint(1, MTU) if m["kind"] == "send" else m["left"]
        dma_len = 0
    else:
        kind = rng.choice(["send", "write", "write", "job"] if q.rc else ["send", "write"])
        part = rng.choice(["first", "only", "only_imm"])
        op = rng.choice([READ, SWAP, ADD]) if kind == "job" else (SEND if kind == "send" else WRITE)[part]
        dma_len = rng.choice([0, 1, MTU, MTU + 1, 3 * MTU]) if kind == "job" else rng.randint(MTU + 1, 3 * MTU)
        if part != "first" and kind != "job":
            n = dma_len = rng.randint(0, MTU)
        if kind == "job":
            n = 0
    if rng.random() < .01 and n:
        n -= 1
    f = frame(q.qp, op, psn, pay_len=max(0, min(n, 1024)), dma_len=dma_len, **common)
    if rng.random() < .05:
        f |= rng.choice([dict(passed=1), dict(reason=REASON["icrc"]), dict(pkey=1), dict(src_ip=1), dict(is_cnp=1), dict(other=1),
                         dict(qpn=9), dict(uc=1 - f["uc"])])
    return f


def reply(rng, q):
    """An answer of the peer to what we have sent, mostly one that may come."""
    ends = [q.sent[i][1] for i in q.sent if (i - q.una) & 0xFFFF < CFG.rc_outstanding] or [q.psn]
    head = q.sent.get(q.una)
    psn = rng.choice([*ends[:3], *ends, q.psn, q.psn + 1, q.psn - 1, ends[-1] + rng.randint(0, 2)]) & M24
    if head and head[2] and rng.random() < .7:
        last = q.psn == head[1]
        right = rng.random() < .985
        op = ANSWER[rng.choice(["last", "only", "atomic"] if last == right else ["first", "middle"])]
        return frame(q.qp, op, q.psn if rng.random() < .8 else psn, pay_len=MTU)
    kind = rng.random()
    syndrome = 0x1F
    if kind > .7:
        psn = q.psn if rng.random() < .6 else psn
        syndrome = NAK_SEQUENCE if kind < .84 else RNR | rng.randrange(1, 12) if kind < .97 else rng.choice(
            [NAK_INVALID, NAK_ACCESS, NAK_OPERATION])
    elif kind > .6:
        return frame(q.qp, rng.choice(list(ANSWER.values())), psn, pay_len=MTU)
    return frame(q.qp, ACK, psn, syndrome=syndrome)


async def traffic(rig, ctx, count):
    rng, ref = rig.rng, rig.ref
    for _ in range(count):
        qp = rng.choice(list(RULES))
        q = ref.qps[qp]
        what = rng.random()
        if what < .4:
            for _ in range(rng.randint(1, 4)):          # the next one is made when it is known what comes of this one
                f = request(rng, q)
                rig.expect(ref.frame(f))
                await rig.give(ctx, rig.o.frames, f)
        elif what < .65 and qp:
            for _ in range(rng.randint(1, 4)):
                f = reply(rng, q)
                rig.expect(ref.frame(f))
                await rig.give(ctx, rig.o.frames, f)
        elif what < .72:
            await rig.settle(ctx)
            await rig.post(ctx, qp, receives=(q.head + rng.randint(0, 4)) & 0xFFFF)
        elif what < .88 and qp and not q.stopped:       # requests are posted and sent
            await rig.settle(ctx)
            for _ in range(rng.randint(1, 5)):
                index, last = q.sends, q.next_psn + rng.choice([0, 0, 1, 2])
                if (index - q.una) & 0xFFFF < CFG.rc_outstanding and not (q.failed and rng.random() < .9):
                    await rig.post(ctx, qp, sends=(index + 1) & 0xFFFF)
                    await rig.sent(ctx, qp, index, last, int(rng.random() < .35))
                    q.next_psn = last + 1
        elif what < .92:
            await rig.settle(ctx)
            await rig.deadline(ctx, qp)
        elif what < .95 and ref.jobs:
            await rig.settle(ctx)
            for _ in range(rng.randint(1, ref.jobs)):
                await rig.over(ctx)
        elif what < .965 and qp and q.sends != q.una:
            await rig.settle(ctx)
            await rig.complaint(ctx, qp, (q.una + rng.randint(1, (q.sends - q.una) & 0xFFFF)) & 0xFFFF, rng.choice([5, 6, 7]))
        elif what < .985 or q.stopped:
            await rig.settle(ctx)
            kind = rng.choice([WorkKind.FENCE, WorkKind.FLUSH, WorkKind.RESET, WorkKind.RESET] if q.stopped else
                              [WorkKind.FENCE, WorkKind.RESET])
            await rig.command(ctx, kind, qp, rng.getrandbits(24), rng.choice([M24 - 1, rng.getrandbits(24)]))
    await rig.settle(ctx)


@pytest.mark.parametrize("pace", [1, .4])
def test_random(pace, rng):
    rig = Rig(rng, RULES, pace=pace)
    rig.run(lambda ctx: traffic(rig, ctx, 220))
    assert {"back", "rnr", "duplicate"} <= set(rig.events)
    assert FATAL["remote_invalid"] in {r["cause"] for r in rig.records if r["fatal"]}
    for name, values in ("place", Place), ("reply", Reply):
        assert {r[name] for r in rig.records if name in r} == set(values)


@pytest.mark.parametrize("when", [120, 333])
def test_reset_in_mid_stream(when, rng):
    """Behind it nothing is known of what was within: not the frame, not a PSN, not what was sent."""
    rig = Rig(rng, RULES, pace=.5)

    async def body(ctx):
        await rig.post(ctx, 3, sends=5)
        for i in range(5):
            await rig.sent(ctx, 3, i, i)
        while rig.cycle < when:
            f = request(rng, rig.ref.qps[1])
            rig.expect(rig.ref.frame(f))
            await rig.give(ctx, rig.o.frames, f)
        ctx.set(rig.rst, 1)
        await ctx.tick()
        ctx.set(rig.rst, 0)
        await rig.begin(ctx)
        out = await rig.frames(ctx, frame(3, ACK, 2))
        assert out["verdict"] == DROPPED
        await traffic(rig, ctx, 40)
    rig.run(body)


def test_cycles(rng):
    """Of one more frame in a row: six a request, ten an ACK, and two for each request that it completes."""
    rig = make(rng)
    sends, took = 0, []

    async def ack(ctx, retired):
        nonlocal sends
        await rig.post(ctx, 1, sends=sends + 4 * retired + retired)
        for index in range(sends, sends + 5 * retired):
            await rig.sent(ctx, 1, index, index)
        sends += 5 * retired
        return [frame(1, ACK, sends - 1 - n * retired) for n in reversed(range(5))]

    async def body(ctx):
        for frames in ([frame(1, WRITE["only"], psn) for psn in range(5)], await ack(ctx, 1), [frame(1, ACK, 4)] * 5,
                       await ack(ctx, 2)):
            start = rig.cycle
            await rig.frames(ctx, frames[0])
            one, start = rig.cycle - start, rig.cycle
            await rig.frames(ctx, *frames[1:])
            took.append((rig.cycle - start - one) / 3)
    rig.run(body)
    assert took == [6, 12, 10, 14]


# -- rules, one by one -------------------------------------------------------------------------------------------------------

def make(rng, rules=None, **more):
    return Rig(rng, {qp: RULES[qp] for qp in (1, 2, 3)} if rules is None else rules, **more)


def gaps(rng, **more):
    rig = make(rng, **more)
    only = lambda psn: frame(1, WRITE["only"], psn, ack_req=1)

    async def body(ctx):
        for expected in (0, 2):         # one NAK for each gap, and for the same PSN again only when it has come meanwhile
            replies = [await rig.frames(ctx, only(psn)) for psn in (expected + 5, expected + 2, expected + 9)]
            assert [r["reply"] for r in replies] == [Reply.ACK, Reply.NONE, Reply.NONE]
            assert (replies[0]["syndrome"], replies[0]["psn"]) == (NAK_SEQUENCE, expected)
            assert [(await rig.frames(ctx, only(psn)))["reply"] for psn in (expected, expected + 1)] == [Reply.ACK] * 2
    rig.run(body)


def duplicates(rng, **more):
    """All are acknowledged again up to what has come, even during a NAK; a READ is read again, an atomic looked for."""
    rig = make(rng, **more)

    async def body(ctx):
        await rig.frames(ctx, *[frame(1, WRITE["only"], psn) for psn in range(5)])
        for _ in range(2):
            for psn in (4, 2, 4):
                out = await rig.frames(ctx, frame(1, WRITE["only"], psn))
                assert (out["reply"], out["syndrome"], out["psn"], out["msn"], out["again"]) == (Reply.ACK, 0x1F, 4, 5, 1)
            await rig.frames(ctx, frame(1, WRITE["only"], 9))
        assert (await rig.frames(ctx, frame(1, READ, 1, dma_len=9)))["reply"] == Reply.READ
        assert (await rig.frames(ctx, frame(1, ADD, 2)))["reply"] == Reply.REPLAY
        assert rig.events == ["duplicate"] * 8
    rig.run(body)


def ghosts(rng, **more):
    """ACKs of what has not been sent change nothing, nor does an old one."""
    rig = make(rng, **more)

    async def body(ctx):
        async def drops(*psns):
            for psn in psns:
                out = await rig.frames(ctx, frame(1, ACK, psn))
                assert (out["verdict"], out["retired"] if "retired" in out else 0) == (DROPPED, 0)
        await drops(0, 5)
        await rig.post(ctx, 1, sends=3)
        for index, (end, rd) in enumerate([(1, 0), (4, 0), (6, 1)]):
            await rig.sent(ctx, 1, index, end, rd)
        await drops(6, 7, 100)          # of the READ's answer, which nothing was sent behind, and beyond
        assert (await rig.frames(ctx, frame(1, ACK, 4)))["retired"] == 2
        await drops(6, 7, 100)
        assert (await rig.frames(ctx, frame(1, ACK, 2)))["retired"] == 0
        assert (await rig.frames(ctx, frame(1, ANSWER["first"], 5, pay_len=MTU), frame(1, ANSWER["last"], 6)))["retired"] == 1
        await drops(7)
        # the place of a request that is done: a lap later it isn't taken for the one that belongs there
        await rig.post(ctx, 1, sends=20)
        for index in range(3, 3 + CFG.rc_outstanding):
            await rig.sent(ctx, 1, index, 4 + index)
        assert (await rig.frames(ctx, frame(1, ACK, 10)))["retired"] == 4
        await drops(200)
        assert (await rig.frames(ctx, frame(1, ACK, 4 + 18)))["retired"] == CFG.rc_outstanding - 4
        await drops(23)
    rig.run(body)


def lost_answer(rng, **more):
    """A READ's answer that is missing is asked for once, from where it is missing on, until something has come of that."""
    rig = make(rng, **more)

    async def body(ctx):
        await rig.post(ctx, 1, sends=4)
        for index, (end, rd) in enumerate([(2, 1), (3, 0), (4, 0), (5, 0)]):
            await rig.sent(ctx, 1, index, end, rd)
        turns = [(await rig.frames(ctx, frame(1, ACK, psn)))["turn"] for psn in (3, 4, 4)]
        assert turns == [Turn.GO_BACK, Turn.NONE, Turn.NONE]
        out = await rig.frames(ctx, frame(1, ANSWER["first"], 0, pay_len=MTU))
        assert (out["place"], out["turn"], out["offset"], out["whole"]) == (Place.ANSWER, Turn.NONE, 0, 0)
        out = await rig.frames(ctx, frame(1, ACK, 5))
        assert out["turn"] == Turn.GO_BACK and out["there"] == dict(index=0, offset=1, psn=1)
        assert (await rig.frames(ctx, frame(1, ANSWER["last"], 2)))["turn"] == Turn.NONE
        out = await rig.frames(ctx, frame(1, ANSWER["first"], 1, pay_len=MTU), frame(1, ANSWER["last"], 2, pay_len=7))
        assert (out["place"], out["offset"], out["whole"], out["una"], out["retired"]) == (Place.ANSWER, 2 * MTU, 1, 1, 1)
        assert (await rig.frames(ctx, frame(1, ACK, 5)))["retired"] == 3
        assert rig.events == ["back"] * 2
    rig.run(body)


def counts(rng, **more):
    """QP 2 has two retries and one for want of a receive: the next one without progress ends it. QP 1 has 7 of the latter: for
    ever."""
    rig = make(rng, **more)
    nak, rnr, ack = (lambda psn, s=s: frame(2, ACK, psn, syndrome=s) for s in (NAK_SEQUENCE, RNR | 5, 0x1F))

    async def life(ctx):
        await rig.command(ctx, WorkKind.RESET, 2)
        await rig.post(ctx, 2, sends=4)
        for index in range(4):
            await rig.sent(ctx, 2, index, index)

    async def body(ctx):
        await life(ctx)
        turns = [await rig.frames(ctx, f) for f in (nak(0), nak(0), ack(0), nak(1), nak(1), nak(1))]
        assert [t["turn"] for t in turns] == [Turn.GO_BACK] * 2 + [Turn.NONE] + [Turn.GO_BACK] * 2 + [Turn.HALT]
        assert turns[-1]["fatal"] and turns[-1]["cause"] == FATAL["retry"]
        await life(ctx)
        turns = [await rig.frames(ctx, nak(1)), await rig.frames(ctx, nak(1)), await rig.frames(ctx, nak(1))]
        assert [t["fatal"] for t in turns] == [0, 0, 1]         # the first one brought progress, and counts
        await life(ctx)
        for psn, fatal in (0, 0), (1, 0), (1, 1):
            out = await rig.frames(ctx, rnr(psn))
            assert (out["turn"], out["fatal"]) == (Turn.HALT, fatal)
            assert (await rig.frames(ctx, rnr(psn)))["turn"] == Turn.NONE       # it waits already, or has failed
            out = await rig.deadline(ctx, 2)
            assert out is None if fatal else out["turn"] == Turn.GO_BACK
        await rig.post(ctx, 1, sends=1)
        await rig.sent(ctx, 1, 0, 0)
        for _ in range(10):
            assert (await rig.frames(ctx, frame(1, ACK, 0, syndrome=RNR | 5)))["turn"] == Turn.HALT
            assert (await rig.deadline(ctx, 1))["turn"] == Turn.GO_BACK
    rig.run(body)


def timers(rng, **more):
    """Armed with the first request, anew with progress and after a retry, off when all is done."""
    ticks = 64 << 3
    rig = make(rng, {3: (1, 7, 3), 4: (7, 7, 14), 5: (7, 7, 0)}, **more)

    async def body(ctx):
        await rig.post(ctx, 3, sends=2)
        at = lambda: ((rig.now + ticks + 15) >> 4) & 0xFFFF

        async def later(n):
            rig.now += n
            ctx.set(rig.o.now, rig.now)
            for _ in range(3):
                await rig.step(ctx)
        first = at()
        assert rig.lanes[3] == (1, first)
        await rig.sent(ctx, 3, 0, 1), await rig.sent(ctx, 3, 1, 2)
        await later(100)
        await rig.post(ctx, 3, sends=3)
        assert rig.lanes[3] == (1, first)               # it runs already
        await rig.give(ctx, rig.o.deadlines, dict(qp=3, kind=0))
        await rig.settle(ctx)
        assert rig.lanes[3] == (1, first) and "timeout" not in rig.events       # too early
        await rig.frames(ctx, frame(3, ACK, 0))         # one packet of two: that is progress
        assert rig.lanes[3] == (1, at()) != (1, first)
        second = at()
        await later(100)
        await rig.frames(ctx, frame(3, ACK, 0))         # that isn't
        assert rig.lanes[3] == (1, second)
        assert (await rig.deadline(ctx, 3, ticks))["there"] == dict(index=0, offset=1, psn=1)
        assert rig.events == ["back", "timeout"] or rig.events == ["timeout", "back"]
        assert rig.lanes[3] == (1, at())
        await rig.sent(ctx, 3, 2, 3)
        await rig.frames(ctx, frame(3, ACK, 3))
        assert rig.lanes[3][0] == 0                     # all is done
        assert await rig.deadline(ctx, 3, 100 * ticks) is None
        await rig.post(ctx, 3, sends=4)
        await rig.sent(ctx, 3, 3, 4)
        assert (await rig.deadline(ctx, 3, ticks))["turn"] == Turn.GO_BACK
        assert (await rig.deadline(ctx, 3, ticks))["cause"] == FATAL["retry"] and rig.lanes[3][0] == 0
        # a deadline further off than the scanner can see; none at all
        await rig.post(ctx, 4, sends=1)
        assert rig.lanes[4] == (1, ((rig.now >> 4) + (1 << 14)) & 0xFFFF)
        await rig.post(ctx, 5, sends=1)
        assert rig.lanes[5][0] == 0
    rig.run(body)


def new_life(rng, **more):
    """RESET forgets what was sent, in any place of the ring, while the send half tells of other QPs in every other cycle."""
    rig = make(rng, {1: (7, 7, 0), 2: (7, 7, 0)}, **more)

    async def body(ctx):
        o, full = rig.o, CFG.rc_outstanding
        await rig.post(ctx, 1, sends=full)
        for index in range(full):
            await rig.sent(ctx, 1, index, index)
        await rig.post(ctx, 2, sends=full)
        rig.expect(rig.ref.command(WorkKind.RESET, 1, 7, 50))
        ctx.set(o.commands.payload, dict(kind=WorkKind.RESET.value, qp=1, expected=7, psn=50)), ctx.set(o.commands.valid, 1)
        for cycle in range(5 * full):
            index = cycle // 2
            tells = cycle % 2 == 0 and index < full
            if tells:
                rig.ref.qps[2].sent[index] = (None, index, 0)
                ctx.set(o.outstanding.payload, dict(qp=2, index=index, end_psn=index, rd=0))
            ctx.set(o.outstanding.valid, int(tells))
            taken = ctx.get(o.commands.ready)
            await rig.step(ctx)
            if taken:
                ctx.set(o.commands.valid, 0)
        await rig.settle(ctx)
        assert (await rig.frames(ctx, frame(2, ACK, full - 1)))["retired"] == full
        for index in range(full):
            assert (await rig.frames(ctx, frame(1, ACK, 50 + index)))["verdict"] == DROPPED
            await rig.post(ctx, 1, sends=index + 1)
            assert (await rig.frames(ctx, frame(1, ACK, 50 + index)))["verdict"] == DROPPED
            await rig.sent(ctx, 1, index, 50 + index)
            assert (await rig.frames(ctx, frame(1, ACK, 50 + index)))["retired"] == 1
        assert (await rig.frames(ctx, frame(1, WRITE["only"], 7, ack_req=1)))["reply"] == Reply.ACK
    rig.run(body)


def crowded(rng, **more):
    """As many READs as there is room for; the next one is asked to come again, and does."""
    rig = make(rng, **more)

    async def body(ctx):
        await rig.frames(ctx, *[frame(1, READ, psn, dma_len=5) for psn in range(ROOM)])
        out = await rig.frames(ctx, frame(1, READ, ROOM, dma_len=5))
        assert (out["reason"], out["syndrome"], out["psn"]) == (REASON["overflow"], RNR | 3, ROOM)
        assert (await rig.frames(ctx, frame(1, READ, 0, dma_len=5)))["reason"] == REASON["overflow"]
        await rig.over(ctx)
        assert (await rig.frames(ctx, frame(1, READ, ROOM, dma_len=5)))["reply"] == Reply.READ
        assert (await rig.frames(ctx, frame(1, READ, ROOM + 1, dma_len=5)))["reason"] == REASON["overflow"]
    rig.run(body)


RULE_TESTS = [gaps, duplicates, ghosts, lost_answer, counts, timers, new_life, crowded]


@pytest.mark.parametrize("rule", RULE_TESTS, ids=lambda rule: rule.__name__)
def test_rule(rule, rng):
    rule(rng)


def test_a_request_that_fails_behind_a_read(rng):
    """It has failed with the end of the READ before it, and the send half stands behind it."""
    rig = make(rng)

    async def body(ctx):
        await rig.post(ctx, 1, sends=3)
        await rig.sent(ctx, 1, 0, 0, rd=1)
        await rig.complaint(ctx, 1, 1, FATAL["protection"])
        out = await rig.frames(ctx, frame(1, ANSWER["only"], 0, pay_len=5))
        assert (out["retired"], out["una"], out["cause"]) == (1, 1, FATAL["protection"])
        assert out["there"]["index"] == 2 and (await rig.command(ctx, WorkKind.FLUSH, 1))["una"] == 3
    rig.run(body)


# -- negative controls -------------------------------------------------------------------------------------------------------

MUTANTS = {
    "a NAK for each frame": (gaps, "responder", "with m.If(rc & ~rsp.nak):", "with m.If(rc):"),
    "one NAK for ever": (gaps, "responder", "new_rsp.nak.eq(0), ", ""),
    "duplicates unanswered": (duplicates, "responder",
                              "nak(ACK_NO_CREDITS, Mux(rsp.phase == Phase.ANSWER, frame.psn, rsp.psn - 1))", "pass"),
    "duplicates acknowledge what comes": (duplicates, "responder", "frame.psn, rsp.psn - 1)", "frame.psn, rsp.psn)"),
    "no ghosts": (ghosts, "requester", "seen.ghost.eq(unsent | ((kinds.ack | kinds.response) & ~head.valid & ~distance[23]))",
                  "seen.ghost.eq(0)"),
    "a READ is lost before it is due": (ghosts, "requester", "seen.ghost.eq(unsent | ", "seen.ghost.eq("),
    "no laps": (ghosts, "requester", "there.eq(e.valid & (e.lap == req.una[bits]))", "there.eq(e.valid)"),
    "asked for with each ACK": (lost_answer, "requester", "(seen.missing & (v.progress | ~req.recovering))", "seen.missing"),
    "never asked for": (lost_answer, "requester", "(seen.missing & (v.progress | ~req.recovering))", "(seen.missing & 0)"),
    "from the beginning": (lost_answer, "requester", "Mux(partial, seen.gone, seen.far) << shift",
                           "Mux(partial, seen.gone, 0) << shift"),
    "retries without end": (counts, "requester", "seen.spent.eq(req.retry == rules.retries)", "seen.spent.eq(0)"),
    "one retry less": (counts, "requester", "seen.spent.eq(req.retry == rules.retries)",
                       "seen.spent.eq(req.retry + 1 == rules.retries)"),
    "progress doesn't help": (counts, "requester", "new.retry.eq(Mux(v.progress, v.back, ", "new.retry.eq(Mux(0, v.back, "),
    "waits without end": (counts, "requester", "fatal.eq(1), cause.eq(FATAL[\"rnr_retry\"])", "fatal.eq(0)"),
    "seven waits": (counts, "requester", " & (rules.rnr_retries != 7)", ""),
    "timer not started": (timers, "order", "with m.Elif(starts | ~req.armed):", "with m.Elif(starts):"),
    "timer not started anew": (timers, "order", "with m.Elif(starts | ~req.armed):", "with m.Elif(~req.armed):"),
    "timer not stopped": (timers, "order", "(busy & (rules.timeout != 0))", "(rules.timeout != 0)"),
    "too early": (timers, "order", "with m.If(~late | req.stopped):", "with m.If(req.stopped):"),
    "RESET leaves what was sent": (new_life, "order", "ring.write_en.eq(self.outstanding.valid | clears)",
                                   "ring.write_en.eq(self.outstanding.valid)"),
    "RESET skips a place": (new_life, "order", "slot.eq(slot + ~self.outstanding.valid)", "slot.eq(slot + 1)"),
    "RESET goes first": (new_life, "order", "with m.If(~self.outstanding.valid):", "with m.If(clears):"),
    "room without end": (crowded, "order", "room.eq(jobs < cfg.read_jobs - 1)", "room.eq(1)"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_order_is_noticed(name, rng, monkeypatch):
    rule, module, old, new = MUTANTS[name]
    broken = mutant(f"optinic.transport.rc.{module}", old, new)
    if module != "order":
        monkeypatch.setattr(order_module, module, broken)
    with pytest.raises(AssertionError):
        rule(rng, order=broken.RcOrder if module == "order" else RcOrder)
