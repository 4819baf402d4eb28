"""States, lives and generations of queue pairs, and drivers that die."""

import pytest

from host_driver.verbs import *
from .conftest import connect, make_end

US = 1000


def exchange(a, b, text=b"hello"):
    """A message each way."""
    for end, other in ((a, b), (b, a)):
        other.qp.post_recv(RecvWR("r", sg=[other.mr.sge(0, 64)], timeout_ns=300 * US))
        end.qp.post_send(SendWR("s", inline_data=text))
        assert end.scq.wait(1)[0].ok and other.rcq.wait(1)[0].ok and other.mr.read(len(text)) == text


def test_step_by_step(cards):
    a, b = (make_end(context, reads=1) for context in cards)
    attrs = []
    for end, other in ((a, b), (b, a)):
        info = other.qp.info()
        attrs.append(QPAttr(qp_state=IBV_QPS_INIT, path_mtu=IBV_MTU_512, dest_qp_num=info["qp_num"],
                            dest_generation=info["generation"], dest_read_qp_num=info["read_qp_num"],
                            dest_read_generation=info["read_generation"],
                            ah_attr=AHAttr(GlobalRoute(GID(info["ip"])), mac=info["mac"])))
    for wrong in (lambda: a.qp.post_recv(RecvWR()), lambda: a.qp.post_send(SendWR()), lambda: a.qp.to_err(),
                  lambda: a.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)):
        with pytest.raises(StateError, match=r"RESET\): .* needs state"):
            wrong()
    a.qp.modify(attrs[0], IBV_QP_STATE | IBV_QP_PORT)
    a.qp.post_recv(RecvWR("early", sg=[a.mr.sge(0, 64)], timeout_ns=200 * US))
    a.context.sleep_ns(300 * US)            # its clock does not run yet
    with pytest.raises(StateError, match="needs state IBV_QPS_RTS or IBV_QPS_ERR"):
        a.qp.post_send(SendWR())
    attrs[0].qp_state = IBV_QPS_RTR
    a.qp.modify(attrs[0], IBV_QP_STATE)
    with pytest.raises(StateError):
        a.qp.post_send(SendWR())
    b.qp.to_rts(attrs[1])
    b.qp.post_send(SendWR("to early", inline_data=b"!"))
    assert a.rcq.wait(1)[0].wr_id == "early" and a.mr.read(1) == b"!"
    a.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    assert a.qp.qp_state == IBV_QPS_RTS and b.scq.wait(1)[0].ok
    exchange(a, b)
    attr, init = a.qp.query()
    assert (attr.qp_state, attr.path_mtu, attr.dest_qp_num) == (IBV_QPS_RTS, IBV_MTU_512, b.qp.qp_num)
    assert init.cap.max_recv_wr == a.context.card.rq_entries and init.scq is a.scq
    with pytest.raises(UsageError, match="the mask needs IBV_QP_STATE"):
        a.qp.modify(attr, IBV_QP_ACCESS_FLAGS)


@pytest.mark.parametrize("change, said", [
    (dict(ah_attr=None), "needs ah_attr"), (dict(dest_generation=None), "dest_generation"),
    (dict(ah_attr=AHAttr(GlobalRoute(GID("224.0.0.2")))), "one station"), (dict(dest_read_qp_num=None), "dest_read_qp_num"),
    (dict(path_mtu=IBV_MTU_4096), "path_mtu is 4096"), (dict(paths=3), "paths=3"),
])
def test_what_rtr_needs(change, said):
    with open_device("model") as ctx:
        end = make_end(ctx, reads=1)
        attr = QPAttr(dest_qp_num=1, dest_generation=0, dest_read_qp_num=2, dest_read_generation=0,
                      ah_attr=AHAttr(GlobalRoute(GID("10.0.0.2")), mac="02:00:00:00:00:02"))
        with pytest.raises((UsageError, ValueError), match=said):
            end.qp.to_rtr(QPAttr(**{**vars(attr), **change}))
        end.qp.to_reset()
        end.qp.to_rtr(attr)
        assert end.qp.qp_state == IBV_QPS_RTR
        ipv6 = make_end(ctx)
        with pytest.raises(UsageError, match="this port has none"):
            ipv6.qp.to_rtr(QPAttr(dest_qp_num=1, dest_generation=0,
                                  ah_attr=AHAttr(GlobalRoute(GID("fd00::2")), mac="02:00:00:00:00:02")))


