"""Two cards, the host of one of which refuses, shortens or loses accesses of the send half: errors stay with their requests."""

import pytest

from optinic.abi.structs import SEND_WQE
from sim.device import SimDevice

from .pair import BOTH, CFG, SENDS, SOURCE, Pair, ends

GOOD = ("success", "complete")
RTL = pytest.mark.rtl
TIMEOUT = 3000          # cycles that a host read may take
#: what becomes of a read of `amount`, and whether the model's bus can do it
ACTIONS = [("slverr", 0), ("decerr", 0), ("short", 1), ("short", 9), ("never", 0), ("late", 9000)]
FAULTS = [pytest.param(SimDevice, *action, id=f"rtl-{action[0]}-{action[1]}", marks=RTL) for action in ACTIONS]


def faults(model):
    return pytest.mark.parametrize("make, action, amount", FAULTS + [pytest.param(model, "slverr", 0, id="model-slverr-0")])


with_faults = faults(BOTH.args[1][0].values[0])


def wqe(end, qpn, index):
    """Bus address of a send's WQE."""
    return end.card.sq_base + (end.card.qp_index(qpn) * CFG.sq_entries + index % CFG.sq_entries) * SEND_WQE.size


def finish(pair, messages, limit_ns=2_000_000):
    pair.all_over(messages, limit_ns)
    pair.settle(), pair.verify()


@with_faults
@pytest.mark.parametrize("piece", [0, 1, 3])
def test_payload_that_cannot_be_read(make, seed, action, amount, piece):
    """One packet of one message: that send is an error, the other packets of it go out, and so does everything else."""
    with Pair(make, seed, strict=False) as pair:
        near = pair.ends[0]
        link, other = pair.link(), pair.link(address="ip6")
        near.card.reg_write("DMA_TIMEOUT", TIMEOUT)
        bad = 0x8000
        near.dev.inject(near.memory + bad + 256 * piece + 5, 1, action, on="read", amount=amount)
        free = lambda n: pair.rng.randrange(bad - 1000 - n)
        sizes = [pair.rng.randrange(1, 900) for _ in range(10)]
        first = [pair.post(link, 0, "send", n, at=free(n), receive_ns=near.now_ns + 400_000, bell=False) for n in sizes[:3]]
        victim = pair.post(link, 0, "send", 3 * 256 + 100, at=bad, receive_ns=near.now_ns + 400_000, bell=False)
        rest = [pair.post(link, 0, "write_imm", n, at=free(n), receive_ns=near.now_ns + 400_000) for n in sizes[3:]]
        rest += [pair.post(other, 0, "send", n, at=free(n)) for n in sizes]
        finish(pair, [*first, victim, *rest])
        assert ends([victim]) == [("error", "bus", 0)]
        missing = min(256, victim.length - 256 * piece)
        assert ends([victim], "received") == [("partial", "preempted", victim.length - missing)]
        assert all(m.sent.status == m.received.status == "success" for m in first + rest)
        assert near.count("send_errors") == 1 and near.count("wqe_errors") == 0
        if action == "late":
            pair.run(2 * amount * 8)
        near.dev.clear_injections()
        again = [pair.post(link, 0, "send", victim.length, at=bad) for _ in range(12)]
        finish(pair, again), pair.balance()
        assert set(ends(again)) == {(*GOOD, victim.length)}


@with_faults
def test_a_work_request_that_cannot_be_read(make, seed, action, amount):
    """That one ends as an error, once; those before and behind it are sent, and those of other queue pairs."""
    if action == "short":
        amount = 7 - amount % 7         # of eight beats
    with Pair(make, seed, strict=False) as pair:
        near = pair.ends[0]
        link, other = pair.link(), pair.link(type="uc")
        near.card.reg_write("DMA_TIMEOUT", TIMEOUT)
        made, sequence = [], 0
        bad = (0, 5, 7, 8)
        for index in bad:
            near.dev.inject(wqe(near, link.qpns[0], index), 1, action, on="read", amount=amount, count=1)
        for i in range(12):
            made.append(pair.post(link, 0, "send", 300 + i, receive=i not in bad, seq=sequence, tag=i, bell=False, signaled=i != 5))
            sequence += i not in bad
        near.card.ring_send(link.qpns[0])
        good = [pair.post(other, 0, "send", 50 + i) for i in range(20)]
        sent = lambda: all(m.sent for m in made) and all(m.received for m in made if m.index not in bad)
        pair.until(lambda: sent() and all(m.over for m in good))
        for m in made:
            assert ends([m]) == [("error", "bus", 0) if m.index in bad else (*GOOD, m.length)]
        assert all(m.sent.status == m.received.status == "success" for m in good)
        assert near.count("wqe_errors") == len(bad) and near.count("send_errors") == 0
        if action == "late":
            pair.run(2 * amount * 8)
        pair.settle()
        for end in pair.ends:
            end.expected = [m for m in end.expected if m not in made or m.index not in bad]
        near.dev.clear_injections()
        again = [pair.post(link, 0, "send", 10, seq=sequence + i) for i in range(2 * CFG.tx_slots)]
        finish(pair, again), pair.balance()
        assert set(ends(again)) == {(*GOOD, 10)}


