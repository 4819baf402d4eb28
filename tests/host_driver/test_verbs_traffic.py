"""Messages between two cards through the verbs-like API: what arrives, and what the completions say of it."""

import pytest

from host_driver.verbs import *
from .conftest import ALL, add_qp, connect, make_end

US = 1000


def ends_of(wcs):
    return [(wc.wr_id, wc.status, wc.opcode, wc.byte_len) for wc in wcs]


def one(cq, timeout_ns=400 * US):
    found = cq.wait(1, timeout_ns)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("size", [0, 1, 31, 1024, 1025, 5000])
def test_send(pair, rng, size):
    a, b = pair
    data = rng.randbytes(size)
    a.mr.write(data)
    b.qp.post_recv(RecvWR("r", sg=[b.mr.sge(100, 6000)], timeout_ns=300 * US))
    a.qp.post_send(SendWR("s", IBV_WR_SEND, sg=[a.mr.sge(0, size)] if size else None, tag=0xBEEF))
    sent, received = one(a.scq), one(b.rcq)
    assert ends_of([sent]) == [("s", IBV_WC_SUCCESS, IBV_WC_SEND, size)] and sent.qp_num == a.qp.qp_num
    assert ends_of([received]) == [("r", IBV_WC_SUCCESS, IBV_WC_RECV, size)]
    assert (received.msg_len, received.tag, received.qp_num, received.cause) == (size, 0xBEEF, b.qp.qp_num, "complete")
    assert b.mr.read(size + 200) == bytes(100) + data + bytes(100) and received.ok and not received.partial
    assert sent.timestamp <= a.context.time_ns() and received.timestamp <= b.context.time_ns()


def test_every_kind(pair, rng):
    a, b = pair
    data = rng.randbytes(3000)
    a.mr.write(data)
    for i in range(4):
        b.qp.post_recv(RecvWR(i, 1, [b.mr.sge(4096 * i, 4096)]))
    a.qp.post_send(SendWR("imm", IBV_WR_SEND_WITH_IMM, 1, 0xDEADBEEF, sg=[a.mr.sge(0, 3000)]))
    write = SendWR("write", IBV_WR_RDMA_WRITE, sg=[a.mr.sge(0, 3000)])
    write.set_wr_rdma(b.mr.rkey, b.mr.addr + 20_000)
    a.qp.post_send(write)
    a.qp.post_send(SendWR("write imm", IBV_WR_RDMA_WRITE_WITH_IMM, imm_data=7, sg=[a.mr.sge(0, 2000)], rkey=b.mr.rkey,
                          remote_addr=b.mr.addr + 30_000))
    a.qp.post_send(SendWR("inline", IBV_WR_SEND, send_flags=IBV_SEND_INLINE | IBV_SEND_SIGNALED, sg=[a.mr.sge(1, 32)]))
    a.qp.post_send(SendWR("data", IBV_WR_SEND, inline_data=b"no memory at all"))
    assert ends_of(a.scq.wait(5)) == [
        ("imm", IBV_WC_SUCCESS, IBV_WC_SEND, 3000), ("write", IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 3000),
        ("write imm", IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 2000), ("inline", IBV_WC_SUCCESS, IBV_WC_SEND, 32),
        ("data", IBV_WC_SUCCESS, IBV_WC_SEND, 16)]
    found = b.rcq.wait(4)
    assert ends_of(found) == [
        (0, IBV_WC_SUCCESS, IBV_WC_RECV, 3000), (1, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, 2000),
        (2, IBV_WC_SUCCESS, IBV_WC_RECV, 32), (3, IBV_WC_SUCCESS, IBV_WC_RECV, 16)]
    assert [(wc.wc_flags, wc.imm_data) for wc in found] == [(IBV_WC_WITH_IMM, 0xDEADBEEF), (IBV_WC_WITH_IMM, 7), (0, 0), (0, 0)]
    assert b.mr.read(3000) == data and b.mr.read(3000, 20_000) == data and b.mr.read(2000, 30_000) == data[:2000]
    assert b.mr.read(32, 8192) == data[1:33] and b.mr.read(16, 12288) == b"no memory at all"
    assert b.mr.read(2000, 4096) == bytes(2000)     # the receive of a WRITE with immediate gets no bytes


