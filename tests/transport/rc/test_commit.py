"""RcCommit against a plain reading of its rules: settled records in; jobs, puts, turns, progress, answers and verdicts out."""

from collections import deque

import pytest
from amaranth.hdl import Const

from optinic.abi.structs import CAUSE, FATAL, STATUS
from optinic.abi.verdicts import REASON
from optinic.memory.job import JobKind
from optinic.transport.rc import commit as commit_module
from optinic.transport.rc.commit import RcCommit
from optinic.transport.rc.records import NAK_ACCESS, NAK_INVALID, NAK_OPERATION, NAK_SEQUENCE, Reply, Turn
from optinic.transport.xp.records import WorkKind
from tests.formal.mutate import mutant
from tests.transport.rc.commit_rig import (CFG, COMMANDS, DROPPED, FRAME, GRANTS, PASSED, Bench, answer, atomic,
                                           read, record, replay, send, uc, write)


def traffic(rng, count, qps=3, replays=True):
    """QP 0 is UC, the others RC. Every fault is there, and so is the RESET that ends it."""
    psn, open_uc, out = 0, False, []
    atomics = {qp: deque(maxlen=20) for qp in range(qps)}
    bad = lambda: rng.choice([dict(mem_reason=REASON[n]) for n in ("rkey", "pd", "access", "bounds")] + [dict(short=1)])

    def some(chance, fields):
        return fields if rng.random() < chance else {}
    dead = set()
    while len(out) < count:
        qp = rng.randrange(qps)
        kind = rng.random()
        psn += 1
        if kind < .06 or (qp in dead and rng.random() < .3):
            command = rng.choice(COMMANDS)
            out.append(record(rng, command, qp, ours=1, turn=Turn.HALT if command == WorkKind.FLUSH else Turn.NONE,
                              posted=rng.choice([0, 1, 5, rng.getrandbits(16)])))
            if command == WorkKind.RESET:
                atomics[qp].clear()
                dead.discard(qp)
        elif kind < .14:
            out.append(record(rng, qp=qp, verdict=DROPPED, reason=rng.choice(list(REASON.values())[1:]), known=rng.getrandbits(1)))
        elif kind < .17:
            out.append(record(rng, qp=qp, verdict=PASSED, known=0))
        elif kind < .2:
            out.append(record(rng, qp=qp, is_cnp=1))
        elif qp == 0:
            begins = not open_uc or rng.random() < .2
            ends = rng.randrange(2)
            r = uc(rng, qp, begins=int(begins), ends=ends, takes=rng.randrange(2),
                   **some(.15, dict(mem_reason=REASON["rkey"]) | some(.3, dict(failed=1))))
            open_uc = not ends
            out.append(r)
        elif kind < .4:
            out.append(write(rng, qp, reply=rng.choice([Reply.NONE, Reply.ACK]), ends=rng.randrange(2),
                             **some(.04, dict(mem_reason=REASON["access"]))))
        elif kind < .5:
            out.append(send(rng, qp, index=rng.choice([rng.randrange(8), rng.getrandbits(32)]),
                            **some(.1, bad() | some(.3, dict(failed=1)))))
            out[-1]["short"] = 0
        elif kind < .6:
            out.append(read(rng, qp, **some(.1, dict(mem_reason=REASON["bounds"])), **some(.3, dict(again=1, ends=0))))
        elif kind < .68:
            if rng.random() < .1:
                out.append(atomic(rng, qp, psn, mem_reason=REASON["access"]))
            else:
                out.append(atomic(rng, qp, psn, result=(rng.getrandbits(64), int(rng.random() < .08))))
                if not out[-1]["result"][1]:
                    atomics[qp].append(psn)
        elif kind < .74 and replays:
            out.append(replay(rng, qp, rng.choice(atomics[qp]) if atomics[qp] and rng.random() < .8 else psn))
        elif kind < .84:
            out.append(record(rng, qp=qp, ours=1, retired=rng.randrange(5), turn=rng.choice([Turn.NONE, Turn.NONE, Turn.GO_BACK,
                                                                                           Turn.HALT])))
        elif kind < .93:
            out.append(answer(rng, qp, rng.randrange(2), **some(.1, bad() | some(.3, dict(failed=1)))))
        elif kind < .95:
            out.append(record(rng, qp=qp, verdict=DROPPED, reason=REASON["psn"], reply=Reply.ACK, syndrome=NAK_SEQUENCE))
        elif kind < .97:        # a complaint of the send half, or a time that has come
            kind = rng.choice([WorkKind.SERVICE, WorkKind.DEADLINE])
            fatal = int(rng.random() < .3)
            turn = Turn.HALT if fatal else rng.choice([Turn.HALT, Turn.GO_BACK])
            out.append(record(rng, kind, qp, ours=1, fatal=fatal, turn=turn))
        elif kind < .98:
            out.append(record(rng, qp=qp, verdict=DROPPED, reason=REASON["sequence"], reply=Reply.ACK, syndrome=NAK_INVALID,
                              fatal=1, cause=FATAL["remote_invalid"]))
        if out and (out[-1]["fatal"] or out[-1]["mem_reason"] or (out[-1]["result"] or (0, 0))[1]):
            dead.add(out[-1]["qp"])
    return out