@RTL
@pytest.mark.parametrize("what", ["payload", "work requests"])
def test_answers_that_never_come(seed, what):
    """More and more of them: each ends its own request within the bound, as long as there are places left for reads; and other
    queue pairs go on."""
    with Pair(SimDevice, seed, strict=False) as pair:
        near = pair.ends[0]
        link, other = pair.link(), pair.link()
        near.card.reg_write("DMA_TIMEOUT", TIMEOUT)
        at = 0x8000
        lost = CFG.tx_reads_outstanding - 1 if what == "payload" else 6
        for i in range(lost):
            place = near.memory + at if what == "payload" else wqe(near, link.qpns[0], i)
            near.dev.inject(place, 64, "never", on="read", count=1)
            began = near.now_ns
            m = pair.post(link, 0, "write", 64, at=at, to=0)
            pair.ends[1].expected.remove(m)
            good = [pair.post(other, 0, "send", 100, at=0) for _ in range(3)]
            pair.all_over([m, *good])
            assert ends([m]) == [("error", "bus", 0)] and m.sent.time_ns - began < TIMEOUT * 8 * 2 + 5000
            assert set(ends(good)) == {(*GOOD, 100)}
            near.dev.clear_injections()
        assert near.dev.axi_totals()["reads_unanswered"] == lost
        made = [pair.post(other, 0, "send", 700) for _ in range(20)] + [pair.post(link, 0, "write", 700) for _ in range(20)]
        finish(pair, made, 5_000_000)
        assert set(ends(made)) == {(*GOOD, 700)}


@BOTH
def test_an_answer_to_a_read_that_cannot_be_read(make, seed):
    """At the peer: the packets that could be read are sent, the receive is partial, and the next READ is answered."""
    with Pair(make, seed, strict=False) as pair:
        far = pair.ends[1]
        link, other = pair.link(), pair.link()
        far.dev.inject(far.memory + 0x8000 + 256 + 10, 1, "slverr", on="read")
        bad = pair.post(link, 0, "read", 900, at=0x8000, timeout_ns=100_000)
        made = [pair.post(link, 0, "read", 900, at=0x1000 + i, timeout_ns=100_000) for i in range(3)]
        made += [pair.post(other, side, "send", 500) for side in range(2) for _ in range(3) if side == 0]
        finish(pair, [bad, *made])
        assert ends([bad], "received") == [("partial", "preempted", 900 - 256)] and ends([bad]) == [(*GOOD, 900)]
        assert all(m.received.status == "success" for m in made)
        assert far.count("send_errors") == 1 and far.count("reads_served") == 4 and far.card.poll(SENDS) == []
        pair.balance()


@BOTH
def test_local_keys_bounds_and_domains(make, seed):
    """Refused requests end with cause protection; packets of them that were allowed may have gone out."""
    with Pair(make, seed, strict=False) as pair:
        near, far = pair.ends
        link = pair.link()
        near.card.add_region(0x55, near.va, SOURCE, ("local_write",), pd=PD_OTHER)
        limit = near.va + SOURCE + (1 << 20)
        qpn = link.qpns[0]
        wrong = [(near.va, 10, 0x56), (near.va, 10, 0x55), (near.va - 1, 10, 0x77), (limit - 9, 10, 0x77), (limit - 300, 700, 0x77),
                 ((1 << 64) - 5, 10, 0x77), (0, 10, 0)]
        for va, n, key in wrong:
            near.card.post_send(qpn, "write", va, n, key, remote_va=far.area_va(0), rkey=0x77)
        near.card.post_send(qpn, "write", 0, 0, 0, remote_va=0, rkey=0)         # of no bytes: nothing to check
        near.foreign[qpn] = found = []
        pair.until(lambda: len(found) == len(wrong) + 1)
        assert [(c.index, c.status, c.cause, c.byte_len) for c in found[:-1]] == [
            (i, "error", "protection", 0) for i in range(len(wrong))]
        assert (found[-1].status, found[-1].msg_len) == GOOD[:1] + (0,)
        pair.settle()
        sent = near.port.out.frames
        assert sent == 1 + 1 and far.count("frames_placed") == 2        # the first packet of the fifth was all right
        assert near.count("send_errors") == len(wrong) + 1


PD_OTHER = 10


@BOTH
def test_a_full_completion_queue(make, seed):
    """Completions of sends for which there is no room are lost and counted; nothing else suffers, and the queue works again."""
    with Pair(make, seed, strict=False) as pair:
        near, far = pair.ends
        for end in pair.ends:
            end.card.set_cq(4, 8)
        other, count = pair.link(), 30
        link = pair.link(send_cq=4)
        made = [pair.post(link, 0, "send", 20 + i) for i in range(count)]
        good = [pair.post(other, side, "send", 300) for _ in range(20) for side in range(2)]
        pair.all_received(made), pair.all_over(good)
        pair.settle(), pair.verify()
        assert near.count("cq_overrun") == count - 8 and far.count("cq_overrun") == 0
        found = near.card.poll(4)
        assert [(c.index, c.status) for c in found] == [(i, "success") for i in range(8)]
        assert all(m.received.status == "success" for m in made)
        link.renew()
        near.requests[link.qpns[0]].clear()
        for n in range(3):
            for _ in range(6):
                pair.post(link, 0, "send", 5, receive=True)
            pair.settle()
            assert [(c.index, c.status) for c in near.card.poll(4)] == [(6 * n + i, "success") for i in range(6)]
        assert near.count("cq_overrun") == count - 8


@BOTH
def test_a_completion_that_the_bus_refuses(make, seed):
    """A CQE of a send that can't be written: counted, and the rest goes on."""
    with Pair(make, seed, strict=False) as pair:
        near = pair.ends[0]
        link, other = pair.link(), pair.link()
        cq = near.card._cqs[SENDS]
        near.dev.inject(cq.addr + 32 * 1, 32, "slverr", on="write", count=1)
        for link_ in (link, other):
            for i in range(4):
                pair.post(link_, 0, "send", 100)
        pair.world.run_ns(30_000)
        assert near.count("write_errors") == 1 and pair.ends[1].count("frames_placed") == 8
        near.dev.clear_injections()
        pair.ends[1].poll()
        assert all(m.received.status == "success" for m in pair.messages)
