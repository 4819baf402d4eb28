"""The receive half of transport rc: its stages behind the ingress, connected."""

from amaranth.hdl import Cat, Mux, Signal
from amaranth.lib import stream, wiring

from optinic.memory.regions import Regions
from optinic.queues.receive import ReceiveQueue, recv_wqe_layout
from optinic.stream.fifo import StreamFifo
from optinic.transport.rc.ack_board import AckBoard
from optinic.transport.rc.atomic import AtomicUnit
from optinic.transport.rc.commit import RcCommit
from optinic.transport.rc.order import RcOrder
from optinic.transport.rc.records import Place, Turn, work_layout
from optinic.transport.rc.resolve import RcResolve
from optinic.transport.xp.deadlines import DeadlineScanner
from optinic.tx.records import Event, command_layout, failed_layout

__all__ = ["ReceiveHalf"]

# Complaints of the send half that wait. One that finds no room is dropped: the request will be tried, and fail, again.
_FAILED_DEPTH = 64


class ReceiveHalf:
    """As xp's ReceiveHalf; beside what that has: `sq_doorbells` in, which go on as `send_doorbells`; the AtomicUnit's
    `atomic_read` and `atomic_write` (None without); to and from the send half also `progress`, `acks`, `outstanding`, `failed`,
    `answered`, and `send_commands`, see merge_commands; `fence_done` in, `command_done` out.
    """

    @staticmethod
    def tables(cfg):
        return [spec for stage in (RcOrder, ReceiveQueue, Regions, RcCommit, AckBoard,
                                   DeadlineScanner) for spec in stage.tables(cfg)]

    def __init__(self, m, cfg, regs, clock):
        m.submodules.deadlines = deadlines = DeadlineScanner(cfg)
        m.submodules.order = order = RcOrder(cfg)
        m.submodules.receive_queue = self.queue = receives = ReceiveQueue(cfg, work_layout(cfg))
        m.submodules.resolve = resolve = RcResolve(cfg, recv_wqe_layout())
        m.submodules.commit = self.verdicts = commit = RcCommit(cfg)
        m.submodules.ack_board = board = AckBoard(cfg)

        wiring.connect(m, deadlines.events, order.deadlines)
        work = order.work.payload
        receives.connect(m, regs, order.work, Cat(work.qp, work.place == Place.ANSWER), resolve, commit)
        m.d.comb += [
            commit.record.eq(resolve.record), commit.record_valid.eq(resolve.record_valid), commit.time.eq(clock.time),
            commit.log_en.eq(regs.rw_refusal_log[31]), commit.log_cq.eq(regs.rw_refusal_log), order.job_over.eq(commit.job_over),
            deadlines.set.eq(order.lane), deadlines.now.eq(clock.coarse), order.pkey.eq(regs.rw_pkey), order.now.eq(clock.ticks),
        ]
        wiring.connect(m, commit.puts, board.put)
        self.atomic_read = self.atomic_write = None
        if cfg.rc_atomics:
            m.submodules.atomic = atomic = AtomicUnit(cfg)
            wiring.connect(m, commit.request, atomic.request)
            wiring.connect(m, atomic.result, commit.result)
            m.d.comb += atomic.dma_timeout.eq(regs.rw_dma_timeout)
            self.atomic_read, self.atomic_write = atomic.read, atomic.write

        # what the send half could not send waits here; it stops sending for the QP only when that has been seen
        m.submodules.complaints = complaints = StreamFifo(failed_layout(cfg), _FAILED_DEPTH)
        wiring.connect(m, complaints.o, order.failed)
        self.failed = complaints.i

        # queues that keep the host's registers, and the send half, apart from the machines here
        m.submodules.bells, m.submodules.sq_bells = bells, sq_bells = StreamFifo(32, 2), StreamFifo(32, 2)
        wiring.connect(m, bells.o, order.doorbells)
        self.send_doorbells = stream.Signature(32).create(path=("send_doorbells",))
        self._fork(m, sq_bells.o, order.sq_doorbells, self.send_doorbells)
        m.submodules.progress = progress = StreamFifo(commit.progress.payload.shape(), 2)
        wiring.connect(m, commit.progress, progress.i)
        m.submodules.commands_queue = self._to_send = to_send = StreamFifo(command_layout(cfg), 2)
        self.send_commands = to_send.o
        self.frames, self.commands = order.frames, order.commands
        self.doorbells, self.sq_doorbells = bells.i, sq_bells.i
        self.context_set, self.peer_set, self.rules_set = order.context_set, order.peer_set, order.rules_set
        self.region_set = resolve.region_set
        self.map_set = None
        self.jobs, self.axi, self.fetch_error = commit.jobs, receives.axi, receives.fetch_error
        self.query, self.answer, self.reads = resolve.query, resolve.answer, commit.answers
        self.progress, self.outstanding = progress.o, order.outstanding
        self._turns = commit.turns
        self.acks, self.answered = board.acks, board.answered
        self.fence_done, self.command_done = commit.fence_done, commit.command_done
        self.aside_qp, self.aside, self.aside_busy = order.aside_qp, order.aside, order.aside_busy
        self.idle = Cat(order.idle, receives.idle, resolve.idle, commit.idle, board.idle, complaints.level == 0,
                        bells.level == 0, sq_bells.level == 0, to_send.level == 0, progress.level == 0,
                        atomic.idle if cfg.rc_atomics else 1)
        self.clearing = Cat(order.clearing, resolve.clearing, commit.clearing, board.clearing, deadlines.clearing)
        self.alarmed = (order, resolve)
        self.verdict_qp = commit.qp
        self.events = {"go_backs": order.event_back, "ack_timeouts": order.event_timeout, "rnr_waits": order.event_rnr,
                       "duplicates": order.event_duplicate}

    @staticmethod
    def _fork(m, source, *takers):
        """What `source` offers goes to each of `takers`, and is done when all have it."""
        taken = Signal(len(takers))
        m.d.comb += [
            source.ready.eq(Cat(done | taker.ready for done, taker in zip(taken, takers)).all()),
            *(taker.valid.eq(source.valid & ~done) for done, taker in zip(taken, takers)),
            *(taker.payload.eq(source.payload) for taker in takers),
        ]
        m.d.sync += taken.eq(Mux(source.valid & ~source.ready, taken | Cat(taker.ready for taker in takers), 0))

    def merge_commands(self, m, driver):
        """Commands of the `driver` and turns of the retransmission, one after the other, to the send half (`send_commands`): a
        turn goes first, as it may be what the command relies on."""
        turns, out = self._turns, self._to_send.i
        t, p = turns.payload, out.payload
        with m.If(turns.valid):
            m.d.comb += [p.kind.eq(Mux(t.turn == Turn.HALT, Event.HALT, Event.GOBACK)), p.qp.eq(t.qp), p.index.eq(t.index),
                         p.offset.eq(t.offset), p.psn.eq(t.psn), out.valid.eq(1), turns.ready.eq(out.ready)]
        with m.Else():
            m.d.comb += [p.eq(driver.payload), out.valid.eq(driver.valid), driver.ready.eq(out.ready)]
