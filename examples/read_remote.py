"""Fetching from the peer's memory with READs, one of which the peer refuses.

    python examples/read_remote.py [model | rtl]
"""

import sys

from host_driver.verbs import *

backend = sys.argv[1] if len(sys.argv) > 1 else "model"

with open_cards(backend, 2) as (alice, bob):

    def make_qp(context):
        """READs need `max_rd_atomic` on both sides, also on the one that only answers (docs/driver.md says why)."""
        pd, cq = PD(context), CQ(context, 16)
        return pd, cq, QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_rd_atomic=4)))

    pd_a, cq_a, qp_a = make_qp(alice)
    pd_b, cq_b, qp_b = make_qp(bob)
    qp_a.connect(qp_b.info())
    qp_b.connect(qp_a.info())

    landing = MR(pd_a, 8192, IBV_ACCESS_LOCAL_WRITE)
    book = MR(pd_b, b"".join(b"line %03d\n" % i for i in range(300)), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)
    diary = MR(pd_b, b"nobody else's business", IBV_ACCESS_LOCAL_WRITE)                 # no REMOTE_READ

    def read(name, region, offset, length, place):
        # An answer that never comes is a fact of this network: without a time limit the READ would wait for ever.
        wr = SendWR(name, IBV_WR_RDMA_READ, sg=[landing.sge(place, length)], timeout_ns=100_000)
        wr.set_wr_rdma(region.rkey, region.addr + offset)
        qp_a.post_send(wr)

    read("all of it", book, 0, len(book), 0)
    read("line 123", book, 9 * 123, 9, 4096)
    read("the diary", diary, 0, len(diary), 6000)

    # Bob's program does nothing at all: his card answers.
    for wc in cq_a.wait(3):
        print(wc)
        assert wc.ok == (wc.wr_id != "the diary"), wc
    assert landing.read(len(book)) == book.read() and landing.read(9, 4096) == b"line 123\n"
    assert landing.read(len(diary), 6000) == bytes(len(diary))

    # Why did the last one end without a byte? The peer's card knows.
    refused = qp_b.status()["qps"][0]["refused"]
    print("Bob's card refused:", refused)
    assert refused == {"access": 1}
