"""The control layer with transport rc, against the card made of Python: rings, accounts, and what a completion has the driver
do."""

import pytest

from host_driver.card import Card, CardError, Completion, QueueFull
from optinic.abi.structs import CAUSE, FATAL, OPCODE, RECV_WQE, SEND_WQE, STATUS
from optinic.config import preset
from .test_card import FakeDevice

CFG = preset("tiny", transport="rc", rq_entries=32, sq_entries=16)
ROWS = 16
REGION = dict(key=77, va=0x10000, length=0x1000, access=("local_write", "remote_write"), pd=3, delta=0x100000)


@pytest.fixture
def dev():
    return FakeDevice(CFG, TRANSPORT=2)


@pytest.fixture
def card(dev):
    card = Card(dev, CFG)
    card.set_cq(2, entries=64)
    card.set_cq(3, entries=64)
    card.create_qp(5, cq=2, send_cq=3, pd=3, mtu=512, peer_qpn=0xABCDE, sq_psn=0x123456, rq_psn=0x654321, timeout=14, retry_cnt=6,
                   rnr_retry=7, min_rnr_timer=12, window=4)
    card.add_region(**REGION)
    return card


def send_done(dev, index, *, status="success", cause="complete", skipped=0):
    dev.complete(3, qpn=5, queue=1, wqe_index=index & 0xFFFF, opcode=0, status=STATUS[status],
                 cause=(FATAL if status == "fatal" else CAUSE)[cause], skipped=skipped, time=9)


def ends(found):
    return [(c.wr_id, c.opcode, c.status, c.cause, c.byte_len) for c in found]


def commands(dev, name):
    return [c for c in dev.commands if c[0] == name]


def test_attributes_in_qp_set(card, dev):
    expected = (5, 2 | 2 << 4 | 2 << 8, 3, 0, 2, 0x123456 | 6 << 24 | 7 << 27, 0x654321 | 14 << 24, 12 | 4 << 8, 0xABCDE, 3)
    assert commands(dev, "qp_set")[-1][1:11] == expected
    card.flush_qp(5)
    assert commands(dev, "qp_flush")[-1][1:11] == (5, expected[1] ^ 1, *expected[2:])
    card.create_qp(6, type="uc", cq=2, sq_psn=7)
    assert commands(dev, "qp_set")[-1][2] == 2 | 1 << 4 | 3 << 8 and commands(dev, "qp_set")[-1][6] & 0xFFFFFF == 7
    for bad, said in ((dict(type="xp"), "this card is of transport rc, its queue pairs of type rc or uc"), (dict(type="ud"), "transport rc"),
                      (dict(timeout=32), "timeout=32 is outside 0..31"), (dict(retry_cnt=8), "retry_cnt=8"), (dict(sq_psn=1 << 24), "sq_psn"),
                      (dict(min_rnr_timer=-1), "min_rnr_timer"), (dict(window=65), "window"), (dict(paths=2), "transport rc")):
        with pytest.raises(ValueError, match=said):
            card.create_qp(7, **bad)


def test_the_other_transport_names_itself():
    card = Card(FakeDevice())
    for bad, said in ((dict(type="rc"), "type='rc': this card is of transport xp, its queue pairs of type xp or uc"),
                      (dict(timeout=3), "timeout: this card is of transport xp")):
        with pytest.raises(ValueError, match=said):
            card.create_qp(1, **bad)
    with pytest.raises(CardError, match="transport is sr"):
        Card(FakeDevice(TRANSPORT=3))


def test_rings_of_results(card, dev):
    """Behind the receive rings of all rows, one for each: entry n is where the n-th READ or atomic puts what it brings."""
    assert card.sq_base - card.rq_base == 2 * ROWS * CFG.rq_entries * RECV_WQE.size

    def entry(n):
        at = card.rq_base + ((ROWS + 5) * CFG.rq_entries + n) * RECV_WQE.size
        fields = RECV_WQE.unpack(dev.read(at, RECV_WQE.size))
        return fields["va"], fields["length"], fields["lkey"]

    def wqe(n):
        return SEND_WQE.unpack(dev.read(card.sq_base + (5 * CFG.sq_entries + n) * 64, 64))
    card.post_send(5, "send", 0x10000, 8, 77)
    card.post_send(5, "read", 0x10010, 100, 77, remote_va=1 << 40, rkey=9)
    card.post_send(5, "fetch_add", 0x10020, lkey=77, remote_va=1 << 41, rkey=9, operands=(1 << 63 | 5, 0))
    card.post_send(5, "compare_swap", 0x10028, 8, 77, remote_va=1 << 41, rkey=9, operands=(0xA << 60, 0x123456789ABCDEF0))
    assert [entry(n) for n in range(3)] == [(0x10010, 100, 77), (0x10020, 8, 77), (0x10028, 8, 77)]
    assert {k: v for k, v in wqe(1).items() if v} == dict(opcode=5, signaled=1, length=100, rkey=9, remote_va=1 << 40)
    assert {k: v for k, v in wqe(2).items() if v} == dict(opcode=9, signaled=1, rkey=9, remote_va=1 << 41, va=1 << 63 | 5)
    assert {k: v for k, v in wqe(3).items() if v} == dict(opcode=8, signaled=1, rkey=9, remote_va=1 << 41, va=0xA << 60,
                                                          lkey=0x9ABCDEF0, compare_hi=0x12345678)
    card.post_send(5, "send_inv", 0x10000, 8, 77, imm=0xBEEF)
    assert (wqe(4)["opcode"], wqe(4)["imm"], wqe(4)["seq"]) == (10, 0xBEEF, 0)


