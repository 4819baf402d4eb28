"""The model of the send half: every frame against an independent builder and scapy, and the life of work requests rule by rule."""

from dataclasses import replace
import random

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether

from sim import frames
from sim.models import outgoing
from sim.models.memory import Memory, Region
from sim.models.outgoing import Header, Peer, Port, build_frame, source_port
from sim.models.congestion import NotificationModel
from sim.models.pacing import Pacing
from sim.models.send import SendModel, WorkRequest
from sim.models.wire import inspect

QP, DEST, GENERATION, PD, KEY, VA, BUS = 0x51, 0xABC123, 7, 3, 99, 0x5000_0000, 0x9000
SIZE = 3 * 4096 + 100
DATA = random.Random(1).randbytes(SIZE)
PORT = Port(pkey=0x8123, hop_limit=17)
PEER4 = Peer(b"\x0a\0\0\2", b"\2\0\0\0\0\2")
PEER6 = Peer(b"\xfd" + bytes(14) + b"\2", b"\2\0\0\0\0\2", vlan=0x2005)
PEERS = pytest.mark.parametrize("peer", [PEER4, PEER6], ids=["ipv4", "ipv6-vlan"])


def make(kind="xp", mtu=1024, peer=PEER4, pacer=None, **context):
    memory = Memory([(BUS, SIZE)])
    memory.write(BUS, DATA)
    regions = {KEY: Region(KEY, VA, SIZE, frozenset(), PD, BUS - VA),
               8: Region(8, VA, SIZE, frozenset(("remote_read",)), PD, BUS - VA),
               9: Region(9, VA, SIZE, frozenset(("remote_read",)), PD + 1, BUS - VA),
               10: Region(10, VA, 1 << 20, frozenset(), PD, BUS - VA)}      # has bytes that the bus hasn't
    model = SendModel(PORT, regions, memory, pacer=pacer, qp_bits=4)
    model.add_qp(QP, kind=kind, pd=PD, mtu=mtu, peer=peer, dest_qpn=DEST, dest_generation=GENERATION, tclass=0x6A, **context)
    return model


def drain(model, now=0):
    """All that can be sent now."""
    out = []
    while model.ready(now):
        found = model.next_frame(now)
        if found:
            out.append(found)
    return out


def ends(model):
    return [(c.index, c.status, c.cause, c.byte_len) for c in model.completions]


def expected(peer, opcode, payload, psn, headers, *, solicited=0, port=None):
    port = 0xC000 | ((DEST ^ DEST >> 10 ^ QP & 15) & 0x3FFF) if port is None else port
    common = dict(src="10.0.0.1", dst="10.0.0.2") if peer is PEER4 else dict(src="fd00::1", dst="fd00::2", vlan=0x2005)
    return frames.build(opcode, DEST, headers=headers, payload=payload, psn=psn, solicited=solicited, pkey=0x8123, ttl=17, tos=0x6A,
                        sport=port, src_mac=frames.LOCAL[0], dst_mac=frames.REMOTE[0], **common).ljust(60, b"\0")


def lengths(mtu):
    return [0, 1, 2, 3, 4, 5, 31, 32, 33, *(n * mtu + near for n in (1, 2, 3) for near in (-1, 0, 1))]


OPS = {"send": 0xE4, "send_imm": 0xE5, "write": 0xEA, "write_imm": 0xEB}


# -- frames ---------------------------------------------------------------------------------------------

@PEERS
@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("op", OPS)
def test_every_packet_of_a_message(op, mtu, peer):
    model, psn, total = make(mtu=mtu, peer=peer), 0, 0
    for length in lengths(mtu):
        at = length % 7
        model.post(QP, WorkRequest(op, length, VA + at, KEY, remote_va=(1 << 64) - 50, rkey=0xDEADBEEF, imm=0x01020304,
                                   seq=0xFFFFFFF0, tag=0xBEEF, solicited=True))
        pieces = [(o, min(mtu, length - o)) for o in range(0, length, mtu)] or [(0, 0)]
        right = []
        for offset, size in pieces:
            tracked = op != "write"
            headers = frames.xp_header(0xFFFFFFF0 if tracked else 0, length, offset, GENERATION, 0xBEEF, 0x80 * tracked)
            if op.startswith("write"):
                headers += frames.reth(((1 << 64) - 50 + offset) % (1 << 64), 0xDEADBEEF, size)
            if op.endswith("imm"):
                headers += bytes((1, 2, 3, 4))
            right.append(expected(peer, OPS[op], DATA[at + offset:at + offset + size], psn, headers,
                                  solicited=int((offset, size) == pieces[-1])))
            psn += 1
        sent = drain(model)
        assert [s.frame for s in sent] == right
        assert [s.payload for s in sent] == [size for _, size in pieces]
        assert model.completions.pop().msg_len == length and not model.completions
        for s in sent:      # the card at the other end understands it
            packet = inspect(s.frame)
            assert packet.reason is None and (packet.kind, packet.qpn, packet.generation) == ("xp", DEST, GENERATION)
            assert packet.tracked == (op != "write") and packet.has_imm == op.endswith("imm")
        total += sum(len(s.frame) for s in sent)
    assert model.counts["frames_sent"] == psn and model.counts["sent_bytes"] == total


