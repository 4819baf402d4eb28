"""Streams of packets: the AXI-Stream of the MAC side."""

from amaranth.lib import wiring
from amaranth.lib.wiring import Out, In

__all__ = ["AxiStreamSignature"]


class AxiStreamSignature(wiring.Signature):
    """AXI4-Stream with byte enables, as Ethernet MACs speak it (member names are the standard's).

    One frame without preamble and FCS a packet, byte 0 in tdata[7:0]. tkeep is contiguous from bit 0 and all ones
    except on the last beat; tuser[0] on the last beat marks a frame that the MAC found damaged.
    """

    def __init__(self, data_width):
        self.data_width = data_width
        super().__init__({
            "tdata": Out(data_width), "tkeep": Out(data_width // 8), "tlast": Out(1), "tuser": Out(1),
            "tvalid": Out(1), "tready": In(1),
        })
