"""The card as its registers and rings present it: commands, posting, polling. What every driver is built on.

A *device* is whatever reaches the card; it has

    reg_read(offset) -> int, reg_write(offset, value)       32-bit registers
    alloc(length, align) -> bus address                     zeroed memory that the card may use
    read(address, n) -> bytes, write(address, data)         that memory
    run(cycles)                                             let time pass (a real card passes it by itself)

and, if it likes, `free(address)` for what alloc gave, and `live_memory`, True if the card writes while a read is under way.

Everything here is synchronous and belongs to one thread. docs/host-interface.md has the rules that this code follows.
"""

import ipaddress

from optinic.abi.registers import ACCESS, REGISTERS
from optinic.abi.regions import RegionSlots
from optinic.abi.structs import RECV_WQE, SEND_WQE

from .errors import CardError, CommandError, QueueFull
from .posting import Posting
from .queue_pairs import TYPES, ArrivalMap, QueuePair, Reliability, mac_number, peer_words
from .queues import Completion
from .registers import low_high

__all__ = ["Card", "CardError", "CommandError", "QueueFull", "Completion", "ArrivalMap", "Reliability"]


SETTINGS = ("PKEY", "DMA_TIMEOUT", "HOP_LIMIT", "PACER_BURST", "CNP_INTERVAL")


def _bits(what, table):
    if isinstance(what, int):
        return what
    unknown = [name for name in what if name not in table]
    if unknown:
        raise ValueError(f"unknown access {unknown[0]!r}; known are {', '.join(table)}")
    return sum(table[name] for name in set(what))


