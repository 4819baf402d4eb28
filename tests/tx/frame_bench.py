"""A transmit buffer, packets, a host and a MAC around FrameBuilder; each frame's bytes come from sim/frames.py."""

from ipaddress import ip_address
from types import SimpleNamespace

from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.config import preset
from optinic.tx.builder import FrameBuilder
from sim import frames

TINY = preset("tiny")       # 64 bits

LOCAL_MAC, LOCAL_IP4, LOCAL_IP6, HOP_LIMIT, PKEY = "02:0a:0b:0c:0d:01", "10.1.2.3", "fd00:1:2::3", 61, 0x8001


class Peer:
    def __init__(self, mac, ip, tci=None):
        self.mac, self.ip, self.tci = mac, ip_address(ip), tci

    def entry(self):
        return dict(mac=int(self.mac.replace(":", ""), 16), ip=int(self.ip), v6=self.ip.version == 6,
                    vlan=self.tci is not None, tci=self.tci or 0)


PEERS = [Peer("02:00:5e:10:00:01", "10.9.8.7"), Peer("02:00:5e:10:00:02", "fd00:9::8:7"),
         Peer("02:00:5e:10:00:03", "192.168.77.1", 0xEFFF), Peer("02:00:5e:10:00:04", "2001:db8:1:2:3:4:5:6", 0x2005)]


