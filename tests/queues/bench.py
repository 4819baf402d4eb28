"""A host with receive rings, an AXI read port and a feeder of lookups around ReceiveQueue, cycle by cycle.

The host writes a ring slot only when it posts, and reposts one only when no lookup needs it any more, so a WQE that does
not match what was posted for its message is a fault of the queue. Nothing here knows how the cache works.
"""

from collections import deque
from contextlib import contextmanager
from random import Random

from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.abi.structs import RECV_WQE
from optinic.config import preset
from optinic.queues.receive import ReceiveQueue

LINE = 128
PATIENCE = 3000         #: cycles for the oldest lookup since the last result, more than any host here takes
BASE = 0x7_1234_5000


def small_cfg(width=64, **knobs):
    return preset("tiny", **(dict(data_width=width, num_qps=8, rq_entries=32, rq_cache_lines=16, rq_prefetch_lines=2,
                                  reads_outstanding=8, rx_buffer_bytes=32768) | knobs))


class Host:
    """Rings in memory. `content` is what was posted for (QP, message); a new life of the QP posts other WQEs."""

    def __init__(self, cfg, rng):
        self.cfg, self.rng = cfg, rng
        self.memory, self.life, self.posted, self.content = {}, {}, {}, {}

    def start(self, qp, index=0):
        self.life[qp] = self.life.get(qp, 0) + 1
        self.posted[qp] = index

    def post(self, qp, count=1):
        for _ in range(count):
            index = self.posted[qp]
            values = {f.name: self.rng.getrandbits(f.width) for f in RECV_WQE.fields}
            self.content[qp, index] = values
            word = bytearray(RECV_WQE.pack(**values))
            word[21:] = self.rng.randbytes(11)                      # reserved bytes are anything
            word[20] = word[20] & 1 | self.rng.getrandbits(7) << 1
            self.memory[BASE + (qp * self.cfg.rq_entries + index % self.cfg.rq_entries) * 32] = bytes(word)
            self.posted[qp] += 1

    def line(self, address):
        return b"".join(self.memory.get(address + at, b"\xa5" * 32) for at in range(0, LINE, 32))


class Read:
    def __init__(self, id, address, due, kind, data):
        self.id, self.address, self.due, self.kind, self.data, self.beat = id, address, due, kind, data, 0
        self.asked = self.ended = None


