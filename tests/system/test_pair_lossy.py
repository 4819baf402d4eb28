"""Two cards on a cable that loses, doubles, delays, reorders and damages frames: what arrives is told, once, in order, in time."""

from collections import Counter

import pytest

from .pair import BOTH, FILL, Pair, pieces
from .test_pair_lengths import lengths

NETWORKS = {
    "loss": {"loss": .05},
    "bursts": {"burst": (.02, .3)},
    "reorder": {"reorder": (.2, (100, 20_000))},
    "jitter": {"jitter_ns": ("exponential", 700), "jitter_keeps_order": False},
    "duplicate": {"duplicate": (.1, 300)},
    "damage": {"damage": .03, "corrupt": (.05, 2)},
    "all": {"loss": .02, "reorder": (.1, (100, 20_000)), "duplicate": (.05, 2000), "damage": .01, "corrupt": .01, "jitter_ns": 300},
}
TIMEOUT_NS = 60_000


def exchange(pair, count, mtu=256, timeout_ns=TIMEOUT_NS):
    rng, streams = pair.rng, {}
    for ops in (("send", "send_imm", "write_imm"), ("send", "write"), ("read", "read", "write")):
        link = pair.link(mtu=mtu, address=rng.choice(("ip4", "vlan6")))
        for side in range(2):
            sizes = lengths(rng, mtu, count)
            streams[link, side] = [(op, n, {"timeout_ns": timeout_ns} if op != "write" else {})
                                   for op, n in zip(rng.choices(ops, k=count), sizes)]
    made = pair.play(streams, window=8, limit_ns=50_000_000)
    pair.settle(), pair.verify(), pair.balance()
    return made


def changes(pair):
    found = Counter()
    for lane in pair.net.lanes:
        found += lane.changed + lane.dropped
    return found


def check(pair, made):
    """Sends are done when they are sent. What the receives say is held against memory by the Pair, one by one."""
    assert all(m.sent.status == "success" for m in made)
    received = Counter(m.received.status for m in made if m.takes_receive)
    assert set(received) <= {"success", "partial"} and received["success"]
    expired = sum(m.received.cause == "timeout" for m in made if m.takes_receive)
    preempted = sum(m.received.cause == "preempted" for m in made if m.takes_receive)
    for name, n in (("deadlines", expired), ("preempted", preempted)):
        counted = sum(end.count(name) for end in pair.ends)
        assert counted <= n and (counted > 0) == (n > 0)    # of a run of receives that end empty the first is counted
    return received


@BOTH
@pytest.mark.parametrize("name", NETWORKS)
def test_every_operation(make, seed, name):
    with Pair(make, seed, strict=False, **NETWORKS[name]) as pair:
        made = exchange(pair, 40)
        received, changed = check(pair, made), changes(pair)
        print(f"{dict(received)}, {dict(changed)}, latest {pair.latest_ns} ns")
        if name == "jitter":
            assert received["partial"] or make.__name__ == "ModelDevice"
        else:
            wanted = {"loss": ["loss"], "bursts": ["burst"], "reorder": ["reordered"], "duplicate": ["duplicated"],
                      "damage": ["damaged", "corrupted"], "all": ["loss", "reordered", "duplicated", "damaged"]}[name]
            assert all(changed[what] for what in wanted)
        there = Counter()
        for end in pair.ends:
            there += Counter(end.card.counters())
        if name == "damage":
            assert there["drop_runt"] == changed["damaged"]
        if name in ("loss", "bursts", "damage", "all"):
            assert received["partial"]
        if name == "loss":
            assert there["drop_late"] == 0 and not any(there[f"drop_{r}"] for r in ("icrc", "length", "generation", "bounds"))


