"""Two cards at work, the same work at each run, and an account of whether what they said and did is right.

Every connection has, in each direction and round, one SEND, one WRITE with immediate or one READ under way. A round ends when all
of it has ended, or when the time is up by which it has to. With transport xp every receive, send and READ has a deadline; with rc
requests end by their ACK timer and its retries. After the rounds the driver does what a driver can for a queue pair in trouble:
it gives both ends a new life and sends a message each way.

The host interface's interrupts are not used, nor are atomics, arrival maps, IPv6 and VLAN tags, in which the two transports would
differ or which the other does not have.
"""

from collections import Counter
from dataclasses import dataclass, field
import random

from host_driver.backends.simulation import SimulatedCards
from host_driver.errors import OptinicError
from host_driver.verbs import (CQ, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_READ,
                               IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, MR, PD, QP, QPCap, QPInitAttr, QPState, RecvWR,
                               SendWR)
from host_driver.verbs.opening import Cards
from sim.device import SimDevice

__all__ = ["Workload", "Hung", "ROUNDS", "INJECTED_ROUNDS", "Message"]

ROWS = 12                   #: rows of the queue pair tables in use, of 16 that preset tiny has
ROUNDS, INJECTED_ROUNDS = 3, 2
SIZES = (64, 700, 1100, 2500)
OPS = (IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ)
ROOM, FILL = 2560, 0xEE     # of a message's place, and what is there before
STEP_NS, DELAY_NS, HOST_CYCLES = 800, 800, 24
DEADLINE_NS = 60_000        # xp: of receives, sends and READs; a receive's begins when it is its QP's oldest
LATE_NS = 10_000            # more than the scanner's bound and the completion's way; the time of polling is in it
RELIABLE = dict(timeout=4, retry_cnt=1, rnr_retry=2, min_rnr_timer=1)       # an ACK timeout of 65 us
RELIABLE_NS = 300_000       # rc: when the last retry has ended
DMA_TIMEOUT = 2000          # cycles: a host read that is lost has ended before the deadlines
MACS = [bytes.fromhex(f"02000000000{i}") for i in (1, 2)]
RECOVERY_NS = 2_000_000     # commands included
ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ


class Hung(OptinicError):
    """The time by which everything has to have ended is over; OptinicError, so that the driver lets it through."""


@dataclass(eq=False, repr=False)
class Message:
    op: int
    sender: int             # side whose send queue it is in
    pair: int
    size: int
    source: tuple           # (side, offset)
    target: tuple
    imm: int
    wcs: dict = field(default_factory=dict)     # "send" and "receive": WC, and what was in memory then

    def ends(self):
        """The completions that it has."""
        return ("send",) if self.op == IBV_WR_RDMA_READ else ("send", "receive")


class _Watched:
    """A device whose time others watch: `hook(cycles)` is told before so many cycles pass and returns how many may at once."""

    def __init__(self, device, hook):
        self._device, self._hook = device, hook

    def __getattr__(self, name):
        return getattr(self._device, name)

    def run(self, cycles):
        while cycles:
            now = min(cycles, max(1, self._hook(cycles)))
            self._device.run(now)
            cycles -= now

    def reg_read(self, offset):
        self._hook(0)
        return self._device.reg_read(offset)

    def reg_write(self, offset, value):
        self._hook(0)
        self._device.reg_write(offset, value)


