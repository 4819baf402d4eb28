"""The slots of the send side: which are free, the reads that fill them, the WQEs that they hold."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from optinic.axi.signatures import AxiReadSignature
from optinic.config import SEND_WQE_BYTES
from optinic.stream.fifo import StreamFifo
from optinic.stream.push import PushSignature
from optinic.tx.records import WQE_BITS, answer_wqe, job_layout, send_wqe_layout

__all__ = ["WqeFetch", "FIRST_ID", "answer_slots", "where_bits"]

FIRST_ID = 0xC0         #: AXI ID of slot 0


def where_bits(cfg):
    """Bits of a send WQE's number in the rings of all QPs, counted from SQ_BASE."""
    return cfg.qp_bits + ceil_log2(cfg.sq_entries)


def answer_slots(cfg):
    """Slots that READs of peers may take, and that sends leave free for them."""
    return cfg.tx_slots // 4


class WqeFetch(wiring.Component):
    """`cfg.tx_slots` slots of one send WQE each. A slot is free, or taken by `alloc`; then `fetch` reads a WQE into it from
    the rings, or `store` makes one of a peer's READ. `ready` and `failed` tell of the slot `ask` in the same cycle: that its
    WQE is there, and that it could not be read (RRESP not OKAY, RLAST early or late, or no complete answer within
    `dma_timeout` cycles, noticed at most 4 ``tx_slots`` cycles later); of a slot that was stored to, `failed` means nothing.
    `give_back` ends the use of a slot. One that is given back while its read is under way, or timed out, stays taken until
    the answer has come and been swallowed. So has a slot that never gets one: it is lost until a reset, and no other with it.

    `alloc` offers a free slot (one given back takes five cycles to get there); `free` counts them. `fetch`, `store` and
    `give_back` act two cycles later and can't be refused; `store` holds back read data for a cycle. `wqe` is what the slot
    `look` held a cycle ago, or zero if `blank` was high; of a READ's, what a job doesn't have (job_layout) is undefined.
    Every slot has an AXI ID of its own, so answers may come in any order. AR follows `fetch` by three cycles when it is free.
    After reset the slots are made free in ``tx_slots`` cycles.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        slot = range(cfg.tx_slots)
        super().__init__({
            "axi": Out(AxiReadSignature(cfg.data_width)), "sq_base": In(64), "dma_timeout": In(32),
            "alloc": Out(stream.Signature(slot)), "free": Out(range(cfg.tx_slots + 1)),
            "fetch": In(PushSignature(StructLayout({"slot": slot, "where": where_bits(cfg)}))),
            "store": In(PushSignature(StructLayout({"slot": slot, "job": job_layout(cfg)}))),
            "give_back": In(PushSignature(slot)),
            "ask": In(slot), "ready": Out(1), "failed": Out(1),
            "look": In(slot), "blank": In(1), "wqe": Out(WQE_BITS), "fetch_error": Out(1), "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        slots, bits = cfg.tx_slots, ceil_log2(cfg.tx_slots)

        def memory(name, shape):
            m.submodules[name] = ram = Memory(shape=shape, depth=slots, init=[], attrs={"ram_style": "distributed"})
            return ram, ram.write_port()

        def read(ram, at):
            port = ram.read_port(domain="comb")
            m.d.comb += port.addr.eq(at)
            return port.data

        def write(port, en, at, data):
            m.d.comb += [port.en.eq(en), port.addr.eq(at), port.data.eq(data)]

        # Requests, in registers. After reset every slot is wiped and given back, one a cycle.
        walk = Signal(bits + 1)
        wipe = Signal()
        asks, asked = Signal(), Signal(self.fetch.payload.shape(), reset_less=True)
        puts, put = Signal(), Signal(self.store.payload.shape(), reset_less=True)
        back, back_slot = Signal(), Signal(bits)
        m.d.comb += wipe.eq(~walk[bits])
        m.d.sync += [
            walk.eq(walk + wipe), asks.eq(self.fetch.valid), asked.eq(self.fetch.payload),
            puts.eq(self.store.valid), put.eq(self.store.payload),
            back.eq(wipe | self.give_back.valid), back_slot.eq(Mux(wipe, walk[:bits], self.give_back.payload)),
        ]

        # A slot's state is in bits that have one writer each. `begun` turns when a read begins, `over` when it ends: they
        # differ while it is under way. `given` is as `begun` once nobody waits for the read. `late`: it has timed out.
        begun, begun_write = memory("begun", 1)
        over, over_write = memory("over", StructLayout({"turn": 1, "bad": 1}))
        given, given_write = memory("given", 1)
        late, late_write = memory("late", 1)
        beat = Signal(StructLayout({"valid": 1, "slot": bits, "error": 1, "last": 1}))
        data = Signal(cfg.data_width, reset_less=True)
        turn = read(begun, beat.slot)
        take, end = Signal(), Signal()
        started = read(begun, asked.slot)
        write(begun_write, wipe | asks, Mux(wipe, walk[:bits], asked.slot), ~wipe & ~started)
        held = read(begun, back_slot)
        busy = Signal()             # the slot that is given back
        m.d.comb += busy.eq(held != read(over, back_slot).turn)
        write(given_write, back, back_slot, held)

        # -- answers: a beat in registers, then in its slot -----------------------------------------------
        axi = self.axi
        m.d.comb += [axi.rready.eq(~(beat.valid & puts) & ~wipe), take.eq(beat.valid & ~puts & (turn != read(over, beat.slot).turn)),
                     end.eq(take & beat.last)]
        with m.If(axi.rready):
            m.d.sync += [beat.valid.eq(axi.rvalid), beat.slot.eq(axi.rid), beat.error.eq(axi.rresp != 0), beat.last.eq(axi.rlast),
                         data.eq(axi.rdata)]
        whole, wrong = self._place(m, memory, read, write, beat, take, data, read(late, beat.slot), put, puts, wipe, walk)
        bad = Signal()
        m.d.comb += bad.eq(beat.error | wrong | ~whole)
        write(over_write, wipe | end, Mux(wipe, walk[:bits], beat.slot), Cat(~wipe & turn, bad))

        # -- which slots are free: two queues, as two may become so at once --------------------------------
        m.submodules.left = left = StreamFifo(bits, slots)          # given back when nothing was under way
        m.submodules.swallowed = swallowed = StreamFifo(bits, slots)
        swallow, next_ = Signal(), Signal()
        m.d.comb += next_.eq(~self.alloc.valid | self.alloc.ready)
        m.d.comb += swallow.eq(end & ((read(given, beat.slot) == turn) | (back & (back_slot == beat.slot))))
        m.d.sync += [swallowed.i.valid.eq(swallow), swallowed.i.payload.eq(beat.slot)]
        m.d.comb += [
            left.i.valid.eq(back & ~busy), left.i.payload.eq(back_slot),
            left.o.ready.eq(next_), swallowed.o.ready.eq(next_ & ~left.o.valid),
        ]
        with m.If(next_):
            m.d.sync += [self.alloc.valid.eq(left.o.valid | swallowed.o.valid),
                         self.alloc.payload.eq(Mux(left.o.valid, left.o.payload, swallowed.o.payload))]
        free, more = Signal(range(slots + 1)), Signal(2)
        m.d.sync += [more.eq(left.i.valid + swallow), free.eq(Mux(self.alloc.valid & self.alloc.ready, free + more - 1, free + more))]
        m.d.comb += self.free.eq(free)

        # -- what the scheduler wants to know ---------------------------------------------------------------
        mine = read(over, self.ask)
        is_late = read(late, self.ask)
        m.d.comb += [self.ready.eq((read(begun, self.ask) == mine.turn) | is_late), self.failed.eq(mine.bad | is_late)]

        times_up = self._watch(m, memory, read, write, asks, asked.slot, begun, over, late, late_write, wipe, walk)
        m.d.sync += self.fetch_error.eq(times_up | (end & bad & ~read(late, beat.slot)))
        under_way = Signal(range(slots + 1))
        m.d.sync += under_way.eq(under_way + asks - end)
        m.d.comb += self.idle.eq((under_way == 0) & ~asks)
        self._ask(m, asks, asked)
        return m

    def _ask(self, m, valid, request):
        """A queue that holds as many requests as there are slots, so it never overflows."""
        cfg, axi = self.cfg, self.axi
        m.submodules.asks = asks = StreamFifo(request.shape(), cfg.tx_slots)
        m.d.comb += [asks.i.valid.eq(valid), asks.i.payload.eq(request)]
        size = min(cfg.beat_bytes, SEND_WQE_BYTES)
        m.d.comb += [axi.arlen.eq(SEND_WQE_BYTES // size - 1), axi.arsize.eq(ceil_log2(size)), axi.arburst.eq(1)]
        with m.If(~axi.arvalid | axi.arready):
            m.d.comb += asks.o.ready.eq(1)
            m.d.sync += [
                axi.arvalid.eq(asks.o.valid), axi.arid.eq(FIRST_ID | asks.o.payload.slot),
                axi.araddr.eq(Cat(Const(0, 6), (self.sq_base[6:] + asks.o.payload.where)[:58])),
            ]

    def _watch(self, m, memory, read, write, asks, slot, begun, over, late, late_write, wipe, walk):
        """Has the read of slot `at` been under way for too long? Four cycles a slot; one asked for meanwhile is too young."""
        slots = self.cfg.tx_slots
        times, times_write = memory("times", 32)
        now = Signal(32)
        phase = Signal(2)
        at = Signal(range(slots))
        age = Signal(32)
        aged, young, asked, times_up = Signal(), Signal(), Signal(), Signal()
        write(times_write, asks, slot, now)
        m.d.comb += [
            asked.eq(asks & (slot == at)),
            times_up.eq((phase == 3) & aged & ~young & ~asks & ~wipe & (read(begun, at) != read(over, at).turn) & ~read(late, at)),
        ]
        m.d.sync += [now.eq(now + 1), phase.eq(Mux((phase == 3) & asks, 3, phase + 1)), at.eq(at + ((phase == 3) & ~asks)),
                     age.eq(now - read(times, at)), aged.eq(age >= self.dma_timeout), young.eq((young | asked) & ((phase != 3) | asks))]
        # one writer: a read that begins goes first
        write(late_write, wipe | asks | times_up, Mux(wipe, walk[:len(at)], Mux(asks, slot, at)), times_up)
        return times_up

    def _place(self, m, memory, read, write, beat, take, data, late, put, puts, wipe, walk):
        """The memory of WQEs. Returns (whole, wrong): this beat, if it is the last, is the one that completes the WQE; an earlier
        one of the answer was an error."""
        cfg = self.cfg
        slots, width = cfg.tx_slots, cfg.data_width
        parts = max(1, WQE_BITS // width)
        m.submodules.wqes = wqes = Memory(shape=WQE_BITS, depth=slots, init=[], attrs={"ram_style": "distributed"})
        fill = wqes.write_port(granularity=min(width, WQE_BITS))
        look = wqes.read_port(domain="comb")
        m.d.comb += look.addr.eq(self.look)
        m.d.sync += self.wqe.eq(look.data)
        with m.If(self.blank):
            m.d.sync += self.wqe.eq(0)

        # how far the answer is: beats that have come (`parts`: at least so many)
        far, far_write = memory("far", StructLayout({"beats": range(parts + 1), "wrong": 1}))
        at = read(far, beat.slot)
        place, wrong = at.beats, at.wrong
        restart = beat.last | wipe
        write(far_write, wipe | take, Mux(wipe, walk[:ceil_log2(slots)], beat.slot),
              Cat(Mux(restart, 0, Mux(place == parts, parts, place + 1))[:len(place)], ~restart & (wrong | beat.error)))

        word = data.replicate(parts)
        lanes = (1 << place)[:parts]
        if width > WQE_BITS:    # the WQE is in one half of the beat; which one, its address says
            halves, halves_write = memory("halves", 1)
            write(halves_write, self.fetch.valid, self.fetch.payload.slot, self.sq_base[6] ^ self.fetch.payload.where[0])
            word = data.word_select(read(halves, beat.slot), WQE_BITS)
        job, made = put.job, Signal(send_wqe_layout())
        m.d.comb += [made.eq(word), fill.addr.eq(beat.slot), fill.data.eq(made), fill.en.eq(Mux(take & ~late, lanes, 0))]
        with m.If(puts):
            m.d.comb += [*answer_wqe(cfg, made, job), fill.addr.eq(put.slot), fill.en.eq(-1)]
        return place == parts - 1, wrong
