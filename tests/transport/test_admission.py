"""Admission against a plain Python reading of the rules, one record in nearly every cycle and few QPs, so that forwarding works hard."""

import random
from dataclasses import dataclass, field

import pytest
from amaranth.hdl import Signal
from amaranth.sim import Simulator

from optinic.abi.structs import CAUSE, STATUS
from optinic.abi.verdicts import REASON
from optinic.config import preset
from optinic.memory.job import JobKind
from optinic.transport.xp import admission, message_pool
from optinic.transport.xp.admission import Admission, lead
from optinic.transport.xp.coverage import mix
from optinic.transport.xp.records import Verdict, WorkKind

from ..formal.mutate import mutant

CFG = preset("tiny")
POOLED = CFG.with_(num_qps=64, open_messages=16)
M32 = (1 << 32) - 1


@dataclass
class Message:
    """What the rules say of one QP; pieces are kept as they are, without any sum."""
    head: int = 0
    touched: bool = False
    armed: bool = False
    deadline: int = None
    since: int = None           # from when its clock runs: when it became head, or was found posted after that
    opcode: int = 0
    msg_len: int = 0
    imm: int = 0
    tag: int = 0
    pieces: list = field(default_factory=list)

    def bytes(self):
        return sum(n for _, n in self.pieces)

    def tiled(self):
        at = 0
        for start, n in sorted(self.pieces):
            if start != at:
                return False
            at += n
        return at == self.msg_len

    def next(self, now, posted, head=None):
        head = (self.head + 1 if head is None else head) & M32
        self.__init__(head=head, since=now if posted != head & 0xFFFF else None)

    def old(self, cause, status="partial"):
        some = self.opcode != 0
        return (self.head, status, cause, self.opcode, self.bytes() if some else 0, self.msg_len, self.imm, self.tag)


class Reference:
    def __init__(self, most=None):
        self.qps = {}
        self.most = most            # messages that may be open at once
        self.lacked = 0             # times that one more was wanted

    def room(self):
        return self.most is None or sum(q.opcode != 0 for q in self.qps.values()) < self.most

    def step(self, r, now):
        """Returns (verdict, reason, old, empty, own)."""
        q = self.qps.setdefault(r["qp"], Message())
        old = empty = own = None
        verdict, reason = r["verdict"], 0
        posted = r["posted"] - q.head & 0xFFFF
        out = q.armed and q.deadline is not None and (now - q.deadline) & M32 < 1 << 31
        if r["kind"] == WorkKind.RESET:
            q.next(now, 0, 0)
        elif r["kind"] == WorkKind.FLUSH:
            if posted:
                old = q.old("flushed", "error")
            if posted > 1:
                empty = (q.head + posted - 1, posted - 2, "flushed")
            q.next(now, r["posted"], q.head + posted)
        elif r["kind"] in (WorkKind.SERVICE, WorkKind.DEADLINE):
            if r["ready"] and out:
                old = q.old("timeout")
                q.next(now, r["posted"])
            elif r["ready"] and not q.armed and r["has_wqe"] and r["index"] == q.head:
                if r["failed"]:
                    own = (q.head, "error")
                    q.next(now, r["posted"])
                else:
                    self.arm(q, r, now)
            elif r["ready"] and not q.armed and q.since is None and posted:
                q.since = now
        elif r["kind"] == WorkKind.FRAME and r["verdict"] == Verdict.PLACED:
            if r["tracked"]:
                verdict, reason, old, empty, own = self.tracked(q, r, now, out)
            elif r["mem_reason"]:
                verdict, reason = Verdict.DROPPED, r["mem_reason"]
        return verdict, reason, old, empty, own

    def arm(self, q, r, now):
        q.armed = True
        since = now if q.since is None else q.since
        q.deadline = r["timeout"] if r["absolute"] else (since + r["timeout"]) & M32 if r["timeout"] else None

    def tracked(self, q, r, now, out):
        drop = lambda name: (Verdict.DROPPED, REASON[name], old, empty, own)
        old = empty = own = None
        held = q.opcode != 0
        if out and (not r["is_uc"] or q.touched):
            old = q.old("timeout")
            q.next(now, r["posted"])
            if r["is_uc"]:
                s = q.head
        elif r["is_uc"]:
            s = q.head + q.touched & M32
        if not r["is_uc"]:
            s = r["seq"]
            gap = s - q.head & M32
            if gap >> 31:
                return drop("late")
        gap = s - q.head & M32
        if not r["has_wqe"]:
            return drop("no_receive")
        room = held or self.room()          # a message that ends now leaves its row to the packet's
        if gap:
            first, cause = (q.head, None) if old else (q.head + 1, "preempted")
            if cause:
                old = q.old(cause)
            count = s - first & M32
            if count:
                empty = (s - 1 & M32, count - 1, "preempted")
            q.next(now, r["posted"], s)
        q.touched = True
        if r["failed"]:
            own = (s, "error")
            q.next(now, r["posted"])
            return drop("no_receive")
        if not q.armed:
            self.arm(q, r, now)
        if q.opcode and q.msg_len != r["msg_len"]:
            return drop("length")
        if r["mem_reason"]:
            return Verdict.DROPPED, r["mem_reason"], old, empty, own
        if not q.opcode and not room and r["pay_len"] != r["msg_len"]:
            self.lacked += 1
            return drop("overflow")
        q.opcode, q.msg_len, q.imm, q.tag = r["opcode"], r["msg_len"], r["imm"], r["tag"]
        q.pieces.append((r["offset"], r["pay_len"]))
        if q.tiled():
            own = (s, "success")
            q.next(now, r["posted"])
        return Verdict.PLACED, 0, old, empty, own


