"""Why nothing moves: each cause is named, with what to do about it."""

import pytest

from host_driver.verbs import *
from host_driver.verbs.remedies import EVENTS, REFUSED
from optinic.abi.verdicts import COUNTERS, REASON
from .conftest import connect, make_end

US = 1000


def said(status, *words):
    """The findings that have all of these words."""
    return [f for f in status["findings"] if all(w in f"{f['where']}: {f['what']} {f['remedy']}" for w in words)]


def problems(status):
    return [f for f in status["findings"] if f["level"] == "problem"]


@pytest.fixture
def both():
    with open_cards("model", 2) as cards:
        ends = [make_end(context, reads=2) for context in cards]
        connect(*ends)
        yield ends


def test_every_counter_of_trouble_has_words():
    assert set(REFUSED) == set(REASON) - {"none"}
    quiet = {"frames_placed", "frames_consumed", "frames_passed", "placed_bytes", "cnp_received", "cnp_due", "completions",
             "frames_sent", "sent_bytes", "host_frames_sent", "cnp_sent", "reads_served", "acks_sent"}
    assert set(EVENTS) == {name for name in COUNTERS if not name.startswith("drop_")} - quiet


def test_all_is_well(both):
    a, b = both
    b.qp.post_recv(RecvWR(sg=[b.mr.sge(0, 64)])), a.qp.post_recv(RecvWR(timeout_ns=900 * US))
    a.qp.post_send(SendWR(inline_data=b"x"))
    a.scq.wait(1), b.rcq.wait(1)
    b.qp.post_recv(RecvWR(timeout_ns=900 * US))
    status = a.context.status()
    assert status["card"]["counters"]["frames_sent"] == 1
    assert status["qps"][0]["sends"] == dict(posted=1, completed=1, waiting_ns=None)
    assert status["qps"][0]["state"] == "RTS" and status["qps"][0]["peer"] == {"qp_num": b.qp.qp_num, "ip": "10.0.0.2"}
    assert all("oldest receive" in f["what"] for f in problems(status))
    again = a.context.status()
    assert again["card"]["counters"] == {} and again["card"]["total"]["frames_sent"] == 1


def test_states(both):
    a, b = both
    other = make_end(a.context)
    assert said(a.context.status(), f"QP {other.qp.qp_num:#x}", "RESET", "connect()")
    other.qp.to_init()
    assert said(other.qp.status(), "state INIT")
    a.qp.to_err()
    assert said(a.context.status(), f"QP {a.qp.qp_num:#x}", "ERR", "to_reset()")
    a.context.disable()
    status = a.context.status()
    assert said(status, "discards every frame", "ctx.enable()") and said(status, "begins no frame")


def test_waiting(both):
    a, b = both
    assert said(b.context.status(), "no receive is posted")[0]["level"] == "note"
    b.qp.post_recv(RecvWR(0))
    b.context.sleep_ns(30 * US)
    status = b.qp.status()
    assert 30 * US <= status["qps"][0]["receives"]["waiting_ns"] < 32 * US
    assert said(status, "has waited for 3", "waits for ever", "timeout_ns")
    b.qp.post_recv(RecvWR(1, timeout_ns=100 * US))
    a.qp.post_send(SendWR())
    a.context.sleep_ns(10 * US)
    assert said(b.context.status(), "1 completions wait", "Poll them".lower())
    b.rcq.poll(1)
    status = b.qp.status()
    assert said(status, "ends when its time is up") and status["qps"][0]["receives"]["waiting_ns"] < 16 * US
    a.context.enable(tx=False)
    a.qp.post_send(SendWR())
    a.qp.post_send(SendWR(0, IBV_WR_RDMA_READ, sg=[a.mr.sge(0, 8)], rkey=b.mr.rkey, remote_addr=b.mr.addr))
    a.context.sleep_ns(5 * US)
    status = a.context.status()
    assert said(status, "begins no frame") and said(status, "1 READs have no answer")
    assert status["qps"][0]["sends"]["waiting_ns"] >= 5 * US
    a.context.enable()
    a.context.sleep_ns(20 * US)
    assert not said(a.context.status(), "have no answer")


def test_refusals_name_their_queue_pair_and_remedy(both):
    a, b = both
    for _ in range(3):
        a.qp.post_send(SendWR(inline_data=b"x"))
    a.qp.post_send(SendWR(0, IBV_WR_RDMA_WRITE, inline_data=b"x", rkey=1))
    a.scq.wait(4), b.context.sleep_ns(5 * US)
    status = b.context.status()
    assert status["qps"][0]["refused"] == {"no_receive": 3, "rkey": 1} and status["card"]["counters"]["drop_no_receive"] == 3
    assert said(status, f"QP {b.qp.qp_num:#x}", "3 frames refused", "no_receive", "post receives before the peer sends")
    assert b.context.status()["qps"][0]["refused"] == {}        # since the last look
    assert b.qp.status()["qps"][0]["refused"] == {"no_receive": 3, "rkey": 1}
    b.qp.post_recv(RecvWR(timeout_ns=US)), b.rcq.wait(1)
    assert said(b.context.status(), "deadlines 1")


def test_as_text(both):
    a, b = both
    b.qp.post_recv(RecvWR(0))
    text = str(b.context.status())
    assert "optinic1: xp" in text and f"{b.qp.qp_num:#x}" in text and "0 of 1" in text and "waits for ever" in text
    assert max(map(len, text.splitlines())) <= 120 and str(b.qp.status()).startswith("QP")
    b.rcq.wait(1, US)
    a.context.status()
    with open_device("model") as ctx:
        assert "Nothing is in the way." in str(ctx.status())
