"""Receive queues: the WQE of the message that a packet belongs to, from a small cache of lines fetched from host memory."""

from amaranth.hdl import Cat, Module, Mux, Shape, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2

from ..abi.structs import RECV_WQE
from ..axi.signatures import AxiReadSignature
from ..config import LINE_WQES
from ..memory.table import TableSpec
from .line_cache import LINE_NO_BITS, RECORD_BITS, LineCache, judged_layout, tag_layout, use_layout
from .line_fetch import WQE_BITS, LineFetch, wqe_parts

__all__ = ["ReceiveQueue", "recv_wqe_layout"]

def recv_wqe_layout():
    """The fields of a receive WQE (abi/structs.py), without the reserved bits behind them."""
    return StructLayout({f.name: f.width for f in RECV_WQE.fields})


assert recv_wqe_layout().size == WQE_BITS


class ReceiveQueue(wiring.Component):
    """Looks up receive WQEs: one lookup a cycle, results strictly in order, misses overlapped.

    With transport rc a QP has two rings, the second one at ring number `qp` + 2^qp_bits; an invalidation is of both.

    Lookup (`lookup`): for `need`, the WQE of message `index` of queue pair `qp`, at ring slot `index` mod `rq_entries`,
    i.e. bus address ``rq_base + (qp * rq_entries + slot) * 32``. `posted` is the count of receives posted so far, modulo
    2^16; `index` (the whole 32-bit message sequence) must be one of them and at most `rq_entries` behind it. Without
    `need` the record only keeps its place in the order. `user` is carried along.

    Result: `result_valid` with `result_data` for one cycle each, no back-pressure: `wqe` (undefined without `need` or with
    `failed`), `failed` (the WQE could not be read) and `user`. A record leaves the queue (`leave`) only in a cycle in which
    `room` is high; its result appears two cycles after. So `leave` is the moment to take a credit, and up to two results
    still come after `room` fell. From acceptance to result: 8 cycles on a hit.

    Back-pressure: at most cfg.lookups_on_the_way lookups are, from acceptance to result; then `lookup.ready` falls until one leaves. It also is low for
    `rq_cache_lines` + a few cycles after reset; lookups already accepted wait during the sweep of an invalidation.

    Cache: `rq_cache_lines` direct-mapped lines of four WQEs, tagged with QP and line number in the 32-bit message sequence
    and the count of WQEs in it that were posted when the read was requested; a WQE beyond that count is a miss, so what was
    in the ring before it was posted is never used. Each record notes the mark of the read that it waits for, and a line the
    last record that uses it. Reads end in any order. A miss on a line whose read is in flight, or that waiting records use,
    stalls the lookups behind it until that is over; so does a miss while all `reads_outstanding` slots are taken. Other lookups go on behind a miss.

    Prefetch: each lookup asks for a walk over the next `rq_prefetch_lines` lines, as far as posted, in cycles without a
    lookup; of several asked for during a walk the newest is done, the others are forgotten. It takes a line only if that is
    not in use nor in flight, and leaves a quarter of the read slots to demand. A line of another QP survives 7 such
    attempts after its last lookup, so that many slow QPs don't displace each other. A line present with fewer WQEs than are
    posted now is read again only once all four are.

    Errors: a read that fails (see LineFetch: within `dma_timeout` + `reads_outstanding` + 2 cycles) pulses `fetch_error`; the
    lookups that wait for it get `failed` two cycles later, and the next lookup of the line reads it again. A read that timed
    out keeps its slot until its answer is over. While all slots are taken by such reads, misses get `failed` at once.

    Invalidation: a pulse on `invalidate` drops every line of `invalidate_qp`, also those in flight; `invalidate_done`
    pulses `rq_cache_lines` + a few cycles later. The caller sees to it that no lookup with `need` of that QP is under way
    from before the pulse until then, and that one invalidation has ended before the next.

    `idle`: no record, no read (nor one that timed out and may still be answered), no walk and no sweep is under way.
    """

    def __init__(self, cfg, user=500):
        self.cfg = cfg
        super().__init__({
            "lookup": In(stream.Signature(StructLayout({
                "need": 1, "qp": cfg.ring_bits, "index": 32, "posted": 16, "user": user}))),
            "room": In(1), "leave": Out(1),
            "result_valid": Out(1),
            "result_data": Out(StructLayout({"failed": 1, "wqe": recv_wqe_layout(), "user": user})),
            "axi": Out(AxiReadSignature(cfg.data_width)),
            "rq_base": In(64), "dma_timeout": In(32), "fetch_error": Out(1),
            "invalidate": In(1), "invalidate_qp": In(self.cfg.qp_bits), "invalidate_done": Out(1),
            "idle": Out(1),
        })
        self._user = Shape.cast(user).width
        self._row = ceil_log2(cfg.lookups_on_the_way)

    @staticmethod
    def tables(cfg):
        small = "distributed" if cfg.rq_cache_lines <= 512 else ""      # as the line cache asks for

        def spec(name, width, rows=1, **more):
            return TableSpec(f"recv_wqe_{name}", "ReceiveQueue", width, rows * cfg.rq_cache_lines, "line", "message", **more)
        return [spec("data", WQE_BITS, LINE_WQES), spec("tag", tag_layout(cfg).size, style=small),
                spec("use", use_layout().size, style=small), spec("judged", judged_layout().size, reads=2, style=small)]

    def connect(self, m, regs, work, ring, resolve, after):
        """Its place in a receive half: from the stream `work`, whose record says what is looked up in `ring`, to the stage
        `resolve`; `after`, the stage behind that, has `room` and hears of each `leave`."""
        query, asked, answer = self.lookup, work.payload, self.result_data
        m.d.comb += [
            query.payload.need.eq(asked.has_wqe), query.payload.qp.eq(ring), query.payload.index.eq(asked.index),
            query.payload.posted.eq(asked.posted), query.payload.user.eq(asked), query.valid.eq(work.valid), work.ready.eq(query.ready),
            self.room.eq(after.room & ~resolve.hold), after.leave.eq(self.leave),
            resolve.valid.eq(self.result_valid), resolve.work.eq(answer.user), resolve.wqe.eq(answer.wqe), resolve.failed.eq(answer.failed),
            self.rq_base.eq(Cat(regs.rw_rq_base_lo, regs.rw_rq_base_hi)), self.dma_timeout.eq(regs.rw_dma_timeout),
        ]

    def elaborate(self, platform):
        m = Module()
        m.submodules.fetch = fetch = LineFetch(self.cfg)
        m.submodules.cache = cache = LineCache(self.cfg)
        connect(m, flipped(self.axi), fetch.axi)
        m.d.comb += [
            fetch.rq_base.eq(self.rq_base), fetch.dma_timeout.eq(self.dma_timeout),
            self.fetch_error.eq(fetch.verdict & fetch.verdict_bad),
            *(getattr(cache, n).eq(getattr(fetch, n)) for n in (
                "full", "dead", "crowded", "verdict", "verdict_bad", "verdict_line", "verdict_mark")),
            *(getattr(fetch, n).eq(getattr(cache, n)) for n in ("request", "request_where", "request_line", "request_mark")),
        ]

        # Records, by sequence number: left <= committed <= probing <= accepted.
        accepted, probing, committed, left = (Signal(RECORD_BITS, name=n)
                                              for n in ("accepted", "probing", "committed", "left"))
        used = Signal(range(self.cfg.lookups_on_the_way + 1))
        held = Signal(range(self.cfg.lookups_on_the_way + 1))
        take = Signal()
        m.d.comb += [
            take.eq(self.lookup.valid & self.lookup.ready),
            cache.record_next.eq(committed), cache.record_oldest.eq(left), cache.record_count.eq(held),
        ]
        m.d.sync += [
            accepted.eq(accepted + take), committed.eq(committed + cache.commit), left.eq(left + self.leave),
            used.eq(used + take - self.leave), held.eq(held + cache.commit - self.leave),
        ]

        def record_memory(name, shape):
            ram = Memory(shape=shape, depth=self.cfg.lookups_on_the_way, init=[], attrs={"ram_style": "distributed"})
            m.submodules[name] = ram
            return ram, ram.write_port()

        sweeping, cleared, target = self._sweep(m, cache)
        m.d.comb += self.lookup.ready.eq(~used[-1] & cleared)

        key = StructLayout({"need": 1, "qp": self.cfg.ring_bits, "index": 32, "posted": 16})
        keys, key_write = record_memory("keys", key)
        m.d.comb += [key_write.en.eq(take), key_write.addr.eq(accepted[:self._row])]
        m.d.comb += [key_write.data[name].eq(self.lookup.payload[name]) for name in ("need", "qp", "index", "posted")]
        walking = self._probe(m, cache, keys.read_port(), sweeping, target, accepted, probing, committed)

        users, user_write = record_memory("users", self._user)
        m.d.comb += [user_write.en.eq(take), user_write.addr.eq(accepted[:self._row]),
                     user_write.data.eq(self.lookup.payload.as_value()[-self._user:])]
        ticket = StructLayout({"need": 1, "failed": 1, "line": len(cache.commit_line), "slot": 2, "mark": 1})
        tickets, ticket_write = record_memory("tickets", ticket)
        m.d.comb += [ticket_write.en.eq(cache.commit), ticket_write.addr.eq(committed[:self._row])]
        m.d.comb += [ticket_write.data[name].eq(getattr(cache, f"commit_{name}")) for name in ticket.members]
        self._leave(m, cache, fetch, tickets.read_port(domain="comb"), users.read_port(), committed, left)

        m.d.comb += self.idle.eq((used == 0) & (fetch.taken == 0) & ~walking & ~sweeping)
        return m

    def _sweep(self, m, cache):
        """Clears the whole cache after reset and drops a QP's lines on request, once no probe is in the pipeline."""
        sweeping = Signal(init=1)
        everything = Signal(init=1)
        asked = Signal()
        cleared = Signal()
        run = Signal()
        swept = Signal()
        line = Signal(range(self.cfg.rq_cache_lines))
        target = Signal(self.cfg.qp_bits)
        m.d.comb += [cache.sweep.eq(run), cache.set.eq(line), cache.sweep_all.eq(everything)]
        m.d.sync += self.invalidate_done.eq(0)
        with m.If(run):
            m.d.sync += line.eq(line + 1)
            with m.If(line == self.cfg.rq_cache_lines - 1):
                m.d.sync += [run.eq(0), swept.eq(1)]
        with m.Elif(sweeping & ~cache.busy):
            m.d.sync += [run.eq(~swept), swept.eq(0)]
            with m.If(swept):
                m.d.sync += [sweeping.eq(0), everything.eq(0), cleared.eq(1), asked.eq(0), self.invalidate_done.eq(asked)]
        with m.If(self.invalidate):
            m.d.sync += [sweeping.eq(1), asked.eq(1), target.eq(self.invalidate_qp)]
        return sweeping, cleared, target

    def _probe(self, m, cache, key_read, sweeping, target, accepted, probing, committed):
        """One probe a cycle: the next lookup, or else a step of the walk. Returns whether a walk is under way."""
        # A refused lookup is presented again on its own, so that the walk gets cycles while it waits.
        refused = Signal()
        ready = Signal()
        lookup = Signal()
        m.d.comb += [
            key_read.addr.eq(probing[:self._row]),
            ready.eq((probing[:7] != accepted[:7]) & ~sweeping & ~(refused & cache.lookups)),
            lookup.eq(ready & ~cache.rewind),
        ]
        m.d.sync += [cache.lookup.eq(lookup), probing.eq(probing + ready)]
        with m.If(cache.rewind):
            m.d.sync += [probing.eq(committed), refused.eq(1)]
        with m.Elif(cache.commit):
            m.d.sync += refused.eq(0)

        # `walk` is the running one, at its next line; `newest` the one to follow. A sweep ends both.
        layout = StructLayout({"qp": self.cfg.ring_bits, "line": LINE_NO_BITS, "posted": 16})
        walk, newest, step = (Signal(layout, name=n) for n in ("walk", "newest", "step"))
        steps = Signal(range(self.cfg.rq_prefetch_lines + 1))
        waiting = Signal()
        m.d.sync += [step.eq(walk), cache.walk.eq(0)]
        with m.If(sweeping):
            m.d.sync += [steps.eq(0), waiting.eq(0), step.qp.eq(target)]
        with m.Else():
            with m.If(steps == 0):
                m.d.sync += [walk.eq(newest), walk.line.eq(newest.line + 1), waiting.eq(0)]
                with m.If(waiting):
                    m.d.sync += steps.eq(self.cfg.rq_prefetch_lines)
            with m.Elif(~ready):
                m.d.sync += [cache.walk.eq(1), walk.line.eq(walk.line + 1), steps.eq(steps - 1)]
            with m.If(cache.touch):
                m.d.sync += waiting.eq(1)
        with m.If(cache.touch):
            m.d.sync += [newest.qp.eq(cache.commit_qp), newest.line.eq(cache.commit_number),
                         newest.posted.eq(cache.commit_posted)]

        with m.If(cache.lookup):
            m.d.comb += [cache.need.eq(key_read.data.need), cache.qp.eq(key_read.data.qp),
                         cache.line.eq(key_read.data.index[2:]), cache.slot.eq(key_read.data.index[:2]),
                         cache.posted.eq(key_read.data.posted)]
        with m.Else():
            m.d.comb += [cache.qp.eq(step.qp), cache.line.eq(step.line), cache.posted.eq(step.posted)]
        return waiting | (steps != 0) | cache.busy

    def _leave(self, m, cache, fetch, ticket_read, user_read, committed, left):
        """The oldest committed record leaves once its read has ended; its result follows after the two cycles of the RAM."""
        head = Signal(ticket_read.data.shape())
        present = Signal()
        turn = Signal()                         # the next record becomes head, or nothing is
        next_record = Signal(RECORD_BITS)       # left + present
        m.d.comb += [
            ticket_read.addr.eq(next_record[:self._row]),
            turn.eq(~present | self.leave),
            self.leave.eq(present & self.room & (head.failed | ~head.need | (cache.judged.mark == head.mark))),
            cache.judged_at.eq(Mux(turn, ticket_read.data.line, head.line)),
        ]
        with m.If(turn):
            load = next_record[:7] != committed[:7]
            m.d.sync += [head.eq(ticket_read.data), present.eq(load), next_record.eq(next_record + load)]

        # A memory for each part of a WQE, so that beats narrower than that are written as they come, whosever they are.
        data = Signal(WQE_BITS)
        for i, part in enumerate(wqe_parts(self.cfg.data_width)):
            width = part.stop - part.start
            m.submodules[f"data{i}"] = ram = Memory(shape=width, depth=LINE_WQES * self.cfg.rq_cache_lines, init=[])
            write, read = ram.write_port(), ram.read_port()
            m.d.comb += [
                write.en.eq(fetch.write[i]), write.addr.eq(fetch.write_addr), write.data.eq(fetch.write_data[:width]),
                read.addr.eq(Cat(head.slot, head.line)), data[part].eq(read.data),
            ]

        # The user part is read a cycle later than the WQE, just before its place can be taken again.
        leaving = Signal()
        failed = Signal()
        user_at = Signal(6)
        wqe = Signal(recv_wqe_layout(), reset_less=True)
        result_failed = Signal()
        m.d.sync += [
            leaving.eq(self.leave), failed.eq(head.need & (head.failed | cache.judged.bad)), user_at.eq(left[:self._row]),
            self.result_valid.eq(leaving), wqe.eq(data), result_failed.eq(failed),
        ]
        m.d.comb += [user_read.addr.eq(user_at),
                     self.result_data.as_value().eq(Cat(result_failed, wqe, user_read.data))]
