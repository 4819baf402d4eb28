"""From plans to steps: one step reads a source beat and makes a beat of the frame."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.stream.push import PushSignature

from .frame_plan import plan_layout

__all__ = ["FrameSteps", "step_layout"]


def step_layout(cfg):
    """What is to be done with the source beat read at the same time, the one before it, and the headers."""
    lane, group = range(cfg.beat_bytes), range(cfg.beat_bytes // 4)
    return StructLayout({
        "out": 1,           # a beat comes out of it
        "take": 1,          # the packet's headers are taken: with its first beat, or its only step
        "ends": 1, "failed": 1,     # the packet's last step
        "first": 1, "last": 1,      # beat of the frame
        "vlan": 1, "v6": 1,
        "source_rotate": lane,      # turns the source beat upwards
        "rotate": lane,     # lanes from here on are of this step's source beat, those below of the step before
        "head_full": 1, "head_part": 1, "head_group": group,    # lanes of headers: all, those below 4 g + 2, none
        "data_part": 1, "data_none": 1, "data_end": lane,       # lanes with payload or headers: those below, none, all
        "cover": 1, "wrap": 1, "group": group,      # where the ICRC goes, see icrc_insert.icrc_beat_layout
        "runt": 1,          # 58 bytes, to be padded to 60
    })


class FrameSteps(wiring.Component):
    """One step each cycle, while `room` is 1; a cycle later `rd_addr` is its source beat. `sends`: the step makes a beat.

    A frame takes as many steps as it has beats. It takes one more before its first beat if that needs two source beats, but
    not if the frame before it has just ended with a step that needed none: then that step reads for both. A silent or failed
    packet takes one step. Within a frame steps follow each other without a pause, but for `room`.

    `rd_pointer` passes the beats of a packet one cycle after the last of them was asked for.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "plans": In(stream.Signature(plan_layout(cfg))), "room": In(1), "sends": Out(1),
            "step": Out(PushSignature(step_layout(cfg))),
            "rd_addr": Out(range(cfg.tx_buffer_beats)), "rd_pointer": Out(range(2 * cfg.tx_buffer_beats)),
            "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        cfg, plan = self.cfg, self.plans.payload

        # -- the packet in work; `left` counts its beats down, `head_left` those full of headers
        job = Signal(plan_layout(cfg), reset_less=True)
        active = Signal()
        left = Signal.like(job.last, reset_less=True)
        final = Signal(reset_less=True)         # left is 0
        head_left = Signal.like(job.head_beats, reset_less=True)
        headless = Signal(reset_less=True)      # the headers have ended in an earlier beat
        first = Signal(reset_less=True)
        nothing = Signal(reset_less=True)       # silent or failed

        go = Signal()
        ends = Signal()
        load = Signal()
        both = Signal()         # the last step reads for the next frame too
        m.d.comb += [
            go.eq(active & self.room), ends.eq(go & final & ~job.pre),
            self.plans.ready.eq(~active | ends), load.eq(self.plans.valid & self.plans.ready),
            both.eq(ends & job.spare & self.plans.valid & plan.pre),
            self.sends.eq(go & ~job.pre & ~nothing),
        ]
        with m.If(go):
            m.d.sync += [job.pre.eq(0), job.addr.eq(job.addr + 1)]
            with m.If(~job.pre):
                m.d.sync += [left.eq(left - 1), final.eq(left == 1), first.eq(0)]
                with m.If(head_left == 0):
                    m.d.sync += headless.eq(1)
                with m.Else():
                    m.d.sync += head_left.eq(head_left - 1)
        silent = plan.silent | plan.failed
        with m.If(load):
            m.d.sync += [
                job.eq(plan), job.pre.eq(plan.pre & ~both), job.addr.eq(plan.addr + both), first.eq(1), nothing.eq(silent),
                left.eq(plan.last), final.eq((plan.last == 0) | silent), head_left.eq(plan.head_beats), headless.eq(0),
                active.eq(1),
            ]
        with m.Elif(ends):
            m.d.sync += active.eq(0)

        # -- its step
        step = self.step.payload
        straddles = job.group.all()     # the ICRC is in two beats
        before = left == 1
        beat = ~job.pre & ~nothing
        m.d.sync += self.rd_addr.eq(Mux(both, plan.addr, job.addr))
        m.d.comb += [
            self.step.valid.eq(go),
            step.out.eq(beat), step.take.eq(~job.pre & first), step.ends.eq(final & ~job.pre), step.failed.eq(job.failed),
            step.first.eq(first), step.last.eq(final), step.vlan.eq(job.vlan), step.v6.eq(job.v6),
            step.source_rotate.eq(Mux(both, plan.rotate, job.rotate)), step.rotate.eq(job.rotate),
            step.head_full.eq(head_left != 0), step.head_part.eq((head_left == 0) & ~headless),
            step.head_group.eq(job.head_group),
            step.data_part.eq(Mux(job.data_in_last, final, before)), step.data_none.eq(final & ~job.data_in_last),
            step.data_end.eq(job.data_end),
            step.cover.eq(Mux(straddles, before, final)), step.wrap.eq(straddles & final),
            step.group.eq(job.group), step.runt.eq(job.runt),
        ]

        # -- beats given back
        done_with = Signal.like(self.rd_pointer)
        with m.If(ends):
            m.d.sync += done_with.eq(done_with + job.beats)
        m.d.sync += self.rd_pointer.eq(done_with)
        m.d.comb += self.idle.eq(~active & ~self.plans.valid)
        return m
