"""Both ends of a connection between a card and Linux, alike for tests: whatever is done is noted, and all memory is compared.

A :class:`Side` is one end, `CardSide` or `LinuxSide`. :class:`Traffic` makes up operations from one to the other; each has
memory of its own, so that at the end every byte of both sides is known in advance, those that nobody should have written too.
"""

from contextlib import contextmanager

from host_driver.verbs import (CQ, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
                               IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
                               IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
                               IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, MR, PD, QP, QPCap, QPInitAttr,
                               RecvWR, SendWR)
from sim.linux_peer import Lab, Op, VerbsPeer

RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
OPCODES = {"write": IBV_WR_RDMA_WRITE, "write_imm": IBV_WR_RDMA_WRITE_WITH_IMM, "send": IBV_WR_SEND,
           "send_imm": IBV_WR_SEND_WITH_IMM, "read": IBV_WR_RDMA_READ, "cas": IBV_WR_ATOMIC_CMP_AND_SWP,
           "fadd": IBV_WR_ATOMIC_FETCH_AND_ADD}
KINDS = tuple(OPCODES)
#: tiny with the largest path MTU; `trace` as in tests/rc, so that both are compiled once
TRACED, LARGE = {"trace": True}, {"trace": True, "mtu_max": 4096, "rx_buffer_bytes": 32768, "tx_buffer_bytes": 32768}
BATCH = 40                      # operations posted at once: a ring of the tiny card has 64 places
WAIT_NS, WAIT_MS = 600_000_000, 60_000      # of the world, of the guest


class Side:
    """`size` bytes of memory, `image` what they ought to be; `addr` and `rkey` for the other side."""

    def __init__(self, size, rng):
        self.size, self.image, self._next, self._rng = size, bytearray(rng.randbytes(size)), 0, rng
        self.counters, self._taken = [], []

    def take(self, n, align=1, what="nobody's"):
        """An offset with room for `n` bytes that nobody else has; `what` they are for."""
        at = -(-(self._next + self._rng.randrange(9)) // align) * align
        self._next = at + n
        self._taken.append((at, n, what))
        assert self._next <= self.size, "a test wants more memory than it has"
        return at

    def check(self):
        found = self.fetch(0, self.size)
        if found == self.image:
            return
        wrong = [i for i in range(self.size) if found[i] != self.image[i]]
        concerned = [f"{what} at {at:#x}: {found[at:at + min(n, 16)].hex()}, wanted {self.image[at:at + min(n, 16)].hex()}"
                     for at, n, what in self._taken if found[at:at + n] != self.image[at:at + n]]
        raise AssertionError(f"{type(self).__name__}: {len(wrong)} bytes differ, from {wrong[0]:#x} to {wrong[-1]:#x}: "
                             f"{'; '.join(concerned[:4]) or 'in memory of nobody'}")


class CardSide(Side):
    def __init__(self, context, size, rng, rights=RIGHTS):
        super().__init__(size, rng)
        self.context, self.pd = context, PD(context)
        self.scq, self.rcq = CQ(context, 128), CQ(context, 128)
        self.mr = MR(self.pd, size, rights)
        self.addr, self.rkey = self.mr.addr, self.mr.rkey
        self.qp = QP(self.pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=self.scq, rcq=self.rcq, cap=QPCap(max_send_wr=64, max_recv_wr=64)))

    def store(self, at, data):
        self.mr.write(bytes(data), offset=at)

    def fetch(self, at, n):
        return self.mr.read(n, at)

    def receive(self, wr_id, at, n):
        self.qp.post_recv(RecvWR(wr_id, sg=[self.mr.sge(at, n)]))

    def receives(self, n, wait_ns=WAIT_NS):
        """[(wr_id, status, bytes, immediate)]"""
        return [(wc.wr_id, "success" if wc.ok else wc.cause, wc.byte_len, wc.imm_data if wc.wc_flags else None)
                for wc in self.rcq.wait(n, wait_ns)]

    def start(self, ops, depth, rkey):
        self._ops, self._depth, self._rkey, self._posted, self._found = list(ops), depth, rkey, 0, []
        self.step()

    def step(self):
        """Post what may be posted and take what has completed; whether all have."""
        self._found += self.scq.poll(64)[1]
        failed = any(not wc.ok for wc in self._found)
        while not failed and self._posted < len(self._ops) and self._posted - len(self._found) < self._depth:
            op = self._ops[self._posted]
            flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE * op.inline | IBV_SEND_SOLICITED * op.solicited
            wr = SendWR(self._posted, OPCODES[op.name], sg=[self.mr.sge(op.local, op.length)], imm_data=op.imm, send_flags=flags)
            if op.name in ("cas", "fadd"):
                wr.set_wr_atomic(op.rkey or self._rkey, op.remote, op.compare if op.name == "cas" else op.add, op.swap)
            elif not op.name.startswith("send"):
                wr.set_wr_rdma(op.rkey or self._rkey, op.remote)
            self.qp.post_send(wr)
            self._posted += 1
        return len(self._found) == (self._posted if failed else len(self._ops))

    def finish(self):
        """[(wr_id, status)]"""
        self.context.wait_until(self.step, WAIT_NS, step_ns=2000)
        return [(wc.wr_id, "success" if wc.ok else wc.cause) for wc in self._found]

    @property
    def dead(self):
        """Whether it is in ERR; of completions, those that are still to be polled are gone."""
        self.scq.poll(64), self.rcq.poll(64)        # the driver finds out by them
        return self.qp.qp_state.name == "IBV_QPS_ERR"


