"""The receive half of an OptiNIC: its stages behind the ingress, connected."""

from amaranth.hdl import Cat
from amaranth.lib import wiring

from optinic.queues.receive import ReceiveQueue, recv_wqe_layout
from optinic.memory.regions import Regions
from optinic.transport.xp.admission import Admission
from optinic.transport.xp.arrival import ArrivalMaps
from optinic.transport.xp.deadlines import DeadlineScanner
from optinic.transport.xp.dispatch import Dispatch
from optinic.transport.xp.lookup import Lookup
from optinic.transport.xp.records import work_layout
from optinic.transport.xp.resolve import Resolve

__all__ = ["ReceiveHalf"]


class ReceiveHalf:
    """Adds the stages to the module `m` of the card and connects them to each other. The other ends are attributes:

    in: `frames` (descriptors), `doorbells`, `commands`, `context_set`, `peer_set`, `map_set` (None without maps), `region_set`;
    out: `jobs`, `axi` (reader of host memory), `verdicts` (what became of each frame, see Admission);
    to and from the send half: `query`, `answer`, `reads`, `aside_qp`, `aside`, `aside_busy`;
    `verdict_qp`, `events` (by their counters), `alarmed` (those parts whose tables have alarms), `fetch_error`, `idle`, `clearing`. `regs` and `clock` are the card's.
    """

    @staticmethod
    def tables(cfg):
        return [spec for stage in (Lookup, ReceiveQueue, Regions, Admission, ArrivalMaps, DeadlineScanner) for spec in stage.tables(cfg)]

    def __init__(self, m, cfg, regs, clock):
        m.submodules.deadlines = deadlines = DeadlineScanner(cfg)
        m.submodules.lookup = lookup = Lookup(cfg)
        m.submodules.receive_queue = self.queue = receives = ReceiveQueue(cfg, work_layout(cfg))
        m.submodules.resolve = resolve = Resolve(cfg, recv_wqe_layout())
        m.submodules.admission = self.verdicts = admission = Admission(cfg)
        m.submodules.dispatch = dispatch = Dispatch(cfg)

        wiring.connect(m, deadlines.events, lookup.deadlines)
        receives.connect(m, regs, lookup.work, lookup.work.payload.qp, resolve, dispatch)
        m.d.comb += [
            admission.next_qp.eq(resolve.next_qp), admission.record.eq(resolve.record),
            admission.valid.eq(resolve.record_valid), admission.now.eq(clock.ticks), admission.time.eq(clock.time),
            dispatch.log_en.eq(regs.rw_refusal_log[31]), dispatch.log_cq.eq(regs.rw_refusal_log),
            dispatch.result.eq(admission.result), dispatch.result_valid.eq(admission.result_valid),
        ]
        self.map_set = None
        if cfg.arrival_map:
            m.submodules.arrival_maps = arrival_maps = ArrivalMaps(cfg)
            self.map_set = arrival_maps.set
            m.d.comb += [arrival_maps.valid.eq(receives.result_valid), arrival_maps.work.eq(receives.result_data.user),
                         dispatch.mark.eq(arrival_maps.mark)]

        # what admission tells the stages before it
        wiring.connect(m, admission.head_set, lookup.head_set)
        wiring.connect(m, admission.retire, lookup.retire)
        m.d.comb += [
            deadlines.set.eq(admission.lane), deadlines.now.eq(clock.coarse), lookup.pkey.eq(regs.rw_pkey),
        ]

        self.frames, self.doorbells, self.commands = lookup.frames, lookup.doorbells, lookup.commands
        self.context_set, self.peer_set, self.region_set = lookup.context_set, lookup.peer_set, resolve.region_set
        self.jobs, self.axi, self.fetch_error = dispatch.jobs, receives.axi, receives.fetch_error
        self.query, self.answer, self.reads = resolve.query, resolve.answer, resolve.reads
        self.aside_qp, self.aside, self.aside_busy = lookup.aside_qp, lookup.aside, lookup.aside_busy
        self.alarmed = (lookup, resolve, admission)
        self.verdict_qp = admission.result.qp
        self.events = {"deadlines": admission.expired, "preempted": admission.preempted}
        self.idle = Cat(lookup.idle, receives.idle, resolve.idle, dispatch.idle)
        self.clearing = Cat(lookup.clearing, resolve.clearing, admission.clearing, deadlines.clearing,
                            arrival_maps.clearing if cfg.arrival_map else 0)