def test_a_run_is_taken_apart(card, dev):
    """Signaled ones have a completion each, with what was posted; unsignaled ones only make room."""
    kinds = [("write", 100), ("send", 20), ("read", 3000), ("fetch_add", 8), ("write_imm", 0), ("compare_swap", 8)]
    for i, (op, length) in enumerate(kinds):
        remote = dict(remote_va=64, rkey=9) if op not in ("send",) else {}
        operands = dict(operands=(1, 2)) if length == 8 else {}
        card.post_send(5, op, 0x10000 + 64 * i, length, 77, signaled=i % 3 != 1, wr_id=i, **remote, **operands)
    send_done(dev, 2, skipped=2)
    assert card.poll(3) == [
        Completion(5, i, kinds[i][0], "success", "complete", kinds[i][1], kinds[i][1], time_ns=9, queue="send", wr_id=i) for i in (0, 2)]
    assert card.outstanding(5, "send") == 3
    send_done(dev, 5, skipped=2)
    assert [c.wr_id for c in card.poll(3)] == [3, 5] and card.outstanding(5, "send") == 0


def test_a_gap_in_the_run_is_noticed(card, dev):
    card.post_send(5, "send", signaled=False), card.post_send(5, "send")
    send_done(dev, 1)
    with pytest.raises(CardError, match="completion of send 1, where 0 was due"):
        card.poll(3)


def test_more_completions_than_16_bits_count(card, dev):
    sends = card._qp(5).sends
    sends.posted = sends.completed = sends.announced = (1 << 16) - 100
    for i in range(sends.posted, (1 << 16) + 20):
        card.post_send(5, "write", remote_va=1, rkey=1, signaled=i % 5 == 0, wr_id=i)
        if i % 10 == 5:
            send_done(dev, i, skipped=min(9, i - sends.completed))
            assert [c.index for c in card.poll(3)][-2:] == [i - 5, i]
    assert i > 1 << 16


def test_results_of_atomics_are_turned(card, dev):
    """Where the region lies on the bus, once, and nothing that isn't the result of an atomic that succeeded."""
    data = bytes(range(1, 9))
    for at in (0x110000, 0x110040, 0x110080):
        dev.write(at, data)
    card.post_send(5, "fetch_add", 0x10000, 8, 77, remote_va=8, rkey=9, operands=(1, 0), signaled=False)
    card.post_send(5, "read", 0x10040, 8, 77, remote_va=8, rkey=9)
    card.post_send(5, "compare_swap", 0x10080, 8, 77, remote_va=8, rkey=9, operands=(1, 0))
    send_done(dev, 1, skipped=1)
    send_done(dev, 2, status="fatal", cause="protection")
    card.poll(3)
    assert [dev.read(at, 8) for at in (0x110000, 0x110040, 0x110080)] == [data[::-1], data, data]


def test_a_failed_send(card, dev):
    """Its completion comes though it wasn't signaled; the driver flushes by itself, once."""
    for i in range(4):
        card.post_send(5, "write", remote_va=1, rkey=1, signaled=i == 0, wr_id=i)
    send_done(dev, 0)
    send_done(dev, 1, status="fatal", cause="remote_access")
    assert ends(card.poll(3)) == [(0, "write", "success", "complete", 0), (1, "write", "fatal", "remote_access", 0)]
    assert len(commands(dev, "qp_flush")) == 1 and card.failure(5).cause == "remote_access"
    send_done(dev, 3, status="error", cause="flushed", skipped=1)
    assert ends(card.poll(3)) == [(i, "write", "error", "flushed", 0) for i in (2, 3)]
    with pytest.raises(CardError, match="state error"):
        card.post_receive(5, 0, 0, 0)
    assert len(commands(dev, "qp_flush")) == 1 and card.outstanding(5, "send") == 0


