"""The send half of the control layer, against the card made of Python: rings, accounts, completions."""

import pytest

from host_driver.card import Card, CardError, Completion, QueueFull
from optinic.abi.structs import CAUSE, OPCODE, SEND_WQE, STATUS
from .test_card import CFG, FakeDevice

RING = CFG.sq_entries


@pytest.fixture
def dev():
    return FakeDevice()


@pytest.fixture
def card(dev):
    card = Card(dev, CFG)
    card.set_cq(2, entries=4)
    card.set_cq(3, entries=32)
    card.create_qp(5, cq=2, send_cq=3, peer=1, pd=3, generation=7, mtu=512, peer_qpn=0xABCDE, peer_generation=9, traffic_class=0x6A,
                   paths=16)
    return card


def wqe(card, dev, index, qpn=5):
    raw = dev.read(card.sq_base + (qpn * RING + index % RING) * 64, 64)
    return SEND_WQE.unpack(raw), raw


def done(dev, index, *, status="success", cause="complete", op="send", skipped=0, **fields):
    dev.complete(3, qpn=5, queue=1, wqe_index=index & 0xFFFF, opcode=OPCODE[op], status=STATUS[status], cause=CAUSE[cause],
                 skipped=skipped, **fields)


def test_connection_in_qp_set(card, dev):
    assert dev.commands[-1][:11] == ("qp_set", 5, 2 | 2 << 8 | 7 << 16, 3, 1, 2, 0, 0, 0, 0xABCDE | 9 << 24,
                                     3 | 0x6A << 16 | 4 << 24)
    card.flush_qp(5)
    assert dev.commands[-1][:11] == ("qp_flush", 5, 3 | 2 << 8 | 7 << 16, 3, 1, 2, 0, 0, 0, 0xABCDE | 9 << 24,
                                     3 | 0x6A << 16 | 4 << 24)
    card.create_qp(6, cq=2)
    assert dev.commands[-1][9:11] == (0, 2)      # by default completions of sends go where those of receives go
    for bad, said in ((dict(paths=3), "paths=3"), (dict(paths=256), "paths=256"), (dict(peer_qpn=1 << 24), "24 bits"),
                      (dict(peer_generation=-1), "8 bits"), (dict(traffic_class=256), "8 bits")):
        with pytest.raises(ValueError, match=said):
            card.create_qp(7, **bad)


def test_what_is_in_a_wqe(card, dev):
    assert card.post_send(5, "send", 0x1234, 100, 77, tag=8, wr_id="a", solicited=True) == 0
    assert dev.last("SQ_DOORBELL") == 5 << 16 | 1
    fields, _ = wqe(card, dev, 0)
    assert fields == dict.fromkeys(fields, 0) | dict(opcode=1, signaled=1, solicited=1, tag=8, length=100, va=0x1234, lkey=77)
    card.post_send(5, "write_imm", 1, 2, 3, remote_va=1 << 63, rkey=4, imm=0xCAFE, doorbell=False)
    assert dev.last("SQ_DOORBELL") == 5 << 16 | 1
    fields, _ = wqe(card, dev, 1)
    assert (fields["opcode"], fields["seq"], fields["remote_va"], fields["rkey"], fields["imm"]) == (3, 1, 1 << 63, 4, 0xCAFE)
    card.post_send(5, "write", 1, 2, 3, remote_va=9, rkey=4)
    assert dev.last("SQ_DOORBELL") == 5 << 16 | 3 and wqe(card, dev, 2)[0]["seq"] == 0
    card.post_send(5, "read", length=1 << 31, remote_va=9, rkey=4, seq=17, signaled=False)
    fields, _ = wqe(card, dev, 3)
    assert (fields["opcode"], fields["seq"], fields["length"], fields["va"], fields["signaled"]) == (5, 17, 1 << 31, 0, 0)
    card.post_send(5, "send_imm", inline=b"inline", imm=5)
    fields, raw = wqe(card, dev, 4)
    assert (fields["inline"], fields["length"], fields["seq"]) == (1, 6, 2) and raw[32:] == b"inline" + bytes(26)


