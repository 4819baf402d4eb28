"""Two cards: rings that wrap, doorbells in bursts or one for each, full rings, and the 16-bit counts of doorbells."""

import re

import pytest

from host_driver.card import QueueFull

from .pair import BOTH, CFG, RECEIVES, SENDS, Pair, Tap


@BOTH
@pytest.mark.parametrize("window", [1, 7, CFG.sq_entries])
def test_laps(make, seed, window):
    """More than five times round, with few or with all of the ring posted at once."""
    count = 5 * CFG.sq_entries + 7
    with Pair(make, seed) as pair:
        streams = {}
        for type, op in (("xp", "send"), ("uc", "write_imm"), ("xp", "write")):
            link = pair.link(type=type)
            for side in range(2):
                streams[link, side] = [(op, pair.rng.randrange(20), {"signaled": pair.rng.random() < 0.7}) for _ in range(count)]
        if window == 1:
            streams = {key: jobs[:70] for key, jobs in streams.items()}
        pair.play(streams, window=window, limit_ns=20_000_000, step_ns=500 if window == 1 else 2000)
        pair.settle(), pair.verify(), pair.balance()


@BOTH
@pytest.mark.parametrize("bells", ["one", "each", "twice", "none at first"])
def test_doorbells(make, seed, bells):
    """A whole ring posted with one bell, with a bell each, with bells that tell nothing new."""
    with Pair(make, seed) as pair:
        link = pair.link()
        near, qpn = pair.ends[0], link.qpns[0]
        for lap in range(3):
            made = []
            for i in range(CFG.sq_entries):
                last = i == CFG.sq_entries - 1
                bell = bells in ("each", "twice") or last and bells == "one"
                made.append(pair.post(link, 0, "send", 1 + i, bell=bell))
                if bells == "twice":
                    near.card.ring_send(qpn), near.card.ring_send(qpn)
            if bells == "none at first":
                pair.settle()
                assert not any(m.sent or m.received for m in made) and near.port.out.frames == lap * CFG.sq_entries
                near.card.ring_send(qpn)
            pair.all_over(made)
            near.card.ring_send(qpn)        # nothing new
        pair.settle(), pair.verify(), pair.balance()


@BOTH
@pytest.mark.parametrize("signaled", [True, False])
def test_a_full_ring(make, seed, signaled):
    """One more is refused by the driver, and nothing is lost by it."""
    with Pair(make, seed) as pair:
        link, near = pair.link(), pair.ends[0]
        for _ in range(3):
            near.card.enable(hold=True, tx=False)
            made = [pair.post(link, 0, "send", i, signaled=signaled) for i in range(CFG.sq_entries)]
            for op in ("send", "write"):
                with pytest.raises(QueueFull):
                    near.card.post_send(link.qpns[0], op, inline=b"one too many")
            with pytest.raises(QueueFull):
                pair.receive(1, link.qpns[1], 0, 10)
            pair.run(5000)
            assert near.card.outstanding(link.qpns[0], "send") == CFG.sq_entries and near.port.out.frames % CFG.sq_entries == 0
            near.card.enable(hold=True)
            pair.all_over(made)
        pair.settle(), pair.verify(), pair.balance()


@BOTH
def test_more_queue_pairs_than_slots(make, seed):
    """All queue pairs of the card with full rings at once: each has its turn."""
    with Pair(make, seed) as pair:
        streams = {}
        for n in range(CFG.num_qps - 1):
            link = pair.link(type="uc" if n % 5 == 4 else "xp", address="ip6" if n % 2 else "ip4")
            for side in range(2):
                streams[link, side] = [("send", pair.rng.randrange(257), {}) for _ in range(30)]
        pair.play(streams, window=CFG.sq_entries, limit_ns=20_000_000)
        pair.settle(), pair.verify(), pair.balance()
        # fair: what one sent at the same time as another didn't differ by much
        last = [max(m.sent.time_ns for m in pair.messages if m.link is link and m.side == 0) for link in pair.links]
        assert max(last) < 3 * min(last)


@BOTH
def test_one_queue_pair_does_not_starve_another(make, seed):
    """Short messages of one go out between the packets of a long one of another."""
    with Pair(make, seed) as pair:
        long, short = pair.link(mtu=1024), pair.link()
        pair.post(long, 0, "write", 60_000)
        pair.run(10_000)
        tap = Tap(pair.ends[0].port.out)
        for _ in range(10):
            pair.post(short, 0, "send", 20)
        pair.all_over(pair.messages)
        order = "".join("s" if packet.qpn == short.qpns[1] else "L" for _, packet in tap.packets())
        assert re.fullmatch("L{1,34}s(L{1,2}s){9}L+", order), order     # first what is planned already, then in turn
        pair.settle(), pair.verify(), pair.balance()


@pytest.mark.soak
@BOTH
def test_the_counts_of_the_doorbells_wrap(make, seed):
    """More than 2^16 sends on a queue pair."""
    with Pair(make, seed, device={"read_latency": 5, "write_latency": 5}) as pair:
        link, near, far = pair.link(), *pair.ends
        to, done = far.take(64), 0
        while done < 0x1_0000 + 300:
            for i in range(CFG.sq_entries):
                last = i == CFG.sq_entries - 1
                far.card.post_receive(link.qpns[1], far.area_va(to), 64, 0x77, doorbell=last)
            for i in range(CFG.sq_entries):
                near.card.post_send(link.qpns[0], "send", inline=(done + i).to_bytes(4, "big"), signaled=i % 16 == 15,
                                    doorbell=i == CFG.sq_entries - 1)
            sent, received = [], []
            while len(sent) < CFG.sq_entries // 16 or len(received) < CFG.sq_entries:
                pair.world.run_ns(1000)
                sent += near.card.poll(SENDS)
                received += far.card.poll(RECEIVES)
            assert [c.index for c in sent] == [done + i for i in range(15, CFG.sq_entries, 16)]
            assert [c.index for c in received] == [done + i for i in range(CFG.sq_entries)]
            assert all(c.status == "success" for c in sent + received)
            done += CFG.sq_entries
            assert far.at(to, 4) == (done - 1).to_bytes(4, "big")