def make_record(rng, qp, q, posted):
    """A random record for QP `qp` with the message state `q` that lookup could have made. `posted` counts receives by QP."""
    if rng.random() < 0.3:
        posted[qp] = min(posted.get(qp, 0) + rng.randrange(4), q.head + 40)
    posted[qp] = max(posted.get(qp, 0), q.head)
    kinds = [WorkKind.FRAME] * 24 + [WorkKind.SERVICE] * 4 + [WorkKind.DEADLINE] * 4 + [WorkKind.FENCE, WorkKind.FLUSH]
    kind = rng.choice(kinds) if rng.random() > 0.005 else WorkKind.RESET
    r = dict(kind=kind, qp=qp, qpn=qp, verdict=Verdict.PLACED, tracked=1, ready=1, is_uc=0, failed=0, mem_reason=0, reason=0,
             absolute=0, beats=rng.randrange(1, 4))
    frame = kind == WorkKind.FRAME
    if kind == WorkKind.RESET:
        posted[qp] = 0
    if frame:
        if rng.random() < 0.15:
            r["verdict"] = rng.choice([Verdict.DROPPED, Verdict.PASSED, Verdict.CONSUMED])
            r["reason"] = 5 if r["verdict"] == Verdict.DROPPED else 0
        r["tracked"], r["is_uc"] = int(rng.random() < 0.9), int(rng.random() < 0.2)
        if rng.random() < 0.06:
            r["mem_reason"] = rng.choice([REASON["rkey"], REASON["bounds"]])
    piece, count = rng.choice([16, 16, 64]), rng.choice([1, 2, 3])
    r |= dict(msg_len=piece * count + (16 if rng.random() < 0.05 else 0), offset=piece * rng.randrange(count), pay_len=piece)
    if q.opcode and rng.random() < 0.9:         # go on with the open message
        done = {start for start, _ in q.pieces}
        size = q.pieces[0][1]
        todo = [at for at in range(0, q.msg_len, size) if at not in done] or [0]
        r |= dict(msg_len=q.msg_len, pay_len=size, offset=rng.choice(todo if rng.random() < 0.85 else [0]))
    if r["is_uc"]:
        r |= dict(msg_len=r["pay_len"], offset=0)
    r["seq"] = q.head + rng.choice([0] * 12 + [1, 2, 5, -1, -3, 70000, -70000]) & M32
    by_head = r["is_uc"] or not frame
    r["index"] = (q.head + (q.touched if r["is_uc"] else 0) if by_head else r["seq"]) & M32
    if kind == WorkKind.SERVICE and rng.random() < 0.1:
        r["index"] = q.head - 1 & M32           # lookup knew an older head
    gap = r["index"] - q.head & M32
    r["has_wqe"] = int(gap < posted[qp] - q.head and kind != WorkKind.DEADLINE and (not frame or r["tracked"]))
    r |= dict(posted=posted[qp] & 0xFFFF, timeout=rng.choice([0, 1, 5, 40, 5000]), failed=int(r["has_wqe"] and rng.random() < 0.02),
              opcode=rng.randrange(1, 4), imm=rng.getrandbits(32), tag=rng.getrandbits(16))
    return r


def fill(ctx, port, r):
    """Set the record's port, with what regions and coverage would have found."""
    start, end = mix(r["offset"]), mix(r["offset"] + r["pay_len"])
    delta = end - start & M32
    events = (WorkKind.SERVICE, WorkKind.DEADLINE, WorkKind.RESET, WorkKind.FLUSH)
    tracked = r["kind"] == WorkKind.FRAME and r["tracked"] and r["verdict"] == Verdict.PLACED
    values = r | dict(single=r["pay_len"] == r["msg_len"], after=r["msg_len"] - r["pay_len"] & M32, delta=delta,
                      rest=mix(r["msg_len"]) - delta & M32, touches=int(r["kind"] in events or tracked))
    del values["offset"]
    for name, value in values.items():
        ctx.set(getattr(port, name), value)


