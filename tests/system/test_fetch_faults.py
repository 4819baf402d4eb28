"""Host reads of receive WQEs that fail in every way: the receive ends with an error, in time, and all others go on."""

import pytest

from .rig import CFG, LINE, Rig, ends

pytestmark = pytest.mark.rtl

TIMEOUT = 600           # DMA_TIMEOUT, cycles
SLACK = 200             # the way through the pipeline and the host's own latency
ANSWERED = {"slverr": dict(action="slverr"), "decerr": dict(action="decerr"), "short": dict(action="short", amount=3)}
LATE = dict(action="late", amount=3 * TIMEOUT, count=1)
NEVER = dict(action="never", count=1)
FAULTS = ANSWERED | {"late": LATE, "never": NEVER}


@pytest.fixture
def rig(seed):
    with Rig(seed=seed, log=True) as rig:
        rig.card.reg_write("DMA_TIMEOUT", TIMEOUT)
        for qpn in (1, 2, 3):
            rig.qp(qpn, "uc" if qpn == 3 else "xp")
        yield rig


def reads(rig, addr, length):
    return sum(1 for t in rig.dev.transfers() if not t["write"] and addr <= t["addr"] < addr + length)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_head_whose_wqe_cannot_be_read(rig, fault, rng):
    """The clock of a head is started by the card itself, so the fault shows without a packet."""
    rig.dev.inject(rig.ring(1), LINE, **FAULTS[fault])
    start = rig.dev.cycle
    rig.post(1)
    rig.post(2), rig.post(3)
    done = rig.card.wait(0, 1, limit_cycles=TIMEOUT + SLACK, step=16)
    assert ends(done) == [(0, "error", done[0].cause)] and done[0].qpn == 1 and done[0].byte_len == 0
    assert rig.dev.cycle - start < TIMEOUT + 2 * SLACK
    assert rig.exchange(rig.message(1, 0, b"x" * 100), rig.message(2, 0, b"y" * 100), rig.message(3, 0, b"z" * 100)) == [
        "late", "placed", "placed"]
    assert [(c.qpn, c.status) for c in rig.card.poll(0)] == [(2, "success"), (3, "success")]
    rig.dev.run(4 * TIMEOUT)
    rig.settle()
    assert rig.card.counter("fetch_errors") == reads(rig, rig.ring(1), LINE) == 1
    assert rig.window(1) == bytes(len(rig.window(1)))
    rig.dev.clear_injections()
    rig.works(1, rng), rig.works(2, rng), rig.works(3, rng)


@pytest.mark.parametrize("fault", ANSWERED)
def test_a_packet_whose_wqe_cannot_be_read(rig, fault, rng):
    """The packet is refused, its receive ends with an error within the bound, and so does each other one of the line; QPs
    that wait behind the read get what is theirs."""
    rig.dev.inject(rig.ring(1, 4), LINE, **ANSWERED[fault])
    rig.post(1, 12), rig.post(2, 4), rig.post(3, 4)
    rig.settle()
    data = {2: rng.randbytes(200), 3: rng.randbytes(200)}
    sent = rig.dev.cycle
    rig.send(rig.message(1, 4, b"?" * 200), rig.message(2, 0, data[2]), rig.message(3, 0, data[3]))
    assert rig.dev.run_until("traces", 3, limit=TIMEOUT)
    print(f"{fault}: verdicts after {rig.dev.cycle - sent} cycles")
    rig.settle()
    assert rig.verdicts() == ["no_receive", "placed", "placed"]
    done = rig.card.poll(0)
    assert [e[:2] for e in ends(done, 1)] == [(i, "partial") for i in range(4)] + [(i, "error") for i in range(4, 8)]
    assert [e[:2] for e in ends(done, 2) + ends(done, 3)] == [(0, "success"), (0, "success")]
    for qpn in (2, 3):
        assert rig.buffer(qpn, 0, 200) == data[qpn]
    assert b"?" not in rig.window(1)
    assert rig.card.counter("fetch_errors") == reads(rig, rig.ring(1, 4), LINE) >= 4
    assert rig.exchange(rig.message(1, 8, b"good")) == ["placed"] and rig.buffer(1, 8, 4) == b"good"
    rig.dev.clear_injections()
    rig.qp(1, generation=2)
    rig.works(1, rng, count=12)


