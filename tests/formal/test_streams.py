"""The stream contracts, proved for the small blocks that every other block is made of."""

from amaranth.hdl import Assert, Assume, Cat, Cover, Signal
import pytest

from optinic.axi.lite import AxiLiteSlave
from optinic.axi.register_bank import RegisterBank
from optinic.config import preset
from optinic.stream.contract import AxiLiteContract, StreamContract
from optinic.stream.fifo import StreamFifo
from optinic.stream.slice import StreamSlice

from .harness import Check, free, judge, opened, prove
from .mutate import mutant

FIFO, SLICE = "optinic.stream.fifo", "optinic.stream.slice"


def fifo_check(cls=StreamFifo, style="distributed", depth=2):
    return queue_check(lambda: cls(4, depth, style=style), depth + 1)


def queue_check(make, most):
    """Records go in and come out under the contract; a chosen one keeps its place, and the level is right. `most` fit in."""
    def build(m, free_):
        m.submodules.fifo = fifo = make()
        free(m, free_, fifo, "fifo")
        judge(m, StreamContract(4), fifo.i, "source", design="sink")
        judge(m, StreamContract(4), fifo.o, "sink", design="source")
        push, pop = fifo.i.valid & fifo.i.ready, fifo.o.valid & fifo.o.ready
        inside = Signal(range(most + 1))
        m.d.sync += inside.eq(inside + push - pop)
        m.d.comb += [Assert(fifo.level == inside), Assert(inside <= most), Assert(~(pop & (inside == 0)))]
        # follow one record: `before` counts those in front of it
        chosen, follow, before, value = free_(1, "chosen"), Signal(), Signal(range(most + 1)), Signal(4)
        with m.If(~follow & push & chosen):
            m.d.sync += [follow.eq(1), before.eq(inside - pop), value.eq(fifo.i.payload)]
        with m.Elif(follow & pop):
            m.d.sync += before.eq(before - 1)
            with m.If(before == 0):
                m.d.comb += Assert(fifo.o.payload == value)
                m.d.sync += follow.eq(0)
                m.d.comb += Cover(1, "the followed record comes out")
        m.d.comb += [Cover(~fifo.i.ready, "full"), Cover(pop & (inside == most), "taken from a full queue")]
    return Check(build)


@pytest.mark.parametrize("style", ["distributed", "block"])
def test_fifo(style):
    assert prove(fifo_check(style=style), 14, name=f"fifo_{style}")


def test_fifo_reaches_its_states():
    result = prove(fifo_check(), 14, "cover", name="fifo")
    assert result and len(result.reached) == 3, result.log


@pytest.mark.parametrize("name, old, new", [
    ("overflow", "(head ^ tail) != self.depth", "(head ^ tail) != self.depth + 1"),
    ("lost", "(~out_valid | self.o.ready))]\n            with m.If(take):\n                m.d.sync += [out",
     "1)]\n            with m.If(take):\n                m.d.sync += [out"),
    ("falls", "take | (out_valid & ~self.o.ready)", "take"),
])
def test_fifo_broken(name, old, new):
    assert not prove(fifo_check(mutant(FIFO, old, new).StreamFifo), 14, name=f"fifo_{name}")


def slice_check(cls=StreamSlice):
    return queue_check(lambda: cls(4), 2)


def test_slice():
    assert prove(slice_check(), 14, name="slice")
    result = prove(slice_check(), 14, "cover", name="slice")
    assert result and len(result.reached) == 3, result.log


@pytest.mark.parametrize("name, old, new", [
    ("overflow", "self.i.ready.eq(~full)", "self.i.ready.eq(1)"), ("forgets", "out.eq(spare)", "out.eq(self.i.payload)"),
    ("twice", "full.eq(0), out_valid", "out_valid"), ("lost", "with m.Elif(self.i.valid):", "with m.Elif(0):"),
])
def test_slice_broken(name, old, new):
    assert not prove(slice_check(mutant(SLICE, old, new).StreamSlice), 14, name=f"slice_{name}")


