"""The store-and-forward packet buffer: plain memory; its order and room are kept by the intake and the reader."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["PacketBuffer"]


class PacketBuffer(wiring.Component):
    """rx_buffer_beats beats; one write and one read each cycle. `rd_data` follows `rd_addr` by two cycles (block RAM and its
    output register) and shows what was written before the cycle in which the address was given."""

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "store": In(1), "wr_addr": In(range(cfg.rx_buffer_beats)), "wr_data": In(cfg.data_width),
            "rd_addr": In(range(cfg.rx_buffer_beats)), "rd_data": Out(cfg.data_width),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = Memory(shape=unsigned(self.cfg.data_width), depth=self.cfg.rx_buffer_beats, init=[],
                                        attrs={"ram_style": "block"})
        write, read = ram.write_port(), ram.read_port(domain="sync")
        out = Signal(self.cfg.data_width, reset_less=True)
        m.d.comb += [write.en.eq(self.store), write.addr.eq(self.wr_addr), write.data.eq(self.wr_data),
                     read.addr.eq(self.rd_addr), self.rd_data.eq(out)]
        m.d.sync += out.eq(read.data)
        return m
