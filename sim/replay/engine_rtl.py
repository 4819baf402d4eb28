"""Engine `rtl`: the frames through the generated Verilog under Verilator, set up by the driver as a real card would be.

Any other device will do for it as well: the model of a whole card is replayed on in the same way."""

from host_driver.card import ArrivalMap, Card
from optinic.abi.structs import TICK_NS
from sim.build import BuildError
from sim.device import SimDevice
from sim.models.memory import spans
from sim.models.nic import COUNTERS, Completion, Verdict

from .capture import Frame
from .errors import ReplayError
from .kinds import kind_of
from .result import Event, Result
from .schedule import arrivals

__all__ = ["replay_rtl", "replay_on", "Session"]

BATCH = 256                     # frames queued at a time
CQ, LOG, CQ_ENTRIES = 0, 1, 32768
BUS_BASE = 1 << 40              # of the regions; the driver's rings lie far below
GUARD_PAGES = 2                 # that the card may not touch, between regions
GUARD = b"\xa5" * 64            # around an arrival map, not to be changed
SETTLED_CYCLES = 200            # without any handshake: nothing is under way
SHORT_GAP_NS = 4000             # is simulated
MARGIN_NS = 2000                # simulated before whatever comes next
LONGEST_JUMP_NS = 16_000_000    # with a clock running: the card's scanner sees 33 ms ahead
GRACE_CYCLES = 100_000          # for a deadline to be seen that ran out at the end
ANSWER_CYCLES = 10_000_000      # without a verdict: the card hangs
RC_COUNTERS = ("reads_served", "acks_sent", "naks_sent", "duplicates")


def replay_rtl(setup, frames, progress, posts={}, seed=1, bus={}):
    """`posts`: receives that are posted later: index of the frame before which it happens -> (time in ns, QPN,
    ReceiveSetup). `bus`: knobs of SimDevice that make the card's surroundings slow; `seed` is that of their choices."""
    cfg = setup.config.with_(trace=True)
    try:
        device = SimDevice(cfg, seed=seed)
    except BuildError as error:
        raise ReplayError("the simulation can't be built: " + " ".join(str(error).split())) from None
    return replay_on(device, setup, cfg, frames, progress, posts, bus)


def replay_on(device, setup, cfg, frames, progress, posts, bus={}):
    with device:
        session = Session(setup, cfg, device)
        session.configure()
        device.set(**bus)
        session.play(frames, progress, posts)
        return session.result(frames)


