"""Cards of transport rc as their registers and rings present them, for tests that a model and the hardware both pass.

Nothing here knows the driver or a model: a card is what `make(cfg, seed)` gives, a ModelDevice or a SimDevice. There are
:class:`Node`, a card brought up; :class:`Bench`, a Node whose peer is played by the test; :class:`Pair`, two Nodes and a network.
"""

import ipaddress
import os
from collections import defaultdict, namedtuple

from optinic.abi.regions import RegionSlots
from optinic.abi.registers import ACCESS, COMMAND_ERROR, COMMANDS, MTU_CODE, QP_STATE, QP_TYPE, offset_of
from optinic.abi.structs import CAUSE, CQE, FATAL, INLINE_OFFSET, OPCODE, RECV_WQE, SEND_OP, SEND_WQE, STATUS
from optinic.config import preset
from sim.device import SimDevice
from sim.frames import LOCAL, REMOTE
from sim.model_device import ModelDevice
from sim.network import GBIT, back_to_back
from sim.world import World
from sim.rc_frames import Packet, request

__all__ = ["CFG", "ENGINES", "KEY", "MAKERS", "PD", "SIZE", "VA", "Bench", "Done", "Node", "Pair"]

CFG = preset("tiny", transport="rc", trace=True)
KEY, VA, SIZE, PD = 0x1234, 1 << 40, 1 << 18, 1     #: each Node's memory: key, address, bytes, protection domain
RECEIVES, SENDS = 0, 1                              # completion queues

MAKERS = {"model": lambda cfg, seed=1, **knobs: ModelDevice(cfg, seed=seed, **knobs),
          "rtl": lambda cfg, seed=1, **knobs: SimDevice(cfg, seed=seed, **{"read_latency": 20, "write_latency": 20, **knobs})}
#: what the tests of tests/rc run on: OPTINIC_RC=model,rtl
ENGINES = os.environ.get("OPTINIC_RC", "model,rtl").split(",")

#: A CQE in words. A run of sends or receives that share a CQE is taken apart: each is a Done of its own.
Done = namedtuple("Done", "qpn queue index status cause opcode byte_len imm time")

_STATUS, _CAUSE, _FATAL, _OPCODE = ({n: name for name, n in table.items()} for table in (STATUS, CAUSE, FATAL, OPCODE))


def words(value):
    return value & 0xFFFFFFFF, value >> 32