def observed(ctx, dut):
    r = dut.result
    get = ctx.get
    old = empty = own = None
    causes, states = {v: k for k, v in CAUSE.items()}, {v: k for k, v in STATUS.items()}
    if get(r.old.valid):
        op = get(r.old.opcode)
        old = (get(r.old.head), states[get(r.old.status)], causes[get(r.old.cause)], op,
               get(r.old.msg_len) - get(r.old.missing) & M32 if op else 0,
               *((get(r.old.msg_len), get(r.old.imm), get(r.old.tag)) if op else (0, 0, 0)))
    if get(r.empty.valid):
        empty = (get(r.empty.index), get(r.empty.skipped), "flushed" if old[2] == "flushed" else "preempted")
    if get(r.own.valid):
        own = (get(r.own.index), "error" if get(r.own.error) else "success")
    return get(dut.verdict), get(dut.reason), old, empty, own, get(r.job)


def run(dut, seed, records, qps=3, reference=None):
    """The first differences between the design and the reference over so many random records for so many QPs."""
    print(f"seed {seed}")
    rng, reference, posted = random.Random(seed), reference or Reference(), {}
    waiting, differences = [], []

    def check(ctx, r, want):
        verdict, reason, old, empty, own, job = observed(ctx, dut)
        frame = r["kind"] == WorkKind.FRAME
        jobs = {Verdict.PLACED: JobKind.PLACE, Verdict.PASSED: JobKind.PASS}
        want_job = jobs.get(want[0], JobKind.SKIP) if frame else JobKind.NONE
        if (old, empty, own) != want[2:] or job != want_job:
            differences.append((r, want, (old, empty, own, job)))
        if frame and (verdict, reason) != (want[0], want[1] or r["reason"]):
            differences.append((r, want, (verdict, reason)))

    async def bench(ctx):
        while ctx.get(dut.clearing):
            await ctx.tick()
        now, made = 1000, 0
        soon = [None] * lead(dut.cfg)       # QPs of the records at the port in this cycle and the next ones; None: no record
        while made < records or waiting:
            soon.append(rng.randrange(qps) if rng.random() < 0.85 and made < records else None)
            qp = soon.pop(0)
            ctx.set(dut.next_qp, soon[-1] or 0)
            ctx.set(dut.valid, int(qp is not None))
            ctx.set(dut.now, now), ctx.set(dut.time, now << 6)
            if qp is not None:
                r = make_record(rng, qp, reference.qps.setdefault(qp, Message()), posted)
                fill(ctx, dut.record, r)
                waiting.append((r, reference.step(r, now)))
                made += 1
            now += rng.choice([0, 0, 1])
            await ctx.tick()
            if ctx.get(dut.result_valid):
                check(ctx, *waiting.pop(0))
            if len(differences) > 2:
                return

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
    return differences


def test_against_reference(seed):
    assert run(Admission(CFG), seed, 4000) == []


class NoForwarding(Admission):
    def _forward(self, m, st, stored, *rest):
        m.d.comb += st.eq(stored)


class CountsOnly(Admission):
    """Believes the byte count alone: a duplicate makes up for a loss."""
    def _prepare(self, m):
        rec, k, valid = super()._prepare(m)
        cover = Signal(rec.shape())
        m.d.comb += [cover.eq(rec), cover.delta.eq(0), cover.rest.eq(0)]
        return cover, k, valid


@pytest.mark.parametrize("broken", [NoForwarding, CountsOnly])
def test_notices_a_broken_design(broken, seed):
    assert run(broken(CFG), seed, 4000) != []


@pytest.mark.parametrize("qps", [3, 12, 40])
def test_rows_from_a_pool(qps, seed):
    """Three QPs keep the forwarding busy, twelve are at the limit, forty beyond it."""
    reference = Reference(POOLED.most_open)
    assert run(Admission(POOLED), seed, 4000, qps, reference) == []
    assert (reference.lacked > 100) == (qps > POOLED.most_open + 8) and (reference.lacked == 0) == (qps < POOLED.most_open)


@pytest.mark.parametrize("old, new, qps", [
    ("gives | Mux(takes, taken < most - 1, taken < most)", "taken < most", 40),             # one row too many
    ("gives.eq(touched1 & held1 & ~self.last.opcode.any())", "gives.eq(0)", 12),            # rows are lost
    ("Mux(kept.state.opcode.any(), kept.row, candidate)", "candidate", 3),                  # a message changes its row
    ("fetch = takes | ~other.valid", "fetch = ~other.valid", 12),                           # a row is given out twice
    ("again.eq(live[0] & (qps[0] == qp1))", "again.eq(0)", 3),
    ("Mux(hits[3], 4, 0)", "0", 3),
], ids=["room", "lost", "moved", "twice", "last", "oldest"])
def test_notices_a_broken_pool(old, new, qps, seed, monkeypatch):
    monkeypatch.setattr(admission, "MessagePool", mutant(message_pool.__name__, old, new).MessagePool)
    assert run(Admission(POOLED), seed, 4000, qps, Reference(POOLED.most_open)) != []
