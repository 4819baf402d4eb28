"""The card itself in a world, brought up by its driver, taking messages that come over a network with faults."""

import pytest

from host_driver.card import Card
from optinic.config import preset
from sim.device import SimDevice
from sim.frames import xp_send
from sim.network import GBIT, star
from sim.world import World
from .helpers import balanced, know_everyone, mac

CFG = preset("tiny", trace=True)
pytestmark = pytest.mark.rtl


def test_messages_over_a_bad_network(rng, seed):
    net = star(3, rate=5 * GBIT, delay_ns=500, seed=seed, reorder=(.3, (100, 20_000)), duplicate=.1, corrupt=.05)
    know_everyone(net)
    lost = net.rule(nth=(5, 11), loss=1, name="two pieces")
    with SimDevice(CFG, seed=seed) as nic, World([nic], net) as world:
        device = world.device(0)
        card = Card(device, CFG)
        memory = device.alloc(65536)
        card.set_peer(0, "10.0.0.2")
        card.set_cq(0)
        card.add_region(7, 1 << 40, 65536, ("local_write",), pd=1, delta=memory - (1 << 40))
        card.create_qp(5, pd=1)
        for i in range(8):
            card.post_receive(5, (1 << 40) + 4096 * i, 4096, 7, timeout_ns=100_000)
        card.enable()
        data = [rng.randbytes(4096) for _ in range(8)]
        for i, message in enumerate(data):
            at = world.now_ns + 60_000 * i
            for offset in range(0, 4096, 1024):
                world.send(1, xp_send(5, message[offset:offset + 1024], seq=i, msg_len=4096, offset=offset, src_mac=mac(1),
                                      dst_mac=mac(0)), at_ns=at)
        found = card.wait(0, 8, limit_cycles=200_000)
        assert world.now_ns < 1_500_000 and balanced(net) and nic.faults == [] and nic.violations == []
        assert [c.index for c in found] == list(range(8)) and lost.hits == 2
        kinds = {c.status for c in found}
        assert kinds == {"success", "partial"}
        for c in found:
            assert c.status != "success" or device.read(memory + 4096 * c.index, 4096) == data[c.index]
        changed = net.ports[0].into.changed
        assert nic.trace_count == net.ports[0].delivered == 32 - 2 + changed["duplicated"]
        assert card.counter("drop_icrc") + card.counter("drop_checksum") <= changed["corrupted"] and changed["corrupted"]
