"""HostWriter against a memory model: every alignment and size, bus rules, order of completions, errors, speed, reset."""

import pytest

from optinic.config import preset
from optinic.memory import aligner
from optinic.memory.acks import WriteAcks
from optinic.memory.host_writer import HostWriter
from optinic.memory.job import JobKind
from optinic.stream.lanes import lane_mask

from .host_bench import Bench, Job, completion

NONE, SKIP, PLACE, PASS = JobKind.NONE, JobKind.SKIP, JobKind.PLACE, JobKind.PASS


def config(width=64, **knobs):
    knobs = dict(data_width=width, num_cqs=4, num_qps=8, writes_outstanding=16, rx_buffer_bytes=8192,
                 mtu_max=256 if width < 256 else 1024) | knobs
    return preset("tiny", num_vectors=2, **knobs)


def random_frame(rng, n):
    return rng.randbytes(n)


def place(rng, length, addr, pay_off=None, extra=None, **more):
    pay_off = rng.randrange(128) if pay_off is None else pay_off
    extra = rng.choice((0, 4, rng.randrange(64))) if extra is None else extra
    return Job(PLACE, random_frame(rng, max(1, pay_off + length + extra)), pay_off, length, addr, **more)


def place_twice(rng, length, addr, at, off, pay_off=None, **more):
    """A payload, and one byte of the same frame elsewhere; the second job frees the frame and has what follows it."""
    first = place(rng, length, addr, pay_off, keep=True, qp=more.get("qp", 0))
    return [first, Job(PLACE, first.frame, off % len(first.frame), 1, at, again=True, **more)]


def random_jobs(rng, cfg, n):
    """All kinds; lengths and addresses that lie around every edge."""
    page, mtu, lanes = 4096, cfg.mtu_max, cfg.beat_bytes
    jobs = []
    for i in range(n):
        done = None
        if rng.random() < 0.4:
            done = completion(cq=rng.randrange(3), qpn=rng.getrandbits(24), wqe_index=i, imm=rng.getrandbits(32),
                              byte_len=rng.getrandbits(32), time=rng.getrandbits(48), tag=rng.getrandbits(16),
                              msg_len=rng.getrandbits(32), skipped=rng.getrandbits(16), opcode=rng.randrange(4),
                              status=rng.randrange(2), cause=rng.randrange(4))
        common = dict(qp=rng.randrange(cfg.num_qps), fence=int(rng.random() < 0.05), completion=done)
        kind = rng.choices((PLACE, SKIP, NONE, PASS), (6, 2, 1, 1))[0]
        if kind == PLACE:
            length = rng.choice((0, 1, rng.randrange(1, 2 * lanes + 2), rng.randrange(mtu + 1), mtu))
            end = page * rng.randrange(1, 8) + rng.choice((0, 1, -1, rng.randrange(-lanes, lanes), rng.randrange(page)))
            addr = max(0, end - rng.choice((length, rng.randrange(length + 1))))
            jobs.append(place(rng, length, addr, **common))
        elif kind == NONE:
            jobs.append(Job(NONE, **common))
        else:
            jobs.append(Job(kind, random_frame(rng, rng.randrange(1, 300)), rng.randrange(128),
                            rng.randrange(9), rng.getrandbits(38), **common))
    return jobs


def check_completions(bench, cqs):
    """Every completion once, in its CQ's order, in the right entry with the right phase and contents."""
    produced = dict.fromkeys(cqs, 0)
    wanted = [j for j in bench.jobs if j.completion is not None and j.completion["cq"] in cqs]
    assert len(bench.cqes) == len(wanted)
    for job, (cq, entry, cqe) in zip(wanted, bench.cqes):
        c = job.completion
        n = produced[cq]
        produced[cq] += 1
        assert cq == c["cq"] and entry == n % (1 << cqs[cq]) and cqe["phase"] == 1 - (n >> cqs[cq]) % 2
        assert cqe["format"] == 1 and cqe["queue"] == 0
        for name, value in c.items():
            if name != "cq":
                assert cqe[name] == value, name
    assert bench.count("completed") == len(wanted)


@pytest.mark.parametrize("width, pauses, n", [(64, 0.0, 20), (64, 0.3, 20), (128, 0.1, 40), (256, 0.2, 40), (512, 0.2, 50),
                                              (1024, 0.1, 40)])