def test_error_flushes_everything(pair):
    a, b = pair
    for i in range(5):
        a.qp.post_recv(RecvWR(i, sg=[a.mr.sge(0, 64)]))
    b.context.disable()                     # READs stay without an answer
    a.qp.post_send(SendWR("read", IBV_WR_RDMA_READ, sg=[a.mr.sge(0, 64)], rkey=b.mr.rkey, remote_addr=b.mr.addr))
    a.context.sleep_ns(10 * US)
    a.context.disable()                     # sends stay unsent
    for i in range(3):
        a.qp.post_send(SendWR(("s", i), inline_data=b"x"))
    a.qp.to_err()
    received, sent = a.rcq.wait(5), a.scq.wait(4)
    assert [(wc.wr_id, wc.status, wc.cause, wc.opcode) for wc in received] == [
        (i, IBV_WC_WR_FLUSH_ERR, "flushed", IBV_WC_RECV) for i in range(5)]
    assert {(wc.wr_id, wc.status, wc.opcode) for wc in sent} == {
        ("read", IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_READ), *((("s", i), IBV_WC_WR_FLUSH_ERR, IBV_WC_SEND) for i in range(3))}
    with pytest.raises(StateError, match="post_recv needs"):
        a.qp.post_recv(RecvWR())
    with pytest.raises(StateError, match="a READ needs"):
        a.qp.post_send(SendWR(0, IBV_WR_RDMA_READ))
    a.qp.post_send(SendWR("late", inline_data=b""))
    assert [(wc.wr_id, wc.status) for wc in a.scq.wait(1)] == [("late", IBV_WC_WR_FLUSH_ERR)]
    for end in pair:
        end.context.enable(), end.qp.to_reset()
    connect(a, b)
    exchange(a, b)
    assert a.scq.poll(9) == a.rcq.poll(9) == (0, [])


def test_error_in_init_flushes_what_was_posted_early(cards):
    end = make_end(cards[0])
    end.qp.to_init()
    for i in range(3):
        end.qp.post_recv(RecvWR(i))
    end.qp.to_err()
    assert [(wc.wr_id, wc.status) for wc in end.rcq.wait(3)] == [(i, IBV_WC_WR_FLUSH_ERR) for i in range(3)]


def test_a_new_life_forgets_the_old_one(pair):
    """Both ends or one of them go through RESET: what is posted is gone, what is on its way is refused, and numbers begin anew."""
    a, b = pair
    exchange(a, b)
    before = a.qp.info(), b.qp.info()
    b.qp.post_recv(RecvWR("forgotten"))
    b.qp.to_reset()
    assert b.qp.info()["generation"] == (before[1]["generation"] + 1) % 256 and b.qp.info()["qp_num"] == before[1]["qp_num"]
    b.qp.connect(a.qp.info())
    b.qp.post_recv(RecvWR("new", sg=[b.mr.sge(0, 64)]))
    a.qp.post_send(SendWR("stale", IBV_WR_RDMA_WRITE, inline_data=b"stale", rkey=b.mr.rkey, remote_addr=b.mr.addr + 100))
    assert a.scq.wait(1)[0].ok
    b.context.sleep_ns(5 * US)
    assert b.mr.read(5, 100) == bytes(5) and b.qp.status()["qps"][0]["refused"] == {"generation": 1}
    a.qp.to_reset()
    a.qp.connect(b.qp.info())
    b.qp.to_reset()                         # it must know a's new generation
    connect_again = a.qp, b.qp
    a.qp.to_reset()
    connect(*connect_again)
    exchange(a, b)
    assert b.rcq.poll(9) == (0, [])


@pytest.mark.parametrize("clean", [True, False])
def test_a_driver_that_died(cards, clean):
    """A new one opens the card in the middle of everything: nothing of the old one writes, ends or answers any more."""
    a, b = (make_end(context, reads=2) for context in cards)
    connect(a, b)
    exchange(a, b)
    for i in range(10):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(1024 * i, 64)], timeout_ns=50 * US if i % 2 else None))
    for i in range(4):                      # a few of them are still under way
        a.qp.post_send(SendWR(i, inline_data=b"old"))
        b.qp.post_send(SendWR(i, inline_data=b"old"))
    if clean:
        b.context.close()
        assert b.context.card.reg_read("RQ_BASE_LO") == 0
    memory = b.mr.addr, b.mr.rkey, b.context.device
    again = Context(b.context.device, mac=b.context.mac, ip=b.context.ip, seed=77)
    assert again.card.found_running == (not clean)
    before, completions = memory[2].read(memory[0], 65536), again.counters()["completions"]
    a.qp.post_send(SendWR("to the dead", IBV_WR_RDMA_WRITE, inline_data=b"dead", rkey=memory[1], remote_addr=memory[0] + 30_000))
    a.qp.post_send(SendWR("to the dead", inline_data=b"dead"))
    again.sleep_ns(200 * US)
    assert memory[2].read(memory[0], 65536) == before and again.counters()["completions"] == completions
    assert again.counters()["drop_qpn"] >= 2
    c = make_end(again, reads=2)
    a.qp.to_reset()
    connect(a, c)
    a.scq.poll(100), a.rcq.poll(100)
    exchange(a, c)
    c.mr.write(b"read me")
    a.qp.post_send(SendWR("read", IBV_WR_RDMA_READ, sg=[a.mr.sge(64, 7)], rkey=c.mr.rkey, remote_addr=c.mr.addr,
                          timeout_ns=100 * US))
    assert a.scq.wait(1)[0].ok and a.mr.read(7, 64) == b"read me"
    if not clean:
        b.context.closed = True             # it never closes anything
    cards[1] = again
