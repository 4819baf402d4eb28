"""Rows of an array, written into the peer's memory, each with a number that tells the peer which one it is.

    python examples/write_with_imm.py [model | rtl]

A WRITE goes to an address at the peer; its immediate takes a receive there, so that the peer's program hears of it.
"""

import sys

import numpy as np

from host_driver.verbs import *

backend = sys.argv[1] if len(sys.argv) > 1 else "model"
ROWS, COLUMNS = 4, 600

with open_cards(backend, 2) as (alice, bob):
    rows = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)

    pd_a, cq_a = PD(alice), CQ(alice, 16)
    source = MR(pd_a, rows, IBV_ACCESS_LOCAL_WRITE)             # memory of the card, with the array's contents
    qp_a = QP(pd_a, QPInitAttr(scq=cq_a, rcq=cq_a))

    pd_b, cq_b = PD(bob), CQ(bob, 16)
    target = MR(pd_b, np.zeros_like(rows), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
    qp_b = QP(pd_b, QPInitAttr(scq=cq_b, rcq=cq_b))

    qp_a.connect(qp_b.info())
    qp_b.connect(qp_a.info())

    # The receives get no bytes, the WRITEs say where those go; so they need no memory.
    for _ in range(ROWS):
        qp_b.post_recv(RecvWR(timeout_ns=100_000))

    # What the writer has to know of the target: its address and its key.
    row_bytes = rows[0].nbytes
    for i in reversed(range(ROWS)):
        wr = SendWR(i, IBV_WR_RDMA_WRITE_WITH_IMM, imm_data=i, sg=[source.sge(i * row_bytes, row_bytes)])
        wr.set_wr_rdma(target.rkey, target.addr + i * row_bytes)
        qp_a.post_send(wr)

    for wc in cq_b.wait(ROWS):
        assert wc.ok and wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM, wc
        # In a simulation `array` is a copy: look at the card's memory again. On a board this does nothing.
        row = target.sync_from_card(wc.imm_data * row_bytes, row_bytes)[wc.imm_data]
        print(f"row {wc.imm_data} is there: {wc.byte_len} bytes, {row[0]:g} to {row[-1]:g}")
    assert np.array_equal(target.array, rows)