#: what libibverbs calls it -> the driver's word
CAUSES = {"success": "success", "remote access error": "remote_access", "remote invalid request error": "remote_invalid",
          "remote operation error": "remote_operation", "transport retry counter exceeded": "retry",
          "RNR retry counter exceeded": "rnr_retry", "Work Request Flushed Error": "flushed"}


class LinuxSide(Side):
    def __init__(self, guest, size, rng, **settings):
        super().__init__(size, rng)
        self._make = lambda: VerbsPeer(guest, memory=size, **settings)
        self.peer = self._make()

    def restart(self):
        self.peer.close()
        self.peer = self._make()

    def store(self, at, data):
        self.peer.load(at, data)

    def fetch(self, at, n):
        return self.peer.dump(at, n)

    def receive(self, wr_id, at, n):
        self.peer.receive(wr_id, at, n)

    def receives(self, n, wait_ms=WAIT_MS):
        return [(wc.wr_id, CAUSES.get(wc.text, wc.text), wc.byte_len, wc.imm) for wc in self.peer.receives(n, wait_ms)]

    def start(self, ops, depth, rkey):
        del rkey                # it was told in the exchange
        self.peer.begin(ops, depth, WAIT_MS)

    def step(self):
        return self.peer.ended()

    def finish(self):
        return [(wc.wr_id, CAUSES.get(wc.text, wc.text)) for wc in self.peer.end()]

    @property
    def dead(self):
        return self.peer.state()[0] == 6        # IBV_QPS_ERR


class Traffic:
    """Operations from `requester` to `responder`. `make` notes one, `run` has those noted carried out (or step by step:
    post_receives, start, finish, finish_receives), `check` compares memory."""

    def __init__(self, requester, responder, rng):
        self.a, self.b, self.rng = requester, responder, rng
        self.made = 0
        self._ops, self._receives = [], []

    def make(self, name, length, room=None):
        a, b, imm = self.a, self.b, 0
        self.made += 1
        if name in ("cas", "fadd"):
            self._ops.append(self._atomic(name))
            return
        what = f"{type(a).__name__} {self.made} {name} {length}"
        local, remote = a.take(length, what=what), 0
        if name.endswith("imm"):
            imm = self.rng.getrandbits(32) or 1
        if not name.startswith("send"):
            target = b.take(length, what=what)
            remote = b.addr + target
            if name == "read":
                a.image[local:local + length] = b.image[target:target + length]
            else:
                b.image[target:target + length] = a.image[local:local + length]
        if name.startswith("send") or imm:
            room = length + self.rng.randrange(9) if room is None else room
            at = b.take(room if name.startswith("send") else 0, what=what)
            if name.startswith("send"):
                b.image[at:at + length] = a.image[local:local + length]
            self._receives.append((at, room if name.startswith("send") else 0, length, imm or None))
        self._ops.append(Op(name, length, local, remote, imm=imm))

    def _atomic(self, name):
        a, b, rng = self.a, self.b, self.rng
        if not b.counters or len(b.counters) < 4 and rng.random() < .5:
            b.counters.append(b.take(8, 8, "a counter"))
        at, local = rng.choice(b.counters), a.take(8, 8, f"{type(a).__name__} {self.made} {name}")
        old = int.from_bytes(b.image[at:at + 8], "little")
        operands = {"add": rng.getrandbits(64) or 1}
        new = (old + operands["add"]) % (1 << 64)
        if name == "cas":
            compare = old if rng.random() < .6 else old ^ 1 << rng.randrange(64)
            operands = {"compare": compare, "swap": rng.getrandbits(64)}
            new = operands["swap"] if compare == old else old
        b.image[at:at + 8] = new.to_bytes(8, "little")
        a.image[local:local + 8] = old.to_bytes(8, "little")
        return Op(name, 8, local, b.addr + at, **operands)

    def run(self, depth):
        """Carry out all that is noted, `depth` under way at most."""
        run_all([self], depth)

    def post_receives(self):
        for i, (at, room, *_) in enumerate(self._receives):
            self.b.receive(i, at, room)

    def start(self, depth, *more):
        """Post the operations noted, and `more` Ops behind them."""
        self._running, self._ops = self._ops + list(more), []
        self.a.start(self._running, depth, self.b.rkey)

    def finish(self):
        found, wanted = self.a.finish(), [(i, "success") for i in range(len(self._running))]
        assert found == wanted, (type(self.a).__name__, found[-3:], self._running[len(found) - 1:][:1])

    def finish_receives(self):
        wanted, self._receives = self._receives, []
        found = self.b.receives(len(wanted))
        assert found == [(i, "success", length, imm) for i, (_, _, length, imm) in enumerate(wanted)]

    def check(self):
        self.a.check(), self.b.check()


