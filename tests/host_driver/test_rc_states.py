"""States and attributes of queue pairs on a card of transport rc, and what it doesn't have."""

import pytest

from host_driver.verbs import *
from .conftest import ALL, connect, make_end
from .test_rc_failures import begin_again, exchange

US = 1000


def attr_for(end, other, **more):
    info = other.qp.info()
    return QPAttr(path_mtu=IBV_MTU_512, dest_qp_num=info["qp_num"], ah_attr=AHAttr(GlobalRoute(GID(info["ip"])), mac=info["mac"]), **more)


def test_step_by_step(rc_cards):
    """With attributes of one's own, as a pyverbs program has them: PSNs that wrap, counts, timers."""
    a, b = (make_end(context) for context in rc_cards)
    common = dict(timeout=6, retry_cnt=3, rnr_retry=5, min_rnr_timer=2, max_rd_atomic=2, max_dest_rd_atomic=4)
    attrs = [attr_for(a, b, sq_psn=0xFFFFFE, rq_psn=5, **common), attr_for(b, a, sq_psn=5, rq_psn=0xFFFFFE, **common)]
    for end, attr in zip((a, b), attrs):
        for state in (IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS):
            attr.qp_state = state
            end.qp.modify(attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER)
    for _ in range(4):
        exchange(a, b)
    attr, init = a.qp.query()
    assert (attr.qp_state, attr.sq_psn, attr.rq_psn, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer,
            attr.max_rd_atomic) == (IBV_QPS_RTS, 0xFFFFFE, 5, 6, 3, 5, 2, 2)
    assert init.qp_type == IBV_QPT_RC == a.qp.qp_type
    for i in range(6):      # two at a time is the card's business
        a.qp.post_send(SendWR(i, IBV_WR_RDMA_READ, sg=[a.mr.sge(1024 * i, 1000)], rkey=b.mr.rkey, remote_addr=b.mr.addr))
    assert [wc.ok for wc in a.scq.wait(6)] == [True] * 6


def test_attributes_of_sending_belong_to_rtr(rc_cards):
    a, b = (make_end(context) for context in rc_cards)
    a.qp.to_rtr(attr_for(a, b, sq_psn=7, timeout=5))
    with pytest.raises(UsageError, match="timeout=6, and 5 when it went to RTR"):
        a.qp.to_rts(attr_for(a, b, sq_psn=7, timeout=6))
    a.qp.to_rts(QPAttr())
    assert a.qp.qp_state == IBV_QPS_RTS


@pytest.mark.parametrize("change, said", [
    (dict(max_rd_atomic=17), "max_rd_atomic=17, and the card has at most 16"), (dict(max_dest_rd_atomic=9), "at most 8"),
    (dict(timeout=32), "timeout=32"), (dict(paths=2), "transport rc"), (dict(sq_psn=1 << 24), "sq_psn"),
])
def test_wrong_attributes(change, said):
    with open_device("model", transport="rc") as ctx:
        end = make_end(ctx)
        right = dict(dest_qp_num=1, ah_attr=AHAttr(GlobalRoute(GID("10.0.0.2")), mac="02:00:00:00:00:02"))
        with pytest.raises((UsageError, ValueError), match=said):
            end.qp.to_rtr(QPAttr(**right, **change))
        end.qp.to_reset()
        end.qp.to_rtr(QPAttr(**right))


def test_drain(rc_pair):
    """SQD: nothing more can be posted, what is posted goes on to its end, and receives come as before."""
    a, b = rc_pair
    b.context.disable()
    for i in range(5):
        a.qp.post_send(SendWR(i, IBV_WR_RDMA_WRITE, send_flags=0, sg=[a.mr.sge(0, 500)], rkey=b.mr.rkey, remote_addr=b.mr.addr))
    a.qp.modify(QPAttr(qp_state=IBV_QPS_SQD), IBV_QP_STATE)
    assert a.qp.qp_state == IBV_QPS_SQD and not a.qp.sq_drained
    with pytest.raises(StateError, match="post_send needs"):
        a.qp.post_send(SendWR())
    b.context.enable()
    assert a.context.wait_until(lambda: a.qp.sq_drained, 5_000 * US)
    assert [wc.wr_id for wc in a.scq.poll(9)[1]] == list(range(5)) and a.qp.sq_drained
    a.qp.post_recv(RecvWR("r", sg=[a.mr.sge(0, 64)]))
    b.qp.post_send(SendWR("s", inline_data=b"still"))
    assert a.rcq.wait(1)[0].ok
    assert any("SQD" in f["what"] for f in a.qp.status()["findings"])
    a.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    assert not a.qp.sq_drained
    exchange(a, b)
    a.qp.to_sqd(), a.qp.to_err()
    begin_again(a, b)


