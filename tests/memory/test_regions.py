"""Regions and the cuckoo bookkeeping, against plain integers."""

import random

import pytest
from amaranth.sim import Simulator

from optinic.abi.regions import POLYNOMIALS, RegionError, RegionSlots, region_row, row_masks
from optinic.abi.verdicts import REASON
from optinic.config import preset
from optinic.memory.regions import Regions

TOP = 1 << 64


def judge(entry, va, length, pd, need, *, carry=True):
    """The verdict on one access by the rule of the host interface; `entry` is None without a valid one."""
    if length == 0:
        return "none"
    if entry is None:
        return "rkey"
    if pd != entry["pd"]:
        return "pd"
    if need & ~entry["access"]:
        return "access"
    if carry:
        good = entry["va"] <= va and va + length <= min(entry["va"] + entry["length"], TOP)
    else:   # the mistake that the negative control must catch
        good = entry["va"] <= va and (va + length) % TOP <= (entry["va"] + entry["length"]) % TOP
    return "none" if good else "bounds"


# -- software side --------------------------------------------------------------------------------

def rank(vectors):
    pivots = {}
    for v in vectors:
        while v and v.bit_length() in pivots:
            v ^= pivots[v.bit_length()]
        if v:
            pivots[v.bit_length()] = v
    return len(pivots)


@pytest.mark.parametrize("bits", sorted(POLYNOMIALS))
def test_hash_properties(bits):
    rows = 1 << bits
    both = [region_row(0, 1 << i, rows) | region_row(1, 1 << i, rows) << bits for i in range(32)]
    for first in range(32 - bits + 1):
        for shift in (0, bits):
            window = [(v >> shift) & rows - 1 for v in both[first:first + bits]]
            assert rank(window) == bits, "a counter in the key does not reach every row"
    for first in range(32 - 2 * bits + 1):
        assert rank(both[first:first + 2 * bits]) == 2 * bits, "two keys nearby share both rows"
    rnd = random.Random(bits)
    for bank in (0, 1):
        masks = row_masks(bank, rows)
        for key in [0, 1, 0xFFFFFFFF, *(rnd.getrandbits(32) for _ in range(50))]:
            parity = sum((bin(key & mask).count("1") & 1) << j for j, mask in enumerate(masks))
            assert parity == region_row(bank, key, rows) < rows


class Card:
    """The slots as the card sees them, checked after every single write."""

    def __init__(self, num_regions):
        self.rows, self.slots = num_regions // 2, {}

    def finds(self, key):
        return any(self.slots.get((bank, region_row(bank, key, self.rows))) == key for bank in (0, 1))


@pytest.mark.parametrize("num_regions, shift", [(8, 0), (64, 8), (512, 8), (1024, 16), (1024, 0)])
def test_counted_keys_fill_every_slot(num_regions, shift):
    slots = RegionSlots(num_regions)
    for index in random.Random(1).sample(range(num_regions), num_regions):
        slots.insert(index << shift | 0x5A & (1 << shift) - 1)
    assert len(slots) == num_regions
    with pytest.raises(RegionError, match="no room"):
        slots.insert(num_regions << shift)


@pytest.mark.parametrize("seed", range(8))
def test_random_keys(seed):
    """Random keys to 45 % load, then coming and going: no key is ever lost, and a refusal is a true one."""
    num_regions, rnd = 512, random.Random(seed)
    print("seed", seed)
    slots, card = RegionSlots(num_regions), Card(num_regions)
    refused = 0
    for step in range(600):
        if len(slots) < 0.45 * num_regions and (step < 300 or rnd.random() < .5):
            key = rnd.getrandbits(32)
            before = dict(card.slots)
            try:
                writes = slots.insert(key)
            except RegionError:
                refused += 1
                assert overfull(key, slots), "refused although the keys have an arrangement"
                continue
            assert writes[-1][1] == key
            for slot, moved in writes:
                card.slots[slot] = moved
                for other in [k for k in before.values() if k is not None][:40] + [m for _, m in writes[:-1]]:
                    assert card.finds(other)
            assert card.finds(key)
        else:
            key = rnd.choice(sorted(slots.keys()))
            card.slots[slots.remove(key)] = None
            assert not card.finds(key)
        if step == 299:
            assert len(slots) >= 0.45 * num_regions - 1
    assert refused < 20
    for key in slots.keys():
        assert card.slots[slots.slot(key)] == key


def overfull(key, slots):
    """By counting: does the part of the graph that `key` belongs to have more keys than slots?"""
    keys = {key, *slots.keys()}
    part, size = set(slots.candidates(key)), 0
    while len(part) != size:
        size = len(part)
        for k in keys:
            if part & set(slots.candidates(k)):
                part |= set(slots.candidates(k))
    return sum(1 for k in keys if slots.candidates(k)[0] in part) > len(part)


