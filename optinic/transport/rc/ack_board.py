"""What the responder owes each peer: the newest acknowledgement of every QP, and how many answers go before it."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from optinic.memory.table import Table, TableSpec
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.transport.rc.records import inflight_jobs
from optinic.tx.records import ack_layout

__all__ = ["AckBoard", "Put", "put_layout"]


class Put(Enum, shape=2):
    ACK = 0         # `psn`, `msn`, `syndrome` are owed, in place of what was
    READ = 1        # a READ or an atomic will be answered, which acknowledges what was owed before it, unless it is `again`
    RESET = 2       # nothing is owed, and no answer will come


def put_layout(cfg):
    """READ and RESET look at `qp` and `again` only. `again`: the request is a duplicate."""
    return StructLayout({"kind": Put, "again": 1, **ack_layout(cfg).members})


class AckBoard(wiring.Component):
    """Coalesces acknowledgements: per QP the newest is kept, and one at a time is offered to the send scheduler.

    `put` says what is owed. An ACK is offered in `acks` when its QP's turn comes and none of the QP's READ or atomic answers
    is outstanding: those are counted by READ and by `answered`, one pulse for each answer whose last packet is on its way
    (or that was given up). The count can hold all jobs of the card, and stays at 0 whatever comes. An ACK for a duplicate doesn't
    take the place of a NAK that is still owed, nor does a duplicate READ's answer drop what is owed: neither tells as much.
    What is in `acks` stays until it is taken, a RESET notwithstanding; meanwhile newer ones of the QP are owed again, so their
    order is kept.

    Queues: of QPs with something to offer, where each is at most once and all have a place; and of `answered`, as long as all
    jobs that the send half can hold (read_jobs + tx_slots), emptied before any further `put` is taken. So neither overflows.
    `put` waits while the board works: an operation takes four cycles; puts and offers take turns when both wait, behind what
    was answered. From a put to `acks` it takes ten cycles when nothing else is to be done.

    `clearing`: the table is being cleared after reset, and all wait. `idle`: nothing to do and nothing offered; an
    ACK that is kept until an answer goes out doesn't count.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "put": In(stream.Signature(put_layout(cfg))), "answered": In(PushSignature(cfg.qp_bits)),
            "acks": Out(stream.Signature(ack_layout(cfg))), "clearing": Out(1), "idle": Out(1),
        })

    @staticmethod
    def layout(cfg):
        return StructLayout({"listed": 1, "owed": 1, "psn": 24, "msn": 24, "syndrome": 8, "reads": range(inflight_jobs(cfg) + 1)})

    @staticmethod
    def tables(cfg):
        return [TableSpec("ack_board", "ack board", AckBoard.layout(cfg).size, cfg.num_qps, "qp", "hot"),
                TableSpec("ack_list", "ack board", cfg.qp_bits, 1 << cfg.qp_bits, "qp", "hot")]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.table = table = Table(self.tables(cfg)[0], self.layout(cfg))
        m.submodules.list = ram = Memory(shape=cfg.qp_bits, depth=1 << cfg.qp_bits, init=[])
        m.submodules.answers = answers = StreamFifo(cfg.qp_bits, 1 << ceil_log2(cfg.read_jobs + cfg.tx_slots))
        m.d.comb += [answers.i.valid.eq(self.answered.valid), answers.i.payload.eq(self.answered.payload)]

        # The list. What is put there comes from a register, and `listed` is a cycle late: both are in time for the next operation.
        push, pop = ram.write_port(), ram.read_port()
        head = Signal(cfg.qp_bits + 1)
        tail = Signal(cfg.qp_bits + 1)
        listed = Signal()
        enlist, enlists = Signal(), Signal()

        class Op(Enum, shape=2):
            PUT = 0
            ANSWERED = 1
            TURN = 2
        op = Signal(Op)
        asked = Signal(put_layout(cfg))
        save, saves = Signal(), Signal()
        row, changed, changed_qp = table.read0_data, Signal(self.layout(cfg)), Signal(cfg.qp_bits)
        new = Signal.like(changed)
        m.d.sync += [enlists.eq(enlist), saves.eq(save), changed.eq(new), changed_qp.eq(asked.qp),
                     head.eq(head + enlists), listed.eq(head != tail)]
        m.d.comb += [
            push.en.eq(enlists), push.addr.eq(head), push.data.eq(changed_qp), pop.addr.eq(tail),
            table.read0_addr.eq(asked.qp), table.write_en.eq(saves), table.write_addr.eq(changed_qp), table.write_data.eq(changed),
            self.clearing.eq(table.clearing), new.eq(row),
        ]
        offer = self.acks.payload
        with m.If(self.acks.ready):
            m.d.sync += self.acks.valid.eq(0)

        quiet = ~answers.o.valid & ~answers.i.valid & (answers.level == 0) & ~self.put.valid & ~listed & ~enlists & (head == tail)
        puts_turn = Signal()        # the last one of both was an offer
        with m.FSM():
            with m.State("CHOOSE"):
                m.d.comb += self.idle.eq(quiet & ~self.acks.valid & ~self.clearing)
                turn = listed & ~self.acks.valid
                with m.If(~self.clearing):
                    with m.If(answers.o.valid):
                        m.d.comb += answers.o.ready.eq(1)
                        m.d.sync += [op.eq(Op.ANSWERED), asked.qp.eq(answers.o.payload)]
                        m.next = "READ"
                    with m.Elif(self.put.valid & (puts_turn | ~turn)):
                        m.d.comb += self.put.ready.eq(1)
                        m.d.sync += [op.eq(Op.PUT), asked.eq(self.put.payload), puts_turn.eq(0)]
                        m.next = "READ"
                    with m.Elif(turn):
                        m.d.sync += [op.eq(Op.TURN), asked.qp.eq(pop.data), tail.eq(tail + 1), puts_turn.eq(1)]
                        m.next = "READ"
            with m.State("READ"):
                m.next = "WAIT"
            with m.State("WAIT"):
                m.next = "ACT"
            with m.State("ACT"):
                m.next = "CHOOSE"
                m.d.comb += save.eq(1)
                with m.Switch(op):
                    with m.Case(Op.PUT):
                        with m.Switch(asked.kind):
                            with m.Case(Put.ACK):
                                # a NAK is not owed twice: an ACK of what came again waits for the next occasion
                                with m.If(~(asked.again & row.owed & row.syndrome[5:].any())):
                                    m.d.comb += [new.owed.eq(1), new.psn.eq(asked.psn), new.msn.eq(asked.msn),
                                                 new.syndrome.eq(asked.syndrome)]
                                with m.If((row.reads == 0) & ~row.listed):
                                    m.d.comb += [new.listed.eq(1), enlist.eq(1)]
                            with m.Case(Put.READ):
                                m.d.comb += [new.owed.eq(row.owed & asked.again), new.reads.eq(row.reads + 1)]
                            with m.Default():
                                m.d.comb += [new.owed.eq(0), new.reads.eq(0)]
                    with m.Case(Op.ANSWERED):
                        m.d.comb += new.reads.eq(Mux(row.reads == 0, 0, row.reads - 1))
                        with m.If((row.reads == 1) & row.owed & ~row.listed):
                            m.d.comb += [new.listed.eq(1), enlist.eq(1)]
                    with m.Default():
                        m.d.comb += new.listed.eq(0)
                        with m.If(row.owed & (row.reads == 0)):
                            m.d.comb += new.owed.eq(0)
                            m.d.sync += [self.acks.valid.eq(1), offer.qp.eq(asked.qp), offer.psn.eq(row.psn),
                                         offer.msn.eq(row.msn), offer.syndrome.eq(row.syndrome)]
        return m