class Clocks:
    """When the head of each queue pair runs out, as far as its completions tell."""

    def __init__(self, setup):
        self._posted = {qp.qpn: [(r.timeout_ns, 0) for r in qp.receives] for qp in setup.qps}     # and when (ns)
        self._heads = {qpn: (0, 0) for qpn in self._posted}     # index, when it became head (ns)

    def posted(self, qpn, receive, time):
        self._posted[qpn].append((receive.timeout_ns, time))

    def ended(self, qpn, index, time):
        self._heads[qpn] = (index + 1, time)

    def next_deadline(self):
        times = []
        for qpn, (index, start) in self._heads.items():
            timeout, posted = self._posted[qpn][index] if index < len(self._posted[qpn]) else (0, 0)
            if timeout:
                times.append(max(start, posted) + -(-timeout // TICK_NS) * TICK_NS)
        return min(times, default=None)


class Session:
    def __init__(self, setup, cfg, device):
        self.setup, self.cfg, self.device = setup, cfg, device
        self.card = Card(device, cfg)
        self.card.flush_failed = False      # at the end: what frames meet doesn't depend on when somebody looks at completions
        self.clocks, self.completions, self.events, self.sent = Clocks(setup), [], [], []
        self._origin = 0.0          # cycle at which the NIC's time is 0

    # -- before the first frame ------------------------------------------------------------------------

    def configure(self):
        self.bus, self.beside = {}, []      # start of a span -> its bus address; (address, length) of what nobody may write
        free, beat = BUS_BASE, self.cfg.beat_bytes
        for start, end in spans((r.va, r.length) for r in self.setup.regions):
            # The same place in its page, so that a region has the alignment on the bus that the setup gives it.
            at = self.bus[start] = free + start % 4096
            # The card reads whole beats of the bus. What of the first and the last one is beside the regions is looked at in the end.
            first, last = at // beat * beat, -(-(at + end - start) // beat) * beat
            self.device.map(first, last - first)
            self.beside += [(first, at - first), (at + end - start, last - at - end + start)]
            free += (end - start + 4095) // 4096 * 4096 + GUARD_PAGES * 4096
        for region in self.setup.regions:
            self.device.write(self.bus_address(region.va), region.content())
            self.card.add_region(region.rkey, region.va, region.length, region.access, pd=region.pd,
                                 delta=self.bus_address(region.va) - region.va)
        self.card.set_local(*self.setup.port)
        peers = list(dict.fromkeys((qp.peer, qp.peer_mac) for qp in self.setup.qps))
        for index, (address, mac) in enumerate(peers):
            self.card.set_peer(index, address, mac=mac)
        self.card.set_cq(CQ, CQ_ENTRIES)
        self.card.log_refusals(LOG, CQ_ENTRIES)
        self.maps = {qp.qpn: self.make_map(*qp.arrival_map) for qp in self.setup.qps if qp.arrival_map}
        # Receives are posted at time 0, however long the commands take.
        for qp in self.setup.qps:
            self.set_time(0)
            reliable = dict(rq_psn=qp.expected_psn, min_rnr_timer=qp.min_rnr_timer) if self.cfg.rc else {}
            self.card.create_qp(qp.qpn, type=qp.type, mtu=qp.mtu, generation=qp.generation, pd=qp.pd,
                                peer=peers.index((qp.peer, qp.peer_mac)), cq=CQ, arrival_map=self.maps.get(qp.qpn),
                                peer_qpn=qp.peer_qpn, peer_generation=qp.peer_generation, traffic_class=qp.traffic_class,
                                **reliable)
            for r in qp.receives:
                self.post(qp.qpn, r)
        self.card.enable(hold=True)
        self.device.run_until("idle", SETTLED_CYCLES, limit=ANSWER_CYCLES)
        for qp in self.setup.qps:
            if qp.receives:
                self.set_time(0)
                self.card.ring(qp.qpn)
        self.set_time(0)

    def post(self, qpn, r, doorbell=False):
        self.card.post_receive(qpn, r.va, r.length, r.lkey, timeout_ns=r.timeout_ns or None, doorbell=doorbell)

    def make_map(self, pieces, rows):
        place = self.device.alloc(pieces * rows + 2 * len(GUARD))
        for guard in (place, place + len(GUARD) + pieces * rows):
            self.device.write(guard, GUARD)
        return ArrivalMap(place + len(GUARD), pieces, rows)

    def read_map(self, arrivals):
        data = self.device.read(arrivals.addr - len(GUARD), arrivals.size + 2 * len(GUARD))
        if not (data.startswith(GUARD) and data.endswith(GUARD)):
            raise RuntimeError(f"the card wrote beside the arrival map at {arrivals.addr:#x}")
        return data[len(GUARD):-len(GUARD)]

    def bus_address(self, va):
        start = max(s for s in self.bus if s <= va)
        return self.bus[start] + va - start

    # -- time ------------------------------------------------------------------------------------------

    def set_time(self, ns):
        self.take_sent()            # their times are by the clock as it has been
        self.card.set_time(ns)
        self._origin = self.device.cycle - ns / self.cfg.clock_ns

    def cycle_at(self, ns):
        return round(self._origin + ns / self.cfg.clock_ns)

    @property
    def now(self):
        return (self.device.cycle - self._origin) * self.cfg.clock_ns

    def take_sent(self):
        for frame in self.device.sent_frames():
            self.sent.append(Frame(frame.frame, max(0, round((frame.first - self._origin) * self.cfg.clock_ns))))

    def poll(self):
        self.card.refusals()        # keeps the log from running over
        self.take_sent()
        for c in self.card.poll(CQ):
            if c.opcode == "event":
                self.events.append(Event(c.qpn, c.index, c.cause, c.time_ns))
                continue
            has_imm = c.opcode in ("send_imm", "write_imm", "send_inv")
            self.completions.append(Completion(
                qpn=c.qpn, index=c.index, opcode=None if c.opcode == "none" else c.opcode, status=c.status, cause=c.cause,
                byte_len=c.byte_len, msg_len=c.msg_len, imm=c.imm if has_imm else None, tag=c.tag, time=c.time_ns))
            self.clocks.ended(c.qpn, c.index, c.time_ns)

    def wait_until(self, time):
        """Let the card's time come to `time`; stretches in which nothing can happen are passed over."""
        while time - self.now > SHORT_GAP_NS:
            if not self.device.run_until("idle", SETTLED_CYCLES, limit=ANSWER_CYCLES):
                raise RuntimeError(f"the card doesn't come to rest (cycle {self.device.cycle})")
            self.poll()
            deadline = self.clocks.next_deadline()
            target = time if deadline is None else min(time, deadline, self.now + LONGEST_JUMP_NS)
            if target - self.now > SHORT_GAP_NS:
                self.set_time(int(target) - MARGIN_NS)
            else:       # a deadline is near, or due and not yet seen
                self.device.run(SETTLED_CYCLES)
        self.device.run(max(0, self.cycle_at(time) - self.device.cycle))

    # -- the frames ------------------------------------------------------------------------------------

    def play(self, frames, progress, posts):
        times = list(arrivals(frames, self.setup))
        done = 0
        while done < len(frames):
            for time, qpn, receive in posts.get(done, ()):
                self.wait_until(time)
                self.poll()
                self.post(qpn, receive, doorbell=True)
                self.clocks.posted(qpn, receive, time)
            self.wait_until(times[done][0] - MARGIN_NS)
            stop = done + 1
            while stop < min(len(frames), done + BATCH) and times[stop][0] - times[stop - 1][1] < SHORT_GAP_NS \
                    and stop not in posts:
                stop += 1
            # No MAC hands over a frame without bytes. One byte is as much of a runt.
            self.device.send_many([f.data or b"\0" for f in frames[done:stop]],
                                  [max(0, self.cycle_at(start)) for start, _ in times[done:stop]])
            if not self.device.run_until("traces", stop, limit=ANSWER_CYCLES):
                raise RuntimeError(f"the card gave {self.device.trace_count} verdicts on {stop} frames and no more "
                                   f"(cycle {self.device.cycle})")
            done = stop
            self.poll()
            progress(done, len(frames))
        end = max(self.setup.end_ns, times[-1][1] if times else 0)
        self.wait_until(end)
        self.settle(end)
        for qpn in dict.fromkeys(event.qpn for event in self.events):
            self.card.flush_qp(qpn)     # as a driver does that is told of the failure
        self.device.run_until("idle", SETTLED_CYCLES, limit=ANSWER_CYCLES)
        self.poll()

    def settle(self, end):
        """What ran out by the end, and what is under way, comes to its end."""
        for _ in range(GRACE_CYCLES // SETTLED_CYCLES):
            self.device.run_until("idle", SETTLED_CYCLES, limit=ANSWER_CYCLES)
            self.poll()
            deadline = self.clocks.next_deadline()
            if deadline is None or deadline // TICK_NS > end // TICK_NS:
                return
            self.device.run(SETTLED_CYCLES)

    def result(self, frames):
        broken = [*self.device.faults, *self.device.violations]
        if broken:
            raise RuntimeError(f"the card broke a rule of its bus: {broken[0]}, and {len(broken) - 1} more")
        for address, length in self.beside:
            if any(self.device.read(address, length)):
                raise RuntimeError(f"the card wrote beside a region, within the {length} bytes from {address:#x} on the bus")
        records = self.device.traces()
        if len(records) != len(frames):
            raise RuntimeError(f"the card gave {len(records)} verdicts on {len(frames)} frames")
        verdicts = [verdict_of(record, frame.data, self.cfg.rc) for record, frame in zip(records, frames)]
        self.check_passed([frame.data for frame, verdict in zip(frames, verdicts) if verdict.verdict == "passed"])
        regions = {r.rkey: self.device.read(self.bus_address(r.va), r.length) for r in self.setup.regions}
        names = (*COUNTERS, *RC_COUNTERS) if self.cfg.rc else COUNTERS
        return Result(verdicts, self.completions, regions, {name: self.card.counter(name) for name in names},
                      self.card.refusals(), {qpn: self.read_map(arrivals) for qpn, arrivals in self.maps.items()},
                      self.events, self.sent)

    def check_passed(self, passed):
        """What was passed is what came out for the host, byte for byte, but for frames that a slow host had no room for."""
        if not self.cfg.pass_through:
            return
        lost = self.card.counter("pass_overflow")
        handed, rest = self.device.host_frames(), iter(passed)
        if len(handed) + lost != len(passed) or not all(frame in rest for frame in handed):
            raise RuntimeError(f"{len(passed)} frames were passed, {lost} of them lost for want of room, and {len(handed)} came out "
                               f"for the host, or others than those")


def verdict_of(record, frame, rc):
    if record.verdict == "dropped":
        return Verdict("dropped", record.reason)
    if record.verdict == "placed":
        return Verdict("placed", qpn=record.qpn, bytes=record.length)
    if record.verdict == "consumed":
        return Verdict("consumed", qpn=record.qpn, kind=kind_of(frame) if rc else record.kind)
    return Verdict("passed")
