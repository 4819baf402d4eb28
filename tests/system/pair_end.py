"""One of two connected cards: its driver, its memory, what was posted to it, and what it has said."""

import random
from collections import defaultdict, deque
from dataclasses import dataclass

from host_driver.card import Card
from sim.models.wire import inspect

__all__ = ["AREA", "FILL", "KEY", "PD", "PEERS", "RECEIVES", "SENDS", "SOURCE", "End", "Link", "Message", "Receive", "Tap"]

RECEIVES, SENDS = 1, 2                  # completion queues
PD, KEY = 9, 0x77
SOURCE, AREA = 1 << 16, 1 << 20         # bytes that are sent from, and where things arrive
FILL = 0xEE                             # of an area where nothing has arrived; no byte that is sent
PEERS = {"ip4": 0, "ip6": 1, "vlan4": 2, "vlan6": 3}
TAKES_RECEIVE = ("send", "send_imm", "write_imm", "read")


@dataclass(eq=False)
class Message:
    """A work request, and what became of it."""
    link: "Link"
    side: int               # who posted it
    op: str
    length: int
    data: bytes
    target: "End"           # where the data goes,
    to: int                 # at which place of its area
    tag: int = 0
    imm: int = 0
    signaled: bool = True
    index: int = None       # of the send
    due_ns: int = None      # its deadline
    sent = received = None  # Completions
    present: int = None     # bytes of it that were in memory when the receive completed

    def __repr__(self):
        return f"<{self.op} {self.index} of {self.length} bytes by card {self.side}, QP {self.link.qpns[self.side]:#x}>"

    @property
    def takes_receive(self):
        return self.op in TAKES_RECEIVE

    @property
    def over(self):
        return (self.sent is not None or not self.signaled) and (self.received is not None or not self.takes_receive)


@dataclass(eq=False)
class Receive:
    """Posted, for the place `to`; `message` is what the sender is to put there, if that is known."""
    qpn: int
    index: int
    to: int
    message: Message
    timeout_ns: int         # from when it is the oldest, or
    deadline_ns: int        # absolute
    posted_ns: tuple        # before and after its doorbell


class Tap:
    """Keeps what is sent on a lane: (time in ns, frame)."""

    def __init__(self, lane):
        self.frames = []
        lane.sent_taps.append(self)

    def record(self, time_ps, frame):
        self.frames.append((time_ps / 1000, frame))

    def packets(self, since_ns=0):
        """[(time in ns, Packet)] of those that are RoCE."""
        found = ((time, inspect(frame)) for time, frame in self.frames if time >= since_ns)
        return [(time, packet) for time, packet in found if not packet.passed]


