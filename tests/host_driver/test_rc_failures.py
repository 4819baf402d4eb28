"""Connections of type RC that fail: what each end hears, what becomes of all that was posted, and that one can begin again."""

import pytest

from host_driver.verbs import *
from .conftest import ALL, connect, make_end
from .test_verbs_status import said

US = 1000
READ, WRITE, FADD = IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD


def exchange(a, b, text=b"hello"):
    """A message each way."""
    for end, other in ((a, b), (b, a)):
        other.qp.post_recv(RecvWR("r", sg=[other.mr.sge(0, 64)]))
        end.qp.post_send(SendWR("s", inline_data=text))
        assert end.scq.wait(1)[0].ok and other.rcq.wait(1)[0].ok and other.mr.read(len(text)) == text


def begin_again(a, b):
    for end in (a, b):
        end.scq.poll(100), end.rcq.poll(100)
        end.qp.to_reset()
    connect(a, b)
    exchange(a, b)
    assert a.scq.poll(9) == b.scq.poll(9) == a.rcq.poll(9) == b.rcq.poll(9) == (0, [])


def statuses(wcs):
    return [(wc.wr_id, wc.status) for wc in wcs]


@pytest.mark.parametrize("opcode", [WRITE, READ, FADD], ids=lambda o: o.name)
@pytest.mark.parametrize("what", ["rkey", "pd", "bounds", "access"])
def test_access_violations(rc_pair, opcode, what):
    """The request fails with what the peer says; those before it have succeeded, those behind it are flushed, at both ends."""
    a, b = rc_pair
    mr = MR(PD(b.context) if what == "pd" else b.pd, 4096, IBV_ACCESS_LOCAL_WRITE if what == "access" else b.mr.access)
    for end in rc_pair:
        for i in range(3):
            end.qp.post_recv(RecvWR(i, sg=[end.mr.sge(0, 64)]))
    good = dict(rkey=b.mr.rkey, remote_addr=b.mr.addr + 8192)
    bad = dict(rkey=mr.rkey + 256 if what == "rkey" else mr.rkey, remote_addr=mr.addr + (4096 if what == "bounds" else 0))
    for wr_id, where in (("good", good), ("bad", bad), ("behind", good), ("last", good)):
        a.qp.post_send(SendWR(wr_id, opcode, sg=[a.mr.sge(0, 64)], compare_add=1, **where))
    assert statuses(a.scq.wait(4)) == [("good", IBV_WC_SUCCESS), ("bad", IBV_WC_REM_ACCESS_ERR), ("behind", IBV_WC_WR_FLUSH_ERR),
                                       ("last", IBV_WC_WR_FLUSH_ERR)]
    for end in rc_pair:
        assert statuses(end.rcq.wait(3)) == [(i, IBV_WC_WR_FLUSH_ERR) for i in range(3)]
        assert (end.qp.qp_state, end.qp.failure) == (IBV_QPS_ERR, "remote_access")
        with pytest.raises(StateError, match="post_recv needs"):
            end.qp.post_recv(RecvWR())
    assert said(a.context.status(), "it has failed by send 1, remote_access", "to_reset()")
    assert said(b.context.status(), "it has failed by a request of the peer, remote_access")
    begin_again(a, b)


def test_an_error_completion_says_all(rc_pair):
    a, b = rc_pair
    a.qp.post_send(SendWR("bad", READ, send_flags=0, sg=[a.mr.sge(0, 64)], rkey=1, remote_addr=0))
    wc, = a.scq.wait(1)
    assert (wc.wr_id, wc.opcode, wc.cause, wc.byte_len, wc.msg_len, wc.qp_num) == (
        "bad", IBV_WC_RDMA_READ, "remote_access", 0, 64, a.qp.qp_num)
    assert wc.vendor_err == 18 and not wc.ok and not wc.partial and "IBV_WC_REM_ACCESS_ERR (remote_access)" in str(wc)
    a.qp.post_send(SendWR("late", inline_data=b"!"))        # as in ERR in verbs: it is taken, and flushed
    assert statuses(a.scq.wait(1)) == [("late", IBV_WC_WR_FLUSH_ERR)]


