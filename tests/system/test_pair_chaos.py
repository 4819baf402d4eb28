"""Two cards, and everything at random: operations of every kind, faults of the cable and the host, lives that end, pacing."""

from functools import partial

import pytest

from sim.device import SimDevice

from .pair import BOTH, KEY, Pair

NETWORK = {"loss": .01, "reorder": (.05, (100, 10_000)), "duplicate": (.01, 500), "corrupt": .005}
UNKIND = {"read_latency": (5, 200), "write_latency": (5, 200), "shuffle": 60, "interleave": True, "ar_pause": .2, "r_pause": .1,
          "aw_pause": .1, "w_pause": .1, "b_pause": .1, "mac_pause": .02, "visibility": "random"}
# Receive rings of two queue pairs may have the same places in the card's line cache; with a slow host, events of both that follow
# each other then wait for a read each, as many as are on their way to admission.
LATE_NS = 150_000
REASONS = {"complete", "timeout", "preempted", "flushed", "protection", "bus", "length"}


class Chaos:
    def __init__(self, pair, faults):
        self.pair, self.rng, self.faults = pair, pair.rng, faults
        rng = self.rng
        self.links = [pair.link(mtu=rng.choice((256, 512, 1024)), address=rng.choice(("ip4", "ip6", "vlan4", "vlan6")),
                                traffic_class=rng.choice((0, 0, 3)), paths=rng.choice((1, 8))) for _ in range(6)]
        self.reads = [pair.link(mtu=256), pair.link(mtu=1024)]
        for end in pair.ends:
            for name, value in {"CNP_INTERVAL": 6000, "DCQCN_LINE_RATE": 8000, "DCQCN_RATE_MIN": rng.choice((500, 2000)),
                                    "DMA_TIMEOUT": 3000}.items():
                end.card.reg_write(name, value)
        self.actions = {self.post: 40, self.read: 8, self.wait: 20, self.renew: 3, self.flush: 2, self.destroy: 2, self.host: 4,
                        self.off: 2, self.fault: 3 * bool(faults), self.refused: 2}

    def step(self):
        action, = self.rng.choices(list(self.actions), self.actions.values())
        action()

    def limit(self, side):
        """When a receive at that end is to end."""
        if self.rng.random() < 0.3:
            return {"timeout_ns": self.rng.choice((15_000, 40_000))}
        return {"receive_ns": self.pair.ends[side].now_ns + self.rng.choice((20_000, 40_000, 90_000))}

    def post(self):
        rng, pair = self.rng, self.pair
        link, side = rng.choice(self.links), rng.randrange(2)
        op = rng.choice(("send", "send_imm", "write", "write_imm"))
        near = pair.ends[side]
        count = rng.choice((1, 1, 3, 12))
        for i in range(count):
            if pair.room(link, side, op) < 1:
                near.card.ring_send(link.qpns[side])
                return
            fields = {}
            if rng.random() < 0.15:
                fields["deadline_ns"] = near.now_ns + rng.choice((-100, 500, 10_000, 60_000))
            if rng.random() < 0.2:
                fields["signaled"] = False
            length = rng.choice((rng.randrange(33), rng.randrange(1200), rng.randrange(1200), rng.randrange(6000)))
            pair.post(link, side, op, length, **self.limit(1 - side), bell=i == count - 1 or rng.random() < 0.3,
                      inline=length < 33 and rng.random() < 0.5, **fields)

    def read(self):
        rng, pair = self.rng, self.pair
        link, side = rng.choice(self.reads), rng.randrange(2)
        for _ in range(rng.choice((1, 1, 4))):
            if pair.room(link, side, "read"):
                pair.post(link, side, "read", rng.randrange(4000), **self.limit(side))

    def refused(self):
        """A READ or a WRITE that the peer's regions forbid."""
        pair, link, side = self.pair, self.rng.choice(self.reads), self.rng.randrange(2)
        if pair.room(link, side, "read"):
            pair.post(link, side, "read", 500, rkey=KEY + 1, **self.limit(side))
        if pair.room(link, side, "write"):
            m = pair.post(link, side, "write", 500, rkey=KEY + 2)
            m.target.expected.remove(m)

    def wait(self):
        self.pair.run(self.rng.choice((200, 1000, 5000, 20_000)))

    def _again(self, link):
        """Both ends anew. What the old lives were to bring may be there in part."""
        self.pair.poll()
        link.renew()

    def renew(self):
        self._again(self.rng.choice(self.links + self.reads))

    def flush(self):
        link, side = self.rng.choice(self.links + self.reads), self.rng.randrange(2)
        end = self.pair.ends[side]
        end.card.flush_qp(link.qpns[side])
        end.poll()
        left = [m for m in end.requests[link.qpns[side]] if m.signaled] + list(end.posted[link.qpns[side]])
        assert not left, f"they didn't end with the flush: {left}"
        self._again(link)

    def destroy(self):
        link, side = self.rng.choice(self.links + self.reads), self.rng.randrange(2)
        self.pair.ends[side].card.destroy_qp(link.qpns[side])
        if self.rng.random() < 0.5:
            self.wait()
        self._again(link)

    def host(self):
        end = self.rng.choice(self.pair.ends)
        for _ in range(self.rng.randrange(1, 5)):
            end.dev.host_send(b"\xff" * 12 + b"\x08\x06" + self.rng.randbytes(self.rng.randrange(46, 1400)))

    def off(self):
        end = self.rng.choice(self.pair.ends)
        end.card.enable(hold=True, tx=False)
        for _ in range(self.rng.randrange(4)):
            self.rng.choice((self.wait, self.post, self.read, self.renew, self.flush, self.destroy))()
        end.card.enable(hold=True)

    def fault(self):
        end = self.rng.choice(self.pair.ends)
        action = self.rng.choice(self.faults)
        if self.rng.random() < 0.5:
            end.dev.inject(end.memory + self.rng.randrange(1 << 16), 300, action, on="read", amount=1, count=1)
        else:
            end.dev.inject(end.card.sq_base + self.rng.randrange(1 << 16), 64, action, on="read", amount=3, count=1)
        self.wait()
        end.dev.clear_injections()

    def finish(self):
        pair = self.pair
        for link in self.links + self.reads:
            for side in (0, 1):         # behind all that has no completion
                pair.until(partial(pair.room, link, side, "write"), 40_000_000)
                pair.post(link, side, "write", 0)
        lines = lambda: [line for end in pair.ends for line in (*end.posted.values(), *end.requests.values())]
        pair.until(lambda: not any(lines()), 40_000_000, 5000)
        pair.settle(40_000_000), pair.verify(wipe=True)
        assert {c.cause for m in pair.messages for c in (m.sent, m.received) if c} <= REASONS
        # and after all that it works
        pair.messages.clear()
        for lane in pair.net.lanes:
            lane.impair(loss=0, reorder=0, duplicate=0, corrupt=0)
        made = []
        for link in self.links + self.reads:
            link.renew()
            for side in (0, 1):
                op = "read" if link in self.reads else self.rng.choice(("send", "write_imm"))
                made += [pair.post(link, side, op, self.rng.randrange(2000)) for _ in range(4)]
        pair.all_over(made, 20_000_000)
        assert all(m.received.status == "success" for m in made)
        pair.settle(20_000_000), pair.verify(wipe=True)


def chaos(make, seed, steps, faults=(), network=NETWORK, device=UNKIND):
    with Pair(make, seed, strict=False, device=device, late_ns=LATE_NS, **network) as pair:
        it = Chaos(pair, faults)
        for n in range(steps):
            it.step()
            if max(end.free for end in pair.ends) > 900_000:
                it.finish()
                pair.net.links[0].impair(**network)
        it.finish()
        pair.balance()


@BOTH
@pytest.mark.parametrize("network", [{}, NETWORK], ids=["whole", "lossy"])
def test_for_a_while(make, seed, network):
    chaos(make, seed, 300, network=network)


@pytest.mark.rtl
def test_with_faults_of_the_host(seed):
    chaos(SimDevice, seed, 150, ("slverr", "short", "never"))


@pytest.mark.soak
@BOTH
@pytest.mark.parametrize("round", range(10))
def test_for_long(make, seed, round):
    chaos(make, seed, 2000, network=NETWORK if round % 2 else {})
