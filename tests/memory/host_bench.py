"""A packet buffer, an AXI memory with rules, and a host, around HostWriter."""

from collections import deque

from amaranth.hdl import Cat, ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.abi.structs import CQE
from optinic.axi.signatures import burst_bytes
from optinic.memory.job import JobKind

CQ_BASE = 0xC0_0000_0000        #: CQ i's ring is at CQ_BASE + i * CQ_STRIDE; no payload is written there
CQ_STRIDE = 1 << 20


class Job:
    """A job and the bytes of its frame. `keep`: it leaves the frame to the next job, which has it `again`."""

    def __init__(self, kind, frame=b"", pay_off=0, length=0, addr=0, qp=0, fence=0, completion=None, keep=False, again=False,
                 ends_life=0):
        self.kind, self.frame, self.pay_off, self.length, self.addr = kind, frame, pay_off, length, addr
        self.qp, self.fence, self.completion, self.keep, self.again, self.ends_life = qp, fence, completion, keep, again, ends_life

    def beats(self, lanes):
        return -(-len(self.frame) // lanes)

    def data(self):
        return self.frame[self.pay_off:self.pay_off + self.length]

    def bursts(self, width):
        if self.kind != JobKind.PLACE or not self.length:
            return 0
        page = burst_bytes(width)
        return (self.addr + self.length - 1) // page - self.addr // page + 1

    def fields(self, lanes):
        off = len(self.frame) % lanes if self.kind == JobKind.PASS else self.pay_off
        return dict(kind=self.kind, beats=0 if self.keep else self.beats(lanes), pay_off=off, len=self.length, addr=self.addr,
                    qp=self.qp, fence=self.fence, ends_life=self.ends_life, complete=int(self.completion is not None), completion=self.completion or {})


def completion(cq=0, qpn=0, **more):
    return dict(cq=cq, qpn=qpn, **more)


class Bench:
    """Runs `jobs` through `dut`. Pauses are probabilities per cycle; `latency` cycles from the last W beat to B.

    After the run: `memory` (address -> byte), `cqes` (in the order of their bursts: (cq, entry, bytes)), `cycles` from the
    first job taken to the last W beat, `events` (cycle, name), `frames` at the host stream.
    """

    def __init__(self, dut, rng, *, pauses=0.0, latency=(1, 4), aw_pause=None, w_pause=None, b_pause=None, job_pause=None,
                 host_pause=None):
        self.dut, self.cfg, self.rng = dut, dut.cfg, rng
        self.lanes = self.cfg.beat_bytes
        self.pause = {k: pauses if v is None else v
                      for k, v in dict(aw=aw_pause, w=w_pause, b=b_pause, job=job_pause, host=host_pause).items()}
        self.latency = latency
        self.jobs = []
        self.cqs, self.doorbells = {}, deque()
        self.fail_bursts = set()        # indices of the bursts (in order of AW) that get an error response
        self.batch_cycles = []
        self.order = None               # "aw first", "w first": what the memory insists on
        self.on_cycle = None            # called with the bench once a cycle
        self.reset_state()

    def reset_state(self):
        self.cycle = self.first_cycle = self.last_w = 0
        self.aw, self.w_bursts, self.b = deque(), deque(), deque()
        self.aw_count = self.data_bursts = self.data_acked = self.cqe_acked = self.cqes_begun = 0
        self.buffer = [0] * self.cfg.rx_buffer_beats
        self.write_pointer = self.read_pointer = self.next_frame = 0
        self.read1 = self.read2 = 0
        self.next_job, self.job_valid = 0, False
        self.b_valid = self.bell_valid = False
        self.aw_held = self.w_held = self.host_held = None
        self.host_frame = bytearray()
        self.memory, self.cqes, self.events, self.frames = {}, [], [], []

    def send(self, *jobs):
        self.jobs += jobs

    def set_cq(self, cq, log2_entries, vector=0, valid=1):
        self.cqs[cq] = (log2_entries, vector, valid)

    # -- one run ------------------------------------------------------------------------------------

    def run(self, max_cycles=20000, until=None, reset_at=None, after_reset=(), batches=()):
        """`batches` are lists of jobs, each one sent when all before is done; `batch_cycles` then says what each took.

        `reset_at`: at that cycle everything is reset, also the bus and the buffer, and `after_reset` are the jobs from then on.
        """
        reset = Signal()
        sim = Simulator(ResetInserter(reset)(self.dut) if reset_at else self.dut)
        sim.add_clock(1e-8)

        async def process(ctx):
            await self.setup(ctx)
            for _ in range(max_cycles):
                if reset_at and self.cycle == reset_at:
                    for port in (self.dut.jobs.valid, self.dut.axi.bvalid, self.dut.axi.awready, self.dut.axi.wready):
                        ctx.set(port, 0)
                    ctx.set(reset, 1)
                    await ctx.tick()
                    ctx.set(reset, 0)
                    self.reset_state()
                    self.cycle = reset_at + 1
                    self.jobs = list(after_reset)
                    await self.setup(ctx)
                if batches and self.done(ctx):
                    self.batch_cycles.append(self.last_w - self.first_cycle)
                    self.first_cycle = 0
                    if len(self.batch_cycles) <= len(batches):
                        self.send(*batches[len(self.batch_cycles) - 1])
                await self.step(ctx)
                if until(self) if until else self.done(ctx) and len(self.batch_cycles) >= len(batches):
                    break
            else:
                raise AssertionError(f"not done after {max_cycles} cycles: {self.next_job} of {len(self.jobs)} jobs")
            if batches:
                self.batch_cycles = self.batch_cycles[1:] + [self.last_w - self.first_cycle]
            for _ in range(12):
                await self.step(ctx)
            if not until:
                assert ctx.get(self.dut.idle), "idle is low"
                assert ctx.get(self.dut.rd_pointer) == self.write_pointer, "beats were not freed"

        sim.add_testbench(process)
        sim.run()
        return self

    async def setup(self, ctx):
        while ctx.get(self.dut.clearing):
            await ctx.tick()
        for cq, (log2, vector, valid) in self.cqs.items():
            await self.write_cq(ctx, cq, log2, vector, valid)

    async def write_cq(self, ctx, cq, log2, vector, valid=1):
        s = self.dut.cq_set
        for port, value in ((s.en, 1), (s.index, cq), (s.base, CQ_BASE + cq * CQ_STRIDE), (s.log2_entries, log2),
                            (s.vector, vector), (s.valid, valid)):
            ctx.set(port, value)
        await ctx.tick()
        ctx.set(s.en, 0)

    def done(self, ctx):
        return (self.next_job == len(self.jobs) and ctx.get(self.dut.idle) and not self.doorbells
                and (not self.cfg.pass_through or not ctx.get(self.dut.host.tvalid)))

    async def step(self, ctx):
        d, rng, axi = self.dut, self.rng, self.dut.axi
        if self.on_cycle:
            self.on_cycle(self)
        # what was there before the clock edge, all inputs at once as each change costs a settling of the whole design
        self.offer_job(ctx)
        if not self.b_valid and self.b and self.b[0][0] <= self.cycle and rng.random() >= self.pause["b"]:
            self.b_valid = True
        if self.doorbells and not self.bell_valid:
            ctx.set(d.doorbell.payload, self.doorbells[0])
            self.bell_valid = True
        awready, wready = rng.random() >= self.pause["aw"], rng.random() >= self.pause["w"]
        if self.order == "w first":         # both are allowed to a slave
            awready = ctx.get(axi.wvalid)
        elif self.order == "aw first":
            wready = bool(self.w_bursts) and (len(self.w_bursts) > 1 or self.aw_held is None)
        pins = [(axi.awready, awready), (axi.wready, wready),
                (axi.bvalid, self.b_valid), (axi.bresp, self.b[0][2] if self.b_valid else 0),
                (d.doorbell.valid, self.bell_valid), (d.jobs.valid, self.job_valid), (d.rd_data, self.read2)]
        if self.cfg.pass_through:
            pins.append((d.host.tready, rng.random() >= self.pause["host"]))
        word = at = 0
        for pin, value in pins:
            word |= int(value) << at
            at += len(pin)
        ctx.set(Cat(*(pin for pin, _ in pins)), word)

        job_taken = self.job_valid and ctx.get(d.jobs.ready)
        bell_taken = self.bell_valid and ctx.get(d.doorbell.ready)
        addr = ctx.get(d.rd_addr)
        self.read_pointer_moved(ctx.get(d.rd_pointer))
        self.watch_aw(ctx)
        self.watch_w(ctx)
        if self.b_valid and ctx.get(axi.bready):
            _, is_cqe, _ = self.b.popleft()
            self.b_valid = False
            if is_cqe:
                self.cqe_acked += 1
            else:
                self.data_acked += 1
        self.watch_host(ctx)
        self.watch_events(ctx)
        await ctx.tick()
        self.cycle += 1
        self.read2, self.read1 = self.read1, self.buffer[addr]
        if job_taken:
            self.first_cycle = self.first_cycle or self.cycle
            self.job_valid = False
            self.next_job += 1
        if bell_taken:
            self.doorbells.popleft()
            self.bell_valid = False

    # -- the packet buffer --------------------------------------------------------------------------

    def offer_job(self, ctx):
        size = self.cfg.rx_buffer_beats
        while self.next_frame < len(self.jobs):         # frames arrive as early as there is room
            job = self.jobs[self.next_frame]
            n = job.beats(self.lanes) if job.kind != JobKind.NONE and not job.again else 0
            if (self.write_pointer - self.read_pointer) % (2 * size) + n > size:
                break
            padded = job.frame + bytes(self.rng.randrange(256) for _ in range(-len(job.frame) % self.lanes))
            for i in range(n):
                beat = padded[i * self.lanes:(i + 1) * self.lanes]
                self.buffer[(self.write_pointer + i) % size] = int.from_bytes(beat, "little")
            self.write_pointer = (self.write_pointer + n) % (2 * size)
            self.next_frame += 1
        if not self.job_valid and self.next_job < self.next_frame and self.rng.random() >= self.pause["job"]:
            self.job_valid = True
            ctx.set(self.dut.jobs.payload, self.jobs[self.next_job].fields(self.lanes))

    def read_pointer_moved(self, pointer):
        size = self.cfg.rx_buffer_beats
        moved = (pointer - self.read_pointer) % (2 * size)
        held = (self.write_pointer - self.read_pointer) % (2 * size)
        assert moved <= held, "more beats were freed than there are"
        for i in range(moved):      # whoever reads them from now on gets rubbish
            self.buffer[(self.read_pointer + i) % size] = self.rng.getrandbits(8 * self.lanes)
        self.read_pointer = pointer

    # -- the bus ------------------------------------------------------------------------------------

    def watch_aw(self, ctx):
        axi = self.dut.axi
        if not ctx.get(axi.awvalid):
            assert self.aw_held is None, "awvalid was withdrawn"
            return
        addr, length = ctx.get(axi.awaddr), ctx.get(axi.awlen)
        assert self.aw_held in (None, (addr, length)), "AW changed while it waited"
        if self.aw_held is None:
            size = (length + 1) * self.lanes
            assert ctx.get(axi.awid) == 0 and ctx.get(axi.awburst) == 1 and 1 << ctx.get(axi.awsize) == self.lanes
            assert addr % self.lanes == 0
            assert addr // burst_bytes(8 * self.lanes) == (addr + size - 1) // burst_bytes(8 * self.lanes), "burst crosses"
            is_cqe = addr >= CQ_BASE
            if is_cqe:
                assert size == max(32, self.lanes)
            self.w_bursts.append([addr, length + 1, is_cqe, self.aw_count])
            self.aw_presented(addr, is_cqe)
            self.aw_count += 1
        self.aw_held = None if ctx.get(axi.awready) else (addr, length)

    def aw_presented(self, addr, is_cqe):
        if not is_cqe:
            self.data_bursts += 1
            return
        # the job whose completion this is: its writes and those of all before it have been acknowledged
        self.cqes_begun += 1
        need = nth = 0
        for job in self.jobs:
            need += job.bursts(8 * self.lanes)
            nth += job.completion is not None and self.writes_cqe(job)
            if nth == self.cqes_begun:
                break
        assert self.data_acked >= need, f"completion before its writes were acknowledged ({self.data_acked} < {need})"

    def writes_cqe(self, job):
        return self.cqs.get(job.completion["cq"], (0, 0, 0))[2]

    def watch_w(self, ctx):
        axi = self.dut.axi
        if not ctx.get(axi.wvalid):
            assert self.w_held is None, "wvalid was withdrawn"
            return
        beat = (ctx.get(axi.wdata), ctx.get(axi.wstrb), ctx.get(axi.wlast))
        assert self.w_held in (None, beat), "W changed while it waited"
        assert self.w_bursts, "W before its AW"
        if not ctx.get(axi.wready):
            self.w_held = beat
            return
        self.w_held = None
        burst = self.w_bursts[0]
        addr, left, is_cqe, index = burst
        data, strb, last = beat
        assert strb or is_cqe, "a beat without bytes"
        assert last == (left == 1), "wlast"
        for lane in range(self.lanes):
            if strb >> lane & 1:
                self.memory[addr + lane] = data >> 8 * lane & 255
        self.last_w = self.cycle
        burst[0], burst[1] = addr + self.lanes, left - 1
        if last:
            self.w_bursts.popleft()
            if is_cqe:
                self.take_cqe(addr + self.lanes, strb)
            due = max(self.cycle + self.rng.randint(*self.latency), self.b[-1][0] if self.b else 0)
            self.b.append((due, is_cqe, 2 + self.rng.getrandbits(1) if index in self.fail_bursts else 0))

    def take_cqe(self, end, strb):
        if self.lanes > 32:
            low = (strb & -strb).bit_length() - 1
            assert strb == 0xFFFFFFFF << low and low % 32 == 0
            start = end - self.lanes + low
        else:
            assert strb == (1 << self.lanes) - 1
            start = end - 32
        cq, offset = divmod(start - CQ_BASE, CQ_STRIDE)
        raw = bytes(self.memory[start + i] for i in range(32))
        self.cqes.append((cq, offset // 32, CQE.unpack(raw)))

    # -- the host -----------------------------------------------------------------------------------

    def watch_host(self, ctx):
        if not self.cfg.pass_through:
            return
        host = self.dut.host
        if not ctx.get(host.tvalid):
            assert self.host_held is None, "tvalid was withdrawn"
            return
        beat = (ctx.get(host.tdata), ctx.get(host.tkeep), ctx.get(host.tlast))
        assert self.host_held in (None, beat), "host beat changed while it waited"
        self.host_held = None if ctx.get(host.tready) else beat
        if self.host_held is None:
            data, keep, last = beat
            n = keep.bit_length()
            assert keep == (1 << n) - 1 and n and (last or n == self.lanes), "tkeep"
            self.host_frame += data.to_bytes(self.lanes, "little")[:n]
            if last:
                self.frames.append(bytes(self.host_frame))
                self.host_frame = bytearray()

    def watch_events(self, ctx):
        d = self.dut
        names = ("fence_done", "write_error", "pass_overflow", "cq_overrun", "completed")
        pulses = ctx.get(Cat(*(getattr(d, name) for name in names), d.irq_raise))
        for i, name in enumerate([*names, *(f"irq{v}" for v in range(self.cfg.num_vectors))]):
            if pulses >> i & 1:
                self.events.append((self.cycle, name))

    def count(self, name):
        return sum(1 for _, n in self.events if n == name)

    # -- what the memory should hold ----------------------------------------------------------------

    def expected_memory(self):
        memory = {}
        for job in self.jobs:
            if job.kind == JobKind.PLACE:
                memory.update(zip(range(job.addr, job.addr + job.length), job.data()))
        return memory

    def check_memory(self):
        got = {a: v for a, v in self.memory.items() if a < CQ_BASE}
        want = self.expected_memory()
        assert got.keys() == want.keys(), "bytes written elsewhere or not at all"
        wrong = [a for a in want if got[a] != want[a]]
        assert not wrong, f"{len(wrong)} bytes differ, first at {wrong[0]:#x}"
