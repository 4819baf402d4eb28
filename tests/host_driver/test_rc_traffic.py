"""Reliable messages, READs and atomics between two cards of transport rc through the verbs-like API."""

import pytest

from host_driver.verbs import *
from .conftest import add_qp, connect, make_end
from .test_verbs_traffic import ends_of, one

US = 1000
READ, CAS, FADD = IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD


def number_at(mr, offset):
    return int.from_bytes(mr.read(8, offset), "little")


def atomic(wr_id, opcode, a, b, at, to, compare_add, swap=0, **more):
    """An atomic on b's memory at `at` whose result goes to `to` in a's."""
    wr = SendWR(wr_id, opcode, sg=[a.mr.sge(to, 8)], **more)
    wr.set_wr_atomic(b.mr.rkey, b.mr.addr + at, compare_add, swap)
    return wr


@pytest.mark.parametrize("size", [0, 1, 31, 1024, 1025, 5000])
def test_every_kind_and_length(rc_pair, rng, size):
    """All in order: what was asked for comes in the order of posting, whatever it is."""
    a, b = rc_pair
    data, theirs = rng.randbytes(size), rng.randbytes(size)
    a.mr.write(data), b.mr.write(theirs, offset=50_000)
    for i in range(3):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(6000 * i, 6000)]))
    sg = [a.mr.sge(0, size)] if size else None
    where = dict(rkey=b.mr.rkey)
    a.qp.post_send(SendWR("send", IBV_WR_SEND, sg=sg))
    a.qp.post_send(SendWR("imm", IBV_WR_SEND_WITH_IMM, imm_data=0xDEADBEEF, sg=sg))
    a.qp.post_send(SendWR("write", IBV_WR_RDMA_WRITE, sg=sg, remote_addr=b.mr.addr + 20_000, **where))
    a.qp.post_send(SendWR("read", READ, sg=[a.mr.sge(30_000, size)], remote_addr=b.mr.addr + 50_000, **where))
    a.qp.post_send(SendWR("write imm", IBV_WR_RDMA_WRITE_WITH_IMM, imm_data=7, sg=sg, remote_addr=b.mr.addr + 40_000, **where))
    sent, received = a.scq.wait(5), b.rcq.wait(3)
    assert ends_of(sent) == [
        ("send", IBV_WC_SUCCESS, IBV_WC_SEND, size), ("imm", IBV_WC_SUCCESS, IBV_WC_SEND, size),
        ("write", IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, size), ("read", IBV_WC_SUCCESS, IBV_WC_RDMA_READ, size),
        ("write imm", IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, size)]
    assert ends_of(received) == [
        (0, IBV_WC_SUCCESS, IBV_WC_RECV, size), (1, IBV_WC_SUCCESS, IBV_WC_RECV, size),
        (2, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, size)]
    assert [(wc.wc_flags, wc.imm_data, wc.msg_len) for wc in received] == [
        (0, 0, size), (IBV_WC_WITH_IMM, 0xDEADBEEF, size), (IBV_WC_WITH_IMM, 7, size)]
    assert all(b.mr.read(size, at) == data for at in (0, 6000, 20_000, 40_000)) and a.mr.read(size, 30_000) == theirs
    assert b.mr.read(6000 - size, size) == bytes(6000 - size)


def test_inline_and_solicited(rc_pair):
    a, b = rc_pair
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 64)], next_wr=RecvWR(1, sg=[b.mr.sge(64, 64)])))
    a.mr.write(b"from memory")
    a.qp.post_send(SendWR(0, inline_data=b"no memory at all", send_flags=IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
                          next_wr=SendWR(1, send_flags=IBV_SEND_INLINE | IBV_SEND_SIGNALED, sg=[a.mr.sge(0, 11)])))
    assert [wc.byte_len for wc in b.rcq.wait(2)] == [16, 11] == [wc.byte_len for wc in a.scq.wait(2)]
    assert b.mr.read(16) == b"no memory at all" and b.mr.read(11, 64) == b"from memory"


