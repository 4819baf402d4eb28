"""Several queue pairs that share two completion queues, and a program that sleeps until there is something to do.

    python examples/many_qps.py [model | rtl]
"""

import random
import sys

from host_driver.verbs import *

backend = sys.argv[1] if len(sys.argv) > 1 else "model"
PAIRS, MESSAGES, SIZE = 8, 4, 256
rng = random.Random(1)

with open_cards(backend, 2) as (alice, bob):
    pd_a, cq_a = PD(alice), CQ(alice, 64)
    source = MR(pd_a, rng.randbytes(PAIRS * MESSAGES * SIZE), IBV_ACCESS_LOCAL_WRITE)

    channel = CompChannel(bob)
    pd_b, cq_b = PD(bob), CQ(bob, 64, None, channel)
    target = MR(pd_b, len(source), IBV_ACCESS_LOCAL_WRITE)

    senders, receivers = [], {}
    for i in range(PAIRS):
        a, b = QP(pd_a, QPInitAttr(scq=cq_a, rcq=cq_a)), QP(pd_b, QPInitAttr(scq=cq_b, rcq=cq_b))
        a.connect(b.info()), b.connect(a.info())
        senders.append(a)
        receivers[b.qp_num] = i
        for j in range(MESSAGES):
            b.post_recv(RecvWR((i, j), sg=[target.sge((i * MESSAGES + j) * SIZE, SIZE)], timeout_ns=500_000))

    # In any order of the queue pairs: each one's messages take its own receives, in order.
    work = [i for i in range(PAIRS) for _ in range(MESSAGES)]
    rng.shuffle(work)
    sent = [0] * PAIRS
    for i in work:
        senders[i].post_send(SendWR((i, sent[i]), sg=[source.sge((i * MESSAGES + sent[i]) * SIZE, SIZE)]))
        sent[i] += 1

    received, events = [], 0
    while len(received) < len(work):
        count, found = cq_b.poll(64)
        received += found
        if not count:
            # Ask for an event, look once more (something may have come in between), and only then wait.
            cq_b.req_notify()
            count, found = cq_b.poll(64)
            received += found
            if not count:
                assert channel.get_cq_event(timeout_ns=1_000_000) is cq_b, "no event came"
                events += 1

    for wc in received:
        assert wc.ok and receivers[wc.qp_num] == wc.wr_id[0], wc
    for i in range(PAIRS):
        assert [wc.wr_id[1] for wc in received if wc.wr_id[0] == i] == list(range(MESSAGES))
    assert target.read() == source.read() and all(wc.ok for wc in cq_a.wait(len(work)))
    print(f"{len(received)} messages on {PAIRS} queue pairs, {events} times asleep in between")
    print("they came in this order:", " ".join(str(wc.wr_id[0]) for wc in received))