def test_read(pair, rng):
    a, b = pair
    data = rng.randbytes(5000)
    b.mr.write(data)
    a.mr.write(bytes([0xEE]) * 6000)
    for i, (at, n) in enumerate([(0, 5000), (17, 100), (4999, 1), (0, 1024)]):
        a.qp.post_send(SendWR(i, IBV_WR_RDMA_READ, sg=[a.mr.sge(8192 * i, n)], rkey=b.mr.rkey, remote_addr=b.mr.addr + at,
                              timeout_ns=300 * US))
    assert ends_of(a.scq.wait(4)) == [(i, IBV_WC_SUCCESS, IBV_WC_RDMA_READ, n) for i, n in enumerate([5000, 100, 1, 1024])]
    assert a.mr.read(5000) == data and a.mr.read(100, 8192) == data[17:117] and a.mr.read(1, 16384) == data[4999:]
    # beside sends and receives of the same queue pair, both ways
    a.qp.post_recv(RecvWR("r", sg=[a.mr.sge(0, 64)])), b.qp.post_recv(RecvWR("r", sg=[b.mr.sge(60_000, 64)]))
    b.qp.post_send(SendWR("s", inline_data=b"from b")), a.qp.post_send(SendWR("s", inline_data=b"from a"))
    b.qp.post_send(SendWR("read", IBV_WR_RDMA_READ, sg=[b.mr.sge(0, 2000)], rkey=a.mr.rkey, remote_addr=a.mr.addr,
                          timeout_ns=300 * US))
    assert one(a.rcq).byte_len == one(b.rcq).byte_len == 6 and one(a.scq).wr_id == "s"
    assert sorted(wc.wr_id for wc in b.scq.wait(2)) == ["read", "s"] and b.mr.read(2000)[6:] == data[6:2000]


def test_a_read_that_is_refused_ends_in_time(pair):
    a, b = pair
    secret = MR(b.pd, 4096, IBV_ACCESS_LOCAL_WRITE)
    began = a.context.time_ns()
    for wr_id, rkey, addr in (("access", secret.rkey, secret.addr),
                              ("bounds", b.mr.rkey, b.mr.addr + len(b.mr) - 10), ("rkey", 1, 2)):
        a.qp.post_send(SendWR(wr_id, IBV_WR_RDMA_READ, sg=[a.mr.sge(0, 64)], rkey=rkey, remote_addr=addr, timeout_ns=50 * US))
    found = a.scq.wait(3)
    assert ends_of(found) == [(name, OPT_WC_PARTIAL, IBV_WC_RDMA_READ, 0) for name in ("access", "bounds", "rkey")]
    assert all(wc.cause == "timeout" and wc.timestamp >= began + 50 * US for wc in found)
    assert b.qp.status()["qps"][0]["refused"] == {"access": 1, "bounds": 1, "rkey": 1}
    a.qp.post_send(SendWR("good", IBV_WR_RDMA_READ, sg=[a.mr.sge(0, 64)], rkey=b.mr.rkey, remote_addr=b.mr.addr,
                          timeout_ns=300 * US))
    assert one(a.scq).ok


def test_reads_are_bounded_and_need_a_companion(cards):
    a, b = make_end(cards[0], reads=2), make_end(cards[1], reads=1)
    plain = make_end(cards[1])
    with pytest.raises(UsageError, match="has no companion"):
        a.qp.connect(plain.qp.info())
    connect(a, b)
    read = lambda: SendWR("x", IBV_WR_RDMA_READ, sg=[a.mr.sge(0, 64)], rkey=b.mr.rkey, remote_addr=b.mr.addr, timeout_ns=300 * US)
    a.qp.post_send(read()), a.qp.post_send(read())
    with pytest.raises(QueueFull, match="2 READs are under way"):
        a.qp.post_send(read())
    assert len(a.scq.wait(2)) == 2
    for _ in range(200):        # over and over, polled by nobody but the driver itself
        a.qp.post_send(read())
        assert one(a.scq).ok
    c, d = make_end(cards[0]), make_end(cards[1])
    connect(c, d)
    with pytest.raises(UsageError, match="can't READ: give its QPCap max_rd_atomic"):
        c.qp.post_send(read())


