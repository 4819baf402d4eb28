"""The register bank under an AXI4-Lite master that orders, delays and pauses its channels at random."""

import random

import pytest
from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.abi.registers import ABI_VERSION, COUNTER_BASE, ID_WORD, REGISTERS, offset_of
from optinic.axi.lite import OKAY, SLVERR
from optinic.axi.register_bank import RegisterBank
from optinic.config import preset
from optinic.transport.counters import Counters

BY_NAME = {r.name: r for r in REGISTERS}
WO = [r for r in REGISTERS if r.access == "wo"]
RW = [r for r in REGISTERS if r.access == "rw"]


class Bench:
    """The master, and whoever takes the events (`takes`: chance in a cycle)."""

    def __init__(self, cfg=None, seed=1, takes=1.0, pauses=0.0):
        self.cfg, self.rnd = cfg or preset("tiny"), random.Random(seed)
        self.dut, self.takes, self.pauses = RegisterBank(self.cfg), takes, pauses
        self.events, self.held = [], {}     # taken; offered but not taken, by register
        print("seed", seed)

    async def pause(self, ctx):
        while self.rnd.random() < self.pauses:
            await ctx.tick()

    async def write(self, ctx, offset, data, strb=15, order=None):
        """AW and W in a random order, or at once; the response."""
        axi, rnd = self.dut.axi, self.rnd
        order = order or rnd.choice(["both", "aw", "w"])
        todo = {"aw", "w"}
        open_ = set(todo) if order == "both" else {order}
        while todo:
            for channel in open_ & todo:
                if channel == "aw":
                    ctx.set(axi.awaddr, offset)
                    ctx.set(axi.awvalid, 1)
                else:
                    ctx.set(axi.wdata, data)
                    ctx.set(axi.wstrb, strb)
                    ctx.set(axi.wvalid, 1)
            took = {c for c in open_ & todo if ctx.get(getattr(axi, c + "ready"))}
            await ctx.tick()
            for channel in took:
                ctx.set(getattr(axi, channel + "valid"), 0)
                ctx.set(axi.awaddr if channel == "aw" else axi.wdata, rnd.getrandbits(16))
                todo.discard(channel)
            if len(open_) == 1 and not open_ & todo:
                await self.pause(ctx)
                open_ = {"aw", "w"}
        return await self.response(ctx, "b")

    async def response(self, ctx, channel):
        axi = self.dut.axi
        await self.pause(ctx)
        first = None
        while True:
            valid = ctx.get(getattr(axi, channel + "valid"))
            now = (ctx.get(getattr(axi, channel + "resp")), ctx.get(axi.rdata) if channel == "r" else None)
            if first is not None:
                assert valid and now == first, "a response changed before it was taken"
            ready = self.rnd.random() >= self.pauses
            ctx.set(getattr(axi, channel + "ready"), ready)
            await ctx.tick()
            if valid and ready:
                ctx.set(getattr(axi, channel + "ready"), 0)
                return now[0] if channel == "b" else (now[1], now[0])
            first = now if valid else None

    async def read(self, ctx, offset):
        axi = self.dut.axi
        ctx.set(axi.araddr, offset)
        ctx.set(axi.arvalid, 1)
        while not ctx.get(axi.arready):
            await ctx.tick()
        await ctx.tick()
        ctx.set(axi.arvalid, 0)
        ctx.set(axi.araddr, self.rnd.getrandbits(16))
        return await self.response(ctx, "r")

    async def taker(self, ctx):
        held = self.held
        while True:
            for r in WO:
                port = getattr(self.dut, f"wo_{r.name.lower()}")
                ready = self.rnd.random() < self.takes
                ctx.set(port.ready, ready)
                valid, data = ctx.get(port.valid), ctx.get(port.data)
                if r.name in held:
                    assert valid and data == held[r.name], "an event changed before it was taken"
                    del held[r.name]
                if valid and ready:
                    self.events.append((r.name, data))
                elif valid:
                    held[r.name] = data
            await ctx.tick()

    def run(self, process, *more, top=None):
        sim = Simulator(top or self.dut)
        sim.add_clock(4e-9)
        sim.add_testbench(process)
        sim.add_testbench(self.taker, background=True)
        for other in more:
            sim.add_testbench(other, background=True)
        sim.run()


@pytest.mark.parametrize("name", ["tiny", "scale10k"])
def test_constants(name):
    cfg = preset(name, trace=name == "tiny", vlan=False)
    bench = Bench(cfg)
    want = {"ID": ID_WORD, "VERSION": ABI_VERSION, "TRANSPORT": 1, "CONFIG_HASH": cfg.hash, "DATA_WIDTH": cfg.data_width,
            "NUM_QPS": cfg.num_qps, "NUM_REGIONS": cfg.num_regions, "NUM_CQS": cfg.num_cqs, "NUM_PEERS": cfg.num_peers,
            "CLOCK_HZ": cfg.clock_hz, "MTU_MAX": cfg.mtu_max, "RQ_ENTRIES": cfg.rq_entries,
            "FEATURES": 0b11101 if name == "tiny" else 0b01101, "RX_BUFFER_BYTES": cfg.rx_buffer_bytes,
            "NUM_VECTORS": cfg.num_vectors}

    async def process(ctx):
        for register, value in want.items():
            assert await bench.read(ctx, BY_NAME[register].offset) == (value, OKAY), register
            assert await bench.write(ctx, BY_NAME[register].offset, 0xFFFFFFFF) == SLVERR
            assert await bench.read(ctx, BY_NAME[register].offset) == (value, OKAY), register
    bench.run(process)