def test_a_failure_while_draining(rc_pair):
    a, b = rc_pair
    a.qp.post_send(SendWR("bad", IBV_WR_RDMA_WRITE, inline_data=b"x", rkey=1, remote_addr=0))
    a.qp.to_sqd()
    assert a.scq.wait(1)[0].status == IBV_WC_REM_ACCESS_ERR and a.qp.qp_state == IBV_QPS_ERR and not a.qp.sq_drained


def test_a_new_life_has_other_numbers(rc_pair):
    """What is still under way for the old one is not taken for the new one's."""
    a, b = rc_pair
    exchange(a, b)
    old = a.qp.info()
    b.qp.post_recv(RecvWR("forgotten"))
    begin_again(a, b)
    assert a.qp.info()["psn"] != old["psn"] and a.qp.info()["qp_num"] == old["qp_num"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_driver_that_died(rc_cards, clean):
    a, b = (make_end(context) for context in rc_cards)
    connect(a, b, timeout=4, retry_cnt=1)
    exchange(a, b)
    for i in range(4):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(1024 * i, 64)]))
        a.qp.post_send(SendWR(i, inline_data=b"old"))
        b.qp.post_send(SendWR(i, inline_data=b"old"))
    if clean:
        b.context.close()
    memory = b.mr.addr, b.mr.rkey, b.context.device
    again = Context(b.context.device, cfg=b.context._cfg, mac=b.context.mac, ip=b.context.ip, seed=77)
    assert again.card.found_running == (not clean)
    before = memory[2].read(memory[0], 65536)
    again.sleep_ns(300 * US)
    a.scq.wait(4)
    assert memory[2].read(memory[0], 65536) == before
    c = make_end(again)
    a.scq.poll(100), a.rcq.poll(100)
    a.qp.to_reset()
    connect(a, c)
    exchange(a, c)
    if not clean:
        b.context.closed = True
    rc_cards[1] = again


@pytest.fixture(scope="module")
def ctx():
    with open_device("model", transport="rc") as ctx:
        yield ctx


@pytest.mark.parametrize("make, said", [
    (lambda pd, cq: QP(pd, QPInitAttr(OPT_QPT_XP, scq=cq, rcq=cq)),
     "OPT_QPT_XP.* is not one of IBV_QPT_RC, IBV_QPT_UC: this card is of transport rc"),
    (lambda pd, cq: QP(pd, QPInitAttr(scq=cq, rcq=cq, recv_timeout_ns=5)), "transport rc, whose messages arrive whole"),
    (lambda pd, cq: QP(pd, QPInitAttr(scq=cq, rcq=cq, arrival_bytes=5)), "transport rc"),
    (lambda pd, cq: QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_rd_atomic=17))), "max_rd_atomic=17"),
    (lambda pd, cq: MR(pd, 64, IBV_ACCESS_REMOTE_ATOMIC), "IBV_ACCESS_REMOTE_ATOMIC goes with IBV_ACCESS_LOCAL_WRITE"),
])
def test_what_makes_no_sense(ctx, make, said):
    pd, cq = PD(ctx), CQ(ctx, 16)
    with pytest.raises(UsageError, match=said):
        make(pd, cq)
    cq.close(), pd.close()


