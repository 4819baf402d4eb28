"""A message that loses a packet ends in time, and says what is there and which pieces.

    python examples/partial_completion.py [model | rtl]

The network loses the second packet of the second message. Nothing is sent again: the receive completes at its deadline with the
rest, and the program makes do with it.
"""

import sys

import numpy as np

from host_driver.verbs import *

backend = sys.argv[1] if len(sys.argv) > 1 else "model"
SIZE, LIMIT_NS = 4096, 30_000

# An arrival map is a part of the card that has to be asked for (another card than the other examples': rtl compiles it).
with open_cards(backend, 2, changes={"arrival_map": True}) as cards:
    alice, bob = cards
    values = np.linspace(1, 2, SIZE // 4, dtype=np.float32)

    pd_a, cq_a = PD(alice), CQ(alice, 16)
    source = MR(pd_a, values, IBV_ACCESS_LOCAL_WRITE)
    qp_a = QP(pd_a, QPInitAttr(scq=cq_a, rcq=cq_a))

    pd_b, cq_b = PD(bob), CQ(bob, 16)
    target = MR(pd_b, np.zeros((2, SIZE // 4), np.float32), IBV_ACCESS_LOCAL_WRITE)
    qp_b = QP(pd_b, QPInitAttr(scq=cq_b, rcq=cq_b, arrival_bytes=SIZE))

    qp_a.connect(qp_b.info())
    qp_b.connect(qp_a.info())
    mtu = 128 << qp_b.attr.path_mtu                            # codes of verbs: 3 stands for 1024

    # Lose one frame on its way to Bob: the second packet of the second message.
    cards.network.rule(destination=1, nth=SIZE // mtu + 2, loss=1)

    for i in range(2):
        qp_b.post_recv(RecvWR(i, sg=[target.sge(SIZE * i, SIZE)], timeout_ns=LIMIT_NS))
        qp_a.post_send(SendWR(i, IBV_WR_SEND, sg=[source.sge()]))

    whole, partial = cq_b.wait(2)
    print(whole)
    print(partial)
    assert whole.ok and partial.partial and partial.cause == "timeout"
    assert (partial.byte_len, partial.msg_len) == (SIZE - mtu, SIZE)

    pieces = qp_b.arrived(partial)
    print("pieces of the second message:", "".join("#" if there else "." for there in pieces))
    assert pieces == [piece != 1 for piece in range(SIZE // mtu)]

    # What is missing was never written. A sum over what is there can be scaled to what it would have been.
    got = target.sync_from_card()[1]
    estimate = got.sum() * partial.msg_len / partial.byte_len
    print(f"sum of all values {values.sum():.1f}, estimated from what arrived {estimate:.1f}")
    assert abs(estimate / values.sum() - 1) < 0.05
    print(f"known {partial.timestamp - whole.timestamp} ns after the first message had ended; the limit was {LIMIT_NS} ns")
