"""Cards on a network in lock step: right to the cycle, whatever the quantum and the threads."""

from fractions import Fraction

from hypothesis import given, settings, strategies as st
import pytest

from sim.device import SimDevice, SimError
from sim.network import GBIT, NS, US, back_to_back, star
from sim.world import World, WorldError
from tests.sim.patch import ECHO, NEVER, READ, SLOW, patch_verilog
from .helpers import balanced, frame, know_everyone
from .echo_card import EchoCard

HZ = 250_000_000
WIDTH = 512


# -- with cards in Python --------------------------------------------------------------------------------


def test_a_frame_takes_what_it_must():
    net = back_to_back(rate=100 * GBIT, delay_ns=500)
    a, b = EchoCard(echo=False), EchoCard()
    with World([a, b], net, clock_hz=HZ) as world:
        data = frame(size=1024)             # 1098 bytes: 18 beats of 4 ns; 89.76 ns on the wire
        a.start(data, 100)
        assert world.run_until(lambda: a.got, limit_ns=10_000) and world.idle()
    wire = 8 * (len(data) + 24) * 10
    arrival = 101 * 4 * NS + wire + 500 * NS                            # from the edge that took the first beat on
    at = -(-arrival // (4 * NS))
    assert b.got == [(data, at + 17)]
    back = (at + 17 + 10 + 1) * 4 * NS + wire + 500 * NS
    assert a.got == [(data[6:12] + data[:6] + data[12:], -(-back // (4 * NS)) + 17)]


def ping_pong(quantum_ns=None, clocks=(HZ, HZ), threads=1, **impair):
    net = star(3, rate=100 * GBIT, delay_ns=200, seed=7, **impair)
    know_everyone(net)
    cards = [EchoCard(latency=3 + i) for i in range(2)]
    with World(cards, net, clock_hz=clocks, quantum_ns=quantum_ns, threads=threads) as world:
        for n in range(10):
            cards[n % 2].start(frame(n % 2, 1 - n % 2, 100 * n, psn=n), 10 * n)
        world.send(2, frame(2, 0, psn=99), 777)
        world.run_ns(20_000)
        assert balanced(net) and cards[0].cycle == -(-20_000 * clocks[0] // 10**9)
    return [card.got for card in cards], net.counters()


@settings(max_examples=15)
@given(st.sampled_from([1, 7, 33.3, 199, 200]), st.sampled_from([(HZ, HZ), (HZ, 322_265_625), (161_132_812, 400_000_000)]),
       st.integers(1, 2))
def test_the_quantum_does_not_matter(quantum_ns, clocks, threads):
    faults = dict(loss=.05, jitter_ns=100, duplicate=.05)
    assert ping_pong(quantum_ns, clocks, threads if quantum_ns > 10 else 1, **faults) == ping_pong(None, clocks, **faults)


def test_a_quantum_beyond_the_delay_would_show():
    """Negative control: with the check out of the way a card is handed frames for cycles that it has run already."""
    with pytest.raises(WorldError, match="quantum_ns=201 is not above 0 and at most 200, the smallest"):
        ping_pong(201)
    net = back_to_back(rate=100 * GBIT, delay_ns=200)
    cards = [EchoCard(), EchoCard()]
    with World(cards, net, clock_hz=HZ) as world:
        world.quantum_ps = net.lookahead_ps = 5 * US
        cards[0].start(frame())
        with pytest.raises(AssertionError, match="a frame for cycle"):
            world.run_ns(20_000)


def test_ports_without_cards():
    net = star(3, rate=100 * GBIT, delay_ns=200)
    know_everyone(net)
    card = EchoCard()
    with World([card], net, ports=["port1"], clock_hz=HZ) as world:
        world.send(0, frame(0, 1))
        world.send(0, frame(0, 2), at_ns=300)
        world.run_ns(5000)
        assert [d.frame[6:] for d in world.deliveries(2)] == [frame(0, 2)[6:]] and world.deliveries(2) == []
        assert [d.frame[:12] for d in world.deliveries("port0")] == [frame(0, 1)[6:12] + frame(0, 1)[:6]]
        with pytest.raises(WorldError, match="has a card"):
            world.deliveries(1)
    assert len(card.got) == 1


@pytest.mark.parametrize("make, said", [
    (lambda net, a, b: World([a, b, a], net, clock_hz=HZ), "not a port"),
    (lambda net, a, b: World([a, b], net, ports=[0, 0], clock_hz=HZ), "2 cards need as many different ports, not 1"),
    (lambda net, a, b: World([a, b], net), "card 0 has no configuration to take its clock from; give clock_hz"),
    (lambda net, a, b: World([a, b], net, clock_hz=[HZ]), "is not a frequency"),
    (lambda net, a, b: World([a, b], net, clock_hz=2.5e8), "is not a frequency"),
    (lambda net, a, b: World([a, b], net, clock_hz=HZ, quantum_ns=0), "quantum_ns=0 is not above 0"),
    (lambda net, a, b: World([a, b], back_to_back(rate=1, delay_ns=0), clock_hz=HZ), "has no delay"),
    (lambda net, a, b: World([a, b], net, clock_hz=HZ).run_until(lambda: False, 10, step_ns=0), "step_ns=0 is not above 0"),
])
def test_misuse_is_named(make, said):
    with pytest.raises(ValueError, match=said):
        make(back_to_back(rate=GBIT, delay_ns=5), EchoCard(), EchoCard())


# -- with simulated hardware -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verilog():
    return patch_verilog(WIDTH)


@pytest.fixture
def make(verilog, seed):
    made = []

    def make(net, n=2, knobs=None, **options):
        cards = [SimDevice(verilog=verilog, top="patch", seed=seed + i, **(knobs or {})) for i in range(n)]
        made.append(World(cards, net, **{"clock_hz": HZ, **options}))
        return made[-1]

    yield make
    for world in made:
        world.close()
        for card in world.cards:
            assert card.violations == []
            card.close()


def stamps(card):
    return [(int(s["first"]), int(s["last"])) for s in card.stamps()]


@pytest.mark.rtl
def test_two_cards_exchange_frames(make, rng):
    net = back_to_back(rate=100 * GBIT, delay_ns=500)
    world = make(net)
    frames = [[frame(i, 1 - i, rng.choice((0, 64, 1000, 4096)), psn=n) for n in range(50)] for i in range(2)]
    for i, card in enumerate(world.cards):
        for data in frames[i]:
            card.host_send(data)
    sent, take = [[], []], [card.sent_frames for card in world.cards]
    for i, card in enumerate(world.cards):
        card.sent_frames = lambda i=i: (sent[i].append(take[i]()), sent[i][-1])[1]
    assert world.run_until(world.idle, limit_ns=100_000)
    for i, card in enumerate(world.cards):
        assert card.host_frames() == frames[1 - i]
        free, expected = 0, []
        for f in (f for part in sent[1 - i] for f in part):
            free = max(free, world.cycle_ps(1 - i, f.first)) + 8 * (len(f.frame) + 24) * 10
            free = max(free, world.cycle_ps(1 - i, f.last))
            expected.append(free + 500 * NS)
        # A frame begins with the first cycle after its arrival, or after the frame before it.
        last = 0
        for (first, end), at in zip(stamps(card), expected, strict=True):
            begin = world.cycle_ps(i, first - 1)        # of the cycle that takes its first beat
            assert begin - 4 * NS < at <= begin or first == last + 1 and at <= begin
            last = end


@pytest.mark.rtl
def test_quantum_and_threads_do_not_matter_to_hardware(make):
    seen = []
    for options in ({}, dict(quantum_ns=60), dict(threads=2), dict(quantum_ns=333.3, threads=2)):
        net = star(3, rate=100 * GBIT, delay_ns=400, queue_bytes=2500, loss=.05, jitter_ns=300, duplicate=.1, seed=3)
        know_everyone(net)
        world = make(net, 3, knobs=dict(mac_pause=.1, pause=.1, host_tx_pause=.1), clock_hz=(HZ, HZ, 200_000_000), **options)
        for i, card in enumerate(world.cards):
            for n in range(30):
                card.host_send(frame(i, 0 if i else 1, 40 * n, psn=n))      # two to one
        assert world.run_until(world.idle, limit_ns=200_000, step_ns=10_000)
        assert balanced(net) and net.totals()["dropped"]["loss"] and net.totals()["dropped"]["tail"]
        seen.append(([stamps(c) for c in world.cards], [c.host_frames() for c in world.cards], net.counters()))
    assert all(s == seen[0] for s in seen[1:])


@pytest.mark.rtl
@pytest.mark.parametrize("gbit", [25, 100])
def test_a_card_is_held_to_the_rate_of_its_link(make, gbit):
    backlog = {}
    for pace in (True, False):
        net = back_to_back(rate=gbit * GBIT, delay_ns=500)
        world = make(net, pace=pace)
        for n in range(200):
            world.cards[0].host_send(frame(size=1024, psn=n))
        backlog[pace] = 0
        while not world.idle():
            world.run_ns(500)
            backlog[pace] = max(backlog[pace], net.ports[0].out.busy_until - world.now_ps)
        got = world.cards[1].stamps()
        assert len(got) == 200
        took = (int(got["first"][-1]) - int(got["first"][0])) * 4 * NS / 199
        assert took == pytest.approx(net.ports[0].out.wire_ps(len(frame(size=1024))), rel=.002)     # the wire is never idle
    frame_ps = net.ports[0].out.wire_ps(1100)
    assert backlog[True] < frame_ps and backlog[False] > 20 * frame_ps


@pytest.mark.rtl
def test_registers_take_time_in_one_card_within_bounds(make):
    net = back_to_back(rate=100 * GBIT, delay_ns=500)
    world = make(net)
    device, other = world.device(0), world.device(1)
    lead = lambda i: world.cycle_ps(i, world.cards[i].cycle - 1) - world.now_ps
    before = world.now_ps
    assert device.reg_read(READ) == 0 and device.reg_read(READ) == 1
    assert world.now_ps == before and 0 < lead(0) <= world.quantum_ps and lead(1) == 0
    for n in range(2, 300):
        assert device.reg_read(READ) == n and lead(0) <= world.quantum_ps + 4 * NS
    assert world.now_ps > before and lead(1) <= 4 * NS
    device.reg_write(SLOW, 1000)            # 4 us: the world goes along
    assert world.now_ps >= before + 3 * US and lead(0) <= world.quantum_ps + 4 * NS
    at = world.cards[0].cycle
    with pytest.raises(SimError, match="register 0xc, write: no answer"):
        device.reg_write(NEVER, 1, limit=777)
    assert world.cards[0].cycle == at + 777 and other.reg_read(READ) == 0


@pytest.mark.rtl
def test_a_driver_in_the_world(make):
    """Frames pass while one card's driver waits, sees registers and memory of its own card, and resets it."""
    net = back_to_back(rate=100 * GBIT, delay_ns=500)
    world = make(net)
    a, b = world.device(0), world.device(1)
    b.reg_write(ECHO, 1)
    a.host_send(frame(size=200))
    start = a.cycle
    a.run(1000)
    assert a.cycle == start + 1000 and b.cycle >= 1000
    assert a.host_frames() == [frame(size=200)[6:12] + frame(size=200)[:6] + frame(size=200)[12:]]
    a.host_send(frame(size=300))
    assert not a.run_until("sent", 2, limit=20) and a.run_until("sent", 2, limit=1000)
    assert a.run_until("idle", 50, limit=1000) and len(a.host_frames()) == 1
    where = a.alloc(4096)
    a.write(where, b"mine")
    assert a.read(where, 4) == b"mine" and b.read(where, 4) == bytes(4)
    assert b.reg_read(ECHO) == 1
    b.reset()
    assert b.reg_read(ECHO) == 0
    with pytest.raises(WorldError, match="a reset of 1000 cycles is longer than a quantum"):
        b.reset(1000)


@pytest.mark.rtl
def test_a_damaged_frame_is_marked_by_the_mac(make):
    net = back_to_back(rate=100 * GBIT, delay_ns=500, damage=1)
    world = make(net)
    world.cards[0].host_send(frame())
    world.cards[1].host_send(frame(1, 0), user=1)
    world.run_ns(3000)
    assert [[f.user for f in card.host_frames(stamped=True)] for card in world.cards] == [[1], [1]]


@pytest.mark.rtl
def test_cards_of_another_rate_are_paced_by_fractions():
    """A rate that no power of two divides: the card falls behind by less than a millionth."""
    assert int(Fraction(100 * GBIT, 322_265_625) * (1 << 20)) / (1 << 20) == pytest.approx(310.30303, rel=1e-6)
