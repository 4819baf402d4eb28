"""AXI4-Lite slave: the handshakes of the five channels turned into one write request and one read request."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .signatures import AxiLiteSignature

__all__ = ["AxiLiteSlave", "RegisterWriteSignature", "RegisterReadSignature", "OKAY", "SLVERR"]

OKAY, SLVERR = 0, 2


class RegisterWriteSignature(wiring.Signature):
    """A register write: stable while `valid`, done in the cycle in which `ready` answers it, with `error` for SLVERR."""

    def __init__(self):
        super().__init__({"valid": Out(1), "addr": Out(14), "data": Out(32), "strb": Out(4),
                          "ready": In(1), "error": In(1)})


class RegisterReadSignature(wiring.Signature):
    """A register read: stable while `valid`, done in the cycle in which `ready` brings `data`, with `error` for SLVERR."""

    def __init__(self):
        super().__init__({"valid": Out(1), "addr": Out(14), "ready": In(1), "data": In(32), "error": In(1)})


class AxiLiteSlave(wiring.Component):
    """AXI4-Lite (ARM IHI 0022) to requests on registers.

    `write` and `read` carry word addresses (byte address / 4; the two low address bits are ignored, awprot and arprot too).
    AW and W are taken in either order, each into its own register. One write and one read are under way at most, the two
    independent of each other: the next AW, W or AR is taken after the B or R before it was. A request waits for its
    `ready` as long as it likes, and B and R wait for their master; then nothing new is accepted and nothing is lost.
    Shortest write: AW and W in cycle 0, request in cycle 1, B in cycle 2. Reads likewise. Every output is a register or
    one gate behind it.
    """

    axi: In(AxiLiteSignature())
    write: Out(RegisterWriteSignature())
    read: Out(RegisterReadSignature())

    def elaborate(self, platform):
        m = Module()
        axi = self.axi
        have_aw = Signal()
        have_w = Signal()
        m.d.comb += [
            axi.awready.eq(~have_aw & ~axi.bvalid),
            axi.wready.eq(~have_w & ~axi.bvalid),
            self.write.valid.eq(have_aw & have_w),
        ]
        with m.If(axi.awvalid & axi.awready):
            m.d.sync += [have_aw.eq(1), self.write.addr.eq(axi.awaddr[2:])]
        with m.If(axi.wvalid & axi.wready):
            m.d.sync += [have_w.eq(1), self.write.data.eq(axi.wdata), self.write.strb.eq(axi.wstrb)]
        with m.If(axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        with m.If(self.write.valid & self.write.ready):
            m.d.sync += [have_aw.eq(0), have_w.eq(0), axi.bvalid.eq(1)]
            m.d.sync += axi.bresp.eq(self.write.error << 1)

        m.d.comb += axi.arready.eq(~self.read.valid & ~axi.rvalid)
        with m.If(axi.arvalid & axi.arready):
            m.d.sync += [self.read.valid.eq(1), self.read.addr.eq(axi.araddr[2:])]
        with m.If(axi.rready):
            m.d.sync += axi.rvalid.eq(0)
        with m.If(self.read.valid & self.read.ready):
            m.d.sync += [self.read.valid.eq(0), axi.rvalid.eq(1), axi.rdata.eq(self.read.data)]
            m.d.sync += axi.rresp.eq(self.read.error << 1)
        return m
