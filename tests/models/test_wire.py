"""The model's reading of frames: against a published vector, real captures, and each field set wrong."""

from pathlib import Path

import pytest

from sim.frames import LOCAL, REMOTE, build, cnp, flip, reth, uc_send, uc_write, xp_header, xp_send, xp_write
from sim.models.wire import Rules, icrc, inspect
from sim.replay.capture import read_capture

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
BOTH = pytest.mark.parametrize("src", [REMOTE[1], REMOTE[2]], ids=["ipv4", "ipv6"])

# A UC WRITE_ONLY whose ICRC scapy and a separate zlib computation agree on.
VECTOR = bytes.fromhex("4502004c000040004011b94bc0a80001c0a80002c00112b7003800002a00ffff000000110012345600001234"
                       "56789abcdeadbeef00000010000102030405060708090a0b0c0d0e0f310c93e9")


def test_vector():
    assert icrc(VECTOR[:-4], 20) == VECTOR[-4:]
    packet = inspect(bytes(12) + b"\x08\x00" + VECTOR)
    assert (packet.reason, packet.kind, packet.qpn, packet.va, packet.rkey) == (None, "uc", 0x11, 0x123456789ABC, 0xDEADBEEF)
    assert packet.payload == bytes(range(16))


def test_builder_makes_the_vector():
    built = uc_write(0x11, bytes(range(16)), 0x123456789ABC, 0xDEADBEEF, psn=0x123456, tos=2,
                     src="192.168.0.1", dst="192.168.0.2")
    assert built[14:] == VECTOR


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.pcap")), ids=lambda path: path.stem)
def test_real_frames_are_right(path):
    packets = [inspect(frame.data) for frame in read_capture(path)]
    assert packets
    assert {packet.reason for packet in packets} == {None}
    assert not any(packet.passed for packet in packets)


@BOTH
def test_every_covered_bit_counts(src):
    # Behind the IP and UDP headers only FECN, BECN and the reserved bits beside them are left out of the ICRC.
    frame = xp_send(17, b"abcde", src=src, imm=9)
    l3 = 20 if src == REMOTE[1] else 40
    free = range(8 * (14 + l3 + 8 + 4), 8 * (14 + l3 + 8 + 5))
    for bit in range(8 * (14 + l3 + 8), 8 * len(frame)):
        assert (inspect(flip(frame, bit)).reason is None) == (bit in free), bit


@BOTH
def test_masked_fields_are_free(src):
    fields = dict(tos=0xB9, ttl=3, udp_checksum=0x1234, fecn_becn=0xFF)
    if src == REMOTE[2]:
        fields |= dict(flow_label=0xABCDE)
    packet = inspect(uc_send(17, b"abc", src=src, **fields))
    assert packet.reason is None and packet.payload == b"abc"


@BOTH
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 63, 64, 65, 1023, 1024, 4095, 4096])
def test_sizes_and_pad(src, size):
    payload = bytes(i % 251 for i in range(size))
    for frame in (uc_send(1, payload, src=src), uc_send(1, payload, src=src, vlan=5, trailer=b"\0" * 9),
                  xp_send(1, payload, src=src, imm=3), xp_write(1, payload, 5, 6, src=src), uc_write(1, payload, 5, 6, src=src)):
        packet = inspect(frame)
        assert packet.reason is None and packet.payload == payload


@pytest.mark.parametrize("ecn, ce", [(0, False), (1, False), (2, False), (3, True)])
@BOTH
def test_congestion_mark(src, ecn, ce):
    assert inspect(uc_send(17, b"a", src=src, tos=0xA8 | ecn)).ce == ce


