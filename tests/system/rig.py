"""A whole card with memory, peers and queue pairs set up, as the tests of this package want it."""

from collections import defaultdict

from host_driver.card import Card
from optinic.config import preset
from sim.device import SimDevice
from sim.frames import uc_send, uc_write, xp_send, xp_write

CFG = preset("tiny", trace=True, arrival_map=True)
#: another clock; and one build for that and for options that are off
FAST = CFG.with_(clock_hz=250_000_000, vlan=False, arrival_map=False)
SLOT = 1024                 # bytes of a receive's buffer: receive i of a QP has slot i mod 64 of the QP's window
WINDOW = 64 * SLOT
PEER = "10.0.0.2"
WQE, LINE = 32, 128         # bytes in a receive ring: a receive, and what one read fetches


class Rig:
    """The card `cfg` in a simulated host. QP n has 64 KiB at `memory[n]`, under key 0x100 + n, in protection domain n."""

    def __init__(self, cfg=CFG, *, seed=1, hold=True, cq_entries=1024, **knobs):
        self.cfg, self.hold, self.cq_entries = cfg, hold, cq_entries
        self.dev = SimDevice(cfg, seed=seed, **{"read_latency": 20, "write_latency": 20, **knobs})
        self.memory, self.types, self.seen = {}, {}, 0
        self.posted = defaultdict(int)      # by QP, over all its lives
        self.bring_up()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                assert self.dev.violations == []
        finally:
            self.dev.close()

    def bring_up(self):
        """What a driver does with a card that it has just found. The last driver's Card, if any, is forgotten."""
        self.card = Card(self.dev, self.cfg)
        self.card.set_peer(0, PEER)
        self.card.set_cq(0, self.cq_entries)
        self.regions, self.generations = set(), {}
        self.card.enable(hold=self.hold)
        return self.card

    def qp(self, qpn, type="xp", *, generation=0, cq=0, **fields):
        """A QP, or its next life, with its memory registered."""
        if qpn not in self.memory:
            self.memory[qpn] = self.dev.alloc(WINDOW)
        if qpn not in self.regions:
            self.card.add_region(self.key(qpn), self.va(qpn), WINDOW, ("local_write", "remote_write"), pd=qpn,
                                 delta=self.memory[qpn] - self.va(qpn))
            self.regions.add(qpn)
        self.types[qpn], self.generations[qpn] = type, generation
        self.card.create_qp(qpn, type=type, generation=generation, pd=qpn, cq=cq, **fields)
        return qpn

    @staticmethod
    def key(qpn):
        return 0x100 + qpn

    @staticmethod
    def va(qpn, index=0):
        return (qpn + 1) << 24 | index % 64 * SLOT

    def ring(self, qpn, index=0):
        """Bus address of a receive's WQE."""
        return self.card.rq_base + (self.card.qp_index(qpn) * self.cfg.rq_entries + index % self.cfg.rq_entries) * WQE

    def post(self, qpn, count=1, *, length=SLOT, doorbell=True, **fields):
        """Post receives; one doorbell for all of them."""
        for i in range(count):
            index = self.card.post_receive(qpn, self.va(qpn, self.card._qp(qpn).posted), length, self.key(qpn),
                                           doorbell=doorbell and i == count - 1, **fields)
            self.posted[qpn] += 1
        return index

    def message(self, qpn, seq, payload, **fields):
        """The one packet of a message."""
        if self.types[qpn] == "uc":
            return uc_send(qpn, payload, **fields)
        return xp_send(qpn, payload, seq=seq, **{"generation": self.generations[qpn], **fields})

    def write(self, qpn, payload, offset=0, **fields):
        """A WRITE to the QP's window, which takes no receive."""
        if self.types[qpn] == "uc":
            return uc_write(qpn, payload, self.va(qpn) + offset, self.key(qpn), **fields)
        return xp_write(qpn, payload, self.va(qpn) + offset, self.key(qpn), **{"generation": self.generations[qpn], **fields})

    def send(self, *frames):
        for frame in frames:
            self.dev.send(frame)

    def settle(self, limit=400_000):
        """Until nothing has moved for 300 cycles: longer than the card waits before it looks after a head by itself."""
        self.dev.run(64)        # what a register write sets going isn't to be seen at once
        assert self.dev.run_until("idle", 300, limit=limit), f"the card doesn't come to rest (cycle {self.dev.cycle})"

    def verdicts(self):
        """What became of the frames since the last call: the reason, or for those not refused the verdict."""
        found = [t.reason if t.verdict == "dropped" else t.verdict for t in self.dev.traces(self.seen)]
        self.seen += len(found)
        return found

    def exchange(self, *frames):
        """Send frames when all before them is done, wait until they are done too, and return their verdicts."""
        self.settle()
        self.verdicts()
        self.send(*frames)
        self.settle()
        return self.verdicts()

    def buffer(self, qpn, index, n=SLOT):
        return self.dev.read(self.memory[qpn] + index % 64 * SLOT, n)

    def window(self, qpn):
        return self.dev.read(self.memory[qpn], WINDOW)

    def works(self, qpn, rng, cq=0, count=3):
        """Assert that the QP receives: post, send, poll, compare."""
        self.settle()
        self.card.poll(cq)
        first = self.card._qp(qpn).posted
        assert self.card.outstanding(qpn) == 0
        self.post(qpn, count)
        data = [rng.randbytes(rng.randrange(1, 300)) for _ in range(count)]
        self.verdicts()
        assert self.exchange(*(self.message(qpn, first + i, d) for i, d in enumerate(data))) == ["placed"] * count
        done = self.card.poll(cq)
        assert [(c.qpn, c.index, c.status, c.byte_len) for c in done] == [
            (qpn, first + i, "success", len(d)) for i, d in enumerate(data)]
        for i, d in enumerate(data):
            assert self.buffer(qpn, first + i, len(d)) == d


def ends(completions, qpn=None):
    """(index, status, cause) of the completions, of one QP if given."""
    return [(c.index, c.status, c.cause) for c in completions if qpn is None or c.qpn == qpn]