@PEERS
@pytest.mark.parametrize("op, opcode", [("send", 0x24), ("send_imm", 0x25), ("write", 0x2A), ("write_imm", 0x2B)])
def test_standard_messages(op, opcode, peer):
    model = make("uc", 512, peer)
    for psn, length in enumerate((0, 1, 2, 3, 4, 511, 512)):
        model.post(QP, WorkRequest(op, length, VA, KEY, remote_va=5, rkey=6, imm=7, seq=8, tag=9))
        headers = frames.reth(5, 6, length) if op.startswith("write") else b""
        headers += bytes((0, 0, 0, 7)) if op.endswith("imm") else b""
        assert [s.frame for s in drain(model)] == [expected(peer, opcode, DATA[:length], psn, headers)]
    model.post(QP, WorkRequest(op, 513, VA, KEY))
    model.post(QP, WorkRequest("read", 5))
    assert not drain(model)
    assert ends(model)[-2:] == [(7, "error", "length", 0), (8, "error", "length", 0)]


@PEERS
def test_read_request(peer):
    model = make(peer=peer)
    model.post(QP, WorkRequest("read", 1 << 31, remote_va=0x123456789ABCDEF0, rkey=0x55, seq=77, tag=88, solicited=True))
    headers = frames.xp_header(77, 1 << 31, 0, GENERATION, 88, 0) + frames.reth(0x123456789ABCDEF0, 0x55, 1 << 31)
    sent, = drain(model)
    assert sent.frame == expected(peer, 0xEC, b"", 0, headers, solicited=1)
    assert ends(model) == [(0, "success", "complete", 1 << 31)]
    assert inspect(sent.frame).read_len == 1 << 31


@PEERS
@pytest.mark.parametrize("mtu", [256, 4096])
def test_answers_to_reads(mtu, peer):
    model, psn = make(mtu=mtu, peer=peer), 0
    for length in lengths(mtu):
        at = length % 5
        model.read_request(QP, VA + at, 8, length, 0xABCD, 0x77)
        for sent, offset in zip(drain(model), range(0, max(length, 1), mtu), strict=True):
            payload = DATA[at + offset:at + min(length, offset + mtu)]
            headers = frames.xp_header(0xABCD, length, offset, GENERATION, 0x77, 0x80)
            assert sent.frame == expected(peer, 0xF0, payload, psn, headers) and sent.kind == "read_response"
            psn += 1
        assert model.answers == 0
    assert model.completions == []


@PEERS
def test_scapy_reads_what_is_sent(peer, rng):
    model = make(peer=peer, log2_paths=3)
    for _ in range(30):
        model.post(QP, WorkRequest(rng.choice(list(OPS)), rng.randrange(2000), VA, KEY, solicited=bool(rng.randrange(2))))
    for psn, sent in enumerate(drain(model)):
        ether = Ether(sent.frame)
        assert (ether.src, ether.dst) == (frames.LOCAL[0], frames.REMOTE[0])
        if peer is PEER4:
            ip = ether[IP]
            assert (ip.src, ip.dst, ip.tos, ip.ttl, ip.flags) == ("10.0.0.1", "10.0.0.2", 0x6A, 17, "DF")
            assert ip.len == len(sent.frame) - 14
            checksum, ip.chksum = ip.chksum, None
            assert IP(bytes(ip)).chksum == checksum
        else:
            ip = ether[IPv6]
            assert (ip.src, ip.dst, ip.tc, ip.hlim, ip.plen) == ("fd00::1", "fd00::2", 0x6A, 17, len(sent.frame) - 58)
            assert ether[Dot1Q].vlan == 5 and ether[Dot1Q].prio == 1
        assert (ether[UDP].dport, ether[UDP].chksum, ether[UDP].len) == (4791, 0, len(bytes(ip.payload)))
        bth = ether[BTH]
        assert (bth.dqpn, bth.psn, bth.pkey, bth.version, bth.padcount) == (DEST, psn, 0x8123, 0, -sent.payload % 4)
        if peer is PEER4:       # scapy has no ICRC of IPv6
            ether[BTH].icrc = None
            assert bytes(ether) == sent.frame