class Node:
    """One card. `device` is the card itself or the one that a World has made of it. QPs are `name`d by their number; CQ 0 has the
    completions of receives (and events), CQ 1 those of sends. SIZE bytes at `base` are at VA under KEY, in domain PD, open to all.
    """

    def __init__(self, device, cfg, *, local=LOCAL, remote=REMOTE, v6=False, cq_entries=512, vlan=None):
        self.dev, self.cfg = device, cfg
        self.slots, self.entries = RegionSlots(cfg.num_regions), {}
        self.qps, self.cqs = {}, {}
        self.done = defaultdict(list)       # of each CQ, everything polled so far
        self.runs = []                      # of each CQE that wasn't an event: (QPN, queue, how many it stands for)
        self.write("CTRL", 0)
        self.until(lambda: self.read("STATUS") & 1, "its tables are clear")
        self.rq_base = device.alloc((2 << cfg.qp_bits) * cfg.rq_entries * RECV_WQE.size, 4096)
        self.sq_base = device.alloc((1 << cfg.qp_bits) * cfg.sq_entries * SEND_WQE.size, 4096)
        for name, base in (("RQ_BASE", self.rq_base), ("SQ_BASE", self.sq_base)):
            self.write(f"{name}_LO", base & 0xFFFFFFFF), self.write(f"{name}_HI", base >> 32)
        self.local(*local)
        self.peer(0, remote[2] if v6 else remote[1], remote[0], vlan)
        for index in (RECEIVES, SENDS):
            self.cq(index, cq_entries)
        self.base = device.alloc(SIZE)
        self.region(KEY, VA, SIZE, tuple(ACCESS), delta=self.base - VA)
        self.write("CTRL", 5)

    # -- registers ------------------------------------------------------------------------------------

    def read(self, name):
        return self.dev.reg_read(offset_of(name))

    def write(self, name, value):
        self.dev.reg_write(offset_of(name), value)

    def counter(self, name):
        low = self.dev.reg_read(offset_of(name))
        return self.dev.reg_read(offset_of(name) + 4) << 32 | low

    def time_ns(self):
        low = self.read("TIME_LO")
        return self.read("TIME_HI") << 32 | low

    def until(self, holds, what, tries=4000):
        for _ in range(tries):
            if found := holds():
                return found
            self.dev.run(16)
        raise AssertionError(f"never came to pass: {what}")

    def command(self, name, *args, refused="none"):
        for i, value in enumerate(args):
            self.write(f"ARG{i}", value)
        self.write("COMMAND", COMMANDS[name][0])
        self.until(lambda: not self.read("COMMAND_STATUS") >> 31, f"{name} done")
        assert self.read("COMMAND_STATUS") & 0xFF == COMMAND_ERROR[refused], name

    def local(self, mac, ip4, ip6):
        number = int(mac.replace(":", ""), 16)
        self.write("LOCAL_MAC_LO", number & 0xFFFFFFFF), self.write("LOCAL_MAC_HI", number >> 32)
        self.write("LOCAL_IP4", int(ipaddress.ip_address(ip4)))
        for i in range(4):
            self.write(f"LOCAL_IP6_{i}", int(ipaddress.ip_address(ip6)) >> 32 * i & 0xFFFFFFFF)

    def peer(self, index, ip, mac, vlan=None):
        ip, mac = ipaddress.ip_address(ip), int(mac.replace(":", ""), 16)
        self.command("peer_set", index, *(int(ip) >> 32 * i & 0xFFFFFFFF for i in range(4)), int(ip.version == 6), *words(mac),
                     0 if vlan is None else vlan | 1 << 16)

    def cq(self, index, entries):
        addr = self.dev.alloc(entries * CQE.size, 4096)
        self.command("cq_set", index, *words(addr), entries.bit_length() - 1 | 1 << 31)
        self.cqs[index] = [addr, entries, 0]

    def region(self, key, va, length, access=tuple(ACCESS), *, pd=PD, delta=0):
        self.entries[key] = (va, length, delta % (1 << 64), pd | sum(ACCESS[a] for a in access) << 16 | 1 << 31)
        for slot, moved in self.slots.insert(key):
            va, length, delta, rights = self.entries[moved]
            self.command("region_set", slot[0] << 31 | slot[1], moved, *words(va), *words(length), *words(delta), rights)

    def remove_region(self, key):
        slot = self.slots.remove(key)
        self.command("region_set", slot[0] << 31 | slot[1], 0, 0, 0, 0, 0, 0, 0, 0)

    # -- queue pairs ----------------------------------------------------------------------------------

    def qp(self, qpn, *, peer_qpn=None, type="rc", state="ready", mtu=1024, psn=0, expected=0, retry=7, rnr_retry=7, timeout=0,
           rnr_timer=1, window=0, pd=PD, peer=0, tclass=0, cqs=(RECEIVES, SENDS)):
        """A (new life of a) QP. `psn`: of its first packet; `timeout`, `rnr_timer`: their codes; `window` 0: as built."""
        index = qpn % (1 << self.cfg.qp_bits)
        args = [qpn, QP_STATE[state] | QP_TYPE[type] << 4 | MTU_CODE[mtu] << 8, pd, peer, cqs[0],
                psn | retry << 24 | rnr_retry << 27, expected | timeout << 24, rnr_timer | window << 8,
                qpn if peer_qpn is None else peer_qpn, cqs[1] | tclass << 16]
        self.command("qp_set", *args)
        self.qps[qpn] = {"index": index, "args": args, "receives": 0, "sends": 0, "reads": 0, "receive": 0, "send": 0}
        return qpn

    def flush(self, qpn):
        """State error; what is uncompleted completes as flushed."""
        args = list(self.qps[qpn]["args"])
        args[1] = args[1] & ~15 | QP_STATE["error"]
        self.command("qp_flush", *args)

    def destroy(self, qpn):
        self.command("qp_destroy", qpn)

    def receive_wqe(self, qpn, va, length, lkey, number, ring=0):
        """Write entry `number` of the receive ring, or (`ring` 1) of the ring of READ results."""
        row = (ring << self.cfg.qp_bits) + self.qps[qpn]["index"]
        at = self.rq_base + (row * self.cfg.rq_entries + number % self.cfg.rq_entries) * RECV_WQE.size
        self.dev.write(at, RECV_WQE.pack(va=va, length=length, lkey=lkey))
        return at

    def post_receive(self, qpn, offset=0, length=4096, *, lkey=KEY, va=None, doorbell=True):
        """A receive of `length` bytes at VA + `offset`; its index."""
        qp = self.qps[qpn]
        index, qp["receives"] = qp["receives"], qp["receives"] + 1
        self.receive_wqe(qpn, VA + offset if va is None else va, length, lkey, index)
        if doorbell:
            self.write("RQ_DOORBELL", qp["index"] << 16 | qp["receives"] & 0xFFFF)
        return index

    def post_send(self, qpn, op, offset=0, length=0, *, lkey=KEY, va=None, inline=None, remote=0, remote_va=None, rkey=KEY, imm=0,
                  operands=(0, 0), result=0, result_length=None, solicited=0, signaled=1, doorbell=True):
        """A send of op (SEND_OP) from VA + `offset` to the peer's VA + `remote`; its index. A READ's data go to VA + `result`, as
        does what an atomic found; `operands`: swap or add, compare."""
        qp = self.qps[qpn]
        index, qp["sends"] = qp["sends"], qp["sends"] + 1
        atomic = op in ("compare_swap", "fetch_add")
        if atomic or op == "read":
            self.receive_wqe(qpn, VA + result, (8 if atomic else length) if result_length is None else result_length, lkey,
                             qp["reads"], ring=1)
            qp["reads"] += 1
        fields = dict(opcode=SEND_OP[op], signaled=signaled, solicited=solicited, imm=imm,
                      length=length if inline is None else len(inline))
        if op.startswith("write") or op == "read" or atomic:
            fields |= dict(rkey=rkey, remote_va=VA + remote if remote_va is None else remote_va)
        if atomic:
            fields |= dict(va=operands[0], lkey=operands[1] & 0xFFFFFFFF, compare_hi=operands[1] >> 32)
        elif inline is None:
            fields |= dict(va=VA + offset if va is None else va, lkey=lkey)
        wqe = SEND_WQE.pack(**fields, inline=int(inline is not None))
        if inline is not None:
            wqe = wqe[:INLINE_OFFSET] + bytes(inline).ljust(SEND_WQE.size - INLINE_OFFSET, b"\0")
        at = self.sq_base + (qp["index"] * self.cfg.sq_entries + index % self.cfg.sq_entries) * SEND_WQE.size
        self.dev.write(at, wqe)
        if doorbell:
            self.ring(qpn)
        return index

    def ring(self, qpn):
        self.write("SQ_DOORBELL", self.qps[qpn]["index"] << 16 | self.qps[qpn]["sends"] & 0xFFFF)

    # -- memory ---------------------------------------------------------------------------------------

    def store(self, offset, data):
        self.dev.write(self.base + offset, data)

    def load(self, offset, size):
        return self.dev.read(self.base + offset, size)

    # -- completions ----------------------------------------------------------------------------------

    def poll(self):
        """Take what is new in both CQs into `done`; returns it, receives first."""
        found = []
        for index in self.cqs:
            new = list(self._take(index))
            if new:
                self.write("CQ_DOORBELL", index << 16 | self.cqs[index][2] & 0xFFFF)
            self.done[index] += new
            found += new
        return found

    def _take(self, index):
        addr, entries, _ = cq = self.cqs[index]
        while True:
            raw = self.dev.read(addr + cq[2] % entries * CQE.size, CQE.size)
            w = CQE.unpack(raw)
            if w["format"] != 1 or w["phase"] != 1 - cq[2] // entries % 2:
                return
            cq[2] += 1
            yield from self._expand(w)

    def _expand(self, w):
        queue = "send" if w["queue"] else "receive"
        status = _STATUS[w["status"]]
        cause = (_FATAL if status == "fatal" else _CAUSE)[w["cause"]]
        opcode = _OPCODE[w["opcode"]]
        rest = w["qpn"], queue
        tail = status, cause, opcode, w["byte_len"], w["imm"], w["time"]
        if opcode in ("event", "refusal"):
            yield Done(*rest, w["wqe_index"], *tail)
            return
        qp = self.qps[w["qpn"]]
        last, run = w["wqe_index"], w["skipped"] + 1
        first = qp[queue]
        self.runs.append((w["qpn"], queue, run))
        bits = 16 if w["queue"] else 32
        assert (first + run - 1 - last) % (1 << bits) == 0, f"{queue} {last} + {run} of QP {w['qpn']}, but {first} is the next"
        qp[queue] += run
        assert qp[queue] <= qp[queue + "s"], f"more completions than {queue}s of QP {w['qpn']}"
        for i in range(first, first + run):
            yield Done(*rest, i, *tail)

    def outcomes(self, qpn, queue="send"):
        """[(index, status, cause)] of all completions polled so far of a QP's sends, or receives; events are not among them."""
        return [(d.index, d.status, d.cause) for d in self.done[SENDS if queue == "send" else RECEIVES]
                if d.qpn == qpn and d.queue == queue and d.opcode != "event"]

    def events(self, qpn):
        return [d for d in self.done[RECEIVES] if d.qpn == qpn and d.opcode == "event"]


