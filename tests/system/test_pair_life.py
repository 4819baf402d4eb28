"""Two cards: queue pairs destroyed, flushed or begun anew while they are busy, and drivers that die with traffic under way."""

import pytest

from host_driver.card import Card
from optinic.abi.structs import RECV_WQE, SEND_WQE

from .pair import BOTH, CFG, PD, PEERS, RECEIVES, SENDS, Pair, Tap

KEY, VA, SIZE = 0x99, 0x1234 << 32, 1 << 16     # memory of the victim, which goes when the victim goes
CABLE_NS = 1200                                 # what a frame may have before it at the cable


def busy(pair, links, count=CFG.sq_entries, side=None, **fields):
    """Full rings, both ways."""
    made = []
    for link in links:
        for one in range(2) if side is None else (side,):
            op = {"uc": "send"}.get(link.type, pair.rng.choice(("send", "write_imm", "write")))
            for i in range(count):
                length = pair.rng.randrange(257 if link.type == "uc" else 700)
                made.append(pair.post(link, one, op, length, bell=i == count - 1, **fields))
    return made


def works(pair, *links, count=6):
    made = [pair.post(link, side, "send", pair.rng.randrange(257 if link.type == "uc" else 600))
            for link in links for side in range(2) for _ in range(count)]
    pair.all_over(made)
    assert all(m.sent.status == m.received.status == "success" for m in made)
    return made


class Victim:
    """A connected QP whose memory and rings are its own: taken from the card when the QP is gone, any use of them is a fault."""

    def __init__(self, pair):
        self.pair, self.qpns, self.life = pair, (0x77_7707, 0x88_8808), 0
        self.memory = [end.dev.alloc(SIZE) for end in pair.ends]
        for end, memory, qpn in zip(pair.ends, self.memory, self.qpns):
            end.card.add_region(KEY, VA, SIZE, ("local_write", "remote_write", "remote_read"), pd=PD, delta=memory - VA)
            end.foreign[qpn] = []

    def create(self):
        self.life += 1
        for side, end in enumerate(self.pair.ends):
            end.card.create_qp(self.qpns[side], mtu=256, peer=PEERS["ip4"], peer_qpn=self.qpns[1 - side], generation=self.life,
                               peer_generation=self.life, pd=PD, cq=RECEIVES, send_cq=SENDS)
            end.poll()
            end.foreign[self.qpns[side]].clear()

    def post(self, count=CFG.sq_entries):
        rng = self.pair.rng
        for side in (0, 1):
            for i in range(count):
                self.pair.ends[side].card.post_receive(self.qpns[side], VA + 800 * i, 800, KEY, doorbell=i == count - 1)
        for side in (0, 1):
            for i in range(count):
                op = rng.choice(("send", "write"))
                more = {"remote_va": VA + 1000 * i, "rkey": KEY} if op == "write" else {}
                self.pair.ends[side].card.post_send(self.qpns[side], op, VA + rng.randrange(SIZE - 700), rng.randrange(700), KEY,
                                                    doorbell=i == count - 1, **more)

    def _places(self, side):
        card, qpn = self.pair.ends[side].card, self.qpns[side]
        index = card.qp_index(qpn)
        yield self.memory[side], SIZE
        yield card.rq_base + index * CFG.rq_entries * RECV_WQE.size, CFG.rq_entries * RECV_WQE.size
        yield card.sq_base + index * CFG.sq_entries * SEND_WQE.size, CFG.sq_entries * SEND_WQE.size

    def take_away(self, side):
        for place, size in self._places(side):
            self.pair.ends[side].dev.unmap(place, size)

    def give(self, side):
        for place, size in self._places(side):
            self.pair.ends[side].dev.map(place, size)


@BOTH
@pytest.mark.parametrize("side", [0, 1])
def test_destroyed_while_busy(make, seed, side):
    """At either end, at any time: its memory isn't touched any more, nothing is sent any more, and the others go on."""
    with Pair(make, seed) as pair:
        others = [pair.link(), pair.link(type="uc"), pair.link(address="vlan6")]
        victim, end = Victim(pair), pair.ends[side]
        tap = Tap(end.port.out)
        gone = 0
        for delay in (0, 300, 1500, 4000, 9000, 20_000, 45_000, 90_000):
            victim.create()
            victim.post()
            made = busy(pair, others, 24)
            pair.run(delay)
            end.card.destroy_qp(victim.qpns[side])
            victim.take_away(side)
            after = pair.world.now_ns + CABLE_NS
            there = bytes(end.dev.read(victim.memory[side], SIZE))
            pair.all_over(made)
            pair.settle(), pair.verify(wipe=True)
            assert not [packet for _, packet in tap.packets(after) if packet.qpn == victim.qpns[1 - side]]
            assert bytes(end.dev.read(victim.memory[side], SIZE)) == there and end.dev.faults == []
            gone += end.count("drop_qpn")
            # the other end knows nothing of it; there, what waits can be flushed
            far = pair.ends[1 - side]
            far.card.flush_qp(victim.qpns[1 - side])
            far.poll()
            assert far.card.outstanding(victim.qpns[1 - side]) == far.card.outstanding(victim.qpns[1 - side], "send") == 0
            found = [c for c in far.foreign[victim.qpns[1 - side]] if c.queue == "receive"]
            assert {(c.status, c.cause) for c in found} <= {("success", "complete"), ("error", "flushed"), ("partial", "preempted")}
            victim.give(side)
        assert gone
        victim.create()
        victim.post(20)
        pair.settle()
        for qpn, one in zip(victim.qpns, pair.ends):
            assert [c.status for c in one.foreign[qpn] if c.queue == "send"] == ["success"] * 20


