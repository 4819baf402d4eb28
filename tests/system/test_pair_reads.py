"""Two cards that READ each other's memory: many at once, refused ones, more than the peer has room for, and lives that end."""

from collections import Counter
from itertools import pairwise

import pytest

from .pair import BOTH, CFG, KEY, PD, SOURCE, Pair, Tap, ends


def reads(pair, links, sizes, sides=(0, 1), **fields):
    return [pair.post(link, side, "read", n, signaled=pair.rng.random() < 0.5, **fields)
            for n in sizes for link in links for side in sides]


def finish(pair, made, limit_ns=3_000_000):
    pair.all_over(made, limit_ns)
    pair.settle(), pair.verify()


@BOTH
def test_several_of_one_queue_pair(make, seed):
    """As many as the peer has room for, both ways: answered in order, each whole."""
    with Pair(make, seed) as pair:
        link = pair.link()
        for _ in range(4):
            made = reads(pair, [link], [pair.rng.randrange(3000) for _ in range(CFG.read_jobs)])
            finish(pair, made)
        pair.balance()


@BOTH
def test_several_of_several(make, seed):
    """Answers of different queue pairs mix, those of one never do; and SENDs and WRITEs go on between them."""
    with Pair(make, seed) as pair:
        links, writes, sends = [pair.link(address=a) for a in ("ip4", "ip6", "vlan4", "vlan6")], pair.link(), pair.link()
        tap = Tap(pair.ends[1].port.out)
        made = reads(pair, links, (5000, 3000))
        made += [pair.post(link, side, op, 4000)
                 for link, op in ((writes, "write"), (sends, "send")) for side in range(2) for _ in range(3)]
        finish(pair, made), pair.balance()
        answers = [packet for _, packet in tap.packets() if packet.op == 0x10]
        for link in links:
            mine = [(p.seq, p.offset) for p in answers if p.qpn == link.qpns[0]]
            assert mine == sorted(mine) and len(mine) == 20 + 12
        changes = sum(a.qpn != b.qpn for a, b in pairwise(answers))
        assert changes > len(answers) // 4


@BOTH
@pytest.mark.parametrize("mtu", [256, 1024])
def test_a_long_one(make, seed, mtu):
    with Pair(make, seed) as pair:
        links = [pair.link(mtu=mtu), pair.link()]
        finish(pair, reads(pair, links, (SOURCE - 1,))), pair.balance()


REFUSED = {"rkey": {"rkey": KEY + 1}, "access": {"rkey": 0x60}, "pd": {"rkey": 0x61}, "before": {"remote_va": -1},
           "behind": {"remote_va": (1 << 20) + SOURCE - 599}, "wraps": {"remote_va": (1 << 64) - 300}}


@BOTH
@pytest.mark.parametrize("what", REFUSED)
def test_refused(make, seed, what):
    """By the peer's regions, with the right reason; the receive ends empty at its deadline, others are answered."""
    with Pair(make, seed, strict=False) as pair:
        far = pair.ends[1]
        link, other = pair.link(), pair.link()
        far.card.add_region(0x60, far.va, SOURCE, ("local_write", "remote_write"), pd=PD, delta=far.memory - far.va)
        far.card.add_region(0x61, far.va, SOURCE, ("remote_read",), pd=PD + 1, delta=far.memory - far.va)
        fields = {"remote_va": 0} | REFUSED[what]
        if what != "wraps":
            fields["remote_va"] += far.va
        first = pair.post(link, 0, "read", 600, timeout_ns=40_000)
        pair.all_over([first])
        bad = pair.post(link, 0, "read", 600, timeout_ns=40_000, **fields)
        good = reads(pair, [other], (700, 900), timeout_ns=40_000)
        pair.all_over([bad])
        last = pair.post(link, 0, "read", 600, timeout_ns=40_000)
        finish(pair, [first, bad, last, *good])
        assert ends([bad]) == [("success", "complete", 600)] and ends([bad], "received") == [("partial", "timeout", 0)]
        assert all(m.received.status == "success" for m in (first, last, *good))
        reason = {"before": "bounds", "behind": "bounds", "wraps": "bounds"}.get(what, what)
        assert far.count(f"drop_{reason}") == 1 and far.count("reads_served") == 2 + 2
        assert sum(n for name, n in far.card.counters().items() if name.startswith("drop_")) == 1
        pair.balance()


