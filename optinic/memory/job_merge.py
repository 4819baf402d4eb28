"""Two sources of jobs for the one host writer."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from optinic.memory.job import job_layout
from optinic.stream.fifo import StreamFifo

__all__ = ["JobMerge"]


class JobMerge(wiring.Component):
    """`jobs` from `receive` and `send`, each in its order, two cycles later. Both in turn when both wait: one a cycle then, and of
    `receive` alone; of `send` alone one in two cycles."""

    def __init__(self, cfg):
        self.cfg = cfg
        job = stream.Signature(job_layout(cfg))
        super().__init__({"receive": In(job), "send": In(job), "jobs": Out(job), "idle": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = StreamFifo(job_layout(self.cfg), 2)
        wiring.connect(m, queue.o, wiring.flipped(self.jobs))
        # whose turn it is comes from a register, as both sources are the end of long paths
        sends_turn = Signal()
        m.d.comb += self.idle.eq(queue.level == 0)
        with m.If(sends_turn):
            m.d.comb += [queue.i.valid.eq(self.send.valid), queue.i.payload.eq(self.send.payload), self.send.ready.eq(queue.i.ready)]
            m.d.sync += sends_turn.eq(self.send.valid & ~queue.i.ready)
        with m.Else():
            m.d.comb += [queue.i.valid.eq(self.receive.valid), queue.i.payload.eq(self.receive.payload), self.receive.ready.eq(queue.i.ready)]
            m.d.sync += sends_turn.eq(self.send.valid & (queue.i.ready | ~self.receive.valid))
        return m
