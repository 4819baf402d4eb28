"""Which cache line holds a receive WQE, and what to do when none does: a three-stage probe of the tags."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..config import LINE_WQES

__all__ = ["LineCache", "LIFE", "LINE_NO_BITS", "RECORD_BITS", "judged_layout", "tag_layout", "use_layout"]

LINE_NO_BITS = 30       #: a line's number in the 32-bit message sequence
RECORD_BITS = 16        #: of the sequence numbers of records; far more than can be under way
LIFE = 7                #: walks of other QPs that a line survives after its last lookup


def tag_layout(cfg):
    """`have`: WQEs of the line that were posted when it was read, less one. `mark`: of that read, other than the one before."""
    return StructLayout({"valid": 1, "qp": cfg.ring_bits, "line": LINE_NO_BITS, "have": 2, "mark": 1})


def judged_layout():
    """`mark` of the line's last read that has ended, and whether it was `bad`. A line is in flight while its tag has another
    mark: so requests write one memory and verdicts another, and the verdicts may come in any order."""
    return StructLayout({"bad": 1, "mark": 1})


def use_layout():
    """`record`: sequence number of the last record that uses the line. `life`: see LIFE."""
    return StructLayout({"record": RECORD_BITS, "life": range(LIFE + 1)})


class LineCache(wiring.Component):
    """Tags of `cfg.rq_cache_lines` direct-mapped lines; one probe a cycle, decided two cycles after it came, never stalled.

    A probe is one of `lookup`, `walk` (prefetch) and `sweep` (drop `set` if it belongs to `qp`, or whatever it holds with
    `sweep_all`), with `qp`, the line number `line`, the place `slot` in the line, `posted` and, for a lookup, `need`.

    Decisions, for the probe of two cycles ago: a lookup either commits (`commit` with `commit_*`: line and the mark of its
    read, or failed) and then, with `touch`, is the last user of its line, or it is refused (`rewind`), and with it every younger
    lookup in the pipeline; the caller then presents them again. Refused is a miss whose line is in flight, used by one of
    the `record_count` records from `record_oldest` on, or has just been given away, and a miss without a free read slot.
    A walk that can't be served is dropped. `request` asks for a read (see LineFetch) in the cycle of the decision.

    A line has one read in flight at most. `judged` of line `judged_at`, a cycle later, says how far its reads are: the one
    that a record waits for is over when the marks are equal (at the latest two cycles after its verdict), and as long as
    the line is in use there is no other.

    The line of a probe is ``line xor mix(qp)``, so that neighbouring lines of a QP never collide and QPs lie apart.
    A dropped line stays known as in flight. A record's number left in a line 2^16 records ago can look current; that delays
    a probe until the number is past, no more. `sweep_all` sets it to the last one before those after reset, and has no
    line in flight.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self.set_bits = ceil_log2(cfg.rq_cache_lines)
        place = range(cfg.rq_cache_lines)
        ring_lines = cfg.rq_entries // LINE_WQES
        super().__init__({
            "lookup": In(1), "walk": In(1), "sweep": In(1), "need": In(1),
            "qp": In(cfg.ring_bits), "line": In(LINE_NO_BITS), "slot": In(2), "posted": In(16),
            "set": In(place), "sweep_all": In(1), "busy": Out(1), "lookups": Out(1),
            "record_next": In(RECORD_BITS), "record_oldest": In(RECORD_BITS), "record_count": In(7),
            "full": In(1), "dead": In(1), "crowded": In(1),
            "verdict": In(1), "verdict_bad": In(1), "verdict_line": In(place), "verdict_mark": In(1),
            "judged_at": In(place), "judged": Out(judged_layout()),
            "commit": Out(1), "rewind": Out(1), "touch": Out(1),
            "commit_need": Out(1), "commit_failed": Out(1), "commit_line": Out(place),
            "commit_slot": Out(2), "commit_mark": Out(1),
            "commit_qp": Out(cfg.ring_bits), "commit_number": Out(LINE_NO_BITS), "commit_posted": Out(16),
            "request": Out(1), "request_where": Out(cfg.ring_bits + ceil_log2(ring_lines)), "request_line": Out(place),
            "request_mark": Out(1),
        })

    def mix(self, qp):
        """Bits of `qp` that select a line: reversed, so that the low ones spread, and the rest folded in."""
        n = self.set_bits
        bits = [0] * n
        for i in range(len(qp)):
            at = n - 1 - i if i < n else (i - n) % n
            bits[at] = bits[at] ^ qp[i]
        return Cat(bits)

    def _covered(self, slot, have):
        """Whether place `slot` had been posted when its line was read."""
        return slot <= have

    def _in_use(self, record):
        """Whether the last record that used a line is still under way."""
        return (record - self.record_oldest)[:RECORD_BITS] < self.record_count

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        tag_l, use_l = tag_layout(cfg), use_layout()

        def memory(name, shape):
            small = {"ram_style": "distributed"} if cfg.rq_cache_lines <= 512 else {}
            ram = Memory(shape=shape, depth=cfg.rq_cache_lines, init=[], attrs=small)
            m.submodules[name] = ram
            return ram, ram.write_port()
        tags, tag_write = memory("tags", tag_l)
        uses, use_write = memory("uses", use_l)
        verdicts, verdict_write = memory("verdicts", judged_layout())
        leaving = verdicts.read_port()
        m.d.comb += [
            verdict_write.en.eq(self.verdict), verdict_write.addr.eq(self.verdict_line),
            verdict_write.data.bad.eq(self.verdict_bad), verdict_write.data.mark.eq(self.verdict_mark),
            leaving.addr.eq(self.judged_at), self.judged.eq(leaving.data),
        ]

        item = StructLayout({
            "lookup": 1, "walk": 1, "sweep": 1, "need": 1, "stale": 1, "used": 1, "set": self.set_bits,
            "qp": cfg.ring_bits, "line": LINE_NO_BITS, "slot": 2, "posted": 16, "left": 16})
        a, b, c = (Signal(item, name=n) for n in "abc")
        carried = ("walk", "sweep", "need", "set", "qp", "line", "slot", "posted")

        # A decision changes what younger probes of the same line have read or are reading in this cycle.
        changed = Signal()
        touched = Signal()

        def advance(old, new):
            same = old.set == c.set
            m.d.sync += [new[name].eq(old[name]) for name in carried]
            m.d.sync += [
                new.lookup.eq(old.lookup & ~self.rewind),
                new.stale.eq(old.stale | (same & changed)),
                new.used.eq(old.used | (same & touched)),
            ]

        # a: address the memories.
        m.d.comb += [a[name].eq(getattr(self, name)) for name in ("lookup", *carried) if name != "set"]
        m.d.comb += a.set.eq(Mux(self.sweep, self.set, self.line[:self.set_bits] ^ self.mix(self.qp)))
        advance(a, b)
        m.d.sync += b.left.eq(self.posted - Cat(0, 0, self.line)[:16])     # WQEs posted from the line's first on
        ports = tag_read, use_read, verdict_read = [ram.read_port() for ram in (tags, uses, verdicts)]
        m.d.comb += [port.addr.eq(a.set) for port in ports]

        # b: compare. As much as can be said without knowing what the probes just ahead decide.
        advance(b, c)
        tag, use = tag_read.data, use_read.data
        flying = Signal()
        failed = Signal()           # the line's read has ended badly
        have = Signal(2)
        m.d.comb += [
            flying.eq(tag.mark != verdict_read.data.mark),
            failed.eq(~flying & verdict_read.data.bad),
            have.eq(Mux(b.left[2:].any(), 3, (b.left[:2] - 1)[:2])),
        ]
        found = Signal(StructLayout({
            "same": 1,          # the line is there or coming, or failed
            "serves": 1,        # not failed, and the WQE had been posted when it was read
            "locked": 1,        # the line is in flight or in use
            "posted": 1,        # some WQE is posted (what is left is below 0 when none is)
            "lacks": 1,         # failed, or lacks some WQEs and now there are four
            "evict": 1,         # a walk may: nothing there, or of the same QP, or not used for long
            "own": 1,           # there is a line of this QP
            "flying": 1, "have": 2, "mark": 1, "record": RECORD_BITS, "life": range(LIFE + 1)}))
        own = tag.valid & (tag.qp[:cfg.qp_bits] == b.qp[:cfg.qp_bits])
        if cfg.rc:      # a sweep is for both rings of the QP
            own &= (tag.qp[-1] == b.qp[-1]) | b.sweep
        m.d.sync += [
            found.same.eq(own & (tag.line == b.line)),
            found.serves.eq(~failed & self._covered(b.slot, tag.have)),
            found.locked.eq(flying | self._in_use(use.record)),
            found.posted.eq(b.left.any() & ~(b.left[15] & b.left[14])),
            found.lacks.eq(failed | (b.left[2:].any() & (tag.have != 3))),
            found.evict.eq(~tag.valid | own | (use.life == 0)),
            found.own.eq(own),
            found.flying.eq(flying), found.have.eq(have),
            found.mark.eq(tag.mark), found.record.eq(use.record), found.life.eq(use.life),
        ]

        # c: decide.
        hit = Signal()
        free = Signal()
        fill = Signal()
        wanted = Signal()           # a walk should fetch the line
        take = Signal()
        age = Signal()
        lookup = Signal()
        clear = Signal()
        m.d.comb += [
            lookup.eq(c.lookup & c.need),
            hit.eq(found.same & found.serves & ~c.stale),
            wanted.eq(c.walk & found.posted & (~found.same | found.lacks)),
            free.eq(~found.locked & ~c.used & ~c.stale),
            fill.eq(lookup & ~hit & free & ~self.full),
            take.eq(wanted & free & found.evict & ~self.crowded),
            age.eq(wanted & free & ~found.evict),
            clear.eq(c.sweep & self.sweep_all),

            self.request.eq(fill | take),
            self.commit.eq(c.lookup & (~c.need | hit | (free & ~self.full) | self.dead)),
            self.rewind.eq(lookup & ~hit & ~(free & ~self.full) & ~self.dead),
            self.touch.eq(lookup & (hit | (free & ~self.full))),
            changed.eq(self.request),
            touched.eq(lookup),

            tag_write.addr.eq(c.set),
            tag_write.en.eq(self.request | (c.sweep & (self.sweep_all | found.own))),
            tag_write.data.valid.eq(~c.sweep),
            tag_write.data.qp.eq(c.qp), tag_write.data.line.eq(c.line), tag_write.data.have.eq(found.have),
            tag_write.data.mark.eq(found.mark ^ Mux(c.sweep, found.flying & self.sweep_all, 1)),

            use_write.addr.eq(c.set),
            use_write.en.eq(self.touch | take | age | clear),
            use_write.data.record.eq(Mux(c.lookup, self.record_next, found.record | clear.replicate(RECORD_BITS))),
            use_write.data.life.eq(Mux(age, found.life - 1, LIFE)),

            self.commit_need.eq(c.need), self.commit_failed.eq(~hit & ~fill), self.commit_line.eq(c.set),
            self.commit_slot.eq(c.slot), self.commit_mark.eq(found.mark ^ fill),
            self.commit_qp.eq(c.qp), self.commit_number.eq(c.line), self.commit_posted.eq(c.posted),
            self.request_line.eq(c.set), self.request_mark.eq(~found.mark),
            self.request_where.eq(Cat(c.line[:len(self.request_where) - len(c.qp)], c.qp)),
            self.lookups.eq(a.lookup | b.lookup | c.lookup),
            self.busy.eq(self.lookups | a.walk | b.walk | c.walk | a.sweep | b.sweep | c.sweep),
        ]
        return m