class Packet:
    """Fields as in the record, with their own defaults; `payload` bytes from `lane` on."""

    def __init__(self, payload=b"", *, lane=0, peer=0, silent=0, failed=0, **fields):
        self.payload, self.lane, self.peer, self.silent, self.failed = payload, lane, peer, silent, failed
        self.f = dict(opcode=0xE4, xpeth=0, reth=0, immdt=0, becn=0, solicited=0, dest_qpn=0x12345, psn=0x654321, tclass=0,
                      sport=0xC001, tracked=0, echo=0, generation=0, tag=0, seq=0, msg_len=0, offset=0, va=0, rkey=0,
                      dma_len=0, imm=0) | fields

    @classmethod
    def random(cls, rng, size, *, kind=None, **more):
        x, r, i = (kind >> b & 1 for b in range(3)) if kind is not None else (rng.getrandbits(1) for _ in range(3))
        bits = dict(opcode=8, becn=1, solicited=1, dest_qpn=24, psn=24, tclass=8, sport=16, tracked=1, echo=1, generation=8,
                    tag=16, seq=32, msg_len=32, offset=32, va=64, rkey=32, dma_len=32, imm=32)
        return cls(rng.randbytes(size), xpeth=x, reth=r, immdt=i, **({n: rng.getrandbits(w) for n, w in bits.items()} | more))

    def beats(self, lanes):
        return -(-(self.lane + len(self.payload)) // lanes) if self.payload else 0

    @property
    def sent(self):
        return not (self.silent or self.failed)

    def frame(self):
        """The bytes on the cable."""
        f, p = SimpleNamespace(**self.f), PEERS[self.peer]
        headers = b""
        if f.xpeth:
            headers += frames.xp_header(f.seq, f.msg_len, f.offset, f.generation, f.tag, f.tracked << 7 | f.echo << 6)
        if f.reth:
            headers += frames.reth(f.va, f.rkey, f.dma_len)
        if f.immdt:
            headers += frames.immediate(f.imm)
        frame = frames.build(f.opcode, f.dest_qpn, headers=headers, payload=self.payload, psn=f.psn, solicited=f.solicited,
                             pkey=PKEY, fecn_becn=f.becn << 6, src=LOCAL_IP6 if p.ip.version == 6 else LOCAL_IP4, dst=str(p.ip),
                             sport=f.sport, tos=f.tclass, ttl=HOP_LIMIT, src_mac=LOCAL_MAC, dst_mac=p.mac, vlan=p.tci)
        return frame + bytes(max(0, 60 - len(frame)))

    def record(self, beat, lanes):
        return self.f | dict(peer=self.peer, len=len(self.payload), silent=self.silent, failed=self.failed, beat=beat,
                             lane=self.lane, beats=self.beats(lanes))


class Bench:
    """Runs `packets` and `host` frames through `dut`. Pauses are probabilities per cycle; `ready` and `enable` are functions of
    the cycle; `gaps`: tvalid must not drop within a frame, whatever tready does.

    Afterwards: `frames`: (cycle of the first beat, cycle of the last, bytes) as accepted by the MAC; `done`: (cycle, sent,
    failed); `sent_bytes`: (0 ours or 1 the host's, bytes); `taken`: cycle in which each packet was taken. The buffer's beats are
    overwritten as soon as `rd_pointer` has passed them.
    """

    def __init__(self, dut, rng, *, mac_pause=0.0, packet_pause=0.0, host_pause=0.0, ready=None, enable=None, gaps=True):
        self.dut, self.cfg, self.rng = dut, dut.cfg, rng
        self.mac_pause, self.packet_pause, self.host_pause = mac_pause, packet_pause, host_pause
        self.enable = enable or (lambda cycle: 1)
        self.ready, self.gaps = ready, gaps
        self.reset = Signal()
        self.frames, self.done, self.sent_bytes, self.taken, self.enabled = [], [], [], [], []

    def run(self, packets, host=(), *, cycles=None, reset_at=None, after_reset=(), tail=60):
        sim = Simulator(ResetInserter(self.reset)(self.dut))
        sim.add_clock(1e-8)
        self.packets, self.host, self.limit = list(packets), list(host), cycles
        self.reset_at, self.after_reset = reset_at, after_reset
        self.tail = tail
        sim.add_testbench(self.bench)
        sim.run()
        return self

    def restart(self):
        cfg = self.cfg
        self.memory = [self.rng.getrandbits(cfg.data_width) for _ in range(cfg.tx_buffer_beats)]
        self.write_pointer = self.freed = self.next = self.host_next = 0
        self.current, self.begun = b"", None
        self.host_beats = []
        self.offered = False
        self.offered_host = self.held = None

    async def bench(self, ctx):
        dut, cfg = self.dut, self.cfg
        self.restart()
        await self.configure(ctx)
        reads = [0, 0]
        quiet = cycle = 0
        while quiet < self.tail and (self.limit is None or cycle < self.limit):
            assert cycle < 200_000
            if cycle == self.reset_at:
                ctx.set(self.reset, 1)
                await ctx.tick()
                ctx.set(self.reset, 0)
                self.packets, self.frames, self.done, self.sent_bytes, self.taken = list(self.after_reset), [], [], [], []
                ctx.set(dut.packets.valid, 0)
                self.host = []
                if cfg.pass_through:
                    ctx.set(dut.host_tx.tvalid, 0)
                self.restart()
                await self.configure(ctx)
            self.drive(ctx, cycle)
            ctx.set(dut.rd_data, reads.pop(0))
            ready = self.ready(cycle) if self.ready else self.rng.random() >= self.mac_pause
            ctx.set(dut.mac_tx.tready, ready)
            taken = self.offered and ctx.get(dut.packets.ready)
            host_taken = self.offered_host is not None and ctx.get(dut.host_tx.tready)
            self.watch(ctx, cycle, ready)
            reads.append(self.memory[ctx.get(dut.rd_addr)])
            self.free(ctx.get(dut.rd_pointer))
            idle = ctx.get(dut.idle)
            if taken:
                self.taken.append(cycle)
                self.next += 1
                self.offered = False
            if host_taken:
                self.offered_host = None
            busy = self.next < len(self.packets) or self.host_next < len(self.host) or self.host_beats or self.begun is not None
            quiet = quiet + 1 if idle and not busy else 0
            if idle:
                assert not self.offered and self.begun is None
            cycle += 1
            await ctx.tick()
            if taken:
                ctx.set(dut.packets.valid, 0)
            if host_taken:
                ctx.set(dut.host_tx.tvalid, 0)
        self.cycles = cycle

    async def configure(self, ctx):
        dut, cfg = self.dut, self.cfg
        number = lambda text: int(ip_address(text))
        ctx.set(dut.local.mac, int(LOCAL_MAC.replace(":", ""), 16)), ctx.set(dut.local.ip4, number(LOCAL_IP4))
        ctx.set(dut.local.ip6, number(LOCAL_IP6)), ctx.set(dut.local.hop_limit, HOP_LIMIT), ctx.set(dut.local.pkey, PKEY)
        while ctx.get(dut.clearing):
            await ctx.tick()
        for i, peer in enumerate(PEERS):
            entry = peer.entry()
            if not cfg.ipv6:
                entry["ip"] &= 0xFFFFFFFF
            ctx.set(dut.peer_set.en, 1), ctx.set(dut.peer_set.index, i), ctx.set(dut.peer_set.entry, entry)
            await ctx.tick()
        ctx.set(dut.peer_set.en, 0)
        await ctx.tick().repeat(4)

    def drive(self, ctx, cycle):
        dut, lanes = self.dut, self.cfg.beat_bytes
        ctx.set(dut.enable, self.enable(cycle))
        self.enabled.append(self.enable(cycle))
        if not self.offered and self.next < len(self.packets) and self.rng.random() >= self.packet_pause:
            packet = self.packets[self.next]
            count = packet.beats(lanes)
            if self.write_pointer + count - self.freed <= len(self.memory):
                image = self.rng.randbytes(packet.lane) + packet.payload
                image += self.rng.randbytes(count * lanes - len(image) if count else 0)
                for i in range(count):
                    at = (self.write_pointer + i) % len(self.memory)
                    self.memory[at] = int.from_bytes(image[i * lanes:(i + 1) * lanes], "little")
                ctx.set(dut.packets.payload, packet.record(self.write_pointer % len(self.memory), lanes))
                ctx.set(dut.packets.valid, 1)
                self.offered = True
                self.write_pointer += count
        if self.cfg.pass_through and self.offered_host is None and self.rng.random() >= self.host_pause:
            if not self.host_beats and self.host_next < len(self.host):
                frame = self.host[self.host_next]
                self.host_beats = [frame[i:i + lanes] for i in range(0, len(frame), lanes)]
                self.host_next += 1
            if self.host_beats:
                part = self.host_beats.pop(0)
                self.offered_host = part
                junk = part + self.rng.randbytes(lanes - len(part))
                ctx.set(dut.host_tx.tdata, int.from_bytes(junk, "little")), ctx.set(dut.host_tx.tkeep, (1 << len(part)) - 1)
                ctx.set(dut.host_tx.tlast, not self.host_beats), ctx.set(dut.host_tx.tvalid, 1)

    def watch(self, ctx, cycle, ready):
        dut, mac, lanes = self.dut, self.dut.mac_tx, self.cfg.beat_bytes
        valid = ctx.get(mac.tvalid)
        offer = tuple(ctx.get(getattr(mac, name)) for name in ("tdata", "tkeep", "tlast")) if valid else None
        assert self.held is None or offer == self.held, f"cycle {cycle}: an offer changed"
        self.held = None if ready else offer
        if self.begun is not None and self.gaps:
            assert valid, f"cycle {cycle}: gap in a frame"
        if valid and ready:
            keep, last = ctx.get(mac.tkeep), ctx.get(mac.tlast)
            count = keep.bit_length()
            assert keep == (1 << count) - 1 and keep and (last or count == lanes) and not ctx.get(mac.tuser)
            if self.begun is None:
                self.begun = cycle
            self.current += ctx.get(mac.tdata).to_bytes(lanes, "little")[:count]
            if last:
                self.frames.append((self.begun, cycle, self.current))
                self.current, self.begun = b"", None
        if ctx.get(dut.done.valid):
            self.done.append((cycle, ctx.get(dut.done.payload.sent), ctx.get(dut.done.payload.failed)))
        ours, theirs = ctx.get(dut.event_frame_sent), ctx.get(dut.event_host_frame_sent)
        assert not (ours and theirs) and ctx.get(dut.sent_bytes.valid) == (ours or theirs)
        if ours or theirs:
            self.sent_bytes.append((theirs, ctx.get(dut.sent_bytes.bytes)))

    def free(self, pointer):
        """Beats that were given back are overwritten at once: nothing may need them."""
        while (self.freed - pointer) % (2 * len(self.memory)):
            assert self.freed < self.write_pointer
            self.memory[self.freed % len(self.memory)] = self.rng.getrandbits(self.cfg.data_width)
            self.freed += 1


def check(bench):
    """Every packet's frame and every frame of the host, in order; done pulses; counters; beats freed."""
    ours = [p.frame() for p in bench.packets if p.sent]
    theirs = [f + bytes(max(0, 60 - len(f))) for f in bench.host]
    got = [f for *_, f in bench.frames]
    kinds = [kind for kind, _ in bench.sent_bytes]
    assert [size for _, size in bench.sent_bytes] == [len(f) for f in got]
    assert kinds.count(0) == len(ours) and kinds.count(1) == len(theirs)
    for kind, expected in ((0, ours), (1, theirs)):
        found = [f for f, k in zip(got, kinds) if k == kind]
        for i, (a, b) in enumerate(zip(found, expected)):
            assert a == b, f"{'host' if kind else 'frame'} {i}: {a.hex()} is not {b.hex()}"
    assert [(sent, failed) for _, sent, failed in bench.done] == [(p.sent, p.failed) for p in bench.packets]
    assert bench.freed == bench.write_pointer
    return bench


def run(packets, rng, *, width=64, knobs=None, host=(), **bench):
    """A checked run of a small configuration."""
    return check(Bench(FrameBuilder(TINY.with_(data_width=width, **(knobs or {}))), rng, **bench).run(packets, host))


def host_frames(rng, sizes):
    return [rng.randbytes(n) for n in sizes]
