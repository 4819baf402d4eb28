"""Queue pairs, as a program uses them: posting, and what becomes of it. States and peers are in `connection`."""

from ..errors import CardError, OptinicError, QueueFull, UsageError
from ..work_requests import ATOMIC, REMOTE, RESULT_BYTES, WITH_IMM, timeout_ticks
from .connection import Connection
from .endpoint import Read, ReadRequest, Work
from .enums import QPState, QPType, SendFlags, mtu_bytes
from .wr import CARD_OPCODE

__all__ = ["QP"]

INIT, RTR, RTS = QPState.IBV_QPS_INIT, QPState.IBV_QPS_RTR, QPState.IBV_QPS_RTS
SQD, ERR = QPState.IBV_QPS_SQD, QPState.IBV_QPS_ERR
LONGEST_MESSAGE = 1 << 31       # of transport rc


class QP(Connection):
    """QP(pd, init_attr, qp_attr) as in pyverbs; with `qp_attr` it is taken to RTS at once.

    A connection is between two: exchange :meth:`info`, then :meth:`connect`. Its sends that take a receive (SEND, and WRITE with
    immediate) are counted, and the k-th takes the k-th receive of the peer, whatever became of those before. A queue pair that is
    made anew, or went through RESET, is another life: what is still under way for the last one is refused, and the peer has
    to connect anew too.

    Of type XP, READs go through a companion, a queue pair of its own on the card, which QPCap.max_rd_atomic asks for on both
    sides. Their completions come to the send CQ, in order among themselves; not in order with sends.

    Of type RC everything is in order, READs and atomics among the rest, and a success says that the peer has it. A request that
    fails is the last thing that the queue pair does: once its completion has been polled the state is ERR, and everything
    posted is flushed.
    """

    KNOWN_BY_XP = ("send", "send_imm", "write", "write_imm", "read")

    # -- receives -----------------------------------------------------------------------------------------

    def post_recv(self, wr, bad_wr=None):
        """Post a RecvWR and those behind it. All or, where one can't be posted, those before it; the exception's `bad_wr` is that
        one."""
        self._need_state("post_recv", INIT, RTR, RTS, SQD)
        try:
            for wr in chain(wr):
                self._post_recv(wr)
        except (OptinicError, ValueError) as error:
            error.bad_wr = wr
            raise
        finally:
            if self.qp_state != INIT:
                self.context.card.ring(self.qp_num)

    def _post_recv(self, wr):
        sge, timeout = wr.sge, wr.timeout_ns
        if timeout is not None and wr.deadline_ns is not None:
            raise UsageError("give timeout_ns or deadline_ns, not both")
        if timeout is None and wr.deadline_ns is None:
            timeout = self.init_attr.recv_timeout_ns
        if self.context.card.rc and (timeout, wr.deadline_ns) != (None, None):
            raise UsageError("timeout_ns and deadline_ns are of transport xp; this card is of transport rc, whose receives wait "
                             "until a message comes")
        absolute = wr.deadline_ns is not None
        call = dict(va=sge.addr, length=sge.length, lkey=sge.lkey, timeout_ns=wr.deadline_ns if absolute else timeout,
                    absolute=absolute, wr_id=Work(self, wr.wr_id, limited=absolute or timeout is not None))
        if self.qp_state == INIT:
            if len(self._early) >= min(self.cap.max_recv_wr, self.rcq.cqe - self.context.card.rc):
                raise QueueFull(f"{self!r} has {len(self._early)} receives already")
            self._early.append(call)
            return
        self._need_room(self._main, "receive", self.rcq)
        self._waits("receive", self._main.work("receive"))
        self.context.card.post_receive(self.qp_num, doorbell=False, **call)

    def _post_early(self):
        if self._early:
            self._waits("receive", self._main.work("receive"))
            for call in self._early:
                self.context.card.post_receive(self.qp_num, doorbell=False, **call)
            self.context.card.ring(self.qp_num)
            self._early.clear()

    def _need_room(self, endpoint, queue, cq):
        if self.context.card.room(endpoint.qpn, queue) <= 0:
            work = endpoint.work(queue)
            if work.full:
                raise QueueFull(f"{self!r}: its ring has {work.outstanding} {queue}s that have not completed, and room for no "
                                f"more; wait for completions")
            raise QueueFull(f"{self!r}: {cq!r} has no room for what would come of one more {queue}; wait for completions, or make "
                            f"it larger")

    # -- sends --------------------------------------------------------------------------------------------

    def post_send(self, wr, bad_wr=None):
        """Post a SendWR and those behind it, as post_recv does."""
        self._need_state("post_send", RTS, ERR)
        try:
            for wr in chain(wr):
                self._post_send(wr)
        except (OptinicError, ValueError) as error:
            error.bad_wr = wr
            raise
        finally:
            self.context.card.ring_send(self.qp_num)
            if self.qp_state == ERR and self.context.card.rc:
                self._main.flush()

    def _post_send(self, wr):
        wr.check()
        card, opcode = self.context.card, CARD_OPCODE[wr.opcode]
        if card.rc:
            return self._post_reliable(wr, opcode)
        if opcode not in self.KNOWN_BY_XP:
            raise UsageError(f"{wr.opcode.name}: this card is of transport xp, which has no such operation; one of transport rc has")
        if opcode == "read":
            return self._post_read(wr)
        va, length, lkey, inline = wr.payload(self.context.device.read)
        if self.qp_type == QPType.IBV_QPT_UC and length > mtu_bytes(self.attr.path_mtu):
            raise UsageError(f"a message of {length} bytes: with IBV_QPT_UC each is one packet, of "
                             f"{mtu_bytes(self.attr.path_mtu)} bytes at most")
        self._need_room(self._main, "send", self.scq)
        signaled = self._signaled(wr)
        deadline = self._deadline(wr)
        self._waits("send", self._main.work("send"))
        more = dict(remote_va=wr.remote_addr, rkey=wr.rkey) if opcode in REMOTE else {}
        card.post_send(self.qp_num, opcode, va, length, lkey, inline=inline, tag=wr.tag, deadline_ns=deadline, signaled=signaled,
                       imm=wr.imm_data if opcode in WITH_IMM else 0, solicited=bool(wr.send_flags & SendFlags.IBV_SEND_SOLICITED),
                       wr_id=Work(self, wr.wr_id, opcode, signaled), doorbell=False, **more)

    def _post_reliable(self, wr, opcode):
        """On a card of transport rc. That a request can't be posted is found out before anything has changed."""
        card, signaled = self.context.card, self._signaled(wr)
        if (wr.timeout_ns, wr.deadline_ns, wr.tag) != (None, None, 0):
            raise UsageError("timeout_ns, deadline_ns and tag are of transport xp; this card is of transport rc")
        more = {}
        if opcode == "read" or opcode in ATOMIC:
            (va, length, lkey, inline), more = self._result_buffer(wr, opcode), dict(operands=wr.operands)
        else:
            va, length, lkey, inline = wr.payload(self.context.device.read)
        if length > LONGEST_MESSAGE:
            raise UsageError(f"a message of {length} bytes; at most {LONGEST_MESSAGE} fit into one")
        self._need_room(self._main, "send", self.scq)
        self._waits("send", self._main.work("send"))
        if opcode in REMOTE:
            more |= dict(remote_va=wr.remote_addr, rkey=wr.rkey)
        card.post_send(self.qp_num, opcode, va, length, lkey, inline=inline, signaled=signaled, doorbell=False,
                       imm=wr.number if opcode in WITH_IMM else 0, solicited=bool(wr.send_flags & SendFlags.IBV_SEND_SOLICITED),
                       wr_id=Work(self, wr.wr_id, opcode, signaled), **more)

    def _result_buffer(self, wr, opcode):
        """Where a READ or atomic puts what it brings."""
        if self.qp_type != QPType.IBV_QPT_RC:
            raise UsageError(f"{wr.opcode.name}: {self.qp_type.name} has neither READ nor atomics; IBV_QPT_RC has")
        if not self.attr.max_rd_atomic:
            raise UsageError(f"{self!r}: its max_rd_atomic is 0, so that nothing may be read; give QPAttr.max_rd_atomic")
        sge = wr.sge
        if wr.inline_data is not None or wr.send_flags & SendFlags.IBV_SEND_INLINE:
            raise UsageError("a READ or atomic brings its payload from the peer: there is nothing to inline")
        if opcode in ATOMIC and sge.length < RESULT_BYTES:
            raise UsageError(f"an atomic brings {RESULT_BYTES} bytes, and its sg has room for {sge.length}")
        return sge.addr, RESULT_BYTES if opcode in ATOMIC else sge.length, sge.lkey, None

    def _signaled(self, wr):
        return bool(self.init_attr.sq_sig_all) or wr.signaled

    def _deadline(self, wr):
        if wr.deadline_ns is not None:
            return wr.deadline_ns
        timeout = self.init_attr.send_timeout_ns if wr.timeout_ns is None else wr.timeout_ns
        if timeout is None:
            return None
        timeout_ticks(timeout)      # must be within what the card can tell from the past
        return self.context.time_ns() + timeout

    def _post_read(self, wr):
        if self._reads is None:
            raise UsageError(f"{self!r} can't READ: give its QPCap max_rd_atomic (and the peer's)")
        self._need_state("a READ", RTS)
        card, qpn, sge = self.context.card, self._reads.qpn, wr.sge
        if wr.inline_data is not None or wr.send_flags & SendFlags.IBV_SEND_INLINE:
            raise UsageError("a READ brings its payload from the peer: there is nothing to inline")
        under_way = self._reads.work("receive")
        if under_way.outstanding >= self.cap.max_rd_atomic:
            card.collect(self.scq.index)
        if under_way.outstanding >= self.cap.max_rd_atomic:
            raise QueueFull(f"{self!r}: {under_way.outstanding} READs are under way, as many as its max_rd_atomic; wait for "
                            f"completions")
        self._need_room(self._reads, "receive", self.scq)
        self._need_room(self._reads, "send", self.scq)
        if not 0 <= sge.length < 1 << 32:
            raise UsageError(f"length={sge.length} does not fit 32 bits")
        deadline = self._deadline(wr)
        read = Read(self, wr.wr_id, "read", self._signaled(wr))
        self._waits("read", under_way)
        # The receive first, with the same deadline: the answer may be there before this returns.
        seq = card.post_receive(qpn, sge.addr, sge.length, sge.lkey, timeout_ns=deadline, absolute=True, wr_id=read)
        card.post_send(qpn, "read", length=sge.length, remote_va=wr.remote_addr, rkey=wr.rkey, seq=seq, tag=wr.tag,
                       deadline_ns=deadline, signaled=False, wr_id=ReadRequest(read))

    # -- what came of it ----------------------------------------------------------------------------------

    def _waits(self, what, work):
        """One more is about to be posted; if it is the only one, it is the oldest from now on."""
        if not work.outstanding:
            self.since[what] = self.context.time_ns()

    def _ended(self, what, work, time_ns):
        """A receive, send or READ has; the next one is the oldest from then on."""
        self.since[what] = time_ns if work and work.outstanding else None

    def arrived(self, wc):
        """Which pieces of a receive's message are there: a list with True for each MTU of it that was placed. For a queue pair with
        arrival_bytes; of the last `cap.max_recv_wr` receives, to be asked before as many are posted behind it."""
        self.check_open()
        if self._map is None:
            raise CardError(f"{self!r} keeps no map of what arrived; give its QPInitAttr arrival_bytes")
        return self.context.card.arrived(self.qp_num, wc.index, wc.msg_len)

    def status(self):
        """See :mod:`host_driver.verbs.status`; `print(qp.status())` says why nothing moves."""
        from .status import qp_status
        self.check_open()
        return qp_status(self)


def chain(wr):
    while wr is not None:
        yield wr
        wr = wr.next_wr
