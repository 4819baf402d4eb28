"""The whole card with bus models that somebody else wrote (cocotbext-axi), and the driver's control layer on top of them."""

import logging
import warnings

import cocotb
from cocotb.task import bridge, resume
from cocotbext.axi import (AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam, AxiStreamBus, AxiStreamFrame, AxiStreamSink,
                           AxiStreamSource)

from host_driver.card import Card
from optinic.abi.verdicts import REASON, VERDICT
from sim import frames as f

from .bfm import begin, config, cycles, reset, until

warnings.filterwarnings("ignore", module=r"cocotbext\.axi.*")       # deprecation warnings, thousands of them

VERDICTS, REASONS = list(VERDICT), list(REASON)     # both are numbered from 0
KEY, PD, PEER, CQ = 0x1234, 3, 1, 2
SIZE = 1 << 22


class Device:
    """What `host_driver.card` wants of a device, on top of the bus models."""

    def __init__(self, dut, rng, pause):
        bus = lambda kind, prefix: kind.from_prefix(dut, prefix, bus_separator="__")
        self.dut, self.next = dut, 0x1000
        logging.getLogger(f"cocotb.{dut._name}").setLevel(logging.ERROR)    # the models log every frame
        self.axil = AxiLiteMaster(bus(AxiLiteBus, "axil"), dut.clk, dut.rst)
        self.ram = AxiRam(bus(AxiBus, "axi"), dut.clk, dut.rst, size=SIZE)
        self.mac = AxiStreamSource(bus(AxiStreamBus, "mac_rx"), dut.clk, dut.rst)
        self.host = AxiStreamSink(bus(AxiStreamBus, "host_rx"), dut.clk, dut.rst)
        if pause:
            idle = lambda p: iter(lambda: rng.random() < p, None)
            for channel in (self.mac, self.host, self.ram.write_if.aw_channel, self.ram.write_if.w_channel,
                            self.ram.write_if.b_channel, self.ram.read_if.ar_channel, self.ram.read_if.r_channel):
                channel.set_pause_generator(idle(pause))
        self.reg_read, self.reg_write, self.run = resume(self._reg_read), resume(self._reg_write), resume(self._run)

    async def _reg_read(self, offset):
        return await self.axil.read_dword(offset)

    async def _reg_write(self, offset, value):
        await self.axil.write_dword(offset, value)

    async def _run(self, n):
        await cycles(self.dut, n)

    def alloc(self, length, align):
        addr = -(-self.next // align) * align
        self.next = addr + length
        assert self.next <= SIZE
        self.ram.write(addr, bytes(length))
        return addr

    def read(self, addr, n):
        return bytes(self.ram.read(addr, n))

    def write(self, addr, data):
        self.ram.write(addr, data)


class Bench:
    """A card with one region, two queue pairs, XP 5 and UC 6, and receives posted to them."""

    def __init__(self, dut, rng, pause=0.0):
        self.dut, self.rng, self.device = dut, rng, Device(dut, rng, pause)
        self.traced = []
        cocotb.start_soon(self._trace())

    async def _trace(self):
        while True:
            await cycles(self.dut, 1)
            if self.dut.trace__valid.value and not self.dut.rst.value:
                verdict, reason = int(self.dut.trace__verdict.value), int(self.dut.trace__reason.value)
                self.traced.append(REASONS[reason] if verdict == VERDICT["dropped"] else VERDICTS[verdict])

    async def start(self):
        await self._call(self._start)

    @staticmethod
    async def _call(function, *args, **named):
        return await bridge(function)(*args, **named)

    def _start(self):
        self.card = card = Card(self.device, config())
        self.buffer = self.device.alloc(0x8000, 4096)
        card.set_peer(PEER, f.REMOTE[1])
        card.set_cq(CQ, 64)
        card.add_region(KEY, 0x7000_0000, 0x8000, ("local_write", "remote_write"), pd=PD, delta=self.buffer - 0x7000_0000)
        card.create_qp(5, mtu=1024, generation=9, pd=PD, peer=PEER, cq=CQ)
        card.create_qp(6, type="uc", mtu=1024, pd=PD, peer=PEER, cq=CQ)
        card.enable(hold=True)

    async def post(self, qpn, at, length, **more):
        return await self._call(self.card.post_receive, qpn, 0x7000_0000 + at, length, KEY, **more)

    async def completions(self, n, limit=20_000):
        return await self._call(self.card.wait, CQ, n, limit_cycles=limit, step=32)

    async def send(self, *frames):
        """Send and wait; what became of each frame: the reason of a dropped one, the verdict of another."""
        before = len(self.traced)
        for frame in frames:
            await self.device.mac.send(AxiStreamFrame(frame))
        await until(self.dut, lambda: len(self.traced) == before + len(frames), what="the verdicts")
        return self.traced[before:]

    def memory(self, at, n):
        return self.device.read(self.buffer + at, n)

    async def counters(self):
        await self._call(self.card.fence)
        return {name: n for name, n in (await self._call(self.card.counters)).items() if n}


def pieces(payload, mtu=1024):
    return [(at, payload[at:at + mtu]) for at in range(0, len(payload), mtu)] or [(0, b"")]


async def messages(dut, pause):
    rng = await begin(dut)
    bench = Bench(dut, rng, pause)
    await bench.start()
    long, short, written = rng.randbytes(2500), rng.randbytes(3), rng.randbytes(777)
    for i in range(3):
        await bench.post(5, 0x1000 * i + 5, 4000, wr_id=f"xp{i}")
    await bench.post(6, 0x6001, 200, wr_id="uc0")
    await bench.post(6, 0x6101, 0, wr_id="uc1")
    common = dict(generation=9, tag=77)
    frames = [f.xp_send(5, part, seq=0, msg_len=2500, offset=at, imm=0xCAFE, **common) for at, part in pieces(long)]
    rng.shuffle(frames)
    frames += [
        f.xp_send(5, short, seq=1, **common),
        f.xp_write(5, written, 0x7000_4003, KEY, **common),                             # takes no receive
        f.xp_write(5, written[:100], 0x7000_5001, KEY, imm=4, seq=2, **common),         # takes receive 2
        f.uc_send(6, b"uc message"), f.uc_write(6, b"uc write", 0x7000_7000, KEY, imm=99),
    ]
    assert set(await bench.send(*frames)) == {"placed"}
    done = {c.wr_id: c for c in await bench.completions(5)}
    say = {name: (c.opcode, c.status, c.cause, c.byte_len, c.msg_len, c.imm, c.tag) for name, c in done.items()}
    assert say == {
        "xp0": ("send_imm", "success", "complete", 2500, 2500, 0xCAFE, 77), "xp1": ("send", "success", "complete", 3, 3, 0, 77),
        "xp2": ("write_imm", "success", "complete", 100, 100, 4, 77), "uc0": ("send", "success", "complete", 10, 10, 0, 0),
        "uc1": ("write_imm", "success", "complete", 8, 8, 99, 0)}, say
    expected = bytearray(0x8000)
    for at, data in ((5, long), (0x1005, short), (0x4003, written), (0x5001, written[:100]), (0x6001, b"uc message"),
                     (0x7000, b"uc write")):
        expected[at:at + len(data)] = data
    assert bench.memory(0, 0x8000) == bytes(expected)
    assert await bench.counters() == {"frames_placed": 8, "completions": 5, "placed_bytes": 2500 + 3 + 777 + 100 + 18}


@cocotb.test()
async def messages_at_full_speed(dut):
    await messages(dut, 0.0)


@cocotb.test()
async def messages_with_pauses(dut):
    await messages(dut, 0.3)


@cocotb.test()
async def refused_frames(dut):
    """Each one is counted under its reason, none writes a byte, and the good frame between them is placed."""
    rng = await begin(dut)
    bench = Bench(dut, rng)
    await bench.start()
    good = dict(payload=b"0123456789", va=0x7000_0010, rkey=KEY, generation=9)
    write = lambda **changed: f.xp_write(5, **{**good, **changed})
    cases = {
        "runt": write()[:50], "length": write(dma_len=11), "checksum": write(ip_checksum=1), "icrc": write(icrc_xor=4),
        "version": write(tver=1), "opcode": f.build(0x3F, 5, payload=b"abcd"), "qpn": f.xp_write(7, **good),
        "pkey": write(pkey=0x8001), "source": write(src="10.0.0.3"), "generation": write(generation=8),
        "no_receive": f.xp_send(5, b"x", seq=0, generation=9), "rkey": write(rkey=KEY + 1),
        "bounds": write(va=0x7000_7FFF),
    }
    order = list(cases)
    rng.shuffle(order)
    said = []
    for name in order:
        said += await bench.send(cases[name], write(payload=bytes([len(said)]) * 10))
    assert said[::2] == order and set(said[1::2]) == {"placed"}
    counts = await bench.counters()
    assert {n: c for n, c in counts.items() if n.startswith("drop_")} == {f"drop_{name}": 1 for name in cases}
    memory = bytearray(0x8000)
    memory[0x10:0x1A] = bytes([2 * len(order) - 2]) * 10
    assert bench.memory(0, 0x8000) == bytes(memory)


@cocotb.test()
async def messages_that_lose(dut):
    """Timeout, preemption with empty receives between, late packets, flush: each posted receive completes once."""
    rng = await begin(dut)
    bench = Bench(dut, rng)
    await bench.start()
    for i in range(7):
        await bench.post(5, 0x400 * i, 0x400, timeout_ns=30_000 if i == 5 else None, wr_id=i)
    part = lambda seq: f.xp_send(5, bytes([seq + 1]) * 100, seq=seq, msg_len=200, offset=0, generation=9)
    assert await bench.send(part(0), part(4), part(1)) == ["placed", "placed", "late"]
    await bench.send(f.xp_send(5, b"z" * 100, seq=4, msg_len=200, offset=100, generation=9))
    done = await bench.completions(6)
    await bench._call(bench.card.flush_qp, 5)
    done += await bench.completions(1)
    say = [(c.wr_id, c.status, c.cause, c.byte_len) for c in done]
    assert say == [(0, "partial", "preempted", 100), *((i, "partial", "preempted", 0) for i in (1, 2, 3)),
                   (4, "success", "complete", 200), (5, "partial", "timeout", 0), (6, "error", "flushed", 0)], say
    assert bench.memory(0x400 * 4, 200) == b"\x05" * 100 + b"z" * 100
    assert await bench.send(part(6)) == ["state"]


@cocotb.test()
async def pass_through(dut):
    """What isn't for the transport comes out whole, at every length of its last beat."""
    rng = await begin(dut)
    bench = Bench(dut, rng)
    await bench.start()
    frames = [b"\xff" * 12 + b"\x08\x06" + rng.randbytes(n) for n in range(46, 46 + 2 * config().beat_bytes)]
    assert set(await bench.send(*frames)) == {"passed"}
    for frame in frames:
        got = await bench.device.host.recv()
        assert bytes(got.tdata) == frame, f"{len(frame)} bytes went in, {len(got.tdata)} came out"


@cocotb.test()
async def reset_in_mid_frame(dut):
    rng = await begin(dut)
    bench = Bench(dut, rng)
    await bench.start()
    await bench.post(6, 0, 500)
    await bench.device.mac.send(AxiStreamFrame(f.uc_send(6, b"lost" * 100)))
    await cycles(dut, 13)
    await reset(dut)
    bench.device.mac.clear()
    await bench.start()
    await bench.post(6, 7, 500)
    assert await bench.send(f.uc_send(6, b"whole")) == ["placed"]
    done = await bench.completions(1)
    assert [(c.qpn, c.index, c.byte_len) for c in done] == [(6, 0, 5)] and bench.memory(7, 5) == b"whole"