def test_a_packet_whose_wqe_comes_late(rig, rng):
    """All that waits behind the read has its verdict within DMA_TIMEOUT; the late beats are swallowed, then all is well."""
    rig.post(2, 4), rig.post(3, 4)
    rig.settle()
    rig.dev.inject(rig.ring(1, 4), LINE, **LATE | {"count": 2})     # the first one is read ahead, and nobody needs it
    rig.post(1, 12)
    rig.settle()
    assert rig.card.poll(0) == []
    sent = rig.dev.cycle
    rig.send(rig.message(1, 4, b"?" * 200), rig.message(2, 0, b"2" * 200), rig.message(3, 0, b"3" * 200))
    assert not rig.dev.run_until("traces", 1, limit=TIMEOUT - SLACK)
    assert rig.dev.run_until("traces", 3, limit=2 * SLACK)
    print(f"verdicts after {rig.dev.cycle - sent} cycles")
    assert rig.verdicts() == ["no_receive", "placed", "placed"]
    rig.dev.run(4 * TIMEOUT)
    rig.settle()
    done = rig.card.poll(0)
    assert [e[:2] for e in ends(done, 2) + ends(done, 3)] == [(0, "success"), (0, "success")]
    mine = [e[:2] for e in ends(done, 1)]
    assert mine == [(i, "partial") for i in range(4)] + [(i, "error") for i in range(4, len(mine))] and 5 <= len(mine) <= 8
    assert rig.dev.axi_totals()["reads_unanswered"] == 0 and b"?" not in rig.window(1)
    assert rig.exchange(rig.message(1, 8, b"good")) == ["placed"] and rig.buffer(1, 8, 4) == b"good"
    for qpn, generation in ((1, 1), (2, 0), (3, 0)):
        rig.qp(qpn, rig.types[qpn], generation=generation)
        rig.works(qpn, rng)


def test_a_packet_whose_wqe_never_comes(rig, rng):
    """All that waits behind the read has its verdict within DMA_TIMEOUT, and then the card is as before, without a reset."""
    rig.post(2, 4), rig.post(3, 4)
    rig.settle()
    rig.dev.inject(rig.ring(1, 4), LINE, **NEVER | {"count": 2})    # the first one is read ahead, and nobody needs it
    rig.post(1, 12)
    rig.settle()
    sent = rig.dev.cycle
    rig.send(rig.message(1, 4, b"?" * 200), rig.message(2, 0, b"2" * 200), rig.message(3, 0, b"3" * 200))
    assert rig.dev.run_until("traces", 3, limit=TIMEOUT + SLACK)
    print(f"verdicts after {rig.dev.cycle - sent} cycles")
    assert rig.verdicts() == ["no_receive", "placed", "placed"]
    rig.settle()
    done = rig.card.poll(0)
    assert [e[:2] for e in ends(done, 2) + ends(done, 3)] == [(0, "success"), (0, "success")]
    assert (4, "error") in [e[:2] for e in ends(done, 1)] and b"?" not in rig.window(1)
    assert rig.exchange(rig.message(1, 8, b"good")) == ["placed"] and rig.buffer(1, 8, 4) == b"good"
    assert rig.dev.axi_totals()["reads_unanswered"] == 2
    for qpn, generation in ((1, 1), (2, 0), (3, 0)):
        rig.qp(qpn, rig.types[qpn], generation=generation)
        rig.works(qpn, rng)


def test_reads_lost_one_after_the_other(rig, rng):
    """Each lost read takes a slot for good; as long as one is left, every receive but those whose read was lost succeeds."""
    qps = range(4, 4 + CFG.reads_outstanding - 1)
    for n, qpn in enumerate(qps):
        rig.qp(qpn)
        rig.dev.inject(rig.ring(qpn), LINE, **NEVER)
        rig.post(qpn)
        done = rig.card.wait(0, 1, limit_cycles=TIMEOUT + SLACK, step=16)
        assert ends(done) == [(0, "error", done[0].cause)] and done[0].qpn == qpn
        assert rig.dev.axi_totals()["reads_unanswered"] == n + 1 == rig.card.counter("fetch_errors")
        for other in (1, 2, 3, qpn):
            rig.works(other, rng)
    assert rig.card.counter("fetch_errors") == len(qps)


