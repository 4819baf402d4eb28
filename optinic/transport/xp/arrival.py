"""The arrival map: where in host memory to note that a piece of a message is there."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import MTU_CODE
from optinic.memory.table import Table, TableSpec
from optinic.rx.pipeline import FixedPipe
from optinic.transport.xp.admission import Admission
from optinic.transport.xp.records import WorkKind, work_layout
from optinic.transport.xp.resolve import Resolve
from optinic.wire.headers import IMMDT, RETH, XPETH

__all__ = ["ArrivalMaps", "arrival_map_layout", "mark_layout", "map_set_signature"]

_SMALLEST_MTU_BITS = 8      # 256 bytes
_PIECE_BITS = 32 - _SMALLEST_MTU_BITS
_ROW_BITS = 15


def arrival_map_layout():
    """A QP's map: 2^rows rows of 2^pieces bytes, from bus address 64 * `base` on; `mtu` is the code of its path MTU."""
    return StructLayout({"valid": 1, "pieces": 5, "rows": 4, "mtu": 3, "base": 58})


def map_set_signature(cfg):
    return wiring.Signature({"en": Out(1), "qp": Out(range(1 << cfg.qp_bits)), "entry": Out(arrival_map_layout())})


def mark_layout():
    """`valid`: if its frame is placed, byte `source` of it goes to bus address `addr`."""
    return StructLayout({"valid": 1, "source": 7, "addr": 64})


class ArrivalMaps(wiring.Component):
    """Finds, for each record on its way through Resolve and Admission, the byte of the QP's arrival map that belongs to it.

    `work` is the record that Resolve takes, every cycle one; its `mark` stands beside admission's result, ``LATENCY`` cycles
    later. No handshake, nothing stalls. A mark is valid for a tracked XP packet with a payload whose QP has a map, if its
    piece, offset / MTU, is one of a row: what lies beyond the row is not noted. Row: message sequence modulo the rows. The
    byte to write is taken from the frame: the low byte of the message sequence in its XP header.

    `set` writes the table; no frame of the QP may be under way then. `clearing`: it is being cleared after reset, to no maps.
    """

    LATENCY = Resolve.LATENCY + Admission.LATENCY
    _OWN = 6        # stages from the reading of the table to the address

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "work": In(work_layout(cfg)), "valid": In(1), "set": In(map_set_signature(cfg)),
            "mark": Out(mark_layout()), "clearing": Out(1),
        })

    @staticmethod
    def tables(cfg):
        if not cfg.arrival_map:
            return []
        return [TableSpec("arrival_map", "arrival maps", arrival_map_layout().size, cfg.num_qps, "qp", "address")]

    def elaborate(self, platform):
        m = Module()
        w, start = self.work, self.LATENCY - self._OWN
        m.submodules.table = table = Table(self.tables(self.cfg)[0], arrival_map_layout())
        m.d.comb += [table.write_en.eq(self.set.en), table.write_addr.eq(self.set.qp), table.write_data.eq(self.set.entry),
                     self.clearing.eq(table.clearing)]

        pipe = FixedPipe(m, "map")
        wants = Signal()
        m.d.comb += wants.eq(self.valid & (w.kind == WorkKind.FRAME) & w.tracked & ~w.is_uc & (w.pay_len != 0))
        # from the payload back over the extension headers behind the XP header, and over its bytes 7 to 15
        behind = XPETH.size - 7 + Mux(w.is_write, RETH.size, 0) + Mux(w.has_imm, IMMDT.size, 0)
        pipe.put("wants", 1, wants)
        pipe.put("source", 1, (w.pay_off - behind)[:7])
        pipe.put("qp", 1, w.qp)
        pipe.put("seq", 1, w.seq[:_ROW_BITS])
        pipe.put("offset", 1, w.offset[_SMALLEST_MTU_BITS:])

        # the table is read as late as can be; its answer is here two stages later
        m.d.comb += table.read0_addr.eq(pipe.get("qp", start))
        stage = start + 2
        entry = table.read0_data
        offset = pipe.get("offset", stage)      # out here: a register made inside of the Switch would stall with it
        piece = Signal(_PIECE_BITS)
        with m.Switch(entry.mtu):
            for mtu, code in MTU_CODE.items():
                with m.Case(code):
                    m.d.comb += piece.eq(offset >> (mtu.bit_length() - 1 - _SMALLEST_MTU_BITS))
        pipe.put("piece", stage + 1, piece)
        pipe.put("row", stage + 1, pipe.get("seq", stage) & ((Const(1, 1) << entry.rows) - 1)[:_ROW_BITS])
        pipe.put("pieces", stage + 1, entry.pieces)
        pipe.put("base", stage + 1, entry.base)
        pipe.put("noted", stage + 1, pipe.get("wants", stage) & entry.valid)

        stage += 1
        piece, pieces = pipe.get("piece", stage), pipe.get("pieces", stage)
        pipe.put("beyond", stage + 1, (piece >> pieces).any())
        pipe.put("first", stage + 1, (pipe.get("row", stage) << pieces)[:_ROW_BITS + _PIECE_BITS])

        # a piece inside of its row has no bit of the row's number
        stage += 1
        pipe.put("index", stage + 1, pipe.get("first", stage) | pipe.get("piece", stage))
        pipe.put("inside", stage + 1, pipe.get("noted", stage) & ~pipe.get("beyond", stage))
        stage += 1
        pipe.put("addr", stage + 1, ((pipe.get("base", stage) << 6) + pipe.get("index", stage))[:64])
        stage += 1
        assert stage == self.LATENCY
        m.d.comb += [self.mark.valid.eq(pipe.get("inside", stage)), self.mark.addr.eq(pipe.get("addr", stage)),
                     self.mark.source.eq(pipe.get("source", stage))]
        return m
