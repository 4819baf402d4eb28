"""What is refused, and what can't be done now: NAKs, RNR NAKs, a peer that is gone; both ways."""

import pytest

from host_driver.verbs import (IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE)
from sim.linux_peer import Op

from .rig import KINDS, ends, retries

pytestmark = [pytest.mark.peer, pytest.mark.rtl]
ROLES = pytest.mark.parametrize("requester", ["linux", "card"])
BACKENDS = pytest.mark.parametrize("backend", ["rtl", "model"])
#: words for a SEND that is longer than the receive: IBTA, and Soft-RoCE
TOO_LONG = {"linux": "remote_invalid", "card": "remote_operation"}


def bad_op(kind, a, b):
    """(operation that the responder `b` must refuse, what is said of it)"""
    local, end = a.take(600), b.addr + b.size
    name, what = kind.split("/")
    length = 8 if name in ("fadd", "cas") else 600
    wrong = {"key": dict(remote=b.addr, rkey=b.rkey ^ 0x33), "end": dict(remote=end - length + 1),
             "beyond": dict(remote=end + 4096), "before": dict(remote=b.addr - 8), "high": dict(remote=(1 << 64) - 8)}[what]
    return Op(name, length, local, imm=5 if name.endswith("imm") else 0, add=int(name == "fadd"), **wrong)


@BACKENDS
@ROLES
@pytest.mark.parametrize("kind", ["write/key", "write/end", "write/high", "write_imm/key", "read/key", "read/beyond", "read/before",
                                  "fadd/key", "cas/beyond"])
def test_a_refused_request(guest, rng, backend, requester, kind):
    """Those before it are done, those behind it flushed, no byte is written, and both ends are in ERR."""
    with ends(backend, guest, rng, mtu=256) as pair:
        traffic = pair.traffic(requester, rng)
        for name in KINDS:
            traffic.make(name, 700)
        good = traffic.made
        a, b = traffic.a, traffic.b
        traffic.post_receives()
        if kind.startswith("write_imm"):
            b.receive(99, 0, 0)
        traffic.start(16, bad_op(kind, a, b), Op("write", 64, 0, b.addr), Op("write", 64, 0, b.addr))
        found = a.finish()
        wanted = [(i, "success") for i in range(good)] + [(good, "remote_access")]
        assert found[:good + 1] == wanted and all(what == "flushed" for _, what in found[good + 1:]), found
        pair.lab.cards[0].sleep_ns(20_000)
        assert a.dead and b.dead
        traffic.check()


@BACKENDS
@ROLES
def test_a_send_longer_than_its_receive(guest, rng, backend, requester):
    with ends(backend, guest, rng, mtu=256) as pair:
        traffic = pair.traffic(requester, rng)
        traffic.make("send", 700)
        a, b = traffic.a, traffic.b
        traffic.post_receives()
        at = b.take(1000)
        b.receive(7, at, 500)
        traffic.start(16, Op("send", 1000, 0))
        assert a.finish() == [(0, "success"), (1, TOO_LONG[requester])]
        pair.lab.cards[0].sleep_ns(20_000)
        assert a.dead and b.dead
        found = b.fetch(at, 1000)
        assert found[500:] == b.image[at + 500:at + 1000]           # beyond the receive, nothing
        b.image[at:at + 500] = found[:500]
        traffic.check()


@ROLES
@pytest.mark.parametrize("name, right", [("write", IBV_ACCESS_REMOTE_WRITE), ("read", IBV_ACCESS_REMOTE_READ),
                                         ("fadd", IBV_ACCESS_REMOTE_ATOMIC)])
def test_rights(guest, rng, requester, name, right):
    """Of a region that lacks one right, the others hold."""
    every = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
    limited = dict(rights=every & ~right) if requester == "linux" else dict(access=int(every & ~right))
    with ends("rtl", guest, rng, mtu=1024, **limited) as pair:
        traffic = pair.traffic(requester, rng)
        for other in {"write", "read", "fadd"} - {name}:
            traffic.make(other, 100)
        good = traffic.made
        traffic.start(4, Op(name, 8, 0, traffic.b.addr))
        assert traffic.a.finish() == [*((i, "success") for i in range(good)), (good, "remote_access")]
        traffic.check()


