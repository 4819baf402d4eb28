"""One queue pair's trouble is not another one's, beyond the limits that are stated: one host read for a packet whose receive
can't be read, one turn in two for deadlines, and the order of arrival."""

import pytest

from .rig import CFG, SLOT, Rig, ends

pytestmark = pytest.mark.rtl

GOOD = 200          # messages of the QP that is to notice nothing


@pytest.fixture
def rig(seed):
    with Rig(seed=seed, cq_entries=4096) as rig:
        rig.qp(2), rig.qp(3, "uc")
        yield rig


def good_frames(rig, qpn=2):
    """WRITEs of 120 bytes, and each tenth frame a message."""
    out = []
    for i in range(GOOD):
        data = bytes([i]) * 120
        out.append(rig.message(qpn, i // 10, data) if i % 10 == 9 else rig.write(qpn, data, (40 + i % 24) * SLOT))
    return out


def run_with(rig, trouble, meanwhile=lambda: None):
    """The good frames, after each one a frame of the trouble's; returns the cycles until the last verdict. `meanwhile` is called
    when everything is ready and nothing has been sent."""
    rig.post(2, GOOD // 10)
    rig.settle()
    good, frames = good_frames(rig), []
    for i, frame in enumerate(good):
        frames.append(frame)
        if trouble:
            frames.append(trouble[i % len(trouble)])
    meanwhile()
    first, start = rig.dev.trace_count, rig.dev.cycle
    rig.dev.send_many(frames)
    assert rig.dev.run_until("traces", first + len(frames), limit=2_000_000)
    cycles = rig.dev.cycle - start
    rig.settle()
    found = [t for t in rig.dev.traces(first) if t.qpn == 2 and t.reason != "runt"]      # a runt's QPN means nothing
    assert len(found) == GOOD and {t.verdict for t in found} == {"placed"}
    done = [c for c in rig.card.poll(0) if c.qpn == 2]
    assert ends(done) == [(i, "success", "complete") for i in range(GOOD // 10)]
    return cycles


def beats(rig, frames):
    return sum(-(-len(f) // rig.cfg.beat_bytes) for f in frames)


@pytest.mark.parametrize("what", ["generation", "qpn", "no_receive", "rkey", "icrc", "runt"])
def test_a_flood_of_refused_frames(rig, what):
    """They cost the time in which they arrive, and no more: the card holds the MAC not once."""
    rig.qp(1)
    rig.types[9], rig.generations[9] = "xp", 0
    trouble = {"generation": [rig.write(1, b"", generation=3)], "qpn": [rig.write(9, b"")], "no_receive": [rig.message(1, 7, b"")],
               "rkey": [rig.write(1, b"x", 0, tag=1)], "icrc": [rig.write(1, b"", icrc_xor=1)], "runt": [b"\0" * 3]}[what]
    if what == "rkey":
        rig.card.remove_region(rig.key(1))
        rig.regions.discard(1)
    cycles = run_with(rig, trouble)
    sent = beats(rig, good_frames(rig)) + GOOD * beats(rig, trouble)
    assert rig.dev.mac_stalls == 0 and cycles < sent + 400, (cycles, sent)
    assert rig.card.counter(f"drop_{what}") == GOOD


@pytest.mark.parametrize("fault, cost", [("slverr", 100), ("never", 700)])
def test_a_queue_pair_whose_receives_cannot_be_read(rig, fault, cost):
    """Each such packet holds those behind it for one read, at most DMA_TIMEOUT cycles; then they go on."""
    if fault == "never":
        rig.card.reg_write("DMA_TIMEOUT", 600)
    rig.qp(1)
    rig.post(2, 1)
    rig.settle()
    rig.dev.inject(rig.ring(1), CFG.rq_entries * 32, fault)
    rig.card.destroy_qp(2)
    rig.qp(2, generation=1)
    rig.post(2, GOOD // 10, doorbell=True)
    rig.settle()
    rig.card.post_receive(1, rig.va(1), SLOT, rig.key(1))
    assert [(c.qpn, c.status) for c in rig.card.wait(0, 1, limit_cycles=1500)] == [(1, "error")]
    rig.qp(1, generation=1)
    rig.post(1, 60)
    bad = [rig.message(1, i, b"?") for i in range(59, 60)]
    start, first = rig.dev.cycle, rig.dev.trace_count
    frames = [bad[0]] + [rig.write(2, bytes(50), i * SLOT) for i in range(20)]
    rig.send(*frames)
    assert rig.dev.run_until("traces", first + 21, limit=20 * cost)
    took = rig.dev.cycle - start
    assert {t.verdict for t in rig.dev.traces(first) if t.qpn == 2} == {"placed"}
    print(f"{fault}: {took} cycles")
    assert took < 3 * cost + beats(rig, frames)
    rig.dev.run(40_000)
    rig.settle()
    done = rig.card.poll(0)
    assert [i for i, _, _ in ends(done, 1)] == list(range(60))


def test_expiry_without_end(rig):
    """All other QPs run out of time as fast as they can, one receive a scanner's unit each; frames go on beside them."""
    plain = run_with(rig, [])
    hasty = [q for q in range(CFG.num_qps) if q not in (2, 3)]
    for qpn in hasty:
        rig.qp(qpn)
    rig.qp(2, generation=1)
    expired = lambda: rig.card.counter("deadlines")
    before = []

    def post():
        for qpn in hasty:
            rig.post(qpn, 64, timeout_ns=1, doorbell=False)
        for qpn in hasty:
            rig.card.ring(qpn)
        before.append(expired())

    cycles = run_with(rig, [], post)
    assert before[0] < 64 * len(hasty) // 4     # most of them were still to come when the frames were
    print(f"{plain} cycles without, {cycles} with deadlines")
    assert cycles < plain + 400
    rig.settle()
    rig.card.poll(0)
    assert expired() == 64 * len(hasty) and all(rig.card.outstanding(qpn) == 0 for qpn in hasty)


def test_doorbells_and_commands_without_end(rig):
    """A driver that rings and commands as fast as its bus lets it does not stop the frames."""
    plain = run_with(rig, [])
    rig.qp(2, generation=1), rig.qp(1)
    rig.post(2, GOOD // 10)
    rig.settle()
    first, start = rig.dev.trace_count, rig.dev.cycle
    rig.dev.send_many(good_frames(rig))
    while rig.dev.trace_count < first + GOOD and rig.dev.cycle - start < 20 * plain:
        rig.card.reg_write("RQ_DOORBELL", 1 << 16)
        rig.card.reg_write("RQ_DOORBELL", 5 << 16 | 7)
        rig.card.fence()
    assert rig.dev.cycle - start < 2 * plain + 400
    rig.settle()
    assert len(rig.card.poll(0)) == GOOD // 10
