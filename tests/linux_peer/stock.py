"""The stock tools in a guest, and the same test here at the other end."""

from contextlib import contextmanager
import itertools

from host_driver.exchange import ProgramError
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
    """`tool`, a command without port and host, against `program(card, line, client=, **options)`; `role`: what Linux is, "client" or "server".
    The program's result, and the tool's output; its exit status is 0."""
    card = lab.cards[0]

    def both(job, line, client):
        try:
            result = program(card, line, client=client, **options)
        except ProgramError:
            print(card.status(), card.neighbours.counts, lab.network.totals(), f"longest turn {lab.lockstep.longest_turn_ns} ns", sep="\n")
            print(job.output, guest.run("cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep -v '^0' *; ip neigh", check=False))
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
