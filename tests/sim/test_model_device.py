"""The model card and the generated one under the same driver; and what the model alone promises: its times, its bus, its ports.

A test that takes `device` runs on both. tests/sim/test_model_system.py runs more of them on the model.
"""

import numpy as np
import pytest

from host_driver.card import Card
from optinic.abi.registers import (ABI_VERSION, COMMANDS, CONGESTION, COUNTER_BASE, FEATURES, ID_WORD, REGISTERS, TRANSPORT,
                                   offset_of)
from optinic.abi.regions import RegionError
from optinic.config import preset
from sim.device import SimDevice, SimError
from sim.frames import flip, uc_send, xp_send, xp_write
from sim.model_device import ModelDevice
from sim.model_memory import HostMemory

CFG = preset("tiny", trace=True)
QP, KEY, VA, SIZE, PD, CQ = 3, 0x55, 0x7000_0000, 1 << 16, 4, 1
PIPELINE = ModelDevice.PIPELINE


@pytest.fixture(params=["model", pytest.param("rtl", marks=pytest.mark.rtl)])
def device(request, seed):
    with (ModelDevice if request.param == "model" else SimDevice)(CFG, seed=seed, read_latency=20, write_latency=20) as device:
        yield device
        assert device.violations == []


@pytest.fixture
def model():
    with ModelDevice(CFG) as device:
        yield device


def bring_up(device, cfg=CFG, **qp):
    card = Card(device, cfg)
    card.memory = device.alloc(SIZE)
    card.add_region(KEY, VA, SIZE, ("local_write", "remote_write"), pd=PD, delta=card.memory - VA)
    card.set_peer(0, "10.0.0.2")
    card.set_cq(CQ, 64)
    card.create_qp(QP, **dict(pd=PD, cq=CQ, generation=1) | qp)
    card.enable(hold=True)
    return card


def exchange(device, *frames):
    """The verdicts on the frames."""
    before = device.trace_count
    for frame in frames:
        device.send(frame)
    device.run(64)
    assert device.run_until("idle", 300, limit=400_000)
    return [t.reason if t.verdict == "dropped" else t.verdict for t in device.traces(before)]


def send(seq=0, payload=b"data", **fields):
    return xp_send(QP, payload, **dict(seq=seq, generation=1) | fields)


def write(payload=b"data", va=VA, key=KEY, **fields):
    return xp_write(QP, payload, va, key, **dict(generation=1) | fields)


def ends(card):
    return [(c.index, c.opcode, c.status, c.cause, c.byte_len, c.msg_len, c.imm, c.tag, c.wr_id) for c in card.poll(CQ)]


# -- both devices ---------------------------------------------------------------------------------------

def test_identification(device):
    right = {
        "ID": ID_WORD, "VERSION": ABI_VERSION, "TRANSPORT": TRANSPORT["xp"], "CONFIG_HASH": CFG.hash, "DATA_WIDTH": CFG.data_width,
        "NUM_QPS": CFG.num_qps, "NUM_REGIONS": CFG.num_regions, "NUM_CQS": CFG.num_cqs, "NUM_PEERS": CFG.num_peers,
        "CLOCK_HZ": CFG.clock_hz, "MTU_MAX": CFG.mtu_max, "RQ_ENTRIES": CFG.rq_entries, "RX_BUFFER_BYTES": CFG.rx_buffer_bytes,
        "NUM_VECTORS": CFG.num_vectors, "SQ_ENTRIES": CFG.sq_entries, "CONGESTION": CONGESTION[CFG.congestion],
        "FEATURES": sum(CFG.has(name) << bit for bit, name in enumerate(FEATURES))}
    assert {name: device.reg_read(offset_of(name)) for name in right} == right


