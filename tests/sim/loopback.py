"""A small top with the ports of the NIC, to try the simulated device itself.

Every beat from the MAC goes to memory (an AXI write of one beat, or bursts of BURST beats) and to the host stream; a
write to READ starts a burst read whose data goes to the host stream as a frame. MISCHIEF breaks rules of AXI on purpose.
"""

from amaranth.back import verilog
from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.axi.signatures import AxiLiteSignature, AxiSignature
from optinic.stream.packet import AxiStreamSignature

ID, BASE_LO, BASE_HI, BURST, READ_LO, READ_HI, READ, IRQ, MISCHIEF, BAD_WRITES, BAD_READS, READ_ID = range(0, 48, 4)
CHANGE_DATA, CROSS_4K, STROBE_OUTSIDE, EARLY_LAST, WITHDRAW = 1, 2, 4, 8, 16


class Loopback(wiring.Component):
    def __init__(self, data_width=128):
        self.width = data_width
        super().__init__({
            "mac_rx": In(AxiStreamSignature(data_width)), "host_rx": Out(AxiStreamSignature(data_width)),
            "axi": Out(AxiSignature(data_width)), "axil": In(AxiLiteSignature()), "irq": Out(2),
            "trace": Out(wiring.Signature({"valid": Out(1), "verdict": Out(2), "reason": Out(5), "qpn": Out(24), "len": Out(13),
                                           "kind": Out(2), "overflow": Out(1)})),
        })

    def elaborate(self, platform):
        m = Module()
        mac, host, axi, lite = self.mac_rx, self.host_rx, self.axi, self.axil
        nbytes = self.width // 8
        regs = [Signal(32, name=f"reg{i}", init=[0x1234, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0][i]) for i in range(12)]
        mischief, burst = regs[MISCHIEF // 4], regs[BURST // 4]

        # registers
        aw_got, w_got, waddr, wdata = Signal(), Signal(), Signal(16), Signal(32)
        m.d.comb += [lite.awready.eq(~aw_got & ~lite.bvalid), lite.wready.eq(~w_got & ~lite.bvalid),
                     lite.arready.eq(~lite.rvalid)]
        with m.If(lite.awvalid & lite.awready):
            m.d.sync += [aw_got.eq(1), waddr.eq(lite.awaddr)]
        with m.If(lite.wvalid & lite.wready):
            m.d.sync += [w_got.eq(1), wdata.eq(lite.wdata)]
        start_read = Signal()
        with m.If(lite.bvalid & lite.bready):
            m.d.sync += lite.bvalid.eq(0)
        with m.If(aw_got & w_got):
            m.d.sync += [aw_got.eq(0), w_got.eq(0), lite.bvalid.eq(1), lite.bresp.eq(Mux(waddr < 48, 0, 2))]
            m.d.comb += start_read.eq(waddr == READ)
            with m.Switch(waddr[2:]):
                for i, r in enumerate(regs):
                    with m.Case(i):
                        m.d.sync += r.eq(wdata)
        with m.If(lite.rvalid & lite.rready):
            m.d.sync += lite.rvalid.eq(0)
        with m.If(lite.arvalid & lite.arready):
            m.d.sync += [lite.rvalid.eq(1), lite.rresp.eq(Mux(lite.araddr < 48, 0, 2))]
            with m.Switch(lite.araddr[2:]):
                for i, r in enumerate(regs):
                    with m.Case(i):
                        m.d.sync += lite.rdata.eq(r)
        m.d.comb += self.irq.eq(regs[IRQ // 4])

        # frames to memory and to the host
        where, beat, size = Signal(64), Signal(8), Signal(13)
        take, first = Signal(), Signal(init=1)
        want_aw = first | (burst == 1)
        room = (~axi.wvalid | axi.wready) & (~axi.awvalid | axi.awready) & (~host.tvalid | host.tready)
        m.d.comb += [mac.tready.eq(room & ~start_read), take.eq(mac.tvalid & mac.tready), axi.awburst.eq(1),
                     axi.awsize.eq(nbytes.bit_length() - 1), axi.bready.eq(1)]
        for ready, valid in ((axi.wready, axi.wvalid), (axi.awready, axi.awvalid), (host.tready, host.tvalid)):
            with m.If(ready):
                m.d.sync += valid.eq(0)
        count = sum(mac.tkeep[i] for i in range(nbytes))
        m.d.sync += [self.trace.valid.eq(take & mac.tlast), self.trace.overflow.eq(take & mac.tlast & mac.tuser)]
        with m.If(take):
            base = Cat(regs[BASE_LO // 4], regs[BASE_HI // 4])
            m.d.sync += [
                host.tvalid.eq(1), host.tdata.eq(mac.tdata), host.tkeep.eq(mac.tkeep), host.tlast.eq(mac.tlast),
                host.tuser.eq(mac.tuser), first.eq(mac.tlast),
                axi.wvalid.eq(1), axi.wdata.eq(mac.tdata), axi.wstrb.eq(mac.tkeep), axi.wlast.eq(mac.tlast | (burst == 1)),
                where.eq(where + nbytes), size.eq(size + count), beat.eq(beat + 1),
            ]
            with m.If(want_aw):
                m.d.sync += [axi.awvalid.eq(1), axi.awaddr.eq(base + where), axi.awlen.eq(burst - 1)]
                with m.If(mischief[1]):
                    m.d.sync += [axi.awaddr.eq(base + 4096 - nbytes), axi.awlen.eq(1)]
                with m.If(mischief[2]):
                    m.d.sync += axi.awaddr.eq(base + where + 3)
            with m.If(mischief[3]):
                m.d.sync += axi.wlast.eq(1)
            with m.If(mac.tlast):
                m.d.sync += [self.trace.len.eq(size + count), self.trace.verdict.eq(Mux(mac.tuser, 2, 0)),
                             self.trace.reason.eq(mac.tuser), self.trace.qpn.eq(mac.tdata[:24]), size.eq(0)]
        with m.Elif(mischief[0]):
            m.d.sync += axi.wdata.eq(~axi.wdata)
        with m.Elif(mischief[4]):
            m.d.sync += [axi.awvalid.eq(0), axi.wvalid.eq(0)]
        with m.If(axi.bvalid & (axi.bresp != 0)):
            m.d.sync += regs[BAD_WRITES // 4].eq(regs[BAD_WRITES // 4] + 1)

        # reads: READ's value is the number of beats; the MAC must be quiet meanwhile
        m.d.comb += [axi.arburst.eq(1), axi.arsize.eq(nbytes.bit_length() - 1), axi.arid.eq(regs[READ_ID // 4]),
                     axi.araddr.eq(Cat(regs[READ_LO // 4], regs[READ_HI // 4])), axi.rready.eq(~host.tvalid | host.tready)]
        with m.If(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        with m.If(start_read):
            m.d.sync += [axi.arvalid.eq(1), axi.arlen.eq(wdata - 1)]
        with m.If(axi.rvalid & axi.rready):
            m.d.sync += [host.tvalid.eq(1), host.tdata.eq(axi.rdata), host.tkeep.eq(-1), host.tlast.eq(axi.rlast), host.tuser.eq(0)]
            with m.If(axi.rresp != 0):
                m.d.sync += regs[BAD_READS // 4].eq(regs[BAD_READS // 4] + 1)
        return m


def loopback_verilog(data_width=128):
    return verilog.convert(Loopback(data_width), name="loopback", emit_src=False)
