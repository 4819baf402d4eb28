"""A host memory with an AXI read port, a source of packets and a frame builder around PayloadReader, cycle by cycle.

Everything is checked as it happens: each burst against the payload of the packets in their order, each loaded packet
against the packet that went in, its payload, read back from the buffer at the latest possible time, against host memory.
"""

from collections import deque
from random import Random

from amaranth.hdl import Cat, ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.config import preset
from optinic.tx.packet import header_members
from optinic.tx.reader import PayloadReader

ROOM = 65521            # memory repeats itself after so many bytes, a prime
TOP = 1 << 64


def small_cfg(width=64, **knobs):
    return preset("tiny", **(dict(data_width=width, tx_reads_outstanding=16, mtu_max=512, tx_buffer_bytes=4096,
                                  rx_buffer_bytes=32768) | knobs))


class Packet:
    def __init__(self, number, **members):
        self.number, self.members = number, members
        self.__dict__.update({name: members[name] for name in ("len", "silent", "inline", "inline_data", "addr")})
        self.reads = bool(self.len and not self.inline and not self.silent)
        self.asked = 0                      # bursts so far
        self.damaged = self.unanswered = False
        self.accepted = self.first_asked = self.complete = self.head = self.delivered = self.id = None


class Burst:
    def __init__(self, packet, addr, beats, due, kind, rng):
        self.packet, self.addr, self.beats, self.due, self.kind, self.beat = packet, addr, beats, due, kind, 0
        self.bad = rng.randrange(beats)
        if kind == "short" and beats == 1:
            self.kind = "error"
        self.last = {"short": rng.randrange(max(1, beats - 1)), "long": beats + rng.randrange(3)}.get(self.kind, beats - 1)