def test_answers_in_any_order_beat_by_beat(rig, rng):
    """Reads of many QPs under way at once, answered in any order and mixed, and answers that nobody asked for between them."""
    rig.dev.set(read_latency=(1, 60), shuffle=300, interleave=1, r_pause=.2, ar_pause=.2, log=1)
    qps = range(1, CFG.num_qps)
    for qpn in qps[3:]:
        rig.qp(qpn)
    start = len(rig.dev.transfers())
    for round in range(6):
        for qpn in qps:
            rig.post(qpn, 4)
        for _ in range(4):
            rig.dev.answer_unasked(rng.choice((CFG.reads_outstanding, 0x7F, 0x80, 0xFF)), rng.randrange(1, 40))
        sent = [(qpn, 4 * round + i, rng.randbytes(rng.randrange(1, 200))) for qpn in qps for i in range(4)]
        rng.shuffle(sent)
        sent.sort(key=lambda m: m[1])               # mixed between QPs, in order in each one
        assert rig.exchange(*(rig.message(*m) for m in sent)) == ["placed"] * len(sent)
        done = rig.card.poll(0)
        assert {(c.qpn, c.index, c.status) for c in done} == {(q, i, "success") for q, i, _ in sent} and len(done) == len(sent)
        for qpn, index, data in sent:
            assert rig.buffer(qpn, index, len(data)) == data
    reads = [t for t in rig.dev.transfers()[start:] if not t["write"]]      # in order of their ends
    overtaken = sum(b["cycle"] < a["cycle"] for a, b in zip(reads, reads[1:]))
    assert {int(t["id"]) for t in reads} == set(range(CFG.reads_outstanding)) and overtaken > len(reads) / 5
    assert rig.card.counter("fetch_errors") == 0


def test_a_slow_read_is_no_error(rig, rng):
    rig.dev.inject(rig.ring(1), LINE, "late", amount=TIMEOUT - 100, count=1)
    rig.post(1)
    assert rig.exchange(rig.message(1, 0, b"slow")) == ["placed"]
    assert ends(rig.card.poll(0)) == [(0, "success", "complete")] and rig.card.counter("fetch_errors") == 0


def test_late_answers_of_many_reads_are_swallowed(rig, rng):
    """As many late reads as the card may have outstanding; when their beats come, nobody takes them for something else."""
    qps = range(4, 4 + CFG.reads_outstanding)
    for qpn in qps:
        rig.qp(qpn)
        rig.dev.inject(rig.ring(qpn), LINE, "late", amount=4 * TIMEOUT, count=1)
    for qpn in qps:
        rig.post(qpn)
    done = rig.card.wait(0, len(qps), limit_cycles=2 * TIMEOUT)
    assert {c.qpn for c in done} == set(qps) and {c.status for c in done} == {"error"}
    assert rig.card.counter("fetch_errors") == len(qps)
    # all slots are taken by reads without an answer: what needs one more fails at once, what needs none goes on
    start = rig.dev.cycle
    rig.post(1)
    done = rig.card.wait(0, 1, limit_cycles=TIMEOUT // 2, step=16)
    assert [(c.qpn, c.status) for c in done] == [(1, "error")] and rig.dev.cycle - start < TIMEOUT // 2
    assert rig.exchange(rig.write(2, b"needs no receive")) == ["placed"]
    rig.dev.run(5 * TIMEOUT)
    rig.settle()
    assert rig.dev.axi_totals()["reads_unanswered"] == 0
    for qpn in (1, 2, 3, *qps):
        rig.works(qpn, rng)


def test_a_bus_that_has_died_and_a_reset(rig, rng):
    """From here on no read is answered: each receive of every QP ends with an error, in time, and nothing else is lost."""
    rig.dev.inject(rig.card.rq_base, CFG.num_qps * CFG.rq_entries * 32, "never")
    per_qp = 4
    for qpn in (1, 2, 3):
        rig.post(qpn, per_qp)
    done = rig.card.wait(0, 3 * per_qp, limit_cycles=(CFG.reads_outstanding + 1) * (TIMEOUT + SLACK))
    for qpn in (1, 2, 3):
        assert [e[:2] for e in ends(done, qpn)] == [(i, "error") for i in range(per_qp)]
    assert rig.exchange(*(rig.write(qpn, b"write", 100) for qpn in (1, 2, 3))) == ["placed"] * 3
    assert rig.buffer(3, 0, 110)[100:105] == b"write"
    rig.card.fence()
    rig.dev.clear_injections()
    rig.dev.reset()
    rig.bring_up()
    rig.verdicts()
    for qpn in (1, 2, 3):
        rig.qp(qpn)
        rig.works(qpn, rng)
