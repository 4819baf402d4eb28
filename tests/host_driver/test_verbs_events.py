"""Waiting for completions: channels, arming, vectors, and the races between them."""

import pytest

from host_driver.verbs import *
from .conftest import connect, make_end

US = 1000


@pytest.fixture
def many(backend):
    with open_cards(backend, 2, cfg="tiny", changes={"num_vectors": 3}) as cards:
        yield cards


def two_channels(context):
    """Three CQs on two vectors and two channels, a queue pair with receives for each."""
    pd = PD(context)
    channels = [CompChannel(context), CompChannel(context)]
    cqs = [CQ(context, 16, i, channels[i // 2], vector) for i, vector in enumerate((1, 2, 2))]
    sends = CQ(context, 64)
    return channels, cqs, [QP(pd, QPInitAttr(scq=sends, rcq=cq)) for cq in cqs]


def test_events_go_to_the_right_channel(many):
    left, right = two_channels(many[0]), two_channels(many[1])
    for a, b in zip(left[2], right[2]):
        connect(a, b)
        for i in range(4):
            b.post_recv(RecvWR(i))
    channels, cqs, _ = right
    assert channels[0].get_cq_event(timeout_ns=2 * US) is None
    for cq in cqs:
        cq.req_notify()
    assert channels[0].get_cq_event(timeout_ns=2 * US) is channels[1].get_cq_event(timeout_ns=2 * US) is None
    left[2][2].post_send(SendWR())          # its vector is that of a CQ of the other channel, too
    assert channels[0].get_cq_event(timeout_ns=20 * US) is None
    assert channels[1].get_cq_event(cqs[2], timeout_ns=20 * US) is cqs[2] and cqs[2].poll(9)[0] == 1
    left[2][2].post_send(SendWR())          # one event for one request
    assert channels[1].get_cq_event(timeout_ns=20 * US) is None
    left[2][0].post_send(SendWR()), left[2][1].post_send(SendWR())
    assert {channels[0].get_cq_event(), channels[0].get_cq_event()} == set(cqs[:2])
    with pytest.raises(UsageError, match="the event is of CQ"):
        cqs[2].req_notify()                 # the second message waits there: at once
        channels[1].get_cq_event(cqs[0])
    assert channels[1].get_cq_event() is cqs[2] and cqs[2].poll(9)[0] == 1
    assert [cq.cq_context for cq in cqs] == [0, 1, 2]
    cqs[2].ack_events(2)


def test_nothing_is_missed_between_polling_and_arming(pair):
    """Completions that come at any moment of poll, arm, poll, wait: every one of them is seen, and no wait is in vain."""
    a, b = pair
    with CompChannel(b.context) as channel, CQ(b.context, 64, None, channel) as cq:
        with QP(b.pd, QPInitAttr(scq=b.scq, rcq=cq)) as qp, QP(a.pd, QPInitAttr(scq=a.scq, rcq=a.rcq)) as sender:
            connect(sender, qp)
            sent = seen = 0
            for _ in range(16):
                qp.post_recv(RecvWR())

            def send():
                nonlocal sent
                sender.post_send(SendWR())
                qp.post_recv(RecvWR())
                sent += 1
            for moment in range(40):
                wait_ns = 290 * (moment // 4)
                if moment % 4 == 0:
                    send(), b.context.sleep_ns(wait_ns)
                seen += cq.poll(64)[0]
                if moment % 4 == 1:
                    send(), b.context.sleep_ns(wait_ns)
                cq.req_notify()
                if moment % 4 == 2:
                    send(), b.context.sleep_ns(wait_ns)
                if moment // 4 % 2:             # without it the event alone must tell
                    seen += cq.poll(64)[0]
                if moment % 4 == 3:
                    send(), b.context.sleep_ns(wait_ns)
                while seen < sent:
                    assert channel.get_cq_event(cq, timeout_ns=50 * US) is cq, f"moment {moment}: {seen} of {sent}"
                    cq.req_notify()
                    seen += cq.poll(64)[0]
                a.scq.poll(64)
            while channel.get_cq_event(timeout_ns=2 * US):
                pass
            assert seen == sent == 40 and cq.poll(64)[0] == 0


def test_asking_without_a_channel(pair):
    with pytest.raises(UsageError, match="has no CompChannel"):
        pair[0].scq.req_notify()
    with CompChannel(pair[0].context) as channel, CQ(pair[0].context, 4, None, channel) as cq:
        with pytest.raises(UsageError, match="solicited"):
            cq.req_notify(True)


def test_a_full_cq_refuses_instead_of_losing(cards):
    a, b = make_end(cards[0], cqe=256), make_end(cards[1], cqe=8)
    connect(a, b)
    for i in range(8):
        b.qp.post_recv(RecvWR(i))
    with pytest.raises(QueueFull, match=r"CQ\(.*cqe=8\) has no room for what would come of one more receive"):
        b.qp.post_recv(RecvWR(8))
    for i in range(8):
        a.qp.post_send(SendWR(i))
    assert len(a.scq.wait(8)) == 8
    b.context.sleep_ns(5 * US)
    for i in range(8, 16):                  # room is made by taking what has come, which nobody has polled for
        b.qp.post_recv(RecvWR(i))
    for i in range(8):
        a.qp.post_send(SendWR(i))
    b.context.sleep_ns(10 * US)
    n, first = b.rcq.poll(3)
    assert n == 3 and [wc.wr_id for wc in first + b.rcq.wait(13)] == list(range(16))
    assert b.context.counters()["cq_overrun"] == 0
