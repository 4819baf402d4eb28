"""What the API is made of: lives, limits, memory, numbers, errors."""

import json

import numpy as np
import pytest

from host_driver import verbs
from host_driver.verbs import *
from optinic.config import preset
from .conftest import ALL, add_qp, connect, make_end


@pytest.fixture
def ctx():
    with open_device("model", cfg="tiny", ip6="fd00::9") as ctx:
        yield ctx


def test_what_a_card_says(ctx):
    cfg = preset("tiny")
    attr = ctx.query_device()
    assert (attr.max_qp, attr.max_cq, attr.max_mr) == (cfg.num_qps, cfg.num_cqs - 1, cfg.num_regions)
    assert (attr.max_qp_wr, attr.max_sge) == (64, 1)
    assert (attr.transport, attr.congestion, attr.hw_ver, attr.config_hash) == ("xp", cfg.congestion, "1.0", cfg.hash)
    port = ctx.query_port(1)
    assert (port.state, port.max_mtu, port.mac, port.ip) == (IBV_PORT_ACTIVE, IBV_MTU_1024, "02:00:00:00:00:01", "10.0.0.1")
    assert str(ctx.query_gid(1, 0)) == "0000:0000:0000:0000:0000:ffff:0a00:0001" and ctx.query_gid(1, 1) == GID("fd00::9")
    assert GID("::ffff:10.0.0.1") == GID("10.0.0.1") == ctx.query_gid() != GID("10.0.0.2") and port.gid_tbl_len == 2
    ctx.disable()
    assert ctx.query_port().state == IBV_PORT_DOWN
    ctx.enable(tx=False)
    assert ctx.query_port().state == IBV_PORT_DOWN
    for bad in (lambda: ctx.query_port(2), lambda: ctx.query_gid(1, 2)):
        with pytest.raises(UsageError, match="there is no"):
            bad()


def test_names_are_those_of_verbs():
    assert (IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_QPS_RTS, IBV_QPT_UC, IBV_WC_RECV, IBV_SEND_INLINE) == (2, 4, 3, 3, 128, 8)
    assert set(verbs.__all__) <= set(dir(verbs)) and WCStatus(0) is IBV_WC_SUCCESS


def test_closing_a_parent_closes_its_children(ctx):
    end = make_end(ctx, reads=2)
    channel = CompChannel(ctx)
    noticed = CQ(ctx, 4, None, channel)
    card = ctx.card
    for what, user in ((end.scq, "QP"), (channel, "CQ")):
        with pytest.raises(UsageError, match=f"is in use by {user}"):
            what.close()
    assert end.scq.poll() == (0, [])        # and it goes on
    ctx.close()
    assert all(thing.closed for thing in (end.qp, end.mr, end.pd, end.scq, end.rcq, channel, noticed, ctx))
    assert not card._qps and not card._regions and not card._cqs and card.reg_read("CTRL") == 0 and card.reg_read("RQ_BASE_LO") == 0
    ctx.close(), end.qp.close()             # twice is once
    for use in (lambda: end.qp.post_send(SendWR()), lambda: end.scq.poll(), lambda: end.mr.read(), lambda: PD(ctx),
                lambda: ctx.status(), lambda: MR(end.pd, 8), lambda: end.qp.status()):
        with pytest.raises(ClosedError, match="is closed"):
            use()


def test_with_statements_and_reuse(ctx):
    for _ in range(40):                     # more lives than the card has of anything
        attr = QPInitAttr(cap=QPCap(max_rd_atomic=1))
        with PD(ctx) as pd, CQ(ctx, 16) as attr.scq, CQ(ctx, 16) as attr.rcq, MR(pd, 100) as mr, QP(pd, attr) as qp:
            assert qp.qp_state == IBV_QPS_RESET and mr.lkey and not pd.closed
    assert mr.closed and qp.closed and attr.scq.closed and pd.closed and not ctx._children
    assert not ctx.device.faults


def test_when_the_card_has_no_more(ctx):
    pd, cq = PD(ctx), CQ(ctx, 16)
    make = lambda reads=0: QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_rd_atomic=reads)))
    qps = [make() for _ in range(15)]
    with pytest.raises(ResourceError, match=r"all queue pairs of the card are taken.*num_qps"):
        make(1)                             # would take two
    qps.append(make())                      # the one is free still
    with pytest.raises(ResourceError):
        make()
    qps.pop().close()
    make()
    cqs = [CQ(ctx, 16) for _ in range(6)]
    with pytest.raises(ResourceError, match="num_cqs"):
        CQ(ctx, 16)
    assert len(cqs) == 6
    regions = []
    with pytest.raises(ResourceError, match="memory region.*num_regions"):
        for _ in range(33):
            regions.append(MR(pd, 64))
    assert len(regions) == 32 and len({mr.lkey for mr in regions}) == 32
    regions.pop().close()
    assert MR(pd, 64).lkey not in {mr.lkey for mr in regions}


