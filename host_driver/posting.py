"""Posting to a card: work requests into the rings of its queue pairs, and the accounts of what is under way."""

from optinic.abi.structs import RECV_WQE, SEND_WQE

from .completions import CompletionQueues
from .errors import CardError, QueueFull
from .work_requests import ATOMIC, RESULT_BYTES, TRACKED, check_opcode, receive_wqe, send_wqe, timeout_ticks

__all__ = ["Posting"]


class Posting(CompletionQueues):
    """`rq_base` and `sq_base` are where the rings are, `rc` whether the card is of transport rc."""

    def post_receive(self, qpn, va, length, lkey, *, timeout_ns=None, absolute=False, wr_id=None, doorbell=True):
        """Post a receive and return its index, which is the message sequence that the sender must use.

        `timeout_ns` counts from when the receive becomes the oldest one, or, with `absolute`, is a NIC time; it is rounded
        up to whole ticks of 64 ns. Raises QueueFull, with nothing changed, if the ring has no free slot. Without
        `doorbell` the card learns of it with the next one that has it. On a QP with an arrival map its row is wiped.
        """
        qp = self._qp(qpn)
        if qp.state == "error":
            raise CardError(f"QP {qpn:#x} is in state error: a receive posted to it would never complete")
        if self.rc and timeout_ns is not None:
            raise ValueError("timeout_ns: this card is of transport rc, whose receives wait until a message comes; there is no time "
                             "limit")
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
                  timeout_ns=None, deadline_ns=None, signaled=True, solicited=False, operands=None, wr_id=None, doorbell=True):
        """Post a send of abi SEND_OP and return its index.

        Of a READ on a card of transport rc, va, length and lkey say where the result goes; so they do of an atomic, whose
        result is a 64-bit number, little endian once the completion is polled. `operands` of an atomic: what to swap in or to
        add, and what to compare with. Of send_inv `imm` is the key to be invalidated. Neither seq, tag nor time limits are
        known there.

        `seq`: which receive the message takes, at the peer, or for a READ of this QP; by default the k-th message that takes
        one takes receive k. `timeout_ns` from now, or `deadline_ns`, a NIC time: what is unsent then is abandoned. Without
        `signaled` a success is not reported; it is accounted for by the next completion behind it. Raises QueueFull, with
        nothing changed, if the ring has no free slot.
        """
        qp = self._qp(qpn)
        if not self.sq_entries:
            raise CardError("this card has no send half")
        check_opcode(opcode, qp.type)
        if self.rc:
            for name, value in (("seq", seq), ("tag", tag or None), ("timeout_ns", timeout_ns), ("deadline_ns", deadline_ns)):
                if value is not None:
                    raise ValueError(f"{name}={value}: this card is of transport rc, which knows none")
        elif opcode == "read" and seq is None:
            raise ValueError("a READ needs seq, the receive of this QP that takes the answer")
        if timeout_ns is not None:
            if deadline_ns is not None:
                raise ValueError("give timeout_ns or deadline_ns, not both")
            timeout_ticks(timeout_ns)
            deadline_ns = self.time_ns() + timeout_ns
        if qp.sends.full and qp.sends.ends_in:
            self._collect(qp.sends.ends_in)        # kept for the next poll
        if qp.sends.full:
            raise QueueFull(f"QP {qpn:#x} has {self.sq_entries} uncompleted sends; wait and poll CQ {qp.send_cq} first")
        has_result = self.rc and (opcode == "read" or opcode in ATOMIC)
        if has_result and qp.sends.results >= self.rq_entries:
            raise QueueFull(f"QP {qpn:#x} has {self.rq_entries} READs and atomics without a result, as many as there are places "
                            f"for it; wait and poll CQ {qp.send_cq} first")
        index = qp.sends.posted
        whole = qp.sends.whole
        announce = signaled or not whole and index + 1 - qp.sends.announced >= qp.signal_every
        tracked = opcode in TRACKED
        length = RESULT_BYTES if opcode in ATOMIC else len(inline) if inline is not None else length
        number = 0 if self.rc or not tracked else qp.messages % (1 << 32)
        buffer = (0, 0 if opcode in ATOMIC else length, 0) if has_result else (va, length, lkey)
        wqe = send_wqe(opcode, *buffer, inline=inline, remote_va=remote_va, rkey=rkey, imm=imm, seq=number if seq is None else seq,
                       tag=tag, deadline_ns=deadline_ns, signaled=announce, solicited=solicited, operands=operands)
        result = None
        if has_result:
            result = self._place_result(qp, va, length, lkey)
        slot = self.qp_index(qpn) * self.sq_entries + index % self.sq_entries
        self.device.write(self.sq_base + slot * SEND_WQE.size, wqe)
        qp.sends.add(wr_id, silent=not signaled, announce=announce, opcode=opcode, length=length, result=result)
        qp.messages += tracked
        if doorbell:
            self.ring_send(qpn)
        return index % (1 << 32)

    def _place_result(self, qp, va, length, lkey):
        """Write where the result goes into the QP's read ring; its address on the bus, -1 if the key isn't known."""
        row = self.qp_rows + self.qp_index(qp.qpn)
        slot = row * self.rq_entries + qp.results % self.rq_entries
        self.device.write(self.rq_base + slot * RECV_WQE.size, receive_wqe(va, length, lkey))
        qp.results += 1
        region = self._regions.get(lkey)
        return (va + region[2]) % (1 << 64) if region else -1

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
            self.look_beside(ends_in.index)
            self._collect(ends_in)
        return max(0, room())

    def outstanding(self, qpn, queue="receive"):
        """Receives (sends) posted and not yet polled as complete."""
        return self._qp(qpn).queue(queue).outstanding