def test_a_checksum_that_folds_twice():
    """Carries of carries; all that the address can be in its last 16 bits."""
    port = replace(PORT, ip4=b"\xff\xff\xff\xfe")
    for last in range(0, 0x10000, 97):
        peer = Peer(b"\xff\xff" + last.to_bytes(2, "big"))
        for length in (0, 1, 1000):
            frame = build_frame(port, peer, Header(0xE4, 1, xp=(True, 0, 0, 0, length, 0)), bytes(length))
            assert inspect(frame).reason is None


def test_paths_take_turns_and_numbers_wrap():
    model = make(log2_paths=2)
    model.qps[QP].psn = (1 << 24) - 2
    for _ in range(6):
        model.post(QP, WorkRequest("send"))
    ports, psns = zip(*((Ether(s.frame)[UDP].sport, Ether(s.frame)[BTH].psn) for s in drain(model)))
    base = source_port(QP & 15, DEST)
    assert psns == (0xFFFFFE, 0xFFFFFF, 0, 1, 2, 3)
    assert ports == tuple(base ^ psn & 3 for psn in psns) and len(set(ports)) == 4
    assert all(0xC000 <= source_port(q, d, 77, 7) <= 0xFFFF for q in (0, 0x3FFF) for d in (0, 0xFFFFFF, 0x123456))


def test_notifications_are_few():
    model = make()
    model.notifier = NotificationModel(interval=50_000, pool=1)
    for now in (0, 10, 49_999, 50_256, 60_000, 200_000):
        model.mark(QP, now)
    model.mark(QP + 1, 200_001)         # no such QP
    model.add_qp(QP + 2)
    model.mark(QP + 2, 200_002)         # one too many at a time
    sent = drain(model)
    right = frames.cnp(DEST, src="10.0.0.1", dst="10.0.0.2", pkey=0x8123, ttl=17, src_mac=frames.LOCAL[0], dst_mac=frames.REMOTE[0],
                       sport=source_port(QP & 15, DEST))
    assert [s.frame for s in sent] == [right] * 3 and model.counts["cnp_sent"] == model.counts["frames_sent"] == 3
    assert model.counts["marks_lost"] == 1
    assert inspect(right).kind == "cnp" and model.qps[QP].psn == 0


@pytest.mark.parametrize("mutation", ["pad", "icrc", "offset"])
def test_negative_control(monkeypatch, mutation):
    """A builder with a fault is found by the comparison with the other one."""
    right = outgoing.icrc
    if mutation == "icrc":
        monkeypatch.setattr(outgoing, "icrc", lambda datagram, size: right(datagram, size)[::-1])
    elif mutation == "pad":
        monkeypatch.setattr(outgoing, "icrc", lambda datagram, size: right(datagram[:-3], size))
    else:
        plain = outgoing.extension_headers
        monkeypatch.setattr(outgoing, "extension_headers", lambda h: plain(replace(h, xp=(*h.xp[:5], 0))))
    with pytest.raises(AssertionError):
        test_every_packet_of_a_message("send", 256, PEER4)


# -- work requests --------------------------------------------------------------------------------------

def send(length=100, **fields):
    return WorkRequest("send", length, **{"va": VA, "lkey": KEY, **fields})


def test_completions_in_order_and_only_where_asked_for():
    model = make()
    for i in range(4):
        model.post(QP, send(10 * i, signaled=i % 2 == 1, tag=i))
    drain(model)
    assert [(c.index, c.opcode, c.status, c.cause, c.byte_len, c.msg_len, c.tag, c.skipped) for c in model.completions] == [
        (1, "send", "success", "complete", 10, 10, 1, 0), (3, "send", "success", "complete", 30, 30, 3, 0)]


def test_inline():
    model = make()
    for length in (0, 1, 31, 32):
        model.post(QP, send(length, inline=bytes(range(32)), lkey=12345))
        sent, = drain(model)
        assert inspect(sent.frame).payload == bytes(range(length))
    model.post(QP, send(33, inline=bytes(32)))
    model.post(QP, WorkRequest("read", 33, inline=bytes(32)))
    assert not drain(model) and ends(model)[4:] == [(4, "error", "length", 0), (5, "error", "length", 0)]


@pytest.mark.parametrize("fields, cause", [
    (dict(lkey=1), "protection"), (dict(lkey=9), "protection"), (dict(va=VA - 1), "protection"),
    (dict(va=VA + SIZE - 99), "protection"), (dict(va=(1 << 64) - 50), "protection"),
    (dict(va=VA + SIZE - 50, lkey=10), "bus"), (dict(op="no such"), "length")])
