"""A bench for RcCommit: records as the stages before it make them, a plain reading of the rules, and streams that wait."""

from collections import deque

from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.abi.structs import CAUSE, FATAL, OPCODE, STATUS
from optinic.abi.verdicts import REASON
from optinic.config import preset
from optinic.memory.job import JobKind
from optinic.transport.rc.ack_board import Put
from optinic.transport.rc.commit import RcCommit
from optinic.transport.rc.records import NAK_ACCESS, NAK_INVALID, NAK_OPERATION, Place, Reply, Turn
from optinic.transport.xp.records import Verdict, WorkKind

CFG = preset("tiny", transport="rc")
GRANTS = CFG.read_jobs - 1          # READs and atomics that RcOrder lets be under way
COMPLETION = ("cq", "queue", "qpn", "opcode", "wqe_index", "byte_len", "msg_len", "imm", "skipped", "status", "cause")
FRAME, COMMANDS = WorkKind.FRAME, (WorkKind.RESET, WorkKind.FLUSH, WorkKind.FENCE)
PLACED, CONSUMED, DROPPED, PASSED = Verdict.PLACED, Verdict.CONSUMED, Verdict.DROPPED, Verdict.PASSED


# -- records as RcOrder and RcResolve make them ------------------------------------------------------------------------------

def record(rng, kind=FRAME, qp=0, **fields):
    """What no rule speaks of is noise."""
    r = dict(kind=kind, qp=qp, verdict=CONSUMED, reason=0, beats=rng.randint(1, 20), pay_off=rng.randrange(64),
             pay_len=rng.randint(0, 1024), qpn=rng.getrandbits(24), pd=0, life=rng.getrandbits(2), known=1, ce=rng.getrandbits(1),
             is_cnp=0, cq=rng.randrange(8), send_cq=rng.randrange(8), place=Place.NONE, whole=0, index=rng.getrandbits(32),
             has_wqe=0, posted=rng.getrandbits(16), offset=rng.getrandbits(32), va=rng.getrandbits(64), rkey=rng.getrandbits(32),
             length=rng.getrandbits(32), reply=Reply.NONE, syndrome=0x1F, psn=rng.getrandbits(24), msn=rng.getrandbits(24),
             again=0, uc=0, begins=0, ends=0, complete=0, opcode=rng.randint(1, 3), imm=rng.getrandbits(32), retired=0,
             una=rng.getrandbits(16), turn=Turn.NONE, fatal=0, cause=rng.randrange(8), ours=0, addr=rng.getrandbits(64),
             mem_reason=0, failed=0, short=0, result=None)
    assert not fields.keys() - r.keys()
    return r | fields


def write(rng, qp, **more):
    return record(rng, qp=qp, verdict=PLACED, place=Place.WRITE, **({"reply": Reply.ACK} | more))


def send(rng, qp, **more):
    return record(rng, qp=qp, **(dict(verdict=PLACED, place=Place.SEND, has_wqe=1, reply=Reply.ACK, begins=1, ends=1, complete=1)
                                 | more))


def read(rng, qp, **more):
    return record(rng, qp=qp, place=Place.READ, reply=Reply.READ, **({"ends": 1} | more))


def atomic(rng, qp, psn, **more):
    opcode = OPCODE[rng.choice(["compare_swap", "fetch_add"])]
    return record(rng, qp=qp, place=Place.ATOMIC, reply=Reply.READ, psn=psn, opcode=opcode, ends=1,
                  **({"result": (rng.getrandbits(64), 0)} | more))


def replay(rng, qp, psn):
    return record(rng, qp=qp, reply=Reply.REPLAY, psn=psn, again=1)


def answer(rng, qp, whole, **more):
    return record(rng, qp=qp, verdict=PLACED, place=Place.ANSWER, has_wqe=1, whole=whole, ours=1,
                  **({"retired": rng.randrange(4) + whole} | more))


def uc(rng, qp, *, begins, ends, takes=1, **more):
    return record(rng, qp=qp, verdict=PLACED, place=Place.SEND, has_wqe=1, uc=1, begins=begins, ends=ends, complete=ends & takes,
                  **more)


def grants(r):
    """RcOrder has counted it as a READ or an atomic."""
    return r["kind"] == FRAME and (r["reply"] in (Reply.READ, Reply.REPLAY))


# -- the rules ---------------------------------------------------------------------------------------------------------------

class Qp:
    def __init__(self):
        self.dead = self.spoiled = self.burnt = False
        self.head = self.una = 0
        self.results = deque(maxlen=CFG.rc_resources)