def test_ports_are_those_of_the_list():
    cfg = preset("tiny")
    dut = Bench(cfg).dut
    Simulator(dut)
    assert set(dut.signature.members) == {"axi", "time", "counter_addr", "counter_data", "ro_status", "ro_irq_status", "ro_command_status",
                       *(f"rw_{r.name.lower()}" for r in RW), *(f"wo_{r.name.lower()}" for r in WO)}


def random_traffic(bench, steps, *, bytes_matter=True):
    """Writes and reads anywhere, against a dictionary of what each word should hold."""
    async def process(ctx):
        rnd, dut = bench.rnd, bench.dut
        ctx.set(dut.ro_status, 0x12345678)
        ctx.set(dut.ro_irq_status, 0x9ABCDEF0)
        ctx.set(dut.ro_command_status, 0x80000002)
        store = {r.offset: r.reset for r in RW}
        events = []
        places = [r.offset for r in REGISTERS if not r.name.startswith("TIME_")] + [0x34 + 8, 0x44 + 0x100, 0x600, 0xFFFC, 0x13C, 0x8040]
        places += [offset_of("TIME_SET_LO"), offset_of("TIME_SET_HI")] * 2
        by_offset = {r.offset: r for r in REGISTERS}
        for _ in range(steps):
            offset = rnd.choice(places)
            r = by_offset.get(offset)
            low = rnd.randrange(4) if rnd.random() < .2 else 0
            if rnd.random() < .6:
                data, strb = rnd.getrandbits(32), rnd.choice([15, 15, rnd.randrange(16)])
                response = await bench.write(ctx, offset | low, data, strb)
                assert response == (OKAY if r and r.access != "ro" else SLVERR), hex(offset)
                if r and r.access == "rw":
                    mask = sum(0xFF << 8 * i for i in range(4) if strb >> i & 1 or not bytes_matter)
                    store[offset] = store[offset] & ~mask | data & mask
                elif r and r.access == "wo" and strb:
                    events.append((r.name, data))
                for at, value in store.items():
                    assert ctx.get(getattr(dut, f"rw_{by_offset[at].name.lower()}")) == value
                assert bench.events == events
            else:
                value, response = await bench.read(ctx, offset | low)
                if r is None:
                    assert (value, response) == (0, SLVERR)
                else:
                    assert response == OKAY
                    if r.access != "ro":
                        assert value == store.get(offset, 0)
                    elif r.name in ("STATUS", "IRQ_STATUS", "COMMAND_STATUS"):
                        assert value == ctx.get(getattr(dut, f"ro_{r.name.lower()}"))
        assert events
    return process


@pytest.mark.parametrize("seed, takes, pauses", [(1, 1, 0), (2, .3, .5), (3, .05, .2), (4, .8, .8)])
def test_random_traffic(seed, takes, pauses):
    bench = Bench(seed=seed, takes=takes, pauses=pauses)
    bench.run(random_traffic(bench, 200))


def test_byte_strobes_are_noticed():
    """Negative control: a model that ignores strobes must disagree."""
    bench = Bench()
    with pytest.raises(AssertionError):
        bench.run(random_traffic(bench, 200, bytes_matter=False))


def test_a_waiting_event_stops_no_read():
    bench = Bench(takes=0)

    async def process(ctx):
        axi = bench.dut.axi
        for signal, value in ((axi.awaddr, 0x140), (axi.awvalid, 1), (axi.wdata, 7), (axi.wstrb, 15), (axi.wvalid, 1),
                              (axi.bready, 1)):
            ctx.set(signal, value)
        await ctx.tick()
        ctx.set(axi.awaddr, 0x40)       # the next write knocks already
        for _ in range(5):
            assert await bench.read(ctx, 0) == (ID_WORD, OKAY)
            assert not ctx.get(axi.bvalid) and not ctx.get(axi.awready) and not ctx.get(axi.wready)
            assert ctx.get(bench.dut.wo_command.valid) and ctx.get(bench.dut.wo_command.data) == 7
        assert ctx.get(bench.dut.rw_ctrl) == 0
        bench.takes = 1
        for _ in range(12):
            await ctx.tick()
        assert bench.events == [("COMMAND", 7)] and ctx.get(bench.dut.rw_ctrl) == 7
    bench.run(process)


