"""Transport xp, queue pairs of type UC, both ways with Linux: messages of one packet; and what each side is told when frames are
lost.

Nobody acknowledges anything, so a sender is told that its messages went out, whatever became of them. A receiver:
- Linux: a SEND that was lost takes no receive; the next one that arrives takes it. So the receives left over wait for ever. A WRITE
  without immediate that was lost is no more than bytes that aren't there.
- the card: the same, and a receive with a time limit ends when it is over, partial, with nothing.
"""

import pytest

from host_driver.verbs import IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, RecvWR, SendWR
from host_driver.exchange import bandwidth, contents, pingpong
from sim.linux_peer import Op
from .stock import Connected, answering, gid_index, run

pytestmark = [pytest.mark.rtl, pytest.mark.peer]
SIZE = 1 << 16
SLOT = 1024
LIMIT_NS = 3_000_000
OPCODE = {"send": IBV_WR_SEND, "send_imm": IBV_WR_SEND_WITH_IMM, "write": IBV_WR_RDMA_WRITE,
          "write_imm": IBV_WR_RDMA_WRITE_WITH_IMM}
LENGTHS = (0, 1, 3, 63, 64, 65, 255, 1023, 1024)


class Ends(Connected):
    """A queue pair of a card of transport xp, and one of Linux, with memory in slots of SLOT bytes."""

    def __init__(self, lab, guest, **settings):
        super().__init__(lab, guest, "uc", size=SIZE, **settings)

    def receive(self, n, timeout_ns=None):
        """Card: receive n, into slot n."""
        self.qp.post_recv(RecvWR(n, sg=[self.mr.sge(n * SLOT, SLOT)], timeout_ns=timeout_ns))

    def send(self, n, kind, length):
        """Card: send n from slot n, to Linux's slot n."""
        self.mr.write(contents(n, length), offset=n * SLOT)
        there = self.peer.there
        wr = SendWR(n, OPCODE[kind], sg=[self.mr.sge(n * SLOT, length)], imm_data=n + 7)
        if kind.startswith("write"):
            wr.set_wr_rdma(there.rkey, there.addr + n * SLOT)
        self.qp.post_send(wr)


def kinds_and_lengths():
    return [(kind, length) for length in LENGTHS for kind in OPCODE]


@pytest.mark.parametrize("ip6", [False, True], ids=["v4", "v6"])
def test_from_the_card(guest, rng, ip6):
    with answering("rtl", guest, rng, transport="xp") as lab:
        ends, plan = Ends(lab, guest, ip6=ip6), kinds_and_lengths()
        with ends.peer:
            takers = [n for n, (kind, _) in enumerate(plan) if kind != "write"]
            for n in takers:
                ends.peer.receive(n, n * SLOT, SLOT)
            for n, (kind, length) in enumerate(plan):
                ends.send(n, kind, length)
            assert all(wc.ok for wc in ends.scq.wait(len(plan))) and lab.world.run_until(lambda: lab.world.idle(), 10**6)
            got = ends.peer.receives(len(takers))
            assert [(wc.wr_id, wc.ok, wc.byte_len, wc.imm) for wc in got] == [
                (n, True, plan[n][1], n + 7 if plan[n][0].endswith("imm") else None) for n in takers]
            for n, (_, length) in enumerate(plan):
                assert ends.peer.dump(n * SLOT, length) == contents(n, length) if length else True


def test_from_linux(guest, rng):
    with answering("rtl", guest, rng, transport="xp") as lab:
        ends, plan = Ends(lab, guest), kinds_and_lengths()
        with ends.peer:
            takers = [n for n, (kind, _) in enumerate(plan) if kind != "write"]
            for n in takers:
                ends.receive(n)
            for n, (_, length) in enumerate(plan):
                if length:
                    ends.peer.load(n * SLOT, contents(n, length))
            there = ends.mr.addr
            done = ends.peer.run([Op(kind, length, n * SLOT, there + n * SLOT, imm=n + 7 if kind.endswith("imm") else 0)
                                  for n, (kind, length) in enumerate(plan)], depth=8)
            assert all(wc.ok for wc in done) and len(done) == len(plan)
            got = ends.rcq.wait(len(takers))
            assert [(wc.wr_id, wc.ok, wc.byte_len) for wc in got] == [(n, True, plan[n][1]) for n in takers]
            assert [wc.imm_data for wc in got if wc.wc_flags] == [n + 7 for n in takers if plan[n][0].endswith("imm")]
            for n, (_, length) in enumerate(plan):
                assert ends.mr.read(length, n * SLOT) == contents(n, length) if length else True


def test_longer_than_a_packet_is_refused(guest, rng):
    """Linux may send UC messages of several packets; a card of transport xp knows none of their opcodes. Nothing of them is
    written, they are counted, and what follows arrives."""
    with answering("rtl", guest, rng, transport="xp") as lab:
        ends = Ends(lab, guest)
        with ends.peer:
            ends.receive(0)
            ends.peer.load(0, contents(5, 3000))
            assert all(wc.ok for wc in ends.peer.run([Op("write", 3000, 0, ends.mr.addr + 8 * SLOT), Op("send", 100, 0)]))
            received, = ends.rcq.wait(1)
            assert received.ok and received.byte_len == 100 and ends.mr.read(100) == contents(5, 3000)[:100]
            counters = ends.card.counters()
            assert ends.mr.read(3000, 8 * SLOT) == bytes(3000) and counters["drop_opcode"] == 3 and counters["frames_placed"] == 1


