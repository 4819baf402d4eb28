"""A message from one card to another, and a receive for which nothing comes.

    python examples/first_send.py [model | rtl]

`model` is the card as a Python program; `rtl` is the generated Verilog, compiled when it is first used. The program is the same.
"""

import sys

from host_driver.verbs import *

backend = sys.argv[1] if len(sys.argv) > 1 else "model"

with open_cards(backend, 2) as (alice, bob):                    # two cards on a cable

    def make_end(context):
        """What a program makes on its card: memory that the card may use, a completion queue, a queue pair."""
        pd = PD(context)
        memory = MR(pd, 4096, IBV_ACCESS_LOCAL_WRITE)
        cq = CQ(context, 16)
        return memory, cq, QP(pd, QPInitAttr(scq=cq, rcq=cq))

    memory_a, cq_a, qp_a = make_end(alice)
    memory_b, cq_b, qp_b = make_end(bob)

    # info() is a small dict that goes to the other side by whatever way there is: a file, a socket, or here a variable.
    qp_a.connect(qp_b.info())
    qp_b.connect(qp_a.info())

    # Two receives with a time limit each. The first one's begins now, the second one's when the first has ended.
    for i in range(2):
        qp_b.post_recv(RecvWR(f"receive {i}", sg=[memory_b.sge(1024 * i, 1024)], timeout_ns=50_000))

    memory_a.write(b"bounded in time")
    qp_a.post_send(SendWR("send", IBV_WR_SEND, sg=[memory_a.sge(0, 15)], tag=7))

    sent, = cq_a.wait(1)
    first, second = cq_b.wait(2)
    for wc in (sent, first, second):
        print(wc)

    # A send's success says that it went out. What arrived is what the receive says.
    assert sent.ok and first.ok and first.tag == 7
    assert memory_b.read(first.byte_len) == b"bounded in time"
    # Nothing came for the second: it ended all the same, when its time was up.
    assert second.partial and second.cause == "timeout" and second.byte_len == 0
    print(f"received {memory_b.read(first.byte_len)!r}; the second receive gave up {second.timestamp - first.timestamp} ns later")