@pytest.mark.parametrize("make, said", [
    (lambda c, pd, cq: CQ(c, 0), "cqe=0"), (lambda c, pd, cq: CQ(c, 4, comp_vector=1), "comp_vector=1: the card has 1"),
    (lambda c, pd, cq: MR(pd, 0), "0 bytes"),
    (lambda c, pd, cq: MR(pd, 8, IBV_ACCESS_REMOTE_WRITE), "goes with IBV_ACCESS_LOCAL_WRITE"),
    (lambda c, pd, cq: MR(pd, 8, IBV_ACCESS_REMOTE_ATOMIC), "no atomic"),
    (lambda c, pd, cq: QP(pd, QPInitAttr(scq=cq)), "needs a CQ"),
    (lambda c, pd, cq: QP(pd, QPInitAttr(qp_type=2, scq=cq, rcq=cq)), "qp_type=2"),
    (lambda c, pd, cq: QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_recv_wr=65))),
     "max_recv_wr=65, and the card has at most 64"),
    (lambda c, pd, cq: QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_send_sge=2))), "max_send_sge=2, and the card has at most 1"),
    (lambda c, pd, cq: QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_rd_atomic=33))), "max_rd_atomic=33"),
    (lambda c, pd, cq: QP(pd, QPInitAttr(IBV_QPT_UC, scq=cq, rcq=cq, cap=QPCap(max_rd_atomic=1))), "UC has no READ"),
    (lambda c, pd, cq: QP(pd, QPInitAttr(scq=cq, rcq=cq, arrival_bytes=1)), "arrival_map=on"),
    (lambda c, pd, cq: SendWR(opcode=7), "opcode=7"), (lambda c, pd, cq: c.enable(rx=False), "disable"),
])
def test_what_makes_no_sense(ctx, make, said):
    pd, cq = PD(ctx), CQ(ctx, 16)
    before = list(ctx._children), list(pd._children), len(ctx.numbers._qps), len(ctx.numbers._cqs)
    with pytest.raises(UsageError, match=said):
        make(ctx, pd, cq)
    assert (list(ctx._children), list(pd._children), len(ctx.numbers._qps), len(ctx.numbers._cqs)) == before


def test_work_requests_that_make_no_sense():
    with open_cards("model", 2) as cards:
        a, b = (make_end(context, reads=1) for context in cards)
        connect(a, b)
        sge = a.mr.sge(0, 8)
        for wr, said in ((SendWR(sg=[sge, sge]), "2 pieces of memory"), (SendWR(send_flags=IBV_SEND_FENCE), "FENCE"),
                         (SendWR(tag=1 << 16), "tag=65536"), (SendWR(timeout_ns=1, deadline_ns=1), "not both"),
                         (SendWR(send_flags=IBV_SEND_INLINE, sg=[a.mr.sge(0, 33)]), "at most 32"),
                         (SendWR(0, IBV_WR_RDMA_READ, inline_data=b""), "nothing to inline"), (SendWR(rkey=-1), "rkey=-1"),
                         (SendWR(0, IBV_WR_RDMA_READ, sg=[SGE(0, 1 << 32, 0)]), "does not fit"),
                         (SendWR(timeout_ns=0), "timeout_ns=0")):
            with pytest.raises((UsageError, ValueError), match=said) as info:
                a.qp.post_send(wr)
            assert info.value.bad_wr is wr
        for wr, said in ((RecvWR(sg=[sge, sge]), "2 pieces"), (RecvWR(timeout_ns=1, deadline_ns=2), "not both"),
                         (RecvWR(timeout_ns=1 << 40), "timeout_ns"), (RecvWR(sg=[SGE(-1, 0, 0)]), "va=-1")):
            with pytest.raises((UsageError, ValueError), match=said):
                b.qp.post_recv(wr)
        status = a.qp.status()["qps"][0]
        assert status["sends"]["posted"] == status["reads"]["posted"] == b.qp.status()["qps"][0]["receives"]["posted"] == 0
        b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 8)])), a.qp.post_send(SendWR(sg=[sge]))
        assert b.rcq.wait(1)[0].ok