class Reference:
    """`step` appends to the lists what each output must show, in order."""

    def __init__(self, log_cq=None):
        self.qps, self.log_cq = {}, log_cq
        self.jobs, self.puts, self.turns, self.progress, self.answers = [], [], [], [], []
        self.verdicts, self.requests, self.results, self.fences, self.given_up, self.commands = [], [], [], 0, [], 0

    def job(self, r, completion=None, kind=JobKind.NONE, beats=0, place=None, fence=0, ends_life=0):
        self.fences += fence
        self.jobs.append(dict(qp=r["qp"], kind=kind.value, beats=beats, place=place, fence=fence, ends_life=ends_life,
                              completion=completion))

    @staticmethod
    def completion(r, **fields):
        base = dict.fromkeys(COMPLETION, 0) | {"qpn": r["qpn"], "status": STATUS["success"], "cause": CAUSE["complete"]}
        return base | fields

    def put(self, r, kind, **fields):
        self.puts.append(dict(kind=kind.value, qp=r["qp"], **fields))

    def ack(self, r, syndrome, msn):
        self.put(r, Put.ACK, psn=r["psn"], msn=msn & 0xFFFFFF, syndrome=syndrome, again=r["again"])

    def turn(self, r, turn, index=None, place=True):
        """Without `place` the send half only has to stop: where, a flush says."""
        there = dict(index=r["va"] & 0xFFFF, offset=r["va"] >> 16 & 0xFFFFFF, psn=r["va"] >> 40)
        there = (there if place else {}) | ({} if index is None else {"index": index})
        self.turns.append(dict(turn=turn.value, qp=r["qp"], **there))

    def give_up(self, r):
        self.given_up.append(id(r))

    def step(self, r):
        q = self.qps.setdefault(r["qp"], Qp())
        if r["kind"] in COMMANDS:
            return self.command(q, r)
        frame = r["kind"] == FRAME
        if q.dead and not (frame and (r["is_cnp"] or not r["known"])):
            if frame:
                early = r["verdict"] == DROPPED and r["reason"] < REASON["state"]
                self.dropped(r, r["reason"] if early else REASON["state"])
                if grants(r):
                    self.give_up(r)
            return
        refusal = 0
        if r["place"] != Place.NONE:
            unreadable = r["has_wqe"] and r["failed"]
            refusal = REASON["no_receive"] if unreadable else r["mem_reason"] or (REASON["bounds"] if r["short"] else 0)
        if r["uc"]:
            return self.unreliable(q, r, refusal)
        if refusal:
            return self.refused(q, r, refusal)
        done = None
        if r["retired"]:
            done = self.completion(r, queue=1, cq=r["send_cq"], wqe_index=(r["una"] - 1) & 0xFFFF, skipped=r["retired"] - 1)
            self.progress.append((r["qp"], r["una"]))
            q.una = r["una"]
        if r["place"] == Place.ATOMIC:
            self.job(r, fence=1)
            operands = (r["index"] << 32 | r["offset"], r["length"] << 32 | r["imm"])
            self.requests.append((r["addr"], r["opcode"] == OPCODE["fetch_add"], *operands))
            self.results.append(r["result"])
            original, failed = r["result"]
            if failed:
                self.give_up(r)
                self.dropped(r, REASON["access"], lambda: self.fatal(q, r, 0, FATAL["bus"]))
                self.ack(r, NAK_OPERATION, r["msn"])
                self.turn(r, Turn.HALT, place=False)
                return
            q.results.append((r["psn"], original))
            self.put(r, Put.READ, again=0)
            self.answer(r, 1, original)
        elif r["reply"] == Reply.REPLAY:
            found = [original for psn, original in q.results if psn == r["psn"]]
            if not found:
                self.give_up(r)
                return self.dropped(r, REASON["psn"])
            self.put(r, Put.READ, again=1)
            self.job(r, None, JobKind.SKIP, r["beats"], fence=1)
            self.answer(r, 1, found[0])
            return self.verdict(r, r["verdict"], 0)
        elif r["reply"] == Reply.READ:
            self.put(r, Put.READ, again=r["again"])
        elif r["reply"] == Reply.ACK:
            self.ack(r, r["syndrome"], r["msn"] + (r["ends"] and not r["fatal"]))
        if r["turn"] != Turn.NONE or r["fatal"]:
            self.turn(r, Turn.HALT if r["fatal"] else r["turn"], place=r["turn"] != Turn.NONE)
        more = (lambda: self.fatal(q, r, r["ours"], r["cause"], event_index=r["index"])) if r["fatal"] else lambda: None
        if not frame:
            return more()
        if r["complete"]:
            q.head = r["index"] + 1 & 0xFFFF
            done = self.completion(r, cq=r["cq"], opcode=r["opcode"], wqe_index=r["index"], byte_len=r["length"],
                                   msg_len=r["length"], imm=r["imm"])
        if r["verdict"] == DROPPED:
            return self.dropped(r, r["reason"], more, done)
        is_read = r["place"] == Place.READ
        if r["verdict"] == PASSED:
            self.job(r, done, JobKind.PASS, r["beats"])
        elif r["verdict"] == PLACED and r["place"] != Place.NONE:
            self.job(r, done, JobKind.PLACE, r["beats"], (r["pay_off"], r["pay_len"], r["addr"]))
        else:
            self.job(r, done, JobKind.SKIP, r["beats"], fence=int(is_read))
        if is_read:
            self.answer(r, 0, r["va"])
        more()
        self.verdict(r, r["verdict"], 0)

    def command(self, q, r):
        self.commands += 1
        done = None
        if r["kind"] == WorkKind.FLUSH:
            left = (r["posted"] - q.head) & 0xFFFF
            if left:
                last = (r["index"] + ((r["posted"] - r["index"]) & 0xFFFF) - 1) & 0xFFFFFFFF
                done = self.completion(r, cq=r["cq"], status=STATUS["error"], cause=CAUSE["flushed"], wqe_index=last,
                                       skipped=left - 1)
            if r["turn"] != Turn.NONE:      # a UC QP's send half knows by itself
                self.turn(r, Turn.HALT, index=q.una)
            q.head, q.una = r["posted"], r["una"]
        self.job(r, done, fence=1, ends_life=int(r["kind"] == WorkKind.RESET))
        if r["kind"] == WorkKind.RESET:
            self.put(r, Put.RESET)
            self.qps[r["qp"]] = Qp()

    def refused(self, q, r, reason):
        """Memory says no to a frame of an RC QP."""
        ours, done, una = r["place"] == Place.ANSWER, None, r["una"]
        unreadable = r["has_wqe"] and r["failed"]
        if ours:
            retired, una = r["retired"] - r["whole"], (una - r["whole"]) & 0xFFFF
            if retired:
                done = self.completion(r, queue=1, cq=r["send_cq"], wqe_index=(una - 1) & 0xFFFF, skipped=retired - 1)
                self.progress.append((r["qp"], una))
                q.una = una
            cause = "bus" if unreadable else "length" if r["short"] else "protection"
            self.turn(r, Turn.HALT, index=(una + 1) & 0xFFFF)
            q.burnt = not r["whole"]
        else:
            too_long = r["place"] == Place.SEND and r["short"] and not r["failed"]
            nak = NAK_INVALID if too_long else NAK_OPERATION if r["place"] == Place.SEND else NAK_ACCESS
            cause = ("bus" if unreadable else "remote_invalid" if too_long else "protection" if r["place"] == Place.SEND
                     else "remote_access")
            self.ack(r, nak, r["msn"])
            self.turn(r, Turn.HALT, place=False)
            if grants(r):
                self.give_up(r)
        receive = 0 if r["place"] == Place.ATOMIC else r["index"]
        self.dropped(r, reason, lambda: self.fatal(q, r, ours, FATAL[cause], una, receive), done)

    def unreliable(self, q, r, refusal):
        q.spoiled = bool(refusal) or (q.spoiled and not r["begins"])
        done = None
        if r["complete"]:
            q.head = r["index"] + 1 & 0xFFFF
            done = self.completion(r, cq=r["cq"], opcode=r["opcode"], wqe_index=r["index"], byte_len=r["length"],
                                   msg_len=r["length"], imm=r["imm"])
            if q.spoiled:
                done |= dict(status=STATUS["error"], cause=CAUSE["protection"], byte_len=0)
        if q.spoiled:
            return self.dropped(r, refusal or REASON["sequence"], done=done)
        if r["verdict"] == DROPPED:
            return self.dropped(r, r["reason"])
        self.job(r, done, JobKind.PLACE, r["beats"], (r["pay_off"], r["pay_len"], r["addr"]))
        self.verdict(r, PLACED, 0)

    def fatal(self, q, r, sends, cause, una=None, event_index=0):
        q.dead = True
        una = r["una"] if una is None else una
        if sends:
            q.una = (una + 1) & 0xFFFF
        self.job(r, self.completion(r, queue=int(sends), cq=r["send_cq"] if sends else r["cq"], status=STATUS["fatal"], cause=cause,
                                    wqe_index=una if sends else event_index, opcode=0 if sends else OPCODE["event"]))

    def answer(self, r, is_atomic, va):
        """`fence`: the one that must have ended before it is let go."""
        self.answers.append(dict(qp=r["qp"], life=r["life"], atomic=is_atomic, psn=r["psn"], msn=(r["msn"] + r["ends"]) & 0xFFFFFF,
                                 va=va, **({} if is_atomic else {"length": r["length"], "key": r["rkey"]}),
                                 fence=self.fences if r["reply"] in (Reply.READ, Reply.REPLAY) else 0))

    def dropped(self, r, reason, more=lambda: None, done=None, logged=True):
        self.job(r, done, JobKind.SKIP, r["beats"])
        more()
        if self.log_cq is not None and r["known"] and logged:
            self.job(r, self.completion(r, cq=self.log_cq, opcode=OPCODE["refusal"], status=STATUS["error"], wqe_index=r["psn"],
                                        byte_len=r["pay_len"], imm=reason))
        self.verdict(r, DROPPED, reason)

    def verdict(self, r, verdict, reason):
        self.verdicts.append(dict(
            verdict=verdict.value, reason=reason, qpn=r["qpn"], len=r["pay_len"], qp=r["qp"],
            cnp=int(r["is_cnp"] and verdict == CONSUMED), read=int(verdict == CONSUMED and r["place"] == Place.READ),
            cnp_due=int(verdict == PLACED and r["ce"])))


