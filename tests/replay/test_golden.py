"""The UC captures of a real peer on the card: what lands in memory is what its README says was sent.

The single-packet messages are taken. Those of several packets are not what this card speaks: `opcode`, every packet.
"""

import hashlib
import json

import pytest

from sim.replay import run
from sim.replay.capture import read_capture

from .traffic import (GOLDEN, SEND_KEY, SLOT, payload, qp_setup, send_buffers, send_region, write_region, write_targets)

MODEL, RTL = "model", pytest.param("rtl", marks=pytest.mark.rtl)
ENGINES = pytest.mark.parametrize("engine", [MODEL, RTL])


@pytest.fixture
def replay(tmp_path):
    def replay(setup, capture, engine):
        (tmp_path / "setup.json").write_text(json.dumps(setup))
        run(tmp_path / "setup.json", GOLDEN / capture, tmp_path / "out.json", engine, tmp_path / "sent.pcap")
        assert read_capture(tmp_path / "sent.pcap") == []
        return json.loads((tmp_path / "out.json").read_text())
    return replay


def digest(data):
    return hashlib.sha256(data).hexdigest()


def by_index(length):
    return bytearray(i % 251 for i in range(length))


def check_verdicts(out, sizes):
    """`sizes`: bytes of each single-packet message, None for a packet of a longer one."""
    for i, (frame, size) in enumerate(zip(out["frames"], sizes, strict=True)):
        expected = {"verdict": "dropped", "reason": "opcode"} if size is None else \
            {"verdict": "placed", "qpn": frame.get("qpn"), "bytes": size}
        assert frame == {"index": i} | expected
    counters = out["counters"]
    assert counters["drop_opcode"] == sizes.count(None)
    assert counters["frames_placed"] == len(sizes) - sizes.count(None)
    assert counters["placed_bytes"] == sum(size or 0 for size in sizes)


@ENGINES
def test_uc_send(replay, engine):
    # send:0 send:1 send:3 send:1023 send:1024 send:1025 send:4097 sendimm:1 sendimm:2 sendimm:1024 sendimm:1025
    # sendimm:2050 sendse:7
    sizes = [0, 1, 3, 1023, 1024, None, None, *[None] * 5, 1, 2, 1024, None, None, None, None, None, 7]
    ops = [(0, 0, 0), (1, 1, 0), (2, 3, 0), (3, 1023, 0), (4, 1024, 0), (7, 1, 1), (8, 2, 1), (9, 1024, 1), (12, 7, 0)]
    out = replay({"regions": [send_region(12, fill=0xEE)], "qps": [qp_setup(18, send_buffers(12))], "end_us": 100_000},
                 "uc_send.pcap", engine)
    check_verdicts(out, sizes)
    memory = bytearray(b"\xee" * 12 * SLOT)
    for slot, (op, size, _) in enumerate(ops):
        memory[slot * SLOT:slot * SLOT + size] = payload(op, size)
    assert out["regions"] == [{"rkey": SEND_KEY, "sha256": digest(memory)}]
    assert [(c["index"], c["opcode"], c["status"], c["cause"], c["byte_len"], c["msg_len"], c["imm"], c["tag"])
            for c in out["completions"]] == [
        (i, "send_imm" if imm else "send", "success", "complete", size, size, 0x5A000000 | op if imm else None, 0)
        for i, (op, size, imm) in enumerate(ops)]
    times = [c["time_us"] for c in out["completions"]]
    assert times == sorted(times)
    assert abs(times[-1] - 16_165) < 10     # by the capture's clock, from its first frame


@ENGINES
def test_uc_write(replay, engine):
    frames = [f.data for f in read_capture(GOLDEN / "uc_write.pcap")]
    region = write_region(frames)
    # write:1 2 3 5 1023 1024 1025 2049 4097 writeimm:1 3 1024 1025 2050 4097
    sizes = [1, 2, 3, 5, 1023, 1024, *[None] * 10, 1, 3, 1024, *[None] * 10]
    ops = [0, 1, 2, 3, 4, 5, 9, 10, 11]
    out = replay({"regions": [region], "qps": [qp_setup(17, send_buffers(9))], "end_us": 1000}, "uc_write.pcap", engine)
    check_verdicts(out, sizes)
    memory = by_index(region["length"])
    singles = [(va, length) for va, _, length in write_targets(frames) if length <= 1024]
    for op, (va, length) in zip(ops, singles, strict=True):
        memory[va - region["va"]:va - region["va"] + length] = payload(op, length)
    assert out["regions"][0]["sha256"] == digest(memory)
    assert [(c["index"], c["opcode"], c["status"], c["byte_len"], c["imm"]) for c in out["completions"]] == [
        (i, "write_imm", "success", size, 0xA5000000 | 9 + i) for i, size in enumerate((1, 3, 1024))]


@ENGINES
def test_uc_over_ipv6(replay, engine):
    frames = [f.data for f in read_capture(GOLDEN / "v6_uc.pcap")]
    # write:3 send:1025 writeimm:2049 sendimm:1
    out = replay({"regions": [write_region(frames), send_region(4)], "qps": [qp_setup(18, send_buffers(4), v6=True)]},
                 "v6_uc.pcap", engine)
    check_verdicts(out, [3, *[None] * 5, 1])
    completion, = out["completions"]
    assert (completion["opcode"], completion["imm"], completion["byte_len"]) == ("send_imm", 0x5A000003, 1)
    assert out["regions"][1]["sha256"] == digest(payload(3, 1) + bytes(4 * SLOT - 1))


@ENGINES
@pytest.mark.parametrize("kind", ["xp", "uc"])
@pytest.mark.parametrize("capture, qpn", [("rc_send.pcap", 23), ("ud_send.pcap", 19), ("pf_send_bw_uc.pcap", 26)])
def test_what_others_speak(replay, engine, kind, capture, qpn):
    # Both directions of a connection share the QPN, and only A is the peer.
    out = replay({"qps": [qp_setup(qpn, send_buffers(20), kind)]}, capture, engine)
    assert {f["reason"] for f in out["frames"]} == {"opcode"}
    assert not out["completions"]


@ENGINES
def test_a_card_without_queue_pairs(replay, engine):
    out = replay({}, "uc_send.pcap", engine)
    assert {(f["verdict"], f["reason"]) for f in out["frames"]} == {("dropped", "qpn")}


@ENGINES
def test_too_few_receives_then_a_deadline(replay, engine):
    receives = [*send_buffers(2), *send_buffers(1, timeout_us=100)]
    out = replay({"regions": [send_region(3)], "qps": [qp_setup(18, receives)], "end_us": 1000}, "uc_send.pcap", engine)
    # The third message comes 39 us after the first; then nothing is posted.
    assert [f.get("reason") for f in out["frames"][:5]] == [None, None, None, "no_receive", "no_receive"]
    assert [c["index"] for c in out["completions"]] == [0, 1, 2]
    receives[2]["timeout_us"] = 2
    out = replay({"regions": [send_region(3)], "qps": [qp_setup(18, receives)], "end_us": 1000}, "uc_send.pcap", engine)
    # Its clock starts with the second message, 4 us before the third comes.
    assert out["frames"][2]["reason"] == "no_receive"
    last = out["completions"][2]
    assert (last["status"], last["cause"], last["byte_len"], last["opcode"]) == ("partial", "timeout", 0, None)
    assert 37 <= last["time_us"] <= 39
