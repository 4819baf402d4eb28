"""The models' view of RC and UC frames: against captures of a real peer, and against frames that are wrong."""

import pytest

from sim.frames import build, flip
from sim.models.rc_acks import Acknowledges
from sim.models.rc_wire import PSNS, RNR_TIMES_NS, ahead, packets_of, read_rc
from sim.models.wire import Rules, inspect
from sim.rc_frames import Packet, request
from tests.rx.golden import frames, names


def look(frame, **rules):
    return inspect(frame, Rules(**rules), read_rc)


@pytest.mark.parametrize("name", [n for n in names() if not n.startswith(("ud", "v6_ud", "pp_ud", "pf_send_bw_ud"))])
def test_captures(name):
    for frame in frames(name):
        mine, other = look(frame), Packet(frame)
        assert mine.reason is None and not mine.passed
        assert mine.kind == ("uc" if other.code >= 0x20 else "rc")
        assert (mine.op, mine.qpn, mine.psn, mine.ack_req, mine.payload, mine.pkey) == (
            other.code & 31, other.qpn, other.psn, bool(other.ack_req), other.payload, 0xFFFF)
        if other.reth:
            assert (mine.va, mine.rkey, mine.dma_len) == other.reth
        if other.atomic:
            assert (mine.va, mine.rkey, mine.swap_add, mine.compare) == other.atomic
        if other.aeth is not None:
            assert (mine.syndrome, mine.msn) == (other.syndrome, other.msn)
        if other.original is not None:
            assert mine.original == other.original.to_bytes(8, "big")
        assert mine.imm == (other.imm or other.ieth or 0)


def test_datagrams_are_for_nobody():
    assert {look(frame).kind for frame in frames("ud_send.pcap")} == {"other"}
    for code in (0xE4, 0xEB, 0xF1, 0x1C, 0x1D):
        assert look(build(code, 5, payload=bytes(4))).kind == "other"
    assert look(build(0x15, 5)).reason == look(build(0x4A, 5)).reason == "opcode"
    assert look(request("UC_SEND_ONLY", 5, 0, b"abc"), uc=False).kind == "other"
    assert look(build(0x81, 5, payload=bytes(16))).kind == "cnp"


def test_every_covered_bit_counts():
    frame = frames("rc_atomic.pcap")[0]
    for bit in range(8 * 42, 8 * len(frame)):
        if bit // 8 in (40, 41, 46):            # UDP checksum; FECN, BECN, reserved
            continue
        assert look(flip(frame, bit)).reason is not None, bit


@pytest.mark.parametrize("name, size", [("SEND_LAST_IMM", 4), ("WRITE_FIRST", 16), ("WRITE_ONLY_IMM", 20), ("READ_REQ", 16),
                                        ("ACK", 4), ("ATOMIC_ACK", 12), ("FETCH_ADD", 28), ("SEND_ONLY_INV", 4),
                                        ("READ_RESP_FIRST", 4),
                                        ("UC_WRITE_FIRST", 16), ("UC_SEND_LAST_IMM", 4)])
def test_headers_must_fit(name, size):
    assert look(request(name, 5, 0, bytes(size))).reason is None
    assert look(request(name, 5, 0, bytes(size - 4))).reason == "length"


def test_payloads_where_none_may_be():
    for name, size in (("READ_REQ", 16), ("ACK", 4), ("ATOMIC_ACK", 12), ("CMP_SWAP", 28), ("FETCH_ADD", 28)):
        assert look(request(name, 5, 0, bytes(size + 1))).reason == "length"
    assert look(request("SEND_ONLY", 5, 0, bytes(1025)), mtu_max=1024).reason == "length"
    assert look(request("SEND_ONLY", 5, 0, bytes(1024)), mtu_max=1024).reason is None


def test_numbers():
    assert ahead(0, PSNS - 1) == 1 and ahead(PSNS - 1, 0) == PSNS - 1
    assert [packets_of(n, 256) for n in (0, 1, 256, 257, 512)] == [1, 1, 1, 2, 2]
    assert [RNR_TIMES_NS[i] for i in (0, 1, 5, 14, 22, 31)] == [655_360_000, 10_000, 60_000, 1_280_000, 20_480_000, 491_520_000]
    assert len(RNR_TIMES_NS) == 32 and list(RNR_TIMES_NS[1:]) == sorted(RNR_TIMES_NS[1:])


def test_acknowledges_owed():
    acks = Acknowledges()
    acks.owe(1, 10, 1, 0x1F), acks.owe(2, 5, 1, 0x1F), acks.owe(1, 11, 2, 0x1F)
    assert acks.take() == (1, (11, 2, 0x1F))        # the newest, in the first one's place
    acks.answering(2)
    assert not acks                                 # an answer acknowledges what came before
    acks.owe(2, 7, 3, 0x60)
    assert not acks and acks.take() is None
    acks.answering(2, again=True)
    acks.answered(2)
    assert not acks
    acks.answered(2)
    assert acks.take() == (2, (7, 3, 0x60)) and not acks
    acks.answered(2), acks.owe(2, 8, 4, 0x1F), acks.reset(2)
    assert not acks
