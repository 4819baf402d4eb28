"""The card in B's place: it gets A's frames of every RC and UC capture and must answer as B did.

Allowed differences to B, which is Linux: an ACK or answer that B gave and the network lost isn't in the capture; an answer to the
rest of a READ begins with FIRST (or ONLY) here, there it goes on with MIDDLE (LAST); a SEND that is too long is an invalid request
(0x61) here and a remote operational error (0x63) there; B gives its timer in RNR NAKs, which is set here.
"""

import pytest

from sim.rc_rig import CFG, KEY, SIZE, Bench
from sim.rc_frames import covered_part

from .captures import RC, UC, WITH_LOSS, Capture, messages

BIG = CFG.with_(mtu_max=4096, rx_buffer_bytes=32768, tx_buffer_bytes=32768)
SLOT = 10240                # bytes for each receive
RECEIVES = SIZE // SLOT


def key_of(answer, partial):
    """What must be equal. `partial`: this may be the answer to the rest of a READ."""
    name = answer.name
    if partial and name.startswith("READ_RESP"):
        name = {"READ_RESP_FIRST": "READ_RESP_MIDDLE", "READ_RESP_ONLY": "READ_RESP_LAST"}.get(name, name)
        return name, answer.psn, answer.payload
    syndrome = 0x63 if answer.syndrome == 0x61 else answer.syndrome
    return name, answer.psn, syndrome, answer.msn, answer.payload, answer.original


def bench_of(make, capture, receives=RECEIVES, length=SLOT, **options):
    cfg = BIG if capture.mtu > CFG.mtu_max else CFG
    bench = Bench(make, cfg, qpn=capture.qpn, node=capture.node(1), peer_qpn=capture.answer_qpn, mtu=capture.mtu,
                  expected=capture.psn, tclass=capture.tclass, **options)
    node = bench.node
    for span in capture.memory():
        base = node.dev.alloc(-(-len(span.data) // 64) * 64)        # the bus reads whole beats
        node.dev.write(base, span.data)
        if span.key != KEY:
            node.region(span.key, span.va, len(span.data), delta=base - span.va)
    for i in range(receives):
        node.post_receive(capture.qpn, i * SLOT, length)
    return bench


def replay(bench, capture):
    """A's frames one after the other, B's answers each time: all that the card sent."""
    found = []
    for from_a, packet in capture.packets:
        if from_a:
            found += bench.exchange(packet.frame)
            bench.poll()
    return found


def check_answers(capture, found):
    """Those that B gave are among `found`, in the same order, and unless the network lost some there are no others."""
    lossy = capture.name in WITH_LOSS
    mine, theirs = ([key_of(p, lossy) for p in some] for some in (found, capture.answers))
    if not lossy:
        assert mine == theirs
        return
    # A's frames are in the order in which they left A; B has answered some later, when the next ones were on their way already.
    rest = list(mine)
    for answer in theirs:
        assert answer in rest, answer
        rest.remove(answer)
    assert len(rest) < max(4, len(mine) / 3)


def check_receives(capture, bench, count=None):
    done = [m for m in messages(capture.new()) if m.op in ("send", "send_imm", "send_inv", "write_imm")][:count]
    got = [d for d in bench.node.done[0] if d.opcode != "event"]
    assert [(d.index, d.status, d.opcode, d.byte_len) for d in got] == [
        (i, "success", m.op, m.reth[2] if m.reth else len(m.payload)) for i, m in enumerate(done)]
    for i, (d, m) in enumerate(zip(got, done)):
        if m.imm is not None:
            assert d.imm == m.imm
        if m.op != "write_imm":
            assert bench.node.load(i * SLOT, len(m.payload)) == m.payload


def check_writes(capture, bench):
    """The memory of B is as A's WRITEs have left it."""
    for span in capture.memory():
        image = {}
        for m in messages(capture.new()):
            if m.op.startswith("write") and m.reth[1] == span.key:
                image.update((m.reth[0] + i, byte) for i, byte in enumerate(m.payload))
            elif m.atomic and m.atomic[1] == span.key:
                for i in range(8):
                    image.pop(m.atomic[0] + i, None)
        _, _, delta, _ = bench.node.entries[span.key]
        data = bench.dev.read((span.va + delta) % (1 << 64), len(span.data))
        assert all(data[at - span.va] == byte for at, byte in image.items())


@pytest.mark.parametrize("name", [n for n in RC if not n.startswith(("rc_nak", "rc_rnr"))])
def test_rc(make, name):
    capture = Capture(name)
    with bench_of(make, capture) as bench:
        found = replay(bench, capture)
        check_answers(capture, found)
        check_receives(capture, bench)
        check_writes(capture, bench)
        assert not bench.node.events(capture.qpn) and not bench.dev.faults
        assert {p.tclass for p in found} == {capture.tclass}


@pytest.mark.parametrize("name, cause", [("rc_nak_access_write.pcap", "remote_access"),
                                         ("rc_nak_access_read.pcap", "remote_access"),
                                         ("rc_nak_send_too_long.pcap", "remote_invalid")])
def test_refusals(make, name, cause):
    capture = Capture(name)
    with bench_of(make, capture, length=1024) as bench:
        check_answers(capture, replay(bench, capture))
        event, = bench.node.events(capture.qpn)
        assert (event.status, event.cause) == ("fatal", cause)
        # the QP is dead: what comes next is not even acknowledged again
        assert bench.exchange(capture.requests[0].frame) == []
        bench.node.flush(capture.qpn)
        bench.settle(), bench.poll()
        rest = [o for o in bench.node.outcomes(capture.qpn, "receive") if o[1] != "success"]
        assert {o[1:] for o in rest} == {("error", "flushed")}
        assert len(bench.node.outcomes(capture.qpn, "receive")) == RECEIVES


def test_no_receive(make):
    capture = Capture("rc_rnr_exhausted.pcap")
    with bench_of(make, capture, receives=0, rnr_timer=14) as bench:
        check_answers(capture, replay(bench, capture))
        bench.node.post_receive(capture.qpn, 0, SLOT)
        bench.settle()
        answer, = bench.exchange(capture.requests[0].frame)
        assert (answer.name, answer.psn, answer.syndrome, answer.msn) == ("ACK", capture.psn, 0x1F, 1)
        bench.poll()
        check_receives(capture, bench)


@pytest.mark.parametrize("name", UC)
def test_uc(make, name):
    capture = Capture(name)
    with bench_of(make, capture, type="uc") as bench:
        assert replay(bench, capture) == []
        check_receives(capture, bench)
        check_writes(capture, bench)


def test_answers_come_as_frames_do(make):
    """ACKs equal B's to the byte, but for what covered_part leaves out."""
    capture = Capture("rc_write_sizes.pcap")
    with bench_of(make, capture) as bench:
        found = replay(bench, capture)
        assert [covered_part(p.frame) for p in found] == [covered_part(p.frame) for p in capture.answers]


def test_control_another_memory(make):
    """Of the comparison: B's memory with one other byte gives another answer."""
    capture = Capture("rc_read.pcap")
    with bench_of(make, capture) as bench:
        span = capture.memory()[0]
        _, _, delta, _ = bench.node.entries[span.key]
        bench.node.region(0x77, 0, 64)
        found = []
        for from_a, packet in capture.packets:
            if from_a:
                if packet.name == "READ_REQ":
                    at = (packet.reth[0] + delta) % (1 << 64)
                    bench.dev.write(at, bytes([bench.dev.read(at, 1)[0] ^ 1]))
                found += bench.exchange(packet.frame)
        with pytest.raises(AssertionError):
            check_answers(capture, found)
