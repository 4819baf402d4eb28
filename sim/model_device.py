"""A whole card in plain Python, for drivers and networks without a compiler: registers, rings, frames and time as of SimDevice.

    with ModelDevice(preset("small")) as dev:
        card = Card(dev)
        ...
        dev.send(frame)
        dev.run_until("idle", limit=100_000)
        assert not dev.faults

What the card does is in :mod:`sim.models` and :mod:`sim.model_card`; here is when. **Time** is that of the clock, in cycles,
and nothing happens at random:

- A frame from the cable takes a cycle for each beat, one frame after the other. `PIPELINE` cycles after its last beat it is judged,
  placed, and its completion is in memory. Doorbells and commands take as long, so all of these act in the order in which they came.
- A frame to the cable is made when the one before it has left: that is when its payload is read from memory and its deadline is
  looked at. Its first beat leaves `PIPELINE` cycles later, the last one without a pause after it, then its completion is written.
- Deadlines of receives and of sends, and the times of a pacer, are kept to the cycle.
- A register read takes 8 cycles, a write 4.

So this card is never short of room, drops a frame as `overflow` only for want of a pooled resource (READ requests, open messages), and never waits for its host.
"""

from bisect import bisect_right
from collections import deque
from fractions import Fraction
from heapq import heappop, heappush
import re

import numpy as np

from sim.device import PAIR, STAMP, HostFrame, SentFrame, SimDevice, SimError, TraceRecord
from sim.model_card import REGISTER_AT, ModelCard
from sim.model_memory import HostMemory
from sim.model_rc_card import RcModelCard
from sim.models.outgoing import SHORTEST_FRAME

__all__ = ["ModelDevice"]

FRACTION_BITS = 32
NEVER = (1 << 64) - 1
#: of SimDevice, whose docstring is the list: they make the bus and the cable unkind, which a model's are not
KNOBS = frozenset(re.findall(r"`(\w+)`", SimDevice.__doc__))


