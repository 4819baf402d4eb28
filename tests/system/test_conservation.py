"""As many completions as work requests, whatever goes wrong: every kind of refusal, failing reads and writes, deadlines,
preemption, flushes, in a random mix on all queue pairs at once."""

from collections import Counter

import pytest

from .rig import CFG, LINE, SLOT, Rig, ends

pytestmark = pytest.mark.rtl

QPS = range(1, 13)


def wrong_receive(rig, qpn, kind, timeout):
    """A receive whose buffer will not do."""
    fields = {"bad_key": dict(lkey=0xBAD), "other_pd": dict(lkey=rig.key(qpn % 12 + 1)), "small": dict(length=4),
              "outside": dict(va=rig.va(qpn) + 64 * SLOT - 2), "wraps": dict(va=2**64 - 8)}[kind]
    rig.card.post_receive(qpn, **{"va": rig.va(qpn), "length": SLOT, "lkey": rig.key(qpn), "timeout_ns": timeout} | fields)
    rig.posted[qpn] += 1


def frames_for(rig, rng, qpn, seq):
    """What arrives for one message: whole, in pieces, damaged, twice, with the wrong life, never."""
    size = rng.choice((0, 1, 40, 64, 200))
    data = rng.randbytes(size)
    good = rig.message(qpn, seq, data)
    kind = rng.choice(("good", "good", "good", "pieces", "missing", "twice", "icrc", "generation", "late", "far", "source", "pkey",
                       "nothing", "write", "rkey", "state"))
    if rig.types[qpn] == "uc":
        return {"icrc": [rig.message(qpn, seq, data, icrc_xor=1)], "nothing": [], "twice": [good] * 2,
                "pkey": [rig.message(qpn, seq, data, pkey=0x1234)], "source": [rig.message(qpn, seq, data, src="10.9.9.9")],
                "write": [rig.write(qpn, data, 63 * SLOT)]}.get(kind, [good])
    piece = lambda n: rig.message(qpn, seq, data, msg_len=3 * size, offset=n * size)
    return {"pieces": [piece(n) for n in rng.sample(range(3), 3)], "missing": [piece(0), piece(2)], "twice": [good] * 2,
            "icrc": [rig.message(qpn, seq, data, icrc_xor=1)], "generation": [rig.message(qpn, seq, data, generation=99)],
            "late": [rig.message(qpn, max(0, seq - 3), data)], "far": [rig.message(qpn, seq + 3000, data)], "nothing": [],
            "source": [rig.message(qpn, seq, data, src="10.9.9.9")], "pkey": [rig.message(qpn, seq, data, pkey=0x1234)],
            "write": [rig.write(qpn, data, 63 * SLOT)],
            "rkey": [rig.message(qpn, seq, data), rig.message(15, 0, data, generation=0)]}.get(kind, [good])


@pytest.mark.parametrize("run", range(4))
def test_each_receive_completes_once(rng, seed, run):
    with Rig(seed=seed, cq_entries=4096, read_latency=(5, 60), write_latency=(5, 60), w_pause=.1) as rig:
        card, sent, statuses = rig.card, 0, Counter()
        rig.types[15], rig.generations[15] = "xp", 0        # no such QP
        done = {qpn: [] for qpn in QPS}

        def poll():
            for c in card.poll(0):      # Card itself checks that indices are consecutive
                done[c.qpn].append(c)
                statuses[c.status, c.cause] += 1

        card.reg_write("DMA_TIMEOUT", 400)
        for qpn in QPS:
            rig.qp(qpn, "uc" if qpn % 3 == 0 else "xp", generation=qpn)
            if qpn % 4 == 1:
                rig.dev.inject(rig.ring(qpn, 16), 2 * LINE, rng.choice(("slverr", "short")), amount=5, count=6)
            if qpn % 4 == 2:
                rig.dev.inject(rig.memory[qpn], 30 * SLOT, "slverr", on="write", count=8)
        begun = dict.fromkeys(QPS, 0)
        for _ in range(25):
            for qpn in QPS:
                for _ in range(rng.randrange(6)):
                    if card.outstanding(qpn) < CFG.rq_entries:
                        timeout = rng.choice((None, 2000, 5000, 40_000))
                        if rng.random() < .25:
                            wrong_receive(rig, qpn, rng.choice(("bad_key", "other_pd", "small", "outside", "wraps")), timeout)
                        else:
                            rig.post(qpn, doorbell=False, timeout_ns=timeout)
                card.ring(qpn)
            batch = []
            for qpn in QPS:
                for seq in range(begun[qpn], rig.posted[qpn]):
                    batch.append(frames_for(rig, rng, qpn, seq))
                begun[qpn] = rig.posted[qpn]
            if rng.random() < .5:
                rng.shuffle(batch)
            frames = [f for some in batch for f in some]
            rig.send(*frames)
            sent += len(frames)
            rig.dev.run(rng.randrange(4000))
            poll()
        rig.settle(), poll()
        for qpn in QPS:
            if qpn % 2 and card.outstanding(qpn):       # the rest is flushed, or pushed out by a later message
                card.flush_qp(qpn)
        rig.settle(), poll()
        for qpn in QPS:
            if card.outstanding(qpn) and rig.types[qpn] == "xp":
                rig.dev.clear_injections()
                rig.exchange(rig.message(qpn, rig.posted[qpn] - 1, b""))
            elif card.outstanding(qpn):
                card.flush_qp(qpn)
            poll()
        print(dict(statuses), Counter(t.reason for t in rig.dev.traces()))
        for qpn in QPS:
            assert [c.index for c in done[qpn]] == list(range(rig.posted[qpn])), qpn
        assert sum(len(d) for d in done.values()) == sum(rig.posted.values()) > 500
        for wanted in (("success", "complete"), ("partial", "timeout"), ("partial", "preempted"), ("error", "flushed"),
                       ("error", "complete")):
            assert statuses[wanted], wanted
        counters = card.counters()
        assert counters["cq_overrun"] == 0 and counters["fetch_errors"] > 0 and counters["write_errors"] > 0
        judged = sum(n for name, n in counters.items() if name.startswith("drop_") or name in (
            "frames_placed", "frames_consumed", "frames_passed"))
        assert judged == rig.dev.frames_sent == rig.dev.trace_count >= sent
        reasons = {t.reason for t in rig.dev.traces()}
        assert reasons >= {"none", "icrc", "qpn", "pkey", "source", "generation", "late", "no_receive", "rkey", "pd", "bounds"}
        assert rig.dev.faults == []
        for qpn in QPS:
            rig.dev.clear_injections()
            rig.qp(qpn, rig.types[qpn], generation=100)
            rig.post(qpn, 2)
            assert rig.exchange(rig.message(qpn, 0, b"a"), rig.message(qpn, 1, b"b")) == ["placed"] * 2
            assert [i for i, _, _ in ends(card.poll(0))] == [0, 1]