@BOTH
def test_flushed_while_busy(make, seed):
    """Each send ends, with what was sent before the others, when the command does; at the far end nothing is told wrongly."""
    with Pair(make, seed, strict=False) as pair:
        link, others = pair.link(), [pair.link(), pair.link(type="uc")]
        near, qpn = pair.ends[0], link.qpns[0]
        tap, kinds = Tap(near.port.out), set()
        for delay in (0, 500, 2000, 5000, 12_000, 30_000, 70_000):
            good = busy(pair, others, 20)
            mine = busy(pair, [link], 40, side=0, receive_ns=pair.ends[1].now_ns + 150_000)
            theirs = busy(pair, [link], 40, side=1, receive_ns=near.now_ns + 150_000)
            pair.run(delay)
            near.card.flush_qp(qpn)
            after = pair.world.now_ns + CABLE_NS
            near.poll()
            assert all(m.sent for m in mine) and near.card.outstanding(qpn, "send") == near.card.outstanding(qpn) == 0
            fates = [m.sent.cause for m in mine]
            sent = fates.count("complete")
            assert fates == ["complete"] * sent + ["flushed"] * (40 - sent)
            kinds.add(min(1, sent) + min(1, 40 - sent))
            pair.all_over(good, 30_000_000), pair.all_received([m for m in mine if m.takes_receive], 30_000_000)
            pair.settle(), pair.verify(wipe=True)
            assert all(m.sent.status == "success" and (not m.takes_receive or m.received.status == "success") for m in good)
            assert all(m.sent.status != "success" or not m.takes_receive or m.received.status == "success" for m in mine)
            assert all(m.present == m.length for m in mine if m.sent.status == "success" and m.present is not None)
            assert {m.received.cause for m in theirs if m.received} <= {"complete", "flushed", "preempted"}
            assert not [packet for _, packet in tap.packets(after) if packet.qpn == link.qpns[1]]
            link.renew()
            works(pair, link, *others)
            pair.settle(), pair.verify(wipe=True)
        assert kinds >= {1, 2}


@BOTH
def test_late_packets_of_another_life(make, seed):
    """Sent to the old life and still under way when the new one begins: dropped, each for its generation."""
    with Pair(make, seed, strict=False) as pair:
        link, reads, near, far = pair.link(), pair.link(), *pair.ends
        slow = pair.net.rule(reorder=(1, 60_000), name="detour")
        for round in range(3):
            slow.active = True
            old = [pair.post(link, 0, op, n) for op in ("send", "write", "send_imm", "write_imm") for n in (10, 700)]
            old += [pair.post(reads, 0, "read", 600)]
            frames = near.port.out.frames
            pair.run(20_000)
            sent = near.port.out.frames - frames
            assert all(m.sent.status == "success" for m in old) and sent == 4 * 4 + 1
            before = far.count("drop_generation")
            link.renew(), reads.renew()
            slow.active = False
            made = works(pair, link) + [pair.post(reads, 0, "read", 600)]
            for end in pair.ends:       # nothing of the old is there, and nothing will be
                end.expected = [m for m in end.expected if m not in old]
            pair.run(60_000), pair.settle(), pair.verify(wipe=True)
            assert far.count("drop_generation") - before == sent and made[-1].received.status == "success"
        # and the answer to a READ, when only the one who asked has begun anew
        slow.active = False
        pair.net.rule(destination=0, reorder=(1, 60_000), match=lambda frame: frame[42] == 0xF0)
        old = pair.post(reads, 0, "read", 600)
        pair.run(20_000)
        assert far.count("reads_served") == 4
        before = near.count("drop_generation")
        reads.renew()
        near.expected.remove(old)
        pair.run(80_000), pair.settle(), pair.verify()
        assert near.count("drop_generation") - before == 3
        works(pair, link), pair.balance()


@BOTH
@pytest.mark.parametrize("side", [0, 1])
def test_a_driver_that_dies_and_comes_back(make, seed, side):
    """On a card that goes on sending and receiving. The new driver clears everything, and nothing of the old rings is used then."""
    with Pair(make, seed, strict=False) as pair:
        links = [pair.link(), pair.link(type="uc"), pair.link(address="ip6")]
        reads = pair.link()
        end, far = pair.ends[side], pair.ends[1 - side]
        tap = Tap(end.port.out)
        for delay in (0, 2500, 11_000, 40_000):
            busy(pair, links, timeout_ns=300_000)
            for one in range(2):
                pair.post(reads, one, "read", 5000, timeout_ns=300_000)
            end.dev.host_send(bytes(60))
            pair.run(delay)
            old = end.card
            card = Card(end.dev, CFG)       # nobody polled, nobody told the old one
            card.tear_down()
            for base, size in ((old.rq_base, RECV_WQE.size * CFG.rq_entries), (old.sq_base, SEND_WQE.size * CFG.sq_entries)):
                end.dev.unmap(base, size * CFG.num_qps)
            for cq in old._cqs.values():
                end.dev.unmap(cq.addr, cq.entries * 32)
            after, memory = pair.world.now_ns + CABLE_NS, end.at(0, 1 << 20)
            pair.world.run_ns(30_000)
            assert end.at(0, 1 << 20) == memory and end.dev.faults == [] and not tap.packets(after)
            end.bring_up()
            far.poll()
            # the peer is told, and both begin anew
            for link in (*links, reads):
                far.card.flush_qp(link.qpns[1 - side])
            pair.settle()           # type UC knows no lives: what is under way would be taken for the new one's
            for link in (*links, reads):
                link.renew()
            for one in pair.ends:
                one.wipe()
            works(pair, *links)
            made = [pair.post(reads, one, "read", 5000) for one in range(2)]
            pair.all_received(made)
            pair.settle(), pair.verify(wipe=True)
        assert end.dev.faults == far.dev.faults == []
