"""Two model cards, their drivers, and a cable made by hand: everything that is sent, from work request to completion."""

from collections import Counter
import random

import pytest

from host_driver.card import Card
from optinic.abi.registers import COMMANDS
from optinic.abi.structs import SEND_WQE
from optinic.config import preset
from sim import frames
from sim.model_device import ModelDevice
from sim.models.wire import inspect

CFG = preset("tiny", trace=True, congestion="fixed")
QP, KEY, VA, SIZE, PD = 5, 0x77, 0x1_0000_0000, 1 << 16, 9
RECV_CQ, SEND_CQ = 1, 2
MTU = 512


class Side:
    """A card with one region of `SIZE` bytes, `data` in it, that is all that its QPs need."""

    def __init__(self, number, cfg=CFG):
        self.number, self.dev = number, ModelDevice(cfg)
        self.card = Card(self.dev, cfg)
        self.ip, self.mac = f"10.0.0.{number}", f"02:00:00:00:00:0{number}"
        self.card.set_local(self.mac, self.ip, f"fd00::{number}")
        self.card.set_cq(RECV_CQ, 1024), self.card.set_cq(SEND_CQ, 1024)
        self.memory = self.dev.alloc(SIZE)
        self.data = random.Random(number).randbytes(SIZE)
        self.dev.write(self.memory, self.data)
        self.card.add_region(KEY, VA, SIZE, ("local_write", "remote_write", "remote_read"), pd=PD, delta=self.memory - VA)
        self.card.enable()

    def qp(self, other, qpn=QP, **fields):
        self.card.set_peer(0, other.ip, mac=other.mac)
        common = dict(pd=PD, mtu=MTU, cq=RECV_CQ, send_cq=SEND_CQ, generation=self.number, peer_generation=other.number,
                      peer_qpn=qpn)
        self.card.create_qp(qpn, **common | fields)

    def receive(self, length=4096, at=0, qpn=QP, **fields):
        return self.card.post_receive(qpn, VA + at, length, KEY, **fields)

    def send(self, op="send", length=0, at=0, qpn=QP, **fields):
        return self.card.post_send(qpn, op, VA + at, length, KEY, **fields)

    def bytes(self, at, n):
        return self.dev.read(self.memory + at, n)

    def sent(self):
        """Run until nothing more comes; the frames."""
        self.dev.run(64)        # what a register write sets going isn't to be seen at once
        assert self.dev.run_until("idle", limit=1_000_000)
        return [f.frame for f in self.dev.sent_frames()]


@pytest.fixture
def pair():
    a, b = Side(1), Side(2)
    a.qp(b), b.qp(a)
    yield a, b
    for side in (a, b):
        assert side.dev.faults == []


def carry(a, b, lose=lambda frame: False):
    """Let the frames go to and fro until both cards are quiet; returns how many there were."""
    count = 0
    while True:
        moved = 0
        for one, other in ((a, b), (b, a)):
            for frame in one.sent():
                moved += 1
                if not lose(frame):
                    other.dev.send(frame)
        if not moved:
            return count
        count += moved


def ends(side, cq):
    return [(c.index, c.opcode, c.status, c.cause, c.byte_len) for c in side.card.poll(cq)]


LENGTHS = (0, 1, 2, 3, 4, 31, 32, 33, MTU - 1, MTU, MTU + 1, 3 * MTU - 1, 3 * MTU, 3 * MTU + 1)


