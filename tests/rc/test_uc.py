"""UC messages of several packets: a gap ends the message, the next FIRST or ONLY begins another one in the same receive."""

import pytest

from sim.rc_rig import KEY, VA, Bench
from sim.rc_frames import request

QPN, PSN, MTU = 5, 0xFFFFFE, 256         # numbers wrap on the way


def bench(make, receives=4, length=2048, **options):
    b = Bench(make, qpn=QPN, peer_qpn=9, mtu=MTU, type="uc", **{"expected": PSN, **options})
    for i in range(receives):
        b.node.post_receive(QPN, 2048 * i, length)
    return b


def data(n, seed=1):
    return bytes((i * 7 + seed * 31 + (i >> 8)) & 0xFF for i in range(n))


def message(first_psn, payload, kind="SEND", at=0, imm=None):
    """The frames of a message."""
    count = max(1, -(-len(payload) // MTU))
    frames = []
    for i in range(count):
        place = "ONLY" if count == 1 else "FIRST" if i == 0 else "LAST" if i == count - 1 else "MIDDLE"
        end = i == count - 1 and imm is not None
        frames.append(request(f"UC_{kind}_{place}" + "_IMM" * end, QPN, first_psn + i, payload[i * MTU:(i + 1) * MTU], ack=0,
                              reth=(VA + at, KEY, len(payload)) if kind == "WRITE" and i == 0 else None, imm=imm if end else None))
    return frames


def received(b):
    b.poll()
    return [(d.index, d.opcode, d.status, d.byte_len) for d in b.node.done[0]]


def test_whole_messages(make):
    with bench(make) as b:
        sizes, psn, frames = (0, 1, MTU, MTU + 1), PSN, []
        for i, size in enumerate(sizes):
            m = message(psn, data(size, i))
            frames += m
            psn += len(m)
        assert b.exchange(*frames) == []
        assert received(b) == [(i, "send", "success", size) for i, size in enumerate(sizes)]
        for i, size in enumerate(sizes):
            assert b.node.load(2048 * i, size) == data(size, i)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_gap_drops_the_rest(make, lost):
    with bench(make) as b:
        first, second = message(PSN, data(4 * MTU)), message(PSN + 4, data(2 * MTU, 2), imm=5)
        del first[lost]
        b.exchange(*first, *second)
        assert received(b) == [(0, "send_imm", "success", 2 * MTU)]         # the receive of the first one is used again
        assert b.node.load(0, 2 * MTU) == data(2 * MTU, 2)
        b.exchange(*message(PSN + 6, b"only"))
        assert received(b)[1:] == [(1, "send", "success", 4)]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_gap_in_a_write(make, lost):
    with bench(make) as b:
        first = message(PSN, data(3 * MTU), "WRITE", 0x8000, imm=1)
        second = message(PSN + 3, data(MTU + 5, 2), "WRITE", 0x9000, imm=2)
        del first[lost]
        b.exchange(*first, *second)
        b.poll()
        assert [(d.index, d.opcode, d.imm, d.byte_len) for d in b.node.done[0]] == [(0, "write_imm", 2, MTU + 5)]
        assert b.node.load(0x9000, MTU + 5) == data(MTU + 5, 2)
        assert b.node.load(0x8000 + lost * MTU, (3 - lost) * MTU) == bytes((3 - lost) * MTU)


def test_out_of_order_ends_the_message(make):
    with bench(make) as b:
        m = message(PSN, data(4 * MTU))
        b.exchange(m[0], m[2], m[1], m[3])
        assert received(b) == []
        b.exchange(*message(PSN + 4, data(MTU + 1, 2)))
        assert received(b) == [(0, "send", "success", MTU + 1)]


def test_a_message_can_begin_anywhere(make):
    """Lost ONLYs, and a sender that begins with another number than was expected."""
    with bench(make) as b:
        b.exchange(*message(PSN + 1000, data(MTU + 7)), *message(PSN - 40, b"older"))
        assert received(b) == [(0, "send", "success", MTU + 7), (1, "send", "success", 5)]


def test_no_receive_drops_the_message(make):
    with bench(make, receives=0) as b:
        m = message(PSN, data(3 * MTU))
        assert b.exchange(m[0]) == []
        b.node.post_receive(QPN, 0, 2048)
        b.settle()
        b.exchange(*m[1:], *message(PSN + 3, data(300, 2)))
        assert received(b) == [(0, "send", "success", 300)] and b.node.load(0, 300) == data(300, 2)


@pytest.mark.parametrize("wrong", ["short first", "short middle", "empty last", "too long for the receive", "other length", "key"])
def test_what_is_wrong_is_dropped_and_the_queue_pair_lives(make, wrong):
    with bench(make, length=600) as b:
        def packet(name, n, payload=b"", reth=None):
            return request(f"UC_{name}", QPN, PSN + n, payload, reth=reth, ack=0)
        frames = {
            "short first": [packet("SEND_FIRST", 0, data(MTU - 1)), packet("SEND_LAST", 1, b"x")],
            "short middle": [packet("SEND_FIRST", 0, data(MTU)), packet("SEND_MIDDLE", 1, b"x"), packet("SEND_LAST", 2, b"x")],
            "empty last": [packet("SEND_FIRST", 0, data(MTU)), packet("SEND_LAST", 1)],
            "too long for the receive": message(PSN, data(601)),
            "other length": [packet("WRITE_FIRST", 0, data(MTU), (VA + 0x8000, KEY, MTU + 9)), packet("WRITE_LAST", 1, data(8))],
            "key": [packet("WRITE_ONLY", 0, data(9), (VA + 0x8000, 0x999, 9))],
        }[wrong]
        assert b.exchange(*frames) == []
        # a receive whose memory refused a piece is used up and says so; any other is the next message's
        spoiled = [(0, "send", "error", 0)] if wrong == "too long for the receive" else []
        assert received(b) == spoiled
        b.exchange(*message(PSN + 3, data(600, 2)))
        assert received(b) == [*spoiled, (len(spoiled), "send", "success", 600)]
        assert b.node.load(600 if not spoiled else 2648, 8) == bytes(8) and not b.node.events(QPN)


def test_sending(make):
    """Whatever its length a message goes out at once, and completes when it has."""
    with bench(make, psn=PSN) as b:
        b.node.store(0, data(8000))
        for op, length in (("send", 3 * MTU + 1), ("write_imm", 2 * MTU), ("write", 0), ("send_imm", 1)):
            b.node.post_send(QPN, op, 0, length, imm=9 if "imm" in op else 0, remote=0x500)
        b.settle()
        b.poll()
        found = b.sent()
        assert [p.name for p in found] == ["UC_SEND_FIRST", "UC_SEND_MIDDLE", "UC_SEND_MIDDLE", "UC_SEND_LAST", "UC_WRITE_FIRST",
                                           "UC_WRITE_LAST_IMM", "UC_WRITE_ONLY", "UC_SEND_ONLY_IMM"]
        assert [p.psn for p in found] == [(PSN + i) % (1 << 24) for i in range(8)]
        assert not any(p.ack_req for p in found)
        assert b"".join(p.payload for p in found[:4]) == data(8000)[:3 * MTU + 1]
        assert [o[1] for o in b.node.outcomes(QPN)] == ["success"] * 4


@pytest.mark.parametrize("op", ["read", "fetch_add", "send_inv"])
def test_what_uc_has_not(make, op):
    with bench(make) as b:
        b.node.post_send(QPN, op, 0, 0 if op != "read" else 8)
        b.settle(), b.poll()
        assert b.node.outcomes(QPN) == [(0, "error", "length")] and b.sent() == []