@BOTH
def test_no_packet_comes_through(make, seed):
    """Each receive ends empty at its own time, one after the other; then the cable is whole again."""
    with Pair(make, seed, strict=False, loss=1) as pair:
        link = pair.link()
        made = [pair.post(link, side, op, 600, timeout_ns=20_000) for side in range(2) for op in ("send", "send_imm", "write_imm")]
        reads = pair.link()
        made += [pair.post(reads, side, "read", 600, timeout_ns=20_000) for side in range(2)]
        pair.all_over(made)
        for m in made:
            c = m.received
            assert (c.opcode, c.status, c.cause, c.byte_len, c.msg_len) == ("none", "partial", "timeout", 0, 0)
            assert m.sent.status == "success"
        pair.settle(), pair.verify(), pair.balance()
        for lane in pair.net.lanes:
            lane.impair(loss=0)
        made = [pair.post(link, side, "send", 600) for side in range(2)]
        pair.all_over(made)
        assert all(m.received.status == "success" for m in made)


@BOTH
@pytest.mark.parametrize("which", [1, 2, 3, 4])
@pytest.mark.parametrize("op", ["send", "write_imm", "read"])
def test_one_packet_lost(make, seed, op, which):
    """Of four: exactly that one is missing, and the completion says how much is there."""
    with Pair(make, seed, strict=False) as pair:
        link = pair.link()
        opcode = {"send": 0xE4, "write_imm": 0xEB, "read": 0xF0}[op]
        lost = pair.net.rule(match=lambda frame: frame[42] == opcode, nth=which, loss=1)
        m = pair.post(link, 0, op, 3 * 256 + 99, timeout_ns=30_000)
        last = pair.post(link, 0, op, 10, timeout_ns=30_000)
        pair.all_over([m, last])
        missing = pieces(m.length, 256)[which - 1][1]
        c = m.received
        assert lost.hits == 1
        assert (c.status, c.cause, c.byte_len, c.msg_len) == ("partial", "preempted", m.length - missing, m.length)
        assert m.present == m.length - missing and last.received.status == "success"
        pair.settle(), pair.verify(), pair.balance()


@BOTH
@pytest.mark.parametrize("name", ["loss", "reorder", "duplicate", "all"])
def test_standard_messages(make, seed, name):
    """Type UC: a message is a packet, and takes the next receive; which one that is, its immediate says here."""
    with Pair(make, seed, strict=False, **NETWORKS[name]) as pair:
        link, count = pair.link(type="uc"), 60
        messages, end = [], pair.ends[1]
        for i in range(count):
            pair.receive(1, link.qpns[1], end.take(256), 256, timeout_ns=100_000)
        buffers = [r.to for r in end.posted[link.qpns[1]]]
        got = []
        end.unknown = got.append
        for i in range(count):
            messages.append(pair.post(link, 0, "send_imm", pair.rng.randrange(257), imm=i, receive=False, to=0))
            end.expected.pop()
            if pair.rng.random() < 0.3:
                pair.run()
        pair.settle()
        arrived = len(got)
        assert arrived == end.count("frames_placed") and 0 < arrived <= count
        for i, c in enumerate(got):
            m = messages[c.imm]
            assert (c.index, c.opcode, c.status, c.byte_len, c.msg_len) == (i, "send_imm", "success", m.length, m.length)
            assert end.at(buffers[i], 256) == m.data + bytes([FILL]) * (256 - m.length)
        order = [c.imm for c in got]
        if name == "loss":
            assert arrived < count and order == sorted(set(order))
        assert (len(set(order)) < len(order)) == (name == "duplicate" or pair.twice)
        # the others wait for their deadlines, in one run
        pair.until(lambda: len(got) == count)
        assert all((c.status, c.cause, c.byte_len) == ("partial", "timeout", 0) for c in got[arrived:])
        assert end.at(buffers[arrived] - 32, 256) == bytes([FILL]) * 256 if arrived < count else True
        pair.balance()


@pytest.mark.soak
@BOTH
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("mtu", [256, 1024])
def test_many(make, seed, name, mtu):
    for round in range(4):
        with Pair(make, seed + round, strict=False, **NETWORKS[name]) as pair:
            check(pair, exchange(pair, 300 * 256 // mtu, mtu))
