"""The simulated device, tried with a small top that does simple things with the NIC's ports."""

import numpy as np
import pytest

from sim.device import SimDevice, SimError
from . import loopback as lb
from .patch import NEVER, READ, SLOW, patch_verilog

pytestmark = pytest.mark.rtl

BASE = 0x10_0000
WIDTHS = (64, 128, 512)


@pytest.fixture(scope="module", params=WIDTHS, ids=lambda w: f"{w}-bit")
def verilog(request):
    return request.param // 8, lb.loopback_verilog(request.param)


@pytest.fixture
def make(verilog, seed):
    made = []

    def make(**knobs):
        dev = SimDevice(verilog=verilog[1], top="loopback", **{"seed": seed, **knobs})
        made.append(dev)
        dev.beat = verilog[0]
        dev.map(BASE, 1 << 20)
        dev.reg_write(lb.BASE_LO, BASE)
        return dev

    yield make
    for dev in made:
        dev.close()


def image(frames, beat):
    """What the top makes of the frames: each one padded to whole beats, bytes beyond its end untouched."""
    return b"".join(f + bytes(-len(f) % beat) for f in frames)


PAUSES = dict(pause=.3, gap=(0, 5), host_pause=.3, aw_pause=.3, w_pause=.3, b_pause=.3, write_latency=(1, 60))


@pytest.mark.parametrize("knobs", [{}, PAUSES, {**PAUSES, "visibility": "random"}, dict(visibility="accept", writes_max=2)],
                         ids=["plain", "pauses", "random-visibility", "two-writes"])