def test_slot_errors():
    slots = RegionSlots(8)
    slots.insert(7)
    with pytest.raises(RegionError, match="already"):
        slots.insert(7)
    with pytest.raises(RegionError, match="is not in"):
        slots.remove(8)
    with pytest.raises(RegionError, match="32 bits"):
        slots.insert(1 << 32)
    with pytest.raises(RegionError, match="powers of two"):
        RegionSlots(12)
    assert slots.remove(7) in slots.candidates(7) and len(slots) == 0


# -- hardware -------------------------------------------------------------------------------------

class Bench:
    """Feeds one request a cycle and compares every answer with the entries as they were when the request was given."""

    def __init__(self, name="tiny", judge=judge, seed=1):
        self.cfg = preset(name)
        self.dut = Regions(self.cfg)
        self.rnd = random.Random(seed)
        self.judge, self.seen = judge, {}
        self.slots = {}             # (bank, row) -> entry
        self.pending = []           # [(cycle, expected)]
        self.cycle = 0
        print("seed", seed)

    def lookup(self, key):
        rows = self.cfg.num_regions // 2
        for bank in (0, 1):
            entry = self.slots.get((bank, region_row(bank, key, rows)))
            if entry and entry["valid"] and entry["key"] == key:
                return entry

    def request(self, ctx, key, va, length, pd, need):
        entry = self.lookup(key)
        reason = self.judge(entry, va, length, pd, need)
        addr = (va + entry["delta"]) % TOP if reason == "none" and length else None
        self.pending.append((self.cycle + self.dut.LATENCY, REASON[reason], addr))
        ctx.set(self.dut.i, {"key": key, "va": va, "len": length, "pd": pd, "need": need})

    async def tick(self, ctx):
        await ctx.tick()
        self.cycle += 1
        ctx.set(self.dut.set.en, 0)
        if self.pending and self.pending[0][0] == self.cycle:
            _, reason, addr = self.pending.pop(0)
            assert ctx.get(self.dut.o.reason) == reason, self.cycle
            if addr is not None:
                assert ctx.get(self.dut.o.addr) == addr
            self.seen[reason] = self.seen.get(reason, 0) + 1

    def set(self, ctx, slot, entry):
        """Comes before the request of its cycle, which sees the new entry."""
        bank, row = slot
        ctx.set(self.dut.set, {"en": 1, "slot_bank": bank, "slot_row": row, "entry": entry})
        self.slots[slot] = entry

    async def start(self, ctx):
        while ctx.get(self.dut.clearing):
            await ctx.tick()

    def entry(self, key, **fields):
        rnd = self.rnd
        length = rnd.choice([rnd.randrange(1, 100), rnd.randrange(1 << 20), rnd.getrandbits(64), TOP - 1])
        va = rnd.choice([0, rnd.getrandbits(64), TOP - rnd.randrange(1, 300), rnd.getrandbits(20)])
        if rnd.random() < .8:
            length = min(length, TOP - va)
        length %= TOP
        return {"key": key, "va": va, "length": length, "delta": rnd.getrandbits(64), "pd": rnd.choice([1, 2, 0x8001]),
                "access": rnd.getrandbits(4), "valid": 1} | fields

    def random_request(self, ctx, keys):
        rnd = self.rnd
        key = rnd.choice(keys) if keys and rnd.random() < .95 else rnd.getrandbits(32)
        e = self.lookup(key) or self.entry(key)
        length = rnd.choice([0, 1, 2, rnd.randrange(self.cfg.mtu_max + 1), self.cfg.mtu_max])
        end = e["va"] + e["length"]
        va = rnd.choice([e["va"], e["va"] - 1, e["va"] + 1, end - length, end - length + 1, end - length - 1, end,
                         TOP - length, TOP - length + 1, TOP - 1, 0, e["va"] + rnd.randrange(e["length"] + 1),
                         rnd.getrandbits(64)]) % TOP
        pd = e["pd"] if rnd.random() < .9 else rnd.getrandbits(16)
        need = e["access"] & rnd.getrandbits(4) if rnd.random() < .9 else rnd.getrandbits(4)
        self.request(ctx, key, va, length, pd, need)

    def run(self, process):
        sim = Simulator(self.dut)
        sim.add_clock(4e-9)
        sim.add_testbench(process)
        sim.run()


