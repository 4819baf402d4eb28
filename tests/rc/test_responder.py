"""What the card answers to a peer's requests, frame by frame; the test is the peer."""

from dataclasses import dataclass, field

import pytest

from optinic.abi.verdicts import REASON
from sim.frames import cnp
from sim.rc_rig import KEY, PD, SIZE, VA, Bench
from sim.rc_frames import ACK, NAK_ACCESS, NAK_INVALID, NAK_SEQUENCE, request

QPN, PSN, MTU = 5, 0x1000, 256
RNR = 0x20


def bench(make, receives=4, length=2048, **options):
    b = Bench(make, qpn=QPN, peer_qpn=9, mtu=MTU, **{"expected": PSN, **options})
    for i in range(receives):
        b.node.post_receive(QPN, 2048 * i, length)
    return b


def acks(packets):
    """(PSN - first PSN, syndrome, MSN) of answers that must all be ACKs or NAKs to the QP at the peer."""
    assert all(p.name == "ACK" and p.qpn == 9 for p in packets), packets
    return [(p.psn - PSN, p.syndrome, p.msn) for p in packets]


def data(n, seed=1):
    return bytes((i * 7 + seed * 31 + (i >> 8)) & 0xFF for i in range(n))


def send(name, n, payload=b"", **fields):
    return request(f"SEND_{name}", QPN, PSN + n, payload, **fields)


def write(name, n, payload=b"", at=0, length=None, key=KEY, **fields):
    reth = (VA + at, key, len(payload) if length is None else length) if name in ("FIRST", "ONLY", "ONLY_IMM") else None
    return request(f"WRITE_{name}", QPN, PSN + n, payload, reth=reth, **fields)


def read(n, at, length, key=KEY):
    return request("READ_REQ", QPN, PSN + n, reth=(VA + at, key, length))


def fetch_add(n, at, add, key=KEY):
    return request("FETCH_ADD", QPN, PSN + n, atomic=(VA + at, key, add, 0))


def cas(n, at, compare, swap):
    return request("CMP_SWAP", QPN, PSN + n, atomic=(VA + at, KEY, swap, compare))


def dead(b, cause, before=0):
    """The QP has failed for that cause, `before` receives had completed, and nothing of it acts any more."""
    b.poll()
    event, = b.node.events(QPN)
    assert (event.status, event.cause, event.index) == ("fatal", cause, before)
    assert b.exchange(send("ONLY", 0, b"x"), send("ONLY", 1, b"x"), read(1, 0, 4), fetch_add(2, 0, 1)) == []
    b.poll()
    assert len(b.node.outcomes(QPN, "receive")) == before and len(b.node.events(QPN)) == 1


# -- in order, twice, too early ---------------------------------------------------------------------------

def test_a_duplicate_is_acknowledged_and_not_delivered_again(make):
    with bench(make) as b:
        first, second = send("ONLY", 0, data(100)), write("ONLY", 1, data(50, 2), 0x8000)
        assert acks(b.exchange(first)) == [(0, ACK, 1)]
        assert acks(b.exchange(second)) == [(1, ACK, 2)]
        b.node.store(0, bytes(100)), b.node.store(0x8000, bytes(50))
        for again in (first, second, send("ONLY", 0, data(100), ack=0)):    # acknowledged even if it doesn't ask
            assert acks(b.exchange(again)) == [(1, ACK, 2)]
        b.poll()
        assert b.node.outcomes(QPN, "receive") == [(0, "success", "complete")]
        assert b.node.load(0, 100) == bytes(100) and b.node.load(0x8000, 50) == bytes(50)
        assert b.node.counter("duplicates") == 3


@pytest.mark.parametrize("ask", [read(2, 0x4000, 700), read(2, 0x4000, 0), fetch_add(2, 0x4000, 1)],
                         ids=["read", "nothing", "atomic"])