def test_errors_stand_alone(fields, cause):
    model = make()
    for request in (send(signaled=False), replace(send(signaled=False), **fields), send(lkey=8)):      # remote_read will do
        model.post(QP, request)
    assert len(drain(model)) == 2
    assert ends(model) == [(1, "error", cause, 0), (2, "success", "complete", 100)]
    assert model.counts["send_errors"] == (cause != "length")


def test_what_is_good_of_a_bad_message_goes_out():
    model = make(mtu=256)
    model.post(QP, send(1024, va=VA + SIZE - 600))
    sent = drain(model)
    assert [(inspect(s.frame).offset, s.payload) for s in sent] == [(0, 256), (256, 256)]
    model.post(QP, send(1, va=0)), model.post(QP, send(1))
    assert Ether(drain(model)[0].frame)[BTH].psn == 5       # a packet that is left out has its number
    assert ends(model) == [(0, "error", "protection", 0), (1, "error", "protection", 0), (2, "success", "complete", 1)]


def test_a_request_that_cannot_be_read():
    model = make()
    for request in (send(), None, send()):
        model.post(QP, request)
    assert len(drain(model)) == 2
    assert ends(model) == [(0, "success", "complete", 100), (1, "error", "bus", 0), (2, "success", "complete", 100)]
    assert (model.completions[1].opcode, model.completions[1].msg_len) == (None, 0)


def test_a_deadline_ends_what_is_unsent():
    model = make(mtu=256)
    model.post(QP, send(1000, deadline=10))
    model.post(QP, send(1, deadline=10)), model.post(QP, send(1, deadline=11))
    assert model.next_frame(0) and model.next_frame(639) and model.next_alarm() == 640
    model.advance(639)
    assert ends(model) == []
    assert inspect(model.next_frame(640).frame).payload == DATA[:1]     # the third
    assert ends(model) == [(0, "partial", "timeout", 512), (1, "partial", "timeout", 0), (2, "success", "complete", 1)]
    assert model.completions[0].msg_len == 1000 and model.counts["sends_expired"] == 2
    assert drain(model, 10**9) == []


def test_a_deadline_is_modulo_two_to_the_32():
    model, now = make(), (5 << 32) * 64
    model.post(QP, send(1, deadline=(1 << 32) - 1), now)        # just past
    model.post(QP, send(1, deadline=0), now)                    # this very tick
    model.post(QP, send(1, deadline=1), now)
    assert len(drain(model, now)) == 1
    assert [c[1] for c in ends(model)] == ["partial", "partial", "success"]


def test_round_robin_one_packet_a_visit():
    model = make(mtu=256)
    for qpn, length in ((1, 600), (2, 10), (3, 1024)):
        model.add_qp(qpn, pd=PD, mtu=256)
        model.post(qpn, send(length))
    model.read_request(QP, VA, 8, 300, 0, 0)
    model.read_request(QP, VA, 8, 100, 0, 0)
    model.post(2, send(10))
    order = [s.qpn for s in drain(model)]
    assert order == [1, 2, 3, QP, 1, 2, 3, QP, 1, 3, QP, 3]


def test_answers_take_turns_but_not_those_of_one_queue_pair():
    """Mixed, the answers to two READs of one QP would preempt each other where they arrive."""
    model = make()
    model.answers_at_once = 2
    for qpn in (1, 2):
        model.add_qp(qpn, pd=PD)
    for seq, qpn in enumerate((QP, QP, 1, 2, QP)):
        model.read_request(qpn, VA, 8, 2000, seq, 0)
    assert (model.answers, model.waiting_answers) == (5, 3)
    assert [inspect(s.frame).seq for s in drain(model)] == [0, 2, 0, 2, 1, 3, 1, 3, 4, 4]
    assert model.answers == 0


def test_answers_are_checked_packet_by_packet():
    model = make(mtu=256)
    model.read_request(QP, VA, 9, 600, 0, 0)                # another protection domain's region by now
    model.read_request(QP, VA + SIZE - 300, 8, 600, 1, 0)
    model.read_request(QP, VA, KEY, 100, 2, 0)              # no remote_read
    assert [(inspect(s.frame).seq, s.payload) for s in drain(model)] == [(1, 256)]
    assert model.counts["send_errors"] == 6 and model.answers == 0 and model.completions == []