def test_random(rng, width, pauses, n):
    cfg = config(width)
    bench = Bench(HostWriter(cfg), rng, pauses=pauses, latency=(1, 30))
    cqs = {0: 7, 1: 8, 2: 10}
    for cq, log2 in cqs.items():
        bench.set_cq(cq, log2)
    bench.send(*random_jobs(rng, cfg, n))
    bench.run()
    bench.check_memory()
    check_completions(bench, cqs)
    assert bench.frames == [j.frame for j in bench.jobs if j.kind == PASS]
    assert bench.count("fence_done") == sum(j.fence for j in bench.jobs)
    assert not bench.count("write_error") and not bench.count("cq_overrun") and not bench.count("pass_overflow")


def test_every_alignment(rng):
    """64 bits: each offset in the source and target word, each length up to two words and a bit."""
    cfg = config(64, pass_through=False)
    bench = Bench(HostWriter(cfg), rng)
    cases = [(off, addr, n) for off in range(8) for addr in range(8) for n in range(19)]
    rng.shuffle(cases)
    bench.send(*(place(rng, n, 0x1000 + 32 * i + addr, off, rng.choice((0, 0, 9))) for i, (off, addr, n) in enumerate(cases[:400])))
    bench.run()
    bench.check_memory()


def test_a_wide_strobe_is_seen(rng, monkeypatch):
    """Broken: strobes reach one lane too far up, unless that is in another beat."""
    def too_far(value, lanes, rule):
        return lane_mask(value, lanes, lambda lane, n: rule(lane, n) or (rule(0, 0) and not rule(1, 0) and lane == n + 1))

    monkeypatch.setattr(aligner, "lane_mask", too_far)
    bench = Bench(HostWriter(config(64)), rng)
    bench.send(*(place(rng, 5, 0x1000 + 32 * i) for i in range(8)))
    bench.run()
    with pytest.raises(AssertionError, match="written elsewhere"):
        bench.check_memory()


@pytest.mark.parametrize("width", (64, 512))
def test_page_edges(rng, width):
    """Exactly 4096 bytes, and ends on a 4 KiB boundary or one byte either side; at 64 bits up to three bursts of 2 KiB."""
    cfg = config(width, mtu_max=4096, rx_buffer_bytes=32768, tx_buffer_bytes=32768, pass_through=False)
    bench = Bench(HostWriter(cfg), rng, pauses=0.05, latency=(1, 40))
    big = [(4096, 1), (4096, 4095)] if width == 64 else [(4096, e) for e in (0, 1, 4095, 2048, 1000)] + [(4095, 0), (4095, 4094)]
    for i, (length, end) in enumerate(big + [(100, 0), (100, 1), (100, -1), (1, 0), (1, 1), (64, 0), (8, 0), (128, 64)]):
        bench.send(place(rng, length, 0x10_0000 * (i + 1) + end + 4096 - length, 54 + i))
    top = (1 << 37) - 4096                          # and carries through the page number
    bench.send(place(rng, 300, top - 151, 60), place(rng, 5, top - 3, 60))
    bench.run()
    bench.check_memory()


@pytest.mark.parametrize("n", (8, 16))
def test_slow_acknowledgement(rng, n):
    """More under way than may be unacknowledged, each with a completion: everything waits, nothing locks up."""
    cfg = config(128, writes_outstanding=n, pass_through=False)
    bench = Bench(HostWriter(cfg), rng, latency=(120, 200), b_pause=0.3)
    bench.set_cq(0, 8)
    bench.send(*(place(rng, 40, 0x1000 + 64 * i, completion=completion(qpn=i), fence=int(i % 3 == 0)) for i in range(3 * n)))
    bench.run()
    bench.check_memory()
    check_completions(bench, {0: 8})
    assert bench.count("fence_done") == sum(j.fence for j in bench.jobs)


@pytest.mark.parametrize("order", ("aw first", "w first"))
def test_stubborn_memory(rng, order):
    """A memory that takes no address before it sees the data, or no data before it has taken the address."""
    cfg = config(128)
    bench = Bench(HostWriter(cfg), rng)
    bench.order = order
    bench.set_cq(0, 6)
    bench.send(*(j for j in random_jobs(rng, cfg, 25) if j.completion is None or j.completion["cq"] == 0))
    bench.run()
    bench.check_memory()
    check_completions(bench, {0: 6})