def test_no_ack_stands_for_an_answer(make, ask):
    """An ACK with the number of a READ or atomic would be taken for its end by Soft-RoCE. So a duplicate from before it is
    acknowledged by its own number, until the next request that an ACK may acknowledge has come."""
    with bench(make) as b:
        assert acks(b.exchange(send("ONLY", 0, data(9)), write("ONLY", 1, data(5), 0x8000)))[-1] == (1, ACK, 2)
        answer = b.exchange(ask)
        assert answer and all(p.name != "ACK" for p in answer)
        end = answer[-1].psn - PSN
        assert acks(b.exchange(send("ONLY", 0, data(9)))) == [(0, ACK, 3)]
        assert acks(b.exchange(write("ONLY", 1, data(5), 0x8000))) == [(1, ACK, 3)]
        assert acks(b.exchange(send("FIRST", end + 1, data(MTU)))) == [(end + 1, ACK, 3)]
        assert acks(b.exchange(send("ONLY", 0, data(9)))) == [(end + 1, ACK, 3)]


def test_one_nak_for_each_gap(make):
    with bench(make) as b:
        assert acks(b.exchange(*(send("ONLY", n, b"late") for n in (1, 2, 3)))) == [(0, NAK_SEQUENCE, 0)]
        assert acks(b.exchange(send("ONLY", 0, b"a"))) == [(0, ACK, 1)]
        assert acks(b.exchange(send("ONLY", 2, b"c"), send("ONLY", 3, b"d"))) == [(1, NAK_SEQUENCE, 1)]
        assert acks(b.exchange(send("ONLY", 1, b"b"))) == [(1, ACK, 2)]
        b.poll()
        assert b.node.load(0, 1) + b.node.load(2048, 1) == b"ab"
        assert len(b.node.outcomes(QPN, "receive")) == 2
        assert b.node.counter("naks_sent") == 2


def test_half_of_all_numbers_are_old(make):
    with bench(make) as b:
        assert acks(b.exchange(send("ONLY", 0, b"a"))) == [(0, ACK, 1)]
        assert acks(b.exchange(send("ONLY", 1 - (1 << 23), b"x"))) == [(0, ACK, 1)]      # as far back as can be
        assert acks(b.exchange(send("ONLY", (1 << 23), b"x"))) == [(1, NAK_SEQUENCE, 1)]     # as far ahead as can be


@pytest.mark.parametrize("name, payload", [("SEND_ONLY", b""), ("SEND_ONLY", b"x"), ("WRITE_FIRST", data(MTU))])
def test_without_ack_req_there_is_no_ack(make, name, payload):
    with bench(make) as b:
        reth = (VA, KEY, 300) if name == "WRITE_FIRST" else None
        assert b.exchange(request(name, QPN, PSN, payload, reth=reth, ack=0)) == []


def test_acks_are_cumulative(make):
    """However they are coalesced, the last one is for all."""
    with bench(make) as b:
        found = acks(b.exchange(*(write("ONLY", n, data(16, n), 16 * n) for n in range(40))))
        assert found[-1] == (39, ACK, 40)
        assert found == sorted(found) and all(msn == n + 1 for n, _, msn in found)
        assert b.node.load(0, 640) == b"".join(data(16, n) for n in range(40))
        assert b.node.counter("acks_sent") == len(found)


def test_what_is_not_for_the_qp_is_ignored(make):
    with bench(make) as b:
        good = send("ONLY", 0, b"a")
        broken = bytearray(good)
        broken[60] ^= 1
        assert b.exchange(bytes(broken), send("ONLY", 0, b"a", src="10.0.0.77"), send("ONLY", 0, b"a", pkey=0x1234),
                          request("UC_SEND_ONLY", QPN, PSN, b"a"), request("SEND_ONLY", QPN + 16, PSN, b"a"),
                          request(0xE4, QPN, PSN, bytes(32)), request(0x64, QPN, PSN, bytes(32)),
                          request(0x1C, QPN, PSN, bytes(32)),
                          request("READ_REQ", QPN, PSN, b"payload", reth=(VA, KEY, 1)),
                          request("FETCH_ADD", QPN, PSN, b"payload", atomic=(VA, KEY, 1, 1))) == []
        assert acks(b.exchange(good)) == [(0, ACK, 1)]


# -- messages of several packets ---------------------------------------------------------------------------