def test_atomics(rc_pair):
    """What was there comes as a number of the host's byte order, and what is there is one too."""
    a, b = rc_pair
    b.mr.write((0x0102030405060708).to_bytes(8, "little"), offset=512)
    a.qp.post_send(atomic("add", FADD, a, b, 512, 0, 5))
    a.qp.post_send(atomic("miss", CAS, a, b, 512, 8, 99, 1))
    a.qp.post_send(atomic("swap", CAS, a, b, 512, 16, 0x010203040506070D, (1 << 64) - 1))
    a.qp.post_send(atomic("wrap", FADD, a, b, 512, 24, 3))
    found = a.scq.wait(4)
    assert ends_of(found) == [("add", IBV_WC_SUCCESS, IBV_WC_FETCH_ADD, 8), ("miss", IBV_WC_SUCCESS, IBV_WC_COMP_SWAP, 8),
                              ("swap", IBV_WC_SUCCESS, IBV_WC_COMP_SWAP, 8), ("wrap", IBV_WC_SUCCESS, IBV_WC_FETCH_ADD, 8)]
    assert [number_at(a.mr, 8 * i) for i in range(4)] == [
        0x0102030405060708, 0x010203040506070D, 0x010203040506070D, (1 << 64) - 1]
    assert number_at(b.mr, 512) == 2 and a.mr.read(8, 32) == bytes(8)


def test_a_counter_that_both_add_to(rc_pair):
    a, b = rc_pair
    n = 20
    for i in range(n):
        a.qp.post_send(atomic(i, FADD, a, b, 0, 1024 + 8 * i, 1))
    assert [wc.wr_id for wc in a.scq.wait(n)] == list(range(n))
    assert [number_at(a.mr, 1024 + 8 * i) for i in range(n)] == list(range(n)) and number_at(b.mr, 0) == n


def test_runs_of_mixed_signaling(rc_cards, rng):
    """Requests that one acknowledgement completes: those signaled have a completion each, in order, whatever lies between."""
    a, b = make_end(rc_cards[0], sq_sig_all=0), make_end(rc_cards[1])
    connect(a, b)
    expected = []
    for i in range(40):
        signaled = rng.random() < 0.4 or i == 39
        flags = IBV_SEND_SIGNALED if signaled else 0
        kind = rng.randrange(4)
        if kind == 0:
            wr = atomic(i, FADD, a, b, 0, 2048 + 8 * i, 1, send_flags=flags)
        elif kind == 1:
            wr = SendWR(i, READ, send_flags=flags, sg=[a.mr.sge(4096 + 64 * i, 1 + i)], rkey=b.mr.rkey, remote_addr=b.mr.addr + 8192)
        else:
            wr = SendWR(i, IBV_WR_RDMA_WRITE, send_flags=flags, sg=[a.mr.sge(0, 10 * i)], rkey=b.mr.rkey, remote_addr=b.mr.addr + 16384)
        if signaled:
            expected.append((i, (IBV_WC_FETCH_ADD, IBV_WC_RDMA_READ)[kind] if kind < 2 else IBV_WC_RDMA_WRITE,
                             8 if kind == 0 else 1 + i if kind == 1 else 10 * i))
        assert a.context.wait_until(lambda: post(a.qp, wr), 500 * US)
    found = a.scq.wait(len(expected))
    assert [(wc.wr_id, wc.opcode, wc.byte_len) for wc in found] == expected and all(wc.ok for wc in found)
    assert a.scq.poll(9) == (0, []) and a.qp.status()["qps"][0]["sends"]["completed"] == 40


def test_one_acknowledgement_for_many(rc_cards):
    """Of eight acknowledgements the first seven are lost; the last one says that all of it is there."""
    a, b = make_end(rc_cards[0], sq_sig_all=0), make_end(rc_cards[1])
    connect(a, b)
    lane, wanted = rc_cards.network.ports[1].out, (1, 2, 5, 7)
    lane.impair(loss=1.0)
    for i in range(8):
        if i == 7:
            assert a.scq.wait(1, 20 * US) == []
            lane.impair(loss=0)
        a.qp.post_send(SendWR(i, IBV_WR_RDMA_WRITE, send_flags=IBV_SEND_SIGNALED if i in wanted else 0,
                              sg=[a.mr.sge(0, 100 + i)], rkey=b.mr.rkey, remote_addr=b.mr.addr))
    assert ends_of(a.scq.wait(4)) == [(i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 100 + i) for i in wanted]
    assert a.context.counters()["completions"] == 1 and a.qp.status()["qps"][0]["sends"]["completed"] == 8