class Hasty(WriteAcks):
    """Broken: a job ends with its first response."""

    def _job_is_done(self, job, seen, answer):
        return (job.bursts == 0) | answer


class Blind(WriteAcks):
    """Broken: a job ends without any."""

    def _job_is_done(self, job, seen, answer):
        return 1


@pytest.mark.parametrize("acks", (Hasty, Blind))
def test_early_completion_is_seen(rng, acks):
    class Mutant(HostWriter):
        acks_class = acks

    bench = Bench(Mutant(config(64)), rng, latency=(20, 60))
    bench.set_cq(0, 6)
    bench.send(*(place(rng, 300, 4096 * i - 150, completion=completion()) for i in range(1, 10)))
    with pytest.raises(AssertionError, match="before its writes were acknowledged"):
        bench.run()


def test_fence_after_everything(rng):
    """A fence is reported behind all writes and CQEs before it, at the moment of the last response or later."""
    cfg = config(128)
    bench = Bench(HostWriter(cfg), rng, latency=(30, 80))
    bench.set_cq(1, 6)
    for i in range(12):
        bench.send(place(rng, 200, 0x2000 + 256 * i, completion=completion(cq=1)), Job(NONE, fence=1))
    acked = []

    def watch(bench):
        while bench.count("fence_done") > len(acked):
            acked.append((bench.data_acked, bench.cqe_acked))
    bench.on_cycle = watch
    bench.run()
    data = 0
    assert len(acked) == 12
    for i, (writes, cqes) in enumerate(acked):
        data += bench.jobs[2 * i].bursts(128)
        assert writes >= data and cqes >= i + 1


def test_error_response_marks_its_qp(rng):
    """One failed burst: the next completion of that QP, and only that one, says `error` and keeps its cause."""
    cfg = config(128, pass_through=False)
    bench = Bench(HostWriter(cfg), rng, latency=(1, 30))
    bench.set_cq(0, 6)
    for i in range(24):
        done = completion(qpn=i % 4, status=1, cause=1, wqe_index=i) if i >= 4 else None
        bench.send(place(rng, 20, 0x1000 + 64 * i, qp=i % 4, completion=done))
    bench.fail_bursts = {1, 3}      # no CQE comes among the first bursts: burst i is job i's
    bench.run()
    assert [(cqe["qpn"], cqe["wqe_index"]) for _, _, cqe in bench.cqes if cqe["status"] == 2] == [(1, 5), (3, 7)]
    assert all(cqe["cause"] == 1 and cqe["status"] in (1, 2) for _, _, cqe in bench.cqes)
    assert bench.count("write_error") == 2


def test_error_marks_back_to_back(rng):
    """Marks that are set and taken in neighbouring cycles; the write that preempts a message belongs to the next one."""
    cfg = config(128, pass_through=False)
    bench = Bench(HostWriter(cfg), rng, latency=(200, 200))     # all data first, then all responses in a row
    bench.set_cq(0, 6)
    plan = [    # qp, fails, cause of its completion (None: no completion), status expected
        (1, True, None, None), (1, False, 0, 2), (1, False, 0, 0),
        (2, True, 0, 2), (2, True, 0, 2), (2, False, 0, 0),
        (3, True, 2, 0), (3, False, 0, 2), (3, False, 2, 0),
        (4, True, None, None), (4, True, 2, 2), (4, False, 2, 2), (4, False, 0, 0),
    ]
    for i, (qp, fails, cause, _) in enumerate(plan):
        done = None if cause is None else completion(qpn=qp, cause=cause, wqe_index=i)
        bench.send(place(rng, 8, 0x1000 + 16 * i, qp=qp, completion=done))
        if fails:
            bench.fail_bursts.add(i)
    bench.run()
    got = {cqe["wqe_index"]: cqe["status"] for _, _, cqe in bench.cqes}
    assert got == {i: status for i, (_, _, cause, status) in enumerate(plan) if cause is not None}