@pytest.mark.parametrize("polled", [2, 3])
def test_an_event(card, dev, polled):
    """A failure by a request of the peer is told in the receive CQ; who polls only the other one has it flushed as well."""
    card.post_receive(5, 0x10000, 8, 77, wr_id="r")
    card.post_send(5, "send", wr_id="s")
    dev.complete(2, qpn=5, queue=0, wqe_index=0, opcode=OPCODE["event"], status=STATUS["fatal"], cause=FATAL["remote_invalid"])
    found = card.poll(polled)
    assert len(commands(dev, "qp_flush")) == 1
    assert ends(found or card.poll(2)) == [(None, "event", "fatal", "remote_invalid", 0)]
    assert card.outstanding(5) == 1         # it is the end of nothing that was posted
    dev.complete(2, qpn=5, queue=0, wqe_index=0, status=STATUS["error"], cause=CAUSE["flushed"])
    assert ends(card.poll(2)) == [("r", "none", "error", "flushed", 0)]


def test_a_failure_of_an_old_life(card, dev):
    """It is found when the next one is made, and that one is not flushed for it."""
    card.post_send(5, "send", wr_id="old")
    send_done(dev, 0, status="fatal", cause="retry")
    card.create_qp(5, cq=2, send_cq=3)
    assert not commands(dev, "qp_flush") and card.failure(5) is None
    assert ends(card.poll(3)) == [("old", "send", "fatal", "retry", 0)] and not commands(dev, "qp_flush")


@pytest.mark.parametrize("own, told", [(dict(), 77), (dict(pd=4), None), (dict(access=("local_write",)), None)], ids=str)
def test_invalidation(card, dev, own, told):
    """Only a key of the queue pair's domain, with rights for peers."""
    card.remove_region(77)
    card.add_region(**REGION | own)
    card.post_receive(5, 0, 0, 0, wr_id="r")
    dev.complete(2, qpn=5, queue=0, wqe_index=0, opcode=OPCODE["send_inv"], imm=77)
    done, = card.poll(2)
    assert (done.opcode, done.imm, done.invalidated, card.has_region(77)) == ("send_inv", 77, told, told is None)


def test_as_many_results_as_there_is_room_for(dev):
    cfg = CFG.with_(rq_entries=32, sq_entries=64)
    dev = FakeDevice(cfg, TRANSPORT=2)
    card = Card(dev, cfg)
    card.set_cq(3, entries=256)
    card.create_qp(5, cq=3)
    for i in range(32):
        card.post_send(5, "read", 0, 8, 1, remote_va=1, rkey=1)
    with pytest.raises(QueueFull, match="32 READs and atomics without a result"):
        card.post_send(5, "read", 0, 8, 1, remote_va=1, rkey=1)
    card.post_send(5, "send")


def test_an_event_has_room(card):
    """A CQ keeps a place for the failure of each queue pair beside what is posted."""
    card.set_cq(4, entries=4)
    card.create_qp(6, cq=4, send_cq=3)
    assert card.room(6) == 3
    card.destroy_qp(6)
    card.create_qp(6, type="uc", cq=4, send_cq=3)
    assert card.room(6) == 4


@pytest.mark.parametrize("bad, said", [
    (dict(opcode="send", timeout_ns=5), "timeout_ns=5: this card is of transport rc"), (dict(opcode="send", tag=1), "tag=1"),
    (dict(opcode="send", seq=0), "seq=0"), (dict(opcode="fetch_add", remote_va=8), "needs operands"),
    (dict(opcode="send", operands=(1, 2)), "has no operands"), (dict(opcode="fetch_add", remote_va=4, operands=(1, 0)), "multiple of 8"),
    (dict(opcode="fetch_add", remote_va=8, operands=(1 << 64, 0)), "does not fit 64 bits"),
    (dict(opcode="compare_swap", remote_va=8, operands=(0, 1), inline=b""), "nothing to inline"), (dict(opcode="flush"), "is not one of"),
])
def test_a_wrong_send_changes_nothing(card, dev, bad, said):
    before = dict(dev.memory)
    with pytest.raises(ValueError, match=said):
        card.post_send(5, **bad)
    assert dev.memory == before and card.outstanding(5, "send") == 0 and card._qp(5).results == 0


def test_what_uc_and_receives_have_not(card):
    card.create_qp(6, type="uc", cq=2)
    for op in ("read", "compare_swap", "send_inv"):
        with pytest.raises(ValueError, match="type uc"):
            card.post_send(6, op)
    with pytest.raises(ValueError, match="no time limit"):
        card.post_receive(6, 0, 0, 0, timeout_ns=1000)
