"""HostWriter: payload to memory at every alignment, nothing beside it, completions behind the writes that they count."""

import cocotb
from cocotb.triggers import RisingEdge

from optinic.abi.structs import CQE, STATUS
from optinic.memory.job import JobKind, job_layout

from .axi import AxiWriteMemory
from .bfm import FrameSink, StreamSource, begin, config, cycles, reset, until

CQ_BASE, ENTRIES = 0x7000_0000_0000, 256


def pack(layout, **values):
    """A flattened struct as one number; a dict is an inner struct."""
    word = 0
    for name, value in values.items():
        field = layout[name]
        word |= (pack(field.shape, **value) if isinstance(value, dict) else int(value)) << field.offset
    return word


class Placement:
    """HostWriter with a packet buffer, a memory and a host around it; `expected` is what memory must hold in the end."""

    def __init__(self, dut, rng, pause=0.0, latency=(1, 20), error=lambda addr: False):
        self.dut, self.rng, self.cfg = dut, rng, config()
        self.jobs = StreamSource(dut, "jobs__", rng, pause)
        self.memory = AxiWriteMemory(dut, "axi__", rng, pause, latency, error, self._burst)
        self.host = FrameSink(dut, "host__", rng, pause)
        self.expected, self.passed, self.completions, self.written = {}, [], [], 0
        self.buffer, self.place = [0] * self.cfg.rx_buffer_beats, 0
        self.pulses = {"write_error": 0, "cq_overrun": 0, "pass_overflow": 0, "completed": 0, "fence_done": 0}
        cocotb.start_soon(self._buffer())
        cocotb.start_soon(self._count())

    async def _buffer(self):
        earlier = 0
        while True:     # data two cycles behind the address
            await RisingEdge(self.dut.clk)
            self.dut.rd_data.value = self.buffer[earlier]
            earlier = int(self.dut.rd_addr.value)

    async def _count(self):
        while True:
            await RisingEdge(self.dut.clk)
            for name in self.pulses:
                self.pulses[name] += int(getattr(self.dut, name).value)

    def _burst(self, addr):
        if CQ_BASE <= addr < CQ_BASE + 32 * ENTRIES:
            index = (addr - CQ_BASE) // 32
            done = sum(len(b.data) for b in self.memory.bursts if b.addr < CQ_BASE)
            due = self.completions[index]["msg_len"]        # which here carries the bytes queued up to it
            assert done >= due, f"completion {index} began when {done} of {due} bytes were acknowledged"

    async def start(self):
        await until(self.dut, lambda: not self.dut.clearing.value, what="clearing")
        self.place = 0
        for name, value in dict(index=1, base=CQ_BASE, log2_entries=ENTRIES.bit_length() - 1, vector=0, valid=1, en=1).items():
            getattr(self.dut, f"cq_set__{name}").value = value
        await cycles(self.dut, 1)
        self.dut.cq_set__en.value = 0
        await cycles(self.dut, 12)

    async def _store(self, frame):
        """Into the packet buffer, when the card has freed enough of it."""
        lanes, depth = self.cfg.beat_bytes, self.cfg.rx_buffer_beats
        beats = -(-len(frame) // lanes)
        used = lambda: (self.place - int(self.dut.rd_pointer.value)) % (2 * depth)
        await until(self.dut, lambda: used() + beats <= depth, what="room in the packet buffer")
        for i in range(beats):
            part = frame[i * lanes:(i + 1) * lanes]
            part += self.rng.randbytes(lanes - len(part))
            self.buffer[(self.place + i) % depth] = int.from_bytes(part, "little")
        self.place = (self.place + beats) % (2 * depth)
        return beats

    def _queue(self, **fields):
        self.jobs.queue.append({"payload": pack(job_layout(self.cfg), **fields)})

    async def put(self, addr, payload, pay_off=None, complete=False, qp=0):
        pay_off = self.rng.randrange(42, 100) if pay_off is None else pay_off
        beats = await self._store(self.rng.randbytes(pay_off) + payload + self.rng.randbytes(4))
        self.written += len(payload)
        fields = {}
        if complete:
            index = len(self.completions)
            self.completions.append(dict(qpn=5, wqe_index=index, byte_len=len(payload), msg_len=self.written, tag=index & 0xFFFF))
            fields = dict(complete=1, completion={"cq": 1, **self.completions[-1]})
        self._queue(kind=JobKind.PLACE.value, beats=beats, pay_off=pay_off, len=len(payload), addr=addr, qp=qp, **fields)
        self.expected.update({(addr + i) % (1 << 64): b for i, b in enumerate(payload)})

    async def skip(self, n):
        self._queue(kind=JobKind.SKIP.value, beats=await self._store(self.rng.randbytes(n)))

    async def pass_on(self, n):
        frame = self.rng.randbytes(n)
        self._queue(kind=JobKind.PASS.value, beats=await self._store(frame), pay_off=n % self.cfg.beat_bytes)
        self.passed.append(frame)

    async def finish(self):
        await until(self.dut, lambda: self.jobs.idle and self.dut.idle.value and self.memory.idle, what="idle")
        await until(self.dut, lambda: len(self.host.frames()) == len(self.passed), what="the host stream")
        await cycles(self.dut, 10)
        payload = {a: b for a, b in self.memory.bytes.items() if not CQ_BASE <= a < CQ_BASE + 32 * ENTRIES}
        assert payload == self.expected, "memory differs"
        assert self.host.frames() == self.passed and int(self.dut.rd_pointer.value) == self.place

    def cqes(self):
        return [CQE.unpack(self.memory.read(CQ_BASE + 32 * i, 32)) for i in range(len(self.completions))]


@cocotb.test()
async def alignments(dut):
    """Every length near the beat and the page, at every offset in a 64-byte word and around the 4 KiB boundary."""
    rng = await begin(dut)
    bench = Placement(dut, rng, pause=0.1)
    await bench.start()
    top, base = bench.cfg.mtu_max, 0x10_0000
    lengths = [1, 2, 3, 63, 64, 65, *(rng.randrange(130) for _ in range(20)), top - 1, top, top]
    for i, n in enumerate(lengths):
        await bench.put(base + i * 16384 + rng.choice([rng.randrange(64), 4096 - n, 4095 - n, 4097 - n, 4095]), rng.randbytes(n))
        if rng.random() < .2:
            await bench.skip(rng.randrange(1, 300))
        if rng.random() < .2:
            await bench.pass_on(rng.randrange(1, 300))
    await bench.put((1 << 64) - 64, rng.randbytes(64))      # the last byte of the address space
    await bench.put(base + 0x100_0000, b"")                 # no byte, no write
    await bench.finish()
    assert bench.pulses["write_error"] == bench.pulses["pass_overflow"] == 0


@cocotb.test()
async def completions_follow_their_writes(dut):
    """A CQE's burst begins after the answers to all payload before it; one piece; in order; each one once."""
    rng = await begin(dut)
    bench = Placement(dut, rng, pause=0.2, latency=(1, 80))
    await bench.start()
    for i in range(40):
        n = rng.randrange(260)      # most of them in two bursts
        await bench.put(0x20_0000 + i * 8192 - rng.randrange(n + 1), rng.randbytes(n), complete=rng.random() < .7)
    await bench.finish()
    assert bench.pulses["completed"] == len(bench.completions) and bench.pulses["cq_overrun"] == 0
    for i, (cqe, want) in enumerate(zip(bench.cqes(), bench.completions)):
        assert {name: cqe[name] for name in want} == want and cqe["phase"] == 1 and cqe["format"] == 1
        burst = next(b for b in bench.memory.bursts if b.addr == CQ_BASE + 32 * i)
        assert len(burst.data) == 32, "a completion in pieces"


@cocotb.test()
async def failed_write(dut):
    """An error answer is counted and turns the completion into an error; what follows goes on."""
    rng = await begin(dut)
    bench = Placement(dut, rng, error=lambda addr: addr == 0x30_0000)
    await bench.start()
    await bench.put(0x30_0000, b"x" * 20, complete=True, qp=1)
    await bench.put(0x31_0000, b"y" * 20, complete=True, qp=2)
    for i in range(20):
        del bench.expected[0x30_0000 + i]
    await bench.finish()
    assert bench.pulses["write_error"] == 1
    assert [c["status"] for c in bench.cqes()] == [STATUS["error"], STATUS["success"]]


@cocotb.test()
async def reset_in_mid_write(dut):
    """After a reset at any moment the next job is done right."""
    rng = await begin(dut)
    bench = Placement(dut, rng)
    for stop in range(1, 40, 3):
        await bench.start()
        await bench.put(0x40_0000 + 37, rng.randbytes(200), complete=True)
        await cycles(dut, stop)
        await reset(dut)
        bench.memory.bytes.clear(), bench.memory.bursts.clear(), bench.expected.clear(), bench.completions.clear()
        bench.written = 0
        await bench.start()
        await bench.put(0x50_0000 + stop, rng.randbytes(150), complete=True)
        await bench.finish()
        assert bench.cqes()[0]["byte_len"] == 150
        await reset(dut)
        bench.memory.bytes.clear(), bench.memory.bursts.clear(), bench.expected.clear(), bench.completions.clear()
        bench.written = 0
