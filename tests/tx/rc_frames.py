"""The whole send half of transport rc between a host's memory and the cable, and what the captures of a real peer say that it was asked for."""

from collections import deque
from pathlib import Path
import re
import struct
from types import SimpleNamespace
import zlib

from amaranth.sim import Simulator

from optinic.abi.registers import MTU_CODE, QP_TYPE
from optinic.abi.structs import SEND_OP, SEND_WQE
from optinic.config import preset
from optinic.tx.records import Event
from optinic.tx.transmit import Transmit

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
A, B = ("02:00:0a:4d:00:01", "10.77.0.1"), ("02:00:0a:4d:00:02", "10.77.0.2")
SQ_BASE, BUFFERS = 0x10_0000, 0x50_0000


def number(text):
    parts = text.split(":") if ":" in text else None
    return int("".join(parts), 16) if parts else int.from_bytes(bytes(map(int, text.split("."))), "big")


def captured(name, sender):
    """The frames of one side of an IPv4 capture without tags."""
    raw = (GOLDEN / f"{name}.pcap").read_bytes()
    at, out = 24, []
    while at < len(raw):
        size = struct.unpack_from("<I", raw, at + 8)[0]
        out.append(raw[at + 16:at + 16 + size])
        at += 16 + size
    mine = bytes(map(int, sender[1].split(".")))
    return [f for f in out if f[26:30] == mine]


def requests(name):
    """(options, [(operation, size)]) of the row of a capture in the README."""
    row = next(line for line in (GOLDEN / "README.md").read_text().splitlines() if line.startswith(f"| {name}.pcap "))
    words = re.search(r"`rxv ?([^`]*?): ([^`]*)`", row)
    options = dict(re.findall(r"-(\w) (\S+)", words.group(1)))
    works = []
    for word in words.group(2).split():
        op, size, times = re.fullmatch(r"([a-z]+)(?::(\d+))?(?:\(x(\d+)\))?", word).groups()
        works += [(op, int(size or 0))] * int(times or 1)
    return options, works


def pattern(n, size):
    return bytes((7 * i + 3 * (i >> 8) + 31 * n + 1) & 255 for i in range(size))


def fields_of(frame):
    f = SimpleNamespace(opcode=frame[42], flags=frame[43], qpn=int.from_bytes(frame[47:50], "big"), psn=int.from_bytes(frame[51:54], "big"))
    f.body = frame[54:14 + int.from_bytes(frame[16:18], "big") - 4]
    f.word = int.from_bytes(f.body[:4], "big")
    f.va, f.rkey = (struct.unpack(">QI", f.body[:12]) if len(f.body) >= 12 else (0, 0))
    return f


def icrc(frame):
    """Of an IPv4 frame, from its bytes."""
    end = 14 + int.from_bytes(frame[16:18], "big") - 4
    data = bytearray(b"\xff" * 8 + frame[14:end])
    for i in (1, 8, 10, 11, 26, 27, 32):        # TOS, TTL, checksums, the congestion bits of the BTH
        data[8 + i] = 0xFF
    return zlib.crc32(data).to_bytes(4, "little")


def compared(frame):
    """What must agree: all but identification, TTL, IP checksum, UDP source port, ICRC."""
    f, end = bytearray(frame), 14 + int.from_bytes(frame[16:18], "big")
    for i in (18, 19, 22, 24, 25, 34, 35, *range(end - 4, end)):
        f[i] = 0
    return bytes(f[:end])


