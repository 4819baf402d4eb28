"""The notification point: who is sent a CNP, and how often."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.congestion import NOTIFY
from optinic.memory.table import Table, TableSpec
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature

__all__ = ["NotificationPoint", "PARAMS", "pool_size"]

TICK_SHIFT = 7          #: times are in ticks of 128 ns
TICK_BITS = 14          #: modulo 2^14: 2.1 ms, of which half is the longest interval
LANES = 8               #: QPs in a row of the table

PARAMS = NOTIFY


def pool_size(cfg):
    """QPs that may have caused a CNP within the interval."""
    return min(512, 1 << (cfg.num_qps - 1).bit_length())


def _pool_style(depth):
    return "block" if depth > 64 else "distributed"


class NotificationPoint(wiring.Component):
    """`marked` {qp}: a packet of the QP was placed whose IP header says "congestion experienced". `cnp` {qp}: tell its sender.

    The first mark of a QP causes a CNP at once (4 cycles if nothing else waits); those after it none until `interval` has
    passed, and at most 256 ns and a few cycles more. Marks may come in every cycle; they wait in a queue of QUEUE and are
    dealt with one in two cycles; forgetting a CNP takes two as well and goes first. A mark that finds the queue full, or that
    would cause a CNP while the pool is used up, is lost, and `lost` pulses; the QP's next mark is as good. When `cnp` isn't
    taken, the queue fills, and nothing else happens.

    A QP costs one bit: it has caused a CNP. When, is in a queue that all of them share, of `pool_size` entries (the pool); what
    comes out of it is old enough, and its QP's bit is cleared. Setting the NIC time may lengthen one interval to 2.1 ms.
    """

    QUEUE = 16

    def __init__(self, cfg):
        self.cfg = cfg
        Mark = StructLayout({"qp": cfg.qp_bits})
        super().__init__({
            "marked": In(PushSignature(Mark)), "cnp": Out(stream.Signature(Mark)), "lost": Out(1),
            "time": In(64), "clearing": Out(1), "idle": Out(1),
            **{name: In(32) for name in PARAMS},
        })

    @staticmethod
    def tables(cfg):
        return [
            TableSpec("notified", "congestion.notify", LANES, max(2, -(-cfg.num_qps // LANES)), "qp", "hot", rows_per=LANES),
            TableSpec("notified_when", "congestion.notify", cfg.qp_bits + TICK_BITS, pool_size(cfg), "CNP", "hot",
                      style=_pool_style(pool_size(cfg))),
        ]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        Mark = StructLayout({"qp": cfg.qp_bits})
        notified, when = self.tables(cfg)
        m.submodules.notified = table = Table(notified, LANES, latency=1)
        m.submodules.queue = queue = StreamFifo(Mark, self.QUEUE)
        Sent = StructLayout({"qp": cfg.qp_bits, "until": TICK_BITS})
        m.submodules.pool = pool = StreamFifo(Sent, when.depth, style=_pool_style(when.depth))
        mark = queue.o.payload
        now = Signal(TICK_BITS)
        full = Signal()
        no_room = Signal()
        m.d.sync += [
            now.eq(self.time >> TICK_SHIFT),
            self.lost.eq(full | no_room),
        ]
        m.d.comb += [
            queue.i.valid.eq(self.marked.valid), queue.i.payload.eq(self.marked.payload),
            full.eq(self.marked.valid & ~queue.i.ready), self.clearing.eq(table.clearing),
            pool.i.payload.qp.eq(mark.qp),
            # now + interval + 1 in ticks; it must be past, so that neither end's cut-off nanoseconds shorten the interval
            pool.i.payload.until.eq((Cat(1, now) + Cat(1, self.interval[TICK_SHIFT:TICK_SHIFT + TICK_BITS])) >> 1),
            self.idle.eq((queue.level == 0) & ~self.cnp.valid),
        ]
        old = Signal()          # the front of the pool is; a cycle late
        left = Signal(TICK_BITS)
        m.d.comb += left.eq(pool.o.payload.until - now)
        m.d.sync += old.eq(pool.o.valid & ~pool.o.ready & left[-1])
        with m.If(self.cnp.ready):
            m.d.sync += self.cnp.valid.eq(0)

        qp = Signal(cfg.qp_bits + 3)
        lane = qp[:3]
        forget = Signal()
        row = table.read0_data
        fresh = ~row.bit_select(mark.qp[:3], 1)
        bit = Const(1, 1) << lane
        m.d.comb += [
            qp.eq(Mux(forget, pool.o.payload.qp, mark.qp)), table.read0_addr.eq(qp >> 3), table.write_addr.eq(qp >> 3),
            table.write_data.eq(Mux(forget, row & ~bit, row | bit)),
        ]
        with m.FSM(name="notify"):
            with m.State("IDLE"):
                m.d.comb += forget.eq(old)
                with m.If(~self.clearing):
                    with m.If(old):
                        m.next = "FORGET"
                    with m.Elif(queue.o.valid & (~self.cnp.valid | self.cnp.ready)):
                        m.next = "MARK"
            with m.State("FORGET"):
                m.d.comb += [forget.eq(1), table.write_en.eq(1), pool.o.ready.eq(1)]
                m.next = "IDLE"
            with m.State("MARK"):
                m.d.comb += [
                    queue.o.ready.eq(1), pool.i.valid.eq(fresh), no_room.eq(fresh & ~pool.i.ready),
                    table.write_en.eq(fresh & pool.i.ready),
                ]
                with m.If(fresh & pool.i.ready):
                    m.d.sync += [self.cnp.valid.eq(1), self.cnp.payload.qp.eq(mark.qp)]
                m.next = "IDLE"
        return m
