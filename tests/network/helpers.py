"""Frames and traffic for the tests of the network, and the sums that must always come out."""

from hashlib import sha256
import random

from sim.frames import xp_send

DEFAULT_SIZE = 1024


def mac(i):
    return f"02:00:00:00:01:{i:02x}"


def frame(source=0, destination=1, size=DEFAULT_SIZE, **fields):
    """A RoCE frame between two of the ports, its payload `size` bytes."""
    return xp_send(0x11, bytes(i % 251 for i in range(size)), src_mac=mac(source), dst_mac=mac(destination), **fields)


def know_everyone(net):
    """Static addresses: no flooding."""
    for port in net.ports:
        net.switches[0].static(mac(port.index), port)


def traffic(seed, ports, count, span_ps):
    """[(time, source, frame)] at random, each frame another one."""
    rng = random.Random(seed)
    found = []
    for n in range(count):
        source = rng.randrange(ports)
        destination = (source + rng.randrange(1, ports)) % ports
        data = frame(source, destination, rng.choice((0, 64, 1024, 4096)), psn=n, tos=rng.randrange(4))
        found.append((rng.randrange(span_ps), source, data))
    return sorted(found)


def balanced(net):
    totals = net.totals()
    return totals["injected"] + totals["copied"] == totals["delivered"] + sum(totals["dropped"].values()) + totals["in_flight"]


def fingerprint(deliveries):
    digest = sha256()
    for d in deliveries:
        digest.update(f"{d.time_ps} {d.port} {d.damaged} {len(d.frame)} ".encode() + d.frame)
    return digest.hexdigest()[:16]
