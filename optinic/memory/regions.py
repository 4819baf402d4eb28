"""The region table: from a memory key and an address to a bus address, or the reason why not."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from ..abi.regions import BANKS, row_masks
from ..abi.verdicts import REASON
from .table import Table, TableSpec, alarm_members, connect_alarms, protect

__all__ = ["Regions", "region_entry_layout", "region_request_layout", "region_result_layout"]


def region_entry_layout():
    return StructLayout({
        "key": 32,
        "va": 64, "length": 64,     # the region is va ..< va + length
        "delta": 64,                # bus address - va, modulo 2^64
        "pd": 16, "access": 4,      # access: abi ACCESS
        "valid": 1,
    })


def region_request_layout(cfg):
    return StructLayout({"key": 32, "va": 64, "len": 32, "pd": 16, "need": 4})


def region_result_layout():
    return StructLayout({"reason": 5, "addr": 64})


#: what is read only after the key is known to be there
_BODY = StructLayout({"va": 64, "length": 64, "delta": 64, "pd": 16, "access": 4})
_KEY = StructLayout({"key": 32, "valid": 1})


class Regions(wiring.Component):
    """Two-bank cuckoo table of memory regions (hash and software side: abi/regions.py).

    `o` answers the `i` of `LATENCY` cycles ago, one request every cycle, without handshake. `o.reason` is, first that
    applies: `rkey` (no valid entry with that key), `pd`, `access` (a bit of `need` is not in the entry), `bounds`, else 0.
    Within bounds: va >= region's va, va + len <= region's va + length, and va + len <= 2^64; nothing is computed modulo
    2^64. A request of no bytes needs no region: reason 0 whatever the rest is (IBTA C9-88: no key check). `o.addr` is
    va + delta modulo 2^64, meaningful when the reason is 0 and len is not.

    `set` writes one slot. A request given in the same cycle or later sees the new entry, one given before the old entry,
    never a mixture. Two sets are at least `SET_INTERVAL` cycles apart. After reset no entry is valid; while that is being
    written, `clearing` is high: sets are ignored and answers are undefined.

    The keys of both banks are read first and the rest once, from the bank that has it: one wide table instead of two.
    """

    LATENCY = 8
    SET_INTERVAL = 4

    def __init__(self, cfg):
        self._cfg = cfg
        rows = cfg.num_regions // BANKS
        super().__init__({
            "i": In(region_request_layout(cfg)),
            "o": Out(region_result_layout()),
            "set": In(StructLayout({"en": 1, "slot_bank": range(BANKS), "slot_row": range(rows),
                                    "entry": region_entry_layout()})),
            "clearing": Out(1),
        } | alarm_members(cfg))

    @staticmethod
    def tables(cfg):
        owner = "memory.regions"
        specs = [
            *(TableSpec(f"region_key{bank}", owner, _KEY.size, cfg.num_regions // BANKS, "region", "address")
              for bank in range(BANKS)),
            TableSpec("region_body", owner, _BODY.size, cfg.num_regions, "region", "address"),
        ]
        return protect(cfg, specs, refuses=[spec.name for spec in specs])

    def elaborate(self, platform):
        m = Module()
        rows = self._cfg.num_regions // BANKS
        *key_specs, body_spec = self.tables(self._cfg)
        keys = [Table(spec, _KEY) for spec in key_specs]
        body = Table(body_spec, _BODY)
        for bank, table in enumerate(keys):
            m.submodules[f"keys{bank}"] = table
        m.submodules.body = body
        connect_alarms(m, self, (*keys, body))
        m.d.comb += self.clearing.eq(Cat(*(table.clearing for table in keys), body.clearing).any())

        def delayed(signal, cycles, name):
            for n in range(cycles):
                later = Signal.like(signal, name=f"{name}_{n + 1}", reset_less=True)
                m.d.sync += later.eq(signal)
                signal = later
            return signal

        # stages 0, 1: does the access run over the end of all addresses? Only its low bits can carry that far
        low = len(self.i.len)
        near_end = Signal(reset_less=True)
        carry = Signal(low + 1, reset_less=True)
        over_end = Signal(reset_less=True)
        no_bytes = Signal(reset_less=True)
        m.d.sync += [
            near_end.eq(self.i.va[low:].all()), carry.eq(self.i.va[:low] + self.i.len),
            over_end.eq(near_end & carry[low] & carry[:low].any()),
            no_bytes.eq(self.i.len == 0),
        ]
        wraps, empty = delayed(over_end, 5, "over_end"), delayed(no_bytes, 6, "no_bytes")

        # stage 0: the rows. Stages 1, 2: both banks are read. Stages 3, 4: does a bank have the key?
        hits, row_at_4 = [], []
        key_at_3 = delayed(self.i.key, 3, "key")
        for bank, table in enumerate(keys):
            row = Signal(range(rows), name=f"row{bank}", reset_less=True)
            m.d.sync += row.eq(Cat((self.i.key & mask).xor() for mask in row_masks(bank, rows)))
            m.d.comb += table.read0_addr.eq(row)
            found = table.read0_data
            same = Signal(4, name=f"same_bytes{bank}", reset_less=True)
            for byte in range(4):
                m.d.sync += same[byte].eq(found.valid & (found.key.word_select(byte, 8) == key_at_3.word_select(byte, 8)))
            hits.append(same.all())
            row_at_4.append(delayed(row, 3, f"row{bank}"))

        # stages 4, 5: the entry is read
        m.d.comb += body.read0_addr.eq(Mux(hits[0], row_at_4[0], Cat(row_at_4[1], 1)))
        missing = delayed(~(hits[0] | hits[1]), 3, "missing")

        # stage 6: difference, room and address; whatever doesn't need the difference is settled, too
        entry = body.read0_data
        va, length = delayed(self.i.va, 6, "va"), delayed(self.i.len, 6, "len")
        pd, need = delayed(self.i.pd, 6, "pd"), delayed(self.i.need, 6, "need")
        offset, room = (Signal(65, name=n, reset_less=True) for n in ("offset", "room"))
        addr = Signal(64, reset_less=True)
        wrong_pd, wrong_access = (Signal(name=n, reset_less=True) for n in ("wrong_pd", "wrong_access"))
        m.d.sync += [
            offset.eq(va - entry.va),
            room.eq(entry.length - length),     # how far from its beginning an access may start
            addr.eq(va + entry.delta),
            wrong_pd.eq(pd != entry.pd),
            wrong_access.eq((need & ~entry.access).any()),
        ]

        # stage 7: compare the two, and choose the reason
        outside = offset[64] | room[64] | wraps | (offset[:64] > room[:64])
        reason = Signal(5)
        with m.If(empty):
            m.d.comb += reason.eq(REASON["none"])
        with m.Elif(missing):
            m.d.comb += reason.eq(REASON["rkey"])
        with m.Elif(wrong_pd):
            m.d.comb += reason.eq(REASON["pd"])
        with m.Elif(wrong_access):
            m.d.comb += reason.eq(REASON["access"])
        with m.Elif(outside):
            m.d.comb += reason.eq(REASON["bounds"])
        m.d.sync += [self.o.reason.eq(reason), self.o.addr.eq(addr)]

        self._set(m, keys, body)
        return m

    def _set(self, m, keys, body):
        """The body is read three stages after the keys, so it is written three cycles after them."""
        for bank, table in enumerate(keys):
            m.d.comb += [
                table.write_en.eq(self.set.en & (self.set.slot_bank == bank)),
                table.write_addr.eq(self.set.slot_row),
                table.write_data.key.eq(self.set.entry.key), table.write_data.valid.eq(self.set.entry.valid),
            ]
        held = Signal(self.set.shape(), reset_less=True)
        wait = Signal(3)
        m.d.sync += wait.eq(Cat(self.set.en, wait))
        with m.If(self.set.en):
            m.d.sync += held.eq(self.set)
        m.d.comb += [
            body.write_en.eq(wait[2]),
            body.write_addr.eq(Cat(held.slot_row, held.slot_bank)),
            *(body.write_data[name].eq(held.entry[name]) for name, _ in _BODY),
        ]
