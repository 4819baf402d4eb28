"""Two whole cards with their drivers on one network, and an account of what is sent: what both ends have to say and to hold."""

import random
from collections import deque

import pytest

from sim.device import SimDevice
from sim.model_device import ModelDevice
from sim.network import back_to_back
from sim.world import World

from .pair_end import AREA, FILL, KEY, PD, PEERS, RECEIVES, SENDS, SOURCE, End, Link, Message, Receive, Tap
from .rig import CFG

__all__ = ["BOTH", "CFG", "FILL", "KEY", "PD", "PEERS", "RECEIVES", "SENDS", "SOURCE", "Pair", "Tap", "ends", "pieces"]

#: the generated card and the model of it; `make(cfg, seed=, ...)` is a card
BOTH = pytest.mark.parametrize("make", [pytest.param(ModelDevice, id="model"),
                                        pytest.param(SimDevice, id="rtl", marks=pytest.mark.rtl)])

# of a receive behind its deadline: the scanner's unit, its round, and a packet buffer of frames that go first
LATE_NS = 1024 + CFG.scan_rows * CFG.clock_ns + CFG.rx_buffer_bytes * 8e9 / (CFG.data_width * CFG.clock_hz) + 1000


def pieces(length, mtu):
    """(offset, size) of the packets of a message."""
    return [(at, min(mtu, length - at)) for at in range(0, length, mtu)] or [(0, 0)]


def ends(messages, what="sent"):
    """(status, cause, byte_len) of their completions."""
    found = (getattr(m, what) for m in messages)
    return [c and (c.status, c.cause, c.byte_len) for c in found]