class Workload:
    """The cards of configuration `cfg`, connected and idle. `seed` decides the data and the order of sizes.

    `at(ns, act)`: call `act()` once, when so many ns of the work have passed (at a register access, then, if one is under way).
    """

    def __init__(self, cfg, seed):
        self.cfg, self.rng = cfg, random.Random(seed)
        self._acts, self._limit, self._start = [], None, 0
        host = dict(read_latency=HOST_CYCLES, write_latency=HOST_CYCLES)
        simulated = SimulatedCards(lambda i: SimDevice(cfg, seed=seed + i, cells=True, **host), 2, rate=cfg.data_width * cfg.clock_hz, delay_ns=DELAY_NS, seed=seed)
        simulated.devices = [_Watched(device, self._hook) for device in simulated.devices]
        self.world, self.devices = simulated.world, simulated.cards
        # as a switch would: no card gets what is addressed to nobody here
        simulated.network.rule(simulated.network.lanes, name="misaddressed", match=lambda frame: frame[:6] not in MACS, loss=1)
        self.cards = Cards(simulated, MACS[0].hex(":"), "10.0.0.1", None, seed, True, 64)
        for context in self.cards:
            context.card.reg_write("DMA_TIMEOUT", DMA_TIMEOUT)
        self.pairs = ROWS if cfg.rc else ROWS // 2
        self.messages, self.problems = [], []
        self.slots = 2 * (ROWS * ROUNDS + self.pairs)
        self.ends = [_End(self, context) for context in self.cards]
        for a, b in zip(*(end.qps for end in self.ends)):
            self._connect(a, b)

    def close(self):
        for device in self.devices:
            device.close()

    def _connect(self, a, b):
        more = RELIABLE if self.cfg.rc else {}
        a.connect(b.info(), **more), b.connect(a.info(), **more)

    # -- time -------------------------------------------------------------------------------------------

    @property
    def now_ns(self):
        """Of the work."""
        return self.world.now_ns - self._start

    def at(self, ns, act):
        self._acts.append((ns, act))
        self._acts.sort(key=lambda pair: -pair[0])

    def forget_acts(self):
        self._acts.clear()

    def _hook(self, cycles):
        while self._acts and self._acts[-1][0] <= self.now_ns:
            self._acts.pop()[1]()
        if self._limit is not None and self.world.now_ns > self._limit:
            raise Hung("a command of the driver has no end")
        if not self._acts:
            return cycles
        return int((self._acts[-1][0] - self.now_ns) / self.cfg.clock_ns) + 1

    # -- the work ---------------------------------------------------------------------------------------

    def run(self):
        """All rounds; the ns at which each began and the last one ended."""
        self._start, marks = self.world.now_ns, []
        for number in range(ROUNDS):
            marks.append(self.now_ns)
            self._round(number)
        return [*marks, self.now_ns]

    def _bound(self, messages):
        """By when all of them must have ended, ns after they were posted: with rc when the last retry has, with xp when as many deadlines have
        run out as a queue pair has receives."""
        if self.cfg.rc:
            return RELIABLE_NS
        receives = Counter((m.target[0], m.pair) for m in messages if m.op != IBV_WR_RDMA_READ)
        return DEADLINE_NS * max(receives.values(), default=1) + LATE_NS

    def _round(self, number):
        self._limit = self.world.now_ns + RECOVERY_NS
        posted = []
        for slot in range(ROWS):
            for sender in (0, 1):
                op = OPS[(slot + number + sender) % 3]
                posted.append(self._message(op, sender, slot % self.pairs, number * ROWS + slot))
        # what a reliable queue pair that has failed would take is left out
        posted = [m for m in posted if all(end.qps[m.pair].qp_state == QPState.IBV_QPS_RTS for end in self.ends)]
        self.messages += posted
        self._post(posted)
        self._wait(posted)

    def _message(self, op, sender, pair, slot):
        size = self.rng.choice(SIZES)
        there, slot = 1 - sender, 2 * slot + sender
        source, target = ((there, slot), (sender, slot)) if op == IBV_WR_RDMA_READ else ((sender, slot), (there, slot))
        return Message(op, sender, pair, size, source, target, self.rng.getrandbits(32))

    def _post(self, messages):
        limit = {} if self.cfg.rc else {"timeout_ns": DEADLINE_NS}
        for m in messages:
            if m.op != IBV_WR_RDMA_READ:
                end = self.ends[m.target[0]]
                end.qps[m.pair].post_recv(RecvWR((m, "receive"), sg=[end.mr.sge(end.place(m), ROOM)], **limit))
        self.cards.world.run_ns(1000)
        for m in messages:
            end, far = self.ends[m.sender], self.ends[1 - m.sender]
            offset = end.place(m) if m.op == IBV_WR_RDMA_READ else end.origin(m)
            remote = far.origin(m) if m.op == IBV_WR_RDMA_READ else far.place(m)
            more = {} if m.op == IBV_WR_SEND else dict(rkey=far.mr.rkey, remote_addr=far.mr.addr + remote)
            end.qps[m.pair].post_send(SendWR((m, "send"), m.op, sg=[end.mr.sge(offset, m.size)], imm_data=m.imm, **more, **limit))

    def _wait(self, messages):
        """Until all have ended or the time is up."""
        end = self.world.now_ns + self._bound(messages)
        while True:
            for e in self.ends:
                e.poll()
            if all(len(m.wcs) == len(m.ends()) for m in messages) or self.world.now_ns > end:
                return
            self.ends[0].context.device.run(round(STEP_NS / self.cfg.clock_ns))

    # -- afterwards -------------------------------------------------------------------------------------

    def recover(self):
        """Give every connection in trouble a new life and use it; what is still wrong then, as text, or None."""
        self._limit = self.world.now_ns + RECOVERY_NS
        try:
            troubled = sorted({m.pair for m in self.messages if not fine(m)}) or range(self.pairs)
            for pair in troubled:
                qps = [end.qps[pair] for end in self.ends]
                for qp in qps:
                    qp.to_reset()
                self._connect(*qps)
            again = [self._message(IBV_WR_SEND, sender, pair, ROWS * ROUNDS + pair) for pair in troubled for sender in (0, 1)]
            self.messages += again
            self._post(again)
            self._wait(again)
        except Exception as error:      # whatever the driver runs into here, it can't bring the card back without a reset
            return f"{type(error).__name__}: {error}"
        wrong = [m for m in again if not fine(m) or not self.holds(m)]
        return f"after a new life {len(wrong)} of {len(again)} messages fail" if wrong else None

    def holds(self, m):
        """Whether a message's data is in its place, whole."""
        return self.ends[m.target[0]].mr.read(m.size, self.ends[m.target[0]].place(m)) == self.data(m)

    def data(self, m):
        end = self.ends[m.source[0]]
        return end.sent[end.origin(m):end.origin(m) + m.size]

    def counters(self):
        """Of both cards."""
        self._limit = self.world.now_ns + RECOVERY_NS
        return [context.card.counters() for context in self.cards]


