"""The event counters of abi/verdicts.py: nothing that happens is left out, however many things happen at once."""

from functools import reduce
from operator import or_

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..abi.verdicts import COUNTERS, NUM_COUNTERS
from ..memory.table import TableSpec

__all__ = ["Counters", "EVENTS"]

#: counters with an event line of their own
EVENTS = ("cnp_received", "cnp_due", "pass_overflow", "completions", "cq_overrun", "write_errors", "fetch_errors",
          "deadlines", "preempted", "drop_overflow", "log_overrun", "frames_sent", "host_frames_sent", "cnp_sent", "send_errors",
          "wqe_errors", "sends_expired", "reads_served", "marks_lost")
AMOUNTS = ("placed_bytes", "sent_bytes")        #: counters that an event adds more than one to
RC_EVENTS = ("go_backs", "ack_timeouts", "rnr_waits", "acks_sent", "naks_sent", "duplicates")   #: in place of the next
XP_EVENTS = ("deadlines", "preempted", "sends_expired")


TABLE_EVENTS = ("table_corrected", "table_detected")     #: with table_protection


def events_of(cfg):
    """The counters with an event line on this card."""
    own = tuple(name for name in EVENTS if name not in XP_EVENTS) + RC_EVENTS if cfg.rc else EVENTS
    return own + TABLE_EVENTS if cfg.table_protection != "none" else own


def round_of(cfg):
    """Cycles from one visit to a source to the next."""
    return len(events_of(cfg)) + len(AMOUNTS)


