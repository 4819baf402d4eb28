"""Where packets go: the addresses of a peer, shared by all queue pairs that talk to it."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.memory.table import Table, TableSpec

__all__ = ["tx_peer_layout", "peer_set_signature", "PeerTable"]


def tx_peer_layout(cfg):
    """`mac` of the next hop; `ip` as a number, IPv4 in its low word; `v6`: which it is; `tci`: tag control, sent if `vlan`."""
    return StructLayout({"mac": 48, "ip": 128 if cfg.ipv6 else 32, "v6": 1, "vlan": 1, "tci": 16})


def peer_set_signature(cfg):
    return wiring.Signature({"en": Out(1), "index": Out(range(cfg.num_peers)), "entry": Out(tx_peer_layout(cfg))})


class PeerTable(wiring.Component):
    """`entry` belongs to the `index` of two cycles ago; `set` writes. After reset all are cleared (`clearing`), writes are lost
    meanwhile. What the configuration can't send (IPv6, tags) reads as 0."""

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "set": In(peer_set_signature(cfg)), "clearing": Out(1),
            "index": In(range(cfg.num_peers)), "entry": Out(tx_peer_layout(cfg)),
        })

    @staticmethod
    def tables(cfg):
        return [TableSpec("tx_peer", "frame_builder", tx_peer_layout(cfg).size, cfg.num_peers, "peer", "address")]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.table = table = Table(self.tables(cfg)[0], tx_peer_layout(cfg))
        m.d.comb += [
            table.write_en.eq(self.set.en), table.write_addr.eq(self.set.index), table.write_data.eq(self.set.entry),
            table.read0_addr.eq(self.index), self.clearing.eq(table.clearing), self.entry.eq(table.read0_data),
        ]
        if not cfg.ipv6:
            m.d.comb += self.entry.v6.eq(0)
        if not cfg.vlan:
            m.d.comb += self.entry.vlan.eq(0)
        return m
