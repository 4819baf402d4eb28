"""Random traffic for a card: a setup as of `optinic replay`, the frames, and how unkind the bus is. One seed, one scenario.

Nothing here hangs on a race between a packet and a deadline: time-outs are far longer than a burst of frames takes, and
before each burst the oracle itself is asked whether a deadline lies near; if so the burst waits until it is past.
"""

from dataclasses import dataclass, field
import random

from sim.frames import LOCAL, build, cnp, flip, reth, uc_send, uc_write, xp_send, xp_write
from sim.replay.capture import Frame
from sim.replay.engine_model import build_model
from sim.replay.schedule import arrivals
from sim.models.nic import ceil_ticks
from sim.replay.setup import parse_receive, parse_setup

__all__ = ["Scenario", "make_scenario"]

US = 1000
BEFORE_NS, AFTER_NS = 5 * US, 150 * US      # a burst keeps this far from a deadline
DRIFT_NS = 3 * US                           # a card is later by up to this with each deadline that follows another
POSTING_NS = 60 * US
TOP = 1 << 64


@dataclass
class Scenario:
    seed: int
    setup: dict                 #: SETUP.json
    frames: list                #: sim.replay.capture.Frame
    posts: dict = field(default_factory=dict)   #: frame -> [(time in ns, QPN, receive as in the setup)] before it
    bus: dict = field(default_factory=dict)     #: keyword arguments of sim.device.SimDevice


@dataclass
class Region:
    rkey: int
    va: int
    length: int
    access: list
    pd: int


@dataclass
class Peer:
    """A queue pair as its peer sees it."""
    setup: dict
    timeouts: int = 0           # its receives have them never, sometimes, always
    seq: int = 0                # of the next message

    @property
    def qpn(self):
        return self.setup["qpn"]

    @property
    def right(self):
        """Fields of a frame that the queue pair takes."""
        peer = self.setup["peer"]
        return {"src": peer.get("ipv4") or peer["ipv6"]}

    @property
    def xp_right(self):
        return self.right | {"generation": self.setup["generation"]}


def make_scenario(seed, preset="small", frames=300, **knobs):
    """A scenario of about `frames` frames; `knobs` change the configuration."""
    return Maker(random.Random(f"scenario {seed}"), preset, knobs).make(seed, frames)