def test_failed_cqe_marks_its_qp(rng):
    cfg = config(128, pass_through=False)
    bench = Bench(HostWriter(cfg), rng, latency=(5, 5))
    bench.set_cq(0, 6)
    bench.send(Job(NONE, qp=5, completion=completion(qpn=5)), *(Job(SKIP, bytes(700)) for _ in range(80)),
               *(Job(NONE, qp=qp, completion=completion(qpn=qp)) for qp in (4, 5, 5)))
    bench.fail_bursts = {0}
    bench.run()
    assert [(c["qpn"], c["status"]) for _, _, c in bench.cqes] == [(5, 0), (4, 0), (5, 2), (5, 0)]


@pytest.mark.parametrize("width, pauses", [(64, 0.0), (64, 0.3), (512, 0.1)])
def test_two_jobs_of_one_frame(rng, width, pauses):
    """The first leaves the frame in the buffer. Between other frames, empty payloads too; a refused byte marks the completion."""
    cfg = config(width)
    bench = Bench(HostWriter(cfg), rng, pauses=pauses, latency=(1, 30))
    bench.set_cq(0, 7)
    for i in range(30):
        length = rng.choice((0, 1, rng.randrange(cfg.mtu_max + 1)))
        bench.send(*place_twice(rng, length, 0x10_0000 + 0x2000 * i + rng.randrange(4096), 0x1000 + i, rng.randrange(128), qp=i % 4,
                                completion=completion(qpn=i) if i % 3 == 0 else None),
                   *(place(rng, 70, 0x90_0000 + 256 * (4 * i + j)) for j in range(rng.randrange(3))),
                   *(Job(SKIP, rng.randbytes(rng.randrange(1, 200))) for _ in range(rng.randrange(2))))
    bench.run()
    bench.check_memory()
    check_completions(bench, {0: 7})


def test_a_refused_second_job_marks_the_completion(rng):
    cfg = config(128, pass_through=False)
    bench = Bench(HostWriter(cfg), rng, latency=(1, 30))
    bench.set_cq(0, 6)
    for i in range(6):      # bursts 2 i and 2 i + 1: the CQEs come later, the first response takes longer than all this
        bench.send(*place_twice(rng, 20, 0x1000 + 64 * i, 0x2000 + i, 3, qp=i, completion=completion(qpn=i)))
    bench.latency = (150, 150)
    bench.fail_bursts = {3, 8}
    bench.run()
    assert [(c["qpn"], c["status"]) for _, _, c in bench.cqes] == [(0, 0), (1, 2), (2, 0), (3, 0), (4, 2), (5, 0)]


def test_a_new_life_has_no_mark_of_the_old_one(rng):
    """Also not that of the old life's last CQE, whose answer comes when the fence has long been taken."""
    cfg = config(128, pass_through=False)
    bench = Bench(HostWriter(cfg), rng, latency=(40, 40))
    bench.set_cq(0, 6)
    old = [place(rng, 20, 0x1000, qp=1), Job(NONE, qp=2, completion=completion(qpn=2)), Job(NONE, qp=3, completion=completion(qpn=3)),
           *(Job(NONE, qp=qp, fence=1, ends_life=1) for qp in (1, 2))]
    new = [Job(NONE, qp=qp, completion=completion(qpn=qp, wqe_index=1)) for qp in (1, 2, 3)]
    bench.fail_bursts = {0, 1, 2}
    bench.run(batches=[old, new])
    assert bench.count("fence_done") == 2 and bench.count("write_error") == 3
    # QP 3 lives on
    assert [(c["qpn"], c["status"]) for _, _, c in bench.cqes] == [(2, 0), (3, 0), (1, 0), (2, 0), (3, 2)]