@pytest.mark.parametrize("pace, log_cq, replays", [(1, None, False), (.3, 5, False), (.6, 2, True)])
def test_random(pace, log_cq, replays, rng):
    """With old results of atomics the order of fences isn't looked at: see test_an_old_result_frees_no_read."""
    records = traffic(rng, 400, replays=replays)
    bench = Bench(rng, records, pace=pace, log_cq=log_cq, calm=False).run()
    shown = {(v["verdict"], v["reason"]) for v in bench.ref.verdicts}
    assert {(DROPPED.value, REASON[n]) for n in ("state", "rkey", "access", "bounds", "sequence", "no_receive")} < shown
    # every frame leaves the packet buffer once, in order
    assert [j["beats"] for j in bench.ref.jobs if j["beats"]] == [r["beats"] for r in records if r["kind"] == FRAME]


@pytest.mark.parametrize("when", [70, 133, 251])
def test_reset_in_mid_stream(when, rng):
    """Whatever was within is gone, and dead QPs and old results with it."""
    bench = Bench(rng, traffic(rng, 200), pace=.5, calm=False)

    async def body(ctx):
        while bench.cycle < when:
            await bench.step(ctx)
        for name in ("leave", "record_valid", "fence_done"):
            ctx.set(getattr(bench.c, name), 0)
        ctx.set(bench.c.result.valid, 0)
        ctx.set(bench.rst, 1)
        await ctx.tick()
        ctx.set(bench.rst, 0)
        bench.load(traffic(rng, 150))
        await bench.clear(ctx)
        await bench.drain(ctx)
    bench.run(body)


# -- rules, one by one -------------------------------------------------------------------------------------------------------

def test_a_dead_qp_acts_on_nothing(rng):
    """Behind a WRITE into no region: nothing is placed, acknowledged, answered, completed or sent again; a command is carried out,
    and a RESET ends it."""
    after = [write(rng, 1), send(rng, 1), read(rng, 1), atomic(rng, 1, 7), replay(rng, 1, 7), answer(rng, 1, 1),
             record(rng, qp=1, retired=2, turn=Turn.GO_BACK), record(rng, WorkKind.DEADLINE, 1, turn=Turn.GO_BACK),
             record(rng, WorkKind.SERVICE, 1, ours=1, fatal=1, turn=Turn.HALT)]
    records = [write(rng, 1, mem_reason=REASON["rkey"]), *after, write(rng, 2)]
    bench = Bench(rng, records)

    async def body(ctx):
        await bench.drain(ctx)
        assert bench.seen == dict(jobs=2 + 7 + 1, puts=2, turns=1, progress=0, answers=0, verdicts=9, requests=0)
        bench.more([record(rng, WorkKind.RESET, 1), write(rng, 1), read(rng, 1)])
        await bench.drain(ctx)
        assert bench.seen["puts"] == 5 and bench.seen["answers"] == 1
    bench.run(body)
    jobs = bench.ref.jobs
    assert [j["kind"] for j in jobs[:10]] == [JobKind.SKIP.value, 0, *7 * [JobKind.SKIP.value], JobKind.PLACE.value]
    assert jobs[1]["completion"]["cause"] == FATAL["remote_access"]
    assert bench.ref.puts[0]["syndrome"] == NAK_ACCESS and {v["reason"] for v in bench.ref.verdicts[1:8]} == {REASON["state"]}


def kept(rng, commit=RcCommit):
    keep = CFG.rc_resources
    done = [atomic(rng, 1, psn, result=(1000 + psn, 0)) for psn in range(keep + 3)] + [atomic(rng, 2, 5, result=(7, 0))]
    again = [replay(rng, 1, psn) for psn in (keep + 2, 3, 3, 2, keep, 0)] + [replay(rng, 2, 5)]
    end = [record(rng, WorkKind.RESET, 1), replay(rng, 1, keep), replay(rng, 2, 5)]
    bench = Bench(rng, [*done, *again, *end], commit=commit).run()
    assert [a["va"] for a in bench.ref.answers[len(done):]] == [1000 + keep + 2, 1003, 1003, 1000 + keep, 7, 7]
    assert [v["reason"] for v in bench.ref.verdicts[-9:]] == [0, 0, 0, REASON["psn"], 0, REASON["psn"], 0, REASON["psn"], 0]


def test_results_are_kept(rng):
    """The last `rc_resources` of each QP, until its RESET; each is asked for in any order, and more than once."""
    kept(rng)


