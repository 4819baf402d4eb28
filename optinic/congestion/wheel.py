"""The timing wheel: queue pairs that may not send yet, by the time at which they may."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.memory.table import Table, TableSpec

__all__ = ["TimingWheel", "BUCKET_SHIFT", "BUCKETS", "park_layout"]

BUCKET_SHIFT = 10       #: a bucket is 1.024 us
BUCKETS = 1024          #: which makes 1.05 ms in all
COARSE = 16             #: bits of the bucket count: the wheel may lag behind for 67 ms


def park_layout(cfg):
    return StructLayout({"qp": cfg.qp_bits, "delay": 24})


class TimingWheel(wiring.Component):
    """`park` {qp, delay in ns}: the QP comes out of `due` once, when its time has come. A QP may not be parked again before.

    Never early: not before `time` at its acceptance + delay. Late by at most one bucket (1024 ns) and 8 cycles, and
    2 cycles (6 while QPs are being parked) for each QP that comes out before it of the same bucket or of earlier ones,
    and as long as `due` isn't taken. The order within a bucket is last in, first out. A delay of more than BUCKETS - 1 buckets
    counts as that: the QP comes out early then, and whoever takes it looks again.

    Parking takes 5 cycles, coming out 2, in turn when both are wanted, so neither holds up the other; a QP for which `due` is
    not taken doesn't hold up parking. If it isn't taken for 67 ms, QPs may come out early. Setting `time` ahead makes
    due who would have been; setting it back makes everyone due who is parked, within 66,000 buckets of 3 cycles.

    A bucket is a list: its head is in a table, and each QP knows the next one; the last one names itself.
    """

    first_bucket = 0    #: the bucket emptied last at reset; a test has it begin just before 2^16

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "park": In(stream.Signature(park_layout(cfg))),
            "due": Out(stream.Signature(StructLayout({"qp": cfg.qp_bits}))),
            "time": In(64), "clearing": Out(1),
        })

    @staticmethod
    def tables(cfg):
        return [
            TableSpec("wheel_next", "congestion.wheel", cfg.qp_bits, cfg.num_qps, "qp", "hot"),
            TableSpec("wheel_buckets", "congestion.wheel", cfg.qp_bits + 1, BUCKETS, "bucket", "hot"),
        ]

    def elaborate(self, platform):
        m = Module()
        specs = {spec.name: spec for spec in self.tables(self.cfg)}
        m.submodules.nexts = nexts = Table(specs["wheel_next"], self.cfg.qp_bits, latency=1)
        m.submodules.heads = heads = Table(specs["wheel_buckets"], StructLayout({"qp": self.cfg.qp_bits, "valid": 1}), latency=1)
        m.d.comb += self.clearing.eq(nexts.clearing | heads.clearing)

        # `time` rounded up to a bucket, and a cycle's worth more, as the sum is taken a cycle later
        up = (1 << BUCKET_SHIFT) - 1 + -(-10**9 // self.cfg.clock_hz)
        rounded = Signal(BUCKET_SHIFT + COARSE)
        now = Signal(COARSE)
        m.d.sync += [rounded.eq(self.time + up), now.eq(self.time >> BUCKET_SHIFT)]

        waiting = Signal()                  # somebody to be parked
        qp = Signal(self.cfg.qp_bits)
        bucket = Signal(COARSE)
        slot = Signal(range(BUCKETS))
        m.d.comb += self.park.ready.eq(~waiting & ~self.clearing)
        with m.If(self.park.valid & self.park.ready):
            m.d.sync += [
                waiting.eq(1), qp.eq(self.park.payload.qp),
                bucket.eq((rounded + self.park.payload.delay)[BUCKET_SHIFT:]),
            ]

        cursor = Signal(COARSE, init=self.first_bucket)    # the last bucket that was emptied
        following = Signal(COARSE)          # and the one after it
        m.d.comb += following.eq(cursor + 1)
        far = Signal(COARSE)                # of the QP to be parked: buckets from the cursor
        listed = Signal()                   # what was in it and has not come out yet begins with `first`
        first = Signal(self.cfg.qp_bits)
        turn = Signal()                     # the next is a QP to be parked
        out = listed & (~self.due.valid | self.due.ready)
        behind = Signal()                   # as of the cycle before: the cursor has not moved in the one before IDLE
        m.d.sync += behind.eq(cursor != now)
        take = ~listed & behind
        with m.If(self.due.ready):
            m.d.sync += self.due.valid.eq(0)

        m.d.comb += [nexts.read0_addr.eq(first), nexts.write_addr.eq(qp), heads.write_addr.eq(slot)]
        with m.FSM(name="wheel"):
            with m.State("IDLE"):
                m.d.comb += heads.read0_addr.eq(following)
                m.d.sync += [slot.eq(following), far.eq(bucket - cursor)]
                with m.If(self.clearing):
                    pass
                with m.Elif(waiting & (turn | ~(out | take))):
                    m.d.sync += turn.eq(0)
                    m.next = "PARK"
                with m.Elif(out):
                    m.d.sync += [turn.eq(1), self.due.valid.eq(1), self.due.payload.qp.eq(first)]
                    m.next = "OUT"
                with m.Elif(take):
                    m.d.sync += [turn.eq(1), cursor.eq(following)]
                    m.next = "TAKE"

            with m.State("PARK"):
                to = Signal.like(slot)
                m.d.comb += [to.eq(Mux(far != 0, bucket, following)), heads.read0_addr.eq(to)]
                with m.If(far >= BUCKETS):          # all but the bucket that is the cursor's own
                    m.d.comb += to.eq(cursor - 1)
                m.d.sync += slot.eq(to)
                m.next = "LINK"
            with m.State("LINK"):
                m.d.comb += [
                    heads.write_en.eq(1), heads.write_data.valid.eq(1), heads.write_data.qp.eq(qp),
                    nexts.write_en.eq(1), nexts.write_data.eq(Mux(heads.read0_data.valid, heads.read0_data.qp, qp)),
                ]
                m.d.sync += waiting.eq(0)
                m.next = "IDLE"

            with m.State("OUT"):
                m.d.sync += [first.eq(nexts.read0_data), listed.eq(nexts.read0_data != first)]
                m.next = "IDLE"

            with m.State("TAKE"):
                m.d.comb += heads.write_en.eq(1)
                m.d.sync += [first.eq(heads.read0_data.qp), listed.eq(heads.read0_data.valid)]
                m.next = "IDLE"
        return m
