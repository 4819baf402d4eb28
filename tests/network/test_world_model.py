"""Whole cards in plain Python in a world: two drivers, messages both ways over a bad network, and the same run again."""

import random

import pytest

from host_driver.card import Card
from optinic.config import preset
from sim.model_device import ModelDevice
from sim.network import GBIT, star
from sim.world import World
from .helpers import balanced, know_everyone, mac

CFG = preset("tiny", congestion="none")
KEY, VA, SIZE, MTU, COUNT = 7, 1 << 40, 1 << 16, 512, 12


def exchange(quantum_ns=None, threads=1):
    """(completions of both cards, their memories, the network's counters); messages of 4096 bytes both ways."""
    net = star(2, rate=5 * GBIT, delay_ns=1000, seed=11, loss=.02, reorder=(.2, (100, 5000)), duplicate=.05, corrupt=.02)
    know_everyone(net)
    lost = net.rule(source=0, destination=1, nth=4, loss=1)
    nics = [ModelDevice(CFG) for _ in range(2)]
    with World(nics, net, quantum_ns=quantum_ns, threads=threads) as world:
        cards, memories = [], []
        for i in range(2):
            device = world.device(i)
            card = Card(device, CFG)
            cards.append(card), memories.append(device.alloc(2 * SIZE))
            device.write(memories[i] + SIZE, random.Random(i).randbytes(SIZE))      # the upper half is what it sends
            card.set_local(mac(i), f"10.0.0.{i + 1}", f"fd00::{i + 1}")
            card.set_peer(0, f"10.0.0.{2 - i}", mac=mac(1 - i))
            card.set_cq(0), card.set_cq(1)
            card.add_region(KEY, VA, 2 * SIZE, ("local_write",), pd=1, delta=memories[i] - VA)
            card.create_qp(5, pd=1, mtu=MTU, cq=0, send_cq=1, peer_qpn=5)
            for n in range(COUNT):
                card.post_receive(5, VA + 4096 * n, 4096, KEY, timeout_ns=40_000)
            card.enable()
        for n in range(COUNT):
            for i in range(2):
                cards[i].post_send(5, "send", VA + SIZE + 4096 * n, 4096, KEY)
        found = [[], []]
        for i in range(2):
            found[i] += cards[i].wait(0, COUNT, limit_cycles=400_000)
            found[i] += cards[i].wait(1, COUNT, limit_cycles=1000)
        world.run_ns(50_000)
        assert balanced(net) and lost.hits == 1 and world.idle()
        contents = [world.device(i).read(memories[i], SIZE) for i in range(2)]
        sent = [world.device(1 - i).read(memories[1 - i] + SIZE, SIZE) for i in range(2)]
        for i in range(2):
            for c in found[i]:
                at = slice(4096 * c.index, 4096 * (c.index + 1))
                assert c.queue == "send" and c.status == "success" or c.status == "partial" or contents[i][at] == sent[i][at]
            assert len(found[i]) == 2 * COUNT and {c.status for c in found[i]} == {"success", "partial"}
    return found, contents, net.counters()


@pytest.fixture(scope="module")
def once():
    return exchange()


@pytest.mark.parametrize("quantum_ns, threads", [(None, 1), (137, 1), (None, 2)])
def test_same_run_again(once, quantum_ns, threads):
    again = exchange(quantum_ns, threads)
    if quantum_ns is None:
        assert again == once
    else:       # drivers act between quanta, so they act at other times; what they find is as good
        assert [len(f) for f in again[0]] == [len(f) for f in once[0]]
