"""A small top with the cable's both directions: frames of the host go to the cable, those from the cable to the host.

With register ECHO set, a frame from the cable goes back to where it came from instead, its addresses exchanged; READ counts
reads of itself, SLOW takes that many cycles for a write, and NEVER doesn't answer. For 128 bits and more.
"""

from amaranth.back import verilog
from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.axi.lite import AxiLiteSlave
from optinic.axi.signatures import AxiLiteSignature
from optinic.stream.packet import AxiStreamSignature

ECHO, READ, SLOW, NEVER = range(0, 16, 4)


class Patch(wiring.Component):
    def __init__(self, data_width=128):
        stream = AxiStreamSignature(data_width)
        super().__init__({"mac_rx": In(stream), "mac_tx": Out(stream), "host_tx": In(stream), "host_rx": Out(stream),
                          "axil": In(AxiLiteSignature())})

    def elaborate(self, platform):
        m = Module()
        m.submodules.slave = slave = AxiLiteSlave()
        wiring.connect(m, wiring.flipped(self.axil), slave.axi)
        echo, reads, wait = Signal(), Signal(32), Signal(32)
        write, read = slave.write, slave.read
        m.d.comb += [write.ready.eq((write.addr != NEVER // 4) & ((write.addr != SLOW // 4) | (wait == write.data))),
                     read.ready.eq(1), read.data.eq(Mux(read.addr == READ // 4, reads, echo))]
        m.d.sync += wait.eq(Mux(write.valid & ~write.ready, wait + 1, 0))
        with m.If(write.valid & write.ready & (write.addr == ECHO // 4)):
            m.d.sync += echo.eq(write.data)
        with m.If(read.valid & (read.addr == READ // 4)):
            m.d.sync += reads.eq(reads + 1)

        def stage(source, sink, data):
            m.d.comb += source.tready.eq(~sink.tvalid | sink.tready)
            with m.If(source.tready):
                m.d.sync += [sink.tvalid.eq(source.tvalid), sink.tdata.eq(data), sink.tkeep.eq(source.tkeep),
                             sink.tlast.eq(source.tlast), sink.tuser.eq(source.tuser)]

        mac, first = self.mac_rx, Signal(init=1)
        with m.If(mac.tvalid & mac.tready):
            m.d.sync += first.eq(mac.tlast)
        swapped = Cat(mac.tdata[48:96], mac.tdata[:48], mac.tdata[96:])
        with m.If(echo):
            stage(mac, self.mac_tx, Mux(first, swapped, mac.tdata))
        with m.Else():
            stage(self.host_tx, self.mac_tx, self.host_tx.tdata)
            stage(mac, self.host_rx, mac.tdata)
        return m


def patch_verilog(data_width=128):
    return verilog.convert(Patch(data_width), name="patch", emit_src=False)
