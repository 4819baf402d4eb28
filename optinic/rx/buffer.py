"""The store-and-forward packet buffer and the queue of descriptors. Their room is kept by the intake and the reader."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .descriptor import descriptor_layout

__all__ = ["PacketBuffer", "DescriptorQueue"]


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


class DescriptorQueue(wiring.Component):
    """Queue of descriptors, rx_frames deep and one more in its output register.

    `push` is never refused: whoever pushes has reserved a place before (the intake counts frames), so it can't overflow.
    A descriptor is offered two cycles after its push; one each cycle goes through.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self._layout = descriptor_layout(cfg)
        super().__init__({
            "push": In(1), "descriptor": In(self._layout),
            "descriptors": Out(stream.Signature(self._layout)),
        })

    def elaborate(self, platform):
        m = Module()
        depth, width = self.cfg.rx_frames, self._layout.size
        style = "distributed" if depth <= 64 else "block"
        m.submodules.ram = ram = Memory(shape=unsigned(width), depth=depth, init=[], attrs={"ram_style": style})
        write, read = ram.write_port(), ram.read_port(domain="sync")
        head, tail, level = Signal(range(depth)), Signal(range(depth)), Signal(range(depth + 1))
        pull = Signal()
        m.d.comb += [
            write.en.eq(self.push), write.addr.eq(tail), write.data.eq(self.descriptor.as_value()),
            pull.eq((level != 0) & (self.descriptors.ready | ~self.descriptors.valid)),
            read.en.eq(pull), read.addr.eq(head),
            self.descriptors.payload.as_value().eq(read.data),
        ]
        offered = Signal()
        m.d.comb += self.descriptors.valid.eq(offered)
        m.d.sync += [tail.eq(tail + self.push), head.eq(head + pull), level.eq(level + self.push - pull),
                     offered.eq(pull | offered & ~self.descriptors.ready)]
        return m