def random_run(bench, cycles):
    async def process(ctx):
        await bench.start(ctx)
        placed = RegionSlots(bench.cfg.num_regions)
        queue, quiet = [], 0
        for _ in range(cycles):
            quiet += 1
            if not queue and bench.rnd.random() < .3:
                keys = sorted(placed.keys())
                if keys and (len(keys) > .8 * bench.cfg.num_regions or bench.rnd.random() < .3):
                    key = bench.rnd.choice(keys)
                    old = bench.lookup(key)
                    queue = [(placed.remove(key), old | {"valid": 0})]
                else:
                    key = bench.rnd.getrandbits(32)
                    entries = {k: bench.lookup(k) for k in keys} | {key: bench.entry(key)}
                    try:
                        queue = [(slot, entries[k]) for slot, k in placed.insert(key)]
                    except RegionError:
                        pass
            if queue and quiet >= bench.dut.SET_INTERVAL:
                bench.set(ctx, *queue.pop(0))
                quiet = 0
            bench.random_request(ctx, sorted(placed.keys()))
            await bench.tick(ctx)
        assert {REASON[n] for n in ("none", "rkey", "pd", "access", "bounds")} <= bench.seen.keys()
    return process


@pytest.mark.parametrize("name, seed, cycles", [("tiny", 1, 6000), ("tiny", 2, 3000), ("scale10k", 3, 2000)])
def test_random_requests_every_cycle(name, seed, cycles):
    bench = Bench(name, seed=seed)
    bench.run(random_run(bench, cycles))


def test_bounds_without_carry_is_noticed():
    """Negative control: an end that wraps at 2^64 must not pass for the rule."""
    bench = Bench(judge=lambda *a: judge(*a, carry=False))
    with pytest.raises(AssertionError):
        bench.run(random_run(bench, 3000))


def test_every_edge():
    """One region at a time: each access one byte either side of each limit, at both ends of the address space."""
    bench = Bench("small")
    regions = [(0, 1), (0, 4096), (0, TOP - 1), (1, TOP - 1), (TOP - 1, 1), (TOP - 4096, 4096), (TOP - 4097, 4096),
               (0x7FFF_FFFF_FFFF_FF80, 0x100), (0xFFFF_FFFF, 2), (5, 0), (TOP - 64, 128)]

    async def process(ctx):
        await bench.start(ctx)
        key = 0xFEDC_BA98
        for va, length in regions:
            slot = (bench.rnd.randrange(2),)
            slot += (region_row(slot[0], key, bench.cfg.num_regions // 2),)
            entry = dict(key=key, va=va, length=length, delta=(0x1234_5678_9000 - va) % TOP, pd=0xFFFF, access=0b0010, valid=1)
            bench.set(ctx, slot, entry)
            await bench.tick(ctx)
            for size in (0, 1, 63, 64, 4096):
                for at in (va, va + length, va + length - size, TOP - size, 0):
                    for near in (-1, 0, 1):
                        bench.request(ctx, key, (at + near) % TOP, size, 0xFFFF, 0b0010)
                        await bench.tick(ctx)
            for pd, need in ((0x7FFF, 2), (0xFFFF, 1), (0xFFFF, 3), (0xFFFF, 0), (0x7FFF, 4), (0xFFFF, 0xF)):
                bench.request(ctx, key, va, 1, pd, need)
                await bench.tick(ctx)
            for bit in range(32):
                bench.request(ctx, key ^ 1 << bit, va, 1, 0xFFFF, 2)
                await bench.tick(ctx)
            bench.set(ctx, slot, entry | {"valid": 0})
            await bench.tick(ctx)
            bench.request(ctx, key, va, 1, 0xFFFF, 2)
            for _ in range(bench.dut.SET_INTERVAL):
                await bench.tick(ctx)
    bench.run(process)


def test_reset_forgets_every_region():
    bench = Bench()

    async def process(ctx):
        await bench.start(ctx)
        keys = [3, 0x1234_5678, 0xFFFF_FFFF]
        for key in keys:
            for bank in (0, 1):
                bench.set(ctx, (bank, region_row(bank, key, bench.cfg.num_regions // 2)),
                          bench.entry(key, va=0, length=TOP - 1, pd=1, access=15))
                for _ in range(bench.dut.SET_INTERVAL):
                    await bench.tick(ctx)
        for key in keys:
            bench.request(ctx, key, 4, 4, 1, 15)
            await bench.tick(ctx)
        for _ in range(bench.dut.LATENCY):
            await bench.tick(ctx)
        assert bench.seen[0] == 3
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        await ctx.tick()
        assert ctx.get(bench.dut.clearing)
        await bench.start(ctx)
        bench.slots.clear()
        for key in keys:
            bench.request(ctx, key, 4, 4, 1, 15)
            await bench.tick(ctx)
        for _ in range(bench.dut.LATENCY):
            await bench.tick(ctx)
        assert bench.seen[REASON["rkey"]] == 3

    from amaranth.hdl import ResetInserter, Signal
    reset = Signal()
    sim = Simulator(ResetInserter(reset)(bench.dut))
    sim.add_clock(4e-9)
    sim.add_testbench(process)
    sim.run()
