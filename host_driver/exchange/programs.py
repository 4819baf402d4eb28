"""The tests themselves, as either end: what `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ib_write_bw` and `ib_send_bw` do between finding
each other and parting. The other end is the tool, or the same program here.

The tools' own checks are few: completions without errors. What a program here sends has contents by number (`contents`), and what
it got is in its result.
"""

from ..errors import OptinicError, UsageError
from ..verbs import (CQ, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE, IBV_WR_SEND, MR, PD, QP, QPInitAttr,
                     QPState, QPType, RecvWR, SendWR, SGE)
from .address import own_address, peer_attr
from .perftest import Perftest
from .rdma_core import as_client, as_server

__all__ = ["ProgramError", "bandwidth", "contents", "pingpong"]

#: of a queue pair of type RC: what the tools take
AS_THE_TOOLS = dict(timeout=14, retry_cnt=7, rnr_retry=7, min_rnr_timer=12)
MEGABYTE = 1 << 20      # as perftest counts
DEPTH = 16              # sends under way at once
RECEIVES = 512          # receives posted at once, if there is room for so many: perftest's rx-depth


class ProgramError(OptinicError):
    """A test did not come to its end. `result` is what there was."""

    def __init__(self, text, result):
        super().__init__(text)
        self.result = result


def contents(n, size):
    """The payload of message `n`."""
    return bytes((n * 131 + i * 7 + (i >> 8)) & 0xFF for i in range(size))


def pingpong(ctx, line, *, client, size=1024, iterations=10, kind=None, mtu=1024, ip6=False, give_up_s=60, each=None,
             **attributes):
    """As ibv_rc_pingpong or ibv_uc_pingpong (`kind` "rc" or "uc", by default the first that the card has): `iterations` messages of
    `size` bytes each way, by turns, the client's first. `each(n, data)` is called with what was received. `attributes`: of QPAttr,
    as of `address.peer_attr`. The tool has one buffer: what it sends is what it has received last, in the beginning bytes of 0x7b.

    The result: "kind", "iterations", "size", "sent" and "received" (numbers of messages), "ns" (NIC time from the first post to the
    last completion), "last" (the last message received), "peer" (its Address). ProgramError if a completion says error, or if it
    isn't over in `give_up_s`.
    """
    with _End(ctx, line, kind, size, iterations, attributes, each) as end:
        end.post_receives(iterations)
        own = own_address(end.qp, ip6=ip6)
        ready = lambda peer: end.connect(own, peer, mtu)
        if client:
            ready(as_client(line, own))
        else:
            as_server(line, own, ready)
        start = ctx.time_ns()

        def turn():
            """Send the next one when the last has gone and its answer has come."""
            end.poll()
            if end.posted < iterations and end.sent == end.posted and end.received >= end.posted + (not client):
                end.post_send()
            return end.sent == end.received == iterations
        end.until(turn, give_up_s, iterations)
        return end.result(start, iterations)


