"""The card in A's place: the same work requests, and B's answers as they were: its frames must be A's, to the byte.

Left out: what :func:`sim.rc_frames.covered_part` does, Ethernet padding, and AckReq of packets that are not the last of a message:
there A asks when it likes, and this card where the PSN is 63 modulo 64.
"""

import pytest

from sim.rc_rig import CFG, SIZE, Bench
from sim.rc_frames import CODES, Packet, covered_part

from .captures import RC, UC, WITH_LOSS, Capture, messages

BIG = CFG.with_(mtu_max=4096, rx_buffer_bytes=32768, tx_buffer_bytes=32768)
INSIDE = {CODES[f"{kind}_{place}"] for kind in ("SEND", "WRITE") for place in ("FIRST", "MIDDLE")}


def comparable(frame):
    """As much of a frame as must be equal."""
    packet = Packet(frame)
    data = bytearray(covered_part(frame))
    if packet.code in INSIDE:
        at = 14 + packet.ip_size + 8 + 8
        assert data[at:at + 4] == (packet.ack_req << 31 | packet.psn).to_bytes(4, "big")
        data[at] &= 0x7F
    return bytes(data)


def post(node, qpn, capture, wrong=0):
    """A's work requests; where each one's result goes. `wrong`: to be XORed with the keys, of the control."""
    at, results = 0, []
    for m in messages(capture.new()):
        fields = dict(solicited=m.solicited, imm=m.imm or 0, doorbell=False)
        if m.reth:
            fields |= dict(remote_va=m.reth[0], rkey=m.reth[1] ^ wrong)
        if m.atomic:
            fields |= dict(remote_va=m.atomic[0], rkey=m.atomic[1], operands=m.atomic[2:])
        length = m.reth[2] if m.op == "read" else len(m.payload)
        node.store(at, m.payload)
        assert at + length <= SIZE
        node.post_send(qpn, m.op, at, length, result=at, **fields)
        results.append((m, at))
        at += max(8, length)
    node.ring(qpn)
    return results


def replay(make, capture, kind="rc", wrong=0, **options):
    """(the card's request frames, the bench, results); the bench is open."""
    cfg = BIG if capture.mtu > CFG.mtu_max else CFG
    bench = Bench(make, cfg, qpn=capture.answer_qpn, node=capture.node(0), type=kind, peer_qpn=capture.qpn, mtu=capture.mtu,
                  psn=capture.psn, tclass=capture.tclass, **options)
    results = post(bench.node, bench.qpn, capture, wrong)
    found, sent = [], 0
    for from_a, packet in capture.packets:
        if from_a:
            sent += not packet.is_answer
        elif packet.is_answer:
            for _ in range(50):         # an answer to what hasn't been sent would be ignored
                bench.settle()
                found += bench.sent()
                if len(found) >= sent:
                    break
                bench.run_ns(100_000)
            bench.send(packet.frame)
            bench.settle()
            bench.poll()
    bench.settle(), bench.poll()
    return found + bench.sent(), bench, results


def check(capture, found):
    # pp_rc has a repetition that nothing in it accounts for
    wanted = capture.new() if capture.name == "pp_rc.pcap" else capture.requests
    assert [(p.name, p.psn) for p in found] == [(p.name, p.psn) for p in wanted]
    assert [comparable(p.frame) for p in found] == [comparable(p.frame) for p in wanted]
    for p in found:
        if p.code in INSIDE:
            assert p.ack_req == (p.psn % 64 == 63)


def check_results(capture, bench, results):
    answers = {p.psn: p for p in capture.answers}
    for m, at in results:
        if m.op == "read":
            count = max(1, -(-m.reth[2] // capture.mtu))
            data = b"".join(answers[(m.psn + i) % (1 << 24)].payload for i in range(count))
            assert bench.node.load(at, len(data)) == data
        elif m.atomic:
            assert bench.node.load(at, 8) == answers[m.psn].original.to_bytes(8, "big")


@pytest.mark.parametrize("name", [n for n in RC if not n.startswith(("rc_nak", "rc_rnr")) and n not in WITH_LOSS])
def test_rc(make, name):
    capture = Capture(name)
    found, bench, results = replay(make, capture)
    with bench:
        check(capture, found)
        assert bench.node.outcomes(bench.qpn) == [(i, "success", "complete") for i in range(len(results))]
        check_results(capture, bench, results)
        assert not bench.dev.faults


@pytest.mark.parametrize("name, retries, cause", [
    ("rc_nak_access_write.pcap", {}, "remote_access"), ("rc_nak_access_read.pcap", {}, "remote_access"),
    ("rc_nak_send_too_long.pcap", {}, "remote_operation"), ("rc_rnr_exhausted.pcap", {"rnr_retry": 2}, "rnr_retry")])
def test_errors(make, name, retries, cause):
    capture = Capture(name)
    found, bench, results = replay(make, capture, **retries)
    with bench:
        check(capture, found)
        *before, last = bench.node.outcomes(bench.qpn)
        assert before == [(i, "success", "complete") for i in range(len(results) - 1)]
        assert last == (len(results) - 1, "fatal", cause)


@pytest.mark.parametrize("name", UC)
def test_uc(make, name):
    capture = Capture(name)
    found, bench, results = replay(make, capture, "uc")
    with bench:
        check(capture, found)
        assert bench.node.outcomes(bench.qpn) == [(i, "success", "complete") for i in range(len(results))]


def test_control_another_key(make):
    """Of the comparison: a request with another key is another frame."""
    capture = Capture("rc_zero_length.pcap")
    found, bench, _ = replay(make, capture, wrong=1)
    with bench, pytest.raises(AssertionError):
        check(capture, found)