V4 = uc_send(17, b"abcd")
V6 = uc_send(17, b"abcd", src=REMOTE[2])
REFUSED = {
    "empty": (b"", "runt"),
    "13 bytes": (V4[:13], "runt"),
    "17 bytes with tag": (uc_send(17, b"", vlan=1)[:17], "runt"),
    "ipv4 header cut": (V4[:33], "runt"),
    "udp header cut": (V4[:41], "runt"),
    "bth cut": (V4[:57], "runt"),
    "ipv6 header cut": (V6[:53], "runt"),
    "ipv6 bth cut": (V6[:77], "runt"),
    "payload cut": (V4[:-1], "length"),
    "version 5": (uc_send(17, b"abcd", version=5), "length"),
    "ipv6 version 4": (uc_send(17, b"abcd", src=REMOTE[2], version=4), "length"),
    "header length 4": (uc_send(17, b"abcd", ihl=4), "length"),
    "options": (uc_send(17, b"abcd", ihl=6), "length"),
    "more fragments": (uc_send(17, b"abcd", flags_fragment=0x2000), "length"),
    "fragment offset": (uc_send(17, b"abcd", flags_fragment=1), "length"),
    "ip length beyond the frame": (uc_send(17, b"abcd", ip_len=49), "length"),
    "ip length too short": (uc_send(17, b"abcd", ip_len=43, trailer=bytes(9)), "length"),
    "ipv6 length beyond the frame": (uc_send(17, b"abcd", src=REMOTE[2], ip_len=29), "length"),
    "ipv6 length too short": (uc_send(17, b"abcd", src=REMOTE[2], ip_len=23), "length"),
    "udp length": (uc_send(17, b"abcd", udp_len=27), "length"),
    "udp length, ipv6": (uc_send(17, b"abcd", src=REMOTE[2], udp_len=29), "length"),
    "pad beyond payload": (uc_send(17, b"", pad=1, pad_bytes=b""), "length"),
    "extension header cut": (build(0x2A, 17, payload=bytes(12)), "length"),
    "xp header cut": (build(0xE4, 17, payload=bytes(12)), "length"),
    "dma length": (uc_write(17, b"abcd", 0, 0, dma_len=5), "length"),
    "dma length, xp": (xp_write(17, b"abcd", 0, 0, dma_len=3), "length"),
    "beyond the message": (xp_send(17, b"abcd", msg_len=7, offset=4), "length"),
    "beyond the message, wrapping": (xp_send(17, b"abcd", msg_len=7, offset=0xFFFFFFFF), "length"),
    "beyond mtu_max": (uc_send(17, bytes(4097)), "length"),
    "longer than any frame": (uc_send(17, bytes(4096), trailer=bytes(200)), "length"),
    "checksum": (uc_send(17, b"abcd", ip_checksum=0x1234), "checksum"),
    "icrc": (uc_send(17, b"abcd", icrc_xor=1), "icrc"),
    "version of the transport": (uc_send(17, b"abcd", tver=1), "version"),
    "read with a payload": (build(0xEC, 17, headers=xp_header(0, 8, 0) + reth(0, 0, 8), payload=b"abcd"), "length"),
    "read of another length than its message": (build(0xEC, 17, headers=xp_header(0, 9, 0) + reth(0, 0, 8)), "length"),
    "read without its address": (build(0xEC, 17, headers=xp_header(0, 8, 0)), "length"),
    "answer beyond the message": (build(0xF0, 17, headers=xp_header(0, 3, 0), payload=b"abcd"), "length"),
    "unknown opcode": (build(0x2C, 17), "opcode"),
    "unknown opcode of ours": (build(0xE6, 17), "opcode"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    frame, reason = REFUSED[name]
    assert inspect(frame).reason == reason


def test_first_reason_counts():
    wrong = dict(icrc_xor=1, tver=3, ip_checksum=1)
    assert inspect(xp_send(17, b"abcd", msg_len=3, **wrong)).reason == "length"
    assert inspect(build(0x2C, 17, **wrong)).reason == "checksum"
    del wrong["ip_checksum"]
    assert inspect(build(0x2C, 17, **wrong)).reason == "icrc"
    del wrong["icrc_xor"]
    assert inspect(build(0x2C, 17, **wrong)).reason == "version"


PASSED = {
    "arp": bytes(12) + b"\x08\x06" + bytes(46),
    "icmp": build(0x24, 17, protocol=1),
    "icmp, ipv6": build(0x24, 17, src=REMOTE[2], protocol=58),
    "dns": build(0x24, 17, dport=53),
    "icmp with options": build(0x24, 17, protocol=1, ihl=6),
    "two tags": build(0x24, 17, vlan=1, ethertype=0x8100),
}


@pytest.mark.parametrize("name", PASSED)
def test_passed(name):
    packet = inspect(PASSED[name])
    assert packet.passed and packet.reason is None


def test_switched_off():
    assert inspect(V6, Rules(ipv6=False)).passed
    assert inspect(uc_send(17, b"a", vlan=1), Rules(vlan=False)).passed
    assert inspect(V4, Rules(uc=False)).kind == "other"
    assert inspect(uc_send(17, bytes(1025)), Rules(mtu_max=1024)).reason == "length"


@pytest.mark.parametrize("opcode, kind", [(0x04, "other"), (0x20, "other"), (0x64, "other"), (0xF1, "other"), (0xFE, "other"),
                                          (0x24, "uc"), (0x2B, "uc"), (0xE4, "xp"), (0xEB, "xp"), (0xEC, "xp"), (0xF0, "xp"),
                                          (0x81, "cnp")])
def test_kinds(opcode, kind):
    headers = b""
    if opcode >> 5 == 7:
        headers = b"\x80" + bytes(15)
    if opcode in (0x2B, 0xEB, 0xEC):
        headers += reth(0, 0, 0)
    if opcode in (0x2B, 0xEB):
        headers += bytes(4)
    assert inspect(build(opcode, 17, headers=headers)).kind == kind


def test_short_notification_is_a_length():
    assert inspect(cnp(17)).kind == "cnp"
    assert inspect(build(0x81, 17, pad=2, pad_bytes=b"")).reason == "length"


def test_checksum_that_carries_twice():
    # The sum of the halves folds to 0x1FFFF-like values: the carry of the carry must be added too.
    for ident in range(0, 0x10000, 251):
        for last in range(0, 256, 17):
            assert inspect(uc_send(17, b"", ident=ident, src=f"255.255.255.{last}", dst=LOCAL[1])).reason is None