# -- the bench ---------------------------------------------------------------------------------------------------------------

class Bench:
    """Feeds `records` and compares every output, in order, with the Reference's. `pace`: how often each stream is ready.
    `release`: a READ's answer may not come before its fence has ended. `calm`: no answer is taken while a READ or atomic
    that will be given up is within. `fence`: cycles from a fence's job to its end, at least and at most."""

    STREAMS = ("jobs", "puts", "turns", "progress", "answers")

    def __init__(self, rng, records, *, pace=1.0, log_cq=None, release=True, calm=True, fence=(4, 30),
                 commit=RcCommit):
        self.rng, self.pace, self.log_cq, self.release, self.calm = rng, pace, log_cq, release, calm
        self.fence_time, self.paces = fence, {}
        self.c, self.rst = commit(CFG), Signal()
        self.dut = ResetInserter(self.rst)(self.c)
        self.load(records)

    def load(self, records):
        self.ref = Reference(self.log_cq)
        for r in records:
            self.ref.step(r)
        self.todo, self.coming = deque(records), deque()
        self.seen = {name: 0 for name in (*self.STREAMS, "verdicts", "requests")}
        self.fences, self.fences_over, self.overs, self.granted, self.commands = deque(), 0, 0, 0, 0
        self.doomed, self.inside = set(self.ref.given_up), deque()
        self.result, self.held, self.cycle, self.moved = None, {}, 0, 0

    def more(self, records):
        """After a drain."""
        for r in records:
            self.ref.step(r)
        self.todo.extend(records)
        self.doomed = set(self.ref.given_up)

    async def clear(self, ctx):
        ctx.set(self.c.log_en, int(self.log_cq is not None)), ctx.set(self.c.log_cq, self.log_cq or 0)
        await ctx.tick().until(~self.c.clearing)

    def expect(self, name, index):
        items = getattr(self.ref, name)
        assert index < len(items), f"one more of {name} than there should be"
        return items[index]

    def compare(self, name, got):
        at = self.seen[name]
        want = self.expect(name, at)
        self.seen[name] += 1
        if name == "jobs":
            c = got.completion
            shown = dict(qp=got.qp, kind=got.kind.value, beats=got.beats, fence=got.fence, ends_life=got.ends_life,
                         place=(got.pay_off, got.len, got.addr) if got.kind == JobKind.PLACE else None,
                         completion={n: getattr(c, n) for n in COMPLETION} if got.complete else None)
            if got.fence:
                self.fences.append(self.cycle + self.rng.randint(*self.fence_time))
        elif name == "progress":
            shown = (got.qp, got.una)
        else:
            shown = {n: getattr(got, n) for n in want if n != "fence"}
            shown = {n: getattr(v, "value", v) for n, v in shown.items()}
            want = {n: v for n, v in want.items() if n != "fence"}
        assert shown == want, f"{name} {at}: {shown}, should be {want}"

    async def step(self, ctx):
        c, rng = self.c, self.rng
        # records: one sets out in a cycle with room, and comes some time later
        leaves = False
        if self.todo and ctx.get(c.room) and rng.random() < .5:
            r = self.todo[0]
            leaves = not grants(r) or self.granted - self.overs < GRANTS
            if leaves:
                self.granted += grants(r)
                self.coming.append((self.cycle + 9, self.todo.popleft()))
        ctx.set(c.leave, int(leaves))
        valid = bool(self.coming) and self.coming[0][0] == self.cycle
        ctx.set(c.record_valid, int(valid))
        if valid:
            _, r = self.coming.popleft()
            fields = {n: getattr(v, "value", v) if n in ("kind", "verdict") else v for n, v in r.items() if n != "result"}
            ctx.set(c.record, fields)
            if r["kind"] == FRAME:
                self.inside.append(r)
        # a fence ends at its time, in order
        done = bool(self.fences) and self.fences[0] <= self.cycle
        ctx.set(c.fence_done, int(done))
        if done:
            self.fences.popleft()
        # the atomic unit
        ctx.set(c.result.valid, int(self.result is not None and self.cycle >= self.result[0]))
        if self.result is not None:
            ctx.set(c.result.payload, dict(original=self.result[1][0], failed=self.result[1][1]))
        asked_ready = rng.random() < self.pace
        ctx.set(c.request.ready, int(asked_ready and self.result is None))
        for name in self.STREAMS:
            ready = rng.random() < self.paces.get(name, self.pace)
            if name == "answers":
                ready = ready and not (self.calm and any(id(r) in self.doomed for r in self.inside))
            ctx.set(getattr(c, name).ready, int(ready))

        for name in self.STREAMS:
            port = getattr(c, name)
            if not ctx.get(port.valid):
                assert name not in self.held, f"{name} has taken back what it offered"
                continue
            payload = ctx.get(port.payload)
            if name in self.held:
                assert self.held[name] == payload, f"{name} has changed what it offers"
            self.held[name] = payload
            if name == "answers" and self.release:
                assert self.fences_over >= self.expect(name, self.seen[name])["fence"], "an answer before its fence"
            if ctx.get(port.ready):
                del self.held[name]
                self.moved = self.cycle
                self.compare(name, payload)
        self.fences_over += done
        if ctx.get(c.result.valid) and ctx.get(c.result.ready):
            self.result = None
        if ctx.get(c.request.valid) and ctx.get(c.request.ready):
            p = ctx.get(c.request.payload)
            at = self.seen["requests"]
            assert self.fences_over == self.expect_fences(), "an atomic before what was written earlier is in memory"
            want = self.expect("requests", at)
            assert (p.addr, bool(p.add), p.swap_add, p.compare) == want
            self.result = (self.cycle + rng.randint(1, 20), self.ref.results[at])
            self.seen["requests"] += 1
        if ctx.get(c.is_frame):
            self.inside.popleft()
            self.moved = self.cycle
            at = self.seen["verdicts"]
            want = self.expect("verdicts", at)
            got = {n: ctx.get(getattr(c, n)) for n in want}
            got = {n: getattr(v, "value", v) for n, v in got.items()}
            assert got == want, f"verdict {at}: {got}, should be {want}"
            self.seen["verdicts"] += 1
        self.overs += ctx.get(c.job_over)
        self.commands += ctx.get(c.command_done)
        await ctx.tick()
        self.cycle += 1

    def expect_fences(self):
        """All fences that were asked for have ended, when an atomic is carried out."""
        return self.fences_over + len(self.fences)

    async def drain(self, ctx):
        quiet = 0
        while quiet < 60:
            await self.step(ctx)
            quiet = quiet + 1 if ctx.get(self.c.idle) and not self.todo and not self.coming and not self.fences else 0
            assert self.cycle - self.moved < 1500, "stuck"
        missing = {name: len(getattr(self.ref, name)) - n for name, n in self.seen.items() if len(getattr(self.ref, name)) != n}
        assert not missing, f"never came: {missing}"
        assert self.overs == self.granted, f"{self.granted} granted, {self.overs} over"
        assert self.commands == self.ref.commands

    def run(self, body=None):
        async def testbench(ctx):
            await self.clear(ctx)
            await (body or self.drain)(ctx)
        sim = Simulator(self.dut)
        sim.add_clock(8e-9)
        sim.add_testbench(testbench)
        sim.run()
        return self