class Counters(wiring.Component):
    """`NUM_COUNTERS` counters of 64 bits, in two banks of LUT memory whose sum is the count.

    - `verdict` {valid, index}: one event every cycle, added at once by a read-modify-write with forwarding.
    - `event_<name>`: one event in every cycle in which it is high; any of them together.
    - `placed_bytes`, `sent_bytes` {valid, bytes}: adds `bytes`, at most max_frame_bytes.
    - `read` {addr, data}: `data` belongs to the `addr` of `READ_LATENCY` cycles ago, every cycle. It is exact for an
      `addr` given `SETTLE` or more cycles after the last event, and otherwise that much behind at most.

    Nothing can be lost: the verdicts have a bank of their own, which takes one every cycle. The other bank serves its
    `round` sources in a fixed turn, one a cycle; each source gathers what comes between two visits. A visit takes all that
    was gathered in the cycles before its own and leaves what comes in its own cycle, so at most `round` cycles' worth are
    gathered: `round` events, or `round` * max_frame_bytes bytes, and the registers are wide enough for that. A counter itself
    wraps at 2^64. A source's visits being further apart than the three stages of its read-modify-write, that bank needs
    no forwarding.

    After reset the counters begin at 0. The verdicts' bank is cleared row by row first: as long as `clearing` is high (64
    cycles), verdicts are not counted and reads are undefined. Events are counted from the first cycle.
    """

    READ_LATENCY = 3

    def __init__(self, cfg):
        self._cfg = cfg
        self.sources, self.round = (*events_of(cfg), *AMOUNTS), round_of(cfg)
        self.SETTLE = self.round + 5
        super().__init__({
            "verdict": In(StructLayout({"valid": 1, "index": range(NUM_COUNTERS)})),
            **{name: In(StructLayout({"valid": 1, "bytes": range(cfg.max_frame_bytes + 1)})) for name in AMOUNTS},
            **{f"event_{name}": In(1) for name in events_of(cfg)},
            "read": Out(wiring.Signature({"addr": In(range(NUM_COUNTERS)), "data": Out(64)})),
            "clearing": Out(1, init=1),
        })

    @staticmethod
    def tables(cfg):
        owner = "transport.counters"
        return [TableSpec("verdict_counters", owner, 64, NUM_COUNTERS, "counter", "context", reads=2, style="distributed"),
                TableSpec("event_counters", owner, 64, 1 << (round_of(cfg) - 1).bit_length(), "counter", "context", reads=2,
                          style="distributed")]

    def elaborate(self, platform):
        m = Module()
        self._verdicts(m)
        self._events(m)
        self._read(m)
        return m

    def _bank(self, m, name, depth):
        ram = Memory(shape=64, depth=depth, init=[], attrs={"ram_style": "distributed"})
        m.submodules[name] = ram
        return ram.write_port(), ram.read_port(), ram.read_port()

    def _verdicts(self, m):
        """Stage 0 reads, 1 adds, 2 writes. Two verdicts before may still be on their way: stage 1 takes their sums."""
        write, read, self._verdict_read = self._bank(m, "verdict_bank", NUM_COUNTERS)
        stages = [Signal(self.verdict.shape(), name=f"verdict{n}") for n in (1, 2, 3)]
        total = [Signal(64, name=f"total{n}", reset_less=True) for n in (2, 3)]
        same = [Signal(name=f"same_as_{n}", reset_less=True) for n in ("last", "last_but_one")]
        old = Signal(64)
        m.d.comb += [
            read.addr.eq(self.verdict.index),
            old.eq(Mux(same[0], total[0], Mux(same[1], total[1], read.data))),
        ]
        for earlier, later in zip([self.verdict, *stages], stages):
            m.d.sync += later.eq(earlier)
        m.d.sync += [
            stages[0].valid.eq(self.verdict.valid & ~self.clearing),
            *(flag.eq(stage.valid & (stage.index == self.verdict.index)) for flag, stage in zip(same, stages)),
            total[0].eq(old + 1), total[1].eq(total[0]),
        ]
        sweep = Signal(range(NUM_COUNTERS))
        with m.If(self.clearing):
            m.d.comb += [write.en.eq(1), write.addr.eq(sweep)]
            m.d.sync += sweep.eq(sweep + 1)
            with m.If(sweep == NUM_COUNTERS - 1):
                m.d.sync += self.clearing.eq(0)
        with m.Else():
            m.d.comb += [write.en.eq(stages[1].valid), write.addr.eq(stages[1].index), write.data.eq(total[0])]

    def _events(self, m):
        """Stage 0 takes what a source gathered and reads its counter, 1 adds, 2 writes."""
        write, read, self._event_read = self._bank(m, "event_bank", 1 << (self.round - 1).bit_length())
        turn = Signal(range(self.round))
        m.d.sync += turn.eq(Mux(turn == self.round - 1, 0, turn + 1))
        amounts = []
        for n, name in enumerate(self.sources):
            if name in AMOUNTS:
                most, source = self._cfg.max_frame_bytes, getattr(self, name)
                new = Mux(source.valid, source.bytes, 0)
            else:
                most = 1
                new = getattr(self, f"event_{name}")
            gathered = Signal(range(self.round * most + 1), name=f"gathered_{name}")
            visited = turn == n
            m.d.sync += gathered.eq(Mux(visited, 0, gathered) + new)
            amounts.append(Mux(visited, gathered, 0))
        amount = Signal(range(self.round * self._cfg.max_frame_bytes + 1))
        any_amount = 0
        for i in range(0, len(amounts), 6):     # a register in the middle: there are many of them
            group = Signal.like(amount, name=f"amount{i}")
            m.d.sync += group.eq(reduce(or_, amounts[i:i + 6]))
            any_amount |= group
        first = Signal(init=1)      # the first round finds a memory that holds what was there before the reset
        turn1 = Signal.like(turn)
        turn2 = Signal.like(turn)
        first1 = Signal()
        valid1 = Signal()
        valid2 = Signal()
        total = Signal(64, reset_less=True)
        turn0 = Signal.like(turn)
        first0 = Signal()
        valid0 = Signal()
        m.d.comb += read.addr.eq(turn0)
        m.d.sync += [
            amount.eq(any_amount), turn0.eq(turn), valid0.eq(1), first0.eq(first), turn1.eq(turn0), valid1.eq(valid0), first1.eq(first0),
            total.eq(Mux(first1, 0, read.data) + amount), turn2.eq(turn1), valid2.eq(valid1),
        ]
        with m.If(turn == self.round - 1):
            m.d.sync += first.eq(0)
        m.d.comb += [write.en.eq(valid2), write.addr.eq(turn2), write.data.eq(total)]

    def _read(self, m):
        """A counter is in either bank, or (drop_overflow, should a verdict say it as well) in both."""
        at, of_events = Signal.like(self.read.addr), Signal.like(self._event_read.addr)
        has_events, has_events1 = Signal(reset_less=True), Signal(reset_less=True)
        m.d.comb += [self._verdict_read.addr.eq(at), self._event_read.addr.eq(of_events)]
        m.d.sync += [at.eq(self.read.addr), has_events.eq(0), has_events1.eq(has_events)]
        with m.Switch(self.read.addr):
            for n, name in enumerate(self.sources):
                with m.Case(COUNTERS[name]):
                    m.d.sync += [of_events.eq(n), has_events.eq(1)]
        m.d.sync += self.read.data.eq(self._verdict_read.data + Mux(has_events1, self._event_read.data, 0))
