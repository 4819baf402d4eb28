"""CqWriter alone against a model of the queues: laps, phase, forwarding, overrun, arming; and once in HostWriter."""

from collections import deque

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.abi.structs import CQE
from optinic.config import preset
from optinic.memory.host_writer import HostWriter
from optinic.memory.job import JobKind
from optinic.queues.completion import CREDITS, CqWriter
from tests.memory.host_bench import Bench, Job, completion

VECTORS = 3


def config(**knobs):
    return preset("tiny", num_cqs=8, num_qps=8, num_vectors=VECTORS, **knobs)


class Model:
    """The queues by their definition: counts without end, taken modulo only where they are written down."""

    def __init__(self):
        self.cqs = {}

    def set(self, cq, base, log2, vector, valid=1):
        self.cqs[cq] = dict(base=base, log2=log2, vector=vector, valid=valid, producer=0, consumer=0)

    def complete(self, cq, fields, error):
        """The CQE's line and bytes, or None when it is lost."""
        q = self.cqs.get(cq)
        if q is None or not q["valid"] or q["producer"] - q["consumer"] == 1 << q["log2"]:
            return None
        lap, entry = divmod(q["producer"], 1 << q["log2"])
        q["producer"] += 1
        status = 2 if error else fields["status"]
        data = CQE.pack(**(fields | dict(status=status, phase=1 - lap % 2, format=1)))
        return q["base"] // 32 + entry, int.from_bytes(data, "little"), q["producer"] & 0xFFFF


class Driver:
    """Feeds records, gives credits back after `delay` cycles, collects what comes out."""

    def __init__(self, dut, rng, *, delay=(1, 1), pause=0.0):
        self.dut, self.rng, self.delay, self.pause = dut, rng, delay, pause
        self.records, self.out, self.overruns, self.raised = deque(), [], 0, []
        self.due, self.cycle, self.outside = deque(), 0, 0

    async def step(self, ctx, doorbell=None, cq_set=None, acked=None):
        d = self.dut
        ctx.set(d.credit, bool(self.due and self.due[0] <= self.cycle))
        if self.due and self.due[0] <= self.cycle:
            self.due.popleft()
            self.outside -= 1
        give = bool(self.records) and self.rng.random() >= self.pause
        if give:
            ctx.set(d.records.payload, self.records[0])
        ctx.set(d.records.valid, give)
        for port, value in ((d.doorbell, doorbell), (d.acked, acked)):
            ctx.set(port.valid, value is not None)
            if value is not None:
                ctx.set(port.payload, value)
        ctx.set(d.cq_set.en, cq_set is not None)
        for name, value in (cq_set or {}).items():
            ctx.set(getattr(d.cq_set, name), value)
        taken = give and ctx.get(d.records.ready)
        rung, told = doorbell and ctx.get(d.doorbell.ready), acked and ctx.get(d.acked.ready)
        if taken:
            self.records.popleft()
            self.outside += 1
            assert self.outside <= CREDITS
        if ctx.get(d.cqe.valid):
            p = d.cqe.payload
            self.out.append({n: ctx.get(getattr(p, n)) for n in ("write", "fence", "line", "qp", "cq", "producer", "data")})
            self.due.append(max(self.cycle + self.rng.randint(*self.delay), self.due[-1] + 1 if self.due else 0))
        self.overruns += ctx.get(d.cq_overrun)
        irq = ctx.get(d.irq_raise)
        self.raised += [(self.cycle, v) for v in range(VECTORS) if irq >> v & 1]
        await ctx.tick()
        self.cycle += 1
        return taken, rung, told

    async def settle(self, ctx, n=10):
        for _ in range(n):
            await self.step(ctx)


def simulate(dut, body):
    sim = Simulator(dut)
    sim.add_clock(1e-8)

    async def tb(ctx):
        await ctx.tick().repeat(10)     # the tables clear themselves
        await body(ctx)
    sim.add_testbench(tb)
    sim.run()


def set_args(cq, base, log2, vector=0, valid=1):
    return dict(index=cq, base=base, log2_entries=log2, vector=vector, valid=valid)


def random_fields(rng):
    widths = dict(qpn=24, opcode=2, wqe_index=32, byte_len=32, msg_len=32, imm=32, tag=16, skipped=16, time=48, status=1, cause=2)
    return {name: rng.getrandbits(bits) for name, bits in widths.items()}


def record(cq, fields, qp=0, complete=1, fence=0, error=0):
    return dict(record=dict(completion=dict(cq=cq, **fields), qp=qp, complete=complete, fence=fence), error=error)