class Bench:
    """`answer(address, cycle)` -> (latency, kind) decides on each read; kinds: ok, error, short, long. Of the answers that
    are due any one comes next, and after each beat, with probability `mix`, it is another one's turn. With probability
    `stray` an idle cycle of R has a beat of a read that nobody asked for."""

    def __init__(self, ctx, dut, cfg, host, rng, *, answer=None, gap=0.0, room=1.0, ar_ready=1.0,
                 timeout=100_000, mix=0.0, stray=0.0):
        self.ctx, self.dut, self.cfg, self.host, self.rng = ctx, dut, cfg, host, rng
        self.answer = answer or (lambda address, cycle: (20, "ok"))
        self.gap, self.room, self.ar_ready, self.mix, self.stray = gap, room, ar_ready, mix, stray
        self.cycle, self.queue, self.expected, self.reads = 0, deque(), deque(), []
        self.reading = None             # the read whose beat is shown, or was last
        self.overtaken = self.switched = self.strays = self.moved = 0
        self.asked, self.recent, self.latencies, self.all_dead, self.timeout = [], deque(maxlen=400), [], -1, timeout
        self.failed = self.results = self.errors = self.done = self.serial = 0
        self.offered = self.beat_shown = None
        self.accepted_at, self.result_at, self.leaves = [], [], 0
        ctx.set(dut.rq_base, BASE)
        ctx.set(dut.dma_timeout, timeout)

    def outstanding(self, qp):
        return [e for e in (*self.expected, *self.queue) if e["need"] and e["qp"] == qp]

    def lookup(self, qp, index, need=1):
        """Queue a lookup of a posted message; what it must give is fixed now."""
        self.serial += 1
        self.queue.append(dict(need=need, qp=qp, index=index & 0xFFFFFFFF, posted=self.host.posted[qp] & 0xFFFF,
                               user=self.serial & 0xFFFFFFFF, born=self.cycle, wqe=self.host.content.get((qp, index))))

    async def step(self):
        ctx, dut, rng = self.ctx, self.dut, self.rng
        # Lookups
        if self.offered is None and self.queue and self.queue[0]["born"] <= self.cycle:
            self.offered = self.queue[0]
            ctx.set(dut.lookup.payload, {k: self.offered[k] for k in ("need", "qp", "index", "posted", "user")})
        ctx.set(dut.lookup.valid, self.offered is not None)
        ctx.set(dut.room, rng.random() < self.room)
        # Read data
        axi = dut.axi
        if self.beat_shown is None and rng.random() >= self.gap:
            self._next_beat()
        ctx.set(axi.rvalid, self.beat_shown is not None)
        ar_ready = rng.random() < self.ar_ready
        ctx.set(axi.arready, ar_ready)

        if self.offered is not None and ctx.get(dut.lookup.ready):
            e = self.queue.popleft()
            e["accepted"] = self.cycle
            self.accepted_at.append(self.cycle)
            self.recent.append(e)
            self.expected.append(e)
            self.offered = None
        if self.beat_shown is not None and ctx.get(axi.rready):
            read = self.reading
            if read is not None:
                read.beat += 1
                if self.beat_shown[2]:
                    read.ended = self.cycle
                    self.overtaken += read is not self.reads[0]
                    self.reads.remove(read)
            self.beat_shown = None
        if ar_ready and ctx.get(axi.arvalid):
            self._ask(ctx.get(axi.arid), ctx.get(axi.araddr), ctx.get(axi.arlen), ctx.get(axi.arsize), ctx.get(axi.arburst))
        assert not self.expected or self.cycle - max(self.expected[0]["accepted"], self.moved) < PATIENCE, \
            f"cycle {self.cycle}: stuck at QP {self.expected[0]['qp']} message {self.expected[0]['index']}"
        self.leaves += ctx.get(dut.leave)
        self.errors += ctx.get(dut.fetch_error)
        self.done += ctx.get(dut.invalidate_done)
        if ctx.get(dut.result_valid):
            self._check(ctx.get(dut.result_data))
        if len(self.reads) >= self.cfg.reads_outstanding and all(map(self.late, self.reads)):
            self.all_dead = self.cycle
        await ctx.tick()
        self.cycle += 1

    def _next_beat(self):
        axi, rng = self.dut.axi, self.rng
        due = [r for r in self.reads if r.due <= self.cycle]
        if not due:
            if rng.random() < self.stray:
                self.strays += 1
                self.reading, self.beat_shown = None, (rng.getrandbits(self.cfg.data_width), rng.choice((0, 0, 2)), rng.random() < .3)
                ident = rng.choice(sorted(set(range(256)) - {r.id for r in self.reads} - {self.ctx.get(axi.arid)}))
        else:
            if self.reading not in due or rng.random() < self.mix:
                self.switched += self.reading in due
                self.reading = rng.choice(due)
            self.beat_shown, ident = self._beat(self.reading), self.reading.id
        if self.beat_shown is not None:
            data, resp, last = self.beat_shown
            self.ctx.set(axi.rdata, data), self.ctx.set(axi.rresp, resp), self.ctx.set(axi.rlast, last), self.ctx.set(axi.rid, ident)

    def _ask(self, ident, address, length, size, burst):
        bytes_ = self.cfg.data_width // 8
        assert ident < self.cfg.reads_outstanding and ident not in [r.id for r in self.reads], f"cycle {self.cycle}: ID {ident} is in use"
        assert (length + 1) * bytes_ == LINE and 1 << size == bytes_ and burst == 1 and address % LINE == 0
        line = (address - BASE) // LINE
        ring = self.cfg.rq_entries // 4
        qp, line = divmod(line, ring)
        # Some lookup of late asked for this line, or for one at most `rq_prefetch_lines` before it; and it was posted.
        reach = [(line - e["index"] // 4) % ring for e in self.recent if e["need"] and e["qp"] == qp]
        assert any(ahead <= self.cfg.rq_prefetch_lines
                   and 0 < (e["posted"] - 4 * (e["index"] // 4 + ahead)) % 65536 <= self.cfg.rq_entries + 3
                   for ahead, e in zip(reach, (e for e in self.recent if e["need"] and e["qp"] == qp))), \
            f"cycle {self.cycle}: read of line {line} of QP {qp} that nobody needs or that is not posted"
        latency, kind = self.answer(address, self.cycle)
        early = self.host.line(address) if self.rng.random() < .5 else None    # when memory is read is up to the host
        read = Read(ident, address, self.cycle + latency, kind, early)
        read.asked = self.cycle
        self.asked.append(read)
        self.reads.append(read)

    def _beat(self, read):
        width, beats = self.cfg.data_width, LINE * 8 // self.cfg.data_width
        if read.data is None:
            read.data = self.host.line(read.address)
        if read.beat == 0:
            read.bad = self.rng.randrange(beats)
            read.last = {"short": self.rng.randrange(max(1, beats - 1)), "long": beats + self.rng.randrange(3)}.get(read.kind, beats - 1)
            if read.kind == "short" and beats == 1:
                read.kind = "error"
        data = int.from_bytes(read.data, "little") >> width * read.beat & (1 << width) - 1
        error = read.kind == "error" and read.beat == read.bad
        return self.rng.getrandbits(width) if error else data, self.rng.choice((2, 3)) if error else 0, read.beat == read.last

    def _check(self, result):
        assert self.expected, f"cycle {self.cycle}: a result without a lookup"
        e = self.expected.popleft()
        self.results += 1
        self.result_at.append(self.cycle)
        self.moved = self.cycle
        self.latencies.append(self.cycle - e["born"])
        assert result.user == e["user"], f"cycle {self.cycle}: out of order"
        e["failed"] = result.failed
        if not e["need"]:
            assert not result.failed
        elif result.failed:
            self.failed += 1
            self.on_failed(e)
        else:
            got = {f.name: result.wqe[f.name] for f in RECV_WQE.fields}
            assert got == e["wqe"], f"cycle {self.cycle}: QP {e['qp']} message {e['index']}: {got} is not {e['wqe']}"

    def late(self, read):
        """Whether the card may have given up on `read`: it counts from the request, a few cycles before AR."""
        return (self.cycle if read.ended is None else read.ended) - read.asked > self.timeout - 12

    def on_failed(self, e):
        """A failure is excused by a faulty or late read of that very line, ended or given up while the lookup was under
        way, or by all slots having been taken by late reads at some time since."""
        address = BASE + (e["qp"] * self.cfg.rq_entries + e["index"] % self.cfg.rq_entries) // 4 * LINE
        faulty = any(r.address == address and (self.late(r) or r.kind != "ok" and r.ended is not None)
                     and (r.ended is None or r.ended >= e["accepted"]) for r in self.asked[-200:])
        assert faulty or self.all_dead >= e["accepted"], f"cycle {self.cycle}: failed for nothing"

    async def run(self, cycles):
        for _ in range(cycles):
            await self.step()

    async def drain(self, limit=20_000):
        """Until everything has come back and the queue is idle."""
        for _ in range(limit):
            if not self.queue and not self.expected and not self.reads and self.ctx.get(self.dut.idle):
                assert self.leaves == self.results
                return
            await self.step()
        raise AssertionError(f"not idle after {limit} cycles: {len(self.queue)} to offer, {len(self.expected)} inside, "
                             f"{len(self.reads)} reads")

    async def reset(self):
        """The card and its AXI port are reset together: nothing that was under way comes back."""
        self.ctx.set(self.reset_signal, 1)
        self.ctx.set(self.dut.lookup.valid, 0)
        self.ctx.set(self.dut.axi.rvalid, 0)
        await self.ctx.tick()
        self.ctx.set(self.reset_signal, 0)
        for kept in (self.queue, self.expected, self.reads, self.recent):
            kept.clear()
        self.offered = self.beat_shown = None
        self.leaves = self.results = 0
        self.cycle += 1

    async def invalidate(self, qp, limit=2000):
        before = self.done
        self.ctx.set(self.dut.invalidate, 1)
        self.ctx.set(self.dut.invalidate_qp, qp)
        await self.step()
        self.ctx.set(self.dut.invalidate, 0)
        for _ in range(limit):
            if self.done != before:
                return
            await self.step()
        raise AssertionError("invalidation never ended")


def simulate(cfg, scenario, seed, *, user=32, **options):
    """Run `async scenario(bench, host, rng)` around a fresh ReceiveQueue; returns the bench."""
    rng = Random(seed)
    dut, host = ReceiveQueue(cfg, user), Host(cfg, rng)
    reset = Signal()
    sim = Simulator(ResetInserter(reset)(dut))
    sim.add_clock(1e-6)
    kept = []

    async def testbench(ctx):
        bench = Bench(ctx, dut, cfg, host, rng, **options)
        bench.reset_signal = reset
        kept.append(bench)
        await scenario(bench, host, rng)
    sim.add_testbench(testbench)
    sim.run()
    return kept[0]


@contextmanager
def mutated(cls, **methods):
    """`cls` with some methods replaced."""
    kept = {name: getattr(cls, name) for name in methods}
    for name, method in methods.items():
        setattr(cls, name, method)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(cls, name, method)
