"""The receive side's door: which frames enter, and where their beats go in the packet buffer."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.stream.packet import AxiStreamSignature

__all__ = ["Intake", "beat_signature"]


def beat_signature(cfg):
    """A beat of an accepted frame; never held up. `count`, `damaged` and `beats` mean something on the last one only."""
    return wiring.Signature({
        "valid": Out(1), "last": Out(1), "data": Out(cfg.data_width),
        "index": Out(range(cfg.max_frame_beats + 1)),       # of the beat in its frame, stays at max_frame_beats
        "count": Out(range(cfg.beat_bytes + 1)),            # bytes in it
        "damaged": Out(1),                                  # the MAC found the frame damaged
        "over": Out(1),                                     # beyond max_frame_beats
        "beats": Out(range(cfg.max_frame_beats + 1)),       # that the frame takes in the buffer
        "store": Out(1), "addr": Out(range(cfg.rx_buffer_beats)),
    })


class Intake(wiring.Component):
    """Accepts or discards whole frames, one beat each cycle without bubbles; `beat` follows `mac` by one cycle.

    A frame enters if at its first beat `enable` is 1, the packet buffer has room for a frame of max_frame_beats, and
    fewer than rx_frames frames are between here and their descriptors' departure (`retire`: one departed, up to one each
    cycle). Otherwise:
    - `enable` 0: the frame is swallowed;
    - no room, `hold` 0: it is discarded whole, with one cycle of `overflow`;
    - no room, `hold` 1: tready stays low in front of its first beat until there is room.
    Inside a frame tready is always 1. Room freed through `rd_pointer` or `retire` counts one to two cycles later.
    Beats beyond max_frame_beats are passed on with `over` but not stored.
    `idle`: not within a frame and every accepted frame's descriptor has departed.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "mac": In(AxiStreamSignature(cfg.data_width)),
            "enable": In(1), "hold": In(1), "overflow": Out(1),
            "rd_pointer": In((cfg.rx_buffer_beats - 1).bit_length() + 1),
            "retire": In(1),
            "beat": Out(beat_signature(cfg)),
            "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        cfg, mac, beat = self.cfg, self.mac, self.beat
        limit = cfg.max_frame_beats

        within = Signal()       # behind the first beat of a frame
        dropping = Signal()     # of a frame that is discarded
        room = Signal(init=1)
        moved = Signal()
        take = Signal()
        m.d.comb += [
            mac.tready.eq(within | room | ~self.enable | ~self.hold),
            moved.eq(mac.tvalid & mac.tready),
            take.eq(moved & Mux(within, ~dropping, self.enable & room)),
        ]
        m.d.sync += self.overflow.eq(moved & ~within & self.enable & ~room)
        with m.If(moved):
            m.d.sync += within.eq(~mac.tlast)
            with m.If(~within):
                m.d.sync += dropping.eq(~(self.enable & room))

        # -- place in the frame and in the buffer
        index = Signal(range(limit + 1))
        over = Signal()
        with m.If(moved):
            with m.If(mac.tlast):
                m.d.sync += [index.eq(0), over.eq(0)]
            with m.Elif(~over):
                m.d.sync += [index.eq(index + 1), over.eq(index == limit - 1)]
        store = take & ~over
        pointer = Signal.like(self.rd_pointer)
        with m.If(store):
            m.d.sync += pointer.eq(pointer + 1)

        # -- room for the next frame, from what is stored up to and including this cycle
        ceiling = Signal.like(self.rd_pointer, init=cfg.rx_buffer_beats - limit)
        m.d.sync += ceiling.eq(self.rd_pointer + (cfg.rx_buffer_beats - limit))
        # modulo the pointers, negative when there is no room; the same if this beat is stored
        left, left_then = ((ceiling - pointer - n)[:len(pointer)] for n in (0, 1))
        frames = Signal(range(cfg.rx_frames + 1))
        frames_next = Signal.like(frames)
        retire = Signal()
        m.d.comb += frames_next.eq(Mux(take & ~within, frames + 1 - retire, frames - retire))
        m.d.sync += [retire.eq(self.retire), frames.eq(frames_next),
                     room.eq(~Mux(store, left_then[-1], left[-1]) & (frames_next < cfg.rx_frames))]
        m.d.comb += self.idle.eq(~within & (frames == 0))

        # -- the beat, registered. tkeep is a thermometer: bit j of its length toggles at each multiple of 2^j.
        count = Cat(mac.tkeep[(1 << j) - 1::1 << j].xor() for j in range(len(beat.count)))
        m.d.sync += [beat.valid.eq(take), beat.store.eq(store)]
        for target, value in [(beat.last, mac.tlast), (beat.data, mac.tdata), (beat.index, index), (beat.count, count),
                              (beat.damaged, mac.tuser), (beat.over, over), (beat.addr, pointer[:-1]),
                              (beat.beats, index + ~over)]:
            reg = Signal.like(target, name=f"beat_{target.name.split('__')[-1]}", reset_less=True)
            m.d.sync += reg.eq(value)
            m.d.comb += target.eq(reg)
        return m