class Bench:
    """A Node alone; the test is its peer, QP `qpn` its only QP. Its frames come from REMOTE and go to LOCAL."""

    def __init__(self, make, cfg=CFG, *, qpn=5, seed=1, node=None, knobs=None, **options):
        self.dev = make(cfg, seed, **(knobs or {}))
        self.node = Node(self.dev, cfg, **(node or {}))
        self.qpn = qpn
        self.node.qp(qpn, **options)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                assert self.dev.violations == []
        finally:
            self.dev.close()

    def send(self, *frames):
        for frame in frames:
            self.dev.send(frame)

    def request(self, name, psn, payload=b"", **fields):
        """Send a frame of the peer to the QP; see :func:`sim.rc_frames.request`."""
        self.send(request(name, self.qpn, psn, payload, **fields))

    def settle(self, limit=400_000):
        self.dev.run(64)
        assert self.dev.run_until("idle", 300, limit=limit), "the card doesn't come to rest"

    def run_ns(self, ns):
        self.dev.run(round(ns * self.node.cfg.clock_hz / 1e9))

    def sent(self):
        """The card's frames since the last call, as Packets: their ICRC was looked at."""
        return [Packet(frame.frame) for frame in self.dev.sent_frames()]

    def exchange(self, *frames):
        """Send, let the card come to rest, and return what it sent."""
        self.send(*frames)
        self.settle()
        return self.sent()

    def poll(self):
        return self.node.poll()


