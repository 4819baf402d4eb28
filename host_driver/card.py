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

from .completions import CompletionQueues
from .errors import CardError, CommandError, QueueFull
from .queue_pairs import ArrivalMap, QueuePair, mac_number, peer_words
from .queues import Completion
from .registers import low_high
from .work_requests import TRACKED, receive_wqe, send_wqe, timeout_ticks

__all__ = ["Card", "CardError", "CommandError", "QueueFull", "Completion", "ArrivalMap"]


SETTINGS = ("PKEY", "DMA_TIMEOUT", "HOP_LIMIT", "PACER_BURST", "CNP_INTERVAL")


def _bits(what, table):
    if isinstance(what, int):
        return what
    unknown = [name for name in what if name not in table]
    if unknown:
        raise ValueError(f"unknown access {unknown[0]!r}; known are {', '.join(table)}")
    return sum(table[name] for name in set(what))


class Card(CompletionQueues):
    """Brings the card up as far as its rings; :meth:`enable` then opens it to frames.

    `cfg`, if given, is the NicConfig that the card must have been generated from. Frames are off from here to
    :meth:`enable`, and what an earlier driver left stays until it is replaced or :meth:`tear_down` clears it.
    """

    def __init__(self, device, cfg=None):
        super().__init__(device, cfg)
        self.found_running = bool(self.reg_read("CTRL") or self.reg_read("RQ_BASE_LO") or self.reg_read("RQ_BASE_HI"))
        self.reg_write("CTRL", 0)
        self._wait("the tables to be cleared", lambda: self.reg_read("STATUS") & 1)
        self._forget()
        self.rq_base = device.alloc(self.num_qps * self.rq_entries * RECV_WQE.size, 4096)
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

    def create_qp(self, qpn, *, type="xp", state="ready", mtu=1024, generation=0, pd=0, peer=0, cq=0, send_cq=None,
                  arrival_map=None, peer_qpn=0, peer_generation=0, traffic_class=0, paths=1):
        """A QP, or a new life of it: receive 0 and send 0 are the next, and what was posted before is forgotten.

        It sends to `peer_qpn`, whose life is `peer_generation`, over `paths` UDP source ports, with `traffic_class` (DSCP << 2 |
        ECN) in the IP header. Completions of sends go to `send_cq`, by default `cq`. With `arrival_map`, an
        :class:`ArrivalMap`, the card notes there what arrives; :meth:`arrived` reads it."""
        if arrival_map and "arrival_map" not in self.features:
            raise CardError(f"QP {qpn:#x} is to have an arrival map, and this card has none; generate it with arrival_map=on")
        if send_cq is None:
            send_cq = cq
        qp = QueuePair(qpn, self.mtu_max, (self.rq_entries, self.sq_entries), (self._cqs.get(cq), self._cqs.get(send_cq)),
                       type=type, state=state, mtu=mtu, generation=generation, pd=pd, peer=peer, cq=cq, send_cq=send_cq,
                       map=arrival_map, peer_qpn=peer_qpn, peer_generation=peer_generation, traffic_class=traffic_class,
                       paths=paths)
        index = self.qp_index(qpn)
        other = self._qps.get(index)
        if other and other.qpn != qpn:
            raise CardError(f"QPN {qpn:#x} shares the table row {index} with QPN {other.qpn:#x}; destroy that one first")
        self.command("qp_set", *qp.arguments(state))
        self._end_life(other)
        self._qps[index] = qp

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

    def _end_life(self, qp):
        """Completions of a life that has ended are taken from the rings while it is still known."""
        if qp:
            for cq in {qp.cq, qp.send_cq} & self._cqs.keys():
                self._collect(self._cqs[cq])
            qp.receives.forget(), qp.sends.forget()

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

    # -- posting --------------------------------------------------------------------------------------

    def post_receive(self, qpn, va, length, lkey, *, timeout_ns=None, absolute=False, wr_id=None, doorbell=True):
        """Post a receive and return its index, which is the message sequence that the sender must use.

        `timeout_ns` counts from when the receive becomes the oldest one, or, with `absolute`, is a NIC time; it is rounded
        up to whole ticks of 64 ns. Raises QueueFull, with nothing changed, if the ring has no free slot. Without
        `doorbell` the card learns of it with the next one that has it. On a QP with an arrival map its row is wiped.
        """
        qp = self._qp(qpn)
        if qp.state == "error":
            raise CardError(f"QP {qpn:#x} is in state error: a receive posted to it would never complete")
        if qp.receives.full:
            raise QueueFull(f"QP {qpn:#x} has {self.rq_entries} uncompleted receives; poll first")
        if qp.map and qp.receives.outstanding >= qp.map.rows:
            raise QueueFull(f"QP {qpn:#x} has {qp.map.rows} uncompleted receives, and its arrival map a row for each of them but "
                            f"for no more; poll first, or give it more rows")
        wqe = receive_wqe(va, length, lkey, timeout_ns=timeout_ns, absolute=absolute)
        index = qp.receives.posted
        if qp.map:      # anything but what the card will write
            self.device.write(qp.map.row(index), bytes([~index & 0xFF]) * qp.map.pieces)
        slot = self.qp_index(qpn) * self.rq_entries + index % self.rq_entries
        self.device.write(self.rq_base + slot * RECV_WQE.size, wqe)
        qp.receives.add(wr_id)
        if doorbell:
            self.ring(qpn)
        return index % (1 << 32)

    def ring(self, qpn):
        """Tell the card how many receives are posted."""
        self.reg_write("RQ_DOORBELL", self.qp_index(qpn) << 16 | self._qp(qpn).receives.posted & 0xFFFF)

    def post_send(self, qpn, opcode, va=0, length=0, lkey=0, *, inline=None, remote_va=0, rkey=0, imm=0, seq=None, tag=0,
                  timeout_ns=None, deadline_ns=None, signaled=True, solicited=False, wr_id=None, doorbell=True):
        """Post a send of abi SEND_OP and return its index.

        `seq`: which receive the message takes, at the peer, or for a READ of this QP; by default the k-th message that takes
        one takes receive k. `timeout_ns` from now, or `deadline_ns`, a NIC time: what is unsent then is abandoned. Without
        `signaled` a success is not reported; it is accounted for by the next completion behind it. Raises QueueFull, with
        nothing changed, if the ring has no free slot.
        """
        qp = self._qp(qpn)
        if not self.sq_entries:
            raise CardError("this card has no send half")
        if opcode == "read" and seq is None:
            raise ValueError("a READ needs seq, the receive of this QP that takes the answer")
        if opcode == "read" and qp.type == "uc":
            raise ValueError("a QP of type uc can't READ: there is no such packet; use type xp")
        if timeout_ns is not None:
            if deadline_ns is not None:
                raise ValueError("give timeout_ns or deadline_ns, not both")
            timeout_ticks(timeout_ns)
            deadline_ns = self.time_ns() + timeout_ns
        if qp.sends.full and qp.sends.ends_in:
            self._collect(qp.sends.ends_in)        # kept for the next poll
        if qp.sends.full:
            raise QueueFull(f"QP {qpn:#x} has {self.sq_entries} uncompleted sends; wait and poll CQ {qp.send_cq} first")
        index = qp.sends.posted
        announce = signaled or index + 1 - qp.sends.announced >= qp.signal_every
        tracked = opcode in TRACKED
        wqe = send_wqe(opcode, va, length, lkey, inline=inline, remote_va=remote_va, rkey=rkey, imm=imm,
                       seq=(qp.messages if tracked else 0) % (1 << 32) if seq is None else seq, tag=tag, deadline_ns=deadline_ns,
                       signaled=announce, solicited=solicited)
        slot = self.qp_index(qpn) * self.sq_entries + index % self.sq_entries
        self.device.write(self.sq_base + slot * SEND_WQE.size, wqe)
        qp.sends.add(wr_id, silent=not signaled, announce=announce)
        qp.messages += tracked
        if doorbell:
            self.ring_send(qpn)
        return index % (1 << 32)

    def ring_send(self, qpn):
        """Tell the card how many sends are posted."""
        self.reg_write("SQ_DOORBELL", self.qp_index(qpn) << 16 | self._qp(qpn).sends.posted & 0xFFFF)

    def arrived(self, qpn, index, msg_len=None):
        """What is there of the message of receive `index`, by the QP's arrival map: a list with True for each piece, one MTU of
        the message, that was placed; of the pieces of a message of `msg_len` bytes, or of a whole row.

        To be asked when the receive has completed, and before as many receives as the map has rows are posted behind it. A
        piece is one packet if the sender cuts its messages at multiples of the MTU."""
        qp = self._qp(qpn)
        if qp.map is None:
            raise CardError(f"QP {qpn:#x} has no arrival map")
        count = qp.map.pieces if msg_len is None else min(qp.map.pieces, -(-msg_len // qp.mtu))
        return [byte == index & 0xFF for byte in self.device.read(qp.map.row(index), count)] if count else []

    def room(self, qpn, queue="receive"):
        """Receives (sends) that can be posted now without a completion being lost: free slots of the QP's ring, and of its
        completion queue. What it takes out of that to find some is kept for the next poll."""
        work = self._qp(qpn).queue(queue)
        ends_in = work.ends_in
        room = lambda: min(work.slots - work.outstanding, ends_in.entries - ends_in.due if ends_in else work.slots)
        if room() <= 0 and ends_in:
            self._collect(ends_in)
        return max(0, room())

    def outstanding(self, qpn, queue="receive"):
        """Receives (sends) posted and not yet polled as complete."""
        return self._qp(qpn).queue(queue).outstanding
