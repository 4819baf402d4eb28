"""Two cards: every operation at every length and alignment, both ways at once, over every kind of address."""

import pytest

from optinic.abi.structs import INLINE_MAX
from optinic.config import preset
from sim.device import SimDevice

from .pair import BOTH, CFG, Pair

XP = ("send", "send_imm", "write", "write_imm", "read")
ADDRESSES = ("ip4", "ip6", "vlan4", "vlan6")
KINDS = {"whole": {}, "lossy": {"loss": .01, "reorder": (.1, (100, 20_000)), "duplicate": (.05, 2000), "jitter_ns": 300}}
UNKIND = {"read_latency": (5, 150), "write_latency": (5, 150), "shuffle": 40, "interleave": True, "aw_pause": .2, "w_pause": .1,
          "b_pause": .2, "ar_pause": .2, "r_pause": .1, "mac_pause": .05, "visibility": "random"}


def edges(mtu):
    """Around every multiple of the MTU from 0 to 3, and of a word and a beat."""
    near = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65}
    for k in (1, 2, 3):
        near |= set(range(k * mtu - 5, k * mtu + 2))
    return sorted(near)


def lengths(rng, mtu, count):
    """`count` of them in any order: edges, and others if there are more."""
    found = edges(mtu)
    found = rng.sample(found, min(count, len(found)))
    found += [rng.randrange(3 * mtu + 2) for _ in range(count - len(found))]
    rng.shuffle(found)
    return found


def one_way(rng, ops, sizes, mtu=None, timeout_ns=None):
    """One message of each size; `mtu` if no message may be longer. Short ones are inline now and then. Receives have that
    time."""
    jobs = []
    for n in sizes:
        op = rng.choice(ops)
        n = min(n, mtu) if mtu else n
        inline = op != "read" and n <= INLINE_MAX and rng.random() < 0.5
        jobs.append((op, n, {"inline": inline, "signaled": op != "read" or rng.random() < 0.5, "solicited": rng.random() < 0.2,
                             "timeout_ns": None if op == "write" else timeout_ns}))
    return jobs


def exchange(pair, mtu, count, links=(("xp", "ip4"), ("xp", "ip6"), ("xp", "vlan4"), ("read", "vlan6"), ("uc", "ip4"))):
    """`count` messages each way on each link, all at once."""
    rng, streams = pair.rng, {}
    for kind, address in links:
        link = pair.link(type="uc" if kind == "uc" else "xp", address=address, mtu=mtu, paths=rng.choice((1, 4, 128)),
                         traffic_class=rng.choice((0, 2, 0xFE)))
        ops = {"xp": XP[:4], "uc": XP[:4], "read": ("read", "read", "write")}[kind]
        for side in range(2):
            streams[link, side] = one_way(rng, ops, lengths(rng, mtu, count), mtu if kind == "uc" else None)
    made = pair.play(streams, window=8)
    pair.settle(), pair.verify(), pair.balance()
    return made


@BOTH
def test_all_at_once(make, seed):
    with Pair(make, seed) as pair:
        made = exchange(pair, 256, 50)
        assert {(m.side, m.op) for m in made} == {(side, op) for side in range(2) for op in XP} and len(made) == 500


@BOTH
def test_an_unkind_host(make, seed):
    """Latencies, pauses on every channel, answers in any order and interleaved."""
    with Pair(make, seed, device=UNKIND) as pair:
        exchange(pair, 256, 30)


@BOTH
@pytest.mark.parametrize("mtu, count", [(512, 12), (1024, 24)])
def test_other_path_mtus(make, seed, mtu, count):
    with Pair(make, seed) as pair:
        exchange(pair, mtu, count, (("xp", "vlan6"), ("read", "ip6"), ("uc", "vlan4")))


@BOTH
@pytest.mark.parametrize("op", XP)
def test_alignments(make, seed, op):
    """Each source and each destination alignment modulo 64, at the lengths where a beat or an MTU ends."""
    with Pair(make, seed) as pair:
        link, rng, jobs = pair.link(), pair.rng, []
        target = pair.ends[0 if op == "read" else 1]
        for source, destination in enumerate(rng.sample(range(64), 64)):
            length = rng.choice((1, 7, 8, 9, 63, 64, 65, 255, 256, 257))
            place = target.take(length + 64)
            jobs.append((op, length, {"at": 4096 + source, "to": place + (destination - place) % 64}))
        pair.play({(link, 0): jobs}, window=4 if op == "read" else 16)
        pair.settle(), pair.verify(), pair.balance()
        assert len({m.to % 64 for m in pair.messages}) == 64


@pytest.mark.rtl
def test_a_wider_card(seed):
    """Preset `small`: 128 bits at 250 MHz."""
    with Pair(SimDevice, seed, preset("small", trace=True)) as pair:
        exchange(pair, 256, 40)
        exchange(pair, 1024, 12)


@pytest.mark.soak
@BOTH
@pytest.mark.parametrize("network", KINDS)
@pytest.mark.parametrize("mtu, step", [(256, 1), (512, 1), (1024, 1), (2048, 5), (4096, 19)])
def test_every_length(make, seed, mtu, step, network):
    """From 0 to 3 MTU + 1, of every operation, each on its queue pairs and all at once, both ways; of long ones each `step`-th."""
    cfg = CFG if mtu <= CFG.mtu_max else preset("small", trace=True)
    with Pair(make, seed, cfg, strict=not KINDS[network], **KINDS[network]) as pair:
        rng, links = pair.rng, [(op, pair.link(address=address, mtu=mtu)) for op, address in zip(XP, (*ADDRESSES, "ip4"))]
        sizes = sorted({*range(0, 3 * mtu + 2, step), *edges(mtu)})
        for part in split(rng.sample(sizes, len(sizes)), 100_000):     # what of all operations fits the area
            streams = {(link, side): one_way(rng, (op,), rng.sample(part, len(part)), timeout_ns=100_000 if KINDS[network] else None)
                       for op, link in links for side in range(2)}
            made = pair.play(streams, window=4, limit_ns=500_000_000)
            assert len(made) == 10 * len(part) and all(m.sent.status == "success" for m in made if m.sent)
            pair.settle(), pair.verify(wipe=True)
        pair.balance()


def split(sizes, most):
    """Lists of them whose sums are not above `most`."""
    parts, total = [[]], 0
    for n in sizes:
        if total + n > most:
            parts.append([])
            total = 0
        parts[-1].append(n)
        total += n
    return parts


@pytest.mark.soak
@BOTH
@pytest.mark.parametrize("mtu", [256, 512, 1024])
def test_many(make, seed, mtu):
    for round in range(8):
        with Pair(make, seed + round, device=UNKIND if round % 2 else {}) as pair:
            exchange(pair, mtu, 40_000 // mtu)