def test_an_atomic_that_the_bus_refuses(rng):
    bench = Bench(rng, [atomic(rng, 1, 5, result=(0, 1)), replay(rng, 1, 5), atomic(rng, 1, 6)]).run()
    assert [p["syndrome"] for p in bench.ref.puts] == [NAK_OPERATION] and bench.ref.jobs[2]["completion"]["cause"] == FATAL["bus"]
    assert len(bench.ref.requests) == 1 and not bench.ref.answers


def test_uc_message_with_a_bad_piece(rng):
    """It is dropped from there on; its receive completes as an error at the end, and the next message is well."""
    bad = dict(mem_reason=REASON["bounds"])
    bench = Bench(rng, [uc(rng, 0, begins=1, ends=0), uc(rng, 0, begins=0, ends=0, **bad), uc(rng, 0, begins=0, ends=1, index=4),
                        uc(rng, 0, begins=1, ends=0, **bad), uc(rng, 0, begins=1, ends=1, index=5)]).run()
    done = [j["completion"] for j in bench.ref.jobs if j["completion"]]
    assert [(c["wqe_index"], c["status"], c["cause"]) for c in done] == [(4, STATUS["error"], CAUSE["protection"]), (5, 0, 0)]
    assert [v["reason"] for v in bench.ref.verdicts] == [0, REASON["bounds"], REASON["sequence"], REASON["bounds"], 0]
    assert not bench.ref.puts


@pytest.mark.parametrize("completed, given, posted", [(0, 0, 0), (0, 0, 9), (3, 3, 9), (3, 5, 9), (9, 9, 9), (2, 4, 4),
                                                     (0xFFFE, 0x10001, 3)])
def test_flush_counts_receives(completed, given, posted, rng):
    """From the first that has not completed, although RcOrder had given away `given`; and a second flush finds none."""
    records = [send(rng, 1, index=completed - 1)] if completed else []
    if given > completed:
        records.append(send(rng, 1, index=given - 1, mem_reason=REASON["access"]))
    flush = dict(ours=1, turn=Turn.HALT, index=given, posted=posted)
    bench = Bench(rng, [*records, record(rng, WorkKind.FLUSH, 1, **flush), record(rng, WorkKind.FLUSH, 1, **flush)]).run()
    done = [j["completion"] for j in bench.ref.jobs if j["completion"] and j["completion"]["cause"] == CAUSE["flushed"]
            and j["completion"]["status"] == STATUS["error"]]
    count = (posted - completed) & 0xFFFF
    last = given + ((posted - given) & 0xFFFF) - 1
    assert [(c["wqe_index"], c["skipped"]) for c in done] == ([(last, count - 1)] if count else [])


def burnt(rng, commit=RcCommit):
    """Our request 7 fails, at its last packet, which RcOrder has taken for its end, or before: that one is not flushed any more."""
    for whole, una in (1, 8), (0, 7):
        bad = answer(rng, 1, whole, retired=whole, una=una, mem_reason=REASON["rkey"])
        bench = Bench(rng, [bad, record(rng, WorkKind.FLUSH, 1, ours=1, turn=Turn.HALT, va=una)], commit=commit).run()
        assert [t["index"] for t in bench.ref.turns] == [8, 8] and bench.ref.jobs[1]["completion"]["wqe_index"] == 7


def test_flush_behind_a_request_that_failed(rng):
    burnt(rng)


def test_as_many_as_fit(rng):
    """The send half takes nothing, then all: every READ that RcOrder may let in waits, and none is lost."""
    bench = Bench(rng, [read(rng, 1 + i % 3) for i in range(3 * GRANTS)], pace=0)

    async def body(ctx):
        bench.paces = dict.fromkeys(("jobs", "puts"), 1)
        for _ in range(400):
            await bench.step(ctx)
        assert bench.granted == GRANTS and bench.seen["verdicts"] == GRANTS and not bench.seen["answers"]
        bench.paces = {}
        bench.pace = 1
        await bench.drain(ctx)
    bench.run(body)
    assert bench.seen["answers"] == 3 * GRANTS


def crowd(rng, commit=RcCommit):
    bench = Bench(rng, [write(rng, 1) for _ in range(60)], pace=0, commit=commit)

    async def body(ctx):
        for _ in range(300):
            await bench.step(ctx)
        assert len(bench.todo) == 60 - RcCommit.DEPTH
        bench.pace = 1
        await bench.drain(ctx)
    bench.run(body)


def test_room_for_what_has_set_out(rng):
    """With a host writer that takes nothing, no more records set out than there is room for."""
    crowd(rng)


# -- what is not right yet ---------------------------------------------------------------------------------------------------

