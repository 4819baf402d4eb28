"""The host writer's AXI port under the AXI4 write contract, as far as a bounded check reaches (64 bits, small queues).

Any legal jobs, any data, any bus that keeps its side: AW and W are held, bursts stay inside their block, wlast is where awlen
says. And invariant 1 at the bus: no strobe outside the bytes that the job names.
"""

from amaranth.hdl import Assert, Assume, Cover, Mux, Signal

from optinic.config import NicConfig
from optinic.memory import burst_port, host_writer
from optinic.memory.job import JobKind
from optinic.stream.contract import AxiWriteContract, PacketContract, StreamContract

from .harness import Check, free, judge, never_reset, prove
from .mutate import mutant

CFG = NicConfig(data_width=64, num_qps=2, num_regions=8, num_cqs=2, num_peers=2, num_vectors=1, mtu_max=256, rq_entries=16,
                rq_cache_lines=8, rq_prefetch_lines=0, rx_buffer_bytes=8192, rx_frames=8, reads_outstanding=2,
                writes_outstanding=8, deadline_lanes=1)


def writer_check(covers=False, one_job=False):
    def build(m, free_):
        m.submodules.dut = dut = host_writer.HostWriter(CFG)
        free(m, free_, dut, "dut")
        never_reset(m)
        job, axi = dut.jobs.payload, dut.axi
        judge(m, StreamContract(len(job.as_value())), dut.jobs, "jobs", design="sink")
        judge(m, StreamContract(len(dut.doorbell.payload.as_value())), dut.doorbell, "doorbell", design="sink")
        judge(m, AxiWriteContract(64, depth=8), axi, "bus", design="source")
        judge(m, PacketContract(64), dut.host, "host", design="source")
        end = job.pay_off + job.len
        m.d.comb += [
            Assume((job.beats != 0) & (job.beats <= CFG.max_frame_beats)), Assume(job.len <= CFG.mtu_max),
            Assume((job.kind != JobKind.PLACE) | (end <= (job.beats << 3))), Assume(job.qp < CFG.num_qps),
            Assume(job.addr <= (1 << 64) - CFG.mtu_max), Assume(~dut.cq_set.en),
        ]
        taken = Signal()
        if one_job:
            first, last = Signal(64), Signal(65)        # the bytes of the only job with a payload
            place = dut.jobs.valid & dut.jobs.ready & (job.kind == JobKind.PLACE)
            with m.If(place):
                m.d.sync += [taken.eq(1), first.eq(job.addr), last.eq(job.addr + job.len)]
            m.d.comb += [Assume(~(place & taken)), Assume(job.complete == 0)]
            burst, beat, active = Signal(61), Signal(8), Signal()
            with m.If(axi.awvalid & axi.awready):
                m.d.sync += [burst.eq(axi.awaddr >> 3), active.eq(1)]
            with m.If(axi.wvalid & axi.wready):
                m.d.sync += beat.eq(Mux(axi.wlast, 0, beat + 1))
            word = Mux(active, burst, axi.awaddr >> 3) + beat
            only = Signal()             # until the second burst the beat's address is known for sure
            second = Signal()
            with m.If(axi.awvalid & axi.awready & active):
                m.d.sync += second.eq(1)
            m.d.comb += only.eq(~second & ~(axi.awvalid & active))
            for lane in range(8):
                byte = (word << 3) + lane
                m.d.comb += Assert(~(axi.wvalid & axi.wstrb[lane] & only) | (taken & (byte >= first) & (byte < last)))
        if covers:
            m.d.comb += [Cover(axi.wvalid & axi.wlast & (axi.wstrb == 0x18), "two bytes in the middle of a word"),
                         Cover(axi.awvalid & (axi.awlen == 1) & (axi.awaddr[:12] == 0xFF0), "to the end of a block")]
    return Check(build)


def port_check(module=burst_port):
    """The way out of it alone, by induction over the reservations: the bus may be as slow as it likes."""


def test_writer_bus():
    assert prove(writer_check(), 18, name="writer_bus")


def test_writer_stays_inside_the_job():
    assert prove(writer_check(one_job=True), 20, name="writer_inside")


def test_writer_reaches_its_states():
    result = prove(writer_check(covers=True), 20, "cover", name="writer")
    assert result, result.log
