"""Atomic operations on host memory: read, compare or add, write."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.axi.signatures import AxiReadSignature, AxiWriteSignature

__all__ = ["AtomicUnit", "atomic_layout", "result_layout", "READ_ID", "WRITE_ID"]

# reads of receive queues have IDs below (NicConfig sees to that), those of payload and send WQEs above; other writes have ID 0
READ_ID, WRITE_ID = 0x40, 0x80


def atomic_layout():
    """`addr`: on the bus, a multiple of 8. `add`: fetch and add `swap_add`; else: write `swap_add` if `compare` is there."""
    return StructLayout({"addr": 64, "add": 1, "swap_add": 64, "compare": 64})


def result_layout():
    return StructLayout({"original": 64, "failed": 1})


class AtomicUnit(wiring.Component):
    """One operation at a time on 64 bits of host memory, little endian there; `result` ends it. Atomic towards this card only.

    It takes one read of a bus beat and, unless a comparison failed, one write of a beat with strobes for the eight bytes; when
    that is acknowledged, `result` brings the original value, or `failed` (bus error; no answer within `dma_timeout` cycles, 0 is
    as 1, and up to two more), with `original` undefined. A failed read writes nothing. Bursts are aligned and of full width, as
    all of this card's, with the IDs READ_ID and WRITE_ID, which nobody else has.

    On a bus that answers in the next cycle the result is there nine cycles after the request, seven without a write. The next
    request is accepted when the result has been taken. An answer that comes too late is swallowed. While one is due a request
    waits for it, and fails when its own time is up: a dead bus fails each request in turn and stops nothing. The acknowledgement
    of a write has no time limit, as nothing on the card goes on without those. `idle`: no request within, and no answer due.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "request": In(stream.Signature(atomic_layout())), "result": Out(stream.Signature(result_layout())),
            "read": Out(AxiReadSignature(cfg.data_width)), "write": Out(AxiWriteSignature(cfg.data_width)),
            "dma_timeout": In(32), "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        width, lane_bits = self.cfg.data_width, (self.cfg.beat_bytes - 1).bit_length()
        job = Signal(atomic_layout(), reset_less=True)
        original, value = Signal(64, reset_less=True), Signal(64, reset_less=True)
        failed, differs = Signal(), Signal()
        read, write = self.read, self.write
        address = Cat(Const(0, lane_bits), job.addr[lane_bits:])
        m.d.comb += [
            read.arid.eq(READ_ID), read.araddr.eq(address), read.arlen.eq(0), read.arsize.eq(lane_bits), read.arburst.eq(1),
            write.awid.eq(WRITE_ID), write.awaddr.eq(address), write.awlen.eq(0), write.awsize.eq(lane_bits),
            write.awburst.eq(1), write.wdata.eq(value.replicate(width // 64)), write.wlast.eq(1),
            write.wstrb.eq(Cat((job.addr[3:lane_bits] == i).replicate(8) for i in range(width // 64)) if width > 64 else 0xFF),
            self.result.payload.original.eq(original), self.result.payload.failed.eq(failed),
        ]

        # The read. `due`: asked and not answered to the end, perhaps for a request that has failed since; `mine`: it has not.
        due, mine, asks, answer = Signal(), Signal(), Signal(), Signal()
        came, bad = Signal(), Signal()
        m.d.comb += [read.rready.eq(1), answer.eq(read.rvalid & due & (read.rid == READ_ID))]
        m.d.sync += [came.eq(answer & mine), bad.eq((read.rresp != 0) | ~read.rlast)]
        with m.If(answer):
            m.d.sync += [mine.eq(0), due.eq(~read.rlast)]
        with m.If(answer & mine):
            m.d.sync += original.eq(read.rdata.word_select(job.addr[3:lane_bits], 64) if width > 64 else read.rdata)
        with m.If(read.arready):
            m.d.sync += read.arvalid.eq(0)
        with m.If(asks):
            m.d.sync += [read.arvalid.eq(1), due.eq(1), mine.eq(1)]
        for valid, ready in (write.awvalid, write.awready), (write.wvalid, write.wready):
            with m.If(ready):
                m.d.sync += valid.eq(0)

        left, up = Signal(32, reset_less=True), Signal()
        m.d.sync += [left.eq(left - 1), up.eq(up | (left == 0))]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.request.ready.eq(1), self.idle.eq(~self.request.valid & ~due)]
                m.d.sync += [job.eq(self.request.payload), left.eq(self.dma_timeout), up.eq(0), failed.eq(0)]
                with m.If(self.request.valid):
                    m.next = "ASK"
            with m.State("ASK"):
                with m.If(up):
                    m.d.sync += failed.eq(1)
                    m.next = "RESULT"
                with m.Elif(~due):
                    m.d.comb += asks.eq(1)
                    m.next = "WAIT"
            with m.State("WAIT"):
                with m.If(came):
                    m.d.sync += failed.eq(bad)
                    m.next = "COMPUTE"
                    with m.If(bad):
                        m.next = "RESULT"
                with m.Elif(up):
                    m.d.sync += [failed.eq(1), mine.eq(0)]
                    m.next = "RESULT"
            with m.State("COMPUTE"):
                m.d.sync += [value.eq(Mux(job.add, original + job.swap_add, job.swap_add)), differs.eq(original != job.compare)]
                m.next = "DECIDE"
            with m.State("DECIDE"):
                with m.If(differs & ~job.add):
                    m.next = "RESULT"
                with m.Else():
                    m.d.sync += [write.awvalid.eq(1), write.wvalid.eq(1)]
                    m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += write.bready.eq(1)
                with m.If(write.bvalid):
                    m.d.sync += failed.eq(write.bresp[1])
                    m.next = "RESULT"
            with m.State("RESULT"):
                m.d.comb += self.result.valid.eq(1)
                with m.If(self.result.ready):
                    m.next = "IDLE"
        return m