def test_every_register(device):
    """What may be read and written, the values after reset, and what a write leaves."""
    known = {r.offset: r for r in REGISTERS}
    for offset in range(0, 0x300, 4):
        r = known.get(offset)
        if r is None:
            with pytest.raises(SimError, match="SLVERR"):
                device.reg_read(offset)
        elif r.access == "rw":
            assert device.reg_read(offset) == r.reset, r.name
            device.reg_write(offset, 0x12345678 & ~7)
            assert device.reg_read(offset) == 0x12345678 & ~7 and device.reg_read(offset + 2) == 0x12345678 & ~7
        elif r.access == "wo":
            assert device.reg_read(offset) == 0, r.name
        if r is None or r.access == "ro":
            with pytest.raises(SimError, match="SLVERR"):
                device.reg_write(offset, 1)
    with pytest.raises(SimError, match="SLVERR"):
        device.reg_write(COUNTER_BASE, 1)
    assert all(device.reg_read(COUNTER_BASE + 4 * i) == 0 for i in range(128))


def test_time(device):
    card = Card(device)
    a, cycle = card.time_ns(), device.cycle
    device.run(10_000)
    b, later = card.time_ns(), device.cycle
    assert abs((b - a) - (later - cycle) * CFG.clock_ns) <= 2 * CFG.clock_ns
    card.set_time(0x1_FFFF_FFF0)
    device.run(100)
    assert 0x2_0000_0000 < card.time_ns() < 0x2_0000_1000


def test_placement_and_verdicts(device, rng):
    card = bring_up(device)
    for i in range(8):
        card.post_receive(QP, VA + 1024 * i, 1024, KEY, wr_id=f"r{i}")
    data = [rng.randbytes(n) for n in (1, 1024, 700, 300)]
    assert exchange(
        device, send(0, data[0], tag=7), send(1, data[1], imm=5), write(data[2], VA + 0x4001),
        write(data[3], VA + 0x8000, imm=9, seq=2, tag=1), send(1), send(100), write(b"x" * 9, VA + SIZE - 8), write(key=9),
        send(3, generation=2), send(3, src="10.0.0.3"), send(3, pkey=0x7FFE), flip(send(3), 500), send(3, bytes(1025)), b"runt",
        uc_send(QP, data[0]), send(4, b"", tag=2), bytes(60), send(6, b"ab", msg_len=4, offset=2),
    ) == ["placed"] * 4 + ["late", "no_receive", "bounds", "rkey", "generation", "source", "pkey", "icrc", "length", "runt",
                           "placed", "placed", "passed", "placed"]
    assert ends(card) == [
        (0, "send", "success", "complete", 1, 1, 0, 7, "r0"), (1, "send_imm", "success", "complete", 1024, 1024, 5, 0, "r1"),
        (2, "write_imm", "success", "complete", 300, 300, 9, 1, "r2"), (3, "send", "success", "complete", 1, 1, 0, 0, "r3"),
        (4, "send", "success", "complete", 0, 0, 0, 2, "r4"), (5, "none", "partial", "preempted", 0, 0, 0, 0, "r5")]
    read = lambda at, n: device.read(card.memory + at, n)
    assert (read(0, 1), read(1024, 1024), read(0x4001, 700), read(0x8000, 300)) == tuple(data)
    assert read(6 * 1024, 4) == b"\0\0ab" and device.host_frames() == [bytes(60)]
    counters = card.counters()
    assert {k: v for k, v in counters.items() if v} == {
        "frames_placed": 7, "placed_bytes": 1 + 1024 + 700 + 300 + 1 + 0 + 2, "frames_passed": 1, "completions": 6, "preempted": 1,
        **{f"drop_{reason}": 1 for reason in ("late", "no_receive", "bounds", "rkey", "generation", "source", "pkey", "icrc",
                                              "length", "runt")}}
    assert device.faults == []


