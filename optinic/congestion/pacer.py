"""The pacer: when each queue pair may send next, by a virtual clock."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.congestion import PACER
from optinic.congestion.interface import INTERVAL_FRACTION, rate_layout
from optinic.congestion.sweep import Sweep
from optinic.memory.table import Table, TableSpec
from optinic.stream.push import PushSignature

__all__ = ["Pacer", "PARAMS", "look_layout", "charge_layout"]

NS_BITS = 24            #: times are kept modulo 2^24 ns: 8.39 ms ahead and as much back
FRACTION = 6            #: and to 1/64 ns
MANTISSA = 9            #: of an interval, behind its leading one
CHARGE_BITS = NS_BITS - 2       #: a charge is less than 2^22 ns, 4.19 ms; so one more fits where less than that is owed

_SCALES = {1: 0, 2: 8, 3: 16}   # code: shift; 0: not paced

PARAMS = PACER


def _interval_layout():
    """(512 + mantissa) << (fine + shift by scale)"""
    return StructLayout({"mantissa": MANTISSA, "fine": 3, "scale": 2})


def look_layout(cfg):
    return StructLayout({"valid": 1, "qp": cfg.qp_bits})


def charge_layout(cfg):
    return StructLayout({"valid": 1, "qp": cfg.qp_bits, "bytes": 14})


class Pacer(wiring.Component):
    """Owns the interval of each QP and the time at which it may send next.

    `look`: LOOK_LATENCY cycles later, and until the answer to the next look, `wait` says how many ns are left until `qp`
    may send (0: now), and `paced` whether it has an interval at all. `charge`: `bytes` of it are sent;
    next = max(next, now - burst) + bytes * interval, or now if it isn't paced. `reset`: the QP owes nothing, next = now.
    At least 4 cycles from look to look, and from any charge or reset to the next one, there on average 5: a caller that
    comes more often loses one. A look knows of the charges made 8 cycles before it or earlier; if it misses one the QP may
    send a packet too early, which is charged all the same.

    The intervals' only writer is `rate`, at any time, one a cycle; a reset doesn't touch them, the controller sets the QP's to 0
    when it hears of the reset. A look or charge uses an interval pushed 4 cycles before.

    Intervals are kept to ten significant bits, cut off, so a QP sends up to 0.2 % too fast; 1..511 (over 1 Tb/s) count as
    512 more. Times are kept to 1/64 ns, rounded. One charge is less than 4.19 ms (a packet of 4248 bytes
    at 8.1 Mb/s), more is cut off; a QP that owes 4.19 ms already is not charged more. No `wait` is above 8.39 ms.

    Times wrap at 16.8 ms. A round over all QPs lifts old times to now - burst, which changes no answer, before they could be
    taken for future ones. After the driver has set the NIC time, or after reset, a paced QP may wait up to 8.39 ms.
    """

    LOOK_LATENCY = 4
    SPACING = 3         # cycles between changes of a time; fewer would need more forwarding

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "look": In(look_layout(cfg)), "wait": Out(24), "paced": Out(1),
            "charge": In(charge_layout(cfg)),
            "rate": In(PushSignature(rate_layout(cfg))),
            "reset": In(look_layout(cfg)),
            "time": In(64), "clearing": Out(1),
            **{name: In(32) for name in PARAMS},
        })

    @staticmethod
    def tables(cfg):
        return [
            TableSpec("pacer_next", "congestion.pacer", NS_BITS + FRACTION, cfg.num_qps, "qp", "hot"),
            TableSpec("pacer_interval", "congestion.pacer", _interval_layout().size, cfg.num_qps, "qp", "hot"),
        ]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        specs = {spec.name: spec for spec in self.tables(cfg)}
        m.submodules.next = times = Table(specs["pacer_next"], NS_BITS + FRACTION)
        m.submodules.interval = intervals = Table(specs["pacer_interval"], _interval_layout())
        m.submodules.sweep = sweep = Sweep(cfg, 1 << (NS_BITS - 1))
        m.d.comb += self.clearing.eq(times.clearing)
        self._take_rates(m, intervals, self.rate)

        now = Signal(NS_BITS)
        floor = Signal(NS_BITS)
        m.d.sync += [now.eq(self.time), floor.eq(self.time[:NS_BITS] - self.burst[:NS_BITS])]

        # -- 0: a look, or one of the three changes of a time ------------------------------------------
        Op = StructLayout({"qp": cfg.qp_bits, "bytes": 14, "charge": 1, "reset": 1})
        charge = Signal(charge_layout(cfg))
        reset = Signal(look_layout(cfg))
        gap = Signal(range(self.SPACING))
        op = Signal(Op)
        change = Signal()
        free = ~self.look.valid & (gap == 0) & ~self.clearing
        m.d.comb += op.bytes.eq(charge.bytes)
        with m.If(self.look.valid):
            m.d.comb += op.qp.eq(self.look.qp)
        with m.Elif(charge.valid):
            m.d.comb += [op.qp.eq(charge.qp), op.charge.eq(1), change.eq(free)]
            m.d.sync += charge.valid.eq(charge.valid & ~free)
        with m.Elif(reset.valid):
            m.d.comb += [op.qp.eq(reset.qp), op.reset.eq(1), change.eq(free)]
            m.d.sync += reset.valid.eq(reset.valid & ~free)
        with m.Else():
            m.d.comb += [op.qp.eq(sweep.qp), change.eq(free & sweep.wanted), sweep.done.eq(change)]
        with m.If(self.charge.valid):
            m.d.sync += charge.eq(self.charge)
        with m.If(self.reset.valid):
            m.d.sync += reset.eq(self.reset)
        with m.If(change):
            m.d.sync += gap.eq(self.SPACING - 1)
        with m.Elif(gap != 0):
            m.d.sync += gap.eq(gap - 1)
        m.d.comb += [times.read0_addr.eq(op.qp), intervals.read0_addr.eq(op.qp)]

        # -- 1, 2: both tables. The newest time may not be in what was read, so it is remembered --------
        look = Signal(3)        # bit i: in stage i + 1
        changes = Signal(4)
        ops = [Signal(Op, name=f"op{i}", reset_less=True) for i in range(1, 5)]
        m.d.sync += [look.eq(Cat(self.look.valid, look)), changes.eq(Cat(change, changes)), ops[0].eq(op)]
        m.d.sync += [after.eq(before) for before, after in zip(ops, ops[1:])]
        new = Signal(NS_BITS + FRACTION)
        kept = Signal(NS_BITS + FRACTION)       # at first: QP 0, and the 0 that it has in the table
        kept_qp = Signal(cfg.qp_bits)
        with m.If(changes[3]):
            m.d.sync += [kept.eq(new), kept_qp.eq(ops[3].qp)]
        known = kept_qp == ops[1].qp

        # -- 2: bytes * interval, as far as the fine part of the exponent goes --------------------------
        interval = intervals.read0_data
        factor = Signal(MANTISSA + 8)
        m.d.comb += factor.eq(Cat(interval.mantissa, 1) << interval.fine)
        product = Signal(14 + MANTISSA + 8, reset_less=True)
        scale = Signal(2, reset_less=True)
        old = Signal(NS_BITS + FRACTION, reset_less=True)
        m.d.sync += [
            product.eq(ops[1].bytes * factor), scale.eq(interval.scale),
            old.eq(Mux(known, kept, times.read0_data)),
        ]

        # -- 3: what is left to wait; the start of the charge, and its length ---------------------------
        ahead = Signal(NS_BITS)         # signed
        spare = Signal(NS_BITS)         # signed
        wait = Signal(24, reset_less=True)
        start = Signal(NS_BITS + FRACTION, reset_less=True)
        cost = Signal(CHARGE_BITS + FRACTION + 1, reset_less=True)      # one bit more, for rounding
        paced = scale != 0
        m.d.comb += [ahead.eq(old[FRACTION:] - now), spare.eq(old[FRACTION:] - floor)]
        with m.If(look[2]):
            m.d.sync += [wait.eq(ahead), self.paced.eq(paced)]
            with m.If(ahead[-1] | ~paced):
                m.d.sync += wait.eq(0)
        with m.If(ops[2].reset | (ops[2].charge & ~paced)):
            m.d.sync += start.eq(now << FRACTION)
        with m.Elif(ahead[-1] & spare[-1]):     # far ahead, `spare` may have wrapped
            m.d.sync += start.eq(floor << FRACTION)
        with m.Else():
            m.d.sync += start.eq(old)
        # product << 0, 8 or 16, in units of 2^-16 ns, to units of 2^-7
        drop = INTERVAL_FRACTION - FRACTION - 1
        whole = Signal(len(product) + 16)
        with m.Switch(scale):
            for code, shift in _SCALES.items():
                with m.Case(code):
                    m.d.comb += whole.eq(product << shift)
        shifted = whole[drop:]
        m.d.sync += cost.eq(shifted | shifted[len(cost):].any().replicate(len(cost)))
        with m.If((ahead[-2:] == 1) | ~ops[2].charge):
            m.d.sync += cost.eq(0)

        # -- 4: their sum -----------------------------------------------------------------------------
        m.d.comb += [
            self.wait.eq(wait), new.eq(start + cost[1:] + cost[0]),
            times.write_en.eq(changes[3]), times.write_addr.eq(ops[3].qp), times.write_data.eq(new),
        ]
        return m

    @staticmethod
    def _take_rates(m, intervals, rate):
        """Two cycles from a pushed interval to the table: the coarse part of the exponent, then the fine one."""
        pushed = rate.payload.interval
        y = Signal(MANTISSA + 8, reset_less=True)
        scale = Signal(2)
        qp = Signal.like(rate.payload.qp)
        valid = Signal(2)
        m.d.sync += [valid.eq(Cat(rate.valid, valid)), qp.eq(rate.payload.qp), scale.eq(pushed.any()), y.eq(pushed)]
        for code, shift in list(_SCALES.items())[1:]:
            with m.If(pushed[shift + MANTISSA:].any()):
                m.d.sync += [scale.eq(code), y.eq(pushed >> shift)]
        fine = Signal(3)
        for i in range(1, 8):
            with m.If(y[MANTISSA + i]):
                m.d.comb += fine.eq(i)
        row = Signal(_interval_layout(), reset_less=True)
        row_qp = Signal.like(qp)
        m.d.sync += [row.mantissa.eq(y >> fine), row.fine.eq(fine), row.scale.eq(scale), row_qp.eq(qp)]
        m.d.comb += [intervals.write_en.eq(valid[1]), intervals.write_addr.eq(row_qp), intervals.write_data.eq(row)]
