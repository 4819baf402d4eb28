"""What the card does with its own requests: the test is the peer, and acknowledges what it likes."""

import pytest

from sim.frames import LOCAL
from sim.rc_rig import KEY, VA, Bench
from sim.rc_frames import ACK, NAK_ACCESS, NAK_INVALID, NAK_OPERATION, NAK_SEQUENCE, ack, covered_part, response

QPN, PSN, MTU = 5, 0x2000, 256
RNR_US = {1: 10, 2: 20, 6: 80, 8: 160}      # by timer code


def bench(make, **options):
    b = Bench(make, qpn=QPN, peer_qpn=9, mtu=MTU, **{"psn": PSN, **options})
    b.node.store(0, data(16384))
    return b


def data(n, seed=1):
    return bytes((i * 7 + seed * 31 + (i >> 8)) & 0xFF for i in range(n))


def psns(packets):
    return [p.psn - PSN for p in packets]


def acknowledge(b, n, syndrome=ACK, msn=0):
    """Of first PSN + n; returns what the card sends then."""
    return b.exchange(ack(QPN, PSN + n, syndrome, msn))


def answer(b, name, n, payload=b"", **more):
    return b.exchange(response(name, QPN, PSN + n, payload, **more))


def post(b, count=1, op="write", length=64, **more):
    for _ in range(count):
        b.node.post_send(QPN, op, 0, length, doorbell=False, **more)
    b.node.ring(QPN)
    b.settle()
    return b.sent()


def outcomes(b):
    b.poll()
    return b.node.outcomes(QPN)


def good(count):
    return [(i, "success", "complete") for i in range(count)]


# -- window and acknowledges ------------------------------------------------------------------------------

@pytest.mark.parametrize("window", [0, 1, 4, 16])
def test_so_many_may_be_unacknowledged(make, window):
    with bench(make, window=window) as b:
        room = window or 16
        assert psns(post(b, 24)) == list(range(room))
        assert outcomes(b) == []
        assert psns(acknowledge(b, 0)) == [room]
        assert outcomes(b) == good(1)
        assert psns(acknowledge(b, room - 1)) == list(range(room + 1, min(24, 2 * room)))
        assert outcomes(b) == good(room)


def test_one_acknowledge_completes_a_run(make):
    with bench(make) as b:
        post(b, 10)
        acknowledge(b, 6, msn=7)
        assert outcomes(b) == good(7) and b.node.runs == [(QPN, "send", 7)]
        acknowledge(b, 9, msn=10)
        assert outcomes(b) == good(10) and b.node.runs == [(QPN, "send", 7), (QPN, "send", 3)]


def test_acknowledges_without_meaning(make):
    """Of what was never sent, and of what was acknowledged before."""
    with bench(make) as b:
        post(b, 4)
        assert acknowledge(b, 4) == acknowledge(b, 1000) == acknowledge(b, 4, NAK_SEQUENCE) == acknowledge(b, 5, NAK_ACCESS) == []
        assert outcomes(b) == []
        acknowledge(b, 2)
        assert acknowledge(b, 1) == acknowledge(b, 1, NAK_SEQUENCE) == acknowledge(b, 0, 0x20 | 1) == acknowledge(b, -1) == []
        assert outcomes(b) == good(3)
        acknowledge(b, 3)
        assert outcomes(b) == good(4)


def test_an_acknowledge_inside_a_message(make):
    with bench(make, psn=PSN) as b:
        frames = post(b, 1, "send", 70 * MTU)
        assert [p.psn - PSN for p in frames if p.ack_req] == [63, 69]      # PSN 63 modulo 64, and the last
        assert acknowledge(b, 63) == [] and outcomes(b) == []
        again = acknowledge(b, 66, NAK_SEQUENCE)
        assert psns(again) == [66, 67, 68, 69] and [p.name for p in again] == ["SEND_MIDDLE"] * 3 + ["SEND_LAST"]
        acknowledge(b, 69)
        assert outcomes(b) == good(1)


def test_unsignaled_requests_complete_too(make):
    with bench(make) as b:
        post(b, 3, signaled=0)
        acknowledge(b, 2)
        assert outcomes(b) == good(3)