class Pair:
    """Two Nodes on a link of `rate` and `delay_ns`; `impair` as of sim.network: loss, duplicate, reorder, ..."""

    def __init__(self, make, cfg=CFG, *, seed=1, rate=5 * GBIT, delay_ns=1000, node=None, knobs=None, **impair):
        self.net = back_to_back(rate=rate, delay_ns=delay_ns, seed=seed, **impair)
        self.devices = [make(cfg, seed + i, **(knobs or {})) for i in range(2)]
        self.world = World(self.devices, self.net)
        ends = LOCAL, REMOTE
        self.nodes = [Node(self.world.device(i), cfg, local=ends[i], remote=ends[1 - i], **(node or {})) for i in range(2)]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                assert [device.violations for device in self.devices] == [[], []]
        finally:
            self.world.close()
            for device in self.devices:
                device.close()

    def connect(self, a, b=None, *, psn=(0x10, 0x20), **options):
        """QP `a` of node 0 and `b` (else the same number) of node 1; `psn`: first ones of each. An option may be a pair."""
        b = a if b is None else b
        for i, (mine, other) in enumerate(((a, b), (b, a))):
            own = {name: value[i] if isinstance(value, tuple) else value for name, value in options.items()}
            self.nodes[i].qp(mine, peer_qpn=other, psn=psn[i], expected=psn[1 - i], **own)

    def poll(self):
        return [node.poll() for node in self.nodes]

    def run_until(self, predicate, limit_ns, step_ns=2000):
        """Run until `predicate()` holds, polling both nodes; whether it did."""
        def look():
            self.poll()
            return predicate()
        return self.world.run_until(look, limit_ns, step_ns)

    def run_ns(self, ns):
        self.world.run_ns(ns)
        self.poll()
