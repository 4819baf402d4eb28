"""Arrival maps: which byte of which map belongs to a record, and that it stands beside admission's result."""

from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator
import pytest

from optinic.abi.registers import MTU_CODE
from optinic.config import preset
from optinic.queues.receive import recv_wqe_layout
from optinic.transport.xp import arrival
from optinic.transport.xp.admission import Admission
from optinic.transport.xp.arrival import ArrivalMaps
from optinic.transport.xp.records import WorkKind
from optinic.transport.xp.resolve import Resolve
from tests.formal.mutate import mutant

CFG = preset("tiny", arrival_map=True)
TOP = 1 << 64


def wanted(entry, r):
    """(place in the frame, bus address) of the byte for record `r`, or None."""
    if entry is None or r["kind"] != WorkKind.FRAME or not r["tracked"] or r["is_uc"] or not r["pay_len"]:
        return None
    pieces, rows, mtu, base = entry
    piece = r["offset"] // mtu
    if piece >= pieces:
        return None
    header = 16 + 16 * r["is_write"] + 4 * r["has_imm"]         # XP header and what follows it, up to the payload
    return r["pay_off"] - header + 7, (base + r["seq"] % rows * pieces + piece) % TOP


def random_entry(rng):
    if rng.random() < 0.2:
        return None
    base = rng.choice((64 * rng.randrange(1 << 58), 0, TOP - 64, (1 << 32) - 64))
    return 1 << rng.randrange(25), 1 << rng.randrange(16), rng.choice(list(MTU_CODE)), base


def random_record(rng, entry, qp):
    pieces, _, mtu, _ = entry or (16, 16, 256, 0)
    edge = pieces * mtu
    offset = rng.choice((0, 1, mtu - 1, mtu, edge - 1, edge, rng.randrange(edge), rng.randrange(2 * edge), (1 << 32) - 1,
                         rng.getrandbits(32))) % (1 << 32)
    return dict(kind=rng.choice((WorkKind.FRAME,) * 6 + tuple(WorkKind)), qp=qp, tracked=int(rng.random() < 0.9),
                is_uc=int(rng.random() < 0.1), is_write=rng.randrange(2), has_imm=rng.randrange(2), pay_off=rng.randrange(70, 115),
                pay_len=rng.choice((0, 1, 4, CFG.mtu_max)), seq=rng.choice((0, 1, 255, 256, (1 << 32) - 1, rng.getrandbits(32))),
                offset=offset)


def run(rng, cls=ArrivalMaps, count=1500, cfg=CFG):
    """Records of all QPs, with pauses; returns how many marks there were, and compares each with what is wanted."""
    dut, entries, marks = cls(cfg), [random_entry(rng) for _ in range(cfg.num_qps)], 0

    async def bench(ctx):
        nonlocal marks
        while ctx.get(dut.clearing):
            await ctx.tick()
        for qp, entry in enumerate(entries):
            e = dut.set.entry
            ctx.set(dut.set.en, 1), ctx.set(dut.set.qp, qp), ctx.set(e.valid, entry is not None)
            if entry:
                pieces, rows, mtu, base = entry
                for field, value in ((e.pieces, pieces.bit_length() - 1), (e.rows, rows.bit_length() - 1), (e.mtu, MTU_CODE[mtu]),
                                     (e.base, base >> 6)):
                    ctx.set(field, value)
            await ctx.tick()
        ctx.set(dut.set.en, 0)
        expected = [None] * dut.LATENCY
        for i in range(count + dut.LATENCY):
            valid = i < count and rng.random() < 0.8
            qp = rng.randrange(cfg.num_qps)
            r = random_record(rng, entries[qp], qp)
            ctx.set(dut.valid, valid)
            for name, value in r.items():
                ctx.set(getattr(dut.work, name), value)
            expected.append(wanted(entries[qp], r) if valid else None)
            now = expected.pop(0)
            mark = dut.mark
            assert ctx.get(mark.valid) == (now is not None), i
            if now:
                assert (ctx.get(mark.source), ctx.get(mark.addr)) == now
                marks += 1
            await ctx.tick()

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
    return marks


def test_every_record_has_its_byte(rng):
    assert run(rng) > 100


def test_after_reset_there_are_no_maps(rng):
    dut = ArrivalMaps(CFG)

    async def bench(ctx):
        for i in range(CFG.num_qps + 40):
            assert ctx.get(dut.clearing) == (i < CFG.num_qps)
            ctx.set(dut.valid, 1)
            for name, value in random_record(rng, None, rng.randrange(CFG.num_qps)).items():
                ctx.set(getattr(dut.work, name), value)
            assert not ctx.get(dut.mark.valid)
            await ctx.tick()

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()


def test_it_stands_beside_the_result():
    """Resolve and admission, connected as in the card, take as long as this."""
    m, work, resolve, admission = Module(), Signal(), Resolve(CFG, recv_wqe_layout()), Admission(CFG)
    m.submodules.resolve, m.submodules.admission = resolve, admission
    m.d.comb += [resolve.valid.eq(work), admission.next_qp.eq(resolve.next_qp), admission.record.eq(resolve.record),
                 admission.valid.eq(resolve.record_valid)]

    async def bench(ctx):
        ctx.set(work, 1)
        for i in range(ArrivalMaps.LATENCY + 5):
            assert ctx.get(admission.result_valid) == (i == ArrivalMaps.LATENCY), i
            await ctx.tick()
            ctx.set(work, 0)

    sim = Simulator(m)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()


@pytest.mark.parametrize("old, new", [
    ("(piece >> pieces).any()", "(piece >> pieces + 1).any()"), ("& ~w.is_uc & (w.pay_len != 0)", "& (w.pay_len != 0)"),
    ("& (w.pay_len != 0)", ""), ("XPETH.size - 7", "XPETH.size - 6"), ("(Const(1, 1) << entry.rows)", "(Const(2, 2) << entry.rows)"),
    ("_SMALLEST_MTU_BITS)):", "_SMALLEST_MTU_BITS + 1)):"), ('(pipe.get("base", stage) << 6)', '(pipe.get("base", stage) << 6)[:40]')])
def test_a_broken_one_is_found(rng, old, new):
    with pytest.raises(AssertionError):
        run(rng, mutant(arrival.__name__, old, new).ArrivalMaps)