def test_an_old_result_frees_no_read(rng):
    """A READ waits for what was written before it, while somebody asks for an old result behind it."""
    Bench(rng, [atomic(rng, 1, 5), write(rng, 2), read(rng, 2), replay(rng, 1, 5)], fence=(200, 200)).run()


def test_given_up_while_another_is_taken(rng):
    """The count of READs under way comes down to 0, whatever coincides."""
    dead = write(rng, 2, mem_reason=REASON["rkey"])
    for gap in range(0, 16, 2):
        Bench(rng, [dead, read(rng, 1), *[write(rng, 1) for _ in range(gap // 8)], *[read(rng, 2) for _ in range(4)]],
              fence=(4 + gap, 4 + gap), calm=False).run()


def test_the_log_tells_of_atomics(rng):
    """Of one that finds no old result, and of one that the bus refuses."""
    Bench(rng, [replay(rng, 2, 5), atomic(rng, 1, 5, result=(0, 1))], log_cq=3).run()


def test_flush_counts_sends(rng):
    """The sends that are flushed begin with the first that has not completed, although RcOrder has taken more off."""
    records = [record(rng, qp=1, ours=1, retired=2, una=2), write(rng, 1, mem_reason=REASON["rkey"]),
               record(rng, qp=1, ours=1, retired=3, una=5), record(rng, WorkKind.FLUSH, 1, ours=1, turn=Turn.HALT, va=5)]
    assert Bench(rng, records).run().ref.turns[-1]["index"] == 2


# -- negative controls -------------------------------------------------------------------------------------------------------

def mixed(rng, commit):
    Bench(rng, traffic(rng, 150, replays=False), pace=.6, log_cq=3, commit=commit).run()


MUTANTS = {
    "the dead act": ("outcome", "lives = ~row.dead", "lives = Const(1)"),
    "the dead are placed": ("outcome", "drop.eq(dead | refused", "drop.eq(refused"),
    "nobody dies": ("commit", "rows.write_data.dead.eq(1)", "rows.write_data.dead.eq(0)"),
    "READ without fence": ("outcome", "job.fence.eq(command | f.answer)", "job.fence.eq(command)"),
    "READ before its fence": ("commit", "waiting.o.valid & (released != 0)", "waiting.o.valid"),
    "atomic before its fence": ("commit", """                with m.State("WAIT"):
                    with m.If(atomic_ready):""", """                with m.State("WAIT"):
                    with m.If(1):"""),
    "result not kept": ("commit", "[replay.write_en.eq(1), replay.write_data.valid.eq(1)]", "replay.write_data.valid.eq(1)", kept),
    "result in one place": ("commit", "rows.write_data.at.eq(Mux(row.at == cfg.rc_resources - 1, 0, row.at + 1))", "[]", kept),
    "results survive": ("commit", """                with m.State("WIPE"):
                    m.d.comb += replay.write_en.eq(1)""", """                with m.State("WIPE"):""", kept),
    "spoiled is forgotten": ("commit", "rows.write_data.spoiled.eq(f.spoiled)", "rows.write_data.spoiled.eq(0)"),
    "spoiled for ever": ("outcome", "(row.spoiled & ~r.begins)", "row.spoiled"),
    "given up, not told": ("commit", "m.d.comb += over.eq(1)      # granted, and given up", "m.d.comb += over.eq(0)"),
    "taken, not told": ("commit", "self.job_over.eq(over + takes)", "self.job_over.eq(over)"),
    "frame freed twice": ("outcome", "c.queue.eq(sends)", "job.beats.eq(r.beats), c.queue.eq(sends)"),
    "flush from what was given": ("outcome", "posted.eq(r.posted - row.head)", "posted.eq(r.posted - r.index[:16])"),
    "head of the flushed": ("commit", "rows.write_data.head.eq(r.posted)", "rows.write_data.head.eq(row.head)"),
    "refused answer completes": ("commit", "back = f.refused & ours & r.whole", "back = Const(0)"),
    "NAK completes": ("commit", "p.msn.eq(r.msn + (r.ends & ~f.fatal))", "p.msn.eq(r.msn + r.ends)"),
    "failed twice": ("commit", "rows.write_data.una.eq(una + (f.fatal & sends))", "rows.write_data.una.eq(una)", burnt),
    "no NAK": ("outcome", "(lives & refused & ~ours & ~r.uc)", "0"),
    "less room": ("commit", "init=self.DEPTH", "init=self.DEPTH - 2", crowd),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_commit_is_noticed(name, rng, monkeypatch):
    module, old, new, check = (*MUTANTS[name], mixed)[:4]
    broken = mutant(f"optinic.transport.rc.{module}", old, new)
    broken.Const = Const
    if module == "outcome":
        monkeypatch.setattr(commit_module, "outcome", broken)
    commit = broken.RcCommit if module == "commit" else RcCommit
    with pytest.raises(AssertionError):
        check(rng, commit)