def fine(m):
    return len(m.wcs) == len(m.ends()) and all(wc.ok for wc, _ in m.wcs.values())


class _End:
    """A card's memory: a place for each slot that data comes from, then one for each that it goes to."""

    def __init__(self, work, context):
        self.work, self.context, self.pd = work, context, PD(context)
        size = work.slots * ROOM
        self.mr = MR(self.pd, 2 * size, ACCESS)
        self.sent = work.rng.randbytes(size).replace(bytes([FILL]), b"\xef")
        self.mr.write(self.sent + bytes([FILL]) * size)
        self.half = size
        self.scq, self.rcq = CQ(context, 256), CQ(context, 256)
        cap = QPCap() if work.cfg.rc else QPCap(max_rd_atomic=4)
        self.qps = [QP(self.pd, QPInitAttr(scq=self.scq, rcq=self.rcq, cap=cap)) for _ in range(work.pairs)]

    def origin(self, m):
        return m.source[1] * ROOM

    def place(self, m):
        return self.half + m.target[1] * ROOM

    def poll(self):
        for cq in (self.scq, self.rcq):
            for wc in cq.poll(256)[1]:
                m, kind = wc.wr_id
                if kind in m.wcs:
                    self.work.problems.append(f"{kind} completed twice")
                held = None
                if kind == "receive" or m.op == IBV_WR_RDMA_READ:
                    held = self.mr.read(ROOM, self.place(m))
                m.wcs[kind] = (wc, held)
