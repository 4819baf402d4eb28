"""A card with faults built in, one chosen at run time by spare bits of its CTRL register: one build, many negative controls."""

from contextlib import contextmanager
import functools

from amaranth.back import verilog
from amaranth.hdl import Signal

import pytest

from host_driver.card import Card
from optinic.abi.verdicts import REASON
from optinic.memory.job import JobKind
from optinic.nic import Nic
from optinic.transport.xp.records import Verdict
from rtl_gen.settle import settle_constants
from sim.device import SimDevice

__all__ = ["MUTATIONS", "faulty_cards"]

CTRL_SHIFT = 16

#: name -> (invariant of design.md section 4 that it breaks, what it does)
MUTATIONS = {
    "none": (None, "the card as it is"),
    "no_memory_check": (1, "whatever the region table says, the payload is written"),
    "address_off_by_one": (1, "the payload lands one byte further on"),
    "bad_icrc_accepted": (2, "a frame with a wrong ICRC is taken for a good one"),
    "deadline_lost": (3, "deadlines of odd QPs are never watched"),
    "completion_lost": (3, "a message that ends early completes without a word"),
    "completed_twice": (3, "a message that ends early completes twice"),
    "late_packet_written": (4, "a packet of a completed message still goes to memory"),
    "duplicate_makes_success": (3, "bytes are counted, but not which"),
    "refusal_blocks_others": (6, "after a refused packet of one QP nothing goes on"),
    "short_frame_swallows_next": (7, "the end of a very short frame is overlooked"),
    "stale_generation_accepted": (4, "packets of another life of the QP pass"),
    "refused_frame_in_map": (2, "the arrival map also shows packets that are refused"),
}


class MutantNic(Nic):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        stage = lambda name: getattr(m.submodules, name)
        chosen = stage("registers").rw_ctrl[CTRL_SHIFT:]
        names = list(MUTATIONS)
        on = lambda name: chosen == names.index(name)

        # Statements added last win over the connections that Nic made.
        admission, lookup, dispatch, ingress = (stage(n) for n in ("admission", "lookup", "dispatch", "ingress"))
        with m.If(on("no_memory_check")):
            m.d.comb += admission.record.mem_reason.eq(0)
        with m.If(on("address_off_by_one")):
            m.d.comb += admission.record.addr.eq(stage("resolve").record.addr + 1)
        with m.If(on("bad_icrc_accepted") & (ingress.descriptors.payload.reason == REASON["icrc"])):
            m.d.comb += lookup.frames.payload.reason.eq(0)
        with m.If(on("deadline_lost") & admission.lane.qp[0]):
            m.d.comb += stage("deadlines").set.en.eq(0)
        with m.If(on("completion_lost")):
            m.d.comb += dispatch.result.old.valid.eq(0)
        with m.If(on("completed_twice") & admission.result.old.valid):
            m.d.comb += [dispatch.result.empty.valid.eq(1), dispatch.result.empty.index.eq(admission.result.old.head)]
        with m.If(on("late_packet_written") & admission.is_frame & (admission.reason == REASON["late"])):
            m.d.comb += dispatch.result.job.eq(JobKind.PLACE)
        with m.If(on("duplicate_makes_success")):
            m.d.comb += [admission.record.delta.eq(0), admission.record.rest.eq(0)]
        with m.If(on("refused_frame_in_map") & admission.is_frame & (admission.verdict == Verdict.DROPPED)):
            m.d.comb += [dispatch.result.job.eq(JobKind.PLACE), dispatch.result.len.eq(0)]
        stuck = Signal()
        with m.If(lookup.work.valid & (lookup.work.payload.reason == REASON["generation"])):
            m.d.sync += stuck.eq(1)
        with m.If(on("refusal_blocks_others") & stuck):
            m.d.comb += [lookup.work.ready.eq(0), stage("receive_queue").lookup.valid.eq(0)]
        with m.If(on("stale_generation_accepted")):
            m.d.comb += lookup.frames.payload.generation.eq(stage("commands").arg1[16:24])

        beats = Signal(8)
        taken = ingress.mac.tvalid & ingress.mac.tready
        with m.If(taken):
            m.d.sync += beats.eq(beats + 1)
            with m.If(ingress.mac.tlast):
                m.d.sync += beats.eq(0)
        with m.If(on("short_frame_swallows_next") & (beats < 3)):
            m.d.comb += ingress.mac.tlast.eq(0)
        return m


@functools.cache
def mutant_verilog(cfg):
    return settle_constants(verilog.convert(MutantNic(cfg), name="optinic_nic", strip_internal_attrs=True))


@contextmanager
def faulty_cards(module):
    """Each SimDevice that `module` makes is the mutant, with the fault that is chosen when its Card lets frames in. Gives the
    function that chooses, by name."""
    chosen = ["none"]

    class Device(SimDevice):
        def __init__(self, cfg, **options):
            super().__init__(cfg, verilog=mutant_verilog(cfg), top="optinic_nic", **options)

    class FaultyCard(Card):
        def enable(self, *, hold=False):
            self.reg_write("CTRL", 1 | hold << 1 | list(MUTATIONS).index(chosen[0]) << CTRL_SHIFT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SimDevice", Device)
        patch.setattr(module, "Card", FaultyCard)
        yield lambda name: chosen.__setitem__(0, name)