def post(qp, wr):
    try:
        qp.post_send(wr)
        return True
    except QueueFull:
        return False


def test_unsignaled_requests_make_room(rc_cards):
    """Far more than fit into the ring or a small CQ, of which nobody wants to hear."""
    a, b = make_end(rc_cards[0], sq_sig_all=0, cqe=8), make_end(rc_cards[1])
    connect(a, b)
    n = 2 * a.context.card.sq_entries
    for i in range(n):
        wr = SendWR(i, IBV_WR_RDMA_WRITE, send_flags=0, inline_data=bytes([i & 255]) * 8, rkey=b.mr.rkey, remote_addr=b.mr.addr + 8 * i)
        assert a.context.wait_until(lambda: post(a.qp, wr), 500 * US)
    last = SendWR("last", IBV_WR_RDMA_WRITE, inline_data=b"", rkey=b.mr.rkey, remote_addr=b.mr.addr)
    assert a.context.wait_until(lambda: post(a.qp, last), 500 * US) and one(a.scq).wr_id == "last"
    assert b.mr.read(8 * n) == b"".join(bytes([i & 255]) * 8 for i in range(n)) and a.scq.poll() == (0, [])
    assert a.context.counters()["cq_overrun"] == 0


def test_send_with_invalidate(rc_pair):
    """The MR whose key the peer names is closed to peers, and the completion says so; any other key is left alone."""
    a, b = rc_pair
    lent = MR(b.pd, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
    foreign = MR(PD(b.context), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
    for i in range(2):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(64 * i, 64)]))
    a.qp.post_send(SendWR("w", IBV_WR_RDMA_WRITE, inline_data=b"before", rkey=lent.rkey, remote_addr=lent.addr))
    a.qp.post_send(SendWR("i", IBV_WR_SEND_WITH_INV, inline_data=b"done", invalidate_rkey=lent.rkey))
    a.qp.post_send(SendWR("f", IBV_WR_SEND_WITH_INV, inline_data=b"done", invalidate_rkey=foreign.rkey))
    assert [(wc.wr_id, wc.opcode) for wc in a.scq.wait(3)][1] == ("i", IBV_WC_SEND)
    first, second = b.rcq.wait(2)
    assert (first.wc_flags, first.invalidated_rkey, first.byte_len) == (IBV_WC_WITH_INV, lent.rkey, 4)
    assert (second.wc_flags, second.invalidated_rkey) == (0, 0) and foreign.valid and not lent.valid
    assert lent.read(6) == b"before"        # the memory is there as before
    b.qp.post_recv(RecvWR(2))
    a.qp.post_send(SendWR("late", IBV_WR_RDMA_WRITE, inline_data=b"after", rkey=lent.rkey, remote_addr=lent.addr))
    assert one(a.scq).status == IBV_WC_REM_ACCESS_ERR and lent.read(6) == b"before"
    lent.close()
    assert lent.closed and not lent.valid


def test_losses_are_made_good(rc_cards, backend, rng):
    """Both ways through a cable that loses, doubles and damages frames: everything arrives, once, in order."""
    total = 40 if backend == "model" else 10
    ends = [make_end(context, size=1 << 18) for context in rc_cards]
    connect(*ends, timeout=5)
    rc_cards.network.links[0].impair(loss=0.02, duplicate=0.02, corrupt=0.01)
    data = {(me, i): rng.randbytes(rng.choice([0, 1, 64, 1024, 3000])) for me in range(2) for i in range(total)}
    for me, end in enumerate(ends):
        for i in range(total):
            end.qp.post_recv(RecvWR(i, sg=[end.mr.sge(4096 * i, 4096)]))
    done = [[], []]
    got = [[], []]
    first = [0, 0]
    for _ in range(100_000):
        for me, end in enumerate(ends):
            if first[me] < total and first[me] < len(done[me]) + 8:
                i = first[me]
                at = (1 << 18) - 4096 * (1 + i % 16)
                end.mr.write(data[me, i], offset=at)
                end.qp.post_send(SendWR(i, IBV_WR_SEND_WITH_IMM, imm_data=i, sg=[end.mr.sge(at, len(data[me, i]))]))
                first[me] += 1
            done[me] += end.scq.poll(8)[1]
            got[me] += end.rcq.poll(8)[1]
        if all(len(x) == total for x in done + got):
            break
        rc_cards[0].sleep_ns(2 * US)
    for me, end in enumerate(ends):
        assert [wc.wr_id for wc in done[me]] == [wc.wr_id for wc in got[me]] == list(range(total))
        assert all(wc.ok for wc in done[me] + got[me]) and [wc.imm_data for wc in got[me]] == list(range(total))
        for i in range(total):
            assert end.mr.read(len(data[1 - me, i]), 4096 * i) == data[1 - me, i]
    assert sum(c.counters()["go_backs"] for c in rc_cards) > 0


