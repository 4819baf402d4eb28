"""A simulated card and a Linux that is alive: it finds the card, pings it, runs its own tools with it, and both use each other's
memory.

Linux runs in QEMU, on its own RoCE implementation (Soft-RoCE), and knows nothing of any of this; see docs/linux-peer.md. Nothing is
entered into a neighbour table by hand. Whatever is moved is compared at its end.
"""

import re
import time
import zlib

import numpy as np

from host_driver.exchange import contents, pingpong
from host_driver.verbs import (CQ, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
                               IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC, IBV_QPT_UC, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ,
                               IBV_WR_RDMA_WRITE, IBV_WR_SEND, MR, PD, QP, QPInitAttr, RecvWR, SendWR)
from sim.linux_peer import Guest, Op, VerbsPeer, build_image
from sim.linux_peer.answering import AnsweringLab

from .common import cable_rate

__all__ = ["run", "table", "PeerShow"]

PINGS, TURNS, ADDS, BATCH = 3, 10, 8, 16
WAIT_NS, WAIT_MS = 500_000_000, 30_000          # for one step: of the card, of Linux
RECEIVE_NS, LINUX_RECEIVE_MS = 5_000_000, 200   # of transport xp, where messages can be lost: for receives of a batch
TIMEOUT, LINUX_TIMEOUT = 7, 14                  # 0.5 ms of the card, 67 ms of Linux
ADDEND = 0x0102030405060708