def test_a_jump_has_one_completion_for_what_lies_between(device):
    card = bring_up(device)
    for i in range(20):
        card.post_receive(QP, VA, 64, KEY)
    assert exchange(device, send(0, b"ab", msg_len=9), send(17)) == ["placed"] * 2
    assert card.counter("completions") == 3         # the open one, those between, the new one
    assert [c[:5] for c in ends(card)] == [
        (0, "send", "partial", "preempted", 2), *((i, "none", "partial", "preempted", 0) for i in range(1, 17)),
        (17, "send", "success", "complete", 4)]
    card.flush_qp(QP)
    assert [c[:5] for c in ends(card)] == [(i, "none", "error", "flushed", 0) for i in (18, 19)]
    assert card.counter("completions") == 5


def test_deadlines(device):
    card = bring_up(device)
    start = card.time_ns()
    card.post_receive(QP, VA, 64, KEY, timeout_ns=20_000)
    card.post_receive(QP, VA, 64, KEY, timeout_ns=30_000)
    card.post_receive(QP, VA, 64, KEY, timeout_ns=start + 40_000, absolute=True)
    done = card.wait(CQ, 3, limit_cycles=20_000)
    assert [(c.index, c.status, c.cause) for c in done] == [(i, "partial", "timeout") for i in range(3)]
    times = [c.time_ns - start for c in done]
    assert 20_000 - 64 <= times[0] < 23_000 and 30_000 - 64 <= times[1] - times[0] < 32_000 and times[2] - times[1] < 2_000
    assert card.counter("deadlines") == 3 and exchange(device, send(2)) == ["late"]


def test_regions_by_key_wherever_they_are(device, rng):
    """Keys in both banks, moved about by others; each is found, and none when it is gone."""
    card = bring_up(device)
    keys = []
    try:
        while True:
            key = rng.getrandbits(32)
            card.add_region(key, VA + len(keys) * 64, 64, ("remote_write",), pd=PD, delta=card.memory - VA)
            keys.append(key)
    except RegionError:
        assert len(keys) > CFG.num_regions // 2
    assert exchange(device, *(write(bytes([i + 1]), VA + 64 * i, key) for i, key in enumerate(keys))) == ["placed"] * len(keys)
    assert [device.read(card.memory + 64 * i, 1)[0] for i in range(len(keys))] == [i + 1 for i in range(len(keys))]
    for key in keys[::2]:
        card.remove_region(key)
    assert exchange(device, *(write(b"!", VA + 64 * i, key) for i, key in enumerate(keys))) == [
        ("rkey", "placed")[i % 2] for i in range(len(keys))]


def test_interrupts(device):
    card = bring_up(device)
    for i in range(4):
        card.post_receive(QP, VA, 64, KEY)
    card.arm(CQ)
    assert device.irq == 0
    exchange(device, send(0), send(1))
    assert device.irq == card.pending_vectors() == 1
    card.clear_vectors(1)
    exchange(device, send(2))
    assert device.irq == 0                  # once for each arming
    card.arm(CQ)                            # something is there that the driver has not counted
    device.run(100)
    assert device.irq == 1
    card.clear_vectors(1)
    assert len(card.poll(CQ)) == 3
    card.arm(CQ)
    device.run(100)
    assert device.irq == 0
    exchange(device, send(3))
    assert device.irq == 1 and device.irq_edges()["value"].tolist() == [1, 0, 1, 0, 1]


def test_overrun_and_log(device):
    card = bring_up(device)
    card.set_cq(CQ, 4)
    card.log_refusals(2, 8)
    for i in range(6):
        card.post_receive(QP, VA, 64, KEY)
    exchange(device, *(send(i) for i in range(6)), *(send(0) for _ in range(3)), send(50, b"12345"))
    assert card.counter("cq_overrun") == 2 and len(card._take(card._cqs[CQ])) == 4
    raw = device.read(card._cqs[2].addr + 3 * 32, 32)
    assert card.refusals(QP) == {"late": 3, "no_receive": 1}
    assert int.from_bytes(raw[4:8], "little") == 50 and int.from_bytes(raw[8:12], "little") == 5
    assert card.counter("log_overrun") == 0