@pytest.mark.parametrize("size", [0, 1, MTU - 1, MTU, MTU + 1, 2 * MTU - 1, 2 * MTU, 2 * MTU + 1, 3 * MTU, 5 * MTU + 7])
@pytest.mark.parametrize("kind", ["SEND", "WRITE", "WRITE_IMM"])
def test_messages(make, kind, size):
    with bench(make) as b:
        payload, count = data(size), max(1, -(-size // MTU))
        frames = []
        for i in range(count):
            place = "ONLY" if count == 1 else "FIRST" if i == 0 else "LAST" if i == count - 1 else "MIDDLE"
            with_imm = kind == "WRITE_IMM" and i == count - 1
            piece = payload[i * MTU:(i + 1) * MTU]
            make_frame = send if kind == "SEND" else write
            extra = dict(length=size, at=0x8001) if kind != "SEND" else {}
            imm = 0xABCD if with_imm else None
            frames.append(make_frame(place + "_IMM" * with_imm, i, piece, imm=imm, ack=i == count - 1, **extra))
        assert acks(b.exchange(*frames)) == [(count - 1, ACK, 1)]
        b.poll()
        assert b.node.load(0 if kind == "SEND" else 0x8001, size) == payload
        done = b.node.done[0]
        if kind == "WRITE":
            assert done == []
        else:
            opcode = "send" if kind == "SEND" else "write_imm"
            assert [(d.index, d.opcode, d.status, d.byte_len) for d in done] == [(0, opcode, "success", size)]
            assert kind == "SEND" or done[0].imm == 0xABCD


def test_a_message_that_begins_again_in_its_middle(make):
    """After a go-back to a PSN inside a message, only the rest comes."""
    with bench(make) as b:
        payload = data(4 * MTU)
        pieces = [payload[i * MTU:(i + 1) * MTU] for i in range(4)]
        names = ("FIRST", "MIDDLE", "MIDDLE", "LAST")
        frames = [send(names[i], i, pieces[i], ack=i == 3) for i in range(4)]
        assert acks(b.exchange(frames[0], frames[1], frames[3])) == [(2, NAK_SEQUENCE, 0)]
        assert acks(b.exchange(frames[2], frames[3])) == [(3, ACK, 1)]
        b.poll()
        assert b.node.load(0, 4 * MTU) == payload and len(b.node.outcomes(QPN, "receive")) == 1


def test_a_duplicate_read_inside_a_write(make):
    """Field case 13: neither disturbs the other."""
    with bench(make) as b:
        b.node.store(0x4000, data(600, 3))
        answer = b.exchange(read(0, 0x4000, 600))
        assert [p.name for p in answer] == ["READ_RESP_FIRST", "READ_RESP_MIDDLE", "READ_RESP_LAST"]
        payload = data(2 * MTU + 9, 5)
        assert b.exchange(write("FIRST", 3, payload[:MTU], 0x8000, length=len(payload), ack=0)) == []
        again = b.exchange(read(0, 0x4000, 600))
        assert [(p.name, p.psn, p.payload) for p in again] == [(p.name, p.psn, p.payload) for p in answer]
        part = b.exchange(read(1, 0x4000 + MTU, 600 - MTU))     # the rest of it
        assert b"".join(p.payload for p in part) == data(600, 3)[MTU:] and [p.psn for p in part] == [PSN + 1, PSN + 2]
        assert acks(b.exchange(send("ONLY", 0, b"old"))) == [(3, ACK, 1)]
        rest = write("MIDDLE", 4, payload[MTU:2 * MTU], ack=0), write("LAST", 5, payload[2 * MTU:])
        assert acks(b.exchange(*rest)) == [(5, ACK, 2)]
        assert b.node.load(0x8000, len(payload)) == payload
        b.poll()
        assert b.node.done[0] == []


# -- READ and atomics --------------------------------------------------------------------------------------

@pytest.mark.parametrize("length", [0, 1, 5, MTU - 1, MTU, MTU + 1, 2 * MTU, 2 * MTU + 1, 7 * MTU - 3])
def test_read(make, length):
    with bench(make) as b:
        b.node.store(0x4003, data(length))
        count = max(1, -(-length // MTU))
        answer = b.exchange(read(0, 0x4003, length))
        names = ["READ_RESP_ONLY"] if count == 1 else ["READ_RESP_FIRST"] + ["READ_RESP_MIDDLE"] * (count - 2) + ["READ_RESP_LAST"]
        assert [p.name for p in answer] == names and [p.psn for p in answer] == [PSN + i for i in range(count)]
        assert b"".join(p.payload for p in answer) == data(length)
        assert {(p.syndrome, p.msn) for p in answer if p.aeth is not None} == {(ACK, 1)}
        assert acks(b.exchange(send("ONLY", count, b"next"))) == [(count, ACK, 2)]


def test_answers_keep_their_order(make):
    """What is asked for while READs are answered is acknowledged behind them, and once."""
    with bench(make) as b:
        b.node.store(0x4000, data(4096))
        frames = [read(0, 0x4000, 1000), write("ONLY", 4, b"w" * 64, 0x100), read(5, 0x4100, 700), fetch_add(8, 0x9000, 5),
                  write("ONLY", 9, b"v" * 64, 0x200)]
        found = b.exchange(*frames)
        psns = [p.psn - PSN for p in found if p.name != "ACK"]
        assert psns == [0, 1, 2, 3, 5, 6, 7, 8]
        assert found[-1].name == "ACK" and (found[-1].psn - PSN, found[-1].msn) == (9, 5)
        first, second = (b"".join(p.payload for p in found if lo <= p.psn - PSN < hi) for lo, hi in ((0, 4), (5, 8)))
        assert first == data(4096)[:1000] and second == data(4096)[0x100:0x100 + 700]
        assert [p.psn - PSN for p in found] == sorted(p.psn - PSN for p in found)


def test_too_many_reads_are_dropped_and_asked_for_again(make):
    """A card has room for so many; the requester goes back to the first one that was dropped."""
    with bench(make, expected=PSN) as b:
        b.node.store(0, data(40 * 1024))
        count, each = 30, 4
        got, rounds = {}, 0
        while len(got) < count * each and rounds < 40:
            rounds += 1
            first = next(i for i in range(count * each) if i not in got)
            frames = [read(n * each, n * 1024, 1024) for n in range(first // each, count)]
            for p in b.exchange(*frames):
                if p.name.startswith("READ_RESP"):
                    assert got.setdefault(p.psn - PSN, p.payload) == p.payload
                else:
                    assert p.syndrome in (ACK, NAK_SEQUENCE) or p.syndrome >> 5 == 1
        assert b"".join(got[i] for i in range(count * each)) == data(40 * 1024)[:count * 1024]
        assert b.node.counter("drop_overflow") > 0


def test_atomics(make):
    with bench(make) as b:
        big = (1 << 64) - 3
        b.node.store(0x100, big.to_bytes(8, "little"))
        value = lambda: int.from_bytes(b.node.load(0x100, 8), "little")
        steps = ((fetch_add(0, 0x100, 5), big, 2), (cas(1, 0x100, 2, 0x1122334455667788), 2, 0x1122334455667788),
                 (cas(2, 0x100, 3, 9), 0x1122334455667788, 0x1122334455667788))
        for n, (frame, original, after) in enumerate(steps):
            answer, = b.exchange(frame)
            assert (answer.name, answer.psn - PSN, answer.original) == ("ATOMIC_ACK", n, original)
            assert (answer.syndrome, answer.msn) == (ACK, n + 1)
            assert value() == after
        assert b.node.load(0xF8, 8) == bytes(8) == b.node.load(0x108, 8)


def test_an_atomic_is_done_once(make):
    with bench(make) as b:
        first = [fetch_add(n, 0x100, 1) for n in range(20)]
        for n, frame in enumerate(first):
            answer, = b.exchange(frame)
            assert answer.original == n
        for n in (19, 4, 12, 19):        # the last 16 are remembered
            again, = b.exchange(first[n])
            assert (again.name, again.psn - PSN, again.original) == ("ATOMIC_ACK", n, n)
        assert b.exchange(first[3]) == []
        assert b.node.load(0x100, 8) == (20).to_bytes(8, "little")
        answer, = b.exchange(fetch_add(20, 0x100, 1))
        assert answer.original == 20 and answer.msn == 21


# -- no receive -------------------------------------------------------------------------------------------

def test_receiver_not_ready(make):
    with bench(make, receives=0, rnr_timer=6) as b:
        assert acks(b.exchange(send("ONLY", 0, b"a"), send("ONLY", 1, b"b"), write("ONLY", 2, b"c"))) == [(0, RNR | 6, 0)]
        assert acks(b.exchange(send("ONLY", 0, b"a"))) == [(0, RNR | 6, 0)]
        b.node.post_receive(QPN, 0)
        b.settle()
        assert acks(b.exchange(send("ONLY", 0, b"a"), send("ONLY", 1, b"b")))[-1] == (1, RNR | 6, 1)
        b.node.post_receive(QPN, 16)
        b.settle()
        assert acks(b.exchange(send("ONLY", 1, b"b"), write("ONLY", 2, b"c", 32)))[-1] == (2, ACK, 3)
        b.poll()
        assert (b.node.load(0, 1), b.node.load(16, 1), b.node.load(32, 1)) == (b"a", b"b", b"c")
        assert len(b.node.outcomes(QPN, "receive")) == 2


def test_a_write_with_immediate_wants_its_receive_at_the_end(make):
    with bench(make, receives=0, rnr_timer=3) as b:
        payload = data(MTU + 10)
        last = write("LAST_IMM", 1, payload[MTU:], imm=7)
        assert acks(b.exchange(write("FIRST", 0, payload[:MTU], 0x500, length=len(payload), ack=0), last)) == [(1, RNR | 3, 0)]
        b.node.post_receive(QPN)
        b.settle()
        assert acks(b.exchange(last)) == [(1, ACK, 1)]
        b.poll()
        assert [(d.opcode, d.imm, d.byte_len) for d in b.node.done[0]] == [("write_imm", 7, MTU + 10)]
        assert b.node.load(0x500, MTU + 10) == payload


# -- what ends the QP -------------------------------------------------------------------------------------

M = data(MTU)
WRONG = {
    "middle without first": [send("MIDDLE", 0, M)],
    "last without first": [send("LAST", 0, b"x")],
    "write middle without first": [write("MIDDLE", 0, M)],
    "first twice": [send("FIRST", 0, M, ack=0), send("FIRST", 1, M)],
    "only inside a message": [send("FIRST", 0, M, ack=0), send("ONLY", 1, b"x")],
    "write inside a send": [send("FIRST", 0, M, ack=0), write("MIDDLE", 1, M)],
    "send inside a write": [write("FIRST", 0, M, length=600, ack=0), send("LAST", 1, M)],
    "read inside a send": [send("FIRST", 0, M, ack=0), read(1, 0, 8)],
    "atomic inside a write": [write("FIRST", 0, M, length=600, ack=0), fetch_add(1, 0, 1)],
    "short first": [send("FIRST", 0, M[:-4])],
    "short middle": [send("FIRST", 0, M, ack=0), send("MIDDLE", 1, M[:-1])],
    "long middle": [send("FIRST", 0, M, ack=0), send("MIDDLE", 1, M + b"x")],
    "empty last": [send("FIRST", 0, M, ack=0), send("LAST", 1)],
    "long last": [send("FIRST", 0, M, ack=0), send("LAST", 1, M + b"x")],
    "long only": [send("ONLY", 0, M + b"x")],
    "write only, another DMALen": [write("ONLY", 0, b"1234", length=5)],
    "write only, DMALen 0": [write("ONLY", 0, b"1234", length=0)],
    "write ends early": [write("FIRST", 0, M, length=2 * MTU + 1, ack=0), write("LAST", 1, M)],
    "write goes on too long": [write("FIRST", 0, M, length=2 * MTU, ack=0), write("MIDDLE", 1, M, ack=0), write("LAST", 2, b"x")],
    "unaligned atomic": [fetch_add(0, 4, 1)],
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_requests(make, name):
    with bench(make) as b:
        found = b.exchange(*WRONG[name])
        (psn, syndrome, msn), = acks(found)
        assert syndrome == NAK_INVALID and msn == 0 and 0 <= psn < len(WRONG[name])
        dead(b, "remote_invalid")


def test_a_send_beyond_its_receive(make):
    """Linux says NAK 0x63, remote operational error; this card says what InfiniBand wants of an invalid request."""
    with bench(make, length=MTU + 9) as b:
        assert acks(b.exchange(send("FIRST", 0, M, ack=0), send("LAST", 1, data(9)))) == [(1, ACK, 1)]
        assert acks(b.exchange(send("FIRST", 2, M, ack=0), send("LAST", 3, data(10)))) == [(3, NAK_INVALID, 1)]
        dead(b, "remote_invalid", before=1)
        assert b.node.load(2048 + MTU + 9, 1) == b"\0"


@dataclass
class Refused:
    frames: list
    regions: list = field(default_factory=list)


ACCESS = {
    "unknown key": Refused([write("ONLY", 0, b"1234", key=0x999)]),
    "another domain": Refused([write("ONLY", 0, b"1234", key=0x20)], [("local_write", "remote_write"), PD + 1]),
    "no remote write": Refused([write("ONLY", 0, b"1234", key=0x20)], [("local_write", "remote_read"), PD]),
    "no remote read": Refused([read(0, 0, 4, key=0x20)], [("remote_write",), PD]),
    "no atomics": Refused([fetch_add(0, 0, 1, key=0x20)], [("remote_write", "remote_read"), PD]),
    "below": Refused([write("ONLY", 0, b"1234", at=-1)]),
    "beyond": Refused([write("ONLY", 0, b"1234", at=SIZE - 3)]),
    "read beyond": Refused([read(0, SIZE - 99, 100)]),
    "atomic beyond": Refused([fetch_add(0, SIZE, 1)]),
    "write that ends beyond": Refused([write("FIRST", 0, M, at=SIZE - 300, length=301, ack=0), write("LAST", 1, data(45))]),
}


@pytest.mark.parametrize("name", ACCESS)
def test_access_is_refused(make, name):
    case = ACCESS[name]
    with bench(make) as b:
        if case.regions:
            b.node.region(0x20, VA, 4096, case.regions[0], pd=case.regions[1], delta=b.node.base - VA)
        found = acks(b.exchange(*case.frames))
        assert len(found) == 1 and found[0][1] == NAK_ACCESS
        dead(b, "remote_access")
        assert not b.dev.faults
        assert b.node.load(0, 64) == bytes(64)


def test_nothing_is_looked_up_for_no_bytes(make):
    with bench(make) as b:
        assert acks(b.exchange(write("ONLY", 0, key=0x999))) == [(0, ACK, 1)]
        answer, = b.exchange(read(1, 0, 0, key=0x999))
        assert answer.name == "READ_RESP_ONLY" and answer.payload == b""


def test_a_dead_queue_pair_is_flushed_and_lives_again(make):
    with bench(make) as b:
        b.exchange(send("ONLY", 0, b"ok"), send("LAST", 1, b"wrong"))
        b.node.post_send(QPN, "write", 0, 64)
        b.settle(), b.poll()
        assert b.node.outcomes(QPN) == []
        b.node.flush(QPN)
        b.settle(), b.poll()
        assert b.node.outcomes(QPN, "receive") == [(0, "success", "complete")] + [(i, "error", "flushed") for i in (1, 2, 3)]
        assert b.node.outcomes(QPN) == [(0, "error", "flushed")]
        b.node.qp(QPN, peer_qpn=9, mtu=MTU, expected=PSN + 50)
        b.node.post_receive(QPN, 0)
        b.settle()
        b.sent()
        assert acks(b.exchange(send("ONLY", 50, b"new"))) == [(50, ACK, 1)]
        b.poll()
        assert b.node.outcomes(QPN, "receive")[-1] == (0, "success", "complete") and b.node.load(0, 3) == b"new"


def test_congestion_is_told(make):
    with bench(make) as b:
        found = b.exchange(write("ONLY", 0, b"x" * 64, tos=3))
        assert sorted(p.name for p in found) == ["ACK", "CNP"]
        notice, = (p for p in found if p.name == "CNP")
        assert notice.qpn == 9 and notice.becn and notice.tclass == 48 << 2
        b.exchange(cnp(QPN))
        assert b.node.counter("cnp_received") == 1


def test_refusals_are_logged(make):
    with bench(make) as b:
        b.node.cq(2, 16)
        b.node.write("REFUSAL_LOG", 1 << 31 | 2)
        b.exchange(send("ONLY", 0, b"a", src="10.0.0.77"), send("ONLY", 0, b"a"), send("ONLY", 5, b"b"))
        b.poll()
        assert [(d.opcode, d.qpn, d.imm) for d in b.node.done[2]] == [("refusal", QPN, REASON[r]) for r in ("source", "psn")]