def bandwidth(ctx, line, *, client, operation="write", size=1024, iterations=10, kind=None, mtu=1024, ip6=False, give_up_s=60,
              each=None, **attributes):
    """As ib_write_bw or ib_send_bw (`operation` "write" or "send"), with options -F, -n and -s, both sides alike; the client sends.

    The result as of :func:`pingpong`; beside it "mtu" and "report" (of a WRITE: the client's numbers, [bytes, iterations, peak,
    average in MiB/s, millions of messages a second]). "last" of a server for WRITEs is the memory that it offered."""
    if operation not in ("write", "send"):
        raise UsageError(f"operation={operation!r} is neither write nor send")
    talk = Perftest(line, client, mtu=mtu)
    mtu = talk.parameters()
    room = max(size, talk.buffer)
    with _End(ctx, line, kind, size, iterations, attributes, each, offered=room) as end:
        own = own_address(end.qp, ip6=ip6, **({"mr": end.offered} if operation == "write" else {}))
        peer = talk.addresses(own)
        end.connect(own, peer, mtu)
        for _ in range(2 if operation == "send" else 1):
            talk.in_step()
        if operation == "send" and not client:
            end.post_receives(iterations)
        talk.in_step()
        start = ctx.time_ns()
        if client:
            step = -(-size // talk.cache_line) * talk.cache_line
            places = max(1, room // step)
            aim = (lambda n: dict(opcode=IBV_WR_RDMA_WRITE, rkey=peer.rkey, remote_addr=peer.vaddr + n % places * step)) \
                if operation == "write" else (lambda n: {})

            def fill():
                end.poll()
                while end.posted < iterations and end.posted - end.sent < end.depth:
                    end.post_send(**aim(end.posted))
                return end.sent == iterations
            end.until(fill, give_up_s, iterations)
        elif operation == "send":
            end.until(lambda: end.poll() or end.received == iterations, give_up_s, iterations)
        found = end.result(start, iterations) | {"mtu": mtu, "report": None}
        if operation == "write":
            talk.in_step("sign that all WRITEs have ended")
            theirs = talk.report(*(_report(size, iterations, found["ns"]) if client else ()))
            found["report"] = list(_report(size, iterations, found["ns"])) if client else theirs
            if not client:
                found |= {"last": end.offered.read(room), "ns": ctx.time_ns() - start}
        talk.close()
        return found


def _report(size, iterations, ns):
    speed = size * iterations / MEGABYTE / (ns / 1e9)
    return size, iterations, speed, speed, iterations / (ns / 1e3)


class _End:
    """A queue pair with its memory and queues, for as long as the test lasts."""

    def __init__(self, ctx, line, kind, size, iterations, attributes, each, offered=0):
        kinds = {"rc": QPType.IBV_QPT_RC, "uc": QPType.IBV_QPT_UC}
        kind = kind or ("rc" if ctx.card.rc else "uc")
        if kind not in kinds:
            raise UsageError(f"kind={kind!r} is neither rc nor uc")
        self.ctx, self.line, self.kind, self.size, self._each = ctx, line, kind, size, each or (lambda n, data: None)
        self.attributes = {**(AS_THE_TOOLS | {"max_rd_atomic": ctx.max_rd_atomic} if kind == "rc" else {}), **attributes}
        self.pd = PD(ctx)
        try:
            self.scq, self.rcq = CQ(ctx, 2 * DEPTH), CQ(ctx, 2 * RECEIVES)
            self.qp = QP(self.pd, QPInitAttr(qp_type=kinds[kind], scq=self.scq, rcq=self.rcq))
            self.depth = min(iterations, DEPTH, self.qp.cap.max_send_wr)
            self.places = min(iterations, RECEIVES, self.qp.cap.max_recv_wr)
            self.slot = max(64, -(-size // 64) * 64)
            self.sends, self.receives = (MR(self.pd, n * self.slot, IBV_ACCESS_LOCAL_WRITE) for n in (self.depth, self.places))
            self.offered = MR(self.pd, offered, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) if offered else None
        except OptinicError:
            self.close()
            raise
        self.posted = self.sent = self.received = self._receives_posted = self._wanted = 0
        self.last, self.last_ns = None, 0

    def connect(self, own, peer, mtu):
        self.peer = peer
        self.qp.to_rts(peer_attr(self.qp, own, peer, mtu=mtu, **self.attributes))

    def post_receives(self, wanted):
        """As many as there is room for, of `wanted` altogether."""
        if self.qp.qp_state == QPState.IBV_QPS_RESET:
            self.qp.to_init()
        self._wanted = wanted
        while self._receives_posted < wanted and self._receives_posted - self.received < self.places:
            n = self._receives_posted
            self.qp.post_recv(RecvWR(n, sg=[self.receives.sge(n % self.places * self.slot, self.size)]))
            self._receives_posted += 1

    def post_send(self, opcode=IBV_WR_SEND, **more):
        n, at = self.posted, self.posted % self.depth * self.slot
        self.sends.write(contents(n, self.size), offset=at)
        self.qp.post_send(SendWR(n, opcode, sg=[SGE(self.sends.addr + at, self.size, self.sends.lkey)], **more))
        self.posted += 1

    def poll(self):
        """Count what has ended; ProgramError if it ended badly."""
        self.ctx.poll()
        for wc in self.scq.poll(self.depth)[1]:
            self._good(wc, "send")
            self.sent += 1
        for wc in self.rcq.poll(self.places)[1]:
            self._good(wc, "receive")
            self.received += 1
            self.last = self.receives.read(wc.byte_len, wc.wr_id % self.places * self.slot)
            self._each(wc.wr_id, self.last)
        self.post_receives(self._wanted)

    def _good(self, wc, what):
        self.last_ns = wc.timestamp
        if not wc.ok:
            raise ProgramError(f"{what} {wc.wr_id} of the test ended with {wc.status.name} ({wc.cause}); the peer is {self.peer}",
                               self.result(None, None))

    def until(self, done, give_up_s, iterations):
        if not self.line.patience(done, give_up_s, "the messages of the test"):
            raise ProgramError(f"the test did not end within {give_up_s:g} s: {self.sent} of {self.posted} sends have ended and "
                               f"{self.received} messages have come, {iterations} were to be each way that is used; print "
                               "ctx.status() to see what is in the way (a message lost with type UC is not sent again)",
                               self.result(None, iterations))

    def result(self, start_ns, iterations):
        return {"kind": self.kind, "iterations": iterations, "size": self.size, "sent": self.sent, "received": self.received,
                "last": self.last, "peer": self.peer,
                "ns": None if start_ns is None else self.ctx.time_ns() - start_ns}

    def close(self):
        self.pd.close()
        for name in ("scq", "rcq"):
            if hasattr(self, name):
                getattr(self, name).close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
