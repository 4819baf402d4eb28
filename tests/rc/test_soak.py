"""Two cards, a bad network, and packets until there have been a million of them: nothing lost, nothing twice, completions once and in order.

The million takes about a quarter of an hour of one core for the two simulated cards; OPTINIC_SOAK_PACKETS says how many there shall be, at each of three
rates of loss a third. The short form goes with the ordinary tests.
"""

import os
from collections import deque

import pytest

from optinic.abi.verdicts import COUNTERS
from sim.network import GBIT
from tests.rc.test_pair import KINDS, RECEIVED, RESULT, WRITTEN, Traffic
from sim.rc_rig import MAKERS, Pair
from sim.rc_frames import Packet

PACKETS = int(os.environ.get("OPTINIC_SOAK_PACKETS", "1000000"))
LOSSES = (.001, .01, .05)
MTU, TIMEOUT = 256, 4               # 66 us
QPS, REQUESTS = 6, 24               # pairs of QPs; of each, requests in a round
STALL_NS = 20_000_000               #: so long nothing completes, and it is called a standstill
LAST_FRAMES = 60


class Round(Traffic):
    """A batch of requests on a connection that has had others before."""

    def __init__(self, *args):
        super().__init__(*args)
        qp = self.mine.qps[self.a]
        assert qp["send"] == qp["sends"]
        self.before, self.received_before = qp["sends"], self.other.qps[self.b]["receives"]
        self.clear()

    def clear(self):
        for node, window in ((self.other, WRITTEN), (self.mine, RESULT), (self.other, RECEIVED)):
            node.store(window + self.start, bytes(self.room))
        self.other.store(self.counter, bytes(8))

    @property
    def completed(self):
        return self.mine.qps[self.a]["send"] - self.before

    @property
    def done(self):
        return self.completed == self.posted

    def check(self):
        assert self.mine.outcomes(self.a) == [(self.before + i, "success", "complete") for i in range(self.posted)]
        found = [d for d in self.other.done[0] if d.qpn == self.b]
        assert [d.index for d in found] == list(range(self.received_before, self.received_before + len(self.received)))
        assert [(d.opcode, d.byte_len, d.imm if d.opcode.endswith("imm") else 0) for d in found] == self.received
        for node, at, data in self.checks:
            assert node.load(at, len(data)) == data, hex(at)
        if self.added:
            assert self.other.load(self.counter, 8) == (sum(self.added) % (1 << 64)).to_bytes(8, "little")


class Last:
    """The newest frames on the network."""

    def __init__(self, net):
        self.frames = deque(maxlen=LAST_FRAMES)
        for lane in net.lanes:
            lane.arrival_taps.append(self._tap(lane.name))

    def _tap(self, name):
        frames = self.frames

        class Tap:
            @staticmethod
            def record(time, data):
                frames.append((time, name, bytes(data)))
        return Tap

    def __str__(self):
        return "\n".join(f"  {time // 1000} ns {name} {self._say(data)}" for time, name, data in self.frames)

    @staticmethod
    def _say(data):
        try:
            packet = Packet(data)
        except AssertionError as wrong:
            return f"bad ({wrong})"
        return f"QP {packet.qpn}: {packet!r}"


def packets(pair):
    return sum(lane["frames"] for lane in pair.net.counters().values())


def status(pair, traffic, last):
    """What can be seen of both cards, for whoever has to find out why they stand still."""
    lines = [f"at {pair.world.now_ns} ns, after {packets(pair)} packets"]
    for i, (node, device) in enumerate(zip(pair.nodes, pair.devices)):
        counts = {name: node.counter(name) for name in COUNTERS}
        lines.append(f"card {i}: idle {device.idle(200)}, STATUS {node.read('STATUS'):#x}, "
                     + ", ".join(f"{name} {n}" for name, n in counts.items() if n))
        for qpn, qp in node.qps.items():
            lines.append(f"  QP {qpn}: " + ", ".join(f"{name} {qp[name]}" for name in ("sends", "send", "receives", "receive", "reads"))
                         + f", events {node.events(qpn)}, last {node.outcomes(qpn)[-2:]}")
    lines += [f"  {t.a} of {t.mine is pair.nodes[1]:d}: {t.completed} of {t.posted}" for t in traffic if not t.done]
    return "\n".join([*lines, "last frames:", str(last)])


