"""Dispatch: the order of completions around a frame's job, and that nothing is lost under back-pressure."""

import random

from amaranth.sim import Simulator
import pytest

from optinic.abi.structs import CAUSE, STATUS
from optinic.config import preset
from optinic.memory.job import JobKind
from optinic.transport.xp.dispatch import Dispatch

CFG = preset("tiny")
NO_FRAME = (0, 0, 0, 0)


def expected_jobs(r):
    """(kind, fence, frame, completion or None) in order; a frame is (beats, pay_off, len, addr), a completion (index, byte_len,
    msg_len, skipped, status, cause, tag)."""
    jobs = []
    placed = r["old_opcode"] != 0
    old_len = r["old_msg_len"] - r["old_missing"] if placed else 0
    if r["old"]:
        jobs.append((0, 0, NO_FRAME, (r["head"], old_len, r["old_msg_len"] if placed else 0, 0, STATUS["partial"], CAUSE[r["cause"]],
                            r["old_tag"] if placed else 0)))
    if r["empty"]:
        jobs.append((0, 0, NO_FRAME, (r["empty_index"], 0, 0, r["skipped"], STATUS["partial"], CAUSE["preempted"], 0)))
    own = None
    if r["own"] and not r["error"]:
        own = (r["own_index"], r["msg_len"], r["msg_len"], 0, STATUS["success"], CAUSE["complete"], r["tag"])
    elif r["own"]:
        some = placed and not r["fresh"]
        own = (r["own_index"], old_len if some else 0, r["old_msg_len"] if some else 0, 0, STATUS["error"], CAUSE["flushed"],
               r["old_tag"] if some else 0)
    payload = (r["pay_off"], r["len"], r["addr"])
    if r["mark"] and r["job"] == JobKind.PLACE:     # the byte frees the frame and carries what follows it
        jobs.append((r["job"].value, 0, (0, *payload), None))
        jobs.append((r["job"].value, 0, (r["beats"], r["mark_source"], 1, r["mark_addr"]), own))
    elif r["job"] != JobKind.NONE or r["fence"] or own:
        jobs.append((r["job"].value, r["fence"], (r["beats"], *payload), own))
    return jobs


def random_result(rng, maps):
    msg_len, missing = rng.randrange(1000, 2000), rng.randrange(1000)
    job, opcode = rng.choice(list(JobKind)), rng.randrange(4)
    return dict(job=job, fence=int(job == JobKind.NONE and rng.random() < 0.5), old=int(rng.random() < 0.3), head=rng.getrandbits(32),
                cause=rng.choice(["timeout", "preempted"]), old_opcode=opcode, old_msg_len=msg_len, old_missing=missing,
                old_tag=rng.getrandbits(16), empty=int(rng.random() < 0.2), empty_index=rng.getrandbits(32), skipped=rng.getrandbits(16),
                own=int(rng.random() < 0.4), error=int(rng.random() < 0.2), fresh=int(not opcode or rng.random() < 0.5), own_index=rng.getrandbits(32),
                msg_len=rng.getrandbits(32), tag=rng.getrandbits(16), beats=rng.randrange(1, 20), pay_off=rng.randrange(128),
                len=rng.randrange(1024), addr=rng.getrandbits(64), mark=int(maps and rng.random() < 0.6),
                mark_source=rng.randrange(128), mark_addr=rng.getrandbits(64))


@pytest.mark.parametrize("maps", [False, True])
def test_order_and_content(seed, maps):
    rng, dut = random.Random(seed), Dispatch(CFG.with_(arrival_map=maps))
    results = [random_result(rng, maps) for _ in range(800)]
    want = [job for r in results for job in expected_jobs(r)]
    got = []

    async def source(ctx):
        for r in results:
            while not ctx.get(dut.room) or rng.random() < 0.3:
                ctx.set(dut.leave, 0), ctx.set(dut.result_valid, 0)
                await ctx.tick()
            port = dut.result
            for field, name in ((port.job, "job"), (port.fence, "fence"), (port.old.valid, "old"), (port.old.head, "head"),
                                (port.old.opcode, "old_opcode"), (port.old.msg_len, "old_msg_len"), (port.old.missing, "old_missing"),
                                (port.old.tag, "old_tag"), (port.empty.valid, "empty"), (port.empty.index, "empty_index"),
                                (port.empty.skipped, "skipped"), (port.own.valid, "own"), (port.own.error, "error"),
                                (port.own.fresh, "fresh"), (port.own.index, "own_index"), (port.own.msg_len, "msg_len"),
                                (port.own.tag, "tag"), (port.beats, "beats"), (port.pay_off, "pay_off"), (port.len, "len"), (port.addr, "addr"),
                                *(((dut.mark.valid, "mark"), (dut.mark.source, "mark_source"), (dut.mark.addr, "mark_addr")) if maps else ())):
                ctx.set(field, r[name])
            ctx.set(port.old.cause, CAUSE[r["cause"]]), ctx.set(port.old.status, STATUS["partial"])
            ctx.set(dut.result_valid, 1), ctx.set(dut.leave, 1)     # no way between setting out and arriving in this bench
            await ctx.tick()
        ctx.set(dut.result_valid, 0), ctx.set(dut.leave, 0)

    async def sink(ctx):
        pause = 0.0
        while len(got) < len(want):
            if rng.random() < 0.01:
                pause = rng.choice([0.0, 0.5, 0.95])
            ready = rng.random() >= pause
            ctx.set(dut.jobs.ready, ready)
            if ready and ctx.get(dut.jobs.valid):
                job = dut.jobs.payload
                c = job.completion
                fields = (c.wqe_index, c.byte_len, c.msg_len, c.skipped, c.status, c.cause, c.tag)
                done = tuple(ctx.get(f) for f in fields) if ctx.get(job.complete) else None
                frame = tuple(ctx.get(f) for f in (job.beats, job.pay_off, job.len, job.addr))
                got.append((ctx.get(job.kind).value, ctx.get(job.fence), frame, done))
            await ctx.tick()
        await ctx.tick().repeat(5)
        assert ctx.get(dut.idle)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(source)
    sim.add_testbench(sink)
    sim.run()
    assert got == want