def test_flush_is_one_completion():
    model = make(mtu=256)
    for length in (1, 600, 5, 5):
        model.post(QP, send(length))
    model.next_frame(0), model.next_frame(0)
    model.read_request(QP, VA, 8, 600, 0, 0)
    model.flush(QP, 50)
    assert drain(model) == [] and model.answers == 0
    c = model.completions[-1]
    assert ends(model) == [(0, "success", "complete", 1), (3, "error", "flushed", 0)]
    assert (c.skipped, c.opcode, c.msg_len, c.time) == (2, None, 0, 50)
    model.flush(QP, 60)
    assert len(model.completions) == 2
    model.post(QP, send(5, tag=4)), model.post(QP, None)
    assert ends(model)[2:] == [(4, "error", "flushed", 0), (5, "error", "flushed", 0)] and model.completions[2].tag == 4


def test_a_new_life_begins_anew():
    model = make(mtu=256)
    model.post(QP, send(600, deadline=100)), model.read_request(QP, VA, 8, 600, 0, 0)
    model.next_frame(0)
    model.add_qp(QP, pd=PD, dest_generation=8)
    assert drain(model) == []
    model.post(QP, send(1))
    sent, = drain(model, 100 * 64)
    assert inspect(sent.frame).generation == 8 and Ether(sent.frame)[BTH].psn == 0
    assert ends(model) == [(0, "success", "complete", 1)]
    model.remove_qp(QP)
    assert drain(model) == []


def test_pacing_and_what_it_holds_back():
    pacer = Pacing.fixed(burst=0)
    model = make(pacer=pacer)
    model.add_qp(2, pd=PD)
    pacer.set(QP, 8 << 16, 0)       # 1 Gb/s
    for _ in range(3):
        model.post(QP, send(1024)), model.post(2, send(1024))
    charge = 14 + 20 + 8 + 12 + 16 + 1024 + 4
    assert [s.qpn for s in drain(model)] == [QP, 2, 2, 2]
    assert model.next_paced() == 8 * charge and model.next_frame(8 * charge - 1) is None
    assert model.next_frame(8 * charge).charge == charge
    assert drain(model, 16 * charge - 1) == [] and len(drain(model, 16 * charge)) == 1
    pacer.pacer.burst = 100_000           # one that was held up may catch up
    for _ in range(20):
        model.post(QP, send(1024))
    assert len(drain(model, 1_000_000)) == 100_000 // (8 * charge) + 1
    pacer.set(QP, 0, 0)
    assert len(drain(model, 1_100_000)) == 20 - 100_000 // (8 * charge) - 1


def test_a_deadline_ends_what_is_held_back():
    model = make(pacer=Pacing.fixed(burst=0))
    model.pacer.set(QP, 1000 << 16, 0)
    model.post(QP, send(1)), model.post(QP, send(1, deadline=20))
    assert len(drain(model)) == 1
    model.advance(20 * 64)
    assert ends(model) == [(0, "success", "complete", 1), (1, "partial", "timeout", 0)] and drain(model, 10**9) == []


@pytest.mark.parametrize("seed_", range(6))
def test_every_request_ends_once_and_in_order(seed_):
    """Whatever is posted, expires, fails, is flushed or held back."""
    rng = random.Random(f"send {seed_}")
    model = make(mtu=256, pacer=Pacing.fixed() if seed_ % 2 else None)
    posted, seen, now = {}, {}, 0
    for qpn in range(5):
        model.add_qp(qpn, pd=PD, mtu=rng.choice((256, 1024)), kind=rng.choice(("xp", "xp", "uc")))
        posted[qpn], seen[qpn] = 0, 0
        if model.pacer:
            model.pacer.set(qpn, rng.choice((0, 100 << 16)), 0)
    for _ in range(3000):
        now += rng.randrange(300)
        qpn, act = rng.randrange(5), rng.randrange(10)
        if act < 3:
            deadline = rng.choice((None, now // 64 + rng.randrange(-5, 50)))
            model.post(qpn, rng.choice((send(rng.randrange(1500), deadline=deadline), send(5, lkey=1, deadline=deadline), None,
                                        WorkRequest("read", 5, deadline=deadline))), now)
            posted[qpn] += 1
        elif act == 3 and rng.random() < 0.1:
            model.flush(qpn, now)
            model.qps[qpn].state = "ready"
        else:
            model.next_frame(now)
        for c in model.completions:
            assert c.time <= now and c.index - c.skipped == seen[c.qpn], c
            seen[c.qpn] = c.index + 1
        model.completions.clear()
    for _ in range(1000):
        now += 10_000
        drain(model, now)
    for c in model.completions:
        seen[c.qpn] = c.index + 1
    assert seen == posted and model.next_paced() is None
