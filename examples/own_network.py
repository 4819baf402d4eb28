"""A network of one's own: three cards around a switch, a bad line to one of them, and a capture of what happened.

    python examples/own_network.py [model | rtl] [FILE.pcap]

docs/network.md has all that a network can do to frames. The capture opens in Wireshark; docs/wireshark/ has the dissector.
"""

import sys

from host_driver.verbs import *
from sim.network import GBIT, star

backend = sys.argv[1] if len(sys.argv) > 1 else "model"
pcap = sys.argv[2] if len(sys.argv) > 2 else "own_network.pcap"
MESSAGES, SIZE = 20, 3000

network = star(3, rate=5 * GBIT, delay_ns=500, seed=7, names=["root", "good", "bad"])
network.node("bad").into.impair(loss=0.05, reorder=(0.1, 3000))         # only what comes to this card, and from now on
capture = network.capture(pcap, "bad")                                  # what its card sends and gets

with open_cards(backend, 3, network=network) as cards:
    root, *leaves = cards
    # A switch learns addresses from those who send. The leaves only receive; without this it would send everything everywhere.
    for card, port in zip(cards, network.ports):
        network.switches[0].static(card.mac, port)
    pd, cq = PD(root), CQ(root, 128)
    source = MR(pd, bytes(i % 251 for i in range(SIZE)), IBV_ACCESS_LOCAL_WRITE)

    ends = []
    for leaf in leaves:
        leaf_pd, leaf_cq = PD(leaf), CQ(leaf, 64)
        target = MR(leaf_pd, MESSAGES * SIZE, IBV_ACCESS_LOCAL_WRITE)
        here, there = QP(pd, QPInitAttr(scq=cq, rcq=cq)), QP(leaf_pd, QPInitAttr(scq=leaf_cq, rcq=leaf_cq))
        here.connect(there.info()), there.connect(here.info())
        for i in range(MESSAGES):
            there.post_recv(RecvWR(i, sg=[target.sge(i * SIZE, SIZE)], timeout_ns=100_000))
        ends.append((here, leaf_cq, target))

    for _ in range(MESSAGES):
        for here, _, _ in ends:
            here.post_send(SendWR(sg=[source.sge()]))

    complete = {}
    for name, (_, leaf_cq, target) in zip(("good", "bad"), ends):
        found = leaf_cq.wait(MESSAGES)
        assert len(found) == MESSAGES, "every receive ends, whatever the network does"
        for wc in found:
            if wc.ok:
                assert target.read(SIZE, SIZE * wc.wr_id) == source.read()
        complete[name] = sum(wc.ok for wc in found)
        print(f"{name}: {complete[name]} of {MESSAGES} messages complete, {sum(wc.byte_len for wc in found):,} of "
              f"{MESSAGES * SIZE:,} bytes")

    totals = network.totals()
    print("the network:", totals)
    lost = totals["dropped"].get("loss", 0)
    assert totals["injected"] + totals["copied"] == totals["delivered"] + sum(totals["dropped"].values()) + totals["in_flight"]
    assert complete["good"] == MESSAGES and (complete["bad"] < MESSAGES) == (lost > 0)

print(f"{capture.frames} frames in {pcap}")