@pytest.mark.parametrize("what", ["length", "buffer"])
def test_a_receive_that_does_not_do(rc_pair, what):
    """Longer than the receive, or without memory: the sender hears of it."""
    a, b = rc_pair
    b.qp.post_recv(RecvWR("r", sg=[b.mr.sge(0, 999) if what == "length" else SGE(b.mr.addr, 4096, 12345)]))
    a.qp.post_send(SendWR("s", sg=[a.mr.sge(0, 1000)]))
    wc, = a.scq.wait(1)
    assert wc.status == (IBV_WC_REM_INV_REQ_ERR if what == "length" else IBV_WC_REM_OP_ERR)
    assert statuses(b.rcq.wait(1)) == [("r", IBV_WC_WR_FLUSH_ERR)]
    begin_again(a, b)


def test_errors_of_ones_own(rc_pair):
    """A buffer that its lkey doesn't cover: of a send, of what a READ or atomic brings. The peer hears nothing of it."""
    a, b = rc_pair
    foreign = MR(PD(a.context), 4096, ALL)
    where = dict(rkey=b.mr.rkey, remote_addr=b.mr.addr)
    for opcode, sge in ((WRITE, foreign.sge(0, 64)), (READ, SGE(a.mr.addr + len(a.mr) - 8, 16, a.mr.lkey)), (FADD, SGE(0, 8, 12345))):
        a.qp.post_send(SendWR("good", WRITE, inline_data=b"x", **where))
        a.qp.post_send(SendWR("bad", opcode, sg=[sge], **where))
        a.qp.post_send(SendWR("behind", WRITE, inline_data=b"y", **where))
        assert statuses(a.scq.wait(3)) == [("good", IBV_WC_SUCCESS), ("bad", IBV_WC_LOC_PROT_ERR), ("behind", IBV_WC_WR_FLUSH_ERR)]
        assert a.qp.qp_state == IBV_QPS_ERR and b.qp.qp_state == IBV_QPS_RTS
        if opcode == WRITE:     # behind a READ it was under way already
            assert b.mr.read(1) != b"y"
        begin_again(a, b)


