"""Several cards on one network, in lock step: the same frames at the same cycles however the work is cut up.

    net = back_to_back(rate=100 * GBIT, delay_ns=500, loss=0.001, seed=7)
    with World([SimDevice(cfg), SimDevice(cfg)], net) as world:
        cards = [Card(world.device(i), cfg) for i in range(2)]
        ...
        world.run_until(lambda: done(), limit_ns=1_000_000)

A *card* is a SimDevice or anything with

    cycle                               clock edges so far
    run(cycles)                         let the clock run
    send(frame, at_cycle=, user=)       a frame from the cable, not to begin before that cycle; user 1: damaged
    sent_frames()                       those it sent since the last call: tuples (frame, first, last, user), cycles of beats
    idle(quiet_cycles)                  nothing to do, for so long
    pace(bits_per_cycle, overhead_bytes, min_frame_bytes)       optional: send no faster
    reg_begin, reg_wait, reg_give_up    optional, see SimDevice: register accesses that can be interrupted; without them
                                        reg_read and reg_write, if there are any, take a few cycles at most
"""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

__all__ = ["World", "WorldError"]

SECOND_PS = 10**12
SHORT_ACCESS = 16           # cycles that a register access takes of a card that can't interrupt it, at most


class WorldError(ValueError):
    """A world that can't be: no clock, no delay to look ahead by, a quantum that is too long."""


class World:
    """The `cards` at the ports of `network` in order, or at `ports`; time begins when the world is made.

    **Time.** A step is a quantum: every card runs through it, then what the cards sent goes into the network, then what
    will arrive in the next quantum is known and is put before the cards, each frame at its cycle. That is exact as long as
    nothing can get from one card to another within a quantum, so `quantum_ns` is at most (and by default) the smallest delay
    of the lanes into ports; the result doesn't depend on it. A beat counts at the clock edge that takes it; a frame is given
    to a card from the first edge after its last bit, as a MAC that stores it whole would. Frames to ports without a card are
    kept for :meth:`deliveries`.

    **Clocks.** `clock_hz` is one number or one for each card; without it `card.cfg.clock_hz`. With `pace`, a card sends
    no faster than its link, as if its MAC held it back; otherwise what is too fast waits in the network, without bound.

    **Threads.** With `threads` > 1 the cards of a step run in that many threads; nothing else changes.
    """

    def __init__(self, cards, network, *, ports=None, clock_hz=None, quantum_ns=None, threads=1, pace=True):
        self.cards, self.network = list(cards), network
        self._ports = [network._port(p) for p in (range(len(self.cards)) if ports is None else ports)]
        if len(self._ports) != len(self.cards) or len(set(self._ports)) != len(self.cards):
            raise WorldError(f"{len(self.cards)} cards need as many different ports, not {len(set(self._ports))}")
        for port in self._ports:
            if port.out is None:
                raise WorldError(f"{port!r} has no link")
        self.quantum_ps = self._quantum(quantum_ns)
        self._clocks = [_Clock(card, hz, network.now_ps) for card, hz in zip(self.cards, self._frequencies(clock_hz))]
        self._card_at = {port.index: i for i, port in enumerate(self._ports)}
        self._unplugged = {port.index: [] for port in network.ports if port.index not in self._card_at}
        self._sends = [getattr(card, "sends", True) for card in self.cards]
        if pace:
            for card, clock, port, sends in zip(self.cards, self._clocks, self._ports, self._sends):
                if sends and hasattr(card, "pace"):
                    card.pace(Fraction(port.out.rate, clock.hz), port.out.overhead_bytes, port.out.min_frame_bytes)
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        #: called without arguments at the end of each step: what is at ports without a card and keeps time with the world
        self.followers = []
        self._deliver(network.advance(network.now_ps, self.quantum_ps))

    def _quantum(self, quantum_ns):
        longest = self.network.lookahead_ps
        if longest == 0:
            raise WorldError("a link into a port has no delay, so the cards can't run apart at all; give it a delay_ns")
        quantum = longest if quantum_ns is None else round(quantum_ns * 1000)
        if not 0 < quantum <= longest:
            raise WorldError(f"quantum_ns={quantum_ns} is not above 0 and at most {longest / 1000:g}, the smallest delay into "
                             f"a port")
        return quantum

    def _frequencies(self, clock_hz):
        if clock_hz is None:
            missing = [i for i, card in enumerate(self.cards) if getattr(card, "cfg", None) is None]
            if missing:
                raise WorldError(f"card {missing[0]} has no configuration to take its clock from; give clock_hz")
            return [card.cfg.clock_hz for card in self.cards]
        found = list(clock_hz) if isinstance(clock_hz, (list, tuple)) else [clock_hz] * len(self.cards)
        if len(found) != len(self.cards) or not all(isinstance(hz, int) and 0 < hz <= SECOND_PS for hz in found):
            raise WorldError(f"clock_hz={clock_hz!r} is not a frequency in Hz, or one for each of {len(self.cards)} cards")
        return found

    def close(self):
        """End the threads and the captures; the cards stay as they are."""
        if self._pool:
            self._pool.shutdown()
        self.network.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- time -----------------------------------------------------------------------------------------

    @property
    def now_ps(self):
        return self.network.now_ps

    @property
    def now_ns(self):
        return self.now_ps // 1000

    def run_ns(self, ns):
        self.run_to_ps(self.now_ps + round(ns * 1000))

    def run_to_ps(self, target):
        while self.now_ps < target:
            self._step(min(target, self.now_ps + self.quantum_ps))

    def run_until(self, predicate, limit_ns, step_ns=None):
        """Run until `predicate()` is true, looked at every `step_ns`, by default every quantum; False if it never was."""
        end, step = self.now_ps + round(limit_ns * 1000), self.quantum_ps if step_ns is None else round(step_ns * 1000)
        if step < 1:
            raise WorldError(f"step_ns={step_ns} is not above 0")
        while not predicate():
            if self.now_ps >= end:
                return False
            self.run_to_ps(min(end, self.now_ps + step))
        return True

    def idle(self, quiet_cycles=200):
        """No frame is under way and no card has anything to do, for so many cycles."""
        return self.network.next_ps is None and all(card.idle(quiet_cycles) for card in self.cards)

    def _step(self, target):
        def run(i):
            cycles = self._clocks[i].cycle_at(target) - self.cards[i].cycle
            if cycles > 0:      # a card that a register access took ahead may be there already
                self.cards[i].run(cycles)

        if self._pool:
            list(self._pool.map(run, range(len(self.cards))))
        else:
            for i in range(len(self.cards)):
                run(i)
        for card, clock, port, sends in zip(self.cards, self._clocks, self._ports, self._sends):
            if sends:
                for frame, first, last, user in card.sent_frames():
                    self.network.inject(port, frame, clock.edge_ps(last + 1), clock.edge_ps(first + 1), damaged=bool(user))
        self._deliver(self.network.advance(target, self.quantum_ps))
        for follow in self.followers:
            follow()

    def _deliver(self, deliveries):
        for delivery in deliveries:
            i = self._card_at.get(delivery.port)
            if i is None:
                self._unplugged[delivery.port].append(delivery)
            else:
                self.cards[i].send(delivery.frame, at_cycle=self._clocks[i].cycle_at(delivery.time_ps), user=int(delivery.damaged))

    # -- a card in the world --------------------------------------------------------------------------

    def device(self, i):
        """Card `i` for a driver: as the card itself, but the time that passes is that of the world."""
        return _CardInWorld(self, i)

    def deliveries(self, port):
        """What arrived at a port without a card since the last call; the last ones may be up to a quantum ahead."""
        index = self.network._port(port).index
        if index not in self._unplugged:
            raise WorldError(f"port {port!r} has a card; ask that")
        found, self._unplugged[index] = self._unplugged[index], []
        return found

    def send(self, port, frame, at_ns=None):
        """A frame from a port without a card, from now on or at `at_ns`."""
        time = self.now_ps if at_ns is None else round(at_ns * 1000)
        self.network.inject(port, frame, time)

    def cycle_ps(self, i, cycle):
        """The time of the clock edge that ends cycle `cycle` (as in stamps) of card `i`."""
        return self._clocks[i].edge_ps(cycle + 1)