class Bench:
    """`answer(packet, burst, cycle)` -> (latency, kind) decides on each burst; kinds: ok, error, short, long, never. Of the
    answers that are due, in order within an ID, any one comes next; after each beat, with probability `mix`, it is another
    one's turn (`oldest_first`: the oldest read comes next). With probability `stray` an idle cycle of R has a beat with an
    ID of no open read. `gap`, `packet_gap`: probability of a pause; `ar_ready`, `out_ready`, `rd_ready`: of going on (AR,
    `loaded`, the reading of the buffer). `verify` off: the buffer is read, but not compared."""

    def __init__(self, ctx, dut, cfg, rng, *, answer=None, gap=0.0, packet_gap=0.0, ar_ready=1.0, out_ready=1.0, rd_ready=1.0,
                 mix=0.0, stray=0.0, timeout=100_000, oldest_first=False, verify=True):
        self.ctx, self.dut, self.cfg, self.rng, self.verify = ctx, dut, cfg, rng, verify
        self.answer = answer or (lambda packet, burst, cycle: (20, "ok"))
        self.gap, self.packet_gap, self.ar_ready, self.out_ready, self.rd_ready = gap, packet_gap, ar_ready, out_ready, rd_ready
        self.mix, self.stray, self.oldest_first = mix, stray, oldest_first
        pool = rng.randbytes(ROOM)
        self.pool = pool + pool[:8192]
        self.bytes, self.slots = cfg.beat_bytes, cfg.tx_reads_outstanding
        self.block = min(4096, 256 * self.bytes)
        self.layout = dut.packets.payload.shape()
        self.headers = list(header_members(cfg))
        self.cycle = self.number = self.place = self.pointer = 0
        self.forget()
        self.seen, self.log, self.r_log, self.accept_log, self.begun = [], [], [], [], []
        self.failed = self.errors = self.strays = self.overtaken = self.swallowed = self.hopeless = 0
        self.all_retired = -100
        self.set_timeout(timeout)

    def set_timeout(self, cycles):
        self.timeout = cycles
        self.ctx.set(self.dut.dma_timeout, cycles)

    def forget(self):
        self.queue, self.inside, self.to_ask, self.to_read, self.flight = deque(), deque(), deque(), deque(), deque()
        self.open = {}                      # ID -> its unanswered bursts, oldest first
        self.offered = self.shown = self.showing = self.ar_held = self.out_held = None
        self.place = self.pointer = 0
        self.inputs = None

    # -- packets -----------------------------------------------------------------------------------

    def memory(self, addr, size):
        return self.pool[addr % ROOM:addr % ROOM + size]

    def send(self, size, addr=0, *, inline=0, silent=0):
        members = {name: self.rng.getrandbits(max(1, self.layout[name].width)) for name in self.headers}
        members.update(len=size, some=int(size != 0), silent=silent, inline=inline, inline_data=self.rng.getrandbits(256), addr=addr)
        self.number += 1
        packet = Packet(self.number, **members)
        self.queue.append(packet)
        return packet

    def send_any(self, *, inline=.15, empty=.1, silent=.05):
        """A packet of any kind; sizes and addresses are such that the corners come often."""
        rng, mtu = self.rng, self.cfg.mtu_max
        if rng.random() < inline:
            size = rng.choice((0, 1, 31, 32, rng.randrange(33)))
            return self.send(size, rng.getrandbits(64), inline=1, silent=rng.random() < silent)
        size = rng.choice((1, 2, self.bytes, self.bytes + 1, mtu - 1, mtu, mtu, rng.randrange(1, mtu), rng.randrange(1, mtu)))
        size = 0 if rng.random() < empty else size
        block = rng.choice((0, 1, rng.getrandbits(52), TOP // 4096 - 2)) * 4096
        addr = rng.choice((
            block, block + rng.randrange(4096), block + rng.randrange(4096), block + 4096 - rng.randrange(1, size + 2),
            block + self.block * rng.randrange(4096 // self.block) + self.block - rng.randrange(1, size + 2), TOP - size))
        return self.send(size, min(addr % TOP, TOP - size) if size else addr % TOP, silent=rng.random() < silent)

    def beats_of(self, packet):
        if packet.silent or not packet.len:
            return 0, 0
        lane = 0 if packet.inline else packet.addr % self.bytes
        return lane, -(-(lane + packet.len) // self.bytes)

    def payload_of(self, packet):
        if packet.inline:
            return packet.inline_data.to_bytes(32, "little")[:packet.len]
        return self.memory(packet.addr, packet.len)

    # -- a cycle -------------------------------------------------------------------------------------

    async def step(self):
        ctx, dut, rng, axi = self.ctx, self.dut, self.rng, self.dut.axi
        if self.offered is None and self.queue and rng.random() >= self.packet_gap:
            self.offered = self.queue[0]
            ctx.set(dut.packets.payload.as_value(), self.layout.const(self.offered.members).as_value().value)
        if self.shown is None and rng.random() >= self.gap:
            self._next_beat()
        ar_ready, out_ready = rng.random() < self.ar_ready, rng.random() < self.out_ready
        r_ready = ctx.get(axi.rready)       # depends on none of the inputs
        if self.shown is not None and self.showing is None and not r_ready:
            ar_ready = False                # or a read of that ID might be open when R takes the beat
        inputs = ((self.offered is not None) | (self.shown is not None) << 1 | ar_ready << 2 | out_ready << 3 | self.pointer << 4)
        if inputs != self.inputs:           # each `set` costs as much as a cycle
            self.inputs = inputs
            ctx.set(Cat(dut.packets.valid, axi.rvalid, axi.arready, dut.loaded.ready, dut.rd_pointer), inputs)

        if self.offered is not None and ctx.get(dut.packets.ready):
            self._accepted(self.queue.popleft())
            self.offered = None
        self._answered(r_ready)
        self._ar(ar_ready)
        self._out(out_ready)
        address = self._read_buffer()
        assert not (self.inside and ctx.get(dut.idle)), f"cycle {self.cycle}: not idle"
        self.errors += ctx.get(dut.read_error)
        if address is not None:             # the beat is free from the next cycle on
            self.pointer = (self.pointer + 1) % (2 * self.cfg.tx_buffer_beats)
        lost = [bursts[0].packet for bursts in self.open.values()] + [p for p in self.to_ask if not p.asked]
        if sum(self.cycle - p.accepted > self.timeout for p in lost) >= self.slots:
            self.all_retired = self.cycle   # or may be: when the reader gives up can't be seen while `loaded` is stuck
        await ctx.tick()
        self.cycle += 1

    def _accepted(self, packet):
        packet.accepted = self.cycle
        self.accept_log.append(self.cycle)
        if not self.inside:
            packet.head = self.cycle
        self.inside.append(packet)
        if packet.reads:
            self.to_ask.append(packet)

    def _ar(self, ready):
        ctx, axi = self.ctx, self.dut.axi
        if not ctx.get(axi.arvalid):
            assert self.ar_held is None, f"cycle {self.cycle}: AR withdrawn"
            return
        offer = tuple(ctx.get(getattr(axi, name)) for name in ("arid", "araddr", "arlen", "arsize", "arburst"))
        assert self.ar_held in (None, offer), f"cycle {self.cycle}: AR changed"
        self.ar_held = None if ready else offer
        if not ready:
            return
        ident, addr, length, size, burst = offer
        beats = length + 1
        assert 1 << size == self.bytes and burst == 1 and addr % self.bytes == 0
        assert addr % self.block + beats * self.bytes <= self.block, f"cycle {self.cycle}: burst crosses a boundary"
        assert 0x80 <= ident < 0x80 + self.slots
        while True:
            assert self.to_ask, f"cycle {self.cycle}: a burst that no packet needs"
            packet = self.to_ask[0]
            first = packet.addr // self.bytes * self.bytes
            if packet.asked == 0 and addr != first:     # it must come back as one that failed at once
                self.to_ask.popleft()
                continue
            break
        end = -(-(packet.addr + packet.len) // self.bytes) * self.bytes
        want = first if packet.asked == 0 else (first // self.block + packet.asked) * self.block
        stop = min(end, (want // self.block + 1) * self.block)
        assert (addr, addr + beats * self.bytes) == (want, stop), \
            f"cycle {self.cycle}: burst {addr:#x} + {beats} of packet {packet.addr:#x} + {packet.len}"
        bursts = self.open.setdefault(ident, deque())
        if packet.asked == 0:
            assert not bursts, f"cycle {self.cycle}: ID {ident:#x} is in use"
            packet.id, packet.first_asked = ident, self.cycle
            self.begun.append(packet)
        assert ident == packet.id
        packet.asked += 1
        if stop == end:
            self.to_ask.popleft()
        latency, kind = self.answer(packet, packet.asked - 1, self.cycle)
        packet.damaged |= kind in ("error", "short", "long")
        packet.whole = stop == end
        bursts.append(Burst(packet, addr, beats, self.cycle + latency, kind, self.rng))

    def _next_beat(self):
        ctx, axi, rng = self.ctx, self.dut.axi, self.rng
        due = [ident for ident, bursts in self.open.items() if bursts[0].due <= self.cycle and bursts[0].kind != "never"]
        if not due:
            if rng.random() >= self.stray:
                return
            closed = set(range(256)) - set(self.open) - ({self.ar_held[0]} if self.ar_held else set())
            near = sorted(i for i in closed if 0x80 <= i < 0x80 + self.slots)
            ident = rng.choice(near if near and rng.random() < .8 else sorted(closed))
            self.strays += 1
            self.showing, self.shown = None, (ident, rng.getrandbits(8 * self.bytes), rng.choice((0, 0, 2)), rng.random() < .4)
        else:
            if self.showing not in due or rng.random() < self.mix:
                self.showing = due[0] if self.oldest_first else rng.choice(due)
            self.shown = (self.showing, *self._beat(self.open[self.showing][0]))
        ident, data, resp, last = self.shown
        ctx.set(Cat(axi.rid, axi.rresp, axi.rlast, axi.rdata), ident | resp << 8 | last << 10 | data << 11)

    def _beat(self, burst):
        error = burst.kind == "error" and burst.beat == burst.bad
        data = self.rng.getrandbits(8 * self.bytes)
        if not error and burst.beat < burst.beats:
            data = int.from_bytes(self.memory(burst.addr + burst.beat * self.bytes, self.bytes), "little")
        return data, self.rng.choice((1, 2, 3)) if error else 0, burst.beat == burst.last

    def _answered(self, ready):
        self.r_log.append((self.shown is not None, ready))
        if self.shown is None or not ready:
            return
        ident, _, _, last = self.shown
        self.shown = None
        if self.showing is None:
            return
        bursts = self.open[ident]
        bursts[0].beat += 1
        packet = bursts[0].packet
        self.swallowed += packet.delivered is not None
        if last:
            self.overtaken += any(p.number < packet.number and p.complete is None for p in self.begun[-2 * self.slots:])
            if packet.whole and len(bursts) == 1:
                packet.complete = self.cycle
            bursts.popleft()
            if not bursts:
                del self.open[ident]

    def _read_buffer(self):
        """The next address for the buffer, and what the one of two cycles ago gave."""
        ctx, dut = self.ctx, self.dut
        address = None
        if self.to_read and self.rng.random() < self.rd_ready:
            job = self.to_read[0]
            address = (job[1] + job[3]) % self.cfg.tx_buffer_beats
            ctx.set(dut.rd_addr, address)
            job[3] += 1
            if self.verify:
                self.flight.append((job[0], job[2], job[3] == job[2], self.cycle + 2))
            if job[3] == job[2]:
                self.to_read.popleft()
        if self.flight and self.flight[0][3] == self.cycle:
            packet, beats, last, _ = self.flight.popleft()
            packet.got = getattr(packet, "got", b"") + ctx.get(dut.rd_data).to_bytes(self.bytes, "little")
            if last:
                lane, want = self.beats_of(packet)[0], self.payload_of(packet)
                if not packet.failed:
                    assert packet.got[lane:lane + packet.len] == want, \
                        f"cycle {self.cycle}: wrong payload of packet {packet.number}"
                packet.got = None
        return address

    def _out(self, ready):
        ctx, loaded = self.ctx, self.dut.loaded
        if not ctx.get(loaded.valid):
            assert self.out_held is None, f"cycle {self.cycle}: loaded withdrawn"
            return
        bits = ctx.get(loaded.payload.as_value())
        assert self.out_held in (None, bits), f"cycle {self.cycle}: loaded changed"
        if self.out_held is None:
            self.seen.append(self.cycle)
            self.inside[0].shown = self.cycle
        self.out_held = None if ready else bits
        if not ready:
            return
        assert self.inside, f"cycle {self.cycle}: loaded without a packet"
        packet = self.inside.popleft()
        got = loaded.payload.shape().from_bits(bits)
        for name in self.headers:
            assert got[name] == packet.members[name], f"cycle {self.cycle}: {name} of packet {packet.number}"
        lane, beats = self.beats_of(packet)
        packet.failed, packet.delivered = got.failed, self.cycle
        if self.inside:
            self.inside[0].head = self.cycle
        if got.failed:
            self.failed += 1
            assert packet.reads
            beats = self._excused(packet, got.beats, beats)
        elif packet.reads:
            assert packet.complete is not None and packet.complete + 3 <= packet.shown, \
                f"cycle {self.cycle}: packet {packet.number} isn't complete"
            assert not packet.damaged, f"cycle {self.cycle}: damage of packet {packet.number} went unnoticed"
        assert got.beats == beats, f"cycle {self.cycle}: {got.beats} beats, not {beats}"
        if beats:
            assert (got.beat, got.lane) == (self.place, lane), \
                f"cycle {self.cycle}: packet {packet.number} at {got.beat}.{got.lane}, not {self.place}.{lane}"
            self.to_read.append([packet, got.beat, beats, 0])
        self.place = (self.place + beats) % self.cfg.tx_buffer_beats
        self.log.append(packet)

    def _excused(self, packet, got, beats):
        """Whether it may have failed; the beats that it may own."""
        if got == 0:
            assert self.all_retired >= packet.accepted - 8, f"cycle {self.cycle}: packet {packet.number} failed for nothing"
            assert not packet.asked
            self.hopeless += 1
            if packet in self.to_ask:
                self.to_ask.remove(packet)
            return 0
        in_time = packet.complete is not None and packet.complete + 4 <= packet.accepted + self.timeout
        late = packet.shown - packet.accepted > self.timeout and not in_time
        answered = packet.damaged and packet.complete is not None
        assert late or answered, f"cycle {self.cycle}: packet {packet.number} failed for nothing"
        return beats

    # -- runs ----------------------------------------------------------------------------------------

    async def run(self, cycles):
        for _ in range(cycles):
            await self.step()

    async def until(self, condition, limit=20_000):
        for _ in range(limit):
            if condition():
                return
            await self.step()
        raise AssertionError(f"not so after {limit} cycles: {len(self.queue)} to offer, "
                             f"{len(self.inside)} inside, {len(self.open)} IDs open")

    async def drain(self, limit=20_000):
        """Until everything has come back and was read."""
        await self.until(lambda: not self.queue and not self.inside and not self.to_read and not self.flight
                         and self.ctx.get(self.dut.idle), limit)
        assert self.errors == self.failed

    async def reset(self):
        """The card and its AXI port are reset together: nothing that was under way comes back."""
        ctx, dut = self.ctx, self.dut
        ctx.set(self.reset_signal, 1)
        ctx.set(dut.packets.valid, 0)
        ctx.set(dut.axi.rvalid, 0)
        ctx.set(dut.rd_pointer, 0)
        await ctx.tick()
        ctx.set(self.reset_signal, 0)
        self.forget()
        self.cycle += 1
        self.errors = self.failed = 0
        self.begun.clear()
        self.all_retired = -100


def simulate(cfg, scenario, seed, *, reader=PayloadReader, **options):
    """Run `async scenario(bench)` around a fresh reader; returns the bench."""
    print(f"seed {seed}")
    rng = Random(seed)
    dut, reset = reader(cfg), Signal()
    sim = Simulator(ResetInserter(reset)(dut))
    sim.add_clock(1e-6)
    kept = []

    async def testbench(ctx):
        bench = Bench(ctx, dut, cfg, rng, **options)
        bench.reset_signal = reset
        kept.append(bench)
        await scenario(bench)
    sim.add_testbench(testbench)
    sim.run()
    return kept[0]