def test_every_length_arrives_whole(make, rng, knobs):
    dev = make(**knobs)
    frames = [rng.randbytes(n) for n in range(1, 131)]
    for f in frames:
        dev.send(f)
    assert dev.run_until("idle", limit=100_000)
    assert dev.host_frames() == frames and dev.host_frames() == []
    assert dev.read(BASE, len(image(frames, dev.beat))) == image(frames, dev.beat)
    assert dev.faults == [] and dev.violations == []
    assert [t.length for t in dev.traces()] == [len(f) for f in frames]
    beats = sum(-(-len(f) // dev.beat) for f in frames)
    assert dev.mac_beats == beats and dev.frames_sent == len(frames)
    assert dev.axi_totals()["writes"] == beats
    if not knobs:
        stamps = dev.stamps()
        assert int(stamps["last"][-1] - stamps["first"][0]) == beats - 1 and dev.mac_stalls == 0
    elif knobs is PAUSES:
        assert dev.mac_stalls > 0


def test_same_seed_same_run(make, rng):
    frames = [rng.randbytes(rng.randrange(1, 400)) for _ in range(60)]

    def stamps(seed):
        dev = make(**PAUSES, seed=seed)
        dev.send_many(frames)
        assert dev.run_until("idle", limit=100_000)
        return dev.stamps()

    assert (stamps(5) == stamps(5)).all()
    assert (stamps(5) != stamps(6)).any()


def test_frames_wait_for_their_cycle_and_are_marked(make):
    dev = make()
    start = dev.cycle
    dev.send(b"a" * 100, at_cycle=start + 50)
    dev.send(b"b" * 100, user=1)
    assert not dev.run_until("sent", 2, limit=40)
    assert dev.run_until("sent", 2, limit=200)
    dev.run(100)
    assert int(dev.stamps()["first"][0]) == start + 50
    traces = dev.traces()
    assert [(t.verdict, t.reason) for t in traces] == [("placed", "none"), ("dropped", "runt")]
    assert [int(n) for n in dev.overflows()["value"]] == [2]
    assert [f.user for f in dev.host_frames(stamped=True)] == [0, 1]


def test_writes_outside_the_windows_are_faults(make):
    dev = make()
    dev.unmap(BASE + 2 * dev.beat, dev.beat)
    dev.send(b"x" * (4 * dev.beat))
    assert dev.run_until("idle", limit=1000)
    assert [(f.addr, f.length, f.kind) for f in dev.faults] == [(BASE + 2 * dev.beat, dev.beat, "write")]
    assert dev.read(BASE, 4 * dev.beat) == b"x" * 2 * dev.beat + bytes(dev.beat) + b"x" * dev.beat
    assert dev.reg_read(lb.BAD_WRITES) == 1


def test_top_of_the_address_space(make):
    dev = make()
    dev.reg_write(lb.BASE_LO, 2**32 - 2 * dev.beat)
    dev.reg_write(lb.BASE_HI, 2**32 - 1)
    dev.map(2**64 - dev.beat, dev.beat)
    dev.send(b"y" * (2 * dev.beat))
    assert dev.run_until("idle", limit=1000)
    assert [f.addr for f in dev.faults] == [2**64 - 2 * dev.beat]
    assert dev.read(2**64 - dev.beat, dev.beat) == b"y" * dev.beat


def read_burst(dev, addr, beats, id=0):
    dev.reg_write(lb.READ_LO, addr & 0xFFFFFFFF)
    dev.reg_write(lb.READ_HI, addr >> 32)
    dev.reg_write(lb.READ_ID, id)
    dev.reg_write(lb.READ, beats)


@pytest.mark.parametrize("knobs", [{}, dict(read_latency=(1, 50), r_pause=.4, ar_pause=.4, host_pause=.3, interleave=1, skew=9)],
                         ids=["plain", "pauses"])
def test_reads_of_a_page(make, rng, knobs):
    dev = make(**knobs)
    n = min(4096, 256 * dev.beat)
    page = rng.randbytes(n)
    addr = dev.alloc(n)
    dev.write(addr, page)
    for start in (0, 1, n // dev.beat - 1):
        read_burst(dev, addr + start * dev.beat, n // dev.beat - start)
        dev.run(64)         # the address may wait, and until then all is idle
        assert dev.run_until("idle", limit=10_000)
        assert dev.host_frames() == [page[start * dev.beat:]]
    assert dev.faults == [] and dev.violations == []


def test_injected_answers(make, rng):
    dev = make(read_latency=20, log=True)
    data = rng.randbytes(4 * dev.beat)
    addr = dev.alloc(4 * dev.beat)
    dev.write(addr, data)
    dev.inject(addr, 1, "slverr", count=1)
    dev.inject(addr, 1, "short", amount=3, count=1)
    dev.inject(addr, 1, "never", count=1)
    dev.inject(addr, 1, "late", amount=500, count=1)
    for _ in range(5):
        read_burst(dev, addr, 4)
        dev.run_until("idle", 100, limit=10_000)
    errored, short, late, plain = dev.host_frames()
    assert errored != data and len(errored) == len(data)    # what comes with an error is rubbish
    assert dev.reg_read(lb.BAD_READS) == 4
    assert short == data[:3 * dev.beat] and late == data and plain == data
    took = [(int(t["resp"]), int(t["end_cycle"] - t["cycle"]) if t["end_cycle"] != 2**64 - 1 else None) for t in dev.transfers()]
    assert took == [(2, 24), (0, 23), (0, None), (0, 524), (0, 24)]
    assert dev.axi_totals()["reads_unanswered"] == 1
    read_burst(dev, addr + 8 * 4096, 1)
    assert dev.run_until("idle", limit=1000)
    assert [(f.addr, f.kind) for f in dev.faults] == [(addr + 8 * 4096, "read")]
    dev.inject(BASE, dev.beat, "decerr", on="write", count=1)
    dev.send(b"z" * 2 * dev.beat)
    assert dev.run_until("idle", limit=1000)
    assert dev.read(BASE, 2 * dev.beat) == bytes(dev.beat) + b"z" * dev.beat and dev.reg_read(lb.BAD_WRITES) == 1


def test_answers_of_different_ids_in_any_order(make, rng):
    dev = make(read_latency=400, shuffle=300, log=True)
    data = rng.randbytes(12 * 2 * dev.beat)
    addr = dev.alloc(len(data))
    dev.write(addr, data)
    parts = [data[at:at + 2 * dev.beat] for at in range(0, len(data), 2 * dev.beat)]
    ids = [0x80, 1, 2, 1, 255, 4, 1, 6, 7, 8, 9, 10]
    for i, ident in enumerate(ids):
        read_burst(dev, addr + i * 2 * dev.beat, 2, ident)
    assert dev.run_until("idle", limit=10_000) and dev.violations == []
    order = [parts.index(frame) for frame in dev.host_frames()]
    assert sorted(order) == list(range(12)) != order
    assert [i for i in order if ids[i] == 1] == [1, 3, 6]
    assert [int(t["id"]) for t in dev.transfers()] == [ids[i] for i in order]


def test_answers_that_nobody_asked_for(make):
    dev = make()
    dev.answer_unasked(5, 3)
    dev.answer_unasked(200)
    assert dev.run_until("idle", limit=1000)
    assert [len(frame) for frame in dev.host_frames()] == [3 * dev.beat, dev.beat] and dev.axi_totals()["reads"] == 0


@pytest.mark.parametrize("mischief, said", [
    (lb.CHANGE_DATA, "axi__w: payload changed"), (lb.WITHDRAW, "valid withdrawn"), (lb.CROSS_4K, "axi__aw: burst crosses 4 KiB"),
    (lb.STROBE_OUTSIDE, "axi__w: strobe outside the burst"), (lb.EARLY_LAST, "axi__w: wlast is not on the last beat")])
def test_offences_against_axi_are_seen(make, mischief, said):
    dev = make(w_pause=.5, aw_pause=.5)
    beats = 4
    dev.reg_write(lb.BURST, 1 if mischief == lb.CROSS_4K else beats)
    for _ in range(4):
        dev.send(b"q" * beats * dev.beat)
    assert dev.run_until("idle", limit=2000)
    assert dev.violations == []
    dev.reg_write(lb.MISCHIEF, mischief)
    for _ in range(4):
        dev.send(b"q" * beats * dev.beat)
    dev.run(2000)
    assert any(said in v.text for v in dev.violations), dev.violations


def test_writes_are_visible_when_they_say(make):
    seen = {}
    for mode in ("response", "accept"):
        dev = make(visibility=mode, write_latency=100)
        dev.send(b"v" * dev.beat)
        assert dev.run_until("byte", BASE, equals=ord("v"), limit=1000)
        seen[mode] = dev.cycle - int(dev.stamps()["last"][0])
    assert seen["response"] - seen["accept"] == 100


@pytest.mark.parametrize("cut", [True, False])
def test_reset_in_mid_frame(make, cut):
    dev = make(pause=.2, w_pause=.2, write_latency=50)
    frame = bytes(range(10)) * dev.beat
    dev.send(frame), dev.send(b"n" * 33)
    dev.run_until("traces", 1, limit=5)
    part = dev.mac_beats
    assert 0 < part < 10
    dev.reset(cut=cut)
    assert dev.reg_read(lb.BASE_LO) == 0
    dev.map(0, 1 << 16)
    assert dev.run_until("idle", limit=2000)
    rest = [] if cut else [frame[part * dev.beat:]]
    assert dev.host_frames() == rest + [b"n" * 33] and dev.violations == []


def test_registers_and_interrupts(make):
    dev = make(skew=7)
    assert dev.reg_read(lb.ID) == 0x1234
    for i in range(50):
        dev.reg_write(lb.BASE_HI, i * 0x01010101)
        assert dev.reg_read(lb.BASE_HI) == i * 0x01010101
    with pytest.raises(SimError, match="SLVERR"):
        dev.reg_read(0x100)
    for lines in (1, 3, 2, 0):
        dev.reg_write(lb.IRQ, lines)
        dev.run(2)
        assert dev.irq == lines
    assert list(dev.irq_edges()["value"]) == [1, 3, 2, 0] and dev.violations == []
    dev.reg_write(lb.IRQ, 2)
    assert dev.run_until("irq", 2, limit=5) and not dev.run_until("irq", 1, limit=5)


def test_misuse_is_named(make):
    dev = make()
    with pytest.raises(SimError, match="unknown knob 'pauses'"):
        dev.set(pauses=1)
    with pytest.raises(SimError, match="unknown condition"):
        dev.run_until("bored", limit=1)
    with pytest.raises(SimError, match="unknown action"):
        dev.inject(0, 1, "explode")
    with pytest.raises(SimError, match="at least one byte"):
        dev.send(b"")


def test_two_devices_share_nothing(make):
    one, two = make(), make()
    one.send(b"1" * one.beat)
    one.run(100), two.run(100)
    assert one.read(BASE, 1) == b"1" and two.read(BASE, 1) == b"\0" and two.trace_count == 0
    assert np.array_equal(two.stamps(), two.stamps(0)) and len(two.stamps()) == 0


@pytest.fixture(scope="module", params=(128, 512), ids=lambda w: f"{w}-bit")
def patch(request):
    return request.param, patch_verilog(request.param)


@pytest.fixture
def make_patch(patch, seed):
    made = []

    def make(**knobs):
        made.append(SimDevice(verilog=patch[1], top="patch", **{"seed": seed, **knobs}))
        return made[-1]

    yield make
    for dev in made:
        dev.close()


@pytest.mark.parametrize("knobs", [{}, dict(mac_pause=.3, host_tx_pause=.3, host_tx_gap=(0, 5))], ids=["plain", "pauses"])
def test_frames_to_the_cable(make_patch, patch, rng, knobs):
    dev = make_patch(**knobs)
    frames = [rng.randbytes(n) for n in range(1, 200)]
    for f in frames:
        dev.host_send(f)
    assert dev.run_until("mac_frames", len(frames), limit=20_000) and dev.run_until("idle", limit=1000)
    sent = dev.sent_frames()
    assert [f.frame for f in sent] == frames and dev.sent_frames() == [] and dev.violations == []
    assert dev.host_frames_sent == len(frames) and dev.frames_sent == 0
    beats = lambda f: -(-len(f) // (patch[0] // 8))
    if knobs:
        assert any(f.last - f.first >= beats(f.frame) for f in sent)
    else:
        assert all(f.last - f.first == beats(f.frame) - 1 for f in sent)
        assert all(b.first == a.last + 1 for a, b in zip(sent, sent[1:]))


def test_host_frames_wait_for_their_cycle_and_are_marked(make_patch):
    dev = make_patch()
    start = dev.cycle
    dev.host_send(b"a" * 20, at_cycle=start + 50)
    dev.host_send(b"b" * 20, user=1)
    assert not dev.run_until("mac_frames", 1, limit=50) and dev.run_until("mac_frames", 2, limit=10)
    assert [(f.first - start, f.user) for f in dev.sent_frames()] in ([(51, 0), (52, 1)], [(51, 0), (53, 1)])


@pytest.mark.parametrize("share", [0.05, 0.4, 0.97, 20])
def test_the_cable_has_a_rate(make_patch, patch, rng, share):
    """The card is held so that its frames just fit on a cable of that rate."""
    dev = make_patch()
    rate = share * patch[0]
    dev.pace(rate)
    frames = [rng.randbytes(rng.choice((1, 60, 64, 65, 1500))) for _ in range(300)]
    for f in frames:
        dev.host_send(f)
    assert dev.run_until("mac_frames", len(frames), limit=2_000_000)
    sent = dev.sent_frames()
    wire, free = 0, sent[0].first
    for f in sent:
        size = 8 * (max(60, len(f.frame)) + 24)
        free = max(free, f.first) + size / rate
        wire += size
        assert free - f.last < (2 * patch[0] + 8 * 84) / rate + 2     # a beat or two and a frame's overhead ahead, no more
    took = sent[-1].last - sent[0].first
    if share < 1:
        assert wire / rate * 0.99 - 84 * 8 / rate < took < wire / rate * 1.01 + 10
    else:
        assert took == sum(-(-len(f) // (patch[0] // 8)) for f in frames) - 1


def test_a_register_access_in_pieces(make_patch):
    dev = make_patch()
    dev.reg_begin(True, SLOW, 25)
    assert dev.reg_wait(10) is None and dev.reg_wait(10) is None and dev.reg_wait(100) is not None
    assert [dev.reg_read(READ) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(SimError, match="register 0xc, write: no answer"):
        dev.reg_write(NEVER, 1, limit=50)


def test_what_a_top_has_not_got(make, make_patch):
    old, new = make(), make_patch()
    for call, port in ((old.sent_frames, "mac_tx"), (lambda: old.host_send(b"x"), "host_tx"), (lambda: new.irq, "irq"),
                       (lambda: new.inject(0, 1, "slverr"), "AXI master")):
        with pytest.raises(SimError, match=f"no {port}"):
            call()
    with pytest.raises(SimError, match="nothing that mac_tx__pause could set"):
        old.set(mac_pause=.1)
    with pytest.raises(SimError, match="at least one byte"):
        new.host_send(b"")
