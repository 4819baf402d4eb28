"""Brings the payload of packets to be sent from host memory into the transmit buffer."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from optinic.axi.signatures import AxiReadSignature
from optinic.stream.slice import StreamSlice
from optinic.tx.packet import INLINE_BYTES, header_members, loaded_layout, packet_layout
from optinic.tx.read_bursts import ReadBursts, page_bits
from optinic.tx.read_slots import ReadSlots

__all__ = ["PayloadReader"]

TIME_BITS = 33          #: one more than `dma_timeout`, so that an overdue read stays so for as long again


class PayloadReader(wiring.Component):
    """Takes `packets`, gives each of them back as `loaded`, in the same order, once its payload lies in the buffer.

    A packet with `len` != 0 that isn't silent takes as many beats of the buffer as its payload touches in memory (inline: as
    it needs from lane 0 on; `len` is at most 32 then), and waits until there is room. `rd_pointer`, free-running from 0 on,
    says which beats are free again: those before it. It may pass a beat in the cycle after the one in which the beat's
    address was on `rd_addr`, and must pass all beats of a `loaded` packet, also of a failed one. `rd_data` is the beat at the
    `rd_addr` of two cycles ago.

    Reads: N = `cfg.tx_reads_outstanding` packets inside at most, of whatever kind; each has a slot, in order, whose number n
    gives the ID 0x80 | n of its read, of all bursts of it. Bursts are aligned, full-width, incrementing, and stay inside
    `burst_bytes`. Answers may come in any order of IDs, beat by beat. R is ready in every cycle but those in which inline
    payload goes into the buffer (one for each beat of it) and N cycles after reset. Beats whose ID belongs to no open read
    are swallowed.

    `failed` (with a pulse of `read_error`): RRESP other than OKAY, RLAST too early or too late; or the read wasn't complete
    `dma_timeout` cycles after the packet got its room in the buffer and its place in the queue to AR, so that an AR channel
    that takes nothing ends the same way. Time is judged when the packet is the oldest one inside: what is complete by then is
    good, however late it was; what isn't is shown as failed at most 4 cycles after both are true (and `loaded` was free).

    A slot whose read was given up is retired until all its answers have come; they are swallowed. Retired slots are passed
    over, one a cycle. Packets that need a read wait while no other slot is free, but fail at once, with 0 beats, while all N
    are retired.

    Takes one packet a cycle (one that is inline: its beats and one more); AR shows its first burst 4 cycles later. `loaded` is
    valid 3 cycles after the packet's last beat on R, 4 cycles after a packet without payload was taken. A reset forgets
    everything, and the host's side of AXI must be reset with it; for N cycles nothing is taken. `idle`: no packet is inside
    or offered; reads that were given up may still be open.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "packets": In(stream.Signature(packet_layout(cfg))), "axi": Out(AxiReadSignature(cfg.data_width)),
            "dma_timeout": In(32),
            "loaded": Out(stream.Signature(loaded_layout(cfg))),
            "rd_addr": In(range(cfg.tx_buffer_beats)), "rd_data": Out(cfg.data_width),
            "rd_pointer": In(range(2 * cfg.tx_buffer_beats)),
            "idle": Out(1), "read_error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        cfg, axi = self.cfg, self.axi
        count = cfg.tx_reads_outstanding
        bits, lanes = ceil_log2(count), ceil_log2(cfg.beat_bytes)
        m.submodules.slots = slots = ReadSlots(cfg)
        m.submodules.bursts = bursts = ReadBursts(cfg)
        m.d.comb += [
            *(getattr(axi, n).eq(getattr(bursts, n)) for n in ("arid", "araddr", "arlen", "arsize", "arburst", "arvalid")),
            *(getattr(slots, n).eq(getattr(axi, n)) for n in ("rid", "rdata", "rresp", "rlast", "rvalid")),
            bursts.arready.eq(axi.arready), axi.rready.eq(slots.rready),
            slots.asked.eq(bursts.asked), slots.asked_slot.eq(bursts.asked_slot),
        ]
        self._buffer(m, slots)

        # -- the ring: packets go in at `tail` and come out at `head`; those before `filled` have begun -----------------
        head, tail, filled = (Signal(bits + 1, name=n) for n in ("head", "tail", "filled"))
        beats_shape = loaded_layout(cfg).members["beats"]
        m.submodules.ring = ring = Memory(depth=count, init=[], attrs={"ram_style": "distributed"}, shape=StructLayout({
            **header_members(cfg), "lane": range(cfg.beat_bytes), "beats": beats_shape,
            "read": 1, "void": 1, "hopeless": 1,        # has a read; is no packet, only a slot passed over; failed at once
        }))
        ring_write = ring.write_port()
        full = Signal()
        m.d.comb += full.eq((head[:bits] == tail[:bits]) & (head[bits] != tail[bits]))

        # -- a packet comes in, or a retired slot is passed over --------------------------------------------------------
        packet = self.packets.payload
        retired = Signal(range(count + 1))
        dead = Signal()
        m.d.sync += dead.eq(retired[bits])
        fills, reads, read, void = Signal(), Signal(), Signal(), Signal()
        lane = Signal(lanes)
        beats = Signal(beats_shape)
        item_free, enter = Signal(), Signal()
        m.d.comb += [
            slots.next_slot.eq(tail), fills.eq(packet.some & ~packet.silent), reads.eq(fills & ~packet.inline),
            read.eq(reads & ~slots.next_owed), void.eq(reads & slots.next_owed & ~dead),
            lane.eq(Mux(packet.inline, 0, packet.addr[:lanes])),
            beats.eq(Mux(fills & ~(reads & slots.next_owed), (lane + packet.len + (cfg.beat_bytes - 1)) >> lanes, 0)),
            enter.eq(self.packets.valid & slots.ready & ~full & item_free),
            self.packets.ready.eq(slots.ready & ~full & item_free & ~void),
            *(getattr(ring_write.data, n).eq(getattr(packet, n)) for n in header_members(cfg)),
            ring_write.data.lane.eq(lane), ring_write.data.beats.eq(beats), ring_write.data.read.eq(read),
            ring_write.data.void.eq(void), ring_write.data.hopeless.eq(reads & slots.next_owed & dead),
            ring_write.addr.eq(tail), ring_write.en.eq(enter),
        ]
        with m.If(enter):
            m.d.sync += tail.eq(tail + 1)

        # -- it begins when there is room for its beats; inline payload is written then ---------------------------------
        page = page_bits(cfg)
        m.submodules.items = items = StreamSlice(StructLayout({
            "slot": bits, "read": 1, "inline": 1, "page": 64 - page, "index": page - lanes, "beats": beats_shape, "data": 8 * INLINE_BYTES}))
        entering, item = items.i.payload, items.o.payload
        begin, writing, last_part = Signal(), Signal(), Signal()
        leaves = Signal()
        m.d.comb += [
            begin.eq(items.o.valid & ~writing & self._room(m, begin, item.beats)),
            leaves.eq((begin & ~item.inline) | (writing & last_part)), items.o.ready.eq(leaves),
            items.i.valid.eq(enter), item_free.eq(items.i.ready), entering.slot.eq(tail), entering.read.eq(read),
            entering.inline.eq(fills & packet.inline), entering.page.eq(packet.addr[page:]),
            entering.index.eq(packet.addr[lanes:page]), entering.beats.eq(beats), entering.data.eq(packet.inline_data),
        ]
        m.d.sync += [writing.eq((begin & item.inline) | (writing & ~last_part)), filled.eq(filled + leaves)]
        start = Signal(range(cfg.tx_buffer_beats))      # the next free beat of the buffer
        with m.If(begin):
            m.d.sync += start.eq(start + item.beats)
        self._insert(m, slots, item, begin, writing, last_part, start)

        plan, run = slots.plan, bursts.run
        more = Signal(range(cfg.mtu_max // cfg.beat_bytes + 1))
        end = Signal(range((1 << page - lanes) + cfg.mtu_max // cfg.beat_bytes + 1))
        m.d.comb += [
            more.eq(item.beats - 1), end.eq(item.index + more),
            plan.valid.eq(begin & item.read), plan.payload.slot.eq(item.slot), plan.payload.start.eq(start),
            plan.payload.index.eq(item.index), plan.payload.beats.eq(more), plan.payload.bursts.eq(end >> page - lanes),
            run.valid.eq(begin & item.read), run.payload.slot.eq(item.slot), run.payload.page.eq(item.page),
            run.payload.index.eq(item.index), run.payload.end.eq(end), run.payload.beats.eq(more),
            run.payload.bursts.eq(end >> page - lanes),
        ]

        # -- the oldest packet leaves when it is complete, or late --------------------------------------------------------
        now = Signal(TIME_BITS)
        m.submodules.times = times = Memory(shape=TIME_BITS, depth=count, init=[], attrs={"ram_style": "distributed"})
        time_write, time_read = times.write_port(), times.read_port(domain="comb")
        ring_read = ring.read_port(domain="comb")
        oldest = ring_read.data
        visible = Signal.like(filled)       # a cycle later, so that inline payload has reached the buffer
        present, done, take = Signal(), Signal(), Signal()
        age = Signal(TIME_BITS)
        aged, give_up, given_up, expired = Signal(), Signal(), Signal(), Signal()
        loaded = self.loaded
        out_free = ~loaded.valid | loaded.ready
        m.d.comb += [
            time_write.en.eq(begin), time_write.addr.eq(item.slot), time_write.data.eq(now),
            time_read.addr.eq(head), ring_read.addr.eq(head), slots.head_slot.eq(head),
            present.eq(head != visible), done.eq(~oldest.read | ~slots.head_owed | expired),
            take.eq(present & (oldest.void | (done & out_free))), slots.let_go.eq(take | give_up),
        ]
        m.d.sync += [
            now.eq(now + 1), visible.eq(filled), head.eq(head + take),
            # each of these is about the packet that was the oldest one a cycle ago, and still is
            aged.eq(present & oldest.read & ~take), age.eq(now - time_read.data),
            # what is complete is good, however long `loaded` isn't free for it
            give_up.eq(aged & (age >= self.dma_timeout) & ~done & ~give_up),
            given_up.eq(give_up & ~take), expired.eq((give_up | expired) & ~take),
            # from the cycle of `given_up` on the slots know of it, and say when the read is over
            retired.eq(retired + (given_up & slots.head_owed) - slots.recovered),
        ]
        out = loaded.payload
        place = Signal.like(out.beat)
        failed = Signal()
        m.d.comb += failed.eq(oldest.hopeless | (oldest.read & (expired | slots.head_bad)))
        with m.If(take):
            m.d.sync += place.eq(place + oldest.beats)
        with m.If(out_free):
            m.d.sync += [
                loaded.valid.eq(present & done & ~oldest.void), self.read_error.eq(present & done & ~oldest.void & failed),
                *(getattr(out, n).eq(getattr(oldest, n)) for n in (*header_members(cfg), "lane", "beats")),
                out.failed.eq(failed), out.beat.eq(place),
            ]
        with m.Else():
            m.d.sync += self.read_error.eq(0)
        m.d.comb += self.idle.eq((head == tail) & slots.ready & ~self.packets.valid & ~loaded.valid)
        return m

    def _room(self, m, begin, beats):
        """Whether the buffer has room for `beats`; they are taken when `begin`."""
        size = self.cfg.tx_buffer_beats
        room = Signal(range(size + 1), init=size)
        seen = Signal.like(self.rd_pointer)
        freed = Signal.like(self.rd_pointer)
        left = Signal(len(room) + 1)
        m.d.comb += left.eq(room - beats)
        m.d.sync += [seen.eq(self.rd_pointer), freed.eq(self.rd_pointer - seen), room.eq(Mux(begin, left + freed, room + freed))]
        return ~left[-1]

    def _insert(self, m, slots, item, begin, writing, last_part, start):
        """Inline payload goes into the buffer in R's place, beat by beat."""
        width = len(slots.insert_data)
        at = Signal.like(start)
        m.d.comb += [slots.insert.eq(writing), slots.insert_addr.eq(at)]
        if width == len(item.data):
            m.d.comb += [last_part.eq(1), slots.insert_data.eq(item.data)]
        else:
            part = Signal(range(len(item.data) // width))
            m.d.comb += [last_part.eq(part + 1 == item.beats), slots.insert_data.eq(item.data.word_select(part, width))]
            m.d.sync += part.eq(Mux(writing & ~last_part, part + 1, 0))
        with m.If(begin):
            m.d.sync += at.eq(start)
        with m.Elif(writing):
            m.d.sync += at.eq(at + 1)

    def _buffer(self, m, slots):
        m.submodules.buffer = ram = Memory(shape=unsigned(self.cfg.data_width), depth=self.cfg.tx_buffer_beats, init=[],
                                           attrs={"ram_style": "block"})
        write, read = ram.write_port(), ram.read_port(domain="sync")
        m.d.comb += [write.en.eq(slots.store), write.addr.eq(slots.store_addr), write.data.eq(slots.store_data),
                     read.addr.eq(self.rd_addr)]
        m.d.sync += self.rd_data.eq(read.data)
