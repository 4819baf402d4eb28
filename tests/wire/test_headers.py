"""Header tables against scapy's layers, and against literal positions for those that scapy does not have."""

import pytest
from scapy.contrib.roce import BTH as ScapyBTH
from scapy.layers.inet import IP, UDP as ScapyUDP
from scapy.layers.inet6 import IPv6

from optinic.wire import headers
from optinic.wire.headers import BTH, IPV4, IPV6, RETH, UDP, XPETH, Header, HeaderField


def test_sizes():
    sizes = {"ethernet": 14, "vlan": 4, "ipv4": 20, "ipv6": 40, "udp": 8, "bth": 12, "xpeth": 16, "reth": 16, "immdt": 4,
             "aeth": 4, "ieth": 4, "deth": 8, "atomic_eth": 28, "atomic_ack_eth": 8, "feth": 4}
    found = {h.name: h.size for h in vars(headers).values() if isinstance(h, Header)}
    assert found == sizes


def test_ip_and_udp_like_scapy():
    assert IPV4.pack(version=4, ihl=5, dscp=5, ecn=2, total_length=76, identification=0x1234, flags=2, ttl=64, protocol=17,
                     checksum=0xBEEF, src=0x0A000001, dst=0x0A000002) == bytes(
        IP(tos=5 << 2 | 2, len=76, id=0x1234, flags="DF", ttl=64, proto=17, chksum=0xBEEF, src="10.0.0.1", dst="10.0.0.2"))
    assert IPV6.pack(version=6, dscp=5, ecn=3, flow_label=0xABCDE, payload_length=99, next_header=17, hop_limit=7, src=1,
                     dst=2) == bytes(IPv6(tc=5 << 2 | 3, fl=0xABCDE, plen=99, nh=17, hlim=7, src="::1", dst="::2"))
    assert UDP.pack(src_port=1, dst_port=4791, length=30, checksum=2) == bytes(ScapyUDP(sport=1, dport=4791, len=30, chksum=2))


def test_bth_like_scapy():
    values = dict(opcode=0x2A, solicited=1, migreq=0, pad_count=3, version=9, pkey=0xFFFF, fecn=1, becn=0, reserved6=5,
                  dest_qp=0x123456, ack_req=1, reserved7=3, psn=0xABCDEF)
    scapy = ScapyBTH(opcode=0x2A, solicited=1, migreq=0, padcount=3, version=9, pkey=0xFFFF, fecn=1, becn=0, resv6=5,
                     dqpn=0x123456, ackreq=1, resv7=3, psn=0xABCDEF, icrc=0)
    packed = BTH.pack(**values)
    assert packed == bytes(scapy)[:12]
    assert BTH.unpack(packed) == values


def test_xpeth_and_reth():
    raw = bytes(range(16))
    assert XPETH.unpack(raw) == dict(tracked=0, echo=0, reserved=0, generation=1, tag=0x0203, seq=0x04050607,
                                     msg_len=0x08090A0B, offset=0x0C0D0E0F)
    assert XPETH.pack(tracked=1) == b"\x80" + bytes(15)
    assert RETH.unpack(raw) == dict(va=0x0001020304050607, rkey=0x08090A0B, length=0x0C0D0E0F)


def test_masked_bits():
    assert {b // 8 for b in IPV4.masked_bits()} == {1, 8, 10, 11}
    assert IPV6.masked_bits() == [*range(4, 32), *range(56, 64)]
    assert {b // 8 for b in UDP.masked_bits()} == {6, 7}
    assert BTH.masked_bits() == list(range(32, 40))


def test_a_bad_table_is_refused():
    with pytest.raises(ValueError, match="does not follow"):
        Header("x", 1, (HeaderField("a", 0, 4), HeaderField("b", 5, 3)))
    with pytest.raises(ValueError, match="not 1 bytes"):
        Header("x", 1, (HeaderField("a", 0, 4),))
    with pytest.raises(ValueError, match="does not fit"):
        UDP.pack(length=1 << 16)
    with pytest.raises(ValueError, match="no field"):
        UDP.pack(colour=1)