def run_all(traffics, depth):
    """Run several Traffics at once. Receives first, as verbs_peer does one thing after the other."""
    for traffic in traffics:
        traffic.post_receives()
    for traffic in traffics:
        traffic.start(depth)
    for traffic in traffics:
        traffic.finish()
    for traffic in traffics:
        traffic.finish_receives()


class Ends:
    """A card and a guest, connected. `card` and `linux` are the Sides, `lab` the Lab."""

    def __init__(self, lab, guest, rng, *, size=1 << 16, card_attributes=None, card_psn=None, rights=RIGHTS, **settings):
        self.lab, self.guest = lab, guest
        self.card = CardSide(lab.cards[0], size, rng, rights)
        # more READs at once than the card says to have room for would be answered with RNR NAKs
        self.linux = LinuxSide(guest, size, rng, **{"rd_atomic": min(16, lab.cards[0].max_dest_rd_atomic)} | settings)
        self._connect(psn=card_psn, **(card_attributes or {}))
        self.before = self.counters()

    def _connect(self, **attributes):
        self.linux.peer.connect(self.card.qp, self.card.mr, **attributes)
        self.linux.addr, self.linux.rkey = self.linux.peer.there.addr, self.linux.peer.there.rkey
        self.card.store(0, self.card.image), self.linux.store(0, self.linux.image)

    def reconnect(self):
        """Another life of the card's queue pair, with another process in the guest."""
        self.card.qp.to_reset()
        self.card.scq.poll(64), self.card.rcq.poll(64)
        self.linux.restart()
        self._connect()

    def sides(self, requester):
        return (self.linux, self.card) if requester == "linux" else (self.card, self.linux)

    def traffic(self, requester, rng):
        return Traffic(*self.sides(requester), rng)

    def counters(self):
        """What says that something was sent or refused more than once, of both ends."""
        said = self.guest.run("cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *")
        linux = {f"linux {name}": int(n) for name, n in (line.split(":") for line in said.split())}
        return linux | {f"card {name}": n for name, n in self.lab.cards[0].counters().items()}

    def changed(self):
        """Counters that went up since the beginning. Shown with a test that fails: what might make Linux impatient."""
        step = self.lab.lockstep
        print(f"longest turn {step.longest_turn_ns / 1e6:.0f} ms; frames handed to guests and taken from them: {step.carried()}")
        return {name: n - self.before.get(name, 0) for name, n in self.counters().items() if n != self.before.get(name, 0)}


@contextmanager
def ends(backend, guest, rng, *, changes=None, lab=None, **options):
    """Ends in a Lab of their own; `lab`: options of it. At the end the card has kept to its rules."""
    options_of_lab = {"rate": 8_000_000_000, "seed": rng.randrange(1 << 30), **(lab or {})}
    with Lab(backend, [guest], changes=TRACED if changes is None else changes, **options_of_lab) as made:
        found = Ends(made, guest, rng, **options)
        try:
            yield found
        finally:
            found.linux.peer.close()
        device = made.cards[0].device
        assert not device.violations and not device.faults


#: none of these may happen on a network that loses nothing
RETRIES = ("linux duplicate_request", "linux out_of_seq_request", "linux rcvd_seq_err", "linux completer_retry_err",
           "linux retry_exceeded_err", "card duplicates", "card go_backs", "card ack_timeouts", "card naks_sent", "card rnr_waits",
           "card drop_overflow", "card drop_icrc", "card drop_psn", "card drop_sequence")


#: what is seen when Linux has asked again although it had been answered
IMPATIENCE = {"linux completer_retry_err", "card duplicates"}


def retries(changed):
    """Those of RETRIES that went up. Linux may ask again once: its timer of a request that has ended runs on."""
    found = {name: n for name, n in changed.items() if name in RETRIES}
    return {} if set(found) <= IMPATIENCE and found.get("linux completer_retry_err", 0) <= 1 else found