class PeerShow:
    """The card `context` and the guest while they are shown. `steps` has what was done, `problems` what was not as it must be."""

    def __init__(self, lab, guest, *, size, mtu, seed, say, step):
        self.lab, self.guest, self.card = lab, guest, lab.cards[0]
        self.size, self.mtu, self.rng = size, mtu, np.random.default_rng(seed)
        self.say, self._step = say, step
        self.rc = self.card.card.rc
        self.steps, self.problems = [], []

    def note(self, what, who, messages, size, started_ns, right, lost=0, more=""):
        """A step is over. `right`: messages whose data were compared and equal; those `lost` are no fault of anybody here."""
        took = self.card.time_ns() - started_ns
        self.steps.append({"what": what, "requester": who, "messages": messages, "bytes": size, "ns": took, "right": right,
                           "lost": lost})
        if right + lost != messages:
            self.problems.append(f"{what} by {who}: of {messages} messages {right} are right and {lost} were lost")
        ending = f", {lost} lost on the way" if lost else ""
        self.say(f"  {what} by {who}: {right} of {messages} compared and right{ending}, {took / 1000:,.0f} us of the card{more}")
        self._step(len(self.steps))

    # -- addresses --------------------------------------------------------------------------------------

    def ping(self):
        """From Linux, by its own ping, and back."""
        for name, ip in (("ping", self.card.ip), ("ping -6", self.card.ip6)):
            start = self.card.time_ns()
            # What the network loses is asked again; the first question for an address is one of those frames.
            said = self.guest.run(f"for i in 1 2 3 4 5 6; do {name} -c {PINGS} -i 0.1 -W 1 {ip} && break; done")
            best = re.search(r"min/avg/max = ([\d.]+)/", said)
            came = re.findall(r"(\d+) packets received", said)
            self.note(f"{name} {ip}", "Linux", PINGS, 56 * PINGS, start, int(came[-1]), PINGS - int(came[-1]),
                      f" (Linux measures {best[1]} ms at best)" if best else "")
        known = self.guest.run("ip neigh show dev link0")
        lines = [" ".join(line.split()) for line in known.splitlines() if self.card.mac in line]
        self.say(f"  Linux' neighbour table: {'; '.join(lines)}")
        if known.count(f"lladdr {self.card.mac}") < 2:
            self.problems.append("Linux has not found both addresses of the card")

    def stock_pingpong(self, role):
        """`role`: what Linux is."""
        kind, gid = "rc" if self.rc else "uc", self.guest.gid_index(self.guest.address.ip)
        size = min(self.size, 4096 if self.rc else self.mtu)
        tool = f"exec ibv_{kind}_pingpong -d rxe0 -g {gid} -m {self.mtu} -s {size} -n {TURNS}"
        start, got = self.card.time_ns(), {}
        options = dict(kind=kind, size=size, iterations=TURNS, mtu=self.mtu, each=got.__setitem__,
                       **({"timeout": TIMEOUT} if self.rc else {}))
        if role == "client":
            with self.lab.serve() as listener, self.guest.start(f"{tool} -p {listener.port} {self.lab.HOST}") as job, \
                    listener.accept() as line:
                pingpong(self.card, line, client=False, **options)
                job.wait()
        else:
            with self.guest.start(f"{tool} -p 18515") as job, self.lab.call(self.guest, 18515, job) as line:
                pingpong(self.card, line, client=True, **options)
                job.wait()
        # The tool sends back what it has got; as client it begins, with bytes of 0x7b.
        wanted = {n: contents(n - (role == "client"), size) for n in range(TURNS)}
        if role == "client":
            wanted[0] = b"\x7b" * size
        self.note(f"ibv_{kind}_pingpong, Linux as {role}", "both", TURNS, TURNS * size, start,
                  sum(got.get(n) == wanted[n] for n in wanted))
        if job.status:
            self.problems.append(f"ibv_{kind}_pingpong in the guest ended with status {job.status}: {job.output.strip()[-200:]}")

    # -- memory -----------------------------------------------------------------------------------------

    def connect(self):
        """One queue pair with memory at both ends."""
        rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
        self.pd = PD(self.card)
        self.room = 2 * self.size + 64
        self.mr = MR(self.pd, self.room, rights | (IBV_ACCESS_REMOTE_ATOMIC if self.card.has_atomics else 0))
        self.scq, self.rcq = CQ(self.card, 128), CQ(self.card, 128)
        self.qp = QP(self.pd, QPInitAttr(qp_type=IBV_QPT_RC if self.rc else IBV_QPT_UC, scq=self.scq, rcq=self.rcq))
        self.linux = VerbsPeer(self.guest, mtu=self.mtu, memory=self.room, **({"timeout": LINUX_TIMEOUT} if self.rc else {"uc": 1}))
        self.linux.connect(self.qp, self.mr, **({"timeout": TIMEOUT} if self.rc else {}))
        there = self.linux.there
        self.say(f"Queue pairs {self.qp.qp_num:#x} of the card and {there.qpn:#x} of Linux are connected, path MTU {self.mtu}; "
                 f"each has {self.room:,} bytes that the other one may use.")

    def pieces(self):
        """(offset, length) of messages: of transport xp one packet each."""
        most = -(-self.size // BATCH) if self.rc else self.mtu
        return [(at, min(most, self.size - at)) for at in range(0, self.size, most)]

    def fresh(self):
        return self.rng.integers(1, 256, self.size, np.uint8).tobytes()

    def clear(self, at=0):
        """`size` bytes from `at` on, at both ends."""
        self.mr.write(bytes(self.size), offset=at)
        self.linux.fill(at, self.size)

    def from_card(self, what):
        """WRITE, SEND, or READ by the card; the messages are compared at Linux, of a READ at the card."""
        data, pieces, there = self.fresh(), self.pieces(), self.linux.there
        self.clear(), self.clear(self.size)
        if what == "READ":
            self.linux.load(0, data)
        else:
            self.mr.write(data)
        start = self.card.time_ns()
        done = 0
        for first in range(0, len(pieces), BATCH):
            batch = pieces[first:first + BATCH]
            for at, length in batch:
                if what == "SEND":
                    self.linux.receive(at, self.size + at, length)
                local = self.size + at if what == "READ" else at
                wr = SendWR(at, {"WRITE": IBV_WR_RDMA_WRITE, "SEND": IBV_WR_SEND, "READ": IBV_WR_RDMA_READ}[what],
                            sg=[self.mr.sge(local, length)])
                if what != "SEND":
                    wr.set_wr_rdma(there.rkey, there.addr + (at if what == "READ" else self.size + at))
                self.qp.post_send(wr)
            done += sum(wc.ok for wc in self.scq.wait(len(batch), WAIT_NS))
            if what == "SEND":
                self.linux.receives(len(batch), WAIT_MS if self.rc else LINUX_RECEIVE_MS)
        self.expect(done == len(pieces), f"{what} by the card: {done} of {len(pieces)} completions are a success")
        if what == "WRITE" and not self.rc:
            self.lab.world.run_until(self.lab.world.idle, 10**6)
            self.guest.run("sleep 0.05")        # until Linux has seen the last one
        got = self.mr.read(self.size, self.size) if what == "READ" else self.linux.dump(self.size, self.size)
        self.compare(what, "the card", data, got, pieces, start, moved_up=what == "SEND")

    def from_linux(self, what):
        data, pieces = self.fresh(), self.pieces()
        self.clear(), self.clear(self.size)
        if what == "READ":
            self.mr.write(data)
        else:
            self.linux.load(0, data)
        start = self.card.time_ns()
        ops = []
        for n, (at, length) in enumerate(pieces):
            here = self.mr.addr + (at if what == "READ" else self.size + at)
            ops.append(Op(what.lower(), length, self.size + at if what == "READ" else at, 0 if what == "SEND" else here))
        done, came = [], 0
        for first in range(0, len(ops), BATCH):
            batch = pieces[first:first + BATCH]
            if what == "SEND":
                for at, length in batch:
                    self.qp.post_recv(RecvWR(at, sg=[self.mr.sge(self.size + at, length)],
                                             timeout_ns=None if self.rc else RECEIVE_NS))
            done += self.linux.run(ops[first:first + BATCH], depth=8, ms=WAIT_MS)
            if what == "SEND":
                came += sum(wc.ok for wc in self.rcq.wait(len(batch), WAIT_NS))
        self.expect(len(done) == len(ops) and all(wc.ok for wc in done), f"{what} by Linux: not all completions are a success")
        if what == "WRITE" and not self.rc:
            self.card.sleep_ns(50_000)
        got = self.linux.dump(self.size, self.size) if what == "READ" else self.mr.read(self.size, self.size)
        self.compare(what, "Linux", data, got, pieces, start, moved_up=what == "SEND")

    def compare(self, what, who, sent, got, pieces, start, moved_up):
        """Message by message. A SEND that was lost takes no receive: those behind it are in earlier places (`moved_up`)."""
        if self.rc:
            self.expect(zlib.crc32(sent) == zlib.crc32(got), f"{what} by {who}: the data differ")
        if moved_up and not self.rc:
            arrived = {got[at:at + length] for at, length in pieces}
            right = [sent[at:at + length] in arrived for at, length in pieces]
            missing = [not any(got[at:at + length]) for at, length in pieces]
        else:
            right = [sent[at:at + length] == got[at:at + length] for at, length in pieces]
            missing = [not any(got[at:at + length]) for at, length in pieces]
        self.note(what, who, len(pieces), self.size, start, sum(right), 0 if self.rc else sum(missing))

    def expect(self, true, otherwise):
        if not true:
            self.problems.append(otherwise)

    def atomics(self, who):
        """Fetch-and-add on a counter in the other one's memory: each result is the sum of those before."""
        counter, result = 2 * self.size, 2 * self.size + 8
        self.mr.write(bytes(16), offset=counter), self.linux.fill(counter, 16)
        start, results = self.card.time_ns(), []
        for _ in range(ADDS):
            if who == "Linux":
                done = self.linux.run([Op("fadd", 8, result, self.mr.addr + counter, add=ADDEND)])
                results.append(self.linux.dump(result, 8))
            else:
                wr = SendWR(0, IBV_WR_ATOMIC_FETCH_AND_ADD, sg=[self.mr.sge(result, 8)])
                wr.set_wr_atomic(self.linux.there.rkey, self.linux.there.addr + counter, ADDEND)
                self.qp.post_send(wr)
                done = self.scq.wait(1, WAIT_NS)
                results.append(self.mr.read(8, result))
            self.expect(len(done) == 1 and done[0].ok, f"fetch-and-add by {who}: {done}")
        end = self.mr.read(8, counter) if who == "Linux" else self.linux.dump(counter, 8)
        self.expect(int.from_bytes(end, "little") == ADDS * ADDEND % (1 << 64),
                    f"fetch-and-add by {who}: the counter is {end.hex()}")
        self.note("fetch-and-add", who, ADDS, 8 * ADDS, start,
                  sum(int.from_bytes(value, "little") == n * ADDEND % (1 << 64) for n, value in enumerate(results)))

    def close(self):
        if hasattr(self, "linux"):
            self.linux.close()


def plan(rc, lossy, atomics):
    """[(what is told before it, what is done)]: functions of a PeerShow."""
    steps = [("Linux looks for the card: nothing is in its neighbour table.", lambda show: show.ping())]
    if rc or not lossy:
        steps += [("The stock pingpong of rdma-core, as client and then as server; it sends back what it gets.",
                   lambda show: show.stock_pingpong("client")), (None, lambda show: show.stock_pingpong("server"))]
    steps.append((None, lambda show: show.connect()))
    for what in ("WRITE", "READ", "SEND") if rc else ("WRITE", "SEND"):
        steps += [(None, lambda show, what=what: show.from_card(what)), (None, lambda show, what=what: show.from_linux(what))]
    if atomics:
        steps += [(None, lambda show, who=who: show.atomics(who)) for who in ("the card", "Linux")]
    return steps


def run(backend, cfg, *, loss=0.0, size=1 << 14, mtu=None, seed=1, pcap=None, say=lambda text: None,
        progress=lambda done, total: None):
    """Show it; a plain dict. `say` gets the story line by line, `progress` the steps that are over, of how many."""
    mtu = min(1024, cfg.mtu_max) if mtu is None else mtu
    rc = cfg.transport == "rc"
    if not rc:
        size = max(1, size // mtu) * mtu        # messages of one length
    began = time.monotonic()
    image = build_image(progress=lambda text: say(f"Once: {text}."))
    say("Linux boots in QEMU; nothing of this machine's network is used.")
    guest = Guest(image)
    with guest:
        versions = guest.run("uname -r && ibv_devinfo | grep -E 'hca_id|transport' | tr -s ' \\t' ' ' | tr '\\n' ' '").splitlines()
        say(f"Linux {versions[0]} has booted in QEMU after {time.monotonic() - began:.0f} s, with "
            f"{' '.join(versions[1:]).strip()}.")
        what = {"rtl": "the generated Verilog under Verilator", "model": "a model in Python"}[backend]
        say(f"The card is {what}, transport {cfg.transport}: {cfg.data_width} bits at {cfg.clock_hz / 1e6:g} MHz. Between them a "
            f"cable that loses {100 * loss:g} % of the frames (seed {seed}).")
        with AnsweringLab(backend, [guest], cfg=cfg, transport=cfg.transport, seed=seed, rate=cable_rate(cfg), loss=loss,
                          capture=pcap) as lab:
            steps = plan(rc, loss > 0, rc and lab.cards[0].has_atomics)
            # As many are noted as there are here: pinging notes two, connecting none.
            show = PeerShow(lab, guest, size=size, mtu=mtu, seed=seed, say=say, step=lambda done: progress(done, len(steps)))
            if pcap:
                say(f"What Linux sends and gets is recorded in {pcap}.")
            if not rc and loss:
                say("The stock pingpong is left out: of type UC nothing is sent again, and it would wait for ever.")
            try:
                for text, act in steps:
                    if text:
                        say(text)
                    act(show)
                result = {"backend": backend, "config": cfg.as_dict(), "linux": versions[0], "loss": loss, "mtu": mtu,
                          "bytes": size, "seed": seed,
                          "steps": show.steps, "card": moved(show.card), "linux_counters": linux_counters(guest),
                          "neighbours": dict(show.card.neighbours.counts), "frames": lab.network.totals(),
                          "simulated_ns": lab.world.now_ns, "guest_ns": guest.clock_ns, "turns": lab.lockstep.turns}
            finally:
                show.close()
            for wrong in [*show.card.device.faults[:1], *show.card.device.violations[:1]]:
                show.problems.append(f"the card: {wrong}")
    result["seconds"] = time.monotonic() - began
    result["problems"] = show.problems
    return result


def moved(card):
    return {name: n for name, n in card.counters().items() if n}


def linux_counters(guest):
    said = guest.run("cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *")
    return {name: int(n) for name, n in (line.split(":") for line in said.split()) if int(n)}


def table(result):
    """Rows (what, who asked, messages, bytes, right, lost, us, Gbit/s)."""
    rows = []
    for step in result["steps"]:
        speed = 8 * step["bytes"] / max(1, step["ns"])
        rows.append((step["what"], step["requester"], step["messages"], f"{step['bytes']:,}", step["right"], step["lost"] or "-",
                     f"{step['ns'] / 1000:,.0f}", f"{speed:.3f}"))
    return rows