class ModelDevice:
    """One card of configuration `cfg`. Takes SimDevice's knobs and `seed`, and has no use for them."""

    PIPELINE = 48           #: cycles
    READ_CYCLES, WRITE_CYCLES = 8, 4
    TURN = 5                #: cycles that a packet takes that can't be sent

    def __init__(self, cfg, *, seed=1, **knobs):
        self.cfg, self.seed = cfg, seed
        self.set(**knobs)
        self.memory = HostMemory(lambda: self.cycle)
        for name in ("read", "write", "fill", "map", "unmap", "alloc", "free", "inject", "clear_injections"):
            setattr(self, name, getattr(self.memory, name))
        self._increment = round(1e9 / cfg.clock_hz * (1 << FRACTION_BITS))
        self._bits_per_cycle = None
        self.cycle, self.sends = 0, True
        self._serial, self._events = 0, []
        self._arrived_first, self._arrived_last = [], []    # of each frame from the cable, cycles
        self._sent, self._passed, self._traces, self._host_total = deque(), deque(), [], 0
        self._sent_last, self.host_frames_sent = [], 0
        self._irq_edges = [(0, 0)]
        self._started = None
        self.reset(0)

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def set(self, **knobs):
        for name in knobs:
            if name not in KNOBS:
                raise SimError(f"unknown knob {name!r}; SimDevice's docstring has the list")

    def reseed(self, seed):
        self.seed = seed

    def reset(self, cycles=4, *, cut=True):
        """Hold the card in reset. Frames under way are lost; those that wait are not, if they begin behind it."""
        end = self.cycle + cycles
        self.cycle = end
        waiting = sorted(filter(self._is_to_come, self._events))
        self.card = (RcModelCard if self.cfg.rc else ModelCard)(self.cfg, self.memory)
        self._events = []           # (cycle, n, what to do, with what)
        for at, _, act, arg in waiting:
            self._at(at, act, arg)
        self._epoch = (end, 0)      # cycle and NIC time at it
        self._time_high = 0
        self._busy = False
        self._cable_free = 0        # into the card
        self._host_free = 0         # from the host into the card
        self._from_host = deque()
        self._host_turn = True
        self._leaves_free = 0       # out of the card
        self._send_planned = False
        self._last_cqe = 0          # of a send: they are written in order
        self._last_act = end

    def _is_to_come(self, event):
        """It is a frame that has not begun."""
        _, _, act, arg = event
        return act == self._judge and self._arrived_first[arg[0]] >= self.cycle

    # -- time ---------------------------------------------------------------------------------------

    @property
    def time_ns(self):
        since, ns = self._epoch
        return ns + ((self.cycle - since) * self._increment >> FRACTION_BITS) & NEVER

    def _cycle_of(self, time_ns):
        """The first cycle with that NIC time."""
        since, ns = self._epoch
        return since + -(-(time_ns - ns << FRACTION_BITS) // self._increment)

    def _at(self, cycle, act, arg=None):
        self._serial += 1
        heappush(self._events, (cycle, self._serial, act, arg))

    def _next_timer(self):
        """The cycle of the next deadline or end of a pause, or None."""
        times = [t for t in self.card.alarms() if t is not None]
        paced = self.card.sender.next_paced() if self.card.send_enabled else None
        if paced is not None and paced > self.time_ns:
            times.append(paced)
        return max(self.cycle, self._cycle_of(min(times))) if times else None

    def _next(self):
        """The cycle of what comes next, or None."""
        timer = self._next_timer()
        if self._events and (timer is None or self._events[0][0] <= timer):
            return self._events[0][0]
        return timer

    def _step(self, cycle):
        """Do what is due then."""
        self.cycle = max(self.cycle, cycle)
        self.card.now = self.time_ns
        if self._events and self._events[0][0] <= self.cycle:
            _, _, act, arg = heappop(self._events)
            act(arg)
            self._last_act = self.cycle
        else:
            before = self.card.counts["completions"]
            self.card.advance()
            if self.card.counts["completions"] != before:
                self._last_act = self.cycle
        self._after()

    def _after(self):
        """What follows from whatever was done: completions of sends, and the next frame."""
        card = self.card
        card.now = self.time_ns
        if self._irq_edges[-1][1] != card.pending:
            self._irq_edges.append((self.cycle, card.pending))
        for qp, c in card.send_completions():
            self._write_send_cqe(self.cycle, qp, c)
        if not self._send_planned and card.send_enabled and (self._from_host or card.sender.ready(card.now)):
            self._send_planned = True
            self._at(max(self.cycle, self._leaves_free), self._transmit)

    def run(self, cycles):
        self._run_to(self.cycle + cycles)

    def _run_to(self, target):
        while (cycle := self._next()) is not None and cycle <= target:
            self._step(cycle)
        self.cycle = max(self.cycle, target)

    def run_until(self, kind, value=0, *, limit, mask=0xFF, equals=0):
        """Run until a condition holds, at most `limit` cycles; returns whether it held. As SimDevice.run_until."""
        end = self.cycle + limit
        if kind == "idle":
            return self._run_until_idle(value or 200, end)
        if kind in ("cycle", "sent"):
            at = value if kind == "cycle" else self._arrived_last[value - 1] + 1 if 0 < value <= len(self._arrived_last) \
                else 0 if value <= 0 else end + 1
            self._run_to(min(at, end))
            return at <= end
        holds = {
            "traces": lambda: len(self._traces) >= value, "traces_and_overflows": lambda: len(self._traces) >= value,
            "host_frames": lambda: self._host_total >= value, "mac_frames": lambda: len(self._sent_last) >= value,
            "irq": lambda: self.irq & value,
            "byte": lambda: self.read(value, 1)[0] & mask == equals,
        }.get(kind)
        if holds is None:
            raise SimError(f"unknown condition {kind!r}; known are cycle, sent, idle, traces, traces_and_overflows, host_frames, "
                           f"mac_frames, irq, byte")
        while not holds():
            cycle = self._next()
            if cycle is None or cycle > end:
                self.cycle = max(self.cycle, end)
                return False
            self._step(cycle)
        if kind == "mac_frames" and value > 0:      # it has been made; its last beat comes later
            return self.run_until("cycle", self._sent_last[value - 1] + 1, limit=end - self.cycle)
        return True

    def _run_until_idle(self, quiet, end):
        while True:
            rest = max(self._last_act, self._leaves_free) + quiet
            cycle = self._next()
            if not self._events and (cycle is None or cycle > rest):
                self._run_to(min(max(rest, self.cycle), end))
                return rest <= end
            if cycle is None or cycle > end:
                self.cycle = max(self.cycle, end)
                return False
            self._step(cycle)

    def idle(self, quiet_cycles=200):
        """Nothing to do, for so many cycles."""
        return not self._events and max(self._last_act, self._leaves_free) + quiet_cycles <= self.cycle

    # -- frames from the cable ----------------------------------------------------------------------

    def _beats(self, frame):
        return -(-len(frame) // self.cfg.beat_bytes)

    def send(self, frame, *, at_cycle=None, user=0):
        """Queue a frame (no preamble, no FCS), not to begin before `at_cycle`; `user` 1 marks it damaged. Returns its index."""
        frame = bytes(frame)
        if not frame:
            raise SimError("a frame has at least one byte")
        first = max(self.cycle, self._cable_free, at_cycle or 0)
        self._cable_free = first + self._beats(frame)
        index = len(self._arrived_first)
        self._arrived_first.append(first)
        self._arrived_last.append(self._cable_free - 1)
        self._at(self._cable_free + self.PIPELINE, self._judge, (index, frame, user))
        return index

    def send_many(self, frames, at_cycles=None):
        for i, frame in enumerate(frames):
            self.send(frame, at_cycle=None if at_cycles is None else int(at_cycles[i]))

    def _judge(self, arrival):
        index, frame, user = arrival
        card = self.card
        verdict = card.frame(frame, user)
        if verdict is None:
            return
        while card.host_frames:
            passed = card.host_frames.pop(0)
            self._host_total += 1
            self._passed.append(HostFrame(passed, self.cycle, self.cycle + self._beats(passed) - 1, 0))
        if self.cfg.trace:
            packet = card.receiver.packet
            self._traces.append(TraceRecord(self.cycle, verdict.verdict, verdict.reason or "none", packet.qpn, len(packet.payload),
                                            verdict.kind or "none", index + 1))

    @property
    def frames_sent(self):
        """Frames wholly taken by the card."""
        return bisect_right(self._arrived_last, self.cycle - 1)

    def stamps(self, skip=0):
        """Array with the cycles of the first and the last beat of each frame from the cable (2^64-1: not yet)."""
        out = np.zeros(len(self._arrived_first) - skip, STAMP)
        for name, cycles in (("first", self._arrived_first), ("last", self._arrived_last)):
            out[name] = [c if c < self.cycle else NEVER for c in cycles[skip:]]
        return out

    def host_frames(self, stamped=False):
        """The frames that came out of the pass-through stream since the last call; `stamped`: as HostFrame."""
        return self._take(self._passed, stamped)

    def _take(self, queue, stamped):
        found = []
        while queue and queue[0].last < self.cycle:
            found.append(queue.popleft())
        return found if stamped else [f.frame for f in found]

    # -- frames to the cable ------------------------------------------------------------------------

    def host_send(self, frame, *, at_cycle=None, user=0):
        """Queue a frame of the host's own for the card to send, not to begin before `at_cycle`. The card ignores `user`."""
        frame = bytes(frame)
        if not frame:
            raise SimError("a frame has at least one byte")
        self._host_free = max(self._host_free, self.cycle, at_cycle or 0) + self._beats(frame)
        self._at(self._host_free, self._take_from_host, frame)

    def _take_from_host(self, frame):
        self._from_host.append(frame.ljust(SHORTEST_FRAME, b"\0"))
        self.host_frames_sent += 1

    def pace(self, bits_per_cycle, overhead_bytes=24, min_frame_bytes=60):
        """Send no faster than a cable of that rate takes frames (0: as fast as they come)."""
        self._bits_per_cycle = Fraction(bits_per_cycle)
        self._overhead, self._shortest = overhead_bytes, min_frame_bytes

    def _transmit(self, _):
        self._send_planned = False
        card = self.card
        if not card.send_enabled:
            return
        host = bool(self._from_host) and (self._host_turn or not card.sender.ready(card.now))
        self._host_turn = not host
        if host:
            frame = self._from_host.popleft()
            card.counts["host_frames_sent"] += 1
            card.counts["sent_bytes"] += len(frame)
        else:
            found = card.sender.next_frame(card.now)
            frame = found and found.frame
        if frame is None:
            self._leaves_free = self.cycle + self.TURN
            return
        first = self.cycle + self.PIPELINE
        beats = self._beats(frame)
        self._sent.append(SentFrame(frame, first, first + beats - 1, 0))
        self._sent_last.append(first + beats - 1)
        busy = beats
        if self._bits_per_cycle:
            bits = 8 * (max(len(frame), self._shortest) + self._overhead)
            busy = max(busy, int(-(-bits // self._bits_per_cycle)))
        self._leaves_free = self.cycle + busy
        for qp, c in card.send_completions():
            self._write_send_cqe(first + beats, qp, c)

    def _write_send_cqe(self, cycle, qp, c):
        self._last_cqe = max(self._last_cqe, cycle)
        self._at(self._last_cqe, lambda _: self.card.send_cqe(qp, c))

    def sent_frames(self):
        """The frames that the card has sent to the cable since the last call, as SentFrame."""
        return self._take(self._sent, True)

    # -- verdicts and interrupts --------------------------------------------------------------------

    def traces(self, skip=0):
        """The verdicts as TraceRecords; there are none without `trace` in the configuration."""
        return self._traces[skip:]

    @property
    def trace_count(self):
        return len(self._traces)

    def overflows(self, skip=0):
        return []

    @property
    def irq(self):
        """The interrupt lines."""
        return self.card.pending

    def irq_edges(self, skip=0):
        """Array of the changes of the interrupt lines: cycle and new value."""
        return np.array(self._irq_edges[1 + skip:], PAIR)

    @property
    def faults(self):
        """The first 1000 accesses outside the mapped windows."""
        return list(self.memory.faults)

    @property
    def violations(self):
        """A model has no bus to offend against."""
        return []

    def clear_faults(self):
        self.memory.faults.clear()

    def axi_totals(self):
        return dict(self.memory.totals)

    # -- registers ----------------------------------------------------------------------------------

    def reg_read(self, offset, limit=None):
        self.run(self.READ_CYCLES)
        return self._read_register(offset)

    def reg_write(self, offset, value, limit=None):
        self.run(self.WRITE_CYCLES)
        self._write_register(offset, value)

    def reg_begin(self, write, offset, value=0):
        """Begin an access, of which :meth:`reg_wait` may be called until it has an answer."""
        self._started = (write, offset, value, self.cycle + (self.WRITE_CYCLES if write else self.READ_CYCLES))

    def reg_wait(self, cycles):
        """Run so many cycles at most; the word that was read (0 of a write), or None if there is no answer yet."""
        write, offset, value, end = self._started
        self._run_to(min(end, self.cycle + max(0, cycles)))
        if self.cycle < end:
            return None
        self._started = None
        return self._write_register(offset, value) or 0 if write else self._read_register(offset)

    def reg_give_up(self):
        """There was no answer within what the caller has time for."""
        raise SimError(f"register {self._started[1]:#x}: no answer")

    def _read_register(self, offset):
        register = REGISTER_AT.get(offset & ~3)
        name = register.name if register else None
        if name == "TIME_LO":
            self._time_high = self.time_ns >> 32
            return self.time_ns & 0xFFFFFFFF
        if name == "TIME_HI":
            return self._time_high
        if name == "STATUS":
            return int(all(self._is_to_come(event) for event in self._events))
        if name == "COMMAND_STATUS":
            return self._busy << 31 | (0 if self._busy else self.card.error)
        word = self.card.reg_read(offset)
        if word is None:
            raise SimError(f"register {offset:#x}, read: SLVERR")
        return word

    def _write_register(self, offset, value):
        register = REGISTER_AT.get(offset & ~3)
        name = register.name if register else None
        self.card.now = self.time_ns
        if name == "TIME_SET_HI":
            self._epoch = (self.cycle, (value & 0xFFFFFFFF) << 32 | self.card.register("TIME_SET_LO"))
            self.card.now = self.time_ns
            self.card.advance(jumped=True)
        elif name in ("RQ_DOORBELL", "SQ_DOORBELL"):
            self._at(self.cycle + self.PIPELINE, lambda _: self.card.doorbell(name, value))
        elif name == "COMMAND":
            if not self._busy:
                self._busy = True
                self._at(self.cycle + self.PIPELINE, self._command, value)
        elif not self.card.reg_write(offset, value):
            raise SimError(f"register {offset:#x}, write: SLVERR")
        self._after()

    def _command(self, code):
        self.card.command(code)
        self._after()
        # it is done when what it completed, and the frame under way, are
        self._at(max(self.cycle, self._last_cqe, self._leaves_free), self._command_done)

    def _command_done(self, _):
        self._busy = False