def test_commands_that_are_refused(device):
    card = bring_up(device)
    for name, args, error in (("qp_set", (CFG.num_qps | 1 << 24,), 2), ("qp_flush", (9,), 3),
                              ("region_set", (CFG.num_regions // 2,), 2), ("peer_set", (CFG.num_peers,), 2),
                              ("cq_set", (CFG.num_cqs,), 2), (99, (), 1), ("fence", (), 0)):
        for i, value in enumerate(args):
            card.reg_write(f"ARG{i}", value)
        card.reg_write("COMMAND", COMMANDS[name][0] if name in COMMANDS else name)
        card._wait("the end", lambda: not card.reg_read("COMMAND_STATUS") >> 31)
        assert card.reg_read("COMMAND_STATUS") & 0xFF == error, name


def test_write_faults_reach_the_next_completion(device):
    card = bring_up(device)
    card.add_region(7, 0, 1 << 20, ("remote_write",), pd=PD, delta=1 << 50)
    for i in range(3):
        card.post_receive(QP, VA, 64, KEY)
    exchange(device, send(0), write(b"x", 100, 7), send(1), send(2))
    assert [c[:4] for c in ends(card)] == [(0, "send", "success", "complete"), (1, "send", "error", "complete"),
                                           (2, "send", "success", "complete")]
    assert card.counter("write_errors") == 1 and [(f.addr, f.kind) for f in device.faults] == [((1 << 50) + 100, "write")]


# -- the model alone ------------------------------------------------------------------------------------

def test_frames_are_judged_at_their_time(model):
    card = bring_up(model)
    card.post_receive(QP, VA, 64, KEY)
    model.run(1000)
    begin = model.cycle
    frame = send(0, bytes(64))
    beats = -(-len(frame) // CFG.beat_bytes)
    for at in (0, 50, 1000):
        model.send(write(bytes(64)), at_cycle=begin + at)
    model.run(2000)
    beats = -(-len(write(bytes(64))) // CFG.beat_bytes)
    assert [t.cycle - begin for t in model.traces()] == [at + beats + PIPELINE for at in (0, 50, 1000)]
    assert model.stamps()["first"].tolist() == [begin, begin + 50, begin + 1000] and model.frames_sent == 3
    for _ in range(3):              # one after the other, whatever they ask for
        model.send(write(bytes(64)), at_cycle=0)
    assert model.stamps(3)["first"].tolist()[0] == (1 << 64) - 1
    model.run_until("sent", 6, limit=1000)
    assert np.diff(model.stamps(3)["first"]).tolist() == [beats, beats]


def test_doorbells_and_frames_act_in_the_order_in_which_they_came(model):
    card = bring_up(model)
    frame = send(0)
    beats = -(-len(frame) // CFG.beat_bytes)
    card.post_receive(QP, VA, 64, KEY)          # its doorbell is still under way
    model.send(frame)
    model.run(beats + PIPELINE)
    assert [t.verdict for t in model.traces()] == ["placed"]
    model.send(send(1))
    card.post_receive(QP, VA, 64, KEY, doorbell=False)
    model.run(beats)                            # the last beat is in, then the bell rings
    card.ring(QP)
    model.run(200)
    assert model.traces()[-1].reason == "no_receive"


def test_a_deadline_is_kept_to_the_cycle(model):
    card = bring_up(model)
    card.post_receive(QP, VA, 64, KEY, timeout_ns=10_000)
    model.run(PIPELINE)
    due = (model.time_ns // 64 + 157) * 64      # 10,000 ns are 156.25 ticks
    addr = card._cqs[CQ].addr
    assert model.run_until("byte", addr + 31, mask=1, equals=1, limit=10_000)
    assert 0 <= model.time_ns - due < CFG.clock_ns
    c, = card.poll(CQ)
    assert c.time_ns == due


def test_a_command_ends_behind_what_is_under_way(model):
    card = bring_up(model)
    model.send(write(b"seen"))
    model.run(-(-len(write(b"seen")) // CFG.beat_bytes))
    card.reg_write("ARG0", QP), card.reg_write("COMMAND", COMMANDS["qp_destroy"][0])
    assert card.reg_read("COMMAND_STATUS") >> 31
    card._wait("the end", lambda: not card.reg_read("COMMAND_STATUS") >> 31)
    assert model.read(card.memory, 4) == b"seen" and exchange(model, write(b"late")) == ["qpn"]
    card.reg_write("COMMAND", COMMANDS["fence"][0])
    card.reg_write("COMMAND", COMMANDS["cq_set"][0])        # ignored: one is under way
    card._wait("the end", lambda: not card.reg_read("COMMAND_STATUS") >> 31)
    assert model.card.cqs[QP].valid is False and model.card.cqs[CQ].valid


def test_a_damaged_frame_is_a_runt_and_a_closed_card_hears_nothing(model):
    card = bring_up(model)
    model.send(write(), user=1)
    model.run_until("idle", limit=10_000)
    assert [t.reason for t in model.traces()] == ["runt"]
    card.disable()
    model.send(write()), model.send(bytes(60))
    model.run_until("idle", limit=10_000)
    assert model.trace_count == 1 and model.host_frames() == [] and card.counter("frames_passed") == 0


def test_pass_through(model):
    card = bring_up(model)
    frames = [bytes([i]) * (20 + i) for i in range(5)]
    for frame in frames:
        model.send(frame)
    assert model.run_until("host_frames", 5, limit=10_000)
    model.run(20)
    found = model.host_frames(stamped=True)
    assert [f.frame for f in found] == frames and all(f.first < f.last < model.cycle for f in found[1:])
    assert model.host_frames() == [] and card.counter("frames_passed") == 5
    with ModelDevice(CFG.with_(pass_through=False)) as other:
        bring_up(other, other.cfg)
        other.send(frames[0])
        other.run(1000)
        assert other.host_frames() == []


def test_reset_forgets_all_but_memory(model):
    card = bring_up(model)
    exchange(model, write(b"kept"))
    late = model.cycle + 10_000
    model.send(write(b"lost")), model.send(bytes(50), at_cycle=late)
    model.run(3)
    model.reset()
    assert model.read(card.memory, 4) == b"kept" and model.reg_read(offset_of("CTRL")) == 0
    assert model.reg_read(offset_of("frames_placed")) == 0 and model.time_ns < 1000
    again = bring_up(model)
    assert exchange(model, write(b"new!", VA))[0] == "placed" and model.read(again.memory, 4) == b"new!"
    model.run(20_000)
    assert model.host_frames() == [bytes(50)]


def test_reg_wait_in_pieces(model):
    """What a world does: an access that is begun, and goes on while other cards catch up."""
    model.reg_begin(0, offset_of("ID"))
    assert model.reg_wait(3) is None and model.reg_wait(3) is None and model.reg_wait(100) == ID_WORD
    assert model.cycle == ModelDevice.READ_CYCLES
    model.reg_begin(1, offset_of("PKEY"), 5)
    assert model.reg_wait(100) == 0 and model.reg_read(offset_of("PKEY")) == 5
    model.reg_begin(0, offset_of("ID"))
    with pytest.raises(SimError, match="no answer"):
        model.reg_give_up()


def test_run_until(model):
    card = bring_up(model)
    assert model.idle() is False or model.cycle > 200
    begin = model.cycle
    assert not model.run_until("irq", 1, limit=100) and model.cycle == begin + 100
    assert model.run_until("cycle", begin + 150, limit=100) and model.cycle == begin + 150
    assert not model.run_until("cycle", begin + 10_000, limit=100)
    model.send(write(), at_cycle=begin + 5000)
    assert not model.run_until("idle", limit=1000) and not model.idle()
    assert model.run_until("traces", 1, limit=10_000) and model.run_until("idle", limit=10_000) and model.idle()
    assert not model.run_until("sent", 2, limit=10)
    for bad in (lambda: model.run_until("writes", 1, limit=1), lambda: model.set(speed=3), lambda: model.send(b""),
                lambda: model.inject(0, 1, "never")):
        with pytest.raises(SimError):
            bad()
    card.arm(CQ), card.post_receive(QP, VA, 64, KEY, timeout_ns=1000)
    assert model.run_until("irq", 1, limit=1000)


def test_the_same_calls_give_the_same_run(rng):
    def run():
        with ModelDevice(CFG) as model:
            card = bring_up(model)
            for i in range(30):
                card.post_receive(QP, VA, 1024, KEY, timeout_ns=2000)
                model.send(send(i // 2, bytes(100)))
                model.run(100)
            return card.counters(), [vars(c) for c in card.poll(CQ)], model.traces(), model.axi_totals()
    assert run() == run()


# -- its memory -----------------------------------------------------------------------------------------

def test_memory_is_all_there_and_mostly_nothing():
    memory = HostMemory()
    for addr in (0, 0xFFFE, 0x1_0000_0000 - 3, (1 << 64) - 7):
        memory.write(addr, b"1234567"[:7])
        assert memory.read(addr, 7) == b"1234567" and memory.read((addr + 7) % (1 << 64), 3) in (b"\0\0\0", b"123")
    memory.write(5, bytes(range(256)) * 1024)
    assert memory.read(5, 1 << 18) == bytes(range(256)) * 1024 and memory.read(1 << 40, 1 << 17) == bytes(1 << 17)
    memory.fill(0xFF00, 7, 0x20000)
    assert memory.read(0xFEFF, 0x20002) == b"\xfa" + b"\7" * 0x20000 + b"\xfb"
    memory.fill(1 << 50, 0, 1 << 40)        # nothing there, and nothing made


def test_windows(rng):
    """Mapping and unmapping against a set of bytes."""
    memory, right = HostMemory(lambda: 7), set()
    for _ in range(400):
        start, size = rng.randrange(200), rng.randrange(40)
        bytes_ = set(range(start, start + size))
        if rng.random() < 0.5:
            memory.map(start, size)
            right |= bytes_
        else:
            memory.unmap(start, size)
            right -= bytes_
        at, n = rng.randrange(220), rng.randrange(1, 9)
        allowed = set(range(at, at + n)) <= right
        before = len(memory.faults)
        assert memory.card_write(at, bytes(n)) == allowed
        if allowed:
            assert memory.card_read(at, n) == bytes(n)
        else:
            with pytest.raises(IndexError):
                memory.card_read(at, n)
            if before + 2 <= 1000:
                assert [f[:3] for f in memory.faults[before:]] == [(7, at, n)] * 2
    assert len(memory.faults) <= 1000


def test_allocations_have_guards():
    memory = HostMemory()
    a, b = memory.alloc(100), memory.alloc(5000, 8192)
    assert a >= 1 << 32 and b % 8192 == 0 and memory.card_write(a, bytes(100)) and not memory.card_write(a + 100, b"x")
    assert not memory.card_write(b - 1, b"x") and not memory.card_write(b + 4999, b"xy")
    memory.free(a)
    assert not memory.card_write(a, b"x") and memory.card_write(b, b"x")


def test_injected_errors_come_as_often_as_asked():
    memory = HostMemory()
    addr = memory.alloc(4096)
    memory.inject(addr + 10, 5, "slverr", on="both", count=2)
    assert memory.card_write(addr, bytes(10)) and not memory.card_write(addr, bytes(11))
    with pytest.raises(IndexError):
        memory.card_read(addr + 14, 100)
    assert memory.card_write(addr, bytes(11)) and memory.faults == []
    memory.inject(addr, 1, "decerr", on="write")
    assert not memory.card_write(addr, b"x") and not memory.card_write(addr, b"x")
    memory.clear_injections()
    assert memory.card_write(addr, b"x") and memory.totals["writes"] == 6
