"""The host writer's AXI port under the AXI4 write contract, as far as a bounded check reaches (64 bits, small queues).

Any legal jobs, any data, any bus that keeps its side: AW and W are held, bursts stay inside their block, wlast is where awlen
says. And invariant 1 at the bus: no strobe outside the bytes that the job names.
"""

from amaranth.hdl import Assert, Assume, Cover, Fragment, Mux, Signal

import pytest

from optinic.config import NicConfig
from optinic.memory import host_writer
from optinic.memory.job import JobKind
from optinic.stream.contract import AxiWriteContract, PacketContract, StreamContract

from .harness import Check, free, judge, never_reset, prove
from .mutate import mutant

CFG = NicConfig(data_width=64, num_qps=2, num_regions=8, num_cqs=2, num_peers=2, num_vectors=1, mtu_max=256, rq_entries=16,
                rq_cache_lines=8, rq_prefetch_lines=0, rx_buffer_bytes=8192, rx_frames=8, reads_outstanding=2,
                writes_outstanding=8, deadline_lanes=1)


def writer_check(covers=False, one_job=False, **parts):
    """`parts`: blocks in place of those that the host writer is made of."""
    def build(m, free_):
        before = {name: getattr(host_writer, name) for name in parts}
        vars(host_writer).update(parts)
        dut = host_writer.HostWriter(CFG)
        m.submodules.dut = Fragment.get(dut, None)
        vars(host_writer).update(before)
        free(m, free_, dut, "dut")
        never_reset(m)
        job, axi = dut.jobs.payload, dut.axi
        judge(m, StreamContract(len(job.as_value())), dut.jobs, "jobs", design="sink")
        judge(m, StreamContract(len(dut.doorbell.payload.as_value())), dut.doorbell, "doorbell", design="sink")
        judge(m, AxiWriteContract(64, depth=16), axi, "bus", design="source")
        judge(m, PacketContract(64), dut.host, "host", design="source")
        end = job.pay_off + job.len
        m.d.comb += [
            # a PLACE without beats leaves its frame, of whatever length, to the next job
            Assume(((job.beats != 0) | (job.kind == JobKind.PLACE)) & (job.beats <= CFG.max_frame_beats)),
            Assume(job.len <= CFG.mtu_max), Assume(job.qp < CFG.num_qps),
            Assume((job.kind != JobKind.PLACE) | (end <= (Mux(job.beats == 0, CFG.max_frame_beats, job.beats) << 3))),
            Assume(job.addr <= (1 << 64) - CFG.mtu_max), Assume(~dut.cq_set.en),
        ]
        if one_job:
            # the bytes of the only job with a payload, and the word of each beat as long as it has one burst
            taken, first, last = Signal(), Signal(64), Signal(65)
            place = dut.jobs.valid & dut.jobs.ready & (job.kind == JobKind.PLACE)
            with m.If(place):
                m.d.sync += [taken.eq(1), first.eq(job.addr), last.eq(job.addr + job.len)]
            m.d.comb += [Assume(~(place & taken)), Assume(job.complete == 0)]
            start, beat, known, more = Signal(61), Signal(8), Signal(), Signal()
            with m.If(axi.awvalid & axi.awready):
                m.d.sync += [start.eq(axi.awaddr >> 3), known.eq(1), more.eq(known)]
            with m.If(axi.wvalid & axi.wready):
                m.d.sync += beat.eq(beat + 1)
            word, sure = Mux(known, start, axi.awaddr >> 3) + beat, ~more & ~(axi.awvalid & known)
            for lane in range(8):
                byte = (word << 3) + lane
                m.d.comb += Assert(~(axi.wvalid & axi.wstrb[lane] & sure) | (taken & (byte >= first) & (byte < last)))
        if covers:
            m.d.comb += [Cover(axi.wvalid & axi.wlast & (axi.wstrb == 0x18), "two bytes in the middle of a word"),
                         Cover(axi.awvalid & (axi.awlen == 1) & (axi.awaddr[:12] == 0xFF0), "to the end of a block")]
    return Check(build)


def test_writer_bus():
    assert prove(writer_check(), 13, name="writer_bus")


@pytest.mark.soak
def test_writer_bus_for_longer():
    assert prove(writer_check(), 17, name="writer_bus_longer")


def test_writer_stays_inside_the_job():
    assert prove(writer_check(one_job=True), 13, name="writer_inside")


def test_writer_reaches_its_states():
    result = prove(writer_check(covers=True), 20, "cover", name="writer")
    assert result, result.log


def test_writer_broken():
    long = mutant("optinic.memory.burst_port", "axi.awlen.eq(aw.payload.len)", "axi.awlen.eq(aw.payload.len + 1)").BurstPort
    assert not prove(writer_check(BurstPort=long), 18, name="writer_long")
    shifted = mutant("optinic.memory.burst_port", "axi.wstrb.eq(w.payload.strb)", "axi.wstrb.eq(~w.payload.strb)").BurstPort
    assert not prove(writer_check(BurstPort=shifted, one_job=True), 18, name="writer_outside")