def test_time_is_of_one_instant():
    bench = Bench(pauses=.3)
    start = (7 << 32) - 900
    cycle = 0

    async def clock(ctx):
        nonlocal cycle
        while True:
            ctx.set(bench.dut.time, start + cycle)
            await ctx.tick()
            cycle += 1

    async def process(ctx):
        last = 0
        for _ in range(100):
            before = start + cycle
            low, _ = await bench.read(ctx, offset_of("TIME_LO"))
            after = start + cycle
            for _ in range(bench.rnd.randrange(3)):
                await bench.read(ctx, offset_of("STATUS"))
            high, _ = await bench.read(ctx, offset_of("TIME_HI"))
            assert before <= high << 32 | low <= after and last < (high << 32 | low)
            last = high << 32 | low
        assert last >> 32 == 7
    bench.run(process, clock)


def test_counter_words_are_of_one_instant():
    """The bank's counters move from 0xFFFFFFFF to 0x1_00000000 between the two reads."""
    bench = Bench(pauses=.2)
    value = 0x0000_0005_FFFF_FF00

    async def feed(ctx):
        nonlocal value
        line = [0] * RegisterBank.COUNTER_LATENCY
        while True:
            line.append((value << 6 | ctx.get(bench.dut.counter_addr)) & (1 << 64) - 1)
            ctx.set(bench.dut.counter_data, line.pop(0))
            await ctx.tick()
            value += 1

    async def process(ctx):
        last = 0
        for _ in range(120):
            index = bench.rnd.randrange(64)
            low, ok = await bench.read(ctx, COUNTER_BASE + 8 * index)
            high, ok2 = await bench.read(ctx, COUNTER_BASE + 8 * index + 4)
            whole = high << 32 | low
            assert ok == ok2 == OKAY and whole & 63 == index and last < whole >> 6 <= value
            last = whole >> 6
        for offset in (COUNTER_BASE - 4, COUNTER_BASE + 8 * 64):
            assert await bench.read(ctx, offset) == (0, SLVERR)
            assert await bench.write(ctx, offset, 1) == SLVERR
        assert await bench.write(ctx, COUNTER_BASE, 1) == SLVERR
    bench.run(process, feed)


def test_with_the_counters_themselves():
    bench = Bench()
    m = Module()
    m.submodules.bank = bench.dut
    m.submodules.counters = bank = Counters(bench.cfg)
    m.d.comb += [bank.read.addr.eq(bench.dut.counter_addr), bench.dut.counter_data.eq(bank.read.data)]
    assert Counters.READ_LATENCY <= RegisterBank.COUNTER_LATENCY

    async def process(ctx):
        while ctx.get(bank.clearing):
            await ctx.tick()
        for index in (3, 3, 3, 20, 0):
            ctx.set(bank.verdict, {"valid": 1, "index": index})
            ctx.set(bank.event_drop_overflow, 1)
            ctx.set(bank.placed_bytes, {"valid": 1, "bytes": 1000})
            await ctx.tick()
        ctx.set(bank.verdict.valid, 0)
        ctx.set(bank.event_drop_overflow, 0)
        ctx.set(bank.placed_bytes.valid, 0)
        for _ in range(bank.SETTLE):
            await ctx.tick()
        for name, want in (("drop_checksum", 3), ("drop_overflow", 6), ("frames_placed", 1), ("placed_bytes", 5000),
                           ("completions", 0)):
            assert await bench.read(ctx, offset_of(name)) == (want, OKAY), name
            assert await bench.read(ctx, offset_of(name) + 4) == (0, OKAY)
    bench.run(process, top=m)


def test_reset_in_the_middle():
    """Reset while a write waits and a response is out: the bank forgets both and its registers are as at first."""
    bench = Bench(takes=0)
    reset = Signal()

    async def process(ctx):
        axi = bench.dut.axi
        assert await bench.write(ctx, offset_of("PKEY"), 0x1234) == OKAY
        for signal, value in ((axi.awaddr, 0x200), (axi.awvalid, 1), (axi.wdata, 7), (axi.wstrb, 15), (axi.wvalid, 1),
                              (axi.araddr, 0), (axi.arvalid, 1)):
            ctx.set(signal, value)
        await ctx.tick().repeat(12)
        assert ctx.get(axi.rvalid) and ctx.get(bench.dut.wo_rq_doorbell.valid)
        for signal in (axi.awvalid, axi.wvalid, axi.arvalid):
            ctx.set(signal, 0)
        ctx.set(reset, 1)
        await ctx.tick()
        bench.held.clear()
        ctx.set(reset, 0)
        await ctx.tick()
        assert not ctx.get(axi.rvalid) and not ctx.get(bench.dut.wo_rq_doorbell.valid) and not ctx.get(axi.bvalid)
        assert ctx.get(bench.dut.rw_pkey) == 0xFFFF
        bench.takes = 1
        assert await bench.read(ctx, offset_of("PKEY")) == (0xFFFF, OKAY)
        assert await bench.write(ctx, offset_of("CQ_DOORBELL"), 99) == OKAY
        assert bench.events == [("CQ_DOORBELL", 99)]

    bench.run(process, top=ResetInserter(reset)(bench.dut))
