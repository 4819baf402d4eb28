"""AXI4 and AXI4-Lite bundles, seen from the master. Member names are the standard's."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ID_BITS", "AxiWriteSignature", "AxiReadSignature", "AxiSignature", "AxiLiteSignature", "burst_bytes"]

ID_BITS = 8     #: reads of receive queues have the IDs 0 .. reads_outstanding - 1 (at most 127, or 63 with atomics), writes ID 0

_WRITE = lambda width, ids: {
    "awid": Out(ids), "awaddr": Out(64), "awlen": Out(8), "awsize": Out(3), "awburst": Out(2),
    "awvalid": Out(1), "awready": In(1),
    "wdata": Out(width), "wstrb": Out(width // 8), "wlast": Out(1), "wvalid": Out(1), "wready": In(1),
    "bid": In(ids), "bresp": In(2), "bvalid": In(1), "bready": Out(1),
}
_READ = lambda width, ids: {
    "arid": Out(ids), "araddr": Out(64), "arlen": Out(8), "arsize": Out(3), "arburst": Out(2),
    "arvalid": Out(1), "arready": In(1),
    "rid": In(ids), "rdata": In(width), "rresp": In(2), "rlast": In(1), "rvalid": In(1), "rready": Out(1),
}


def burst_bytes(data_width):
    """Bursts never cross a multiple of this: the 4 KiB rule, and at most 256 beats."""
    return min(4096, 256 * data_width // 8)


class AxiWriteSignature(wiring.Signature):
    def __init__(self, data_width, id_width=ID_BITS):
        super().__init__(_WRITE(data_width, id_width))


class AxiReadSignature(wiring.Signature):
    def __init__(self, data_width, id_width=ID_BITS):
        super().__init__(_READ(data_width, id_width))


class AxiSignature(wiring.Signature):
    def __init__(self, data_width, id_width=ID_BITS):
        super().__init__(_WRITE(data_width, id_width) | _READ(data_width, id_width))


class AxiLiteSignature(wiring.Signature):
    """32-bit data, 16-bit byte addresses. Byte strobes are honoured on plain storage only."""

    def __init__(self):
        super().__init__({
            "awaddr": Out(16), "awprot": Out(3), "awvalid": Out(1), "awready": In(1),
            "wdata": Out(32), "wstrb": Out(4), "wvalid": Out(1), "wready": In(1),
            "bresp": In(2), "bvalid": In(1), "bready": Out(1),
            "araddr": Out(16), "arprot": Out(3), "arvalid": Out(1), "arready": In(1),
            "rdata": In(32), "rresp": In(2), "rvalid": In(1), "rready": Out(1),
        })
