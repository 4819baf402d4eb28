"""A host, a region table and a cable for SendQueue, in plain Python: answers reads, resolves keys, acknowledges packets."""

from collections import deque
import random

from amaranth.sim import Simulator

from optinic.abi.registers import MTU_CODE
from optinic.abi.structs import SEND_OP, SEND_WQE
from optinic.tx.packet import packet_layout
from optinic.tx.send_queue import SendQueue

SQ_BASE = 0x4000_0000
GOOD, BAD = 0x11, 0x99          # keys: known, unknown
DELTA = 0x7000_0000_0000


class Rig:
    """Runs `dut` with one process that plays everything around it; `self.packets` and `self.jobs` collect what came out."""

    def __init__(self, cfg, seed, *, latency=(5, 40), stall=0.2, wait=None):
        self.cfg, self.rng, self.latency, self.stall = cfg, random.Random(seed), latency, stall
        self.wait = wait or (lambda qp, now: 0)         # the pacer
        self.dut = SendQueue(cfg)
        self.memory = {}            # address -> WQE
        self.reads = {}             # id -> (due cycle, beats)
        self.bad_reads, self.lost_reads = set(), set()  # addresses whose read fails, or never ends
        self.bells, self.contexts, self.commands, self.requests = deque(), deque(), deque(), deque()
        self.queries, self.dones, self.parked = deque(), deque(), {}
        self.packets, self.jobs, self.asked, self.fences = [], [], [], 0
        self.failing = lambda packet: False             # the payload of this packet can't be read
        self.cycle, self.stop = 0, False
        self.posted, self.dma_timeout = {}, 400
        self.common = {}            # QP -> its shared context

    def context(self, qp, *, mtu=256, type=0, state=2, cq=1, dest=0x123456, generation=7, pd=3, peer=2, tclass=8, paths=0, tag=0):
        self.contexts.append((qp, dict(cq=cq, dest_qpn=dest, generation=generation, tclass=tclass, paths=paths),
                              dict(state=state, type=type, mtu=MTU_CODE[mtu], pd=pd, peer=peer, tag=tag, generation=0)))

    def post(self, qp, opcode, length, *, bell=True, **fields):
        index = self.posted.get(qp, 0)
        fields = {"lkey": GOOD, "va": 0x1000 * index + 3, "signaled": 1} | fields
        raw = SEND_WQE.pack(opcode=SEND_OP[opcode], length=length, **fields)
        self.memory[SQ_BASE + (qp * self.cfg.sq_entries + index % self.cfg.sq_entries) * 64] = raw
        self.posted[qp] = index + 1
        if bell:
            self.bells.append((qp, (index + 1) & 0xFFFF))
        return index

    def command(self, c):
        return {"kind": c[0], "qp": c[1]}

    def drive_more(self, ctx):
        """What other transports have; called in each cycle."""

    def watch_more(self, ctx):
        """The same, of what is there at the clock edge."""

    # -- the world around -----------------------------------------------------------------------------

    def _coin(self):
        return self.rng.random() >= self.stall

    async def process(self, ctx):
        d, cfg, rng = self.dut, self.cfg, self.rng
        ctx.set(d.enable, 1), ctx.set(d.sq_base, SQ_BASE), ctx.set(d.dma_timeout, self.dma_timeout)
        beat, looked, common, busy = None, 0, {}, random.Random(1)
        while not self.stop:
            ctx.set(d.time, self.cycle * 4)
            ctx.set(d.wait, min(self.wait(looked, self.cycle * 4), (1 << 24) - 1))
            if ctx.get(d.pace_look):
                looked = ctx.get(d.pace_qp)
            # the context that both halves share is read in another table, whose port may be in use
            ctx.set(d.common, common)
            ctx.set(d.common_busy, busy.random() < self.stall)
            common = {} if ctx.get(d.common_busy) else self.common.get(ctx.get(d.common_qp), {})
            # what we offer
            ctx.set(d.context_set.en, 0)
            if self.contexts and not ctx.get(d.clearing):
                qp, fields, self.common[qp] = self.contexts.popleft()
                ctx.set(d.context_set.qp, qp), ctx.set(d.context_set.entry, fields), ctx.set(d.context_set.en, 1)
            elif self.bells and not self.contexts and not ctx.get(d.clearing):
                qp, count = self.bells[0]
                ctx.set(d.doorbells.payload, qp << 16 | count), ctx.set(d.doorbells.valid, 1)
            if not self.bells:
                ctx.set(d.doorbells.valid, 0)
            for port, queue, convert in ((d.commands, self.commands, self.command), (d.reads, self.requests, dict)):
                if queue and not self.contexts and not ctx.get(d.clearing):
                    ctx.set(port.payload, convert(queue[0])), ctx.set(port.valid, 1)
                else:
                    ctx.set(port.valid, 0)
            due = next((q for q, t in self.parked.items() if t <= self.cycle), None)
            ctx.set(d.due.valid, due is not None), ctx.set(d.due.payload, due or 0)
            ctx.set(d.axi.arready, self._coin()), ctx.set(d.query.ready, self._coin()), ctx.set(d.packets.ready, self._coin())
            ctx.set(d.jobs.ready, self._coin()), ctx.set(d.park.ready, self._coin())
            if beat is None:
                ready = [i for i, (at, beats) in self.reads.items() if at <= self.cycle]
                if ready and self._coin():
                    beat = rng.choice(ready)
            ctx.set(d.axi.rvalid, beat is not None)
            if beat is not None:
                beats = self.reads[beat][1]
                data, resp = beats[0]
                ctx.set(d.axi.rid, beat), ctx.set(d.axi.rdata, data), ctx.set(d.axi.rresp, resp), ctx.set(d.axi.rlast, len(beats) == 1)
            answer = self.queries and self.queries[0][0] <= self.cycle
            ctx.set(d.answer.valid, bool(answer))
            if answer:
                _, key, va, length = self.queries.popleft()
                bad = length and key != GOOD
                ctx.set(d.answer.payload, {"reason": 14 if bad else 0, "addr": (va + DELTA) % (1 << 64)})
            done = self.dones and self.dones[0][0] <= self.cycle
            ctx.set(d.done.valid, bool(done))
            if done:
                ctx.set(d.done.payload, self.dones.popleft()[1])

            self.drive_more(ctx)

            # what was taken at this edge
            hs = lambda s: ctx.get(s.valid) and ctx.get(s.ready)
            took_bell, took_command, took_read, took_due = hs(d.doorbells), hs(d.commands), hs(d.reads), hs(d.due)
            if ctx.get(d.axi.arvalid) and ctx.get(d.axi.arready):
                self._ask(ctx.get(d.axi.arid), ctx.get(d.axi.araddr), ctx.get(d.axi.arlen), ctx.get(d.axi.arsize))
            if ctx.get(d.axi.rvalid) and ctx.get(d.axi.rready):
                self.reads[beat][1].pop(0)
                if not self.reads[beat][1]:
                    del self.reads[beat]
                beat = None
            if hs(d.query):
                q = d.query.payload
                self.queries.append((self.cycle + 8, ctx.get(q.key), ctx.get(q.va), ctx.get(q.len)))
            if hs(d.packets):
                p = {n: ctx.get(getattr(d.packets.payload, n)) for n in packet_layout(cfg).members}
                assert p["some"] == (p["len"] != 0)
                self.packets.append(p)
                failed = not p["silent"] and self.failing(p)
                last = self.dones[-1][0] if self.dones else 0
                self.dones.append((max(last + 1, self.cycle + rng.randrange(10, 60)), {"failed": failed, "sent": not failed and not p["silent"]}))
            if hs(d.jobs):
                self.jobs.append({n: ctx.get(getattr(d.jobs.payload.completion, n)) for n in (
                    "cq", "queue", "qpn", "opcode", "wqe_index", "byte_len", "msg_len", "tag", "skipped", "status", "cause")})
            if hs(d.park):
                qp = ctx.get(d.park.payload.qp)
                assert qp not in self.parked, "parked twice"
                self.parked[qp] = self.cycle + ctx.get(d.park.payload.delay) // 4
            self.fences += ctx.get(d.fence_done)
            self.watch_more(ctx)
            await ctx.tick()
            if took_bell:
                self.bells.popleft()
                ctx.set(d.doorbells.valid, 0)
            if took_command:
                self.commands.popleft()
            if took_read:
                self.requests.popleft()
            if took_due:
                del self.parked[due]
            self.cycle += 1

    def _ask(self, rid, addr, length, size):
        assert rid not in self.reads or addr in self.lost_reads, "an ID was used twice"
        assert rid >> 6 == 3
        self.asked.append(addr)
        raw = self.memory.get(addr, bytes(64))
        step = self.cfg.beat_bytes
        if step >= 64:
            line = bytearray(step)
            line[addr % step:addr % step + 64] = raw
            words = [bytes(line)]
        else:
            words = [raw[i:i + step] for i in range(0, 64, step)]
        assert length + 1 == len(words) and 1 << size == min(step, 64)
        beats = [(int.from_bytes(w, "little"), 0) for w in words]
        if addr in self.bad_reads:
            k = self.rng.randrange(len(beats))
            beats[k] = (beats[k][0], 2)
        at = 1 << 60 if addr in self.lost_reads else self.cycle + self.rng.randrange(*self.latency)
        self.reads[rid] = (at, beats)

    def run(self, scenario, *, limit=6_000):
        """`scenario(rig, wait)` is a coroutine: it posts, and awaits `wait(condition)`."""
        sim = Simulator(self.dut)
        sim.add_clock(4e-9)

        async def testbench(ctx):
            async def wait(condition, cycles=limit):
                for _ in range(cycles):
                    if condition():
                        return
                    await ctx.tick()
                raise AssertionError(f"nothing came in {cycles} cycles: {len(self.packets)} packets, {len(self.jobs)} completions")
            await scenario(self, wait)
            self.stop = True
        sim.add_testbench(self.process, background=True)
        sim.add_testbench(testbench)
        sim.run()
