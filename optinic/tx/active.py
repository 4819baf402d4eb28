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
from optinic.tx.records import PIECE, Event, count_bits, event_layout
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


def settle_layout(cfg):
    return StructLayout({"kind": Settle, "qp": cfg.qp_bits, "index": count_bits(cfg), "delay": 10})


class ActiveQueue(wiring.Component):
    """Takes doorbells, keeps a round robin of the QPs with WQEs to fetch, and fetches up to PIECE of one QP in a turn.

    A piece never crosses a multiple of PIECE in the ring. A QP may begin a turn while it holds fewer slots (`chain_len` of
    the QP `chain_qp`, two cycles later unless `chain_busy`) than are free, so that a newcomer always finds some: one QP alone gets half of them,
    the next a quarter. `events` brings pieces and commands to the scheduler in order. `settle` is its answer: it takes
    effect at once (`settle_done` pulses, with the QP's `posted`), before anything else that waits.

    Every QP is in at most one place: nowhere, in the list, or in the wheel (`park`, `due`). The list holds all QPs, so it never overflows.
    One operation takes five cycles, and one more for each WQE fetched. `clearing`: the table is being cleared after reset.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        slot = range(cfg.tx_slots)
        super().__init__({
            "doorbells": In(stream.Signature(32)),
            "commands": In(stream.Signature(StructLayout({"kind": Event, "qp": cfg.qp_bits}))),
            "park": Out(stream.Signature(StructLayout({"qp": cfg.qp_bits, "delay": 24}))), "due": In(stream.Signature(cfg.qp_bits)),
            "alloc": In(stream.Signature(slot)), "free": In(range(cfg.tx_slots + 1)),
            "fetch": Out(PushSignature(StructLayout({"slot": slot, "where": where_bits(cfg)}))),
            "chain_qp": Out(cfg.qp_bits), "chain_len": In(range(cfg.tx_slots + 1)), "chain_busy": In(1),
            "events": Out(stream.Signature(event_layout(cfg))),
            "settle": In(stream.Signature(settle_layout(cfg))), "settle_done": Out(1), "posted": Out(count_bits(cfg)),
            "clearing": Out(1), "idle": Out(1),
        })

    @staticmethod
    def layout(cfg):
        """Counts of WQEs are modulo twice the ring."""
        return StructLayout({"posted": count_bits(cfg), "fetched": count_bits(cfg), "place": Place, "delay": 10})

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
        op = Signal(Op)
        qp = Signal(cfg.qp_bits)
        bell = Signal(count_bits(cfg))
        command = Signal(Event)
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
        m.d.sync += [fetched.eq(row.fetched + count + 1), more.eq((row.fetched + count + 1)[:len(fetched)] != row.posted)]
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
        ring_bits = ceil_log2(cfg.sq_entries)
        m.d.comb += [
            self.fetch.payload.slot.eq(self.alloc.payload),
            self.fetch.payload.where.eq(Cat((row.fetched + number)[:ring_bits], qp)),
        ]
        m.d.comb += self.idle.eq(0)

        def relist():
            m.d.comb += listing.eq(1)

        with m.FSM():
            with m.State("CHOOSE"):
                m.d.comb += self.idle.eq(~listed & ~lists & (head == tail) & ~self.doorbells.valid & ~self.due.valid & ~self.commands.valid
                                      & ~self.settle.valid & ~self.events.valid)
                with m.If(~self.clearing):
                    with m.If(self.settle.valid):
                        m.d.sync += [op.eq(Op.SETTLE), qp.eq(self.settle.payload.qp)]
                        m.next = "READ"
                    with m.Elif(self.commands.valid & room):
                        m.d.sync += [op.eq(Op.COMMAND), qp.eq(self.commands.payload.qp), command.eq(self.commands.payload.kind)]
                        m.next = "READ"
                    with m.Elif(self.doorbells.valid):
                        m.d.sync += [op.eq(Op.BELL), qp.eq(self.doorbells.payload[16:]), bell.eq(self.doorbells.payload)]
                        m.d.comb += self.doorbells.ready.eq(1)
                        m.next = "READ"
                        if 1 << cfg.qp_bits != cfg.num_qps:
                            with m.If(self.doorbells.payload[16:] >= cfg.num_qps):
                                m.next = "CHOOSE"
                        with m.If(self.doorbells.payload[16 + cfg.qp_bits:].any()):
                            m.next = "CHOOSE"
                    with m.Elif(self.due.valid):
                        m.d.sync += [op.eq(Op.DUE), qp.eq(self.due.payload)]
                        m.d.comb += self.due.ready.eq(1)
                        m.next = "READ"
                    with m.Elif(listed & enough & room):
                        m.d.sync += [op.eq(Op.TURN), qp.eq(pop.data), tail.eq(tail + 1)]
                        m.next = "READ"
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
                            with m.Default():
                                m.d.comb += [new.posted.eq(0), new.fetched.eq(0)]
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
        return m