@BOTH
@pytest.mark.parametrize("state", ["error", "none", "other life", "source"])
def test_of_a_queue_pair_that_is_not_there(make, seed, state):
    with Pair(make, seed, strict=False) as pair:
        far = pair.ends[1]
        link, other = pair.link(), pair.link()
        if state == "error":
            far.card.flush_qp(link.qpns[1])
        elif state == "none":
            far.card.destroy_qp(link.qpns[1])
        elif state == "other life":
            link.open(1, generation=3)
        else:
            link.open(1, peer=1)
        bad = pair.post(link, 0, "read", 600, timeout_ns=20_000)
        good = reads(pair, [other], (700, 900))
        finish(pair, [bad, *good])
        assert ends([bad], "received") == [("partial", "timeout", 0)]
        reason = {"error": "state", "none": "qpn", "other life": "generation", "source": "source"}[state]
        assert far.count(f"drop_{reason}") == 1 and far.count("reads_served") == 2
        pair.balance()


@BOTH
@pytest.mark.parametrize("spread", [1, 4])
def test_more_than_the_peer_has_room_for(make, seed, spread):
    """Refused as `overflow`, each one counted; the others are answered, and afterwards there is room again."""
    with Pair(make, seed, strict=False) as pair:
        near, far = pair.ends
        links, busy = [pair.link() for _ in range(spread)], pair.link()
        count = 48 // spread
        for _ in range(3):
            before, served = far.count("drop_overflow"), far.count("reads_served")
            far.card.enable(hold=True, tx=False)
            made = [pair.post(link, 0, "read", 1500, receive_ns=near.now_ns + 400_000) for _ in range(count) for link in links]
            made += [pair.post(busy, 0, "send", 300) for _ in range(20)]
            pair.run(60_000)
            assert not any(m.received for m in made if m.op == "read") and all(m.over for m in made if m.op == "send")
            lost = far.count("drop_overflow") - before
            far.card.enable(hold=True)
            finish(pair, made)
            found = Counter(m.received.status for m in made if m.op == "read")
            assert found["success"] == 48 - lost and found["partial"] == lost > 0
            assert far.count("reads_served") - served == 48 - lost and CFG.read_jobs < 48 - lost <= CFG.read_jobs + CFG.tx_slots
            for end in pair.ends:
                pair.verify(wipe=True)
        pair.balance()


@BOTH
@pytest.mark.parametrize("side", [0, 1])
def test_lives_that_end_while_answers_are_due(make, seed, side):
    """The one who asked, or the one who answers, destroys its queue pair: answers that others are due come all the same."""
    with Pair(make, seed, strict=False) as pair:
        far = pair.ends[1]
        link, other = pair.link(), pair.link()
        tap = Tap(far.port.out)
        for delay in (0, 2000, 3000, 4000, 6000, 9000, 15_000):
            good = [pair.post(other, 0, "read", 2000) for _ in range(3)]
            for _ in range(5):
                pair.post(link, 0, "read", 2000)
            pair.run(delay)
            end = pair.ends[side]
            end.card.destroy_qp(link.qpns[side])
            after = pair.world.now_ns + 1500
            end.poll()
            pair.all_over(good)
            assert all(m.received.status == "success" for m in good)
            pair.settle(), pair.verify()
            if side:
                assert not [p for _, p in tap.packets(after) if p.qpn == link.qpns[0]]
            link.renew()
            for e in pair.ends:
                e.wipe()
            m = pair.post(link, 0, "read", 900)
            pair.all_received([m])
            assert m.received.status == "success"
            pair.settle(), pair.verify(wipe=True)


@BOTH
def test_a_region_that_goes_while_answers_are_due(make, seed):
    """After the command nothing is read under its key: the packets that were due are left out."""
    with Pair(make, seed, strict=False) as pair:
        near, far = pair.ends
        link, other = pair.link(), pair.link()
        size = 20_000
        for delay in (1800, 3000, 6000, 12_000):
            memory = far.dev.alloc(size)
            data = pair.rng.randbytes(size).replace(b"\xee", b"\xef")
            far.dev.write(memory, data)
            far.card.add_region(0x62, 0, size, ("remote_read",), pd=PD, delta=memory)
            to = near.take(size)
            m = pair.post(link, 0, "read", size, at=0, to=to, remote_va=0, rkey=0x62, receive_ns=near.now_ns + 150_000)
            m.data = data
            good = pair.post(other, 0, "read", 3000)
            pair.run(delay)
            far.card.remove_region(0x62)
            far.dev.unmap(memory, size)
            pair.all_over([m, good])
            pair.settle(), pair.verify(wipe=True)
            assert far.dev.faults == [] and good.received.status == "success"
            assert m.received.byte_len < size and m.received.cause == "timeout"
        assert far.count("send_errors") > 0