def slave_check(cls=AxiLiteSlave):
    """The AXI-Lite handshakes; the registers behind it answer within three cycles."""
    def build(m, free_):
        slave = cls()
        m.submodules.slave, inner = opened(slave)
        free(m, free_, slave, "slave")
        contract = AxiLiteContract(within=8)
        judge(m, contract, slave.axi, "axi", design="sink")
        # what the induction needs to know: the slave has at most one of each, in its registers or answered
        axi, owed = slave.axi, contract.owed
        have_aw, have_w = inner["have_aw"], inner["have_w"]
        m.d.comb += [Assert(owed.aw == have_aw + axi.bvalid), Assert(owed.w == have_w + axi.bvalid),
                     Assert(~(axi.bvalid & (have_aw | have_w))),
                     Assert(owed.ar == slave.read.valid + axi.rvalid), Assert(~(slave.read.valid & axi.rvalid))]
        for name in "write", "read":
            port = getattr(slave, name)
            waited = Signal(range(4), name=f"{name}_waited")
            m.d.sync += waited.eq(0)
            with m.If(port.valid & ~port.ready):
                m.d.sync += waited.eq(waited + 1)
                m.d.comb += Assume(waited != 3)
        write = slave.write
        m.submodules.request = request = StreamContract(50)
        m.d.comb += [*request.watch_stream(Cat(write.addr, write.data, write.strb), write.valid, write.ready),
                     Assert(~request.source_fault.as_value().any())]
        m.d.comb += [Cover(axi.bvalid & axi.rvalid, "both answers at once"),
                     Cover(axi.awvalid & axi.bvalid & ~axi.awready, "the next write waits for the answer before it")]
    return Check(build)


def test_axi_lite_slave():
    assert prove(slave_check(), 12, "prove", name="slave")


def test_axi_lite_slave_reaches_its_states():
    assert prove(slave_check(), 10, "cover", name="slave")


@pytest.mark.parametrize("name, old, new", [
    ("early", "self.write.valid.eq(have_aw & have_w)", "self.write.valid.eq(have_aw | have_w)"),
    ("unheld", "with m.If(axi.bready):", "with m.If(1):"),
    ("second", "axi.arready.eq(~self.read.valid & ~axi.rvalid)", "axi.arready.eq(~self.read.valid)"),
])
def test_axi_lite_slave_broken(name, old, new):
    assert not prove(slave_check(mutant("optinic.axi.lite", old, new).AxiLiteSlave), 12, name=f"slave_{name}")


def bank_check(cls=RegisterBank):
    """The whole register space: every access is answered, with events that are taken within three cycles."""
    def build(m, free_):
        m.submodules.bank = bank = cls(preset("tiny"))
        free(m, free_, bank, "bank")
        judge(m, AxiLiteContract(within=16), bank.axi, "axi", design="sink")
        for name in bank.signature.members:
            if name.startswith("wo_"):
                event, waited = getattr(bank, name), Signal(range(4), name=f"{name}_waited")
                m.d.sync += waited.eq(0)
                with m.If(event.valid & ~event.ready):
                    m.d.sync += waited.eq(waited + 1)
                    m.d.comb += Assume(waited != 3)
                held = StreamContract(32)
                m.submodules[f"{name}_held"] = held
                m.d.comb += [*held.watch_stream(event.data, event.valid, event.ready),
                             Assert(~held.source_fault.as_value().any())]
    return Check(build)


def test_register_bank():
    assert prove(bank_check(), 18, name="bank")


def test_register_bank_broken():
    broken = mutant("optinic.axi.register_bank", "decoded.eq(write.valid & ~write.ready)", "decoded.eq(write.valid & ~decoded)")
    assert not prove(bank_check(broken.RegisterBank), 14, name="bank_forgets")
