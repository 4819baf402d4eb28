"""Reads lines of receive WQEs from host memory: requests in, WQEs and verdicts out, with a watchdog on every read."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..axi.signatures import AxiReadSignature
from ..config import LINE_WQES, WQE_BYTES

__all__ = ["LineFetch", "WQE_BITS", "wqe_parts"]

WQE_BITS = 161          #: of a receive WQE that carry fields
LINE_BITS = 8 * LINE_WQES * WQE_BYTES
TIME_BITS = 33          #: one more than `dma_timeout`, so that an overdue read stays so until the watchdog comes by


def wqe_parts(data_width):
    """The pieces in which a WQE's fields are written, as slices of its bits: what one beat has of them."""
    return [slice(at, min(at + data_width, WQE_BITS)) for at in range(0, WQE_BITS, data_width)]


class LineFetch(wiring.Component):
    """Up to `cfg.reads_outstanding` (R) reads of one 128-byte line each. A read has a slot, and the slot's number is its
    AXI ID (0 .. R - 1), so answers may come in any order, those of different reads beat by beat.

    Request: `request` for one cycle, at most once a cycle and only while `full` is low, with the line's number in the
    rings (`request_where`, counted from `rq_base` in lines), its place in the cache (`request_line`) and a mark that comes
    back with the verdict (`request_mark`).

    Answer: WQEs leave through `write_data` to `write_addr` (cache line * 4 + place in the line), `write` has a bit for each
    of `wqe_parts`. One write a cycle, which also is the pace at which beats are taken (a beat of 512 bits takes two cycles).
    Every read ends in exactly one `verdict`, for `verdict_line` with `verdict_mark`, a cycle after its last write.
    `verdict_bad`: RRESP was not OKAY on some beat, RLAST came early or late, or no complete answer came within
    `dma_timeout` cycles (0 is as 1) of the request. That is noticed R + 2 cycles later at most, whatever else goes on.

    A read that timed out keeps its slot and its ID until its answer has come (up to RLAST) and been swallowed; a read that
    is never answered keeps them until reset. Beats whose ID belongs to no read that AR took in an earlier cycle are
    swallowed.

    `full`: all slots are taken. `dead`: all of them by reads that timed out. `crowded`: more than three quarters are taken
    (these two a cycle or two late). `taken` slots are in use.

    After a reset nothing is known of reads from before it: the host side's AXI has to be reset with the card. For R cycles
    no beat is taken; slots become free one a cycle. AR follows a request by one cycle when the channel is free, in order
    of request. Bursts are aligned and never cross 4 KiB.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self.where_bits = cfg.ring_bits + ceil_log2(cfg.rq_entries // LINE_WQES)
        line, slots = range(cfg.rq_cache_lines), cfg.reads_outstanding
        super().__init__({
            "axi": Out(AxiReadSignature(cfg.data_width)),
            "rq_base": In(64), "dma_timeout": In(32),
            "request": In(1), "request_where": In(self.where_bits), "request_line": In(line), "request_mark": In(1),
            "full": Out(1), "dead": Out(1), "crowded": Out(1), "taken": Out(range(slots + 1), init=slots),
            "write": Out(len(wqe_parts(cfg.data_width))), "write_addr": Out(range(LINE_WQES * cfg.rq_cache_lines)),
            "write_data": Out(min(cfg.data_width, WQE_BITS)),
            "verdict": Out(1), "verdict_bad": Out(1), "verdict_line": Out(line), "verdict_mark": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        axi, slots = self.axi, self.cfg.reads_outstanding
        bits = ceil_log2(slots)

        def memory(name, width):
            m.submodules[name] = ram = Memory(shape=width, depth=slots, init=[], attrs={"ram_style": "distributed"})
            return ram, ram.write_port()

        def read(ram, at):
            port = ram.read_port(domain="comb")
            m.d.comb += port.addr.eq(at[:bits])
            return port.data

        def write(port, en, at, data):
            m.d.comb += [port.en.eq(en), port.addr.eq(at), port.data.eq(data)]

        # A ring of slots: free ones come in at `returned` and leave at `given`; from `sent` to there they wait for AR. A slot
        # comes back after AR has taken its read, so what waits is never written over. After reset all slots come in.
        filled = Signal()
        given, sent, returned = (Signal(bits + 1, name=n) for n in ("given", "sent", "returned"))
        ended = Signal()                                # the answer of the read in slot `answering` is over
        held_id = Signal(len(axi.rid))
        answering = held_id[:bits]
        back = Mux(filled, answering, returned[:bits])
        ring, ring_write = memory("ring", bits)
        write(ring_write, ended | ~filled, returned[:bits], back)
        slot = read(ring, given)
        m.d.sync += [
            given.eq(given + self.request), returned.eq(returned + (ended | ~filled)),
            filled.eq(filled | (returned == slots - 1)),
            self.taken.eq(self.taken + self.request - (ended | ~filled)),
        ]

        # What is known of the read in each slot. `pending`: it has no verdict yet. `open`: its answer isn't over.
        pending = Signal(slots)
        open_ = Signal(slots)
        waiting = Signal(range(slots + 1))              # bits set in `pending`
        m.d.sync += waiting.eq(waiting + self.request - self.verdict)
        m.d.comb += self.full.eq(self.taken[bits])
        m.d.sync += [self.dead.eq(self.full & (waiting == 0)), self.crowded.eq(self.taken >= slots - max(1, slots // 4))]

        where, where_write = memory("where", self.where_bits)       # by place in the ring, the others by slot
        lines, lines_write = memory("lines", len(self.request_line) + 1)
        times, times_write = memory("times", TIME_BITS)
        now = Signal(TIME_BITS)
        m.d.sync += now.eq(now + 1)
        write(where_write, self.request, given[:bits], self.request_where)
        write(lines_write, self.request, slot, Cat(self.request_line, self.request_mark))
        write(times_write, self.request, slot, now)

        # Requests to AR.
        m.d.comb += [axi.arlen.eq(LINE_BITS // self.cfg.data_width - 1), axi.arsize.eq(ceil_log2(self.cfg.beat_bytes)),
                     axi.arburst.eq(1)]
        with m.If(~axi.arvalid | axi.arready):
            go = Signal()
            m.d.comb += go.eq(sent != given)
            m.d.sync += [
                axi.arvalid.eq(go), sent.eq(sent + go), axi.arid.eq(read(ring, sent)),
                axi.araddr.eq(Cat(Const(0, 7), (self.rq_base[7:] + read(where, sent))[:57])),
            ]

        # The watchdog goes round the slots, one a cycle. What it finds is `overdue` two cycles later, and answers wait for that
        # cycle, so that one verdict a cycle will do.
        scan, aged, expired = (Signal(bits, name=n) for n in ("scan", "aged", "expired"))
        age = Signal(TIME_BITS)
        fresh = Signal()                                # the slot got a new read just when the time of its last one was read
        overdue = Signal()
        m.d.sync += [
            scan.eq(scan + 1),
            aged.eq(scan), age.eq(now - read(times, scan)), fresh.eq(self.request & (slot == scan)),
            expired.eq(aged),
            overdue.eq((age >= self.dma_timeout) & ~fresh & pending.bit_select(aged, 1)
                       & ~(ended & (answering == aged))),
        ]

        judged = Signal(bits)
        line = Signal.like(self.request_line)
        mark = Signal()
        m.d.comb += [judged.eq(Mux(overdue, expired, answering)), Cat(line, mark).eq(read(lines, judged))]

        # What is set here was clear, and never is the bit cleared in the same cycle.
        with m.If(self.request):
            m.d.sync += pending.bit_select(slot, 1).eq(1)
        with m.If(ended | overdue):
            m.d.sync += pending.bit_select(judged, 1).eq(0)
        with m.If(axi.arvalid & axi.arready):
            m.d.sync += open_.bit_select(axi.arid[:bits], 1).eq(1)
        with m.If(ended):
            m.d.sync += open_.bit_select(answering, 1).eq(0)

        # A beat, taken and looked at; it stays for as many cycles as it has WQEs, and for one in which `overdue` is high.
        width = self.cfg.data_width
        beats, units, parts = LINE_BITS // width, max(1, width // 256), max(1, 256 // width)
        hold = Signal(width, reset_less=True)
        held, held_last, held_error = Signal(), Signal(), Signal()
        step = Signal()
        unit = Signal(range(max(2, units)))
        unit_last = Signal()
        m.d.comb += [
            step.eq(held & ~overdue), unit_last.eq(unit == units - 1),
            axi.rready.eq(filled & (~held | (unit_last & ~overdue))),
        ]
        with m.If(axi.rready):
            m.d.sync += [held.eq(axi.rvalid), hold.eq(axi.rdata), held_id.eq(axi.rid), held_last.eq(axi.rlast),
                         held_error.eq(axi.rresp != 0)]

        # Whether it belongs to a read (`mine`), and to one without a verdict (`live`): looked up as it comes, with regard to
        # what this cycle's `ended` and `overdue` are about to change.
        mine, live, known = Signal(), Signal(), Signal()
        m.d.comb += known.eq(axi.rvalid & open_.bit_select(axi.rid[:bits], 1) & (axi.rid[bits:] == 0)
                             & ~(ended & (axi.rid == held_id)))
        with m.If(axi.rready):
            m.d.sync += [mine.eq(known), live.eq(known & pending.bit_select(axi.rid[:bits], 1)
                                                 & ~(overdue & (axi.rid[:bits] == expired)))]
        with m.Elif(overdue & (answering == expired)):
            m.d.sync += live.eq(0)
        with m.If(step):
            m.d.sync += unit.eq(Mux(unit_last, 0, unit + 1))

        # Where the read's answer is: beats so far, and whether something was wrong with one of them. Once it is wrong the
        # line is written on as if not (its verdict will be bad).
        over, last, bad = Signal(), Signal(), Signal()
        state, state_write = memory("state", ceil_log2(beats) + 1)
        so_far = read(state, answering)
        beat, wrong = so_far[:-1], so_far[-1]
        m.d.comb += [
            over.eq(step & unit_last & held_last),
            last.eq(beat == beats - 1 if beats > 1 else 1),
            bad.eq(wrong | held_error | (last != held_last)),
            ended.eq(over & mine),
        ]
        m.d.sync += [self.verdict.eq((over & live) | overdue), self.verdict_bad.eq(overdue | bad),
                     self.verdict_line.eq(line), self.verdict_mark.eq(mark)]
        write(state_write, ~filled | (step & unit_last & mine), back,
              Mux(~filled | held_last, 0, Cat((beat + 1)[:len(beat)], bad)))

        place = Cat(unit if units > 1 else (), beat)    # in the line, counted in what is written at a time
        m.d.comb += [
            self.write_addr.eq(Cat(place[ceil_log2(parts):], line)),
            self.write_data.eq(hold.word_select(unit, 256) if units > 1 else hold),
            self.write.eq((step & live) << place[:ceil_log2(parts)] if parts > 1 else step & live),
        ]
        return m
