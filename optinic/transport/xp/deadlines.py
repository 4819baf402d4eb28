"""The deadline scanner: it goes round all queue pairs and says whose time has come."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.enum import Enum
from amaranth.lib.wiring import In, Out

from ...memory.table import Table, TableSpec

__all__ = ["LaneKind", "DeadlineScanner", "COARSE_SHIFT", "deadline_set_layout", "deadline_event_layout"]

COARSE_SHIFT = 10       #: the coarse time is NIC time in ns >> 10: units of 1.024 us


class LaneKind(Enum, shape=1):
    DEADLINE = 0        # fires when its time has come
    SERVICE = 1         # the same; tells whoever takes it that there is work to be gone on with instead


def _lane_layout():
    return StructLayout({"active": 1, "kind": LaneKind, "coarse": 16})


def deadline_set_layout(cfg):
    return StructLayout({"en": 1, "qp": cfg.qp_bits, "active": 1, "kind": LaneKind, "coarse": 16})


def deadline_event_layout(cfg):
    return StructLayout({"qp": cfg.qp_bits, "kind": LaneKind})


class DeadlineScanner(wiring.Component):
    """One lane for each QP: {active, kind, coarse time}; a row of lanes is read every cycle, round and round.

    `set` rewrites the lane of `qp`, one every cycle, and is never refused. `now` is the coarse time, bits 10 to 25 of NIC
    time in ns. At each pass a lane fires if it is active and due: (now - coarse) modulo 2^16 < 2^15.
    So a time more than 2^15 - 1 units (33.5 ms) ahead looks past: whoever sets it clamps it, and sets it again when it
    fires early. Firing changes nothing: the lane fires at each pass until it is set anew.

    `events` is registered. When it isn't taken, the scan stands still as soon as `QUEUE` rows with events wait. A row
    that finds no room is read again, so no lane is ever passed over, and every lane has its turn once a pass.

    A set wins over the scan: a row read before it loses that lane, wherever the row has got to. Only an event that is
    already offered stays, since a stream doesn't take back what it offers; every event first offered after the set's
    cycle is of the new lane. Whoever takes events checks them against the QP's full deadline.

    Lateness: from the cycle in which a lane becomes due (or is set to a time that is past) until its event is
    offered pass at most ``scan_rows + PIPELINE`` cycles, one more for each event of another lane that is taken, or
    withdrawn by a set, meanwhile, and one for each cycle in which `events` is not taken. Coarse time adds what its unit
    hides: a deadline rounded up to the next unit fires up to 1.024 us later than that, never earlier; rounded down, as
    much earlier.

    After reset every lane is inactive. While that is being written, `clearing` is high, sets are ignored and nothing
    fires.
    """

    PIPELINE = 6
    QUEUE = 5       #: rows. A row that has to be read again is back before the others have all gone, even at one a cycle

    def __init__(self, cfg):
        self._cfg = cfg
        super().__init__({
            "set": In(deadline_set_layout(cfg)),
            "now": In(16),
            "events": Out(stream.Signature(deadline_event_layout(cfg))),
            "clearing": Out(1),
        })

    @staticmethod
    def tables(cfg):
        return [TableSpec("deadlines", "transport.xp.deadlines", _lane_layout().size * cfg.deadline_lanes, cfg.scan_rows,
                          "qp", "message", rows_per=cfg.deadline_lanes)]

    @staticmethod
    def stale(row, set_row, set_lane):
        """Lanes of `row` that this cycle's set changes."""
        return set_lane & (set_row == row).replicate(len(set_lane))

    def elaborate(self, platform):
        m = Module()
        lanes = self._cfg.deadline_lanes
        lane_bits = lanes.bit_length() - 1
        row_shape = range(self._cfg.scan_rows)
        spec, = self.tables(self._cfg)
        lane_width = _lane_layout().size
        m.submodules.table = table = Table(spec, ArrayLayout(_lane_layout(), lanes), granularity=lane_width)
        m.d.comb += self.clearing.eq(table.clearing)

        # a set: one lane of one row
        set_row = Signal(row_shape)
        set_lane = Signal(lanes)        # one-hot, 0 without a set
        m.d.comb += [
            set_row.eq(self.set.qp[lane_bits:]),
            set_lane.eq(self.set.en << (self.set.qp[:lane_bits] if lane_bits else 0)),
            table.write_en.eq(set_lane),
            table.write_addr.eq(set_row),
        ]
        for lane in range(lanes):
            m.d.comb += [table.write_data[lane][name].eq(self.set[name]) for name in ("active", "kind", "coarse")]

        def stale(row):
            return self.stale(row, set_row, set_lane)

        # the scan: row on the address, two cycles in the table, one to compare
        row = Signal(row_shape)
        again = Signal()
        full = Signal()
        Stage = StructLayout({"valid": 1, "row": row_shape, "lanes": lanes})    # lanes: still as they were read
        read1, read2, found = (Signal(Stage, name=n) for n in ("read1", "read2", "found"))
        kinds = Signal(lanes, reset_less=True)
        fires = Signal(lanes)
        with m.If(again):
            m.d.sync += row.eq(found.row)
        with m.Elif(table.clearing | (row == self._cfg.scan_rows - 1)):
            m.d.sync += row.eq(0)
        with m.Else():
            m.d.sync += row.eq(row + 1)
        m.d.comb += table.read0_addr.eq(row)
        for lane in range(lanes):
            cell = table.read0_data[lane]
            due = Signal(16, name=f"since{lane}")
            m.d.comb += [
                due.eq(self.now - cell.coarse),
                fires[lane].eq(cell.active & ~due[15]),
            ]
            m.d.sync += kinds[lane].eq(cell.kind)
        m.d.sync += [
            read1.valid.eq(~table.clearing & ~again), read1.row.eq(row), read1.lanes.eq(~stale(row)),
            read2.valid.eq(read1.valid & ~again), read2.row.eq(read1.row), read2.lanes.eq(read1.lanes & ~stale(read1.row)),
            found.valid.eq(read2.valid & ~again), found.row.eq(read2.row),
            found.lanes.eq(read2.lanes & fires & ~stale(read2.row)),
        ]
        has_found = Signal()
        m.d.comb += [has_found.eq(found.valid & found.lanes.any()), again.eq(has_found & full)]

        # rows with events wait here, oldest in front; the front gives one lane at a time its turn, the lowest first
        Entry = StructLayout({"valid": 1, "row": row_shape, "lanes": lanes, "kinds": lanes})
        queue = [Signal(Entry, name=f"queue{n}") for n in range(self.QUEUE)]
        front = queue[0]
        turn = Signal(StructLayout({"valid": 1, "row": row_shape, "lane": lanes, "kind": 1}))      # one-hot; 0: withdrawn by a set
        free = Signal()         # the output can take an event
        step = Signal()
        pick = Signal(lanes)
        rest = Signal(lanes)
        pop = Signal()
        lane = turn.lane & ~stale(turn.row)
        m.d.comb += [
            free.eq(~self.events.valid | self.events.ready), step.eq(~turn.valid | free),
            pick.eq(Cat(front.lanes[n] & ~front.lanes[:n].any() for n in range(lanes))),     # not by a carry: it may not get a chain
            rest.eq(front.lanes & ~pick),
            pop.eq(step & ~rest.any()),
            full.eq(queue[-1].valid),       # whatever is popped: that is known too late to decide where the scan goes on
        ]
        m.d.sync += turn.lane.eq(lane)
        with m.If(step):
            m.d.sync += [turn.valid.eq(front.valid & front.lanes.any()), turn.row.eq(front.row), turn.lane.eq(pick & ~stale(front.row)),
                         turn.kind.eq((pick & front.kinds).any())]
        with m.If(free):
            m.d.sync += [
                self.events.valid.eq(turn.valid & lane.any()), self.events.payload.kind.eq(turn.kind),
                self.events.payload.qp.eq(Cat(
                    *(Cat(turn.lane[n] for n in range(lanes) if n >> bit & 1).any() for bit in range(lane_bits)), turn.row)),
            ]
        kept = []
        for n, entry in enumerate(queue):
            left = Signal(Entry, name=f"kept{n}")
            m.d.comb += left.eq(entry)
            m.d.comb += left.lanes.eq((Mux(step, rest, entry.lanes) if n == 0 else entry.lanes) & ~stale(entry.row))
            kept.append(left)
        incoming = Signal(Entry)
        m.d.comb += [
            incoming.valid.eq(has_found & ~full), incoming.row.eq(found.row), incoming.kinds.eq(kinds),
            incoming.lanes.eq(found.lanes & ~stale(found.row)),
        ]
        for n, entry in enumerate(queue):
            # what the place holds after the pop, and whether the place before it is taken
            stays = queue[n + 1] if n + 1 < self.QUEUE else None
            with m.If(pop):
                if stays is not None:
                    m.d.sync += entry.eq(kept[n + 1])
                    with m.If(~queue[n + 1].valid & (entry.valid if n else 1)):
                        m.d.sync += entry.eq(incoming)
                else:
                    m.d.sync += entry.eq(incoming)
                    with m.If(~entry.valid):
                        m.d.sync += entry.valid.eq(0)
            with m.Else():
                m.d.sync += entry.eq(kept[n])
                with m.If(~entry.valid & (queue[n - 1].valid if n else 1)):
                    m.d.sync += entry.eq(incoming)
        return m
