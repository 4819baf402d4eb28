"""Reads lines of receive WQEs from host memory: requests in, WQEs and verdicts out, with a watchdog on every read."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..axi.signatures import AxiReadSignature
from ..config import LINE_WQES, WQE_BYTES

__all__ = ["LineFetch", "SEQ_BITS", "WQE_BITS", "in_window"]

SEQ_BITS = 16           #: of the sequence numbers of reads and records; far more than of either can be under way
WQE_BITS = 161          #: of a receive WQE that carry fields
LINE_BITS = 8 * LINE_WQES * WQE_BYTES


def in_window(seq, base, count):
    """Whether `seq` is one of the `count` sequence numbers from `base` on (modulo 2^SEQ_BITS)."""
    distance = (seq - base)[:SEQ_BITS]
    return distance < count


class LineFetch(wiring.Component):
    """Up to `cfg.reads_outstanding` (R) reads of one 128-byte line each, one AXI ID, answers in order.

    Request: `request` for one cycle, at most once a cycle and only while `full` is low, with the line's number in the
    rings (`request_where`, counted from `rq_base` in lines) and its place in the cache (`request_line`). The read gets the
    sequence number `next_seq` of that cycle.

    Answer: WQEs leave through `write` (`write_addr` = cache line * 4 + place in the line), one a cycle, which also is the
    pace at which beats are taken (a beat of 512 bits takes two cycles). Every read ends in one `verdict` for its
    `verdict_line`, in order of request; from the next cycle on `judged_seq` is one higher. `verdict_bad`: RRESP was not
    OKAY on some beat, RLAST came early or late, or no complete answer came within `dma_timeout` cycles of the request
    (noticed at most 4 cycles later; two reads that expire together are noticed 3 cycles apart; 0 fails every read).
    `waiting` reads have no verdict yet: those of `judged_seq` .. `next_seq` - 1.

    A read that timed out keeps its slot until its answer has come (up to RLAST) and been swallowed; RLAST ends the read,
    however many beats came before. `full`: all slots taken. `dead`: all of them by reads that timed out. `crowded`: more
    than three quarters are taken (both a cycle late). `taken` slots are in use. Beats that come while no slot is taken are swallowed.

    After a reset nothing is known of reads from before it: the host side's AXI has to be reset with the card.
    AR follows a request by one cycle when the channel is free. Bursts are aligned and never cross 4 KiB.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self.where_bits = cfg.qp_bits + ceil_log2(cfg.rq_entries // LINE_WQES)
        line, slots = range(cfg.rq_cache_lines), cfg.reads_outstanding
        super().__init__({
            "axi": Out(AxiReadSignature(cfg.data_width)),
            "rq_base": In(64), "dma_timeout": In(32),
            "request": In(1), "request_where": In(self.where_bits), "request_line": In(line),
            "next_seq": Out(SEQ_BITS), "judged_seq": Out(SEQ_BITS), "waiting": Out(range(slots + 1)),
            "full": Out(1), "dead": Out(1), "crowded": Out(1), "taken": Out(range(slots + 1)),
            "write": Out(1), "write_addr": Out(range(LINE_WQES * cfg.rq_cache_lines)), "write_data": Out(WQE_BITS),
            "verdict": Out(1), "verdict_bad": Out(1), "verdict_line": Out(line),
        })

    def elaborate(self, platform):
        m = Module()
        slots = self.cfg.reads_outstanding
        slot_bits = ceil_log2(slots)
        # next to go to AR; oldest whose answer is not over
        sent_seq = Signal(SEQ_BITS)
        tail_seq = Signal(SEQ_BITS)
        ended = Signal()                                            # the answer of the read at tail_seq is over

        m.d.sync += [
            self.next_seq.eq(self.next_seq + self.request),
            self.judged_seq.eq(self.judged_seq + self.verdict),
            tail_seq.eq(tail_seq + ended),
            self.waiting.eq(self.waiting + self.request - self.verdict),
            self.taken.eq(self.taken + self.request - ended),
        ]
        m.d.comb += self.full.eq(self.taken[slot_bits])
        m.d.sync += [
            self.dead.eq(self.full & (self.waiting == 0)),
            self.crowded.eq(self.taken >= slots - max(1, slots // 4)),
        ]

        def slot_memory(name, width, data):
            """One word a slot, written by the request; the returned value is that of slot `at`."""
            m.submodules[name] = ram = Memory(shape=width, depth=slots, init=[], attrs={"ram_style": "distributed"})
            write = ram.write_port()
            m.d.comb += [write.en.eq(self.request), write.addr.eq(self.next_seq[:slot_bits]), write.data.eq(data)]

            def read(at):
                port = ram.read_port(domain="comb")
                m.d.comb += port.addr.eq(at[:slot_bits])
                return port.data
            return read

        now = Signal(32)
        m.d.sync += now.eq(now + 1)
        where = slot_memory("where", self.where_bits, self.request_where)(sent_seq)
        line = slot_memory("lines", len(self.request_line), self.request_line)(self.judged_seq)
        asked = slot_memory("times", 32, now)(self.judged_seq)

        self._ask(m, slot_bits, sent_seq, where)
        overdue = self._watch(m, now, asked)
        self._answer(m, slot_bits, tail_seq, line, ended, overdue)
        return m

    def _ask(self, m, slot_bits, sent_seq, where):
        axi, beat_bytes = self.axi, self.cfg.beat_bytes
        m.d.comb += [axi.arlen.eq(LINE_BITS // self.cfg.data_width - 1), axi.arsize.eq(ceil_log2(beat_bytes)),
                     axi.arburst.eq(1)]
        with m.If(~axi.arvalid | axi.arready):
            go = Signal()
            m.d.comb += go.eq(sent_seq[:slot_bits + 1] != self.next_seq[:slot_bits + 1])
            m.d.sync += [axi.arvalid.eq(go), sent_seq.eq(sent_seq + go)]
            m.d.sync += axi.araddr.eq(Cat(Const(0, 7), (self.rq_base[7:] + where)[:57]))

    def _watch(self, m, now, asked):
        """High when the oldest read without a verdict is overdue. Two registers deep, hence `settle` after a change."""
        age = Signal(32)
        late = Signal()
        settle = Signal(2)
        m.d.sync += [age.eq(now - asked), late.eq(age >= self.dma_timeout)]
        with m.If((self.waiting == 0) | self.verdict):
            m.d.sync += settle.eq(0)
        with m.Elif(settle != 2):
            m.d.sync += settle.eq(settle + 1)
        return (settle == 2) & late

    def _answer(self, m, slot_bits, tail_seq, line, ended, overdue):
        width = self.cfg.data_width
        units, gather = max(1, width // 256), max(1, 256 // width)      # WQEs a beat; beats a WQE
        axi = self.axi

        # Take beats until `hold` has at least one whole WQE, or the answer is over.
        hold = Signal(max(width, 256), reset_less=True)
        held = Signal()
        held_last = Signal()
        held_whole = Signal()
        held_error = Signal()
        beat = Signal(range(max(2, gather)))
        first = Signal(init=1)
        unit = Signal(range(max(2, units)))
        unit_last = Signal()
        take = Signal()
        m.d.comb += [
            unit_last.eq(unit == units - 1),
            axi.rready.eq(~held | unit_last),
            take.eq(axi.rvalid & axi.rready),
        ]
        with m.If(axi.rready):
            whole = beat == gather - 1
            m.d.sync += held.eq(take & (whole | axi.rlast))
        with m.If(take):
            m.d.sync += [
                hold.eq(Cat(hold, axi.rdata)[-len(hold):]),
                held_last.eq(axi.rlast), held_whole.eq(whole),
                held_error.eq((held_error & ~first) | (axi.rresp != 0)),
                first.eq(axi.rlast),
                beat.eq(beat + 1),
            ]
            with m.If(axi.rlast | whole):
                m.d.sync += beat.eq(0)

        # Write one WQE a cycle. `place` is 4 once the line is complete; more than that is not written.
        place = Signal(range(LINE_WQES + 1))
        over = Signal()
        live = Signal()
        m.d.comb += [
            over.eq(held & held_last & unit_last),
            live.eq((tail_seq[:slot_bits + 1] == self.judged_seq[:slot_bits + 1]) & (self.waiting != 0)),
            ended.eq(over & (self.taken != 0)),
            self.write.eq(held & held_whole & live & (place != LINE_WQES)),
            self.write_addr.eq(Cat(place[:2], line)),
            self.write_data.eq(hold.word_select(unit, 256)[:WQE_BITS]),
        ]
        with m.If(held):
            m.d.sync += unit.eq(unit + 1)
            with m.If(unit_last):
                m.d.sync += unit.eq(0)
            with m.If(held_whole & (place != LINE_WQES)):
                m.d.sync += place.eq(place + 1)
            with m.If(held_last & unit_last):
                m.d.sync += place.eq(0)

        answered = Signal()
        m.d.comb += [
            answered.eq(over & live),
            self.verdict.eq(answered | overdue),
            self.verdict_line.eq(line),
            self.verdict_bad.eq(~answered | held_error | ~held_whole | (place != LINE_WQES - 1)),
        ]