class _Clock:
    """Edges of a card's clock in the world's time: edge n is the one that made `card.cycle` n."""

    def __init__(self, card, hz, now_ps):
        self.hz, self._cycle, self._start = hz, card.cycle, now_ps

    def edge_ps(self, edge):
        return self._start + (edge - self._cycle) * SECOND_PS // self.hz

    def cycle_at(self, ps):
        """The first edge not before that time; inverse of edge_ps."""
        return self._cycle - (self._start - ps) * self.hz // SECOND_PS


class _CardInWorld:
    """Everything of the card, and time that takes the world along.

    A register access takes time in its own card first; the others follow when they must: a card is never more than a
    quantum ahead of the world, so that it has been given every frame that it can meet. An access that takes longer goes on
    while the world catches up. What the driver of one card does is thus seen by the others at the right time, and the skew
    between what two drivers see of their memories at one moment of Python is at most a quantum.
    """

    def __init__(self, world, i):
        self._world, self._i, self._card = world, i, world.cards[i]
        self._clock = world._clocks[i]

    def __getattr__(self, name):
        return getattr(self._card, name)

    def _room(self):
        """Cycles for which the card may run alone."""
        world = self._world
        return self._clock.cycle_at(world.now_ps + world.quantum_ps) - self._card.cycle

    def _catch_up(self):
        world = self._world
        world.run_to_ps(world.now_ps + world.quantum_ps)

    def run(self, cycles):
        """Let so many cycles of this card pass, everywhere."""
        self._world.run_to_ps(self._clock.edge_ps(self._card.cycle + cycles))

    def run_until(self, kind, value=0, *, limit, **more):
        """As SimDevice.run_until, with the world."""
        while True:
            room = min(limit, self._room())
            before = self._card.cycle
            if self._card.run_until(kind, value, limit=room, **more):
                return True
            limit -= self._card.cycle - before
            if limit <= 0:
                return False
            self._catch_up()

    def reset(self, cycles=4, *, cut=True):
        """Reset this card alone, while the others stand still; at most as many cycles as a quantum has."""
        if cycles > self._room():
            self._catch_up()
        if cycles > self._room():
            raise WorldError(f"a reset of {cycles} cycles is longer than a quantum, {self._room()} cycles")
        self._card.reset(cycles, cut=cut)

    def _access(self, write, offset, value, limit):
        card = self._card
        if not hasattr(card, "reg_begin"):      # then in one piece, begun where there is room for it
            if self._room() < SHORT_ACCESS:
                self._catch_up()
            return card.reg_write(offset, value) if write else card.reg_read(offset)
        card.reg_begin(write, offset, value)
        while True:
            before = card.cycle
            word = card.reg_wait(min(limit, self._room()))
            if word is not None:
                return word
            limit -= card.cycle - before
            if limit <= 0:
                card.reg_give_up()
            self._catch_up()

    def reg_read(self, offset, limit=10_000):
        return self._access(0, offset, 0, limit)

    def reg_write(self, offset, value, limit=10_000):
        self._access(1, offset, value, limit)