def test_uc_messages_of_many_packets(rc_cards, rng):
    """Standard UC, as long as one likes: no acknowledgement, and only signaled sends complete."""
    a, b = (make_end(context, qp_type=IBV_QPT_UC, sq_sig_all=0) for context in rc_cards)
    connect(a, b)
    data = rng.randbytes(3000)
    a.mr.write(data)
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 4000)])), b.qp.post_recv(RecvWR(1))
    a.qp.post_send(SendWR(0, IBV_WR_SEND, send_flags=0, sg=[a.mr.sge(0, 3000)]))
    a.qp.post_send(SendWR(1, IBV_WR_RDMA_WRITE_WITH_IMM, imm_data=6, sg=[a.mr.sge(0, 2000)], rkey=b.mr.rkey, remote_addr=b.mr.addr + 8192))
    assert ends_of(a.scq.wait(1)) == [(1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 2000)]
    assert [(wc.wr_id, wc.byte_len) for wc in b.rcq.wait(2)] == [(0, 3000), (1, 2000)]
    assert b.mr.read(3000) == data and b.mr.read(2000, 8192) == data[:2000]
    assert b.context.counters()["acks_sent"] == 0


@pytest.mark.parametrize("how", [dict(ip6=True), dict(vlan=0x2064, traffic_class=0x20), dict(mtu=256), dict(max_rd_atomic=1)],
                         ids=lambda how: next(iter(how)))
def test_ways_to_the_peer(rc_cards, how, rng):
    a, b = (make_end(context) for context in rc_cards)
    connect(a, b, **how)
    data = rng.randbytes(2000)
    a.mr.write(data)
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 2000)]))
    a.qp.post_send(SendWR(0, sg=[a.mr.sge(0, 2000)]))
    for i in range(4):
        a.qp.post_send(SendWR(1 + i, READ, sg=[a.mr.sge(4096 + 2048 * i, 2000)], rkey=b.mr.rkey, remote_addr=b.mr.addr))
    assert one(b.rcq).ok and b.mr.read(2000) == data and [wc.wr_id for wc in a.scq.wait(5)] == list(range(5))
    assert all(a.mr.read(2000, 4096 + 2048 * i) == data for i in range(4))


def test_many_queue_pairs_share_two_cqs(rc_cards, rng):
    a, b = (make_end(context) for context in rc_cards)
    a.qp.close(), b.qp.close()
    pairs = [(add_qp(a), add_qp(b)) for _ in range(6)]
    for qa, qb in pairs:
        connect(qa, qb)
    for i in range(24):
        qa, qb = pairs[i % 6]
        qb.post_recv(RecvWR(i, sg=[b.mr.sge(64 * i, 64)]))
        qa.post_send(SendWR(i, inline_data=bytes([i]) * 8))
    sent, received = a.scq.wait(24), b.rcq.wait(24)
    assert sorted(wc.wr_id for wc in sent) == sorted(wc.wr_id for wc in received) == list(range(24))
    assert all(pairs[wc.wr_id % 6][1].qp_num == wc.qp_num for wc in received)
    assert b.mr.read(24 * 64) == b"".join(bytes([i]) * 8 + bytes(56) for i in range(24))