def test_a_peer_that_is_gone(rc_cards):
    """Repeated as often as was said, as long apart as was said, then given up."""
    a, b = (make_end(context) for context in rc_cards)
    connect(a, b, timeout=3, retry_cnt=2)
    exchange(a, b)
    b.context.disable()
    began = a.context.time_ns()
    for i in range(3):
        a.qp.post_send(SendWR(i, inline_data=b"anybody?", send_flags=0))
    a.context.sleep_ns(60 * US)
    assert said(a.qp.status(), "3 requests wait for the peer", "see the peer's status()")
    assert said(a.context.status(), "wait for the peer", "ack_timeouts")
    found = a.scq.wait(3)
    assert statuses(found) == [(0, IBV_WC_RETRY_EXC_ERR), (1, IBV_WC_WR_FLUSH_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert 3 * 32_768 <= found[0].timestamp - began < 6 * 32_768
    assert a.context.counters()["ack_timeouts"] == 3 and a.qp.failure == "retry"
    b.context.enable()
    begin_again(a, b)


def test_without_a_timeout_it_waits_for_ever(rc_cards):
    a, b = (make_end(context) for context in rc_cards)
    connect(a, b, timeout=0)
    lane = rc_cards.network.ports[0].out
    lane.impair(loss=1.0)
    a.qp.post_send(SendWR("lost", WRITE, inline_data=b"lost", rkey=b.mr.rkey, remote_addr=b.mr.addr))
    a.context.sleep_ns(20 * US)
    lane.impair(loss=0)
    assert a.scq.wait(1, 300 * US) == [] and a.context.counters()["ack_timeouts"] == 0
    a.qp.post_send(SendWR("next", WRITE, inline_data=b"next", rkey=b.mr.rkey, remote_addr=b.mr.addr + 4))
    assert statuses(a.scq.wait(2)) == [("lost", IBV_WC_SUCCESS), ("next", IBV_WC_SUCCESS)] and b.mr.read(8) == b"lostnext"


def test_no_receive(rc_cards):
    """The peer isn't ready: asked again after the time that it names, for ever or as often as was said."""
    a, b = (make_end(context) for context in rc_cards)
    connect(a, b, min_rnr_timer=2)
    a.qp.post_send(SendWR("patient", inline_data=b"patient"))
    assert a.scq.wait(1, 150 * US) == []
    b.qp.post_recv(RecvWR("r", sg=[b.mr.sge(0, 64)]))
    assert statuses(a.scq.wait(1)) == [("patient", IBV_WC_SUCCESS)] and b.rcq.wait(1)[0].byte_len == 7
    assert a.context.counters()["rnr_waits"] >= 5
    for end in (a, b):
        end.qp.to_reset()
    connect(a, b, min_rnr_timer=2, rnr_retry=3)
    before, began = a.context.counters()["rnr_waits"], a.context.time_ns()
    a.qp.post_send(SendWR("impatient", inline_data=b"impatient"))
    wc, = a.scq.wait(1)
    assert (wc.status, wc.cause) == (IBV_WC_RNR_RETRY_EXC_ERR, "rnr_retry") and wc.timestamp >= began + 3 * 20 * US
    assert a.context.counters()["rnr_waits"] == before + 4
    assert said(a.qp.status(), "rnr_retry", "receives earlier") and b.qp.qp_state == IBV_QPS_RTS
    begin_again(a, b)


def test_to_err_flushes_everything(rc_pair):
    a, b = rc_pair
    for i in range(4):
        a.qp.post_recv(RecvWR(i, sg=[a.mr.sge(0, 64)]))
    b.context.disable()
    for i in range(5):
        a.qp.post_send(SendWR(i, READ if i % 2 else WRITE, send_flags=0, sg=[a.mr.sge(0, 64)], rkey=b.mr.rkey, remote_addr=b.mr.addr))
    a.context.sleep_ns(10 * US)
    a.qp.to_err()
    assert [(wc.wr_id, wc.status, wc.opcode) for wc in a.scq.wait(5)] == [
        (i, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_READ if i % 2 else IBV_WC_RDMA_WRITE) for i in range(5)]
    assert statuses(a.rcq.wait(4)) == [(i, IBV_WC_WR_FLUSH_ERR) for i in range(4)]
    assert a.qp.failure is None             # nobody failed: the program wanted it
    b.context.enable()
    begin_again(a, b)


def test_who_looks_only_at_receives_hears_of_a_failed_send(rc_pair):
    """It is told in the send CQ; the receive CQ, on whose event the program sleeps, gets what is flushed."""
    a, b = rc_pair
    channel = CompChannel(a.context)
    rcq = CQ(a.context, 16, None, channel)
    qp = QP(a.pd, QPInitAttr(scq=a.scq, rcq=rcq))
    b.qp.to_reset()
    connect(qp, b.qp)
    qp.post_recv(RecvWR("r", sg=[a.mr.sge(0, 64)]))
    rcq.req_notify()
    qp.post_send(SendWR("bad", WRITE, inline_data=b"x", rkey=1, remote_addr=0))
    assert channel.get_cq_event(timeout_ns=1_000_000) is rcq
    assert statuses(rcq.poll(9)[1]) == [("r", IBV_WC_WR_FLUSH_ERR)] and qp.failure == "remote_access"


def test_a_failure_concerns_one_queue_pair(rc_cards):
    a, b = (make_end(context) for context in rc_cards)
    c, d = (make_end(context) for context in rc_cards)
    connect(a, b), connect(c, d)
    a.qp.post_send(SendWR("bad", WRITE, inline_data=b"x", rkey=1, remote_addr=0))
    assert a.scq.wait(1)[0].status == IBV_WC_REM_ACCESS_ERR
    exchange(c, d)
    # and a new queue pair takes the place of the failed ones
    for end in (a, b):
        end.qp.close()
        end.qp = QP(end.pd, QPInitAttr(scq=end.scq, rcq=end.rcq))
        end.scq.poll(9), end.rcq.poll(9)
    connect(a, b)
    exchange(a, b)