@pytest.mark.parametrize("wr, said", [
    (lambda mr: RecvWR(timeout_ns=5), "receives wait until a message comes"), (lambda mr: RecvWR(deadline_ns=5), "transport rc"),
    (lambda mr: SendWR(timeout_ns=5), "are of transport xp"), (lambda mr: SendWR(tag=5), "are of transport xp"),
    (lambda mr: SendWR(0, IBV_WR_RDMA_READ, inline_data=b""), "nothing to inline"),
    (lambda mr: SendWR(0, IBV_WR_ATOMIC_FETCH_AND_ADD, sg=[mr.sge(0, 7)]), "brings 8 bytes, and its sg has room for 7"),
    (lambda mr: SendWR(0, IBV_WR_ATOMIC_FETCH_AND_ADD, sg=[mr.sge(0, 8)], remote_addr=4), "not a multiple of 8"),
    (lambda mr: SendWR(0, IBV_WR_ATOMIC_FETCH_AND_ADD, sg=[mr.sge(0, 8)], compare_add=-1), "does not fit 64 bits"),
    (lambda mr: SendWR(0, send_flags=IBV_SEND_FENCE), "wait for the READ's completion"),
    (lambda mr: SendWR(0, sg=[SGE(0, (1 << 31) + 1, 0)]), "at most 2147483648"),
])
def test_wrong_work_requests(ctx, wr, said):
    end = make_end(ctx)
    end.qp.to_rts(QPAttr(dest_qp_num=1, max_rd_atomic=1, ah_attr=AHAttr(GlobalRoute(GID("10.0.0.2")), mac="02:00:00:00:00:02")))
    wr = wr(end.mr)
    with pytest.raises((UsageError, ValueError), match=said) as info:
        (end.qp.post_recv if isinstance(wr, RecvWR) else end.qp.post_send)(wr)
    assert info.value.bad_wr is wr and end.qp.status()["qps"][0]["sends"]["posted"] == 0
    end.pd.close(), end.scq.close(), end.rcq.close()


def test_reads_must_be_wanted(ctx):
    end = make_end(ctx)
    end.qp.to_rts(QPAttr(dest_qp_num=1, ah_attr=AHAttr(GlobalRoute(GID("10.0.0.2")), mac="02:00:00:00:00:02")))
    with pytest.raises(UsageError, match="its max_rd_atomic is 0"):
        end.qp.post_send(SendWR(0, IBV_WR_RDMA_READ))
    uc = make_end(ctx, qp_type=IBV_QPT_UC)
    with pytest.raises(UsageError, match="timeout: a queue pair of type uc"):
        uc.qp.connect({**uc.qp.info(), "qp_num": 1}, timeout=5)
    uc.qp.connect({**uc.qp.info(), "qp_num": 1})
    with pytest.raises(UsageError, match="IBV_QPT_UC has neither READ nor atomics"):
        uc.qp.post_send(SendWR(0, IBV_WR_RDMA_READ))
    with pytest.raises(UsageError, match="SQD is for IBV_QPT_RC"):
        uc.qp.to_sqd()


def test_what_the_card_says_of_itself(ctx):
    about = ctx.query_device()
    assert (about.transport, about.max_qp_init_rd_atom, about.max_qp_rd_atom) == ("rc", 16, 8)
    with open_device("model", transport="rc", changes={"rc_atomics": False}) as plain:
        with pytest.raises(UsageError, match="rc_atomics=off"):
            MR(PD(plain), 64, ALL | IBV_ACCESS_REMOTE_ATOMIC)
    with open_device("model") as xp:
        pd, cq = PD(xp), CQ(xp, 16)
        with pytest.raises(UsageError, match="IBV_QPT_RC.* is not one of OPT_QPT_XP, IBV_QPT_UC: this card is of transport xp"):
            QP(pd, QPInitAttr(IBV_QPT_RC, scq=cq, rcq=cq))
        end = make_end(xp)
        end.qp.to_rts(QPAttr(dest_qp_num=1, dest_generation=0, ah_attr=AHAttr(GlobalRoute(GID("10.0.0.2")), mac="02:00:00:00:00:02")))
        with pytest.raises(UsageError, match="IBV_WR_SEND_WITH_INV: this card is of transport xp"):
            end.qp.post_send(SendWR(0, IBV_WR_SEND_WITH_INV))