class Pair:
    """The cards `make(cfg)` back to back, on a cable as fast as they are. `strict`: everything must end as a success.

    `device` are knobs of SimDevice; `net` is the network, or `network` the knobs of a cable. All data and places are drawn from
    `seed`. Receives may be `late_ns` late.
    """

    def __init__(self, make, seed, cfg=CFG, *, net=None, rate=None, delay_ns=1000, device=None, strict=True,
                 late_ns=LATE_NS, **network):
        self.cfg, self.seed, self.strict, self.late_ns = cfg, seed, strict, late_ns
        self.rng = random.Random(seed)
        self.latest_ns = -(1 << 62)         # of a receive, behind its deadline
        self.net = net or back_to_back(rate=rate or cfg.data_width * cfg.clock_hz, delay_ns=delay_ns, seed=seed, **network)
        knobs = {"read_latency": (10, 60), "write_latency": (10, 60)} | (device or {})
        self.devices = [make(cfg, seed=seed + side, **knobs) for side in range(2)]
        self.world = World(self.devices, self.net)
        self.messages, self.links = [], []
        self.ends = [End(self, side) for side in range(2)]
        self.faults = False                 # accesses outside the mapped windows are expected

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                for end in self.ends:
                    assert end.dev.violations == [] and (self.faults or end.dev.faults == [])
        finally:
            self.world.close()
            for device in self.devices:
                device.close()

    def link(self, **fields):
        self.links.append(Link(self, len(self.links) + 1, **fields))
        return self.links[-1]

    # -- posting --------------------------------------------------------------------------------------

    def receive(self, side, qpn, to, length, message=None, *, timeout_ns=None, deadline_ns=None, bell=True):
        """Post a receive for the place `to` of the area."""
        end = self.ends[side]
        before = end.now_ns
        absolute = deadline_ns is not None
        index = end.card.post_receive(qpn, end.area_va(to), length, KEY, timeout_ns=deadline_ns if absolute else timeout_ns,
                                      absolute=absolute, doorbell=bell)
        end.posted[qpn].append(Receive(qpn, index, to, message, timeout_ns, deadline_ns, (before, end.now_ns)))
        return index

    def room(self, link, side, op):
        """How many of them can be posted."""
        near, far = self.ends[side], self.ends[1 - side]
        at, qpn = (near, link.qpns[side]) if op == "read" else (far, link.qpns[1 - side])
        room = self.cfg.sq_entries - near.card.outstanding(link.qpns[side], "send")
        return room if op == "write" else min(room, self.cfg.rq_entries - at.card.outstanding(qpn))

    def post(self, link, side, op, length=0, *, timeout_ns=None, receive_ns=None, inline=False, bell=True, receive=True,
             signaled=True, at=None, to=None, **fields):
        """Post a message, and the receive that it takes (unless `receive` is False), which ends `timeout_ns` after it has become
        the oldest or at the NIC time `receive_ns`; data and places at random. `fields` are those of Card.post_send."""
        rng, near, far = self.rng, self.ends[side], self.ends[1 - side]
        source, target = (far, near) if op == "read" else (near, far)
        at = rng.randrange(SOURCE - length) if at is None else at
        to = target.take(length) if to is None else to
        m = Message(link, side, op, length, source.data[at:at + length], target, to, signaled=signaled)
        if link.type == "xp":
            m.tag = fields.setdefault("tag", rng.getrandbits(16))
        if op in ("send_imm", "write_imm"):
            m.imm = fields.setdefault("imm", rng.getrandbits(32))
        if op in ("write", "write_imm"):
            fields = {"remote_va": far.area_va(to), "rkey": KEY} | fields
        if m.takes_receive and receive:
            size = 0 if op == "write_imm" else length + rng.randrange(32)
            index = self.receive(target.side, link.qpns[target.side], to, size, m, timeout_ns=timeout_ns, deadline_ns=receive_ns)
            if op == "read":
                fields["seq"] = index
        if op == "read":
            fields = {"remote_va": far.va + at, "rkey": KEY} | fields
            where = (0, length, 0)
        else:
            where = (near.va + at, length, KEY)
        if inline:
            fields["inline"], where = m.data, ()
        m.index = near.card.post_send(link.qpns[side], op, *where, signaled=signaled, doorbell=bell, **fields)
        near.requests[link.qpns[side]].append(m)
        target.expected.append(m)
        self.messages.append(m)
        return m

    def play(self, streams, *, limit_ns=10_000_000, window=16, step_ns=1000):
        """Post what `streams`, {(link, side): [(op, length, fields)]}, have, in bursts with one doorbell or one for each, as
        far as there is room, until all is over. At most `window` of a stream at a time. Returns the messages in that order."""
        left = {key: deque(jobs) for key, jobs in streams.items()}
        flying = {key: [] for key in streams}
        made = []
        end_ns = self.world.now_ns + limit_ns
        while any(left.values()) or any(flying.values()):
            late = [m for line in flying.values() for m in line]
            assert self.world.now_ns < end_ns, f"not over within {limit_ns} ns: {late[:20]}"
            for (link, side), jobs in left.items():
                line = flying[link, side]
                line[:] = [m for m in line if not m.over]
                count = min(len(jobs), window - len(line), self.rng.choice((1, 1, 2, 5, 16)))
                each = self.rng.random() < 0.5
                for i in range(count):
                    op, length, fields = jobs[0]
                    if self.room(link, side, op) < 1:
                        break
                    jobs.popleft()
                    bell = each or i == count - 1 or not jobs or self.room(link, side, jobs[0][0]) < 2
                    line.append(self.post(link, side, op, length, bell=bell, **fields))
                    made.append(line[-1])
            self.run(step_ns)
        return made

    # -- time -----------------------------------------------------------------------------------------

    def run(self, ns=1000):
        self.world.run_ns(ns)
        self.poll()

    def poll(self):
        for end in self.ends:
            end.poll()

    def until(self, done, limit_ns=1_000_000, step_ns=1000):
        end_ns = self.world.now_ns + limit_ns
        while not done():
            assert self.world.now_ns < end_ns, f"not within {limit_ns} ns"
            self.run(step_ns)

    def all_over(self, messages, *times):
        """Until each of them has said what it has to say."""
        self.until(lambda: all(m.over for m in messages), *times)

    def all_sent(self, messages, *times):
        self.until(lambda: all(m.sent for m in messages), *times)

    def all_received(self, messages, *times):
        self.until(lambda: all(m.received for m in messages), *times)

    def settle(self, limit_ns=5_000_000):
        """Until nothing moves any more, at both ends and between them."""
        self.world.run_ns(1000)         # what a register write sets going isn't to be seen at once
        assert self.world.run_until(lambda: self.world.idle(300), limit_ns), "the cards don't come to rest"
        self.poll()

    # -- what must be so ------------------------------------------------------------------------------

    def check_sent(self, m, c):
        if self.strict:
            assert (c.status, c.cause, c.byte_len) == ("success", "complete", m.length), f"{m}: {c}"
        if c.cause not in ("flushed", "bus"):
            assert (c.opcode, c.msg_len, c.tag) == (m.op, m.length, m.tag), f"{m}: {c}"
        assert (c.status == "success") == (c.cause == "complete") and c.byte_len <= m.length
        assert c.byte_len == m.length if c.status == "success" else c.byte_len == 0 or c.status == "partial", f"{m}: {c}"

    def check_received(self, m, c):
        """The completion of a receive is right for what is in memory now; returns how many bytes of it are there."""
        present = self.present(m)
        if self.strict:
            assert c.status == "success", f"{m}: {c}"
        if c.status == "success":
            assert (c.cause, c.byte_len, c.msg_len, present) == ("complete", m.length, m.length, m.length), f"{m}: {c}"
        elif c.status == "partial":
            assert c.cause in ("timeout", "preempted") and c.byte_len >= present and (c.byte_len > 0) == (present > 0), f"{m}: {c}"
            if not self.twice:
                assert c.byte_len == present and (present < m.length or m.length == 0), f"{m}: {c}"
            assert c.msg_len == (m.length if present else 0), f"{m}: {c}"
        if present or c.status == "success":
            assert (c.opcode, c.tag, c.imm) == (m.op, m.tag, m.imm), f"{m}: {c}"
        return present

    @property
    def twice(self):
        """The network has doubled a frame."""
        return any(lane.changed["duplicated"] for lane in self.net.lanes)

    def present(self, m):
        """How many bytes of a message are in memory: each packet is there whole, or nothing of it is."""
        held, found = m.target.at(m.to, m.length), 0
        if held == m.data:
            return m.length
        for at, n in pieces(m.length, m.link.mtu):
            piece = held[at:at + n]
            if piece != bytes([FILL]) * n:
                right = m.data[at:at + n]
                assert piece == right, f"{m}: wrong bytes in {at} to {at + n}: {piece.hex()}, not {right.hex()}"
                found += n
        return found

    def verify(self, wipe=False):
        """The memory of both ends: of each message whole packets, and no other byte has changed."""
        for end in self.ends:
            image = bytearray([FILL]) * AREA
            for m in end.expected:
                present = self.present(m)
                assert m.present in (None, present), f"{m}: {m.present} bytes when it completed, {present} later"
                assert present == m.length or not self.strict, f"{m}: {present} bytes arrived"
                if present == m.length:
                    image[m.to:m.to + m.length] = m.data
                elif present:
                    image[m.to:m.to + m.length] = end.at(m.to, m.length)
            held = end.at(0, AREA)
            if held != image:
                wrong = [i for i in range(AREA) if held[i] != image[i]]
                raise AssertionError(f"card {end.side}: {len(wrong)} bytes changed that nobody sent, the first at {wrong[0]:#x} of "
                                     f"the area")
            assert end.dev.read(end.memory, SOURCE) == end.data
            if wipe:
                end.wipe()

    def balance(self):
        """Every frame is accounted for, at both ends and between them."""
        for near, far in (self.ends, self.ends[::-1]):
            lane = near.port.out
            here, there = near.card.counters(), far.card.counters()
            assert here["frames_sent"] + here["host_frames_sent"] == lane.frames and here["sent_bytes"] == lane.bytes
            arrived = lane.frames + lane.changed["duplicated"] - sum(lane.dropped.values())
            refused = sum(n for name, n in there.items() if name.startswith("drop_"))
            taken = there["frames_placed"] + there["frames_consumed"] + there["frames_passed"]
            assert arrived == far.port.delivered == taken + refused, there
            assert there["cq_overrun"] == 0
            if self.strict:
                mine = [m for m in self.messages if m.side == near.side]
                frames = sum(1 if m.op == "read" else len(pieces(m.length, m.link.mtu)) for m in mine)
                answers = sum(len(pieces(m.length, m.link.mtu)) for m in self.messages if m.op == "read" and m.side == far.side)
                assert here["frames_sent"] == frames + answers + here["cnp_sent"]
                assert refused == here["send_errors"] == here["wqe_errors"] == there["write_errors"] == there["fetch_errors"] == 0
                assert there["placed_bytes"] == sum(m.length for m in self.messages if m.target is far)
                assert there["reads_served"] == sum(m.op == "read" for m in mine)
