"""The card: its stages in datapath order, connected. No logic of its own."""

from amaranth.hdl import C, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import NUM_ARGS
from optinic.abi.verdicts import COUNTERS, NUM_COUNTERS
from optinic.abi.congestion import DCQCN
from optinic.axi.read_merge import ReadMerge
from optinic.axi.register_bank import RegisterBank
from optinic.axi.signatures import AxiLiteSignature, AxiSignature
from optinic.axi.write_merge import WriteMerge
from optinic.memory.host_writer import HostWriter
from optinic.memory.job_merge import JobMerge
from optinic.memory.table import alarm_members
from optinic.queues.pending import PendingInterrupts
from optinic.rx.ingress import Ingress
from optinic.stream.packet import AxiStreamSignature
from optinic.stream.slice import StreamSlice
from optinic.transport.clock import NicClock
from optinic.transport.commands import Commands
from optinic.transport.counters import Counters
from optinic.transport.rc import receive_half as rc
from optinic.transport.xp import receive_half as xp
from optinic.transport.xp.records import Verdict
from optinic.tx.transmit import Transmit

__all__ = ["Nic", "trace_members"]


def trace_members(cfg):
    """One record for each frame in order of arrival; `trace_overflow` pulses for a frame that found no room."""
    return {"trace": Out(wiring.Signature({"valid": Out(1), "verdict": Out(2), "reason": Out(5), "qpn": Out(24),
                                           "len": Out(13), "kind": Out(2), "overflow": Out(1)}))}


def _receive_half(cfg):
    return rc.ReceiveHalf if cfg.rc else xp.ReceiveHalf


