"""Makes Ethernet frames of packets and puts them on the cable."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from optinic.rx.pipeline import FixedPipe
from optinic.stream.lanes import lane_mask
from optinic.stream.packet import AxiStreamSignature
from optinic.stream.push import PushSignature

from .egress import DEPTH, Egress
from .frame_plan import FramePlanner
from .frame_steps import FrameSteps, step_layout
from .headers import HeaderStack, local_signature
from .icrc_insert import IcrcMaker
from .packet import done_layout, loaded_layout
from .peers import PeerTable, peer_set_signature

__all__ = ["FrameBuilder"]


class FrameBuilder(wiring.Component):
    """Takes `packets` in order and sends each one that is neither silent nor failed as a RoCEv2 frame on `mac_tx`.

    The frame: Ethernet, 802.1Q tag if the peer has one, IPv4 (no options, DF, identification 0) or IPv6 (flow label 0), UDP
    (checksum 0), BTH (MigReq and FECN 0), then XPETH, RETH, ImmDt (transport rc: see packet.header_members) as the record says, payload,
    pad, ICRC, and zeroes up to 60 bytes. `local` and the peers are set while nothing is sent (`clearing`: the peers are being cleared after reset).

    `rd_data` must be the beat at the `rd_addr` of two cycles ago. `rd_pointer`, free-running, passes the beats of each packet
    in order, silent and failed ones too, when they are no longer needed. `done` pulses for each packet in order, when its last
    beat has moved to the queue at the cable, or would have.

    Throughput: a packet is taken each cycle while fewer than cfg.packets_on_the_way are; a frame of n beats takes n cycles and the next
    one follows at once. Only if a frame's first beat needs two source beats (headers shorter than a beat, and payload from a
    higher lane than the one where it goes), and the last step of the frame before needed one too, there is a cycle between
    them. A packet that sends nothing takes a cycle. Latency: from the packet's arrival to its first beat on `mac_tx` 9 + `latency`
    cycles, one more if that needs two source beats.

    No gap in a frame, by construction: nothing behind FrameSteps ever waits, and a beat can leave from `latency` cycles after
    its step on. A step follows the one before it at once, or it waited for one of the DEPTH places at the cable, and then it
    comes two cycles after the beat DEPTH places before it left. As latency + 2 <= DEPTH, and no more than one beat leaves each
    cycle, the former beat is there in the cycle after the one before it at the latest, and the latter before it is its turn.
    So within a frame tvalid is always high, whatever tready does.

    With pass_through, frames of the host from `host_tx` take turns with ours, see HostQueue and Egress. `enable` 0: no frame
    begins; `host_enable` 0: none of the host. Pulses for the counters: `event_frame_sent`, `event_host_frame_sent`, and with
    each of them `sent_bytes`.
    """

    places = DEPTH

    def __init__(self, cfg):
        self.cfg = cfg
        self.turns = -(-(cfg.beat_bytes - 1).bit_length() // 2)     # registers of the rotator, each one a 4:1 multiplexer
        self.latency = 4 + self.turns + IcrcMaker.latency_of(cfg) + 1
        assert self.latency + 2 <= DEPTH
        super().__init__({
            "packets": In(stream.Signature(loaded_layout(cfg))),
            "rd_addr": Out(range(cfg.tx_buffer_beats)), "rd_data": In(cfg.data_width),
            "rd_pointer": Out(range(2 * cfg.tx_buffer_beats)),
            "local": In(local_signature()), "peer_set": In(peer_set_signature(cfg)), "clearing": Out(1),
            "mac_tx": Out(AxiStreamSignature(cfg.data_width)), "enable": In(1), "host_enable": In(1, init=1),
            "done": Out(PushSignature(done_layout())),
            "event_frame_sent": Out(1), "event_host_frame_sent": Out(1),
            "sent_bytes": Out(wiring.Signature({"valid": Out(1), "bytes": Out(16)})),
            "idle": Out(1),
        } | ({"host_tx": In(AxiStreamSignature(cfg.data_width))} if cfg.pass_through else {}))

    @staticmethod
    def tables(cfg):
        return PeerTable.tables(cfg)

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        m.submodules.planner = planner = FramePlanner(cfg)
        m.submodules.headers = headers = HeaderStack(cfg)
        m.submodules.steps = steps = FrameSteps(cfg)
        m.submodules.icrc = icrc = IcrcMaker(cfg)
        m.submodules.egress = egress = Egress(cfg, delay=icrc.latency + 1)

        wiring.connect(m, wiring.flipped(self.packets), planner.packets)
        wiring.connect(m, wiring.flipped(self.peer_set), planner.peer_set)
        wiring.connect(m, wiring.flipped(self.local), planner.local)
        wiring.connect(m, wiring.flipped(self.local), headers.local)
        for part in ("header", "route", "checksum"):
            wiring.connect(m, getattr(planner, part), getattr(headers, part))
        wiring.connect(m, planner.plans, steps.plans)
        m.d.comb += [self.clearing.eq(planner.clearing), self.rd_addr.eq(steps.rd_addr), self.rd_pointer.eq(steps.rd_pointer)]

        # -- steps while there is room for their beats
        used = Signal(range(DEPTH + 1))
        used_next = Signal.like(used)
        room = Signal()
        popped = Signal()
        m.d.sync += [popped.eq(egress.popped), used.eq(used_next), room.eq(used_next < self.places)]
        m.d.comb += [used_next.eq(used + steps.sends - popped), steps.room.eq(room)]

        # -- from the step, at stage 0, to its beat, at stage `end`
        turns = self.turns
        end = turns + 4
        step = steps.step.payload
        valid = Signal(end)         # bit i: at stage i + 1
        outs = Signal(end)          # a beat comes of it
        firsts = Signal(end)        # and it is the first one of a frame
        m.d.sync += [valid.eq(Cat(steps.step.valid, valid)), outs.eq(Cat(steps.sends, outs)),
                     firsts.eq(Cat(steps.sends & step.first, firsts))]
        p = FixedPipe(m, "step")
        for name in step_layout(cfg).members:
            p.put(name, 1, getattr(step, name))
        at = lambda name, stage: valid[stage - 1] & p.get(name, stage)
        m.d.comb += [headers.take.eq(at("take", turns - 1)), planner.taken.eq(headers.take)]
        merged = self._merge(m, p, valid, outs, firsts, self._rotate(m, step.source_rotate), headers.word)

        # where the ICRC goes, and what the last beat keeps, for each group of lanes 4 g + 2 to 4 g + 5
        v = p.at(end - 1)
        groups = cfg.beat_bytes // 4
        p.put("insert", end, lane_mask(v.group, groups, lambda g, n: g == n) & v.cover.replicate(groups))
        p.put("keep", end, lane_mask(v.group, groups, lambda g, n: g <= n) & v.cover.replicate(groups)
                           | (~v.last).replicate(groups))

        out = outs[-1]
        m.d.comb += [
            icrc.beat.valid.eq(out), icrc.beat.payload.data.eq(merged),
            *(getattr(icrc.beat.payload, n).eq(p.get(n, end)) for n in ("vlan", "v6", "last", "cover", "wrap", "group")),
            egress.beat.valid.eq(out), egress.beat.payload.data.eq(merged),
            *(getattr(egress.beat.payload, n).eq(p.get(n, end)) for n in ("last", "wrap", "runt", "insert", "keep")),
            self.done.valid.eq(at("ends", end)), self.done.payload.failed.eq(p.get("failed", end)),
            self.done.payload.sent.eq(out),
        ]

        # -- the cable
        wiring.connect(m, icrc.icrc, egress.icrc)
        wiring.connect(m, egress.mac, wiring.flipped(self.mac_tx))
        if cfg.pass_through:
            wiring.connect(m, wiring.flipped(self.host_tx), egress.host)
        m.d.comb += [
            egress.enable.eq(self.enable), egress.host_enable.eq(self.host_enable), self.event_frame_sent.eq(egress.frame_sent),
            self.event_host_frame_sent.eq(egress.host_frame_sent), self.sent_bytes.bytes.eq(egress.sent_bytes),
            self.sent_bytes.valid.eq(egress.frame_sent | egress.host_frame_sent),
            self.idle.eq(~self.packets.valid & planner.idle & steps.idle & ~valid.any() & (used == 0) & egress.idle),
        ]
        return m

    def _rotate(self, m, turn):
        """`rd_data`, here at stage 3, turned upwards by `turn` lanes (of stage 0): at stage 3 + turns.

        Two bits of `turn` each cycle. They are recoded so that a multiplexer of the far and near ways, and not two smaller ones
        shared by two lanes each, is the least logic: one LUT6 a bit. They have resets, lest slow shift registers drive a beat.
        """
        digits = [turn[i:i + 2] for i in range(0, len(turn), 2)]
        select = [Cat(d[1], d.xor()) if len(d) == 2 else d for d in digits]
        ways = {1: (0, 1), 2: (0, 3, 1, 2)}
        data = self.rd_data
        for i, chosen in enumerate(select):
            for stage in range(1, 4 + i):
                late = Signal(len(chosen), name=f"turn{i}_{stage}")
                m.d.sync += late.eq(chosen)
                chosen = late
            turned = Signal.like(data, name=f"turned{i}", reset_less=True)
            with m.Switch(chosen):
                for k, way in enumerate(ways[len(chosen)]):
                    with m.Case(k):
                        m.d.sync += turned.eq(data.rotate_left(8 * (way << 2 * i)))
            data = turned
        return data

    def _merge(self, m, p, valid, outs, firsts, turned, word):
        """The beat, at stage 4 + turns: headers, then payload of this step and the one before it, then zeroes."""
        width, lanes = self.cfg.data_width, self.cfg.beat_bytes
        stage = self.turns + 2

        # which lanes have what; a boundary of headers is at 4 g + 2
        v = p.at(stage - 1)
        p.put("head", stage, Cat(v.head_full | v.head_part, lane_mask(v.head_group, lanes // 4, lambda group, n: group < n)
                                 & v.head_part.replicate(lanes // 4) | v.head_full.replicate(lanes // 4)))
        p.put("below", stage, lane_mask(v.data_end, lanes, lambda lane, n: lane < n))
        v = p.at(stage)
        p.put("before", stage + 1, lane_mask(v.rotate, lanes, lambda lane, n: lane < n))
        p.put("payload", stage + 1, Cat(~v.head[(lane + 2) // 4] & Mux(v.data_part, v.below[lane], ~v.data_none)
                                        for lane in range(lanes)))

        # headers: the first beat of them, and the later ones when their turn comes; zeroes otherwise, by the registers' resets
        start = Signal(width, reset_less=True)
        later = Signal(width, reset_less=True)
        to_come = Signal(max(0, len(word) - width), reset_less=True)
        m.d.sync += [start.eq(0), later.eq(0)]
        with m.If(firsts[stage - 1]):
            m.d.sync += [start.eq(word), to_come.eq(word[width:])]
        with m.Elif(outs[stage - 1]):
            m.d.sync += [later.eq(to_come), to_come.eq(to_come >> width)]

        previous = Signal(width, reset_less=True)
        with m.If(valid[stage]):
            m.d.sync += previous.eq(turned)

        v = p.at(stage + 1)
        merged = []
        for lane in range(lanes):
            byte = slice(8 * lane, 8 * lane + 8)
            payload = Mux(v.before[lane], previous[byte], turned[byte])
            merged.append(start[byte] | later[byte] | payload & v.payload[lane].replicate(8))
        return p.put("merged", stage + 2, Cat(merged))