@pytest.mark.parametrize("op", ["send", "send_imm", "write", "write_imm"])
def test_messages_of_every_length(pair, op):
    a, b = pair
    tracked, total = op != "write", 0
    for i, length in enumerate(LENGTHS):
        at, there = 7 * i, 8192 + 2048 * i
        if tracked:
            b.receive(2048, there)
        a.send(op, length, at, tag=i, **dict(imm=i + 1) if op.endswith("imm") else {},
               **dict(remote_va=VA + there, rkey=KEY) if op.startswith("write") else {})
        sent = a.sent()
        total += sum(map(len, sent))
        for frame in sent:
            b.dev.send(frame)
        b.sent()
        assert len(sent) == max(1, -(-length // MTU))
        assert ends(a, SEND_CQ) == [(i, op, "success", "complete", length)]
        done = b.card.poll(RECV_CQ)
        if tracked:
            c, = done
            assert (c.index, c.opcode, c.status, c.byte_len, c.msg_len, c.tag) == (i, op, "success", length, length, i)
            assert c.imm == (i + 1 if op.endswith("imm") else 0)
        else:
            assert done == []
        assert b.bytes(there, 2048) == a.data[at:at + length] + b.data[there + length:there + 2048]
    frames_ = sum(max(1, -(-n // MTU)) for n in LENGTHS)
    assert (a.card.counter("frames_sent"), a.card.counter("sent_bytes")) == (frames_, total)
    assert (b.card.counter("frames_placed"), b.card.counter("placed_bytes")) == (frames_, sum(LENGTHS))
    assert a.card.outstanding(QP, "send") == 0


def test_standard_messages():
    a, b = Side(1), Side(2)
    a.qp(b, type="uc"), b.qp(a, type="uc")
    for i, length in enumerate((0, 1, MTU)):
        b.receive(MTU, 0x4000 + MTU * i)
        a.send("send_imm", length, 5, imm=9)
    a.send("write", 100, 0, remote_va=VA + 0x8000, rkey=KEY)
    a.send("send", MTU + 1)
    assert carry(a, b) == 4
    assert [(c.status, c.byte_len, c.imm) for c in b.card.poll(RECV_CQ)] == [("success", n, 9) for n in (0, 1, MTU)]
    assert b.bytes(0x8000, 100) == a.data[:100]
    assert ends(a, SEND_CQ)[3:] == [(3, "write", "success", "complete", 100), (4, "send", "error", "length", 0)]


@pytest.mark.parametrize("length", [0, 1, 3, MTU, 3 * MTU + 1, 20_000])
def test_read(pair, length):
    a, b = pair
    seq = a.receive(20_000, 0x2000)
    a.send("read", length, remote_va=VA + 0x8001, rkey=KEY, seq=seq, tag=0xBEEF, signaled=False)
    assert carry(a, b) == 1 + max(1, -(-length // MTU))
    c, = a.card.poll(RECV_CQ)
    assert (c.index, c.opcode, c.status, c.byte_len, c.msg_len, c.tag) == (0, "read", "success", length, length, 0xBEEF)
    assert a.bytes(0x2000, 20_000) == b.data[0x8001:0x8001 + length] + a.data[0x2000 + length:0x2000 + 20_000]
    assert ends(a, SEND_CQ) == [] and b.card.poll(RECV_CQ) == b.card.poll(SEND_CQ) == []
    assert (b.card.counter("reads_served"), b.card.counter("frames_consumed")) == (1, 1)
    assert b.dev.traces()[-1][1:6] == ("consumed", "none", QP, 0, "read")


@pytest.mark.parametrize("fields, reason", [
    (dict(rkey=1), "rkey"), (dict(remote_va=VA + SIZE - 99), "bounds"), (dict(remote_va=VA - 1), "bounds"),
    (dict(rkey=2), "access"), (dict(rkey=3), "pd")])
def test_a_read_that_is_refused_leaves_the_receive_to_its_deadline(pair, fields, reason):
    a, b = pair
    b.card.add_region(2, VA, SIZE, ("remote_write",), pd=PD)
    b.card.add_region(3, VA, SIZE, ("remote_read",), pd=PD + 1)
    seq = a.receive(100, timeout_ns=50_000)
    a.send("read", 100, **{"remote_va": VA, "rkey": KEY, "seq": seq, **fields})
    assert carry(a, b) == 1 and b.card.counter(f"drop_{reason}") == 1 and b.card.counter("reads_served") == 0
    a.dev.run(10_000)
    assert ends(a, RECV_CQ) == [(0, "none", "partial", "timeout", 0)]
    assert ends(a, SEND_CQ) == [(0, "read", "success", "complete", 100)]


def test_reads_for_which_there_is_no_room(pair):
    """One answer after the other: those behind it wait, as many as the queue holds."""
    a, b = pair
    asked = CFG.read_jobs + 1 + 3
    for _ in range(asked):
        seq = a.receive(1000, 0x4000)
        a.send("read", 1000, remote_va=VA, rkey=KEY, seq=seq)
    requests = a.sent()
    b.card.reg_write("CTRL", 1)         # takes frames and sends none
    for frame in requests:
        b.dev.send(frame)
    assert b.sent() == []
    assert (b.card.counter("reads_served"), b.card.counter("drop_overflow")) == (asked - 3, 3)
    b.card.reg_write("CTRL", 5)
    assert carry(a, b) == 2 * (asked - 3)
    assert [c.status for c in a.card.poll(RECV_CQ)] == ["success"] * (asked - 3)


def test_loss_makes_a_message_partial_at_its_deadline(pair, rng):
    a, b = pair
    for i in range(20):
        b.receive(4096, 4096 * (i % 8), timeout_ns=200_000)
    for i in range(20):
        a.send("send", 3000, 100 * i)
    lost = Counter()

    def lose(frame):
        packet = inspect(frame)
        gone = rng.random() < 0.2
        lost[packet.seq] += gone * len(packet.payload)
        return gone
    carry(a, b, lose)
    b.dev.run(int(20 * 200_000 / CFG.clock_ns))
    done = b.card.poll(RECV_CQ)
    assert len(done) == 20 and sum(lost.values()) > 0
    for c in done:
        assert c.byte_len == 3000 - lost[c.index]
        assert (c.status == "success") == (lost[c.index] == 0)
        assert c.cause == ("complete" if c.status == "success" else "preempted" if c.index < 19 else "timeout")
    assert b.card.counter("preempted") + b.card.counter("deadlines") == sum(c.status != "success" for c in done)
    assert [c.status for c in a.card.poll(SEND_CQ)] == ["success"] * 20     # best effort: sent is sent


def test_errors_of_a_request_stand_alone(pair):
    a, b = pair
    b.receive(), b.receive(), b.receive()
    a.send("send", 10)
    a.card.post_send(QP, "send", VA + SIZE - 9, 10, KEY, seq=1)
    a.card.post_send(QP, "send", VA, 10, KEY + 1, seq=1)
    a.send("send", 10, seq=1)
    a.card.device.write(a.card.sq_base + (QP * CFG.sq_entries + 4) * 64, SEND_WQE.pack(opcode=9, length=10))
    a.card._qp(QP).sends.add(None)
    a.card.ring_send(QP)
    carry(a, b)
    assert [(c[2], c[3]) for c in ends(a, SEND_CQ)] == [
        ("success", "complete"), ("error", "protection"), ("error", "protection"), ("success", "complete"), ("error", "length")]
    assert [c[2] for c in ends(b, RECV_CQ)] == ["success", "success"]
    assert a.card.counter("send_errors") == 2


def test_memory_that_the_bus_has_not():
    a, b = Side(1), Side(2)
    a.qp(b), b.qp(a)
    b.receive()
    a.card.add_region(8, VA, SIZE, (), pd=PD, delta=0x10_0000 - VA)
    a.card.post_send(QP, "send", VA, 10, 8)
    assert carry(a, b) == 0
    assert ends(a, SEND_CQ) == [(0, "send", "error", "bus", 0)] and [f.kind for f in a.dev.faults] == ["read"]
    a.dev.inject(a.card.sq_base, 1 << 20, "slverr", count=1)
    a.send("send", 10, signaled=False), a.send("send", 10)
    carry(a, b)
    assert [c[2:4] for c in ends(a, SEND_CQ)] == [("error", "bus"), ("success", "complete")]
    assert a.card.counter("wqe_errors") == 1


def test_a_deadline_ends_a_send_to_the_tick(pair):
    a, b = pair
    a.card.set_rate(QP, 100)            # 10 MB/s: 59 us for a full packet
    deadline = a.card.time_ns() + 200_000
    for _ in range(2):
        a.send("send", 4000, deadline_ns=deadline)
    a.send("send", 4)
    sent = []
    while len(done := a.card.poll(SEND_CQ)) == 0:
        a.dev.run(50)
        sent += a.dev.sent_frames()
        assert a.card.time_ns() < deadline + 2000
    first, second = done
    assert (first.status, first.cause, first.byte_len, first.msg_len) == ("partial", "timeout", len(sent) * MTU, 4000)
    assert (second.status, second.cause, second.byte_len) == ("partial", "timeout", 0) and 1 < len(sent) < 7
    for c in done:
        assert 0 <= c.time_ns - deadline < 64 + 2 * CFG.clock_ns
    a.dev.run(20_000)
    assert ends(a, SEND_CQ) == [(2, "send", "success", "complete", 4)] and a.card.counter("sends_expired") == 2


def test_flush(pair):
    a, b = pair
    a.card.set_rate(QP, 100)
    a.send("send", 4), a.send("send", 4000), a.send("send", 4), a.send("read", 4, seq=0)
    a.receive()
    a.dev.run(20_000)
    a.card.flush_qp(QP)
    after = len(a.dev.sent_frames())
    assert after > 2
    assert ends(a, SEND_CQ) == [(0, "send", "success", "complete", 4), *((i, "none", "error", "flushed", 0) for i in (1, 2, 3))]
    assert ends(a, RECV_CQ) == [(0, "none", "error", "flushed", 0)]
    a.dev.run(100_000)
    assert a.dev.sent_frames() == [] and a.card.outstanding(QP, "send") == 0


def test_flush_while_the_last_packet_leaves(pair):
    """What is on the cable counts as sent, and its completion comes before the flushed ones."""
    a, b = pair
    for delay in range(0, 400, 7):
        a.qp(b)
        for _ in range(8):
            a.send("send", MTU)
        a.dev.run(delay)
        a.card.flush_qp(QP)
        sent = len(a.dev.sent_frames())
        done = ends(a, SEND_CQ)
        assert done == [(i, "send", "success", "complete", MTU) for i in range(sent)] + [
            (i, "none", "error", "flushed", 0) for i in range(sent, 8)]
        assert a.sent() == []


def test_posted_to_a_queue_pair_that_is_not_ready(pair):
    a, b = pair
    a.qp(b, state="init")
    a.send("send", 5), a.send("write", 6)
    assert a.sent() == [] and ends(a, SEND_CQ) == [(0, "send", "error", "flushed", 0), (1, "write", "error", "flushed", 0)]


def test_a_new_life_of_both_ends(pair):
    a, b = pair
    b.receive()
    a.send("send", 2000)
    old = a.sent()
    a.qp(b, generation=11, peer_generation=12), b.qp(a, generation=12, peer_generation=11)
    for frame in old:
        b.dev.send(frame)
    b.dev.run_until("idle", limit=100_000)
    assert b.card.counter("drop_generation") == len(old)
    b.receive()
    a.send("send", 5)
    new = a.sent()
    assert int.from_bytes(new[0][51:54], "big") == 0            # PSN
    b.dev.send(new[0])
    assert [c.status for c in b.card.wait(RECV_CQ)] == ["success"]


def test_inline_and_completions_on_request(pair):
    a, b = pair
    for i in range(6):
        b.receive()
        a.card.post_send(QP, "send", inline=bytes([i]) * 32, signaled=i == 5, wr_id=i)
    carry(a, b)
    assert [(c.index, c.wr_id) for c in a.card.poll(SEND_CQ)] == [(5, 5)] and a.card.outstanding(QP, "send") == 0
    assert b.bytes(0, 32) == bytes([5]) * 32 and len(b.card.poll(RECV_CQ)) == 6


def test_addresses_of_every_kind(pair):
    a, b = pair
    for ip, vlan in (("fd00::2", None), ("10.0.0.2", 0x6123)):
        a.card.set_peer(0, ip, mac=b.mac, vlan=vlan)
        a.send("send", 3)
        frame, = a.sent()
        six = ":" in ip
        right = frames.build(0xE4, QP, headers=frames.xp_header(a.card._qp(QP).messages - 1, 3, 0, 2), payload=a.data[:3],
                             psn=a.card._qp(QP).messages - 1, src="fd00::1" if six else "10.0.0.1", dst=ip, vlan=vlan, sport=0xC000,
                             src_mac=a.mac, dst_mac=b.mac)
        assert frame == right       # the QPNs of both ends are the same, so their fold is 0


def test_congestion_is_told_to_the_peer_but_not_too_often(pair):
    a, b = pair
    a.qp(b, traffic_class=3)            # as if a switch had marked all
    for i in range(10):
        b.receive()
        a.send("send", 10)
    forth = a.sent()
    for frame in forth:
        b.dev.send(frame)
    back = b.sent()
    assert len(back) == 1 and b.card.counter("cnp_due") == 10 and b.card.counter("cnp_sent") == 1
    a.dev.send(back[0])
    a.dev.run_until("idle", limit=10_000)
    assert a.card.counter("cnp_received") == 1 and back[0][15] == 48 << 2
    b.dev.run(int(50_000 / CFG.clock_ns))
    b.receive()
    a.send("send", 10)
    carry(a, b)
    assert b.card.counter("cnp_sent") == 2 and a.card.counter("cnp_received") == 2


@pytest.mark.parametrize("marked", [True, False])
def test_dcqcn_slows_down_where_there_is_congestion(marked):
    cfg = CFG.with_(congestion="dcqcn")
    a, b = Side(1, cfg), Side(2, cfg)
    a.qp(b, traffic_class=3 if marked else 2), b.qp(a)
    a.card.reg_write("DCQCN_LINE_RATE", 8000), b.card.reg_write("CNP_INTERVAL", 4000)
    stamps = []
    a.send("write", 60 * MTU, remote_va=VA, rkey=KEY)
    while len(stamps) < 60:             # over a cable of 100 cycles, both ways
        assert a.dev.cycle < 1_000_000
        for one, other in ((a, b), (b, a)):
            one.dev.run(100)
            for f in one.dev.sent_frames():
                other.dev.send(f.frame)
                if one is a:
                    stamps.append(f.first)
    carry(a, b)
    assert b.card.counter("frames_placed") == 60
    gaps = [n - s for s, n in zip(stamps, stamps[1:])]
    line = -(-(MTU + 90) // 8)
    assert gaps[0] == line and b.card.counter("cnp_sent") == a.card.counter("cnp_received")
    if marked:
        assert a.card.counter("cnp_received") > 3 and max(gaps[-20:]) > 3 * line
    else:
        assert a.card.counter("cnp_received") == 0 and set(gaps) == {line}


def test_the_host_sends_through_the_card(pair):
    a, b = pair
    arp = bytes.fromhex("ffffffffffff020000000001") + b"\x08\x06" + bytes(46)
    a.send("send", 4 * MTU)
    a.dev.run(ModelDevice.PIPELINE + 1)
    for _ in range(3):
        a.dev.host_send(arp)
    sent = a.sent()
    assert sent.count(arp) == 3 and len(sent) == 7 and sent[:3].count(arp) < 3      # turns
    assert a.card.counter("host_frames_sent") == 3 and a.card.counter("frames_sent") == 4
    assert a.card.counter("sent_bytes") == sum(map(len, sent))
    a.dev.host_send(b"short")
    assert a.sent() == [b"short" + bytes(55)]
    for frame in sent:
        b.dev.send(frame)
    b.dev.run_until("idle", limit=100_000)
    assert b.dev.host_frames() == [arp] * 3


def test_switched_off_nothing_is_sent_and_deadlines_run(pair):
    a, b = pair
    a.card.enable(tx=False)
    a.send("send", 4, timeout_ns=5000), a.send("send", 4)
    a.dev.host_send(bytes(60))
    assert a.sent() == []
    a.dev.run(1000)
    assert ends(a, SEND_CQ) == [(0, "send", "partial", "timeout", 0)]
    a.card.enable()
    assert len(a.sent()) == 2


def test_frames_leave_at_line_rate_or_at_the_pace_of_the_cable(pair):
    a, _ = pair
    def stamps():
        a.send("write", 20 * MTU, remote_va=VA, rkey=KEY)
        a.dev.run_until("idle", limit=100_000)
        return a.dev.sent_frames()
    found = stamps()
    beats = -(-len(found[0].frame) // 8)
    assert [f.last - f.first + 1 for f in found] == [beats] * 20
    assert [n.first - f.first for f, n in zip(found, found[1:])] == [beats] * 19
    a.dev.pace(16, overhead_bytes=24, min_frame_bytes=60)
    found = stamps()
    each = -(-8 * (len(found[0].frame) + 24) // 16)
    assert [n.first - f.first for f, n in zip(found, found[1:])] == [each] * 19


def test_rate_set_and_its_error(pair):
    a, _ = pair
    for qpn, error in ((1 << 24, 2), (QP, 0), (6, 0)):
        a.card.reg_write("ARG0", qpn), a.card.reg_write("COMMAND", COMMANDS["rate_set"][0])
        a.dev.run(1000)
        assert a.card.reg_read("COMMAND_STATUS") == error


def test_the_payload_is_read_when_the_packet_is_made(pair):
    """What the host writes into a buffer too early goes out: the model would show the fault of a driver."""
    a, b = pair
    b.receive()
    a.send("send", 4 * MTU)
    a.dev.run_until("byte", a.memory + SIZE - 1, equals=-1, limit=ModelDevice.PIPELINE + 20)
    a.dev.write(a.memory, bytes(4 * MTU))
    payload = b"".join(inspect(f).payload for f in a.sent())
    assert payload[:MTU] == a.data[:MTU] and payload[-MTU:] == bytes(MTU)


@pytest.mark.parametrize("fault", ["payload", "completion", "none"])
def test_negative_control(pair, monkeypatch, fault):
    """A card that sends wrong bytes, or forgets a completion, is found by the tests above."""
    a, b = pair
    if fault == "payload":
        read = a.dev.card.memory.card_read
        monkeypatch.setattr(a.dev.card.memory, "card_read", lambda addr, n: read(addr, n)[::-1] if n > 64 else read(addr, n))
    elif fault == "completion":
        monkeypatch.setattr(a.dev.card, "send_cqe", lambda qp, c: None)
    if fault == "none":
        return test_messages_of_every_length(pair, "send")
    with pytest.raises((AssertionError, ValueError)):
        test_messages_of_every_length(pair, "send")


@pytest.mark.parametrize("n", range(3))
def test_everything_at_once_and_every_account_agrees(n):
    """Random requests both ways over a lossy cable: each ends once, and what one side counts is what the other one did."""
    rng = random.Random(f"everything {n}")
    cfg = CFG.with_(congestion="none")
    a, b = Side(1, cfg), Side(2, cfg)
    for qpn in range(1, 5):
        for side, other in ((a, b), (b, a)):
            side.qp(other, qpn, type=("xp", "uc")[qpn == 4], mtu=rng.choice((256, 512, 1024)), paths=1 << rng.randrange(4))
    posted, finished, lost, damaged = Counter(), Counter(), 0, 0
    for _ in range(400):
        side, qpn = rng.choice((a, b)), rng.randrange(1, 5)
        if side.card.outstanding(qpn) < 30:
            side.receive(4096, 4096 * rng.randrange(16), qpn, timeout_ns=rng.choice((20_000, 100_000)))
            posted[side.number, "receive"] += 1
        if side.card.outstanding(qpn, "send") < 30:
            op = rng.choice(("send", "send_imm", "write", "write_imm") + ("read",) * (qpn < 4))
            fields = {}
            if not op.startswith("send"):
                fields = dict(remote_va=VA + rng.randrange(SIZE - 3000), rkey=rng.choice((KEY, KEY, KEY, 1)))
            if op == "read":
                fields["seq"] = side.card._qp(qpn).receives.posted
            if rng.random() < 0.3:
                fields["timeout_ns"] = rng.randrange(100, 50_000)
            side.send(op, rng.randrange(3000), rng.randrange(SIZE - 3000), qpn, **fields)
            posted[side.number, "send"] += 1
        for one, other in ((a, b), (b, a)):
            one.dev.run(rng.randrange(400))
            for f in one.dev.sent_frames():
                if rng.random() < 0.05:
                    lost += 1
                else:
                    user = int(rng.random() < 0.02)
                    damaged += user
                    other.dev.send(f.frame, user=user)
            for cq in (RECV_CQ, SEND_CQ):
                for c in one.card.poll(cq):
                    finished[one.number, c.queue] += 1
    for _ in range(200):        # the longest row of deadlines
        for one, other in ((a, b), (b, a)):
            one.dev.run(20_000)
            for f in one.dev.sent_frames():
                other.dev.send(f.frame)
            finished[one.number, "receive"] += len(one.card.poll(RECV_CQ))
            finished[one.number, "send"] += len(one.card.poll(SEND_CQ))
    assert finished == posted
    counts = [{k: v for k, v in side.card.counters().items()} for side in (a, b)]
    arrived = sum(v for c in counts for k, v in c.items() if k.startswith("drop_") or k in ("frames_placed", "frames_consumed"))
    assert arrived + lost == sum(c["frames_sent"] for c in counts)
    assert sum(c["drop_runt"] for c in counts) == damaged > 0 and lost > 0
    assert all(c["cq_overrun"] == 0 and c["reads_served"] > 0 for c in counts)
    assert a.dev.faults == b.dev.faults == []
