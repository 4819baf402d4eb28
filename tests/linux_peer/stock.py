"""The stock tools in a guest and the same test here at the other end; and one queue pair of each, connected."""

from contextlib import contextmanager
import itertools

from host_driver.exchange import ProgramError
from host_driver.verbs import (CQ, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC, IBV_QPT_UC, IBV_WR_RDMA_WRITE, MR, PD,
                               QP, QPInitAttr, SendWR)
from sim.linux_peer import VerbsPeer
from sim.linux_peer.answering import AnsweringLab

TRACED = {"trace": True}            # as in rig.py, so that one card is compiled for all
PORTS = itertools.count(21000)      # in the guest


@contextmanager
def answering(backend, guest, rng, **options):
    """A Lab in which nothing is in anybody's neighbour table; at the end the card has kept to its rules."""
    options = {"changes": TRACED, "rate": 8_000_000_000, "seed": rng.randrange(1 << 30), **options}
    with AnsweringLab(backend, [guest], **options) as lab:
        yield lab
        for card in lab.cards:
            assert not card.device.violations and not card.device.faults


def run(lab, guest, tool, role, program, **options):
    """`tool`, a command without port and host, against `program(card, line, client=, **options)`; `role`: what Linux is, "client"
    or "server". The program's result, and the tool's output; its exit status is 0."""
    card = lab.cards[0]

    def both(job, line, client):
        try:
            result = program(card, line, client=client, **options)
        except ProgramError:
            print(card.status(), card.neighbours.counts, lab.network.totals(), f"longest turn {lab.lockstep.longest_turn_ns} ns",
                  sep="\n")
            print(job.output, guest.run("cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep -v '^0' *; ip neigh",
                                        check=False))
            raise
        status = job.wait()
        assert status == 0, job.output
        return result, job.output
    if role == "client":
        with lab.serve() as listener, guest.start(f"exec {tool} -p {listener.port} {lab.HOST}") as job, listener.accept() as line:
            return both(job, line, client=False)
    port = next(PORTS)
    with guest.start(f"exec {tool} -p {port}") as job, lab.call(guest, port, job) as line:
        return both(job, line, client=True)


def gid_index(guest, ip6):
    return guest.gid_index(guest.address.ip6 if ip6 else guest.address.ip)


class Connected:
    """A queue pair of the lab's first card and one of Linux, of type `kind`, "rc" or "uc", each with `size` bytes for the other one.
    `settings` as of VerbsPeer."""

    def __init__(self, lab, guest, kind, *, size=1 << 16, **settings):
        self.lab, self.card, self.kind = lab, lab.cards[0], kind
        pd = PD(self.card)
        self.scq, self.rcq = CQ(self.card, 128), CQ(self.card, 128)
        self.mr = MR(pd, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
        self.qp = QP(pd, QPInitAttr(qp_type={"rc": IBV_QPT_RC, "uc": IBV_QPT_UC}[kind], scq=self.scq, rcq=self.rcq))
        self.peer = VerbsPeer(guest, mtu=1024, memory=size, **({"uc": 1} if kind == "uc" else {}), **settings)
        self.peer.connect(self.qp, self.mr)

    def write(self, at, length, pieces=1):
        """Have the card WRITE its memory from `at` on to the same place of Linux', in so many messages."""
        there = self.peer.there
        for offset in range(at, at + length, length // pieces):
            wr = SendWR(offset, IBV_WR_RDMA_WRITE, sg=[self.mr.sge(offset, length // pieces)])
            wr.set_wr_rdma(there.rkey, there.addr + offset)
            self.qp.post_send(wr)
        assert all(wc.ok for wc in self.scq.wait(pieces, 50_000_000))