def test_a_chain(pair):
    a, b = pair
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 8)], next_wr=RecvWR(1, sg=[b.mr.sge(8, 8)], next_wr=RecvWR(2, sg=[b.mr.sge(16, 8)]))))
    a.qp.post_send(SendWR(0, inline_data=b"0", next_wr=SendWR(1, inline_data=b"1", next_wr=SendWR(2, inline_data=b"2"))))
    assert [wc.wr_id for wc in a.scq.wait(3)] == [wc.wr_id for wc in b.rcq.wait(3)] == [0, 1, 2]
    # where one can't be posted, those before it are, and the exception names it
    bad = SendWR("bad", inline_data=bytes(33), next_wr=SendWR("behind", inline_data=b""))
    b.qp.post_recv(RecvWR(3))
    with pytest.raises(ValueError, match="33 bytes inline") as info:
        a.qp.post_send(SendWR("good", inline_data=b"", next_wr=bad))
    assert info.value.bad_wr is bad and one(a.scq).wr_id == "good" and one(b.rcq).wr_id == 3 and a.scq.poll(9) == (0, [])


def test_timeouts_and_partial_messages(cards):
    """A message that loses a packet, and receives for which nothing comes, end in time and say what there is."""
    a, b = (make_end(context) for context in cards)
    connect(a, b)
    lane = cards.network.ports[0].out
    a.mr.write(bytes(range(256)) * 16)
    began = b.context.time_ns()
    for i in range(3):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(4096 * i, 4096)], timeout_ns=100 * US))
    lane.impair(loss=1.0)
    a.qp.post_send(SendWR("lost", sg=[a.mr.sge(0, 3000)]))
    assert one(a.scq).ok                # it went out: that is all that a send knows
    a.context.sleep_ns(2 * US)
    lane.impair(loss=0)
    a.qp.post_send(SendWR("there", sg=[a.mr.sge(0, 3000)]))
    found = b.rcq.wait(3)
    assert [(wc.wr_id, wc.status, wc.cause, wc.byte_len, wc.msg_len) for wc in found] == [
        (0, OPT_WC_PARTIAL, "preempted", 0, 0), (1, IBV_WC_SUCCESS, "complete", 3000, 3000), (2, OPT_WC_PARTIAL, "timeout", 0, 0)]
    assert found[2].timestamp >= began + 100 * US and found[0].partial and not found[0].ok
    assert b.mr.read(3000, 4096) == (bytes(range(256)) * 16)[:3000]


def test_a_send_that_runs_out_of_time(pair):
    a, b = pair
    b.qp.post_recv(RecvWR("r", sg=[b.mr.sge(0, 40_000)], timeout_ns=200 * US))
    a.qp.post_send(SendWR("s", sg=[a.mr.sge(0, 40_000)], deadline_ns=1))
    sent = one(a.scq)
    assert (sent.status, sent.cause, sent.byte_len) == (OPT_WC_PARTIAL, "timeout", 0)
    received = one(b.rcq)
    assert (received.status, received.cause) == (OPT_WC_PARTIAL, "timeout")
    a.qp.post_send(SendWR("next", inline_data=b"next", timeout_ns=1000 * US))       # takes the next receive
    b.qp.post_recv(RecvWR("next", sg=[b.mr.sge(0, 64)]))
    assert one(a.scq).ok


def test_errors_of_sends(pair):
    a, b = pair
    foreign = MR(PD(a.context), 4096, ALL)
    for wr_id, sge in (("foreign", foreign.sge(0, 64)), ("none", SGE(0, 64, 12345)),
                       ("beyond", SGE(a.mr.addr + len(a.mr) - 8, 16, a.mr.lkey))):
        a.qp.post_send(SendWR(wr_id, IBV_WR_RDMA_WRITE, sg=[sge], rkey=b.mr.rkey, remote_addr=b.mr.addr))
    a.qp.post_send(SendWR("good", IBV_WR_RDMA_WRITE, inline_data=b"x", rkey=b.mr.rkey, remote_addr=b.mr.addr))
    found = a.scq.wait(4)
    assert [(wc.wr_id, wc.status, wc.cause) for wc in found] == [
        *((name, IBV_WC_LOC_PROT_ERR, "protection") for name in ("foreign", "none", "beyond")),
        ("good", IBV_WC_SUCCESS, "complete")]