def test_deadlines(card, dev):
    dev.regs[0x58], dev.regs[0x5C] = 1000, 3     # TIME
    card.post_send(5, "send", timeout_ns=100)
    fields, _ = wqe(card, dev, 0)
    assert (fields["deadline_set"], fields["deadline"]) == (1, ((3 << 32) + 1100 + 63) // 64)
    card.post_send(5, "send", deadline_ns=64 << 32)
    assert (wqe(card, dev, 1)[0]["deadline_set"], wqe(card, dev, 1)[0]["deadline"]) == (1, 0)
    for bad in (dict(timeout_ns=0), dict(timeout_ns=64 << 31), dict(timeout_ns=1, deadline_ns=1)):
        with pytest.raises(ValueError, match="timeout_ns"):
            card.post_send(5, "send", **bad)


@pytest.mark.parametrize("bad, said", [
    (dict(opcode="atomic"), "opcode='atomic' is not one of send, send_imm, write_imm, write, read"),
    (dict(opcode="send", inline=bytes(33)), "33 bytes inline"), (dict(opcode="read", inline=b"", seq=0), "nothing to inline"),
    (dict(opcode="read"), "needs seq"), (dict(opcode="send", rkey=1), "names no memory at the peer"),
    (dict(opcode="send", imm=1), "use send_imm"), (dict(opcode="write", imm=1), "use write_imm"),
    (dict(opcode="send", length=1 << 32), "length=4294967296 does not fit"), (dict(opcode="send", tag=1 << 16), "tag=65536"),
])
def test_a_wrong_send_changes_nothing(card, dev, bad, said):
    before = dict(dev.memory)
    with pytest.raises(ValueError, match=said):
        card.post_send(5, **bad)
    assert dev.memory == before and card.outstanding(5, "send") == 0
    assert card.post_send(5, "send") == 0 and wqe(card, dev, 0)[0]["seq"] == 0


def test_read_on_uc_and_a_card_without_a_send_half(dev):
    card = Card(dev, CFG)
    card.create_qp(5, type="uc")
    with pytest.raises(ValueError, match="type uc can't READ"):
        card.post_send(5, "read", seq=0)
    card = Card(FakeDevice(SQ_ENTRIES=0), CFG)
    card.create_qp(5)
    with pytest.raises(CardError, match="no send half"):
        card.post_send(5, "send")


def test_completions_of_sends(card, dev):
    for i in range(4):
        card.post_send(5, "send", wr_id=i)
    done(dev, 0, byte_len=10, msg_len=10, time=5)
    done(dev, 1, status="partial", cause="timeout", byte_len=3, msg_len=10)
    done(dev, 2, status="error", cause="protection", msg_len=10)
    assert card.poll(3) == [
        Completion(5, 0, "send", "success", "complete", 10, 10, time_ns=5, queue="send", wr_id=0),
        Completion(5, 1, "send", "partial", "timeout", 3, 10, queue="send", wr_id=1),
        Completion(5, 2, "send", "error", "protection", 0, 10, queue="send", wr_id=2)]
    assert card.outstanding(5, "send") == 1 and card.outstanding(5) == 0


def test_unsignaled_sends_are_done_when_one_behind_them_is(card, dev):
    for i in range(3):
        card.post_send(5, "send", wr_id=i, signaled=False)
    card.post_send(5, "send", wr_id=3)
    assert [wqe(card, dev, i)[0]["signaled"] for i in range(4)] == [0, 0, 0, 1]
    done(dev, 3)
    assert [c.wr_id for c in card.poll(3)] == [3] and card.outstanding(5, "send") == 0
    # one of them that fails has a completion, and accounts for those before it
    for i in range(4, 7):
        card.post_send(5, "send", wr_id=i, signaled=False)
    done(dev, 5, status="error", cause="bus")
    assert [(c.wr_id, c.cause) for c in card.poll(3)] == [(5, "bus")] and card.outstanding(5, "send") == 1


def test_a_signaled_send_is_not_passed_over(card, dev):
    card.post_send(5, "send"), card.post_send(5, "send")
    done(dev, 1)
    with pytest.raises(CardError, match="completion of send 1, where 0 was due"):
        card.poll(3)


def test_flushed_sends_are_one_cqe(card, dev):
    for i in range(6):
        card.post_send(5, "send", wr_id=i, signaled=i == 5)
    done(dev, 5, status="error", cause="flushed", skipped=3)        # 0 and 1 went out
    assert [(c.wr_id, c.index, c.status, c.cause) for c in card.poll(3)] == [(i, i, "error", "flushed") for i in range(2, 6)]
    assert card.outstanding(5, "send") == 0


def test_a_full_ring_loses_nothing(card, dev):
    for i in range(RING):
        card.post_send(5, "send", wr_id=i)
    before = dict(dev.memory)
    with pytest.raises(QueueFull, match="QP 0x5 has 16 uncompleted sends"):
        card.post_send(5, "send")
    assert dev.memory == before and dev.last("SQ_DOORBELL") == 5 << 16 | RING
    done(dev, 0)
    assert card.post_send(5, "send", wr_id=RING) == RING        # what it found on the way is kept
    assert [c.wr_id for c in card.poll(3)] == [0]
    assert wqe(card, dev, RING)[0]["seq"] == RING


def test_unsignaled_sends_never_clog_the_ring(card, dev):
    """The driver asks for a completion now and then, and keeps it to itself."""
    sends, first = card._qp(5).sends, (1 << 16) - 50
    sends.posted = sends.completed = sends.announced = first        # soon over the end of the 16 bits that a CQE has
    produced, total = first - 1, first + 200
    for i in range(first, total):
        card.post_send(5, "write", signaled=False, wr_id=i)
        if wqe(card, dev, i)[0]["signaled"] and i - produced > RING // 2:
            done(dev, i, op="write")
            produced = i
    assert card.poll(3) == [] and sends.completed > total - RING
    card.post_send(5, "write", wr_id="last")
    done(dev, total, op="write")
    assert [(c.wr_id, c.index) for c in card.poll(3)] == [("last", total)]


def test_a_new_life_keeps_the_completions_of_sends(card, dev):
    card.post_send(5, "send", wr_id="old")
    card.post_send(5, "send", wr_id="forgotten")
    done(dev, 0)
    card.create_qp(5, cq=2, send_cq=3)
    assert card.post_send(5, "send", wr_id="new") == 0 and wqe(card, dev, 0)[0]["seq"] == 0
    done(dev, 0)
    assert [c.wr_id for c in card.poll(3)] == ["old", "new"]


def test_both_queues_of_a_qp_in_one_cq(card, dev):
    card.create_qp(6, cq=3)
    card.post_receive(6, 0, 8, 1, wr_id="r")
    card.post_send(6, "send", wr_id="s")
    dev.complete(3, qpn=6, queue=1, wqe_index=0, opcode=1)
    dev.complete(3, qpn=6, queue=0, wqe_index=0, opcode=1)
    assert [(c.queue, c.wr_id) for c in card.poll(3)] == [("send", "s"), ("receive", "r")]


@pytest.mark.parametrize("live", [True, False])
def test_memory_that_changes_while_it_is_read(card, dev, live):
    """The card writes a CQE while the driver copies it: of the last lap's in front, and the new phase bit at the end."""
    for i in range(33):
        card.post_send(5, "send", wr_id=i)
        if i < 32:
            done(dev, i, byte_len=i)
            assert [c.byte_len for c in card.poll(3)] == [i]
    dev.live_memory, read = live, dev.read

    def tearing(addr, n):
        dev.read, old = read, read(addr, n)
        done(dev, 32, byte_len=123)
        return old[:31] + read(addr, n)[31:]
    dev.read = tearing
    if live:
        assert [(c.wr_id, c.byte_len) for c in card.poll(3)] == [(32, 123)]
    else:
        with pytest.raises(CardError, match="completion of send 0"):      # what it guards from
            card.poll(3)


def test_rates(card, dev):
    card.set_rate(5, 0.08)
    assert dev.commands[-1][:3] == ("rate_set", 5, 5243)
    with pytest.raises(ValueError, match="ns_per_byte"):
        card.set_rate(5, 65536)