class Card(Posting):
    """Brings the card up as far as its rings; :meth:`enable` then opens it to frames.

    `cfg`, if given, is the NicConfig that the card must have been generated from. Frames are off from here to
    :meth:`enable`, and what an earlier driver left stays until it is replaced or :meth:`tear_down` clears it.
    """

    def __init__(self, device, cfg=None):
        super().__init__(device, cfg)
        if self.transport not in TYPES:
            raise CardError(f"the card's transport is {self.transport}, and this driver drives {' and '.join(TYPES)}")
        self.rc = self.transport == "rc"
        self.found_running = bool(self.reg_read("CTRL") or self.reg_read("RQ_BASE_LO") or self.reg_read("RQ_BASE_HI"))
        self.reg_write("CTRL", 0)
        self._wait("the tables to be cleared", lambda: self.reg_read("STATUS") & 1)
        self._forget()
        # With transport rc a second ring for each row, behind the others, for the results of READs and atomics.
        rows = 2 * self.qp_rows if self.rc else self.num_qps
        self.rq_base = device.alloc(rows * self.rq_entries * RECV_WQE.size, 4096)
        self.reg_write_wide("RQ_BASE", self.rq_base)
        if self.sq_entries:
            self.sq_base = device.alloc(self.num_qps * self.sq_entries * SEND_WQE.size, 4096)
            self.reg_write_wide("SQ_BASE", self.sq_base)

    def _forget(self):
        self.slots = RegionSlots(self.num_regions)
        self._regions, self._qps = {}, {}
        self._forget_completions()
        self.reg_write("REFUSAL_LOG", 0)

    def enable(self, *, hold=False, tx=True):
        """Accept frames, and with `tx` send them. With `hold` a full packet buffer holds the MAC; without, it drops the frame
        as `overflow`."""
        self.reg_write("CTRL", 1 | hold << 1 | tx << 2)

    def disable(self):
        """Discard every frame at the MAC and begin none."""
        self.reg_write("CTRL", 0)

    def tear_down(self):
        """Clear what this or an earlier driver left: frames off, every QP, region and CQ gone, settings as after a reset. Works
        in any state."""
        self.disable()
        for register in REGISTERS:
            if register.name in SETTINGS:
                self.reg_write(register.name, register.reset)
        for index in range(self.num_qps):
            self.command("qp_destroy", index)
        for bank in range(2):
            for row in range(self.num_regions // 2):
                self._write_slot((bank, row), 0, 0, 0, 0, 0)
        for index in range(self.num_cqs):
            self.command("cq_set", index, 0, 0, 0)
        self._forget()

    def give_back_rings(self):
        """The last thing that a driver does, when its queue pairs, regions and completion queues are gone: the card is then as
        after a reset, but for counters and time."""
        for name in ("RQ", "SQ") if self.sq_entries else ("RQ",):
            self.reg_write_wide(f"{name}_BASE", 0)
            self.free(getattr(self, f"{name.lower()}_base"))

    # -- addresses --------------------------------------------------------------------------------------

    def set_local(self, mac, ip4=None, ip6=None):
        """The port's own addresses: the senders of its frames."""
        mac = mac_number(mac)
        self.reg_write("LOCAL_MAC_LO", mac & 0xFFFFFFFF)
        self.reg_write("LOCAL_MAC_HI", mac >> 32)
        if ip4 is not None:
            self.reg_write("LOCAL_IP4", int(ipaddress.IPv4Address(ip4)))
        if ip6 is not None:
            for i in range(4):
                self.reg_write(f"LOCAL_IP6_{i}", int(ipaddress.IPv6Address(ip6)) >> 32 * i & 0xFFFFFFFF)

    def set_peer(self, index, ip, *, mac=0, vlan=None):
        """The address that QPs with this peer take frames from and send them to; `ip` as text or as an address of `ipaddress`,
        `vlan` the tag of the frames sent (priority and number), None for none."""
        words = peer_words(ip, mac, vlan)
        if vlan is not None and "vlan" not in self.features:
            raise CardError(f"peer {index} is to have a VLAN tag, and this card knows none; generate it with vlan=on")
        self.command("peer_set", index, *words)

    # -- queue pairs ----------------------------------------------------------------------------------

    def create_qp(self, qpn, *, type=None, state="ready", mtu=1024, generation=0, pd=0, peer=0, cq=0, send_cq=None,
                  arrival_map=None, peer_qpn=0, peer_generation=0, traffic_class=0, paths=1, **reliable):
        """A QP, or a new life of it: receive 0 and send 0 are the next, and what was posted before is forgotten.

        `type`: "xp" or "uc" of a card of transport xp, "rc" or "uc" of one of transport rc; by default the first. `reliable`:
        of a card of transport rc, the attributes of :class:`Reliability`; generations mean nothing to it.

        It sends to `peer_qpn`, whose life is `peer_generation`, over `paths` UDP source ports, with `traffic_class` (DSCP << 2 |
        ECN) in the IP header. Completions of sends go to `send_cq`, by default `cq`. With `arrival_map`, an
        :class:`ArrivalMap`, the card notes there what arrives; :meth:`arrived` reads it."""
        if arrival_map and "arrival_map" not in self.features:
            raise CardError(f"QP {qpn:#x} is to have an arrival map, and this card has none; generate it with arrival_map=on")
        if send_cq is None:
            send_cq = cq
        if reliable and not self.rc:
            raise ValueError(f"{', '.join(reliable)}: this card is of transport {self.transport}, which has no such attributes")
        qp = QueuePair(qpn, self.mtu_max, (self.rq_entries, self.sq_entries), (self._cqs.get(cq), self._cqs.get(send_cq)),
                       transport=self.transport, reliable=Reliability(**reliable), type=type, state=state, mtu=mtu,
                       generation=generation, pd=pd, peer=peer, cq=cq, send_cq=send_cq, map=arrival_map, peer_qpn=peer_qpn,
                       peer_generation=peer_generation, traffic_class=traffic_class, paths=paths)
        index = self.qp_index(qpn)
        other = self._qps.get(index)
        if other and other.qpn != qpn:
            raise CardError(f"QPN {qpn:#x} shares the table row {index} with QPN {other.qpn:#x}; destroy that one first")
        self.command("qp_set", *qp.arguments(state))
        self._end_life(other)
        self._qps[index] = qp
        if qp.type == "rc":
            if qp.receives.ends_in:     # a failure that the peer causes has a completion of its own there
                qp.receives.ends_in.due += 1
            if cq != send_cq and {cq, send_cq} <= self._cqs.keys():
                self._beside[cq].add(send_cq), self._beside[send_cq].add(cq)

    def destroy_qp(self, qpn):
        """After this no packet of the QP reads or writes memory; what is uncompleted is forgotten (see flush_qp)."""
        self.command("qp_destroy", qpn)
        qp = self._qps.get(self.qp_index(qpn))
        if qp and qp.qpn == qpn:
            self._end_life(qp)
            del self._qps[self.qp_index(qpn)]

    def flush_qp(self, qpn):
        """Put the QP in state error and complete its posted receives and sends as flushed."""
        qp = self._qp(qpn)
        self.command("qp_flush", *qp.arguments("error"))
        qp.state = "error"

    def set_rate(self, qpn, ns_per_byte):
        """How fast the QP sends, for the congestion controller `fixed`; 0: not paced."""
        word = round(ns_per_byte * 65536)
        if not 0 <= word < 1 << 32:
            raise ValueError(f"ns_per_byte={ns_per_byte} is outside 0..65535")
        self.command("rate_set", self._qp(qpn).qpn, word)

    def _qp(self, qpn):
        qp = self._qps.get(self.qp_index(qpn))
        if qp is None or qp.qpn != qpn:
            raise CardError(f"there is no QP {qpn:#x}")
        return qp

    def failure(self, qpn):
        """The completion, fatal, by which a QP of type rc has failed, as far as completions have been looked at; else None."""
        return self._qp(qpn).failure

    def contradiction(self, qpn):
        """What the card has said of a QP that can't be true, as far as completions have been looked at; else None."""
        return self._qp(qpn).contradiction

    def _end_life(self, qp):
        """Completions of a life that has ended are taken from the rings while it is still known."""
        if qp:
            qp.state = "error"      # a failure that is found now was of that life: there is nothing to flush any more
            for cq in {qp.cq, qp.send_cq} & self._cqs.keys():
                self._collect(self._cqs[cq])
            qp.receives.forget(), qp.sends.forget()
            if qp.type == "rc" and qp.receives.ends_in:
                qp.receives.ends_in.due -= 1

    # -- regions --------------------------------------------------------------------------------------

    def add_region(self, key, va, length, access, *, pd=0, delta=0):
        """Memory va ..< va + length, on the bus at va + delta (modulo 2^64); `access` as a number or as names of ACCESS."""
        if not (0 <= va < 1 << 64 and 0 < length and va + length <= 1 << 64):
            raise ValueError(f"region {va:#x} + {length:#x} is empty or leaves the 64-bit address space")
        entry = (va, length, delta % (1 << 64), pd | _bits(access, ACCESS) << 16 | 1 << 31)
        writes = self.slots.insert(key)
        self._regions[key] = entry
        for slot, moved in writes:
            self._write_slot(slot, moved, *self._regions[moved])

    def remove_region(self, key):
        """After this nothing is written or read under the key."""
        slot = self.slots.remove(key)
        del self._regions[key]
        self._write_slot(slot, 0, 0, 0, 0, 0)

    def _write_slot(self, slot, key, va, length, delta, rights):
        halves = (part for value in (va, length, delta) for part in low_high(value))
        self.command("region_set", slot[0] << 31 | slot[1], key, *halves, rights)

    def has_region(self, key):
        """Whether there is memory with this key: a peer may have invalidated it."""
        return key in self._regions
