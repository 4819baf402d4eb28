"""The send side up to the packets to be read: from doorbells to packets, from packets that have left to completions."""

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.axi.signatures import AxiReadSignature
from optinic.memory.job import job_layout as host_job_layout
from optinic.memory.regions import region_request_layout, region_result_layout
from optinic.memory.table import alarm_members, connect_alarms
from optinic.stream.push import PushSignature
from optinic.tx.active import ActiveQueue
from optinic.tx.completions import SendCompletions
from optinic.tx.keys import LocalKeys
from optinic.tx.packet import done_layout, packet_layout
from optinic.tx.records import (ack_layout, command_layout, common_layout, context_layout, failed_layout, job_layout,
                                outstanding_layout)
from optinic.tx.scheduler import SendScheduler
from optinic.tx.wqe_fetch import WqeFetch

__all__ = ["SendQueue", "rc_ports"]


def rc_ports(cfg):
    """What the send half of transport rc has beside that of XP."""
    return {
        "progress": In(stream.Signature(StructLayout({"qp": cfg.qp_bits, "una": 16}))), "acks": In(stream.Signature(ack_layout(cfg))),
        "outstanding": Out(PushSignature(outstanding_layout(cfg))), "failed": Out(PushSignature(failed_layout(cfg))),
        "answered": Out(PushSignature(cfg.qp_bits)), "event_ack": Out(1), "event_nak": Out(1),
    } if cfg.rc else {}


