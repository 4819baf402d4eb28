"""The region check, invariant 1: whatever is in the table, no refusal means that every byte is inside the entry.

`bounds`: the tables' answers are free, so this holds for any contents and any size of the tables; a fixed-latency
pipeline, so the induction is complete. `mixture`: with real contents, a key is never answered with another key's body,
however sets and requests fall together.
"""

from amaranth.hdl import Assert, Assume, Cat, Const, Cover, Mux, Signal
import pytest

from optinic.abi.verdicts import REASON
from optinic.config import preset
from optinic.memory import regions

from .harness import Check, free, never_reset, prove
from .mutate import mutant
from .tables import AnyTable, OpenTable, built, later

CFG = preset("tiny", num_regions=8)
KEY_READ, BODY_READ = 3, 6      #: cycles from a request to the tables' answers


def bounds_check(module=regions, covers=False):
    def build(m, free_):
        dut, m.submodules.dut, (*keys, body) = built(module, "Regions", AnyTable, CFG)
        free(m, free_, dut, "dut")
        never_reset(m)
        for n, table in enumerate((*keys, body)):
            m.d.comb += table.chosen.as_value().eq(free_(len(table.chosen.as_value()), f"chosen{n}"))
        req = later(m, dut.i, dut.LATENCY, "request")
        found = [later(m, t.chosen, dut.LATENCY - KEY_READ, f"key{n}") for n, t in enumerate(keys)]
        entry = later(m, body.chosen, dut.LATENCY - BODY_READ, "entry")
        rows = [later(m, t.read0_addr, dut.LATENCY - KEY_READ + 2, f"row{n}") for n, t in enumerate(keys)]
        where = later(m, body.read0_addr, dut.LATENCY - BODY_READ + 2, "where")
        age = Signal(range(dut.LATENCY + 1))
        m.d.sync += age.eq(Mux(age == dut.LATENCY, age, age + 1))
        real = age == dut.LATENCY           # the request is one, not what the registers began with
        hits = [t.valid & (t.key == req.key) for t in found]
        end, region_end = Signal(65), Signal(65)
        m.d.comb += [end.eq(req.va + req.len), region_end.eq(entry.va + entry.length)]
        inside = (req.va >= entry.va) & (end <= region_end) & (end <= 1 << 64)
        accepted = real & (dut.o.reason == REASON["none"]) & (req.len != 0)
        for promise in (
            hits[0] | hits[1], where == Mux(hits[0], rows[0], Cat(rows[1], Const(1, 1))),
            req.pd == entry.pd, (req.need & ~entry.access) == 0, inside,
            dut.o.addr == (req.va + entry.delta)[:64],
        ):
            m.d.comb += Assert(~accepted | promise)
        # and what is refused is refused rightly
        for reason, wrong in (("rkey", ~(hits[0] | hits[1])), ("pd", req.pd != entry.pd),
                              ("access", (req.need & ~entry.access) != 0), ("bounds", ~inside)):
            m.d.comb += Assert(~(real & (dut.o.reason == REASON[reason])) | wrong)
        m.d.comb += Assert(~real | (req.len != 0) | (dut.o.reason == REASON["none"]))
        if covers:
            m.d.comb += [
                Cover(accepted & (end == 1 << 64) & (req.len == 17), "ends with the last address there is"),
                Cover(accepted & (req.va == entry.va) & (req.len == entry.length), "the whole region"),
                Cover(real & (dut.o.reason == REASON["bounds"]) & (end == (1 << 64) + 1) & (entry.va == 0)
                      & (entry.length == (1 << 64) - 1), "one byte behind the last address"),
                Cover(accepted & ~hits[0], "found in the second bank"),
            ]
    return Check(build)


def mixture_check(module=regions):
    def build(m, free_):
        dut, m.submodules.dut, _ = built(module, "Regions", OpenTable, CFG)
        free(m, free_, dut, "dut")
        never_reset(m)
        since = Signal(range(dut.SET_INTERVAL), init=dut.SET_INTERVAL - 1)
        m.d.sync += since.eq(Mux(dut.set.en, 0, Mux(since == dut.SET_INTERVAL - 1, since, since + 1)))
        m.d.comb += [
            Assume(~dut.set.en | (since == dut.SET_INTERVAL - 1)),
            Assume(dut.set.entry.delta == dut.set.entry.key),       # every body says whose it is
        ]
        req = later(m, dut.i, dut.LATENCY, "request")
        age = Signal(range(dut.LATENCY + 1))
        m.d.sync += age.eq(Mux(age == dut.LATENCY, age, age + 1))
        accepted = (age == dut.LATENCY) & (dut.o.reason == REASON["none"]) & (req.len != 0)
        m.d.comb += [Assert(~accepted | ((dut.o.addr - req.va)[:64] == req.key)),
                     Cover(accepted & (req.key == 5), "an entry is used")]
    return Check(build)


def test_regions_bounds():
    assert prove(bounds_check(), 9, "prove", name="regions_bounds")


def test_regions_reach_their_states():
    result = prove(bounds_check(covers=True), 10, "cover", name="regions")
    assert result and len(result.reached) == 4, result.log
    assert prove(mixture_check(), 14, "cover", name="regions_mixture")


def test_regions_mixture():
    assert prove(mixture_check(), 15, name="regions_mixture")


@pytest.mark.parametrize("check, old, new", [
    (bounds_check, "offset[64] | room[64] | wraps |", "offset[64] | room[64] |"),       # runs over the end of all addresses
    (bounds_check, "offset[64] | room[64] | wraps |", "offset[64] | wraps |"),          # longer than the region
    (bounds_check, "(offset[:64] > room[:64])", "(offset[:64] > entry.length)"),        # starts inside, ends outside
    (mixture_check, "body.write_en.eq(wait[2])", "body.write_en.eq(wait[0])"),          # the body too early for its key
], ids=["wrap", "length", "end", "mixture"])
def test_regions_broken(check, old, new):
    assert not prove(check(mutant(regions.__name__, old, new)), 15, name=f"regions_broken_{check.__name__}")