class Nic(wiring.Component):
    """The whole card.

    `mac_rx` takes frames, one beat a cycle, and `mac_tx` gives them; `axi` is the way to host memory; `axil` has the registers
    of abi/registers.py; `host_rx` gives what is not for the transport, and `host_tx` takes what the host sends past it;
    `irq` has a level for each completion vector. One clock domain, `sync`.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "mac_rx": In(AxiStreamSignature(cfg.data_width)), "mac_tx": Out(AxiStreamSignature(cfg.data_width)),
            "axi": Out(AxiSignature(cfg.data_width)), "axil": In(AxiLiteSignature()), "irq": Out(cfg.num_vectors),
            **({"host_rx": Out(AxiStreamSignature(cfg.data_width)), "host_tx": In(AxiStreamSignature(cfg.data_width))}
               if cfg.pass_through else {}),
            **(trace_members(cfg) if cfg.trace else {}),
        })

    @staticmethod
    def tables(cfg):
        """Every table on the chip, in datapath order."""
        return [spec for stage in (Ingress, Commands, _receive_half(cfg), HostWriter, Transmit, Counters) for spec in stage.tables(cfg)]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.clock = clock = NicClock(cfg)
        m.submodules.registers = regs = RegisterBank(cfg)
        m.submodules.ingress = ingress = Ingress(cfg)
        half = _receive_half(cfg)(m, cfg, regs, clock)
        verdicts = half.verdicts
        m.submodules.job_merge = merge = JobMerge(cfg)
        m.submodules.host_writer = writer = HostWriter(cfg)
        m.submodules.transmit = transmit = Transmit(cfg)
        atomics = cfg.rc and cfg.rc_atomics
        m.submodules.read_merge = reads = ReadMerge(cfg.data_width, ("00", "10", "11", "01") if atomics else ("0", "10", "11"))
        m.submodules.commands = commands = Commands(cfg, half.region_set.shape())
        m.submodules.counters = counters = Counters(cfg)
        m.submodules.interrupts = interrupts = PendingInterrupts(cfg)

        # datapath
        wiring.connect(m, wiring.flipped(self.mac_rx), ingress.mac)
        wiring.connect(m, ingress.descriptors, half.frames)
        wiring.connect(m, half.jobs, merge.receive)
        wiring.connect(m, transmit.jobs, merge.send)
        wiring.connect(m, merge.jobs, writer.jobs)
        m.d.comb += [ingress.rd_addr.eq(writer.rd_addr), writer.rd_data.eq(ingress.rd_data),
                     ingress.rd_pointer.eq(writer.rd_pointer)]
        if cfg.pass_through:
            wiring.connect(m, writer.host, wiring.flipped(self.host_rx))

        # the send half: what it asks the region table and the contexts, and what the receive half asks of it
        m.d.comb += [half.aside_qp.eq(transmit.common_qp), transmit.common.eq(half.aside), transmit.common_busy.eq(half.aside_busy)]
        wiring.connect(m, transmit.query, half.query)
        wiring.connect(m, half.answer, transmit.answer)
        wiring.connect(m, half.reads, transmit.reads)
        send_doorbells = transmit.doorbells
        if cfg.rc:
            self._connect_reliability(m, half, transmit, commands)
            send_doorbells = half.sq_doorbells      # they go on to the send half
        else:
            # a register in between, for a doorbell waits for a command, and the host's write for the doorbell
            m.submodules.send_events = send_events = StreamSlice(commands.send_events.payload.shape())
            wiring.connect(m, commands.send_events, send_events.i)
            wiring.connect(m, send_events.o, transmit.commands)
        wiring.connect(m, commands.send_context_set, transmit.context_set)
        wiring.connect(m, commands.send_peer_set, transmit.peer_set)
        wiring.connect(m, commands.set_rate, transmit.set_rate)
        wiring.connect(m, transmit.mac_tx, wiring.flipped(self.mac_tx))
        if cfg.pass_through:
            wiring.connect(m, wiring.flipped(self.host_tx), transmit.host_tx)
        m.d.comb += [
            commands.send_done.eq(transmit.fence_done), transmit.time.eq(clock.time), transmit.enable.eq(regs.rw_ctrl[2]),
            transmit.cnp_received.valid.eq(verdicts.cnp), transmit.cnp_received.payload.qp.eq(half.verdict_qp),
            transmit.marked.valid.eq(verdicts.cnp_due), transmit.marked.payload.qp.eq(half.verdict_qp),
            transmit.sq_base.eq(Cat(regs.rw_sq_base_lo, regs.rw_sq_base_hi)), transmit.dma_timeout.eq(regs.rw_dma_timeout),
            transmit.local.mac.eq(Cat(regs.rw_local_mac_lo, regs.rw_local_mac_hi)), transmit.local.ip4.eq(regs.rw_local_ip4),
            transmit.local.ip6.eq(Cat(getattr(regs, f"rw_local_ip6_{i}") for i in range(4))),
            transmit.local.hop_limit.eq(regs.rw_hop_limit), transmit.local.pkey.eq(regs.rw_pkey),
            transmit.burst.eq(regs.rw_pacer_burst), transmit.cnp_interval.eq(regs.rw_cnp_interval),
            *(getattr(transmit, name).eq(getattr(regs, f"rw_dcqcn_{name}")) for name in DCQCN if hasattr(transmit, name)),
        ]

        # host memory
        wiring.connect(m, half.axi, reads.reader0)
        wiring.connect(m, transmit.payload_axi, reads.reader1)
        wiring.connect(m, transmit.wqe_axi, reads.reader2)
        writes = writer.axi
        if atomics:
            m.submodules.write_merge = write_merge = WriteMerge(cfg.data_width)
            wiring.connect(m, writer.axi, write_merge.source0)
            wiring.connect(m, half.atomic_write, write_merge.source1)
            wiring.connect(m, half.atomic_read, reads.reader3)
            writes = write_merge.axi
        for name in self.axi.signature.members:
            source = reads.axi if name.startswith(("ar", "r")) else writes
            ours, theirs = getattr(self.axi, name), getattr(source, name)
            m.d.comb += ours.eq(theirs) if self.axi.signature.members[name].flow is Out else theirs.eq(ours)

        # registers, doorbells and commands
        wiring.connect(m, wiring.flipped(self.axil), regs.axi)
        m.d.comb += [
            ingress.enable.eq(regs.rw_ctrl[0]), ingress.hold.eq(regs.rw_ctrl[1]),
            regs.time.eq(clock.time), clock.set.eq(regs.wo_time_set_hi.valid), regs.wo_time_set_hi.ready.eq(1),
            clock.set_time.eq(Cat(regs.rw_time_set_lo, regs.wo_time_set_hi.data)),
            commands.start.valid.eq(regs.wo_command.valid), commands.start.payload.eq(regs.wo_command.data),
            regs.wo_command.ready.eq(commands.start.ready), regs.ro_command_status.eq(Cat(commands.error, C(0, 23), commands.busy)),
            half.doorbells.valid.eq(regs.wo_rq_doorbell.valid), half.doorbells.payload.eq(regs.wo_rq_doorbell.data),
            regs.wo_rq_doorbell.ready.eq(half.doorbells.ready),
            send_doorbells.valid.eq(regs.wo_sq_doorbell.valid), send_doorbells.payload.eq(regs.wo_sq_doorbell.data),
            regs.wo_sq_doorbell.ready.eq(send_doorbells.ready),
            writer.doorbell.valid.eq(regs.wo_cq_doorbell.valid), regs.wo_cq_doorbell.ready.eq(writer.doorbell.ready),
            writer.doorbell.payload.consumer.eq(regs.wo_cq_doorbell.data[:16]),
            writer.doorbell.payload.cq.eq(regs.wo_cq_doorbell.data[16:31]),
            writer.doorbell.payload.arm.eq(regs.wo_cq_doorbell.data[31]),
        ]
        m.d.comb += [getattr(commands, f"arg{i}").eq(getattr(regs, f"rw_arg{i}")) for i in range(NUM_ARGS)]
        wiring.connect(m, commands.records, half.commands)
        wiring.connect(m, commands.context_set, half.context_set)
        wiring.connect(m, commands.peer_set, half.peer_set)
        wiring.connect(m, commands.cq_set, writer.cq_set)
        if cfg.arrival_map:
            wiring.connect(m, commands.map_set, half.map_set)
        m.d.comb += [
            half.region_set.eq(commands.region_set), commands.fence_done.eq(half.command_done if cfg.rc else writer.fence_done),
            *([half.fence_done.eq(writer.fence_done)] if cfg.rc else []),
            half.queue.invalidate.eq(commands.invalidate), half.queue.invalidate_qp.eq(commands.invalidate_qp),
            commands.invalidate_done.eq(half.queue.invalidate_done),
        ]

        # interrupts, state and counters
        m.d.comb += [
            interrupts.raised.eq(writer.irq_raise), self.irq.eq(interrupts.pending), regs.ro_irq_status.eq(interrupts.pending),
            interrupts.clear_en.eq(regs.wo_irq_clear.valid), interrupts.clear.eq(regs.wo_irq_clear.data),
            regs.wo_irq_clear.ready.eq(1),
        ]
        # three registers deep: a word for the host, not for the datapath
        idle = Signal(3 + len(half.idle) + len(transmit.idle))
        clearing = Signal(4 + len(half.clearing))
        at_rest = Signal()
        m.d.sync += [
            idle.eq(Cat(ingress.idle, half.idle, merge.idle, writer.idle, transmit.idle)),
            clearing.eq(Cat(half.clearing, counters.clearing, writer.clearing, commands.clearing, transmit.clearing)),
            at_rest.eq(idle.all() & ~clearing.any()), regs.ro_status.eq(at_rest),
        ]
        index = Signal(range(NUM_COUNTERS))
        with m.Switch(verdicts.verdict):
            with m.Case(Verdict.DROPPED):
                m.d.comb += index.eq(verdicts.reason)
            with m.Case(Verdict.CONSUMED):
                m.d.comb += index.eq(COUNTERS["frames_consumed"])
            with m.Case(Verdict.PASSED):
                m.d.comb += index.eq(COUNTERS["frames_passed"])
        placed = verdicts.is_frame & (verdicts.verdict == Verdict.PLACED)
        m.d.comb += [
            counters.verdict.valid.eq(verdicts.is_frame), counters.verdict.index.eq(index),
            counters.placed_bytes.valid.eq(placed), counters.placed_bytes.bytes.eq(verdicts.len),
            counters.event_cnp_received.eq(verdicts.cnp), counters.event_cnp_due.eq(verdicts.cnp_due),
            *(getattr(counters, f"event_{name}").eq(event) for name, event in half.events.items()),
            counters.event_pass_overflow.eq(writer.pass_overflow), counters.event_completions.eq(writer.completed),
            counters.event_cq_overrun.eq(writer.cq_overrun), counters.event_log_overrun.eq(writer.log_overrun), counters.event_write_errors.eq(writer.write_error),
            counters.event_fetch_errors.eq(half.fetch_error), counters.event_drop_overflow.eq(ingress.overflow),
            *(getattr(counters, f"event_{counter}").eq(getattr(transmit, f"event_{event}")) for counter, event in (
                ("frames_sent", "frame_sent"), ("host_frames_sent", "host_frame_sent"), ("cnp_sent", "cnp_sent"),
                ("send_errors", "send_error"), ("wqe_errors", "wqe_error"), ("reads_served", "read_served"),
                ("marks_lost", "mark_lost"), *((("acks_sent", "ack"), ("naks_sent", "nak")) if cfg.rc else (("sends_expired", "send_expired"),)))),
            counters.sent_bytes.valid.eq(transmit.sent_bytes.valid), counters.sent_bytes.bytes.eq(transmit.sent_bytes.bytes),
            regs.counter_data.eq(counters.read.data), counters.read.addr.eq(regs.counter_addr),
        ]
        if cfg.table_protection != "none":
            m.d.comb += [getattr(counters, f"event_{name}").eq(Cat(getattr(part, name) for part in (*half.alarmed, writer, transmit)).any())
                         for name in alarm_members(cfg)]
        if cfg.trace:
            trace = self.trace
            m.d.comb += [
                trace.valid.eq(verdicts.is_frame), trace.verdict.eq(verdicts.verdict), trace.reason.eq(verdicts.reason),
                trace.qpn.eq(verdicts.qpn), trace.len.eq(verdicts.len), trace.kind.eq(Cat(verdicts.cnp, verdicts.read)),
                trace.overflow.eq(ingress.overflow),
            ]
        return m

    def _connect_reliability(self, m, half, transmit, commands):
        """What only a reliable transport needs between its halves: acknowledgements, progress, retransmission."""
        half.merge_commands(m, commands.send_events)
        wiring.connect(m, half.send_commands, transmit.commands)
        wiring.connect(m, commands.rules_set, half.rules_set)
        wiring.connect(m, half.progress, transmit.progress)
        wiring.connect(m, half.acks, transmit.acks)
        wiring.connect(m, transmit.outstanding, half.outstanding)
        wiring.connect(m, transmit.answered, half.answered)
        wiring.connect(m, half.send_doorbells, transmit.doorbells)
        m.d.comb += [half.failed.valid.eq(transmit.failed.valid), half.failed.payload.eq(transmit.failed.payload)]    # `failed` doesn't wait