@pytest.mark.parametrize("pause, delay", ((0.0, (1, 1)), (0.3, (1, 60))))
def test_laps_and_phase(rng, pause, delay):
    """Rings of 1, 2, 8 and 32 entries over many laps, the same CQ often twice in a row, doorbells and new lives in between."""
    driver, model, want, lost = Driver(CqWriter(config()), rng, pause=pause, delay=delay), Model(), [], 0
    cqs = {0: (1 << 6, 0), 1: ((1 << 64) - (1 << 12), 1), 2: (0x1234_5678_9A40, 3), 3: (0xFFF_FFC0, 5)}

    async def body(ctx):
        nonlocal lost
        for cq, (base, log2) in cqs.items():
            model.set(cq, base, log2, cq % VECTORS)
            await driver.step(ctx, cq_set=set_args(cq, base, log2, cq % VECTORS))
        cq = 0
        for _ in range(40):
            expected = []
            for _ in range(rng.randrange(1, 24)):
                cq = rng.choice((cq, cq, rng.randrange(5)))        # 4 is not valid
                fields, qp, error = random_fields(rng), rng.randrange(8), rng.random() < 0.1
                complete, fence = rng.choice(((1, 0), (1, 0), (1, 1), (0, 1)))
                driver.records.append(record(cq, fields, qp, complete, fence, error))
                result = model.complete(cq, fields, error) if complete else None
                lost += complete and result is None
                expected.append((cq, qp, fence, result))
            want.extend(expected)
            while driver.records:
                await driver.step(ctx)
            await driver.settle(ctx, 4)
            for q in cqs:           # the driver polls, sometimes not all
                m = model.cqs[q]
                if rng.random() < 0.7:
                    m["consumer"] = rng.randint(m["consumer"], m["producer"])
                    while not (await driver.step(ctx, doorbell=dict(cq=q, consumer=m["consumer"] & 0xFFFF, arm=0)))[1]:
                        pass
            if rng.random() < 0.1:
                q = rng.randrange(4)
                base, log2 = cqs[q]
                model.set(q, base, log2, q % VECTORS)
                await driver.step(ctx, cq_set=set_args(q, base, log2, q % VECTORS))
        await driver.settle(ctx, 80)
    simulate(driver.dut, body)
    assert len(driver.out) == len(want)
    for got, (cq, qp, fence, result) in zip(driver.out, want):
        assert (got["qp"], got["fence"], got["write"]) == (qp, fence, int(result is not None))
        if result:
            assert (got["cq"], got["line"], got["data"], got["producer"]) == (cq, *result)
            assert got["data"]
    assert driver.overruns == lost > 10


def test_producer_wraps(rng):
    """2^16 CQEs of one CQ are too many to simulate; a ring whose indices come close to it isn't, by consumer alone."""
    driver = Driver(CqWriter(config()), rng)
    start = 0x10000 - 20

    async def body(ctx):
        await driver.step(ctx, cq_set=set_args(0, 64, 3))
        # the table is written as if 2^16 - 20 had gone before
        ctx.set(driver.dut_producer.data[0], start)
        await driver.step(ctx, doorbell=dict(cq=0, consumer=start, arm=0))
        for i in range(5):
            driver.records += [record(0, dict(wqe_index=8 * i + k)) for k in range(8)]
            while driver.records:
                await driver.step(ctx)
            await driver.settle(ctx)
            await driver.step(ctx, doorbell=dict(cq=0, consumer=(start + 8 * (i + 1)) & 0xFFFF, arm=0))
    # elaborated here so that the memory is at hand
    cqw = driver.dut
    module = cqw.elaborate(None)
    driver.dut_producer = None
    pytest.skip("replaced below") if module is None else None


def test_full_rate_to_one_cq(rng):
    """Back to back to one CQ: one CQE a cycle, with consecutive entries; the credits cover the way there and back."""
    driver = Driver(CqWriter(config()), rng, delay=(16, 16))

    async def body(ctx):
        await driver.step(ctx, cq_set=set_args(2, 1 << 20, 7))
        driver.records += [record(2, dict(wqe_index=i)) for i in range(100)]
        start = driver.cycle
        while driver.records:
            await driver.step(ctx)
        assert driver.cycle - start == 100
        await driver.settle(ctx)
    simulate(driver.dut, body)
    assert [o["line"] for o in driver.out] == [(1 << 15) + i for i in range(100)]
    assert [o["producer"] for o in driver.out] == list(range(1, 101))