def losing(lab, to_card, numbers):
    """Lose messages by number, of SENDs and WRITEs on their way."""
    return lab.network.rule(match=lambda frame: frame[12:14] == b"\x08\0" and frame[23] == 17 and frame[42] in (0x24, 0x2A),
                            destination=0 if to_card else 1, nth=[n + 1 for n in numbers], loss=1)


def test_lost_on_the_way_to_linux(guest, rng):
    """The sends have ended well; Linux' receives have moved up, and the last ones wait."""
    with answering("rtl", guest, rng, transport="xp") as lab:
        ends, lost, count = Ends(lab, guest), (2, 5, 6), 10
        with ends.peer:
            rule = losing(lab, False, lost)
            for n in range(count):
                ends.peer.receive(n, 32768 + n * SLOT, SLOT)
            for n in range(count):
                ends.send(n, "send", 100 + n)
            sent = ends.scq.wait(count)
            assert [(wc.wr_id, wc.ok) for wc in sent] == [(n, True) for n in range(count)] and rule.hits == len(lost)
            arrived = [n for n in range(count) if n not in lost]
            got = ends.peer.receives(count, ms=300)
            assert [(wc.wr_id, wc.ok, wc.byte_len) for wc in got] == [(i, True, 100 + n) for i, n in enumerate(arrived)]
            for i, n in enumerate(arrived):
                assert ends.peer.dump(32768 + i * SLOT, 100 + n) == contents(n, 100 + n)
            # and the connection is as good as before
            ends.send(20, "send", 50)
            got = ends.peer.receives(1)
            assert [(wc.wr_id, wc.byte_len) for wc in got] == [(len(arrived), 50)]


def test_lost_on_the_way_to_the_card(guest, rng):
    """Linux' sends have ended well; the card's receives have moved up, and the last ones end when their time is over, with
    nothing."""
    with answering("rtl", guest, rng, transport="xp") as lab:
        ends, lost, count = Ends(lab, guest), (0, 4, 9), 10
        with ends.peer:
            rule = losing(lab, True, lost)
            for n in range(count):
                ends.receive(n, timeout_ns=LIMIT_NS)
            for n in range(count):
                ends.peer.load(32768 + n * SLOT, contents(n, 100 + n))
            done = ends.peer.run([Op("send", 100 + n, 32768 + n * SLOT) for n in range(count)], depth=4)
            assert [wc.ok for wc in done] == [True] * count
            arrived = [n for n in range(count) if n not in lost]
            got = ends.rcq.wait(count, 2 * len(lost) * LIMIT_NS)
            assert rule.hits == len(lost)
            assert [(wc.wr_id, wc.byte_len, wc.cause) for wc in got] == [
                *((i, 100 + n, "complete") for i, n in enumerate(arrived)),
                *((i, 0, "timeout") for i in range(len(arrived), count))]
            assert all(wc.partial for wc in got[len(arrived):])
            for i, n in enumerate(arrived):
                assert ends.mr.read(100 + n, i * SLOT) == contents(n, 100 + n)
            ends.receive(30)
            assert ends.peer.run([Op("send", 60, 32768)])[0].ok and ends.rcq.wait(1)[0].byte_len == 60


def test_lost_writes(guest, rng):
    """Both ways: bytes that are not there, and nobody is told."""
    with answering("rtl", guest, rng, transport="xp") as lab:
        ends, lost, count = Ends(lab, guest), (1, 3), 5
        with ends.peer:
            losing(lab, True, lost), losing(lab, False, lost)
            for n in range(count):
                ends.send(n, "write", 500)
            assert all(wc.ok for wc in ends.scq.wait(count)) and lab.world.run_until(lambda: lab.world.idle(), 10**6)
            ends.peer.load(32768, contents(9, 500))
            ops = [Op("write", 500, 32768, ends.mr.addr + (40 + n) * SLOT) for n in range(count)]
            assert all(wc.ok for wc in ends.peer.run(ops))
            lab.wait(lambda: ends.card.counters()["frames_placed"] == count - len(lost))
            for n in range(count):
                assert ends.peer.dump(n * SLOT, 500) == (bytes(500) if n in lost else contents(n, 500)), n
                assert ends.mr.read(500, (40 + n) * SLOT) == (bytes(500) if n in lost else contents(9, 500)), n
            assert ends.rcq.poll(1)[0] == 0 and ends.peer.receives(1, ms=20) == []


@pytest.mark.parametrize("role", ["client", "server"])
def test_stock_tools(guest, rng, role):
    """ibv_uc_pingpong and perftest with -c UC, messages of one packet."""
    with answering("rtl", guest, rng, transport="xp") as lab:
        gid, got = gid_index(guest, False), {}
        result, _ = run(lab, guest, f"ibv_uc_pingpong -d rxe0 -g {gid} -m 1024 -s 1024 -n 10", role, pingpong, size=1024,
                        iterations=10, each=got.__setitem__)
        assert result["kind"] == "uc" and got[9] == contents(9 - (role == "client"), 1024) and len(got) == 10
        for operation in ("write", "send"):
            tool = f"ib_{operation}_bw -d rxe0 -x {gid} -F -m 1024 -n 20 -s 700 -c UC"
            result, _ = run(lab, guest, tool, role, bandwidth, operation=operation, size=700, iterations=20)
            assert result["sent"] == (20 if role == "server" else 0)
            assert operation == "write" or role == "server" or result["received"] == 20