class Maker:
    def __init__(self, rng, preset, knobs):
        self.rng, self.config = rng, {"preset": preset} | knobs
        self.cfg = parse_setup({"config": self.config}).config

    def make(self, seed, count):
        rng = self.rng
        self.regions = self.make_regions()
        self.peers = self.make_queue_pairs()
        setup = {
            "config": self.config,
            "regions": [vars(r) | {"fill": rng.choice((0, 0xA5, "index"))} for r in self.regions],
            "qps": [peer.setup for peer in self.peers],
            "end_us": 0,
        }
        parsed = parse_setup(setup)
        self.model, self.sent, self.now, self.posts = build_model(parsed), [], 0, {}
        while len(self.sent) < count:
            self.place_burst(parsed)
        setup["end_us"] = self.quiet_time(self.now + rng.randrange(1, 2000) * US) // US + 1
        return Scenario(seed, setup, self.sent, self.posts, self.make_bus())

    def make_bus(self):
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0:
            return {}
        some = lambda high: rng.choice((0, 0, rng.uniform(0, high)))
        return {"pause": some(0.6), "host_pause": some(0.6), "aw_pause": some(0.6), "w_pause": some(0.6), "b_pause": some(0.6),
                "ar_pause": some(0.6), "r_pause": some(0.6), "read_latency": rng.choice((2, 50, (1, 200))),
                "write_latency": rng.choice((2, 50, (1, 200))), "writes_max": rng.choice((1, 4, 64)),
                "interleave": rng.randrange(2), "visibility": rng.choice(("response", "accept", "random")),
                "shuffle": rng.choice((0, 60, 300))}

    # -- memory and queue pairs --------------------------------------------------------------------------

    def make_regions(self):
        rng, out = self.rng, []
        full = ["local_write", "remote_write"]
        keys = rng.sample(range(1 << 32), 12)
        out.append(Region(keys[0], rng.randrange(1 << 40), rng.choice((4096, 65536, 100_003)), full, 1))
        out.append(Region(keys[1], rng.randrange(1 << 40, 1 << 41) & ~4095, 1 << 16, full, 1))
        out.append(Region(keys[2], TOP - 9000, 9000, full, 1))
        out.append(Region(keys[3], 0, 5000, full, 1))
        out.append(Region(keys[4], 1 << 42, 4096, full, 2))
        out.append(Region(keys[5], 1 << 43, 4096, ["remote_read"], 1))
        out.append(Region(keys[6], (1 << 44) + 5, 4096, ["local_write"], 1))
        out.append(Region(keys[7], (1 << 45) + 63, rng.choice((1, 63, 64, 65)), full, 1))
        base = out[1]           # another key for some of the same bytes
        out.append(Region(keys[8], base.va + 1000, 3000, ["remote_write"], 1))
        return out

    def make_queue_pairs(self):
        rng, peers = self.rng, []
        indices = rng.sample(range(self.cfg.num_qps), min(self.cfg.num_qps - 1, rng.randrange(2, 7)))
        for index in indices:
            qpn = index | rng.randrange(1 << 24 - self.cfg.qp_bits) << self.cfg.qp_bits
            address = {"ipv6": f"fd00::{rng.randrange(2, 9):x}"} if self.cfg.ipv6 and rng.random() < 0.3 else \
                {"ipv4": f"10.0.{rng.randrange(256)}.{rng.randrange(2, 250)}"}
            kind = "uc" if self.cfg.uc and rng.random() < 0.25 else "xp"
            mtus = [m for m in (256, 512, 1024, 2048, 4096) if m <= self.cfg.mtu_max]
            setup = {"qpn": qpn, "type": kind, "pd": 1, "mtu": rng.choice(mtus), "generation": rng.randrange(256),
                     "peer": address, "receives": []}
            peer = Peer(setup, timeouts=rng.choice((0, 1, 2, 2)))
            if self.cfg.arrival_map and kind == "xp" and rng.random() < 0.7:
                setup["arrival_map"] = {"pieces": rng.choice((1, 2, 4, 8, 64)), "rows": rng.choice((1, 2, 8, 32, 128, 128, 512))}
            for _ in range(min(self.most_receives(setup), rng.choice((0, 3, 20, 60, 60, 1000)))):
                setup["receives"].append(self.make_receive(peer.timeouts))
            peers.append(peer)
        return peers

    def most_receives(self, setup):
        """That may be uncompleted at a time."""
        return min(self.cfg.rq_entries, setup.get("arrival_map", {}).get("rows", self.cfg.rq_entries))

    def make_receive(self, timeouts):
        rng = self.rng
        region = rng.choices(self.regions, (12, 12, 6, 3, 1, 1, 3, 1, 1))[0]
        length = rng.choice((0, 1, 100, 1000, 4096, 20_000, 20_000))
        room = max(0, region.length - length)
        va = region.va + rng.choice((0, rng.randrange(room + 1), rng.randrange(region.length)))
        if rng.random() < (0.3 if region.va == 0 else 0.02):       # runs over the last address, to where a region lies
            va = TOP - rng.randrange(1, 100)
        receive = {"va": min(va, TOP - 1), "length": length, "lkey": region.rkey if rng.random() > 0.01 else rng.randrange(1 << 32)}
        if timeouts == 2 or timeouts and rng.random() < 0.3:
            receive["timeout_us"] = rng.choice((300, 500, 1000, 5000, 100_000))
        return receive

    # -- time ------------------------------------------------------------------------------------------------

    def quiet_time(self, time):
        """`time`, or the first moment after it at which no deadline lies near."""
        while True:
            self.model.advance(time)
            late = DRIFT_NS * self.model.counters["deadlines"]
            # A card may still be late with what the model has ended, and what ends soon must not end in the burst.
            recent = max((c.time for c in self.model.completions if c.cause == "timeout"), default=-1 << 60)
            coming = self.model.next_deadline()
            if recent + late + AFTER_NS > time:
                time = recent + late + AFTER_NS
            elif coming is not None and coming < time + AFTER_NS:
                time = coming + BEFORE_NS
            else:
                return time

    def place_burst(self, parsed):
        rng = self.rng
        batch = self.make_burst(rng.choice((1, 3, 10, 30)))
        if self.sent:       # all times count from the first frame
            self.now = self.quiet_time(self.now + rng.choice((0, 1, 20, 200, 2000)) * US)
            if rng.random() < 0.5:
                self.place_posts()
        spacing = rng.choice((0, 0, 100, 1000))
        burst = [Frame(data, self.now + i * spacing) for i, data in enumerate(batch)]
        for frame, (_, end) in zip(burst, arrivals(burst, parsed)):
            self.model.frame(frame.data, frame.time + (end - (frame.time - burst[0].time)))
        self.now = burst[-1].time + 20 * US
        self.sent += burst

    def place_posts(self):
        """The host posts more receives, as far as the rings have room, some time before the burst."""
        rng, posts = self.rng, []
        for peer in rng.sample(self.peers, rng.randrange(1, len(self.peers) + 1)):
            qp = self.model.qps[peer.qpn]
            room = self.most_receives(peer.setup) - (len(qp.receives) - qp.head)
            for _ in range(min(room, rng.choice((1, 2, 5, 20)))):
                receive = self.make_receive(peer.timeouts)
                posts.append((self.now, peer.qpn, receive))
                r = parse_receive(receive, "")
                self.model.post(peer.qpn, r.va, r.length, r.lkey, ceil_ticks(r.timeout_ns), self.now)
        if posts:
            self.posts[len(self.sent)] = posts
            self.now += POSTING_NS

    # -- frames ----------------------------------------------------------------------------------------------

    def make_burst(self, size):
        rng, packets = self.rng, []
        while len(packets) < size:
            peer = rng.choice(self.peers)
            packets.append(self.make_message(peer) if rng.random() < 0.8 else [self.make_stray(peer)])
            if rng.random() < 0.3:
                break
        # Interleave the messages, each in its own order.
        frames, queues = [], [list(p) for p in packets if p]
        while queues:
            queue = rng.choice(queues)
            frames.append(queue.pop(0))
            if not queue:
                queues.remove(queue)
        return [self.maim(frame) if rng.random() < 0.06 else frame for frame in frames] or [self.make_stray(self.peers[0])]

    def make_message(self, peer):
        """The packets of a message as they arrive: lost, doubled and out of order."""
        rng = self.rng
        if peer.setup["type"] == "uc" or self.cfg.uc and rng.random() < 0.1:
            return [self.make_uc(peer)]
        if rng.random() < 0.2:
            return [self.write(peer, self.payload(peer), {}) for _ in range(rng.randrange(1, 4))]
        head = self.model.qps[peer.qpn].head
        seq = peer.seq = max(peer.seq, head)
        peer.seq += 1
        seq += rng.choice((0,) * 12 + (1, 2, 9, -1, -2, 1 << 16, 1 << 31, -(1 << 31)))
        mtu = peer.setup["mtu"]
        piece = rng.choice((mtu, mtu, rng.randrange(1, mtu + 1)))
        total = min(rng.choice((0, 1, rng.randrange(3 * mtu), rng.randrange(4 * mtu), 4 * mtu, piece)), 8 * piece)
        common = dict(seq=seq & 0xFFFFFFFF, msg_len=total, tag=rng.randrange(1 << 16),
                      imm=rng.choice((None, rng.randrange(1 << 32))))
        as_write, base = rng.random() < 0.4, rng.choice(self.regions[:3])
        start = base.va + rng.randrange(max(1, base.length - total))
        packets = []
        for offset in range(0, max(1, total), piece):
            payload = self.bytes(min(piece, total - offset))
            fields = common | {"offset": offset}
            if as_write:
                fields["imm"] = common["imm"] or 0
                packets.append(xp_write(peer.qpn, payload, (start + offset) % TOP, base.rkey, **self.decoration(peer, xp=True), **fields))
            else:
                packets.append(xp_send(peer.qpn, payload, **self.decoration(peer, xp=True), **fields))
        if rng.random() < 0.3:
            rng.shuffle(packets)
        loss, double = rng.choice((0, 0, 0.3)), rng.choice((0, 0, 0.2))
        packets = [p for p in packets if rng.random() >= loss]
        for p in list(packets):
            if rng.random() < double:
                packets.insert(rng.randrange(len(packets) + 1), p)
        return packets

    def make_uc(self, peer):
        rng, payload = self.rng, self.payload(peer)
        imm = rng.choice((None, rng.randrange(1 << 32)))
        if rng.random() < 0.5:
            return uc_send(peer.qpn, payload, imm, **self.decoration(peer))
        region, va = self.target(len(payload))
        return uc_write(peer.qpn, payload, va, region, imm, **self.decoration(peer))

    def write(self, peer, payload, fields):
        rkey, va = self.target(len(payload))
        return xp_write(peer.qpn, payload, va, rkey, **self.decoration(peer, xp=True), **fields)

    def target(self, size):
        """A key and an address for a write, mostly of a place that is allowed."""
        rng = self.rng
        region = rng.choices(self.regions, (10, 10, 5, 3, 1, 1, 1, 1, 3))[0]
        inside = region.va + rng.randrange(max(1, region.length - size + 1))
        edges = (region.va - 1, region.va + region.length - size, region.va + region.length - size + 1, region.va + region.length,
                 TOP - size, TOP - 1, 0, rng.randrange(TOP))
        va = rng.choice(edges) if rng.random() < 0.15 else inside
        return (region.rkey if rng.random() > 0.03 else rng.randrange(1 << 32)), va % TOP

    def payload(self, peer):
        mtu = peer.setup["mtu"]
        return self.bytes(self.rng.choice((0, 1, 2, 3, 4, 63, 64, 65, self.rng.randrange(mtu + 1), mtu, mtu)))

    def bytes(self, size):
        return self.rng.randbytes(size)

    def decoration(self, peer, xp=False):
        """Right addresses and generation, and harmless variety in the fields that nobody checks."""
        rng = self.rng
        fields = dict(peer.xp_right if xp else peer.right, psn=rng.randrange(1 << 24), ack=rng.randrange(2),
                      solicited=rng.randrange(2))
        if rng.random() < 0.2:
            fields |= dict(tos=rng.randrange(256), ttl=rng.randrange(256), fecn_becn=rng.randrange(256),
                           udp_checksum=rng.randrange(1 << 16), sport=rng.randrange(1 << 16), migrated=1,
                           pkey=rng.choice((0xFFFF, 0x7FFF)))
            if ":" in fields["src"]:
                fields["flow_label"] = rng.randrange(1 << 20)
            else:
                fields |= dict(ident=rng.randrange(1 << 16), flags_fragment=rng.choice((0, 0x4000)))
        if self.cfg.vlan and rng.random() < 0.1:
            fields["vlan"] = rng.randrange(1 << 16)
        if rng.random() < 0.1:
            fields["trailer"] = self.bytes(rng.randrange(1, 60))
        return fields

    def make_stray(self, peer):
        """A frame with one thing wrong, or one that isn't for the card at all."""
        rng = self.rng
        size = len(payload := self.payload(peer))
        field = lambda **wrong: rng.choice((
            lambda: xp_send(peer.qpn, payload, **dict(peer.xp_right, seq=peer.seq) | wrong),
            lambda: uc_send(peer.qpn, payload, **peer.right | {k: v for k, v in wrong.items() if k not in XP_ONLY}),
            lambda: xp_write(peer.qpn, payload, self.regions[0].va, self.regions[0].rkey, **peer.xp_right | wrong)))()
        makers = (
            lambda: self.bytes(rng.randrange(1, 300)),
            lambda: LOCAL_LINK + rng.choice((b"\x08\x06", b"\x81\x00", b"\x88\xb5", b"\x08\x00")) + self.bytes(rng.randrange(200)),
            lambda: build(rng.randrange(256), peer.qpn, payload=payload, **peer.right),
            lambda: build(rng.choice((0x20, 0x26, 0x28, 0x04, 0x64, 0xEC)), peer.qpn, headers=reth(0, 0, size), payload=payload, **peer.right),
            lambda: cnp(rng.choice((peer.qpn, peer.qpn ^ 1 << rng.randrange(24))), **peer.right),
            lambda: field(generation=rng.randrange(256)),
            lambda: field(pkey=rng.choice((0x8001, 0x7FFE, 0, 0x7FFF))),
            lambda: field(src=rng.choice(("10.0.0.77", "fd00::77", "::10.0.0.2"))),
            lambda: field(tver=rng.randrange(16)),
            lambda: field(icrc_xor=1 << rng.randrange(32)),
            lambda: field(pad=rng.randrange(4), pad_bytes=b"") if size else cnp(peer.qpn, pad=1),
            lambda: field(udp_len=size + 24 + rng.randrange(-30, 30)),
            lambda: field(ip_len=size + 44 + rng.randrange(-60, 60), trailer=bytes(30)),
            lambda: field(ihl=rng.randrange(16)) if "." in peer.right["src"] else field(version=rng.randrange(16)),
            lambda: field(version=rng.randrange(16)),
            lambda: field(flags_fragment=rng.choice((0x2000, 0x8000, 1, 0x1FFF, 0x4000))),
            lambda: field(ip_checksum=rng.randrange(1 << 16)),
            lambda: field(protocol=rng.choice((1, 6, 58, 17))),
            lambda: field(dport=rng.choice((53, 4790, 4792, 0x12B7))),
            lambda: xp_send(peer.qpn, payload, seq=peer.seq, msg_len=rng.choice((size - 1, size, size + 1, 1 << 31)) % (1 << 32),
                            offset=rng.choice((0, 1, 0xFFFFFFFF)), **peer.xp_right),
            lambda: xp_write(peer.qpn, payload, self.regions[0].va, self.regions[0].rkey, dma_len=size + rng.choice((1, 256, 1 << 20)),
                             **peer.xp_right),
            lambda: uc_send(peer.qpn, self.bytes(peer.setup["mtu"] + rng.randrange(1, 9)), **peer.right),
            lambda: uc_send(peer.qpn, self.bytes(rng.choice((self.cfg.mtu_max + 1, self.cfg.max_frame_bytes + rng.randrange(300)))), **peer.right),
            lambda: rng.choice(self.sent).data if self.sent else b"\0" * 60,
        )
        return rng.choice(makers)()

    def maim(self, frame):
        """A frame damaged on the way."""
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0:
            return frame[:rng.randrange(1, len(frame) + 1)]
        if kind == 1:
            return frame + self.bytes(rng.randrange(1, 100))
        for _ in range(rng.choice((1, 1, 2, 8))):
            # Half of the flips in the headers: they are a small part of a long frame.
            frame = flip(frame, rng.randrange(8 * min(len(frame), 100 if kind == 2 else len(frame))))
        return frame


XP_ONLY = ("generation",)
LOCAL_LINK = bytes.fromhex(LOCAL[0].replace(":", "")) + b"\x02\0\0\0\0\x02"
