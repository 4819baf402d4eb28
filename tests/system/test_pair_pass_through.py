"""Two cards whose hosts also talk past the transport: their frames go both ways between RDMA traffic, unharmed and in order."""

from collections import Counter

import pytest

from .pair import BOTH, CFG, Pair, Tap

SHORTEST = 60
RDMA = (("send", 700), ("write", 300), ("send_imm", 20), ("write_imm", 257))


def arp(rng):
    return b"\xff" * 6 + rng.randbytes(6) + b"\x08\x06" + bytes.fromhex("0001080006040001") + rng.randbytes(20)


def one_of_the_host(rng, size):
    """Not for the transport: ARP, other IPv4, UDP to another port, TCP, IPv6 neighbours, unknown types, tagged."""
    mac = rng.randbytes(12)
    rest = lambda head: (mac + head + rng.randbytes(1600))[:max(size, 14 + len(head))]
    ip = lambda protocol, port: (b"\x08\x00\x45\0" + max(28, size - 14).to_bytes(2, "big") + bytes(4) +
                                 bytes([64, protocol, 0, 0]) + rng.randbytes(10) + port.to_bytes(2, "big"))
    return rng.choice((
        lambda: arp(rng), lambda: rest(ip(17, 53)), lambda: rest(ip(6, 4791)), lambda: rest(ip(1, 0)),
        lambda: rest(b"\x88\xcc"), lambda: rest(b"\x86\xdd\x60" + bytes(5) + b"\x3a\xff" + rng.randbytes(32)),
        lambda: rest(b"\x81\0\x20\5\x08\x06"),
    ))()


def of_the_host(rng, sizes):
    return [one_of_the_host(rng, size) for size in sizes]


def padded(frame):
    return frame.ljust(SHORTEST, b"\0")


@BOTH
@pytest.mark.parametrize("rdma", [True, False], ids=["mixed", "alone"])
def test_both_ways(make, seed, rdma):
    with Pair(make, seed, device={"host_pause": .2, "host_tx_pause": .1, "host_tx_gap": (0, 40)}) as pair:
        rng = pair.rng
        sizes = [*range(14, 80), 1514, 1513, 1500, *(rng.randrange(60, 1515) for _ in range(40))]
        frames, got = [], [[], []]
        for end in pair.ends:
            rng.shuffle(sizes)
            frames.append(of_the_host(rng, sizes))
        made = []
        if rdma:
            links = [pair.link(), pair.link(type="uc", address="ip6")]
            reads = pair.link(address="vlan4")
        for i in range(len(sizes)):
            for end in pair.ends:
                end.dev.host_send(frames[end.side][i])
                if rdma and all(pair.room(link, end.side, "send") > 2 for link in links):
                    op, n = rng.choice(RDMA)
                    made.append(pair.post(links[0], end.side, op, rng.randrange(n)))
                    made.append(pair.post(links[1], end.side, "send", rng.randrange(257)))
                if rdma and i % 10 == 0:
                    made.append(pair.post(reads, end.side, "read", 2000))
            if i % 4 == 3:
                pair.run(2000)
        pair.all_over(made)
        pair.settle(), pair.verify(), pair.balance()
        for end in pair.ends:
            got[end.side] += end.dev.host_frames()
            assert got[end.side] == [padded(f) for f in frames[1 - end.side]]
            assert end.count("host_frames_sent") == end.count("frames_passed") == len(sizes) and end.count("pass_overflow") == 0


@BOTH
def test_turns(make, seed):
    """When both have plenty to send, the host's frames and the transport's take turns."""
    with Pair(make, seed) as pair:
        near, link = pair.ends[0], pair.link()
        tap = Tap(near.port.out)
        frames = [b"\xff" * 12 + b"\x88\xcc" + bytes(300) for _ in range(60)]
        m = pair.post(link, 0, "write", 256 * 100)
        for frame in frames:
            near.dev.host_send(frame)
        pair.all_over([m])
        pair.settle(), pair.verify(), pair.balance()
        order = "".join("h" if frame[12:14] == b"\x88\xcc" else "t" for _, frame in tap.frames)
        both = order[:order.rindex("h")].lstrip("ht"[order[0] == "t"])
        assert order.count("h") == 60 and order.count("t") == 100
        middle = order[20:100]
        assert max(len(run) for run in middle.replace("ht", "h t").replace("th", "t h").split()) <= 3, order
        assert pair.ends[1].dev.host_frames() == frames and both


@BOTH
def test_what_the_card_takes_for_transport_is_judged_as_such(make, seed):
    """A host that sends RoCE frames of its own has them judged by the peer's card like any other's."""
    with Pair(make, seed, strict=False) as pair:
        near, far = pair.ends
        link, tap = pair.link(), Tap(near.port.out)
        m = pair.post(link, 0, "send", 50)
        pair.all_over([m])
        again = tap.frames[0][1]
        for _ in range(3):
            near.dev.host_send(again)
        near.dev.host_send(again[:-1] + bytes([again[-1] ^ 1]))
        pair.settle()
        counts = Counter(far.card.counters())
        assert counts["drop_late"] == 3 and counts["drop_icrc"] == 1 and counts["frames_placed"] == 1
        assert far.dev.host_frames() == []
        pair.balance()


@BOTH
def test_switched_off_nothing_leaves(make, seed):
    """With tx disabled no frame is begun: the host's wait as well, and go out in order when it is enabled."""
    with Pair(make, seed) as pair:
        near, far = pair.ends
        near.card.enable(hold=True, tx=False)
        at = near.port.out.frames
        frames = of_the_host(pair.rng, [100, 60, 20])
        for frame in frames:
            near.dev.host_send(frame)
        pair.world.run_ns(20_000)
        assert near.port.out.frames == at
        near.card.enable(hold=True)
        pair.settle()
        assert far.dev.host_frames() == [padded(f) for f in frames] and near.count("host_frames_sent") == 3


@pytest.mark.soak
@BOTH
def test_long_frames_at_line_rate(make, seed):
    with Pair(make, seed) as pair:
        link = pair.link(mtu=1024)
        for _ in range(10):
            frames = of_the_host(pair.rng, [1514] * 40)
            for end in pair.ends:
                for frame in frames:
                    end.dev.host_send(frame)
            made = [pair.post(link, side, "write", 20_000) for side in range(2)]
            pair.all_over(made)
            pair.settle(), pair.verify(wipe=True)
            for end in pair.ends:
                assert end.dev.host_frames() == [padded(f) for f in frames] and CFG.max_frame_bytes >= 1514
        pair.balance()
