"""A bench for RcOrder: queue pairs, frames as descriptors, what the send half says, and a plain reading of the rules."""

from collections import deque

from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.abi.registers import QP_STATE, QP_TYPE
from optinic.abi.structs import FATAL, OPCODE
from optinic.abi.verdicts import REASON
from optinic.config import preset
from optinic.transport.rc.order import RcOrder
from optinic.transport.rc.records import NAK_ACCESS, NAK_INVALID, NAK_SEQUENCE, RNR, Place, Reply, Turn
from optinic.transport.xp.records import Verdict, WorkKind

CFG = preset("tiny", transport="rc")
MTU, MTU_CODE, PKEY = 256, 1, 0xFFFF
M24 = 0xFFFFFF
ROOM = CFG.read_jobs - 1
PLACED, CONSUMED, DROPPED, PASSED = Verdict.PLACED, Verdict.CONSUMED, Verdict.DROPPED, Verdict.PASSED
SEND, WRITE = ({"first": b, "middle": b + 1, "last": b + 2, "last_imm": b + 3, "only": b + 4, "only_imm": b + 5} for b in (0, 6))
READ, SWAP, ADD, ACK = 0x0C, 0x13, 0x14, 0x11
ANSWER = {"first": 0x0D, "middle": 0x0E, "last": 0x0F, "only": 0x10, "atomic": 0x12}
_PARTS = {0: ("send", "first"), 1: ("send", "middle"), 2: ("send", "last"), 3: ("send", "last"), 4: ("send", "only"),
          5: ("send", "only"), 0x16: ("send", "last"), 0x17: ("send", "only"), 6: ("write", "first"), 7: ("write", "middle"),
          8: ("write", "last"), 9: ("write", "last"), 0x0A: ("write", "only"), 0x0B: ("write", "only")}


def ip_of(qp):
    return 0x0A000001 + qp


def frame(qp, op, psn, **fields):
    """A descriptor of a good frame."""
    return dict(passed=0, reason=0, beats=3, is_cnp=0, other=0, uc=int(qp == 0), op=op, ce=0, ack_req=0, solicited=0, qpn=qp,
                pkey=PKEY, psn=psn & M24, src_ip=ip_of(qp), src_v6=0, pay_off=54, pay_len=0, va=0, rkey=0, dma_len=0, imm=0,
                syndrome=0x1F, msn=0, swap_add=0, compare=0) | fields


def behind(a, b):
    """a comes before b."""
    return bool((a - b) & 1 << 23)


class Qp:
    """What the rules say of one QP, number 0 of which is UC. Requests of ours: index -> (first PSN, last PSN, has an answer)."""

    def __init__(self, qp, retries, rnr_retries, timeout, expected=0, psn=0):
        self.qp, self.rc, self.rules = qp, qp != 0, (retries, rnr_retries, timeout)
        self.expected, self.msn, self.head, self.posted, self.nak, self.message = expected, 0, 0, 0, False, None
        self.asked = False
        self.sent, self.una, self.psn, self.first, self.reads, self.sends, self.next_psn = {}, 0, psn, psn, 0, 0, psn
        self.retry = self.rnr = 0
        self.recovering = self.waits = self.stopped = False
        self.failed = None

    @property
    def armed(self):
        return (self.waits or (self.una != self.sends and self.rules[2] != 0)) and not self.stopped