def test_unsignaled_sends(cards):
    """Far more than fit into the ring, and into a CQ of 8, of which nobody wants to hear: they make room by themselves."""
    a, b = make_end(cards[0], sq_sig_all=0, cqe=8), make_end(cards[1], cqe=64)
    connect(a, b)
    n = 2 * a.context.card.sq_entries

    def post(wr):
        try:
            a.qp.post_send(wr)
            return True
        except QueueFull:
            return False
    for i in range(n):
        wr = SendWR(i, IBV_WR_RDMA_WRITE, send_flags=0, inline_data=bytes([i & 255]) * 8, rkey=b.mr.rkey,
                    remote_addr=b.mr.addr + 8 * i)
        assert a.context.wait_until(lambda: post(wr), 100 * US)
    last = SendWR("last", IBV_WR_RDMA_WRITE, inline_data=b"", rkey=b.mr.rkey, remote_addr=b.mr.addr)
    assert a.context.wait_until(lambda: post(last), 100 * US) and [wc.wr_id for wc in a.scq.wait(1)] == ["last"]
    b.context.sleep_ns(5 * US)
    assert b.mr.read(8 * n) == b"".join(bytes([i & 255]) * 8 for i in range(n)) and a.scq.poll() == (0, [])


def test_uc(cards, rng):
    """Standard UC packets, one a message, both ways."""
    a, b = (make_end(context, qp_type=IBV_QPT_UC) for context in cards)
    connect(a, b)
    data = rng.randbytes(1024)
    a.mr.write(data)
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 2000)])), b.qp.post_recv(RecvWR(1, sg=[b.mr.sge(0, 0)]))
    a.qp.post_send(SendWR(0, IBV_WR_SEND_WITH_IMM, imm_data=5, sg=[a.mr.sge(0, 1024)]))
    a.qp.post_send(SendWR(1, IBV_WR_RDMA_WRITE_WITH_IMM, imm_data=6, sg=[a.mr.sge(0, 1000)], rkey=b.mr.rkey,
                          remote_addr=b.mr.addr + 4096))
    assert [(wc.wr_id, wc.imm_data, wc.byte_len) for wc in b.rcq.wait(2)] == [(0, 5, 1024), (1, 6, 1000)]
    assert b.mr.read(1024) == data and b.mr.read(1000, 4096) == data[:1000] and all(wc.ok for wc in a.scq.wait(2))
    with pytest.raises(UsageError, match="of 1025 bytes: with IBV_QPT_UC each is one packet, of 1024 bytes at most"):
        a.qp.post_send(SendWR(0, sg=[a.mr.sge(0, 1025)]))


@pytest.mark.parametrize("how", [dict(ip6=True), dict(vlan=0x2064, traffic_class=0x20), dict(paths=8, mtu=256)],
                         ids=lambda how: next(iter(how)))
def test_ways_to_the_peer(cards, how, rng):
    a, b = (make_end(context) for context in cards)
    connect(a, b, **how)
    data = rng.randbytes(2000)
    a.mr.write(data)
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 2000)]))
    frames = []
    cards.network.ports[0].out.sent_taps.append(type("Tap", (), {"record": lambda self, time, data: frames.append(bytes(data))})())
    a.qp.post_send(SendWR(0, sg=[a.mr.sge(0, 2000)]))
    assert one(b.rcq).ok and b.mr.read(2000) == data
    assert {f[:12] for f in frames} == {bytes.fromhex("020000000002020000000001")}
    if "ip6" in how:
        assert all(f[12:14] == b"\x86\xdd" for f in frames)
    elif "vlan" in how:
        assert all(f[12:18] == bytes.fromhex("8100" "2064" "0800") and f[19] == 0x20 for f in frames)
    else:
        assert len(frames) == 8 and len({f[34:36] for f in frames}) == 8