@BACKENDS
@ROLES
def test_nothing_is_looked_up_for_nothing(guest, rng, backend, requester):
    """Requests without a byte: their key and address are not checked (IBTA volume 1, 9.7.4.1.4)."""
    with ends(backend, guest, rng, mtu=1024) as pair:
        traffic = pair.traffic(requester, rng)
        traffic.start(4, Op("write", 0, 0, 0x1234, rkey=0x77), Op("read", 0, 0, 0x1234, rkey=0x77))
        traffic.finish()
        traffic.check()


@BACKENDS
@ROLES
def test_receives_come_late(guest, rng, backend, requester):
    with ends(backend, guest, rng, mtu=256, rnr_timer=6, card_attributes=dict(min_rnr_timer=12)) as pair:
        traffic = pair.traffic(requester, rng)
        for _ in range(2):
            for name in ("send", "write", "send_imm", "write_imm"):
                traffic.make(name, 700)
        # The card's RNR wait is the guest's 80 us, the guest's 640 us.
        if requester == "linux":
            traffic.start(8)
            pair.lab.wait(lambda: pair.lab.cards[0].counters()["naks_sent"] >= 3)
        else:
            traffic.start(8)
            pair.lab.wait(lambda: pair.lab.cards[0].counters()["rnr_waits"] >= 3)
        traffic.post_receives()
        traffic.finish()
        traffic.finish_receives()
        traffic.check()


@BACKENDS
@ROLES
def test_receives_never_come(guest, rng, backend, requester):
    with ends(backend, guest, rng, mtu=256, rnr_timer=6, rnr_retry=2, card_attributes=dict(min_rnr_timer=12, rnr_retry=2)) as pair:
        traffic = pair.traffic(requester, rng)
        traffic.make("write", 300)
        traffic.start(8, Op("send", 300, 0), Op("write", 300, 0, traffic.b.addr))
        assert traffic.a.finish() == [(0, "success"), (1, "rnr_retry"), (2, "flushed")]
        if requester == "linux":
            assert pair.changed()["card naks_sent"] == 3
        else:
            assert pair.changed()["card rnr_waits"] == 3
        traffic.check()


@BACKENDS
@ROLES
@pytest.mark.parametrize("name", ["write", "send", "read", "fadd"])
def test_a_peer_that_is_gone(guest, rng, backend, requester, name):
    with ends(backend, guest, rng, mtu=256, timeout=17, retry=2, card_attributes=dict(timeout=5, retry_cnt=2)) as pair:
        traffic = pair.traffic(requester, rng)
        traffic.make("write", 300)
        traffic.run(1)
        pair.lab.network.links[0].set_up(False)
        before = {lane.name: lane.frames for lane in pair.lab.network.lanes}
        traffic.start(4, Op(name, 8, 0, traffic.b.addr, add=1))
        assert traffic.a.finish() == [(0, "retry")]
        lane = pair.lab.network.ports[1].out if requester == "linux" else pair.lab.network.ports[0].out
        assert lane.frames - before[lane.name] == 3         # once, and two retries
        traffic.check()


@ROLES
def test_another_life(guest, rng, requester):
    """After a failure the card's queue pair is connected anew, again and again."""
    with ends("rtl", guest, rng, mtu=256, size=1 << 17) as pair:
        traffic = pair.traffic(requester, rng)
        for life in range(3):
            for name in KINDS:
                traffic.make(name, 700)
            traffic.run(16)
            traffic.start(4, Op("write", 100, 0, traffic.b.addr, rkey=traffic.b.rkey ^ 0x33))
            assert traffic.a.finish() == [(0, "remote_access")]
            traffic.check()
            if life < 2:
                pair.reconnect()
                assert not retries({name: n for name, n in pair.changed().items() if name != "card naks_sent"})