def test_memory_as_bytes_and_as_arrays(ctx):
    pd = PD(ctx)
    mr = MR(pd, 1000)
    mr.write(b"hello", offset=3), mr.write(b"world", 2, 8)
    assert mr.read(10) == b"\0\0\0hellowo" [:10] and mr.read(2, 8) == b"wo" and len(mr.read()) == 1000
    with pytest.raises(UsageError, match="bytes 998 to 1003"):
        mr.write(b"12345", offset=998)
    for bad in (lambda: mr.read(1001), lambda: mr.sge(5, 996), lambda: mr.read(1, -1), lambda: mr.sync_to_card(0, 1001)):
        with pytest.raises(UsageError, match="not all in a region of 1000"):
            bad()
    given = np.arange(12, dtype=np.float32).reshape(3, 4)
    mr = MR(pd, given)
    assert mr.length == 48 and mr.read() == given.tobytes() and mr.array.shape == (3, 4) and mr.array.dtype == np.float32
    given[:] = 0
    assert mr.array[2, 3] == 11             # it was copied
    mr.array[1] = 7
    assert mr.read() != mr.array.tobytes()  # a copy: the card has not seen it
    mr.sync_to_card(16, 16)
    assert mr.read() == mr.array.tobytes()
    mr.write(np.float32(5).tobytes(), offset=44), mr.write(np.float32(6).tobytes(), offset=0)
    assert mr.sync_from_card(44, 4)[2, 3] == 5 and mr.array[0, 0] == 0 and mr.sync_from_card()[0, 0] == 6
    assert MR(pd, b"bytes").read() == b"bytes" and MR(pd, given[:, 1]).length == 12
    there = ctx.device.alloc(64, 64)
    mr = MR(pd, 64, address=there)
    mr.close()
    ctx.device.write(there, b"still mine")
    ctx.device.free(there)
    mr = MR(pd, 64)
    mr.close()
    with pytest.raises(BackendError, match="is not the address of anything"):
        ctx.device.free(mr.addr)


def test_memory_that_was_given_back_is_out_of_reach():
    with open_cards("model", 2) as cards:
        a, b = (make_end(context) for context in cards)
        connect(a, b)
        gone, old = MR(b.pd, 4096, ALL), None
        old = gone.rkey, gone.addr
        gone.close()
        a.qp.post_send(SendWR(0, IBV_WR_RDMA_WRITE, inline_data=b"x", rkey=old[0], remote_addr=old[1]))
        assert a.scq.wait(1)[0].ok
        b.context.sleep_ns(5000)
        assert b.qp.status()["qps"][0]["refused"] == {"rkey": 1} and not b.context.device.faults


def test_infos_travel_as_json_and_numbers_are_drawn():
    infos = []
    for seed in (1, 2, 1):
        with open_cards("model", 2, seed=seed) as cards:
            a, b = (make_end(context, reads=1) for context in cards)
            infos.append(a.qp.info())
            connect(a, type("Remote", (), {"info": lambda self: json.loads(json.dumps(b.qp.info())), "connect": b.qp.connect})())
            b.qp.post_recv(RecvWR(0)), a.qp.post_send(SendWR())
            assert b.rcq.wait(1)[0].ok
    assert infos[0] == infos[2] != infos[1] and infos[0]["qp_num"] != infos[1]["qp_num"]


def test_peers_are_shared_and_come_free():
    with open_cards("model", 2) as cards:
        a, b = (make_end(context) for context in cards)
        connect(a, b)
        connect(add_qp(a), add_qp(b))
        assert len(a.context.peers._entries) == 1
        for i in range(40):                 # of 16 that the card has
            qp = add_qp(a)
            qp.connect({**b.qp.info(), "ip": f"10.0.1.{i}"})
            qp.close()
        a.qp.close()
        assert len(a.context.peers._entries) == 1


def test_backends_that_are_not_there(monkeypatch):
    with pytest.raises(BackendError, match="no backend 'fpga'; known are model, rtl, pci"):
        open_device("fpga")
    with pytest.raises(BackendError, match="one by one"):
        open_cards("pci")
    with pytest.raises(BackendError, match="has its own knobs"):
        open_cards("model", network=object(), loss=0.1)
    import host_driver.backends.simulation as simulation
    monkeypatch.setattr(simulation, "import_module", lambda name: (_ for _ in ()).throw(ModuleNotFoundError(name=name)))
    with pytest.raises(BackendError, match="needs the simulator, and sim.model_device is not installed"):
        open_device("model")


def test_more_cards_around_a_switch():
    with open_cards("model", 3, loss=0) as cards:
        ends = [make_end(context) for context in cards]
        for i in range(3):
            qp, other = add_qp(ends[i]), add_qp(ends[(i + 1) % 3])
            connect(qp, other)
            other.post_recv(RecvWR(i)), qp.post_send(SendWR(inline_data=b""))
            assert ends[(i + 1) % 3].rcq.wait(1)[0].wr_id == i
        assert [c.ip for c in cards] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def test_status_tells_what_cannot_be_and_a_new_life_forgets_it():
    with open_cards("model", 2) as cards:
        a, b = (make_end(context) for context in cards)
        connect(a, b)
        assert a.qp.status()["qps"][0]["contradiction"] is None
        card = a.context.card
        card._qp(a.qp._main.qpn).contradiction = "completion of receive 70000, where 0 was due"
        (found,) = [f for f in a.qp.status()["findings"] if "70000" in f["what"]]
        assert "to_reset()" in found["remedy"]
        a.qp.to_reset()
        a.qp.connect(b.qp.info())
        assert a.qp.status()["qps"][0]["contradiction"] is None