class SendQueue(wiring.Component):
    """Doorbells come in, packets go out with their payload still in host memory; when they have left (`done`, in order) their
    completions go to the host writer (`jobs`). See the parts: ActiveQueue, WqeFetch, SendScheduler, LocalKeys, SendCompletions.

    `reads` are READ requests of peers, found good; one waits until a slot is free for its answer. `cnps` are QPs whose peer is
    to be told of congestion. `commands` begin a new life of a QP, flush one, or only fence; each ends with `fence_done`.
    With transport rc GOBACK and HALT put a QP at another place in its stream of requests, and don't; its requests, what it was told of them
    (`progress`), and its answers to the peer are those of ActiveQueue, SendScheduler and SendCompletions.
    `idle`, a bit for each part: ActiveQueue and SendScheduler (both also set while `enable` is low), WqeFetch, LocalKeys, SendCompletions.
    A QP's context is in two parts: one of the send half's own, and one that both share: `common`, of the `common_qp` of a cycle ago if
    `common_busy` was low then.
    The pacer is asked for `wait` (of the QP `pace_qp`, which must be there four cycles after `pace_look`) and told of each packet (`charge`).
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "doorbells": In(stream.Signature(32)),
            "commands": In(stream.Signature(command_layout(cfg))), "fence_done": Out(1),
            "context_set": In(wiring.Signature({"en": Out(1), "qp": Out(range(1 << cfg.qp_bits)), "entry": Out(context_layout(cfg))})),
            "common_qp": Out(cfg.qp_bits), "common": In(common_layout(cfg)), "common_busy": In(1),
            "reads": In(stream.Signature(job_layout(cfg))), "cnps": In(stream.Signature(cfg.qp_bits)),
            "axi": Out(AxiReadSignature(cfg.data_width)), "sq_base": In(64), "dma_timeout": In(32),
            "query": Out(stream.Signature(region_request_layout(cfg))), "answer": In(PushSignature(region_result_layout())),
            "packets": Out(stream.Signature(packet_layout(cfg))), "done": In(PushSignature(done_layout())),
            "jobs": Out(stream.Signature(host_job_layout(cfg))),
            "park": Out(stream.Signature(StructLayout({"qp": cfg.qp_bits, "delay": 24}))), "due": In(stream.Signature(cfg.qp_bits)),
            "pace_qp": Out(cfg.qp_bits), "pace_look": Out(1), "wait": In(24),
            "charge": Out(PushSignature(StructLayout({"qp": cfg.qp_bits, "bytes": 14}))), "restart": Out(PushSignature(cfg.qp_bits)),
            "enable": In(1), "time": In(64),
            "event_expired": Out(1), "event_cnp": Out(1), "event_read": Out(1), "event_error": Out(1), "event_wqe_error": Out(1),
            "clearing": Out(1), "idle": Out(5),
        } | alarm_members(cfg) | rc_ports(cfg))

    @staticmethod
    def tables(cfg):
        return [spec for part in (ActiveQueue, SendScheduler, SendCompletions) for spec in part.tables(cfg)]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.active = active = ActiveQueue(cfg)
        m.submodules.fetch = fetch = WqeFetch(cfg)
        m.submodules.scheduler = scheduler = SendScheduler(cfg)
        m.submodules.keys = keys = LocalKeys(cfg)
        m.submodules.completions = completions = SendCompletions(cfg)
        flip = wiring.flipped
        connect_alarms(m, self, [scheduler])
        for ours, theirs in (("doorbells", active.doorbells), ("commands", active.commands), ("due", active.due), ("park", active.park),
                             ("reads", scheduler.jobs), ("cnps", scheduler.cnps), ("context_set", scheduler.context_set),
                             ("charge", scheduler.charge), ("restart", scheduler.restart), ("axi", fetch.axi), ("query", keys.query),
                             ("answer", keys.answer), ("packets", keys.packets), ("done", completions.done), ("jobs", completions.jobs)):
            wiring.connect(m, flip(getattr(self, ours)), theirs)
        wiring.connect(m, active.events, scheduler.events)
        wiring.connect(m, active.settle, scheduler.settle)
        wiring.connect(m, active.fetch, fetch.fetch)
        wiring.connect(m, scheduler.store, fetch.store)
        wiring.connect(m, scheduler.give_back, fetch.give_back)
        wiring.connect(m, scheduler.planned, keys.planned)
        m.d.comb += [keys.wanted.eq(scheduler.wanted), scheduler.room.eq(keys.room)]
        wiring.connect(m, keys.followups, completions.followups)
        m.d.comb += [
            # a free slot goes to a READ's answer when one waits
            active.alloc.payload.eq(fetch.alloc.payload), scheduler.alloc.payload.eq(fetch.alloc.payload),
            active.alloc.valid.eq(fetch.alloc.valid & ~scheduler.want_slot), scheduler.alloc.valid.eq(fetch.alloc.valid),
            fetch.alloc.ready.eq((active.alloc.ready & ~scheduler.want_slot) | scheduler.alloc.ready),
            active.free.eq(fetch.free), scheduler.free.eq(fetch.free), fetch.ask.eq(scheduler.ask),
            scheduler.ready.eq(fetch.ready), scheduler.failed.eq(fetch.failed), fetch.look.eq(scheduler.look), fetch.blank.eq(scheduler.blank), scheduler.wqe.eq(fetch.wqe), fetch.sq_base.eq(self.sq_base), fetch.dma_timeout.eq(self.dma_timeout),
            scheduler.settle_done.eq(active.settle_done), scheduler.posted.eq(active.posted),
            scheduler.chain_qp.eq(active.chain_qp), active.chain_len.eq(scheduler.chain_len), active.chain_busy.eq(scheduler.chain_busy),
            self.common_qp.eq(scheduler.common_qp), scheduler.common.eq(self.common), scheduler.common_busy.eq(self.common_busy),
            keys.follow_room.eq(completions.room),
            self.pace_qp.eq(scheduler.pace_qp), self.pace_look.eq(scheduler.pace_look), scheduler.wait.eq(self.wait),
            completions.time.eq(self.time), scheduler.now.eq(self.time >> 6), scheduler.enable.eq(self.enable),
            self.event_expired.eq(scheduler.event_expired), self.event_cnp.eq(scheduler.event_cnp),
            self.event_read.eq(self.reads.valid & self.reads.ready), self.event_error.eq(completions.event_error),
            self.event_wqe_error.eq(fetch.fetch_error), self.fence_done.eq(completions.fence_done),
            self.clearing.eq(Cat(active.clearing, scheduler.clearing, completions.clearing).any()),
            self.idle.eq(Cat(active.idle | ~self.enable, scheduler.idle | ~self.enable, fetch.idle, keys.idle, completions.idle)),
        ]
        if cfg.rc:
            for ours, theirs in (("progress", active.progress), ("acks", scheduler.acks), ("outstanding", scheduler.outstanding),
                                 ("failed", completions.failed), ("answered", scheduler.answered)):
                wiring.connect(m, flip(getattr(self, ours)), theirs)
            m.d.comb += [scheduler.target.eq(active.target), self.event_ack.eq(scheduler.event_ack), self.event_nak.eq(scheduler.event_nak)]
        return m
