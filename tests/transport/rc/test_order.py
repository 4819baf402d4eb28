"""RcOrder against a plain reading of its rules: frames, doorbells, commands, complaints and timers in; records out."""

import pytest

from optinic.abi.structs import FATAL
from optinic.abi.verdicts import REASON
from optinic.transport.rc.records import NAK_ACCESS, NAK_INVALID, NAK_OPERATION, NAK_SEQUENCE, RNR, Place, Reply, Turn
from optinic.transport.xp.records import WorkKind
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
    rig.run(lambda ctx: traffic(rig, ctx, 300))
    assert {"timeout", "back", "rnr", "duplicate"} == set(rig.events)
    assert {FATAL[n] for n in ("retry", "remote_invalid")} <= {r["cause"] for r in rig.records if r["fatal"]}
    assert {r["place"] for r in rig.records if "place" in r} == set(Place) and {r["reply"] for r in rig.records if "reply" in r} == set(Reply)
