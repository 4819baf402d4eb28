"""Which QPs have something to send: doorbells, the list of active QPs, those that wait for their time, and their fetches."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from optinic.memory.table import Table, TableSpec
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.tx.records import PIECE, Event, command_layout, count_bits, event_layout, kind_shape, position_layout
from optinic.tx.wqe_fetch import where_bits, answer_slots

__all__ = ["ActiveQueue", "Place", "Settle", "settle_layout", "DELAY_NS"]

DELAY_NS = 1024         #: unit of the time for which a QP is parked


class Place(Enum, shape=2):
    IDLE = 0        # nothing to fetch
    LISTED = 1      # in the list
    HELD = 2        # in the list, but to be parked when its turn comes
    PARKED = 3      # in the wheel


class Settle(Enum, shape=2):
    RELEASE = 0     # what was fetched from `index` on is given up for now: fetch it again after `delay`
    FLUSH = 1       # nothing that is posted counts any more
    RESET = 2       # nor has anything been posted
    GO_BACK = 3     # transport rc: fetch again from `index` on, or nothing at all if `halt`


def settle_layout(cfg):
    return StructLayout({"kind": Settle, "qp": cfg.qp_bits, "index": count_bits(cfg), "delay": 10, **({"halt": 1} if cfg.rc else {})})


class ActiveQueue(wiring.Component):
    """Takes doorbells, keeps a round robin of the QPs with WQEs to fetch, and fetches up to PIECE of one QP in a turn.

    A piece never crosses a multiple of PIECE in the ring. A QP may begin a turn while it holds fewer slots (`chain_len` of
    the QP `chain_qp`, two cycles later unless `chain_busy`) than are free, so that a newcomer always finds some: one QP alone gets half of them,
    the next a quarter. `events` brings pieces and commands to the scheduler in order. `settle` is its answer: it takes
    effect at once (`settle_done` pulses, with the QP's `posted`), before anything else that waits.

    Every QP is in at most one place: nowhere, in the list, or in the wheel (`park`, `due`). The list holds all QPs, so it never overflows.
    One operation takes five cycles, and one more for each WQE fetched. `clearing`: the table is being cleared after reset.

    With transport rc a QP has a window: a WQE is fetched only while fewer than that many requests before it are unacknowledged, as
    `progress` says (`una` is the oldest one left; it must belong to this life of the QP). One command at a time, but for fences,
    is with the scheduler: where its QP shall stand is `target`, and nothing of that QP is fetched until it has settled. An
    operation takes six cycles then; progress and the rest alternate when both wait.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        slot = range(cfg.tx_slots)
        super().__init__({
            "doorbells": In(stream.Signature(32)),
            "commands": In(stream.Signature(command_layout(cfg))),
            "park": Out(stream.Signature(StructLayout({"qp": cfg.qp_bits, "delay": 24}))), "due": In(stream.Signature(cfg.qp_bits)),
            "alloc": In(stream.Signature(slot)), "free": In(range(cfg.tx_slots + 1)),
            "fetch": Out(PushSignature(StructLayout({"slot": slot, "where": where_bits(cfg)}))),
            "chain_qp": Out(cfg.qp_bits), "chain_len": In(range(cfg.tx_slots + 1)), "chain_busy": In(1),
            "events": Out(stream.Signature(event_layout(cfg))),
            "settle": In(stream.Signature(settle_layout(cfg))), "settle_done": Out(1), "posted": Out(count_bits(cfg)),
            "clearing": Out(1), "idle": Out(1),
        } | ({"progress": In(stream.Signature(StructLayout({"qp": cfg.qp_bits, "una": 16}))), "target": Out(position_layout())} if cfg.rc else {}))

    @staticmethod
    def layout(cfg):
        """Counts of WQEs are modulo twice the ring. `limit`: what may be fetched ends there, unless `window` is 0. `halted`: nothing
        may."""
        more = {"limit": count_bits(cfg), "window": range(cfg.rc_outstanding + 1), "halted": 1} if cfg.rc else {}
        return StructLayout({"posted": count_bits(cfg), "fetched": count_bits(cfg), "place": Place, "delay": 10, **more})

    @staticmethod
    def tables(cfg):
        return [TableSpec("sq_active", "active queue", ActiveQueue.layout(cfg).size, cfg.num_qps, "qp", "message"),
                TableSpec("sq_list", "active queue", cfg.qp_bits, 1 << cfg.qp_bits, "qp", "message")]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.table = table = Table(self.tables(cfg)[0], self.layout(cfg))
        m.submodules.list = ram = Memory(shape=cfg.qp_bits, depth=1 << cfg.qp_bits, init=[])
        push, pop = ram.write_port(), ram.read_port()
        head = Signal(cfg.qp_bits + 1)
        tail = Signal(cfg.qp_bits + 1)
        listed = Signal()
        m.d.sync += listed.eq(head != tail)

        class Op(Enum, shape=3):
            BELL = 0
            TURN = 1
            DUE = 2
            COMMAND = 3
            SETTLE = 4
            PROGRESS = 5
        op = Signal(Op)
        qp = Signal(cfg.qp_bits)
        bell = Signal(count_bits(cfg))
        command = Signal(kind_shape(cfg))
        row = Signal(self.layout(cfg))
        new = Signal.like(row)
        # what is written comes from registers, which is in time for the next operation's read
        save, listing = Signal(), Signal()
        saves, lists, changed, changed_qp = Signal(), Signal(), Signal.like(row), Signal.like(qp)
        m.d.sync += [saves.eq(save), lists.eq(listing), changed.eq(new), changed_qp.eq(qp), head.eq(head + lists)]
        m.d.comb += [
            table.write_en.eq(saves), table.write_addr.eq(changed_qp), table.write_data.eq(changed),
            push.en.eq(lists), push.addr.eq(head), push.data.eq(changed_qp), pop.addr.eq(tail),
            table.read0_addr.eq(qp), self.chain_qp.eq(qp), new.eq(row), self.posted.eq(row.posted), self.clearing.eq(table.clearing),
        ]
        count = Signal(2)           # of the WQEs to be fetched, less one
        number = Signal(2)
        allowed = Signal()
        pending = Signal()          # there is something to fetch
        fetched = Signal.like(row.fetched)      # behind this piece
        more = Signal()             # there is something to fetch then
        behind = (row.fetched + count + 1)[:len(fetched)]
        m.d.sync += [fetched.eq(behind), more.eq(behind != row.posted)]
        if cfg.rc:
            m.d.sync += more.eq((behind != row.posted) & ((row.window == 0) | (behind != row.limit)))
        # one place is kept for what the operation has to tell, so that none waits for the scheduler, which may wait for `settle`
        m.submodules.events_queue = told = StreamFifo(event_layout(cfg), 4)
        wiring.connect(m, told.o, wiring.flipped(self.events))
        room = Signal()
        enough = Signal()           # free slots for a piece, beyond those that are kept for READ answers
        m.d.sync += [room.eq(told.level < 4), enough.eq(self.free >= PIECE + answer_slots(cfg))]
        event = told.i.payload
        m.d.comb += [event.qp.eq(qp), event.index.eq(row.fetched), event.count.eq(count)]
        slots = [Signal(range(cfg.tx_slots), name=f"slot{i}") for i in range(PIECE)]
        m.d.comb += [getattr(event, f"slot{i}").eq(s) for i, s in enumerate(slots)]
        # whose time has come waits in a register, so that the wheel doesn't hang on the choice below
        due, due_qp = Signal(), Signal(cfg.qp_bits)
        m.d.comb += self.due.ready.eq(~due)
        with m.If(~due):
            m.d.sync += [due.eq(self.due.valid), due_qp.eq(self.due.payload)]
        ring_bits = ceil_log2(cfg.sq_entries)
        m.d.comb += [
            self.fetch.payload.slot.eq(self.alloc.payload),
            self.fetch.payload.where.eq(Cat((row.fetched + number)[:ring_bits], qp)),
        ]
        m.d.comb += self.idle.eq(0)

        def relist():
            m.d.comb += listing.eq(1)

        may_command = self.commands.valid & room
        if cfg.rc:
            away, target_qp = Signal(), Signal(cfg.qp_bits)     # a command that the scheduler has not settled, and its QP
            held = Signal()                                     # the operation's QP is that one
            end, limit = Signal.like(row.posted), Signal.like(row.posted)   # `posted` and `limit` as they will be
            progress, waits = self.progress, Signal()           # which has just had its turn
            m.d.sync += held.eq(away & (qp == target_qp))
            may_command &= ~away

        def take_progress():
            m.d.sync += [op.eq(Op.PROGRESS), qp.eq(progress.payload.qp), bell.eq(progress.payload.una), waits.eq(1)]
            m.d.comb += progress.ready.eq(1)
            m.next = "READ"

        def size():
            """How many WQEs of `row` may be fetched: up to the end of its posted ones, of its window, of its piece."""
            left, gap, to_end = Signal.like(end), Signal.like(end), Signal(2)
            m.d.comb += [left.eq(end - row.fetched), gap.eq(Mux(row.window == 0, PIECE, limit - row.fetched)), to_end.eq(~row.fetched[:2])]
            usable = (left != 0) & (gap != 0) & ~row.halted
            last = Signal(2)
            m.d.comb += last.eq(to_end)
            for n in reversed(range(PIECE - 1)):        # the smallest of the three: the last one counts
                with m.If(((left == n + 1) | (gap == n + 1)) & (to_end > n)):
                    m.d.comb += last.eq(n)
            return usable, last

        with m.FSM():
            with m.State("CHOOSE"):
                m.d.comb += self.idle.eq(~listed & ~lists & (head == tail) & ~self.doorbells.valid & ~self.due.valid & ~due & ~self.commands.valid
                                      & ~self.settle.valid & ~self.events.valid)
                with m.If(~self.clearing):
                    if cfg.rc:
                        m.d.sync += waits.eq(0)
                    with m.If(self.settle.valid):
                        m.d.sync += [op.eq(Op.SETTLE), qp.eq(self.settle.payload.qp)]
                        m.next = "READ"
                    with m.Elif(may_command):
                        m.d.sync += [op.eq(Op.COMMAND), qp.eq(self.commands.payload.qp), command.eq(self.commands.payload.kind)]
                        m.next = "READ"
                    if cfg.rc:
                        with m.Elif(progress.valid & ~waits):
                            take_progress()
                    with m.Elif(self.doorbells.valid):
                        m.d.sync += [op.eq(Op.BELL), qp.eq(self.doorbells.payload[16:]), bell.eq(self.doorbells.payload)]
                        m.d.comb += self.doorbells.ready.eq(1)
                        m.next = "READ"
                        if 1 << cfg.qp_bits != cfg.num_qps:
                            with m.If(self.doorbells.payload[16:] >= cfg.num_qps):
                                m.next = "CHOOSE"
                        with m.If(self.doorbells.payload[16 + cfg.qp_bits:].any()):
                            m.next = "CHOOSE"
                    with m.Elif(due):
                        m.d.sync += [op.eq(Op.DUE), qp.eq(due_qp), due.eq(0)]
                        m.next = "READ"
                    with m.Elif(listed & enough & room):
                        m.d.sync += [op.eq(Op.TURN), qp.eq(pop.data), tail.eq(tail + 1)]
                        m.next = "READ"
                    if cfg.rc:
                        with m.Elif(progress.valid):
                            take_progress()
            with m.State("READ"):
                with m.If(~self.chain_busy):
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.next = "LOOK"
            with m.State("LOOK"):
                r = table.read0_data
                left = Signal.like(row.posted)      # posted, not fetched
                to_end = Signal(2)
                m.d.comb += [left.eq(r.posted - r.fetched), to_end.eq(~r.fetched[:2])]
                m.d.sync += [
                    row.eq(r), count.eq(Mux(~left[2:].any() & (left[:2] <= to_end), left[:2] - 1, to_end)), number.eq(0),
                    allowed.eq((left != 0) & (self.chain_len < self.free)), pending.eq(Mux(op == Op.BELL, bell, r.posted) != r.fetched),
                ]
                m.next = "ACT"
                if cfg.rc:
                    m.d.sync += [allowed.eq(self.chain_len < self.free), end.eq(Mux(op == Op.BELL, bell, r.posted)),
                                 limit.eq(Mux(op == Op.PROGRESS, bell + r.window, r.limit))]
                    m.next = "SIZE"
            if cfg.rc:
                with m.State("SIZE"):
                    usable, last = size()
                    m.d.sync += [count.eq(last), allowed.eq(allowed & usable & ~held), pending.eq(usable)]
                    m.next = "ACT"
            with m.State("ACT"):
                m.next = "CHOOSE"
                with m.Switch(op):
                    with m.Case(Op.BELL):
                        m.d.comb += [save.eq(1), new.posted.eq(bell)]
                        with m.If((row.place == Place.IDLE) & pending):
                            m.d.comb += new.place.eq(Place.LISTED)
                            relist()
                    with m.Case(Op.DUE):
                        m.d.comb += [save.eq(1), new.place.eq(Place.IDLE)]
                        with m.If(pending):
                            m.d.comb += new.place.eq(Place.LISTED)
                            relist()
                    with m.Case(Op.TURN):
                        with m.If(row.place == Place.HELD):
                            m.next = "PARK"
                        with m.Elif(allowed):
                            m.next = "FETCH"
                        with m.Elif(~pending):
                            m.d.comb += [save.eq(1), new.place.eq(Place.IDLE)]
                        with m.Else():
                            relist()
                    with m.Case(Op.COMMAND):
                        m.d.comb += [save.eq(command != Event.FENCE), new.fetched.eq(row.posted)]
                        with m.If(command == Event.RESET):
                            m.d.comb += [new.posted.eq(0), new.fetched.eq(0)]
                            if cfg.rc:
                                window = Signal.like(row.window)
                                m.d.comb += [window.eq(self._window(self.commands.payload)), new.window.eq(window), new.limit.eq(window),
                                             new.halted.eq(0)]
                        m.next = "TELL"
                    with m.Case(Op.SETTLE):
                        m.d.comb += [save.eq(1), self.settle.ready.eq(1), self.settle_done.eq(1)]
                        with m.Switch(self.settle.payload.kind):
                            with m.Case(Settle.RELEASE):
                                m.d.comb += [new.fetched.eq(self.settle.payload.index), new.delay.eq(self.settle.payload.delay)]
                                with m.If(row.place == Place.LISTED):
                                    m.d.comb += new.place.eq(Place.HELD)
                                with m.Elif(row.place == Place.IDLE):
                                    m.d.comb += new.place.eq(Place.HELD)
                                    relist()
                            with m.Case(Settle.FLUSH):
                                m.d.comb += new.fetched.eq(row.posted)
                            if cfg.rc:
                                with m.Case(Settle.GO_BACK):
                                    m.d.comb += [new.fetched.eq(self.settle.payload.index), new.halted.eq(self.settle.payload.halt)]
                                    with m.If(row.place == Place.IDLE):     # its turn will tell
                                        m.d.comb += new.place.eq(Place.LISTED)
                                        relist()
                            with m.Default():
                                m.d.comb += [new.posted.eq(0), new.fetched.eq(0)]
                        if cfg.rc:
                            with m.If(self.settle.payload.kind != Settle.RELEASE):
                                m.d.sync += away.eq(0)
                    if cfg.rc:
                        with m.Case(Op.PROGRESS):
                            m.d.comb += [save.eq(1), new.limit.eq(limit)]
                            with m.If((row.place == Place.IDLE) & pending):
                                m.d.comb += new.place.eq(Place.LISTED)
                                relist()
            with m.State("PARK"):
                m.d.comb += [self.park.valid.eq(1), self.park.payload.qp.eq(qp), self.park.payload.delay.eq(row.delay * DELAY_NS)]
                with m.If(self.park.ready):
                    m.d.comb += [save.eq(1), new.place.eq(Place.PARKED)]
                    m.next = "CHOOSE"
            with m.State("FETCH"):
                m.d.comb += self.alloc.ready.eq(1)
                with m.If(self.alloc.valid):
                    m.d.comb += self.fetch.valid.eq(1)
                    with m.Switch(number):
                        for i, s in enumerate(slots):
                            with m.Case(i):
                                m.d.sync += s.eq(self.alloc.payload)
                    m.d.sync += number.eq(number + 1)
                    with m.If(number == count):
                        m.next = "TELL"
            with m.State("TELL"):
                m.d.comb += [told.i.valid.eq(1), event.kind.eq(Mux(op == Op.TURN, Event.PIECE, command))]
                m.next = "CHOOSE"
                with m.If(op == Op.TURN):
                    m.d.comb += [save.eq(1), new.fetched.eq(fetched), new.place.eq(Place.IDLE)]
                    with m.If(more):
                        m.d.comb += new.place.eq(Place.LISTED)
                        relist()
                with m.Else():
                    m.d.comb += self.commands.ready.eq(1)
                    if cfg.rc:
                        with m.If(command != Event.FENCE):
                            asked = self.commands.payload
                            m.d.sync += [away.eq(1), target_qp.eq(qp), self.target.sent.eq(asked.index), self.target.offset.eq(asked.offset),
                                         self.target.psn.eq(asked.psn)]
                        with m.If(command == Event.RESET):
                            m.d.sync += [self.target.sent.eq(0), self.target.offset.eq(0)]
        return m

    def _window(self, command):
        """0 is none; that of a whole ring is no limit."""
        cfg = self.cfg
        window = Mux(command.window == 0, cfg.rc_outstanding, command.window)
        return Mux(command.uc | (window == cfg.sq_entries), 0, window)