class Card:
    """Runs Transmit; `frames` collects what came out. One QP, number 1, whose peer's is `qpn`."""

    def __init__(self, me, peer, qpn, *, uc=False, psn, mtu=1024, tclass=0):
        self.cfg = preset("tiny", transport="rc", congestion="none", data_width=256)
        self.dut = Transmit(self.cfg)
        self.me, self.peer, self.qpn, self.uc, self.psn, self.mtu, self.tclass = me, peer, qpn, uc, psn, mtu, tclass
        self.memory, self.frames, self.posted, self.next = {}, [], 0, BUFFERS
        self.bells, self.jobs, self.acks, self.progress = deque(), deque(), deque(), deque()
        self.outstanding, self.failed, self.answered = [], [], []

    def store(self, at, data):
        self.memory.update((at + i, byte) for i, byte in enumerate(data))

    def buffer(self, data):
        at = self.next + 1 + len(data) % 7
        self.store(at, data)
        self.next = at + len(data) + 9
        return at

    def post(self, opcode, length, data=b"", **fields):
        fields = {"va": self.buffer(data), "lkey": 5} | fields
        self.store(SQ_BASE + (1 * self.cfg.sq_entries + self.posted % self.cfg.sq_entries) * 64,
                   SEND_WQE.pack(opcode=SEND_OP[opcode], length=length, **fields))
        self.posted += 1
        self.bells.append(1 << 16 | self.posted)

    async def process(self, ctx):
        d, lanes = self.dut, self.cfg.beat_bytes
        ctx.set(d.sq_base, SQ_BASE), ctx.set(d.dma_timeout, 5000), ctx.set(d.jobs.ready, 1)
        ctx.set(d.local.mac, number(self.me[0])), ctx.set(d.local.ip4, number(self.me[1])), ctx.set(d.local.hop_limit, 64)
        ctx.set(d.local.pkey, 0xFFFF), ctx.set(d.wqe_axi.arready, 1), ctx.set(d.payload_axi.arready, 1), ctx.set(d.query.ready, 1)
        ctx.set(d.mac_tx.tready, 1), ctx.set(d.enable, 1)
        ctx.set(d.common, dict(state=2, type=QP_TYPE["uc" if self.uc else "rc"], mtu=MTU_CODE[self.mtu], pd=1, peer=3, cq=0, tag=0))
        while ctx.get(d.clearing):
            await ctx.tick()
        ctx.set(d.context_set.qp, 1), ctx.set(d.context_set.entry, dict(cq=0, dest_qpn=self.qpn, tclass=self.tclass)), ctx.set(d.context_set.en, 1)
        ctx.set(d.peer_set.index, 3), ctx.set(d.peer_set.entry, dict(mac=number(self.peer[0]), ip=number(self.peer[1]))), ctx.set(d.peer_set.en, 1)
        await ctx.tick()
        ctx.set(d.context_set.en, 0), ctx.set(d.peer_set.en, 0)
        reset = deque([dict(kind=Event.RESET, qp=1, psn=self.psn, uc=int(self.uc), window=0)])
        ports = [(d.commands, reset), (d.doorbells, self.bells), (d.reads, self.jobs), (d.acks, self.acks), (d.progress, self.progress)]
        readers = [(d.wqe_axi, deque()), (d.payload_axi, deque())]
        queries, frame, fenced = deque(), b"", False
        while True:
            for port, queue in ports:
                ready = bool(queue) and (fenced or port is d.commands)
                ctx.set(port.valid, ready)
                if ready:
                    ctx.set(port.payload, queue[0])
            for axi, waiting in readers:
                ctx.set(axi.rvalid, bool(waiting))
                if waiting:
                    rid, at, last = waiting[0]
                    ctx.set(axi.rid, rid), ctx.set(axi.rlast, last)
                    ctx.set(axi.rdata, int.from_bytes(bytes(self.memory.get(at + i, 0) for i in range(lanes)), "little"))
            ctx.set(d.answer.valid, bool(queries))
            if queries:
                ctx.set(d.answer.payload, dict(addr=queries.popleft()))
            for port, queue in ports:
                if ctx.get(port.valid) and ctx.get(port.ready):
                    queue.popleft()
            for axi, waiting in readers:
                if waiting and ctx.get(axi.rready):
                    waiting.popleft()
                if ctx.get(axi.arvalid):
                    at, beats = ctx.get(axi.araddr) & -lanes, ctx.get(axi.arlen) + 1
                    waiting.extend((ctx.get(axi.arid), at + lanes * i, i == beats - 1) for i in range(beats))
            if ctx.get(d.query.valid):
                queries.append(ctx.get(d.query.payload.va))
            if ctx.get(d.mac_tx.tvalid):
                count = ctx.get(d.mac_tx.tkeep).bit_length()
                frame += ctx.get(d.mac_tx.tdata).to_bytes(lanes, "little")[:count]
                if ctx.get(d.mac_tx.tlast):
                    self.frames.append(frame)
                    frame = b""
            if ctx.get(d.outstanding.valid):
                p = d.outstanding.payload
                self.outstanding.append((ctx.get(p.index), ctx.get(p.end_psn)))
                self.progress.append(dict(qp=1, una=ctx.get(p.index) + 1))      # as if it were acknowledged at once
            if ctx.get(d.failed.valid):
                self.failed.append(ctx.get(d.failed.payload.index))
            self.answered += [1] if ctx.get(d.answered.valid) else []
            fenced |= bool(ctx.get(d.fence_done))
            await ctx.tick()

    def run(self, count, steps=(), limit=30_000):
        """Until `count` frames have left; `steps` are (frames that must have left before, what to do)."""
        sim = Simulator(self.dut)
        sim.add_clock(8e-9)

        async def testbench(ctx):
            todo = deque(steps)
            for _ in range(limit):
                while todo and len(self.frames) >= todo[0][0]:
                    todo.popleft()[1]()
                if len(self.frames) >= count:
                    await ctx.tick().repeat(200)
                    return
                await ctx.tick()
            raise AssertionError(f"only {len(self.frames)} of {count} frames")
        sim.add_testbench(self.process, background=True)
        sim.add_testbench(testbench)
        sim.run()
        return self.frames


def check(frames, golden):
    """Inside a message the peer asks for an ACK when it likes, and this card where the PSN is 63 modulo 64."""
    for i, (ours, theirs) in enumerate(zip(frames, golden)):
        f = fields_of(theirs)
        if f.opcode in (0, 1, 6, 7):
            theirs = theirs[:50] + (b"\x80" if f.psn % 64 == 63 else b"\0") + theirs[51:]
        size = 14 + int.from_bytes(ours[16:18], "big")
        assert ours[size - 4:size] == icrc(ours) and not any(ours[size:])
        a, b = compared(ours), compared(theirs)
        assert a == b, f"frame {i}:\n{a.hex()} is not\n{b.hex()}"
    assert len(frames) == len(golden)