def finish(pair, traffic, last):
    """Until all is done, as long as something is."""
    mark, since = -1, pair.world.now_ns
    while not all(t.done for t in traffic):
        pair.run_ns(5000)
        now = sum(t.completed for t in traffic)
        if now != mark:
            mark, since = now, pair.world.now_ns
        assert pair.world.now_ns - since < STALL_NS, "a standstill\n" + status(pair, traffic, last)


def soak(make, rng, count, loss, progress=None):
    """Rounds on the same connections until `count` packets have been on the network; how many there were, and the counters."""
    with Pair(make, seed=rng.randrange(1000), rate=8 * GBIT, loss=loss, duplicate=.01, reorder=(.02, (500, 5000))) as pair:
        last = Last(pair.net)
        for a in range(QPS):
            pair.connect(a + 1, mtu=MTU, timeout=TIMEOUT, psn=(rng.randrange(1 << 24), (1 << 24) - rng.randrange(1, 500)))
        while packets(pair) < count:
            traffic = [Round(pair, i, a + 1, a + 1, rng, a, QPS) for a in range(QPS) for i in range(2)]
            for node in pair.nodes:
                node.done.clear(), node.runs.clear()
            for _ in range(REQUESTS):
                for t in traffic:
                    t.post(rng.choice(KINDS), rng.choice((0, 1, 8, 64, 200, MTU - 1, MTU, MTU + 1, rng.randrange(400))) if rng.random() < .5 else 8)
            finish(pair, traffic, last)
            pair.run_ns(20_000)         # what is still under way arrives, and must do nothing
            for t in traffic:
                t.check()
            assert not any(node.events(a + 1) for node in pair.nodes for a in range(QPS))
            if progress:
                progress(packets(pair), pair.world.now_ns)
        sums = {name: sum(node.counter(name) for node in pair.nodes) for name in ("go_backs", "ack_timeouts", "naks_sent", "duplicates", "rnr_waits")}
        assert all(node.counter(name) == 0 for node in pair.nodes for name in ("write_errors", "cq_overrun", "send_errors"))
        return packets(pair), sums


@pytest.mark.parametrize("loss", LOSSES)
def test_some_thousand_packets(make, rng, loss):
    _, sums = soak(make, rng, 3000, loss)
    assert sums["go_backs"] > 3 and sums["duplicates"] > 3, sums       # or it was no test


@pytest.mark.rtl
@pytest.mark.soak
@pytest.mark.parametrize("loss", LOSSES)
def test_a_million_packets(rng, loss):
    count, sums = soak(MAKERS["rtl"], rng, PACKETS // len(LOSSES), loss, lambda n, ns: print(f"{n} packets, {ns / 1e6:.1f} ms", flush=True))
    print(f"loss {loss}: {count} packets, {sums}")


def test_a_standstill_is_seen(rng, monkeypatch):
    """Negative control: requests that are lost, and nobody has a timer."""
    monkeypatch.setattr("tests.rc.test_soak.STALL_NS", 2_000_000)
    with Pair(MAKERS["model"], seed=1) as pair:
        last = Last(pair.net)
        for a in range(QPS):
            pair.connect(a + 1, mtu=MTU, timeout=0)
        traffic = [Round(pair, 0, 1, 1, rng, 0, QPS)]
        pair.net.rule(destination=1, loss=1)
        traffic[0].post("send", 8)
        with pytest.raises(AssertionError, match="a standstill") as found:
            finish(pair, traffic, last)
        assert "card 1" in str(found.value) and "QP 1: sends 1, send 0" in str(found.value)