class Reference:
    """Each method returns the record that follows, of what it says, or None; `jobs` counts READs and atomics under way."""

    def __init__(self, rules):
        self.rules, self.jobs = rules, 0
        self.qps = {qp: Qp(qp, *r) for qp, r in rules.items()}

    # -- frames --
    def frame(self, f):
        out = dict(kind=WorkKind.FRAME, verdict=CONSUMED, reason=0, place=Place.NONE, reply=Reply.NONE, turn=Turn.NONE, fatal=0,
                   retired=0, complete=0, ends=0, again=0, has_wqe=0, beats=f["beats"])
        if f["passed"]:
            return out | dict(verdict=PASSED)
        q = self.qps.get(f["qpn"])
        requests_only = f["op"] in (READ, SWAP, ADD, ACK, *ANSWER.values())
        low = lambda key: key & 0x7FFF
        for wrong, name in ((f["reason"], None), (q is None, "qpn"),
                            (f["other"] or (q and not f["is_cnp"] and (f["uc"] == q.rc or (f["uc"] and requests_only))), "opcode"),
                            (low(f["pkey"]) != low(PKEY), "pkey"), (q and f["src_ip"] != ip_of(q.qp), "source")):
            if wrong:
                return out | dict(verdict=DROPPED, reason=REASON[name] if name else f["reason"])
        if f["is_cnp"]:
            return out
        if f["op"] == ACK or f["op"] in ANSWER.values():
            return out | self.answer(q, f)
        return out | self.request(q, f)

    def request(self, q, f):
        kind, part = _PARTS.get(f["op"], ("job", "only"))
        drop = lambda reason, **more: dict(verdict=DROPPED, reason=REASON[reason], **more)
        nak = lambda syndrome: dict(reply=Reply.ACK, syndrome=syndrome, psn=q.expected, msn=q.msn)
        wants_job = kind == "job"
        if q.rc and behind(f["psn"], q.expected):
            if not wants_job:
                return dict(again=1, reply=Reply.ACK, syndrome=0x1F, psn=f["psn"] if q.asked else (q.expected - 1) & M24,
                            msn=q.msn)
            if self.jobs >= ROOM:
                return drop("overflow", again=1)
            self.jobs += 1
            answer = dict(again=1, psn=f["psn"], msn=q.msn)
            if f["op"] == READ:
                return answer | dict(place=Place.READ, reply=Reply.READ, va=f["va"], rkey=f["rkey"], length=f["dma_len"])
            return answer | dict(reply=Reply.REPLAY)
        if f["psn"] != q.expected and (q.rc or part not in ("first", "only")):
            if not q.rc:
                q.message = None
                return drop("psn")
            tell = {} if q.nak else nak(NAK_SEQUENCE)
            q.nak = True
            return drop("psn", **tell)
        n, begins, ends = f["pay_len"], part in ("first", "only"), part in ("last", "only")
        if begins:
            fits = not q.rc or q.message is None
        else:
            fits = q.message is not None and q.message["kind"] == kind
        if f["op"] == READ:
            size = f["dma_len"] < 1 << 31
        elif wants_job:
            size = f["va"] % 8 == 0
        else:
            size = n == MTU if not ends else n <= MTU and (n or part == "only")
            if kind == "write" and size and fits:
                left = (f["dma_len"] if begins else q.message["left"]) - n
                size = left == 0 if ends else left > 0
        if not fits or not size:
            if q.rc:
                return drop("sequence", fatal=1, cause=FATAL["remote_invalid"], ours=0, **nak(NAK_INVALID))
            q.message, q.expected = None, (f["psn"] + 1) & M24
            return drop("length" if fits else "sequence")
        imm = f["op"] in (3, 5, 9, 0x0B)
        takes = (kind == "send" and begins) or (kind == "write" and imm)
        if (takes and q.posted == q.head & 0xFFFF) or (wants_job and self.jobs >= ROOM):
            reason = "overflow" if wants_job else "no_receive"
            if not q.rc:
                q.message, q.expected = None, (f["psn"] + 1) & M24
                return drop(reason)
            q.nak = True
            return drop(reason, **nak(RNR | 3))
        # it is accepted
        q.nak, q.asked, invalidates = False, wants_job, f["op"] in (0x16, 0x17)
        m = q.message if not begins else dict(kind=kind, va=f["va"], rkey=f["rkey"], total=f["dma_len"], left=f["dma_len"], at=0)
        out = dict(verdict=CONSUMED if wants_job else PLACED, ends=int(ends), index=q.head, psn=f["psn"], msn=q.msn)
        q.expected = (f["psn"] + 1) & M24
        if f["op"] == READ:
            q.expected = (f["psn"] + max(1, -(-f["dma_len"] // MTU))) & M24
            out |= dict(place=Place.READ, va=f["va"], rkey=f["rkey"], length=f["dma_len"])
        elif wants_job:
            words = [f[name] >> at & 0xFFFFFFFF for name in ("swap_add", "compare") for at in (0, 32)]
            name = "fetch_add" if f["op"] == ADD else "compare_swap"
            out |= dict(place=Place.ATOMIC, va=f["va"], rkey=f["rkey"], opcode=OPCODE[name],
                        **dict(zip(("offset", "index", "imm", "length"), words)))
        elif kind == "send":
            out |= dict(place=Place.SEND, has_wqe=1, offset=m["at"], posted=q.posted)
        else:
            out |= dict(place=Place.WRITE, va=m["va"] + m["at"], rkey=m["rkey"], offset=f["dma_len"] if begins else n)
        if wants_job:
            self.jobs += 1
            out |= dict(reply=Reply.READ)
        elif q.rc and f["ack_req"]:
            out |= dict(reply=Reply.ACK, syndrome=0x1F)
        if not wants_job:
            m["at"] += n
            m["left"] -= n
        if ends and (kind == "send" or imm):
            name = "write_imm" if kind == "write" else "send_inv" if invalidates else "send_imm" if imm else "send"
            out |= dict(complete=1, opcode=OPCODE[name], imm=f["imm"] if imm or invalidates else 0,
                        length=m["at"] if kind == "send" else m["total"])
            q.head += 1
        q.msn = (q.msn + ends) & M24
        q.message = None if ends else m
        if not q.rc:
            out |= dict(uc=1, begins=int(begins))
        return out

    # -- answers --
    def answer(self, q, f):
        if q.stopped:
            return dict(verdict=DROPPED, reason=REASON["psn"])
        return self.judge(q, f)

    def judge(self, q, f=None):
        """A frame, or the time is up."""
        timer, is_ack = f is None, f is not None and f["op"] == ACK
        response = f is not None and not is_ack
        kind = f["syndrome"] >> 5 & 3 if is_ack else None
        una, pointer, first, retired, lost = q.una, q.psn, q.first, 0, False
        done = f and (f["psn"] + (1 if is_ack and kind == 0 else 0)) & M24     # everything before this PSN has arrived there
        while f and una in q.sent and behind(q.sent[una][1], done):
            if q.sent[una][2]:
                lost = True
                break
            pointer = first = (q.sent[una][1] + 1) & M24
            una, retired = (una + 1) & 0xFFFF, retired + 1
        head = q.sent.get(una)
        if (lost and (una + 1) & 0xFFFF not in q.sent) or (f and head is None and not behind(f["psn"], pointer)):
            return dict(verdict=DROPPED, reason=REASON["psn"])          # it speaks of what has not been sent
        partial = is_ack and head and not head[2] and not lost and behind(pointer, done)
        due = response and head and head[2] and not lost and f["psn"] == pointer
        last = due and f["psn"] == head[1]
        good = due and last == (f["op"] in (0x0F, 0x10, 0x12)) and (f["pay_len"] <= MTU if last else f["pay_len"] == MTU)
        out = {}
        if response:
            out = dict(verdict=DROPPED, reason=REASON["psn"])
        if good:
            out = dict(verdict=PLACED, place=Place.ANSWER, has_wqe=1, index=q.reads, posted=(q.reads + 1) & 0xFFFF,
                       offset=((pointer - first) & M24) * MTU, whole=int(last))
        if partial:
            pointer = done
        here = partial or (f and f["psn"] == pointer)
        ended = bool(good and last)
        progress = bool(retired or partial or good)
        missing = lost or (response and head and head[2] and behind(pointer, f["psn"]) and not lost)
        hint = missing and (progress or not q.recovering)
        asks = (hint or (kind == 3 and f["syndrome"] == NAK_SEQUENCE and head and here) or (timer and head)) and not q.waits
        again = timer and q.waits
        fatal, turn = None, Turn.NONE
        rnr = kind == 1 and head and here and not q.waits
        if due and not good:
            fatal = "remote_invalid"
        elif asks and (0 if progress else q.retry) == q.rules[0]:
            fatal = "retry"
        elif kind == 3 and f["syndrome"] != NAK_SEQUENCE and head and here:
            fatal = {NAK_INVALID: "remote_invalid", NAK_ACCESS: "remote_access"}.get(f["syndrome"], "remote_operation")
        elif rnr and (0 if progress else q.rnr) == q.rules[1] != 7:
            fatal = "rnr_retry"
        back = again or (asks and fatal != "retry")
        wait = rnr and not fatal
        place = dict(index=una, offset=((pointer - first) & M24), psn=pointer)
        if good:
            pointer = (pointer + 1) & M24
        if ended:
            una, first, q.reads = (una + 1) & 0xFFFF, pointer, q.reads + 1
        cause = fatal and FATAL[fatal]
        if q.failed and q.failed[0] == una and not back and not fatal:
            fatal, cause = "stuck", q.failed[1]
        if fatal:
            q.stopped = True
            place = dict(index=(una + 1) & 0xFFFF)
        if fatal or wait:
            turn = Turn.HALT
        if back:
            turn = Turn.GO_BACK
            if q.failed:
                q.failed = None
        q.retry = int(bool(back)) if progress else q.retry + 1 if back and not again else q.retry
        q.rnr = int(bool(wait)) if progress else min(q.rnr + 1, 7) if wait else q.rnr
        q.recovering = bool((back and not again) or (q.recovering and not progress))
        q.waits = bool(wait or (q.waits and not timer))
        q.una, q.psn, q.first = (una + bool(fatal)) & 0xFFFF, pointer, first
        out |= dict(retired=retired + ended, una=una, turn=turn, fatal=int(bool(fatal)))
        return out | ({"there": place} if turn != Turn.NONE else {}) | (dict(cause=cause, ours=1) if fatal else {})

    # -- what is not a frame --
    def post_receives(self, qp, number):
        self.qps[qp].posted = number

    def post_sends(self, qp, number):
        self.qps[qp].sends = number

    def deadline(self, qp):
        q = self.qps[qp]
        if not q.armed:
            return None
        return dict(kind=WorkKind.DEADLINE) | self.judge(q)

    def complaint(self, qp, index, cause):
        q = self.qps[qp]
        if q.failed or q.stopped:
            return None
        q.failed = (index, cause)
        out = dict(kind=WorkKind.SERVICE, turn=Turn.HALT, fatal=0, ours=1, una=q.una, there=dict(index=index, psn=q.psn))
        if index == q.una:
            q.stopped = True
            out |= dict(fatal=1, cause=cause, there=dict(index=(index + 1) & 0xFFFF, psn=q.psn))
            q.una = (q.una + 1) & 0xFFFF
        return out

    def command(self, kind, qp, expected=0, psn=0):
        q = self.qps[qp]
        out = dict(kind=kind, turn=Turn.NONE, fatal=0)
        if kind == WorkKind.RESET:
            self.qps[qp] = Qp(qp, *self.rules[qp], expected, psn)
        else:
            out |= dict(index=q.head, una=q.una, ours=1)
        if kind == WorkKind.FLUSH:
            # where the send half shall stand, RcCommit says: the first that has not completed
            out |= dict(turn=Turn.HALT, there=dict(psn=q.psn), posted=q.posted, una=q.sends)
            q.stopped, q.una = True, q.sends
            q.head += (q.posted - q.head) & 0xFFFF
        return out


class Rig:
    """Puts things in one after another: `frames` in a row, anything else when all before it has come out. What comes out is
    compared with the Reference and kept in `records`. `pace`: how often each stream goes on."""

    def __init__(self, rng, rules, *, pace=1.0, order=RcOrder):
        self.rng, self.pace, self.rules = rng, pace, rules
        self.o, self.rst = order(CFG), Signal()
        self.dut = ResetInserter(self.rst)(self.o)
        self.records, self.want, self.events, self.lanes = [], deque(), [], {}
        self.cycle, self.now, self.held, self.moved = 0, 1000, None, 0

    async def begin(self, ctx):
        """After reset: contexts, and a RESET of each QP."""
        o = self.o
        self.ref = Reference(self.rules)
        self.want.clear()
        self.held, self.lanes = None, {}
        ctx.set(o.pkey, PKEY), ctx.set(o.now, self.now)
        await ctx.tick().until(~o.clearing)
        for qp, (retries, rnr_retries, timeout) in self.rules.items():
            ctx.set(o.context_set.entry, dict(state=QP_STATE["ready"], type=QP_TYPE["rc" if qp else "uc"], mtu=MTU_CODE, peer=qp))
            ctx.set(o.rules_set.entry, dict(retries=retries, rnr_retries=rnr_retries, timeout=timeout, rnr_code=3))
            ctx.set(o.peer_set.entry, dict(ip=ip_of(qp), v6=0))
            for port, name in ((o.context_set, "qp"), (o.rules_set, "qp"), (o.peer_set, "index")):
                ctx.set(getattr(port, name), qp), ctx.set(port.en, 1)
            await ctx.tick()
        for port in (o.context_set, o.rules_set, o.peer_set):
            ctx.set(port.en, 0)

    async def step(self, ctx):
        """One cycle, with what has been set; sees what comes out."""
        o = self.o
        ctx.set(o.work.ready, int(self.rng.random() < self.pace))
        if ctx.get(o.work.valid):
            payload = ctx.get(o.work.payload)
            assert self.held is None or self.held == payload, "work has changed"
            self.held = payload
            if ctx.get(o.work.ready):
                self.held = None
                self.compare(payload)
        else:
            assert self.held is None, "work was taken back"
        for name in ("timeout", "back", "rnr", "duplicate"):
            if ctx.get(getattr(o, f"event_{name}")):
                self.events.append(name)
        if ctx.get(o.lane.en):
            self.lanes[ctx.get(o.lane.qp)] = (ctx.get(o.lane.active), ctx.get(o.lane.coarse))
        await ctx.tick()
        self.cycle += 1

    def compare(self, got):
        assert self.want, f"a record too much, of kind {got.kind}"
        want = self.want.popleft()
        self.moved = self.cycle
        self.records.append(want)
        shown = {n: getattr(got, n) for n in want if n != "there"}
        plain = {n: v for n, v in want.items() if n != "there"}
        if "there" in want:
            place = dict(index=got.va & 0xFFFF, offset=got.va >> 16 & M24, psn=got.va >> 40)
            shown["there"], plain["there"] = {n: place[n] for n in want["there"]}, want["there"]
        assert shown == plain, f"record {len(self.records)}: " + "; ".join(
            f"{n} {shown[n]}, should be {plain[n]}" for n in plain if shown[n] != plain[n])

    async def give(self, ctx, port, payload):
        """Into a stream."""
        while self.rng.random() >= self.pace:
            await self.step(ctx)
        ctx.set(port.payload, payload), ctx.set(port.valid, 1)
        start = self.cycle
        taken = False
        while not taken:
            taken = ctx.get(port.ready)
            await self.step(ctx)
            assert self.cycle < start + 1500, "stuck"
        ctx.set(port.valid, 0)

    async def settle(self, ctx):
        start, quiet = self.cycle, 0
        while quiet < 4:
            await self.step(ctx)
            quiet = quiet + 1 if ctx.get(self.o.idle) else 0
            assert self.cycle < start + 3000, "stuck"
        assert not self.want, f"{len(self.want)} records never came"

    def expect(self, record):
        if record is not None:
            self.want.append(record)
        return record

    async def frames(self, ctx, *frames):
        """Returns what the rules say of the last one."""
        for f in frames:
            out = self.expect(self.ref.frame(f))
            await self.give(ctx, self.o.frames, f)
        await self.settle(ctx)
        return out

    async def post(self, ctx, qp, sends=None, receives=None):
        for number, port, told in ((sends, self.o.sq_doorbells, self.ref.post_sends),
                                   (receives, self.o.doorbells, self.ref.post_receives)):
            if number is not None:
                told(qp, number)
                await self.give(ctx, port, qp << 16 | number)
        await self.settle(ctx)

    async def sent(self, ctx, qp, index, end, rd=0):
        """The send half has begun request `index`."""
        q = self.ref.qps[qp]
        q.sent = {i: r for i, r in q.sent.items() if (i - q.una) & 0xFFFF < CFG.rc_outstanding}
        q.sent[index] = (None, end & M24, rd)
        o = self.o.outstanding
        ctx.set(o.payload, dict(qp=qp, index=index, end_psn=end & M24, rd=rd)), ctx.set(o.valid, 1)
        await self.step(ctx)
        ctx.set(o.valid, 0)

    async def command(self, ctx, kind, qp, expected=0, psn=0):
        out = self.expect(self.ref.command(kind, qp, expected, psn))
        await self.give(ctx, self.o.commands, dict(kind=kind.value, qp=qp, expected=expected, psn=psn))
        await self.settle(ctx)
        return out

    async def complaint(self, ctx, qp, index, cause=5):
        out = self.expect(self.ref.complaint(qp, index, cause))
        await self.give(ctx, self.o.failed, dict(qp=qp, index=index, cause=cause))
        await self.settle(ctx)
        return out

    async def deadline(self, ctx, qp, later=1 << 22):
        """The scanner finds the QP's lane due, `later` ticks from now."""
        self.now = (self.now + later) & 0xFFFFFFFF
        ctx.set(self.o.now, self.now)
        out = self.expect(self.ref.deadline(qp))
        await self.give(ctx, self.o.deadlines, dict(qp=qp, kind=0))
        await self.settle(ctx)
        return out

    async def over(self, ctx):
        """A READ or atomic has been answered."""
        self.ref.jobs -= 1
        ctx.set(self.o.job_over, 1)
        await self.step(ctx)
        ctx.set(self.o.job_over, 0)
        await self.step(ctx)
        await self.step(ctx)

    def run(self, body):
        async def testbench(ctx):
            await self.begin(ctx)
            await body(ctx)
        sim = Simulator(self.dut)
        sim.add_clock(8e-9)
        sim.add_testbench(testbench)
        sim.run()
        return self
