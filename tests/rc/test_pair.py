"""Two cards and a bad network: nothing is lost, nothing comes twice, completions come once and in order."""

import pytest

from sim.network import GBIT
from sim.rc_rig import SIZE, Pair

MTU, TIMEOUT = 256, 5           # 131 us
LIMIT_NS = 40_000_000
#: of each node's memory: what it sends from; WRITEs come here; results; receives; counters of atomics
SOURCE, WRITTEN, RESULT, RECEIVED, COUNTER = (i << 15 for i in range(5))
BAD = dict(loss=.03, duplicate=.03, reorder=(.05, (500, 6000)))


class Traffic:
    """Requests from QP `a` of node `i` to QP `b` of the other; all that they do is noted, and looked up at the end. Each has memory
    of its own: `part` of `parts` of each window."""

    def __init__(self, pair, i, a, b, rng, part=0, parts=1):
        self.pair, self.mine, self.other, self.a, self.b, self.rng = pair, pair.nodes[i], pair.nodes[1 - i], a, b, rng
        self.start, self.room = (part << 15) // parts, (1 << 15) // parts
        self.used = dict.fromkeys((SOURCE, WRITTEN, RESULT, RECEIVED), 0)
        self.posted, self.checks, self.received, self.added = 0, [], [], []
        self.counter = COUNTER + self.start // 8 * 8

    def take(self, window, size):
        at = self.used[window]
        self.used[window] += -(-size // 8) * 8 + 8
        assert self.used[window] <= self.room, "a test wants more memory than it has"
        return window + self.start + at

    def post(self, op, size):
        size = 8 if op == "fetch_add" else size
        payload = self.rng.randbytes(size)
        n, more, source = self.posted, {}, self.take(SOURCE, size)
        self.posted += 1
        if op == "fetch_add":
            result, add = self.take(RESULT, 8), self.rng.getrandbits(32)
            before = sum(self.added) % (1 << 64)
            self.added.append(add)
            more = dict(remote=self.counter, operands=(add, 0), result=result)
            self.checks.append((self.mine, result, before.to_bytes(8, "big")))
        elif op == "read":
            remote, result = self.take(WRITTEN, size), self.take(RESULT, size)
            self.other.store(remote, payload)
            more = dict(remote=remote, result=result)
            self.checks += [(self.mine, result, payload), (self.mine, result + size, bytes(8 - size % 8))]
        else:
            self.mine.store(source, payload)
            if op.startswith("write"):
                more = dict(remote=self.take(WRITTEN, size))
                self.checks += [(self.other, more["remote"], payload), (self.other, more["remote"] + size, bytes(8 - size % 8))]
            if op.endswith("imm"):
                more["imm"] = n + 1000
            if op != "write":
                at = self.take(RECEIVED, size)
                self.other.post_receive(self.b, at, size)
                self.received.append((op, size, n + 1000 if op.endswith("imm") else 0))
                if op.startswith("send"):
                    self.checks.append((self.other, at, payload))
        self.mine.post_send(self.a, op, source, size, **more)

    @property
    def done(self):
        """All have completed, however."""
        return self.mine.qps[self.a]["send"] == self.posted

    def check(self):
        assert self.mine.outcomes(self.a) == [(i, "success", "complete") for i in range(self.posted)]
        got = [(d.opcode, d.byte_len, d.imm if d.opcode.endswith("imm") else 0) for d in self.other.done[0] if d.qpn == self.b]
        assert got == self.received
        for node, at, data in self.checks:
            assert node.load(at, len(data)) == data, hex(at)
        if self.added:
            assert self.other.load(self.counter, 8) == (sum(self.added) % (1 << 64)).to_bytes(8, "little")


def run(pair, traffic, limit_ns=LIMIT_NS):
    assert pair.run_until(lambda: all(t.done for t in traffic), limit_ns), \
        [(t.mine.qps[t.a], t.posted, t.mine.outcomes(t.a)[-2:]) for t in traffic]
    pair.run_ns(20_000)
    for t in traffic:
        t.check()
    assert all(not node.events(t.b) for t in traffic for node in pair.nodes)


KINDS = ("send", "send_imm", "write", "write_imm", "read", "fetch_add")


@pytest.mark.parametrize("impair", [{}, dict(loss=.01), dict(loss=.05), dict(duplicate=.2), dict(reorder=(.1, (500, 8000))), BAD],
                         ids=["good", "loss1", "loss5", "duplicate", "reorder", "bad"])
def test_everything_at_once(make, rng, impair):
    """Both ways at once, two pairs of QPs, all kinds of requests."""
    with Pair(make, seed=rng.randrange(1000), **impair) as pair:
        traffic = []
        for part, (a, b) in enumerate(((3, 5), (6, 6))):
            pair.connect(a, b, psn=(rng.randrange(1 << 24), rng.randrange(1 << 24)), mtu=MTU, timeout=TIMEOUT, retry=7)
            traffic += [Traffic(pair, 0, a, b, rng, part, 2), Traffic(pair, 1, b, a, rng, part, 2)]
        for _ in range(25):
            for t in traffic:
                t.post(rng.choice(KINDS), rng.choice((0, 1, 7, MTU - 1, MTU, MTU + 1, rng.randrange(3 * MTU))))
        run(pair, traffic)
        if impair.get("loss", 0) > .02:         # or it was no test
            assert any(node.counter("go_backs") for node in pair.nodes)


@pytest.mark.parametrize("first", [0xFFFFFF, 0xFFFFF0, 0xFFFFE1, 0xFFFF80])
def test_numbers_wrap_with_a_full_window(make, rng, first):
    """Field case 15."""
    with Pair(make, seed=first, loss=.04, duplicate=.02) as pair:
        pair.connect(5, psn=(first, first), mtu=MTU, timeout=TIMEOUT)
        t = [Traffic(pair, i, 5, 5, rng) for i in range(2)]
        for n in range(40):
            for traffic in t:
                traffic.post(KINDS[n % len(KINDS)], (3 * MTU, 2 * MTU + 1, 600)[n % 3])
        run(pair, t)


def test_lengths_around_the_mtu(make, rng):
    """Field case 17: 1, 2, 3 MTU and a byte either side, two QPs with different lengths at once, under retransmission."""
    sizes = [k * MTU + d for k in (1, 2, 3) for d in (-1, 0, 1)]
    with Pair(make, seed=5, loss=.06) as pair:
        traffic = []
        for part, a in enumerate((4, 9)):
            pair.connect(a, mtu=MTU, timeout=TIMEOUT)
            traffic.append(Traffic(pair, 0, a, a, rng, part, 2))
        for op in ("send", "write_imm", "read"):
            for i, size in enumerate(sizes):
                traffic[0].post(op, size)
                traffic[1].post(op, sizes[-1 - i])
        run(pair, traffic)


def test_a_slow_receiver(make, rng):
    """Field case 19: receives are posted late, one by one. No storm of RNR NAKs, and everything arrives."""
    with Pair(make) as pair:
        pair.connect(5, mtu=MTU, timeout=6, rnr_timer=2, rnr_retry=7)       # 20 us
        a, b = pair.nodes
        payloads = [rng.randbytes(300) for _ in range(8)]
        for i, payload in enumerate(payloads):
            a.store(512 * i, payload)
            a.post_send(5, "send", 512 * i, 300)
        for i in range(8):
            pair.run_ns(100_000)
            assert len(a.outcomes(5)) == i
            b.post_receive(5, RECEIVED + 512 * i, 300)
        assert pair.run_until(lambda: len(a.outcomes(5)) == 8, 1_000_000)
        assert {o[1] for o in a.outcomes(5)} == {"success"} and len(b.outcomes(5, "receive")) == 8
        assert b"".join(b.load(RECEIVED + 512 * i, 300) for i in range(8)) == b"".join(payloads)
        assert 8 <= a.counter("rnr_waits") <= 8 * 100 // 20 + 16


@pytest.mark.parametrize("op", ["send", "read", "fetch_add"])
def test_a_peer_that_is_gone(make, op):
    """Field case 18: never silence."""
    with Pair(make) as pair:
        pair.connect(5, mtu=MTU, timeout=3, retry=2)
        pair.net.rule(destination=1, loss=1)
        a, _ = pair.nodes
        for _ in range(3):
            a.post_send(5, op, 0, 600, result=RESULT)
        assert pair.run_until(lambda: a.outcomes(5), 2_000_000)
        assert a.outcomes(5) == [(0, "fatal", "retry")]
        a.flush(5)
        pair.run_ns(10_000)
        assert a.outcomes(5) == [(0, "fatal", "retry"), (1, "error", "flushed"), (2, "error", "flushed")]


def test_no_receive_ever(make):
    with Pair(make) as pair:
        pair.connect(5, mtu=MTU, timeout=6, rnr_retry=3, rnr_timer=1)
        a, b = pair.nodes
        a.post_send(5, "write", 0, 100, remote=WRITTEN)
        a.post_send(5, "send", 0, 100)
        assert pair.run_until(lambda: len(a.outcomes(5)) == 2, 2_000_000)
        assert a.outcomes(5) == [(0, "success", "complete"), (1, "fatal", "rnr_retry")]
        assert a.counter("rnr_waits") == 4 and not b.events(5)


@pytest.mark.parametrize("op, more, cause", [
    ("write", dict(rkey=0x99), "remote_access"), ("read", dict(remote=SIZE - 10), "remote_access"),
    ("fetch_add", dict(remote=SIZE), "remote_access"), ("send", {}, "remote_invalid"),
    ("fetch_add", dict(remote=12), "remote_invalid")])
def test_refused(make, rng, op, more, cause):
    """Both ends learn of it, and what was done before is done."""
    with Pair(make) as pair:
        pair.connect(5, mtu=MTU, timeout=TIMEOUT)
        pair.connect(7, mtu=MTU, timeout=TIMEOUT)
        a, b = pair.nodes
        before, other = Traffic(pair, 0, 5, 5, rng, 0, 2), Traffic(pair, 0, 7, 7, rng, 1, 2)
        before.post("write", 700), before.post("read", 700)
        b.post_receive(5, RECEIVED, 100)
        index = a.post_send(5, op, 0, 600, **{"result": RESULT, **more})
        a.post_send(5, "write", 0, 64, remote=WRITTEN)
        other.post("send", 500), other.post("fetch_add", 8)
        assert pair.run_until(lambda: len(a.outcomes(5)) == 3 and other.done, 2_000_000)
        assert a.outcomes(5)[:2] == [(0, "success", "complete"), (1, "success", "complete")]
        assert a.outcomes(5)[2] == (index, "fatal", cause)
        event, = b.events(5)
        assert (event.cause, event.index) == (cause, 0)
        other.check()                               # another QP isn't concerned
        a.flush(5), b.flush(5)
        pair.run_ns(20_000)
        assert a.outcomes(5)[3:] == [(3, "error", "flushed")]
        assert b.outcomes(5, "receive") == [(0, "error", "flushed")]


def test_a_life_after_failure(make, rng):
    """The same QPs again, with other numbers; what is left of the first life does no harm."""
    with Pair(make, delay_ns=5000) as pair:
        a, b = pair.nodes
        for life in range(3):
            first = rng.randrange(1 << 24), rng.randrange(1 << 24)
            pair.connect(5, mtu=MTU, timeout=TIMEOUT, psn=first)
            for node in pair.nodes:
                node.done.clear()
            t = [Traffic(pair, i, 5, 5, rng, life, 3) for i in range(2)]
            for i in range(2):      # each life has counters of its own
                for op in KINDS[:5]:
                    t[i].post(op, 700)
            run(pair, t)
            a.post_send(5, "write", 0, 64, rkey=0x99)
            assert pair.run_until(lambda: b.events(5) and len(a.outcomes(5)) == 6, 1_000_000)
            a.flush(5), b.flush(5)
            pair.run_ns(20_000)


def test_unreliable_messages_over_a_bad_network(make, rng):
    """UC: what arrives is whole, in order, and in consecutive receives; the rest is gone, and no sender waits."""
    with Pair(make, seed=3, loss=.05) as pair:
        pair.connect(5, mtu=MTU, type="uc")
        a, b = pair.nodes
        sizes = [rng.choice((1, MTU, MTU + 1, 3 * MTU)) for _ in range(40)]
        at, starts = 0, []
        for n, size in enumerate(sizes):
            starts.append(at)
            a.store(at, bytes([n + 1]) * size)
            b.post_receive(5, RECEIVED + 768 * n, 768)
            a.post_send(5, "send_imm", at, size, imm=n)
            at += size
        assert pair.run_until(lambda: len(a.outcomes(5)) == 40, 2_000_000)
        pair.run_ns(20_000)
        got = [(d.index, d.imm, d.byte_len) for d in b.done[0]]
        assert 20 < len(got) < 40
        assert [g[0] for g in got] == list(range(len(got))) and [g[1] for g in got] == sorted({g[1] for g in got})
        for index, n, size in got:
            assert size == sizes[n] and b.load(RECEIVED + 768 * index, size) == bytes([n + 1]) * size


@pytest.mark.soak
@pytest.mark.parametrize("loss", [.01, .05])
def test_no_stall(make, rng, loss):
    """Field case 16, as long as one likes: rounds of everything at once."""
    for round in range(20):
        with Pair(make, seed=round, rate=8 * GBIT, loss=loss, duplicate=.01, reorder=(.02, (500, 5000))) as pair:
            traffic = []
            for part, a in enumerate((1, 2, 3, 4)):
                pair.connect(a, mtu=1024, timeout=TIMEOUT, psn=(rng.randrange(1 << 24), rng.randrange(1 << 24)))
                traffic += [Traffic(pair, i, a, a, rng, part, 4) for i in range(2)]
            for _ in range(30):
                for t in traffic:
                    t.post(rng.choice(KINDS), rng.randrange(200))
            run(pair, traffic)