def test_both_ways_with_losses(cards, backend, rng):
    """Messages of all sizes through a cable that loses, swaps and doubles frames: each receive ends once, in order, and what is
    said to be there is there."""
    total = 60 if backend == "model" else 20
    ends = [make_end(context, recv_timeout_ns=60 * US, size=1 << 18) for context in cards]
    connect(*ends)
    cards.network.links[0].impair(loss=0.03, duplicate=0.02, corrupt=0.02)
    sent = {}
    for me in range(2):
        for i in range(total):
            sent[me, i] = rng.randbytes(rng.choice([0, 1, 64, 1024, 3000]))
    posted, received, completed, first = [0, 0], [0, 0], [0, 0], [0, 0]
    statuses = []
    for _ in range(100_000):
        for me, end in enumerate(ends):
            while posted[me] < min(total, received[me] + 16):
                end.qp.post_recv(RecvWR(posted[me], sg=[end.mr.sge(4096 * (posted[me] % 16), 4096)]))
                posted[me] += 1
            if first[me] < total and first[me] < received[1 - me] + 4 and first[me] < posted[1 - me]:
                i = first[me]
                at = 65536 + 4096 * (i % 8)
                end.mr.write(sent[me, i], offset=at)
                end.qp.post_send(SendWR(i, IBV_WR_SEND_WITH_IMM, imm_data=i, sg=[end.mr.sge(at, len(sent[me, i]))]))
                first[me] += 1
            for wc in end.scq.poll(8)[1]:
                assert wc.ok and wc.wr_id == completed[me]
                completed[me] += 1
            for wc in end.rcq.poll(8)[1]:
                assert wc.wr_id == received[me] and wc.status in (IBV_WC_SUCCESS, OPT_WC_PARTIAL)
                data = sent[1 - me, wc.wr_id]
                if wc.ok:
                    assert (wc.byte_len, wc.imm_data) == (len(data), wc.wr_id)
                    assert end.mr.read(len(data), 4096 * (wc.wr_id % 16)) == data
                statuses.append(wc.status)
                received[me] += 1
        if received == [total, total] == completed:
            break
        cards[0].sleep_ns(US)
    assert received == completed == [total, total]
    assert statuses.count(IBV_WC_SUCCESS) > total / 2 and (backend == "rtl" or OPT_WC_PARTIAL in statuses)


def test_many_queue_pairs_share_two_cqs(cards, rng):
    a, b = (make_end(context) for context in cards)
    pairs = []
    for _ in range(6):
        qa, qb = add_qp(a), add_qp(b)
        connect(qa, qb)
        pairs.append((qa, qb))
    for i, (_, qb) in enumerate(pairs):
        qb.post_recv(RecvWR((i, 0), sg=[b.mr.sge(1024 * i, 512)])), qb.post_recv(RecvWR((i, 1), sg=[b.mr.sge(1024 * i + 512, 512)]))
    for j in range(2):
        for i, (qa, _) in enumerate(pairs):
            qa.post_send(SendWR((i, j), inline_data=bytes([i, j])))
    found = b.rcq.wait(12)
    assert sorted(wc.wr_id for wc in found) == [(i, j) for i in range(6) for j in range(2)] and len(a.scq.wait(12)) == 12
    assert all(wc.qp_num == pairs[wc.wr_id[0]][1].qp_num for wc in found)
    assert all(b.mr.read(2, 1024 * i + 512 * j) == bytes([i, j]) for i in range(6) for j in range(2))


def test_a_message_that_loses_a_packet_says_which(backend, rng):
    with open_cards(backend, 2, cfg="tiny", changes={"arrival_map": True}) as cards:
        a, b = (make_end(context, arrival_bytes=5000) for context in cards)
        connect(a, b)
        data = rng.randbytes(4500)
        a.mr.write(data)
        cards.network.rule(destination=1, nth=2, loss=1.0)
        for i in range(2):
            b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(8192 * i, 8192)], timeout_ns=50 * US))
            a.qp.post_send(SendWR(i, sg=[a.mr.sge(0, 4500)]))
        partial, whole = b.rcq.wait(2)
        assert (partial.status, partial.byte_len, partial.msg_len) == (OPT_WC_PARTIAL, 4500 - 1024, 4500) and whole.ok
        assert partial.cause == "preempted"         # the next message was there at once
        assert b.qp.arrived(partial) == [True, False, True, True, True] and b.qp.arrived(whole) == [True] * 5
        assert b.mr.read(1024) == data[:1024] and b.mr.read(4500 - 2048, 2048) == data[2048:]
        assert b.qp.cap.max_recv_wr == 16
        for i in range(16):
            b.qp.post_recv(RecvWR(i))
        with pytest.raises(QueueFull, match="arrival map"):
            b.qp.post_recv(RecvWR(16))