# -- going back -------------------------------------------------------------------------------------------

def test_go_back_into_a_message(make):
    """Field case 17: at each packet of messages around multiples of the MTU."""
    with bench(make) as b:
        sizes = [MTU - 1, MTU, MTU + 1, 2 * MTU - 1, 2 * MTU, 2 * MTU + 1, 3 * MTU - 1, 3 * MTU, 3 * MTU + 1]
        for i, size in enumerate(sizes):
            b.node.post_send(QPN, "write" if i % 2 else "send", 100 * i, size, remote=4096 * i, doorbell=False)
        b.node.ring(QPN)
        b.settle()
        first = b.sent()
        total = sum(-(-size // MTU) for size in sizes)
        assert psns(first) == list(range(total))
        for n in range(total):
            again = acknowledge(b, n, NAK_SEQUENCE)
            assert psns(again) == list(range(n, total))
            assert [covered_part(p.frame) for p in again] == [covered_part(p.frame) for p in first[n:]]
        acknowledge(b, total - 1)
        assert outcomes(b) == good(len(sizes))
        assert b.node.counter("go_backs") == total


def test_what_was_sent_before_can_be_acknowledged_after_going_back(make):
    with bench(make) as b:
        post(b, 8)
        b.send(ack(QPN, PSN + 1, NAK_SEQUENCE), ack(QPN, PSN + 7))
        b.settle()
        assert outcomes(b) == good(8)
        b.sent()
        assert psns(post(b, 1)) == [8]
        acknowledge(b, 8)
        assert outcomes(b) == good(9)


def test_timeout(make):
    """Not before its time, and not much later than four times that; then everything from the first unacknowledged on."""
    code = 4
    span = 4096 << code
    with bench(make, timeout=code) as b:
        assert psns(post(b, 3)) == [0, 1, 2]
        b.run_ns(span * 0.9)
        assert b.sent() == []
        acknowledge(b, 0)                   # progress: the time begins anew
        b.run_ns(span * 0.8)
        assert b.sent() == []
        b.run_ns(span * 3.2), b.settle()
        assert set(psns(b.sent())) == {1, 2}
        assert b.node.counter("ack_timeouts") >= 1
        acknowledge(b, 2)
        b.run_ns(span * 5), b.settle()
        assert b.sent() == [] and outcomes(b) == good(3)


@pytest.mark.parametrize("retry", [0, 1, 3, 7])
def test_retries_run_out(make, retry):
    """Field case 18: the request is sent `retry` times again, then it has failed, and the QP with it."""
    with bench(make, timeout=3, retry=retry) as b:
        post(b, 1)
        acknowledge(b, 0)
        sent = len(post(b, 2))
        for _ in range(4 * (retry + 2)):
            b.run_ns(4096 << 3), b.settle()
            sent += len(b.sent())
        assert sent == 2 * (retry + 1)
        assert outcomes(b) == good(1) + [(1, "fatal", "retry")]
        assert post(b, 1) == [] and acknowledge(b, 2) == []
        b.node.flush(QPN)
        b.settle()
        assert outcomes(b) == good(1) + [(1, "fatal", "retry"), (2, "error", "flushed"), (3, "error", "flushed")]


def test_progress_gives_the_retries_back(make):
    with bench(make, retry=1) as b:
        post(b, 6)
        for n in range(5):
            assert psns(acknowledge(b, n, NAK_SEQUENCE)) == list(range(n, 6))
        assert outcomes(b) == good(4)
        assert acknowledge(b, 4, NAK_SEQUENCE) == []        # a second time at the same place
        assert outcomes(b) == good(4) + [(4, "fatal", "retry")]


# -- READ and atomics --------------------------------------------------------------------------------------

def test_read(make):
    with bench(make) as b:
        first, = post(b, 1, "read", 2 * MTU + 5, result=0x8003, remote=0x70)
        assert first.reth == (VA + 0x70, KEY, 2 * MTU + 5)
        assert psns(post(b, 1)) == [3]          # a READ takes the PSNs of its answer
        answer(b, "READ_RESP_FIRST", 0, data(MTU)), answer(b, "READ_RESP_MIDDLE", 1, data(MTU, 2))
        assert outcomes(b) == []
        answer(b, "READ_RESP_LAST", 2, data(5, 3))
        assert outcomes(b) == good(1)
        assert b.node.load(0x8003, 2 * MTU + 5) == data(MTU) + data(MTU, 2) + data(5, 3)
        acknowledge(b, 3)
        assert outcomes(b) == good(2)


def test_each_read_has_its_entry(make):
    """The n-th of READs and atomics takes entry n of their ring, whatever else is posted, and over the ring's end."""
    with bench(make) as b:
        psn = 0
        for n in range(80):
            post(b, 1, "write")
            request, = post(b, 1, "fetch_add" if n % 3 == 0 else "read", 8, result=0x8000 + 16 * n, operands=(n, 0))
            psn += 2
            if n % 3 == 0:
                assert request.atomic == (VA, KEY, n, 0)
                answer(b, "ATOMIC_ACK", psn - 1, original=n)
            else:
                answer(b, "READ_RESP_ONLY", psn - 1, n.to_bytes(8, "big"))
            assert outcomes(b) == good(2 * n + 2)
            assert b.node.load(0x8000 + 16 * n, 16) == n.to_bytes(8, "big") + bytes(8)
        assert b.node.runs == [(QPN, "send", 2)] * 80       # the answer acknowledges the WRITE before


def test_an_acknowledge_beyond_a_read_asks_for_it_again(make):
    with bench(make) as b:
        for op, length in (("write", 64), ("read", 600), ("write", 64), ("fetch_add", 8), ("send", 64)):
            b.node.post_send(QPN, op, 0, length, result=0x8000, doorbell=False)
        b.node.ring(QPN)
        b.settle()
        assert psns(b.sent()) == [0, 1, 4, 5, 6]
        again = acknowledge(b, 4)
        assert outcomes(b) == good(1)           # what is before the READ is acknowledged
        assert psns(again) == [1, 4, 5, 6]
        answer(b, "READ_RESP_FIRST", 1, data(MTU))
        again = answer(b, "READ_RESP_LAST", 3, data(88, 3))         # one is missing: the rest of the READ
        assert psns(again) == [2, 4, 5, 6] and again[0].reth == (VA + MTU, KEY, 600 - MTU)
        answer(b, "READ_RESP_MIDDLE", 2, data(MTU, 2))              # some peers go on where they were, others begin with FIRST
        answer(b, "READ_RESP_LAST", 3, data(88, 3))
        assert outcomes(b) == good(2) and b.node.load(0x8000, 600) == data(MTU) + data(MTU, 2) + data(88, 3)
        again = acknowledge(b, 6)
        assert psns(again) == [5, 6] and outcomes(b) == good(3)
        answer(b, "ATOMIC_ACK", 5, original=0x0123456789ABCDEF)
        acknowledge(b, 6)
        assert outcomes(b) == good(5) and b.node.load(0x8000, 8) == bytes.fromhex("0123456789abcdef")


def test_a_lost_response_is_asked_for_once(make):
    """All that comes behind it says so; that is one going back, or the retries would be gone."""
    with bench(make, retry=2) as b:
        post(b, 1, "read", 20 * MTU, result=0x8000)
        b.send(*(response("READ_RESP_FIRST" if n == 0 else "READ_RESP_LAST" if n == 19 else "READ_RESP_MIDDLE", QPN, PSN + n,
                          data(MTU, n)) for n in range(20) if n != 3))
        b.settle()
        again = b.sent()
        assert psns(again) == [3] and again[0].reth == (VA + 3 * MTU, KEY, 17 * MTU)
        b.send(*(response("READ_RESP_FIRST" if n == 3 else "READ_RESP_LAST" if n == 19 else "READ_RESP_MIDDLE", QPN, PSN + n,
                          data(MTU, n)) for n in range(3, 20)))
        b.settle()
        assert outcomes(b) == good(1)
        assert b.node.load(0x8000, 20 * MTU) == b"".join(data(MTU, n) for n in range(20))


def test_a_read_is_resumed_after_a_timeout(make):
    with bench(make, timeout=4) as b:
        post(b, 1, "read", 3 * MTU, result=0x8000)
        answer(b, "READ_RESP_FIRST", 0, data(MTU))
        b.run_ns(4 * (4096 << 4)), b.settle()
        again = b.sent()
        assert again and {(p.psn - PSN, p.reth) for p in again} == {(1, (VA + MTU, KEY, 2 * MTU))}
        answer(b, "READ_RESP_FIRST", 1, data(MTU, 2)), answer(b, "READ_RESP_LAST", 2, data(MTU, 3))
        assert outcomes(b) == good(1)
        assert b.node.load(0x8000, 3 * MTU) == data(MTU) + data(MTU, 2) + data(MTU, 3)


def test_responses_without_meaning(make):
    with bench(make) as b:
        post(b, 1, "write")
        post(b, 1, "read", MTU + 1, result=0x8000)
        for name, n, payload in (("READ_RESP_ONLY", 0, b"x"), ("READ_RESP_ONLY", 3, b"x"), ("READ_RESP_ONLY", -1, b"x")):
            assert answer(b, name, n, payload) == []
        assert b.node.load(0x8000, 16) == bytes(16) and outcomes(b) == []
        answer(b, "READ_RESP_FIRST", 1, data(MTU)), answer(b, "READ_RESP_LAST", 2, b"z")
        assert outcomes(b) == good(2)
        answer(b, "READ_RESP_LAST", 2, b"y")
        assert b.node.load(0x8000, MTU + 2) == data(MTU) + b"z\0"


# -- not ready --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("code", [2, 6])
def test_it_waits_as_long_as_it_is_told(make, code):
    with bench(make) as b:
        post(b, 3, "send")
        acknowledge(b, 1, 0x20 | code)
        assert outcomes(b) == good(1) and b.sent() == []
        assert post(b, 1, "send") == []             # nothing else goes out meanwhile
        b.run_ns(RNR_US[code] * 1000 * 0.5)
        assert b.sent() == []
        b.run_ns(RNR_US[code] * 1000 * 2), b.settle()
        assert psns(b.sent()) == [1, 2, 3]
        acknowledge(b, 3)
        assert outcomes(b) == good(4)
        assert b.node.counter("rnr_waits") == 1


def not_ready(b, times, code=1):
    """The peer isn't, so many times; whether the request came again each time."""
    for _ in range(times):
        acknowledge(b, 0, 0x20 | code)
        b.run_ns(RNR_US[code] * 3000), b.settle()
        if not b.sent():
            return False
    return True


@pytest.mark.parametrize("rnr_retry", [0, 1, 6])
def test_rnr_retries_run_out(make, rnr_retry):
    with bench(make, rnr_retry=rnr_retry, retry=0) as b:        # the other counter has nothing to do with it
        post(b, 1, "send")
        assert not_ready(b, rnr_retry)
        assert outcomes(b) == []
        assert not not_ready(b, 1)
        assert outcomes(b) == [(0, "fatal", "rnr_retry")]


def test_seven_is_for_ever(make):
    with bench(make, rnr_retry=7) as b:
        post(b, 1, "send")
        assert not_ready(b, 20)
        acknowledge(b, 0)
        assert outcomes(b) == good(1)


def test_not_ready_inside_a_retry(make):
    """Field case 18."""
    with bench(make, rnr_retry=2, retry=7, timeout=4) as b:
        post(b, 2, "send")
        b.run_ns(4 * (4096 << 4)), b.settle()
        assert len(b.sent()) >= 2                   # a timeout or some more
        acknowledge(b, 0, 0x20 | 1)
        b.run_ns(20_000), b.settle()
        assert psns(b.sent())[:2] == [0, 1]
        acknowledge(b, 0)                           # progress: both counters begin anew
        for _ in range(2):
            acknowledge(b, 1, 0x20 | 1)
            b.run_ns(20_000), b.settle()
            assert psns(b.sent())[:1] == [1]
        acknowledge(b, 1)
        b.run_ns(400_000)
        assert outcomes(b) == good(2)


# -- what ends the QP -------------------------------------------------------------------------------------

@pytest.mark.parametrize("syndrome, cause", [(NAK_INVALID, "remote_invalid"), (NAK_ACCESS, "remote_access"),
                                             (NAK_OPERATION, "remote_operation")])
def test_refused_by_the_peer(make, syndrome, cause):
    with bench(make) as b:
        for length in (64, 3 * MTU, 64):
            b.node.post_send(QPN, "write", 0, length, doorbell=False)
        b.node.ring(QPN)
        b.settle()
        b.sent()
        assert acknowledge(b, 2, syndrome) == []        # a packet of the second request
        assert outcomes(b) == good(1) + [(1, "fatal", cause)]
        assert acknowledge(b, 4) == [] and post(b) == []
        b.node.flush(QPN)
        b.settle()
        assert outcomes(b) == good(1) + [(1, "fatal", cause), (2, "error", "flushed"), (3, "error", "flushed")]


@pytest.mark.parametrize("what, cause", [("key", "protection"), ("bounds", "protection"), ("bus", "bus")])
def test_a_payload_that_is_not_there(make, what, cause):
    with bench(make) as b:
        if what == "bus":
            b.node.region(0x55, VA, 4096, delta=(1 << 60) - VA)
        post(b, 2)
        b.node.post_send(QPN, "write", 1 << 18 if what == "bounds" else 0, 64, lkey={"key": 0x99, "bus": 0x55}.get(what, KEY))
        b.node.post_send(QPN, "write", 0, 64)
        b.settle()
        assert psns(b.sent()) in ([], [3])      # the one behind it may have gone before; to the peer its PSN is too high
        acknowledge(b, 1)
        assert outcomes(b) == good(2) + [(2, "fatal", cause)]
        assert b.sent() == []


def test_a_result_that_has_no_place(make):
    with bench(make) as b:
        b.node.region(0x44, VA, 4096, ("remote_read",), delta=b.node.base - VA)
        post(b, 1)
        post(b, 1, "read", 100, result=0x8000, lkey=0x44)
        answer(b, "READ_RESP_ONLY", 1, data(100))
        assert outcomes(b) == good(1) + [(1, "fatal", "protection")]
        assert b.node.load(0x8000, 100) == bytes(100)


def test_flush_ends_what_is_uncompleted(make):
    with bench(make, timeout=3) as b:
        post(b, 20)
        acknowledge(b, 4)
        b.node.flush(QPN)
        b.settle()
        assert outcomes(b) == good(5) + [(i, "error", "flushed") for i in range(5, 20)]
        b.sent()
        b.run_ns(10 * (4096 << 3)), b.settle()
        assert b.sent() == []


def test_zero_latency(make):
    """Field case 14: the card's own frames come back to it at once, QP 5 and QP 6 are each other's peers."""
    b = Bench(make, qpn=5, peer_qpn=6, mtu=MTU, psn=7, expected=9, timeout=6, node=dict(remote=LOCAL))
    with b:
        b.node.qp(6, peer_qpn=5, mtu=MTU, psn=9, expected=7, timeout=6)
        b.node.store(0, data(4096))
        for i in range(8):
            b.node.post_receive(6, 0x10000 + 1024 * i, 1024)
        for i in range(8):
            b.node.post_send(5, "send", i, 500, doorbell=False)
            b.node.post_send(5, "read", 0, 700, remote=i, result=0x20000 + 1024 * i, doorbell=False)
            b.node.post_send(5, "fetch_add", operands=(1, 0), remote=0x30000, result=0x38000 + 8 * i, doorbell=False)
        b.node.ring(5)
        for _ in range(30_000):
            b.dev.run(4)
            for frame in b.dev.sent_frames():
                b.dev.send(frame.frame)
            if b.node.qps[5]["send"] == 24:
                break
            b.poll()
        assert b.node.outcomes(5) == good(24)
        assert len(b.node.outcomes(6, "receive")) == 8 and not b.node.events(6)
        for i in range(8):
            assert b.node.load(0x10000 + 1024 * i, 500) == data(4096)[i:i + 500]
            assert b.node.load(0x20000 + 1024 * i, 700) == data(4096)[i:i + 700]
            assert b.node.load(0x38000 + 8 * i, 8) == i.to_bytes(8, "big")
        assert b.node.load(0x30000, 8) == (8).to_bytes(8, "little")
        assert b.node.counter("go_backs") == 0 or b.node.counter("drop_overflow")      # there may be no room for so many READs
