"""DCQCN's reaction point: the rate of each queue pair from the congestion notifications that it gets."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout

from optinic.abi.congestion import DCQCN
from optinic.congestion.interface import EventKind, controller_members
from optinic.congestion.interval import IntervalDivider
from optinic.congestion.slots import FIRST_OWN, NONE, SHARED, Slots
from optinic.congestion.sweep import Sweep
from optinic.memory.table import Table, TableSpec
from optinic.stream.fifo import StreamFifo

__all__ = ["Dcqcn", "PARAMS", "rate_bits", "state_layout"]

TIME_SHIFT = 12         #: the unit of its time: 4.096 us
TIME_BITS = 12
IDLE_UNITS = 1 << (TIME_BITS - 1)   #: 8.39 ms without an event or an expiry: what is known is stale
ALPHA_BITS = 12         #: alpha / 2^12; the largest stands for 1
G_BITS = 10             #: g / 2^10
BYTES_SHIFT = 16        #: the unit of the byte counter: 64 KiB
MAX_RUNS = 16           #: expiries of the increase timer made good at one event
MAX_TICKS = 16          #: expiries of the alpha timer made good in one run of the increase timer


PARAMS = DCQCN          #: name: default, unit, meaning and source


def rate_bits(cfg):
    """Rates are in Mb/s, and none is beyond what the datapath can send."""
    return (cfg.data_width * cfg.clock_hz // 1_000_000).bit_length()


def state_layout(cfg):
    """All zero: of nobody congested. `since`: when the increase timer was started last. The stages stop at fast_steps + 1."""
    return StructLayout({
        "rate": rate_bits(cfg), "target": rate_bits(cfg), "alpha": ALPHA_BITS, "since": TIME_BITS,
        "bytes": 8, "timer_stage": 3, "byte_stage": 3,
    })


class Dcqcn(wiring.Component):
    """Keeps the rate of each QP, lazily: when a QP has an event, first the timers that have run out since are made good.

    Ports: interface.controller_members. SENT, CNP and RESET count, other events are taken and forgotten. An event waits in a
    queue of QUEUE; when that is full `events.ready` is low. They are dealt with in order, a SENT of a QP that is not congested in
    3 cycles, one of a congested QP in 6, a CNP in 9, a RESET in 4. To these come 4 cycles for each expiry of the increase timer,
    at most MAX_RUNS; 2 for each of the alpha timer, at most MAX_TICKS in a run of the increase timer; and 2 for one of the byte
    counter. With default parameters 12 in all for a QP that sends more than once in 55 us, and never more than 105. A new
    interval is pushed 31 cycles after that; meanwhile the next events are dealt with, up to the next new interval.

    A QP that is not congested has a row of zeroes or none, and interval 0. Its first CNP starts with rate = line rate and alpha =
    1. Who gets back to the line rate, or has had no event and no expiry for IDLE_UNITS, is not congested any more; a slow round
    over the QPs sees to the latter before `since` can wrap.

    With fewer rows than QPs (cfg.dcqcn_pool of them) those that are congested have a slot each (:class:`Slots`); a congested QP's
    SENT and any CNP then take 2 cycles more. Slot 0 stands for none. Slot 1 is for those whose first CNP finds no other one free,
    which takes it another 3 cycles. They are one flow, with one rate and one set of timers. Each is told the rate at each of its
    own events, for it may have changed at another's; so these come at most once in 31 cycles. At the first of them at which a
    slot is free a QP moves there, with a copy of the row. When the shared row is released, at an event of one of them or because
    it is stale, that one isn't paced any more; the others find the row zero at their next event or when the round comes by. It is
    then as if they had no slot, so a CNP is their first one. A RESET leaves the row to the others; the round also clears one that
    nobody is left to share. So every CNP is heeded, and nobody is paced for ever.
    """

    QUEUE = 16

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__(controller_members(cfg, PARAMS))

    @staticmethod
    def tables(cfg):
        width = state_layout(cfg).size
        if not cfg.dcqcn_pool:
            return [TableSpec("dcqcn", "congestion.dcqcn", width, cfg.num_qps, "qp", "hot")]
        return [TableSpec("dcqcn", "congestion.dcqcn", width, cfg.dcqcn_pool, "qp", "hot", rows_per=cfg.num_qps / cfg.dcqcn_pool),
                *Slots.tables(cfg)]

    def elaborate(self, platform):
        m = Module()
        cfg, State, width = self.cfg, state_layout(self.cfg), rate_bits(self.cfg)
        spec, *_ = self.tables(cfg)
        m.submodules.table = table = Table(spec, State, latency=1)
        m.submodules.sweep = sweep = Sweep(cfg, IDLE_UNITS << TIME_SHIFT)
        m.submodules.divider = divider = IntervalDivider(cfg, width)
        wiring.connect(m, divider.o, wiring.flipped(self.rate))
        queue = self._queue(m)
        events = queue.o

        line = Signal(width)
        lowest = Signal(width)
        m.d.sync += [
            line.eq(self.line_rate[:width] | self.line_rate[width:].any().replicate(width)),
            lowest.eq(Mux(self.rate_min[:width].any(), self.rate_min, 1)),     # rate 0 would mean: not congested
        ]
        alpha_timer, increase_timer = self.alpha_timer[:TIME_BITS], self.increase_timer[:TIME_BITS]

        # -- the event and the row it is about --------------------------------------------------------
        kind = Signal(EventKind)
        swept = Signal()                                # no event at all: the round has come by
        qp = Signal(cfg.qp_bits)
        length = Signal(14)
        at = Signal(TIME_BITS)
        row = Signal(State, reset_less=True)
        congested = Signal()
        elapsed = Signal(TIME_BITS)                     # since `row.since`, not yet made good
        phase = Signal(TIME_BITS)                       # of that, in the present run of the increase timer
        last = Signal()                                 # the run is not over: a CNP ends it
        by_bytes = Signal()
        changed = Signal()
        runs = Signal(range(MAX_RUNS + 1))
        ticks = Signal(range(MAX_TICKS + 1))

        dice = Signal(23, init=0x2A5F17)                # x^23 + x^18 + 1, sixteen steps at a time
        roll = Signal()
        with m.If(roll):
            m.d.sync += dice.eq(Cat(*(dice[7 + i] ^ dice[2 + i] for i in range(16)), dice[:7]))
        chance = dice[:16]

        # one multiplier: rate * alpha, alpha * g, (1 - alpha) * g
        left, right = Signal(width), Signal(ALPHA_BITS)
        product = Signal(width + ALPHA_BITS, reset_less=True)
        m.d.sync += product.eq(left * right)
        share = product[G_BITS:G_BITS + ALPHA_BITS]     # and one more by chance, in proportion to what is cut off
        one_more = (product[:G_BITS] + chance[:G_BITS])[G_BITS]
        m.d.comb += [left.eq(row.alpha), right.eq(self.g[:G_BITS])]

        # what a step adds to the target: chosen by the stages before the step
        gain = Signal(width)
        steps, timed, counted = self.fast_steps[:3], row.timer_stage, row.byte_stage
        bytes_off = ~self.byte_counter[:8].any()
        bytes_less = Signal(8)
        m.d.sync += bytes_less.eq(self.byte_counter[:8] - 1)
        with m.If((timed < steps) & (bytes_off | (counted < steps))):
            m.d.sync += gain.eq(0)
        with m.Elif((timed > steps) & (bytes_off | (counted > steps))):
            m.d.sync += gain.eq(self.rate_hai)
        with m.Else():
            m.d.sync += gain.eq(self.rate_ai)

        below = Signal(signed(width + 1))       # the line, from the target as it was a cycle ago
        m.d.sync += below.eq(line - row.target)
        full = row.rate >= line
        if cfg.dcqcn_pool:
            m.submodules.slots = slots = Slots(cfg)
            look_at, clearing = slots.find, table.clearing | slots.clearing
            slot = place = Signal(cfg.dcqcn_slot_bits)
            mapped = Signal()                           # the QP has a slot
            own, shared = Signal(), Signal()            # of which kind `slot` was when it was looked at
            m.d.comb += [table.read0_addr.eq(slot), slots.qp.eq(qp), slots.slot.eq(slot)]
        else:
            look_at, clearing, place = table.read0_addr, table.clearing, qp
        m.d.comb += [
            table.write_addr.eq(place), table.write_data.eq(row), divider.qp.eq(qp), divider.rate.eq(row.rate),
            look_at.eq(Mux(sweep.wanted, sweep.qp, events.payload.qp)), self.clearing.eq(clearing),
        ]

        with m.FSM(name="reaction"):
            with m.State("IDLE"):
                m.d.sync += [
                    swept.eq(sweep.wanted), qp.eq(look_at), kind.eq(events.payload.kind), length.eq(events.payload.bytes),
                    changed.eq(0), by_bytes.eq(0), runs.eq(0),
                ]
                m.d.comb += self.idle.eq((queue.level == 0) & ~divider.busy & ~self.rate.valid & ~self.clearing)
                with m.If(~self.clearing):
                    m.d.comb += [sweep.done.eq(sweep.wanted), events.ready.eq(~sweep.wanted)]
                    with m.If(sweep.wanted | events.valid):
                        m.next = "FIND" if cfg.dcqcn_pool else "FETCH"

            if cfg.dcqcn_pool:
                with m.State("FIND"):
                    m.d.sync += [mapped.eq(slots.found != NONE), slot.eq(slots.found)]
                    with m.If(swept & (slots.found == NONE)):
                        m.d.sync += slot.eq(SHARED)     # those that shared it may all have been reset
                    m.next = "LOOK"

                with m.State("LOOK"):
                    m.d.sync += [own.eq(slot >= FIRST_OWN), shared.eq(slot == SHARED), changed.eq(slot == SHARED)]
                    m.next = "FETCH"
                    with m.If(~swept & (kind == EventKind.RESET)):
                        m.next = "RELEASE"
                    with m.Elif(~swept & ~mapped & (kind == EventKind.SENT)):
                        m.next = "IDLE"

            with m.State("FETCH"):
                m.d.sync += [
                    row.eq(table.read0_data), congested.eq(table.read0_data.rate.any()),
                    at.eq(self.time[TIME_SHIFT:]), elapsed.eq(self.time[TIME_SHIFT:][:TIME_BITS] - table.read0_data.since),
                ]
                m.next = "DECIDE"

            with m.State("DECIDE"):
                stale = elapsed >= IDLE_UNITS
                m.next = "IDLE"
                with m.If(~swept & (kind == EventKind.RESET)):
                    m.next = "RELEASE"
                with m.Elif(congested & ~stale):
                    merged = (kind == EventKind.CNP) & (row.timer_stage == 0) & (elapsed < self.decrease_interval[:TIME_BITS])
                    with m.If(~swept & ~merged):
                        m.next = "RUN"
                    if cfg.dcqcn_pool:
                        with m.Elif(~swept & shared):
                            m.next = "STORE"            # its rate may be new to this QP
                with m.Elif(~swept & (kind == EventKind.CNP)):
                    m.next = "FIRST"
                    if cfg.dcqcn_pool:
                        with m.If(~own & ~shared & ~slots.room):
                            m.d.sync += slot.eq(SHARED)
                            m.next = "LOOK"
                with m.Elif((congested | mapped) if cfg.dcqcn_pool else congested):
                    m.next = "RELEASE"
                if cfg.dcqcn_pool:                      # who has no slot of its own takes one, and a copy of the shared row
                    with m.If(slots.room & ~own & ~swept & ((kind == EventKind.CNP) | (congested & ~stale))):
                        m.d.comb += slots.take.eq(1)
                        m.d.sync += slot.eq(slots.next)

            # -- the timers that have run out ---------------------------------------------------------
            with m.State("RUN"):
                over = elapsed >= increase_timer
                m.d.sync += [ticks.eq(0), last.eq(~over), phase.eq(Mux(over, increase_timer, elapsed))]
                with m.If(full):
                    m.next = "RELEASE"
                    with m.If(kind == EventKind.CNP):
                        m.next = "FIRST"
                with m.Elif(over & (runs == MAX_RUNS)):
                    m.d.sync += row.since.eq(at)        # the rest is given up
                    with m.If(kind == EventKind.CNP):
                        m.next = "CUT"
                    with m.Else():
                        m.next = "COUNT"
                with m.Elif(over | (kind == EventKind.CNP)):
                    m.next = "TICK"
                with m.Else():
                    m.next = "COUNT"

            with m.State("TICK"):
                with m.If((phase >= alpha_timer) & (ticks != MAX_TICKS)):
                    m.d.sync += [phase.eq(phase - alpha_timer), ticks.eq(ticks + 1)]
                    m.next = "DECAY"
                with m.Elif(last):
                    m.next = "CUT"
                with m.Else():
                    m.next = "STEP"

            with m.State("DECAY"):
                m.d.sync += row.alpha.eq(Mux(one_more, row.alpha - share - 1, row.alpha - share))
                m.d.comb += roll.eq(1)
                m.next = "TICK"

            with m.State("STEP"):
                m.d.sync += row.target.eq(Mux(gain > below, line, row.target + gain))
                m.next = "AVERAGE"

            with m.State("AVERAGE"):
                m.d.sync += [row.rate.eq((row.rate + row.target + 1) >> 1), changed.eq(1)]
                with m.If(by_bytes):
                    m.d.sync += row.byte_stage.eq(row.byte_stage + (row.byte_stage <= steps))
                    m.next = "STORE"
                with m.Else():
                    m.d.sync += [
                        row.timer_stage.eq(row.timer_stage + (row.timer_stage <= steps)),
                        row.since.eq(row.since + increase_timer), elapsed.eq(elapsed - increase_timer), runs.eq(runs + 1),
                    ]
                    m.next = "RUN"

            # -- then the event -----------------------------------------------------------------------
            with m.State("COUNT"):
                more = Signal(9)
                m.d.comb += [more.eq(row.bytes + 1), roll.eq(1)]
                m.next = "STORE"
                with m.If((chance < length) & ~bytes_off):
                    with m.If(row.bytes >= bytes_less):
                        m.d.sync += [row.bytes.eq(0), by_bytes.eq(1)]
                        m.next = "STEP"
                    with m.Else():
                        m.d.sync += row.bytes.eq(more)

            with m.State("FIRST"):
                m.d.sync += [row.rate.eq(line), row.alpha.eq(-1)]
                m.next = "CUT"

            with m.State("CUT"):
                m.d.comb += [left.eq(row.rate), right.eq(row.alpha)]
                m.next = "LOWER"

            with m.State("LOWER"):
                m.d.comb += left.eq(~row.alpha)
                m.d.sync += [
                    row.target.eq(row.rate), row.rate.eq(row.rate - product[ALPHA_BITS + 1:]), row.since.eq(at), row.bytes.eq(0),
                    row.timer_stage.eq(0), row.byte_stage.eq(0), changed.eq(1),
                ]
                m.next = "RAISE"

            with m.State("RAISE"):
                m.d.sync += [row.alpha.eq(Mux(one_more, row.alpha + share + 1, row.alpha + share)), row.rate.eq(Mux(row.rate < lowest, lowest, row.rate))]
                m.d.comb += roll.eq(1)
                m.next = "STORE"

            with m.State("STORE"):
                with m.If(full):
                    m.next = "RELEASE"
                with m.Elif(~changed | ~divider.busy):
                    m.d.comb += [table.write_en.eq(1), divider.start.eq(changed)]
                    if cfg.dcqcn_pool:
                        m.d.comb += slots.assign.eq(1)
                    m.next = "IDLE"

            with m.State("RELEASE"):
                m.d.comb += [table.write_data.eq(0), divider.unpaced.eq(1)]
                with m.If(~divider.busy):
                    m.d.comb += [table.write_en.eq(1), divider.start.eq(1)]
                    if cfg.dcqcn_pool:
                        m.d.comb += slots.release.eq(1)
                        with m.If(shared & ~swept & (kind == EventKind.RESET)):
                            m.d.comb += table.write_en.eq(0)        # the row is the others' as well
                    m.next = "IDLE"
        return m

    def _queue(self, m):
        """The events that count, in a queue without the `value` that none of them uses."""
        Event = StructLayout({"kind": EventKind, "qp": self.cfg.qp_bits, "bytes": 14})
        m.submodules.queue = queue = StreamFifo(Event, self.QUEUE)
        event = self.events.payload
        counts = (event.kind == EventKind.SENT) | (event.kind == EventKind.CNP) | (event.kind == EventKind.RESET)
        m.d.comb += [
            queue.i.valid.eq(self.events.valid & counts), self.events.ready.eq(queue.i.ready),
            queue.i.payload.kind.eq(event.kind), queue.i.payload.qp.eq(event.qp), queue.i.payload.bytes.eq(event.bytes),
        ]
        return queue
