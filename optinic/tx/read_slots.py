"""The data side of the payload reads: where each beat goes, and how each read ended."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from optinic.axi.signatures import ID_BITS
from optinic.memory.acks import max_bursts
from optinic.stream.push import PushSignature
from optinic.tx.packet import INLINE_BYTES
from optinic.tx.read_bursts import READ_IDS, page_bits

__all__ = ["ReadSlots", "plan_layout"]


def plan_layout(cfg):
    """What the answer of a read has to be: `beats` + 1 beats, to the buffer's beats from `start` on, in `bursts` + 1 bursts,
    the first of which is the longer the smaller `index`, the place of its first beat in a block that no burst crosses."""
    return StructLayout({
        "slot": range(cfg.tx_reads_outstanding), "start": range(cfg.tx_buffer_beats),
        "index": page_bits(cfg) - ceil_log2(cfg.beat_bytes), "beats": range(cfg.mtu_max // cfg.beat_bytes + 1),
        "bursts": range(max_bursts(cfg)),
    })


class ReadSlots(wiring.Component):
    """Reads in flight, one a slot (N = `cfg.tx_reads_outstanding`), and their answers.

    `plan` begins a read in a free slot; `asked` says that AR took a burst of the read in `asked_slot` a cycle ago: what R gives
    from this cycle on with its ID is its own. Beats go to the buffer two cycles after R gave them (`store`). The read is over
    with the last RLAST that is due. `next_owed` and `head_owed` tell at once whether the read in `next_slot` and `head_slot`
    isn't; `head_bad` whether the one that was over last in `head_slot` went wrong: RRESP was not OKAY on some beat, or RLAST
    came too early or too late. After the first fault nothing more of the read is stored.

    `let_go`: nothing more of the read in `head_slot` is wanted. What comes of it from the next cycle on is swallowed; its
    slot is free when all its RLAST have come, and `recovered` pulses if that was later. Every read must be let go
    before its slot is used again. Beats whose ID belongs to no read that AR has taken are swallowed.

    `insert`: in this cycle a beat of the reader's own (`insert_data` in the lowest lanes, the others are undefined) takes
    R's place, for `insert_addr`. Otherwise one beat of R a cycle, never refused.

    N cycles after reset all slots are free and `ready` is high; no beat is taken before that, and there must be no plan.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        slot, place = range(cfg.tx_reads_outstanding), range(cfg.tx_buffer_beats)
        super().__init__({
            "rid": In(ID_BITS), "rdata": In(cfg.data_width), "rresp": In(2), "rlast": In(1), "rvalid": In(1), "rready": Out(1),
            "insert": In(1), "insert_addr": In(place), "insert_data": In(min(cfg.data_width, 8 * INLINE_BYTES)),
            "store": Out(1), "store_addr": Out(place), "store_data": Out(cfg.data_width),
            "plan": In(PushSignature(plan_layout(cfg))),
            "asked": In(1), "asked_slot": In(slot),
            "next_slot": In(slot), "next_owed": Out(1),
            "head_slot": In(slot), "head_owed": Out(1), "head_bad": Out(1), "let_go": In(1),
            "recovered": Out(1), "ready": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        slots = cfg.tx_reads_outstanding
        bits = ceil_log2(slots)

        def memory(name, shape):
            m.submodules[name] = ram = Memory(shape=shape, depth=slots, init=[], attrs={"ram_style": "distributed"})
            return ram, ram.write_port()

        def read(ram, at):
            port = ram.read_port(domain="comb")
            m.d.comb += port.addr.eq(at)
            return port.data

        def write(port, en, at, data):
            m.d.comb += [port.en.eq(en), port.addr.eq(at), port.data.eq(data)]

        # After reset every slot is wiped, with the registers of a beat as the address.
        walk = Signal(bits + 1)
        wipe = Signal(init=1)
        m.d.comb += self.ready.eq(walk[bits])
        m.d.sync += [walk.eq(walk + ~self.ready), wipe.eq(~self.ready)]

        # A beat, taken and looked at.
        ours, last, error, inserted = Signal(), Signal(), Signal(), Signal()
        slot = Signal(bits)
        data = Signal(cfg.data_width, reset_less=True)
        insert_addr = Signal.like(self.insert_addr, reset_less=True)
        low = len(self.insert_data)
        m.d.comb += self.rready.eq(self.ready & ~self.insert)
        m.d.sync += [
            ours.eq(self.rvalid & self.rready & (self.rid[bits:] == READ_IDS >> bits)),
            slot.eq(Mux(self.ready, self.rid[:bits], walk[:bits])),
            last.eq(self.rlast | ~self.ready), error.eq(self.rresp != 0),
            inserted.eq(self.insert), insert_addr.eq(self.insert_addr),
            data.eq(Cat(Mux(self.insert, self.insert_data, self.rdata[:low]), self.rdata[low:])),
        ]

        # A slot's state is in bits that have one writer each, and turn with every read in it: `planned` when it begins,
        # `open` when AR takes it, `over` with its end, `gone` when it is let go.
        planned, planned_write = memory("planned", 1)
        open_, open_write = memory("open", 1)
        over, over_write = memory("over", StructLayout({"turn": 1, "bad": 1}))
        gone, gone_write = memory("gone", 1)
        plan = self.plan.payload
        close = Signal()
        turn = read(open_, slot)
        mine, swallow = Signal(), Signal()
        write(planned_write, wipe | self.plan.valid, Mux(wipe, slot, plan.slot), ~wipe & ~read(planned, plan.slot))
        write(open_write, wipe | self.asked, Mux(wipe, slot, self.asked_slot), ~wipe & read(planned, self.asked_slot))
        write(gone_write, wipe | self.let_go, Mux(wipe, slot, self.head_slot), ~wipe & read(planned, self.head_slot))
        head = read(over, self.head_slot)
        m.d.comb += [
            mine.eq(ours & (turn != read(over, slot).turn)), swallow.eq(read(gone, slot) == turn),
            self.next_owed.eq(read(planned, self.next_slot) != read(over, self.next_slot).turn),
            self.head_owed.eq(read(planned, self.head_slot) != head.turn), self.head_bad.eq(head.bad),
        ]

        # How far the answer is. A burst ends with its read, and with a block of addresses.
        kept = {name: shape for name, shape in plan_layout(cfg).members.items() if name != "slot"}
        plans, plans_write = memory("plans", StructLayout(kept))
        progress = StructLayout({"beat": len(plan.beats), "burst": len(plan.bursts), "wrong": 1})
        far, far_write = memory("far", progress)
        due = read(plans, slot)
        at = read(far, slot)
        ends, last_burst, spoilt, bad = Signal(), Signal(), Signal(), Signal()
        write(plans_write, self.plan.valid, plan.slot, Cat(getattr(plan, name) for name in kept))
        m.d.comb += [
            ends.eq((at.beat[:len(due.index)] == ~due.index) | (at.beat == due.beats)),
            last_burst.eq(at.burst == due.bursts), close.eq(mine & last & last_burst),
            spoilt.eq(at.wrong | error), bad.eq(spoilt | (ends != last)),
        ]
        # zero behind the end, and after reset; `last` is high then
        clear = last_burst | wipe
        wrong = Mux(last, (spoilt | ~ends) & ~clear, spoilt | ends)
        onward = Cat((at.beat + 1)[:len(at.beat)], (at.burst + last)[:len(at.burst)])
        write(far_write, wipe | mine, slot, Cat(Mux(last & clear, 0, onward), wrong))
        write(over_write, wipe | close, slot, Cat(~wipe & turn, bad))

        m.d.sync += [
            self.store.eq(inserted | (mine & ~swallow & ~at.wrong)),
            self.store_addr.eq(Mux(inserted, insert_addr, due.start + at.beat)), self.store_data.eq(data),
            self.recovered.eq(close & swallow),
        ]
        return m