class End:
    """One of the cards. Its region, KEY, is SOURCE bytes of data and an area of AREA bytes; all its QPs are in PD."""

    def __init__(self, pair, side):
        self.pair, self.side, self.dev = pair, side, pair.world.device(side)
        self.port = pair.net.ports[side]
        self.mac = f"02:00:00:00:00:0{side + 1}"
        self.addresses = {"ip4": f"10.0.0.{side + 1}", "ip6": f"fd00::{side + 1}"}
        self.memory = self.dev.alloc(SOURCE + AREA)
        self.data = random.Random(f"{pair.seed} {side}").randbytes(SOURCE).replace(bytes([FILL]), b"\xef")
        self.dev.write(self.memory, self.data)
        self.va = (0x7F00 + side << 32) + 0x2C5         # lanes of a virtual address are not those of the bus
        self.wipe()
        self.bring_up()

    def bring_up(self):
        """What a driver does with a card that it has just found."""
        self.card = card = Card(self.dev, self.pair.cfg)
        self.posted = defaultdict(deque)        # by QPN: Receives
        self.requests = defaultdict(deque)      # and Messages, that have not completed
        self.last_ns = defaultdict(int)         # by QPN: when its last receive completed
        self.foreign = {}                       # by QPN: completions of QPs that a test looks after by itself
        self.unknown = lambda c: None           # told of those of which the message isn't known
        card.set_local(self.mac, self.addresses["ip4"], self.addresses["ip6"])
        other = 2 - self.side
        for name, peer in PEERS.items():
            card.set_peer(peer, f"fd00::{other}" if name.endswith("6") else f"10.0.0.{other}", mac=f"02:00:00:00:00:0{other}",
                          vlan=0x6123 + other if name.startswith("vlan") else None)
        card.set_cq(RECEIVES, 1024), card.set_cq(SENDS, 1024)
        card.add_region(KEY, self.va, SOURCE + AREA, ("local_write", "remote_write", "remote_read"), pd=PD,
                        delta=self.memory - self.va)
        self.time_offset = card.reg_read("TIME_LO") - self.dev.cycle * self.pair.cfg.clock_ns
        card.enable(hold=True)

    # -- memory ---------------------------------------------------------------------------------------

    def wipe(self):
        self.dev.write(self.memory + SOURCE, bytes([FILL]) * AREA)
        self.free, self.expected = 0, []

    def take(self, length):
        """A place in the area for so many bytes, at any alignment, and free bytes around it."""
        at = self.free + self.pair.rng.randrange(32, 32 + 64)
        self.free = at + length + 32
        assert self.free <= AREA, "the area is used up; settle, verify and wipe"
        return at

    def at(self, place, n):
        return self.dev.read(self.memory + SOURCE + place, n)

    def area_va(self, place):
        return self.va + SOURCE + place

    # -- time -----------------------------------------------------------------------------------------

    @property
    def now_ns(self):
        """The card's time, to 100 ns, without asking it."""
        return int(self.dev.cycle * self.pair.cfg.clock_ns + self.time_offset)

    def count(self, name):
        return self.card.counter(name)

    # -- completions ----------------------------------------------------------------------------------

    def poll(self):
        for c in self.card.poll(RECEIVES):
            self._received(c)
        for c in self.card.poll(SENDS):
            self._sent(c)

    def _received(self, c):
        assert c.queue == "receive"
        if c.qpn in self.foreign:
            return self.foreign[c.qpn].append(c)
        assert self.posted[c.qpn], f"nothing was posted that this could complete: {c}"
        r = self.posted[c.qpn].popleft()
        m = r.message
        assert r.index == c.index, f"{m}: the receive {r.index} was next, and there is {c}"
        began = max(r.posted_ns[0], self.last_ns[c.qpn])
        self.last_ns[c.qpn] = c.time_ns
        assert c.time_ns <= self.now_ns + 100
        if r.timeout_ns is None and r.deadline_ns is None:
            assert c.cause != "timeout"
        else:
            # the next one's clock runs from when it is the oldest, and a time that has passed ends it then
            first = began + r.timeout_ns if r.deadline_ns is None else r.deadline_ns
            late = c.time_ns - max(first, began) - (r.posted_ns[1] - r.posted_ns[0])
            self.pair.latest_ns = max(self.pair.latest_ns, late)
            assert late <= self.pair.late_ns, f"{m}: {late} ns after its deadline: {c}"
            assert c.cause != "timeout" or c.time_ns >= first - 128, f"{m}: ended before its deadline: {c}"
        if m is None:
            self.unknown(c)
        else:
            m.received = c
            m.present = self.pair.check_received(m, c)

    def _sent(self, c):
        assert c.queue == "send"
        if c.qpn in self.foreign:
            return self.foreign[c.qpn].append(c)
        line = self.requests[c.qpn]
        assert line, f"nothing was posted that this could complete: {c}"
        m = line.popleft()
        while m.index != c.index:
            assert not m.signaled and line, f"{m} had no completion, and there is {c}"
            m = line.popleft()
        m.sent = c
        self.pair.check_sent(m, c)


class Link:
    """Two QPs that are connected with each other, one at each card."""

    def __init__(self, pair, number, *, type="xp", mtu=256, address="ip4", **fields):
        self.pair, self.type, self.mtu, self.address, self.fields = pair, type, mtu, address, fields
        top = pair.cfg.num_qps - 1
        self.qpns = (0x5100 + 3 * number) * 2**8 | number & top, (0xA700 + 5 * number) * 2**8 | top - number & top
        self.generations = [17 + number, 90 + number]
        self.open(0), self.open(1)

    def open(self, side, **more):
        """A new life of one end."""
        end = self.pair.ends[side]
        qpn, generations = self.qpns[side], self.generations
        end.card.create_qp(qpn, **{
            "type": self.type, "mtu": self.mtu, "peer": PEERS[self.address], "peer_qpn": self.qpns[1 - side],
            "generation": generations[side], "peer_generation": generations[1 - side], "pd": PD, "cq": RECEIVES, "send_cq": SENDS,
        } | self.fields | more)
        end.poll()      # what the old life completed comes before it is forgotten
        end.posted[qpn].clear(), end.requests[qpn].clear()
        end.last_ns[qpn] = 0

    def renew(self, **more):
        """New lives of both ends."""
        self.generations[:] = [(g + 1) % 256 for g in self.generations]
        self.open(0, **more), self.open(1, **more)