@pytest.mark.parametrize("width", (64, 512))
def test_throughput(rng, width):
    """No cycle between jobs: the time is that of the beats, and a fixed latency."""
    lanes, latency = width // 8, 24
    cfg = config(width, pass_through=False, writes_outstanding=64)
    n, cases = 60, []       # (cycles at most, jobs)
    # one beat each: same alignment, shifted up, shifted down, with headers in beats of their own
    for off, addr in ((0, 0), (1, 3), (3, 1)):
        cases.append((n, [place(rng, lanes - 4, 0x1000 + lanes * i + addr, off, 0) for i in range(n)]))
    cases.append((n, [place(rng, 4, 0x1000 + lanes * i, 124, 40) for i in range(n)]))
    # several beats: the larger of source and target
    for off, addr, length, beats in ((0, 0, 4 * lanes, 4), (1, 0, 4 * lanes, 5), (0, 1, 4 * lanes, 5), (5, 3, 4 * lanes, 5),
                                     (3, 5, 4 * lanes, 5), (5, 0, 4 * lanes - 5, 4)):
        cases.append((16 * beats, [place(rng, length, 0x10000 + 8 * lanes * i + addr, off, 3) for i in range(16)]))
    # frames to skip and records without a frame pass at one a cycle
    idle_jobs = [Job(SKIP, bytes(lanes)) if i % 2 else Job(NONE) for i in range(60)]
    cases.append((62, [place(rng, 4, 0x1000, 0), *idle_jobs, place(rng, 4, 0x1000, 0)]))
    # a payload of one beat and another byte of the frame: two cycles
    cases.append((2 * n, [job for i in range(n) for job in place_twice(rng, 4, 0x1000 + lanes * i, 0x8000 + i, 3, 64)]))
    bench = Bench(HostWriter(cfg), rng, latency=(1, 1))
    bench.run(batches=[jobs for _, jobs in cases])
    bench.check_memory()
    assert len(bench.batch_cycles) == len(cases)
    for (least, _), took in zip(cases, bench.batch_cycles):
        assert least <= took + 1 and took <= least + latency


def test_a_completion_each_cycle(rng):
    """512 bits: expiries of one CQ come out as one CQE a cycle; with a write of one beat each they share the bus evenly."""
    cfg = config(512, pass_through=False, writes_outstanding=64)
    n = 120
    for jobs, most in (([Job(NONE, completion=completion(wqe_index=i)) for i in range(n)], n + 50),
                       ([place(rng, 30, 0x1000 + 64 * i, 0, completion=completion(wqe_index=i)) for i in range(n)], 2 * n + 60)):
        bench = Bench(HostWriter(cfg), rng, latency=(1, 1))
        bench.set_cq(0, 6)
        bench.on_cycle = lambda b: b.doorbells or b.doorbells.append(dict(cq=0, consumer=len(b.cqes), arm=0))
        bench.send(*jobs)
        bench.run(until=lambda b: b.count("completed") == n, max_cycles=3000)
        check_completions(bench, {0: 6})
        assert bench.last_w - bench.first_cycle <= most


def test_pass_overflow(rng):
    """A host that doesn't take frames: they are dropped whole when there is no room, and payload goes on."""
    cfg = config(256, rx_buffer_bytes=16384)
    bench = Bench(HostWriter(cfg), rng, host_pause=1.0)
    for i in range(18):
        bench.send(Job(PASS, rng.randbytes(1100 + rng.randrange(400))), place(rng, 90, 0x1000 + 128 * i))
    bench.on_cycle = lambda b: b.pause.update(host=0.1) if b.next_job == len(b.jobs) and b.cycle > 900 else None
    bench.run()
    bench.check_memory()
    sent = [j.frame for j in bench.jobs if j.kind == PASS]
    assert bench.count("pass_overflow") == len(sent) - len(bench.frames) > 0
    room, kept = 512, []
    for frame in sent:
        if -(-len(frame) // 32) <= room:
            room -= -(-len(frame) // 32)
            kept.append(frame)
    assert bench.frames == kept


@pytest.mark.parametrize("at", (40, 57, 80))
def test_reset_in_mid_burst(rng, at):
    """Whatever was under way is forgotten; the next jobs are whole, the marks and the CQs are clear."""
    cfg = config(128)
    bench = Bench(HostWriter(cfg), rng, pauses=0.2, latency=(1, 20))
    bench.set_cq(0, 6)
    bench.fail_bursts = {0, 1, 2}
    bench.send(*random_jobs(rng, cfg, 20))
    after = [place(rng, 500, 0x3000 + 600 * i, qp=i % 8, completion=completion(qpn=i)) for i in range(10)]

    def recovered(b):
        if b.cycle > at:
            b.fail_bursts = set()
    bench.on_cycle = recovered
    bench.jobs = [j for j in bench.jobs if j.completion is None or j.completion["cq"] == 0]
    bench.run(reset_at=at, after_reset=after)
    bench.check_memory()
    check_completions(bench, {0: 6})
