"""The reference itself: against captures of another implementation, scapy, and the project's model of the wire."""

import random

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from optinic.config import preset
from sim.models import wire as model

from . import golden, reference
from .mutations import any_frame, mutate
from .reference import UC_SEND, build, icrc, judge

#: UC WRITE_ONLY, computed by scapy and by zlib
VECTOR = bytes.fromhex("0200000000010200000000020800"
                       "4502004c000040004011b94bc0a80001c0a80002c00112b7003800002a00ffff0000001100123456"
                       "0000123456789abcdeadbeef00000010000102030405060708090a0b0c0d0e0f310c93e9")


def test_vector():
    assert build(payload=bytes(range(16)), tos=2) == VECTOR


@pytest.mark.parametrize("name", golden.names())
def test_every_captured_frame_is_right(name):
    for frame in golden.frames(name):
        verdict = judge(frame, preset("c100g"))
        assert verdict["reason"] is None and not verdict["passed"]


def test_icrc_is_scapys():
    rng = random.Random(1)
    for size in range(0, 40, 4):
        payload = rng.randbytes(size)
        packet = Ether() / IP(src="10.1.2.3", dst="10.4.5.6", tos=rng.randrange(256), ttl=9) / UDP(dport=4791, sport=7) / BTH(
            opcode=UC_SEND, dqpn=5, psn=77, fecn=1) / payload
        frame = bytes(packet)
        assert icrc(frame[14:-4]) == frame[-4:]


def test_the_model_says_the_same():
    """Two independent readings of the framing rules, over mutated frames."""
    rng = random.Random(2)
    for knobs in ({}, {"uc": False}, {"vlan": False}, {"ipv6": False}, {"mtu_max": 256}):
        cfg = preset("tiny", **knobs)
        rules = model.Rules(cfg.mtu_max, cfg.max_frame_bytes, cfg.ipv6, cfg.vlan, cfg.uc)
        for _ in range(1500):
            frame = mutate(rng, any_frame(rng))
            mine, theirs = judge(frame, cfg), model.inspect(frame, rules)
            assert (mine["passed"], mine["reason"]) == (theirs.passed, theirs.reason), frame.hex()


def test_a_reference_without_a_mask_is_noticed(monkeypatch):
    monkeypatch.setattr(reference, "icrc", lambda ip: model.zlib.crc32(b"\xff" * 8 + ip).to_bytes(4, "little"))
    assert judge(VECTOR, preset("c100g"))["reason"] == "icrc"
