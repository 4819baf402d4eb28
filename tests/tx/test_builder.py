"""FrameBuilder on narrow beats: every byte of every kind of frame, against sim/frames.py and scapy."""

from contextlib import contextmanager

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether

from . import frame_bench
from .frame_bench import PEERS, TINY, Packet, Peer, run


@pytest.mark.parametrize("width", [64, 128])
def test_every_kind_of_frame(width, rng):
    """XPETH, RETH, ImmDt, there or not; IPv4 and IPv6, with and without tag; every end of the payload in its word."""
    sizes = [0, 1, 2, 3, *(rng.randrange(4, 90) for _ in range(2))]
    packets = [Packet.random(rng, n, kind=kind, peer=peer, lane=rng.randrange(width // 8))
               for kind in range(8) for peer in range(4) for n in rng.sample(sizes, 4)]
    bench = run(packets, rng, width=width)
    beats = sum(-(-len(f) // (width // 8)) for *_, f in bench.frames)
    assert bench.frames[-1][1] - bench.frames[0][0] + 1 == beats        # not one cycle lost


@pytest.mark.parametrize("width", [64, 128])
def test_every_lane_and_length(width, rng):
    """Payload from every lane; lengths that end in every lane, short and at the MTU."""
    lanes = width // 8
    pairs = [(lane, n) for lane in range(lanes) for n in range(1, 2 * lanes + 1)]
    packets = [Packet.random(rng, n, lane=lane, kind=rng.choice([0, 1, 4]), peer=rng.randrange(4))
               for lane, n in (pairs if width == 64 else rng.sample(pairs, 90))]
    packets += [Packet.random(rng, TINY.mtu_max - n, lane=rng.randrange(lanes), peer=rng.randrange(4)) for n in (0, 1, 2, 3, lanes)]
    run(packets, rng, width=width)


@contextmanager
def addresses(monkeypatch, peer, **local):
    """Other addresses in bench and expectation alike."""
    with monkeypatch.context() as patch:
        patch.setattr(frame_bench, "PEERS", [peer])
        for name, value in local.items():
            patch.setattr(frame_bench, name, value)
        yield


def test_known_frame(monkeypatch, rng):
    """A UC WRITE whose ICRC scapy and a separate zlib computation agree on."""
    packet = Packet(bytes(range(16)), lane=3, opcode=0x2A, reth=1, dest_qpn=0x11, psn=0x123456, tclass=2, va=0x123456789ABC,
                    rkey=0xDEADBEEF, dma_len=16)
    with addresses(monkeypatch, Peer("02:00:00:00:00:02", "192.168.0.2"), LOCAL_IP4="192.168.0.1", HOP_LIMIT=64, PKEY=0xFFFF):
        bench = run([packet], rng)
    assert bench.frames[0][2][14:].hex() == (
        "4502004c000040004011b94bc0a80001c0a80002c00112b7003800002a00ffff00000011001234560000123456789abcdeadbeef00000010"
        "000102030405060708090a0b0c0d0e0f" "310c93e9")


def test_congestion_notification(rng):
    packet = Packet(bytes(16), opcode=0x81, becn=1, tclass=48 << 2, dest_qpn=77, psn=0)
    frame = run([packet], rng).frames[0][2]
    assert len(frame) == 14 + 20 + 8 + 12 + 16 + 4 and frame[15] == 48 << 2 and frame[42] == 0x81 and frame[46] == 0x40
    assert not any(frame[54:70])


def test_scapy_agrees(rng):
    """Lengths, IP checksum and ICRC, by another implementation."""
    packets = [Packet.random(rng, n, peer=peer, kind=rng.randrange(8)) for peer in (0, 2) for n in (0, 1, 7, 40, 255)]
    packets[0].f["becn"] = 1
    for (*_, raw), packet in zip(run(packets, rng).frames, packets):
        frame = Ether(raw)
        assert frame.dst == PEERS[packet.peer].mac and frame.src == frame_bench.LOCAL_MAC
        assert frame.haslayer(Dot1Q) == (packet.peer == 2)
        assert frame[IP].len == len(frame[IP]) - (2 if len(raw) == 60 else 0) and frame[UDP].len == frame[IP].len - 20
        assert frame[UDP].dport == 4791 and frame[UDP].chksum == 0 and frame[IP].flags == "DF" and frame[IP].id == 0
        bare = frame[IP].copy()
        del bare.chksum
        assert IP(bytes(bare)[:20]).chksum == frame[IP].chksum
        bth = frame[BTH]
        assert (bth.opcode, bth.dqpn, bth.psn, bth.solicited, bth.becn, bth.migreq) == (
            packet.f["opcode"], packet.f["dest_qpn"], packet.f["psn"], packet.f["solicited"], packet.f["becn"], 0)
        end = len(raw) - len(frame[IP]) + frame[IP].len
        if len(raw) > 60:
            assert bth.compute_icrc(None) == raw[end - 4:end]


def test_shortest_frames_are_padded(rng):
    packets = [Packet.random(rng, 0, kind=0, peer=0) for _ in range(3)] + [Packet.random(rng, 1, kind=0, peer=0)]
    for width in (64, 128):
        bench = run(packets, rng, width=width)
        assert [len(f) for *_, f in bench.frames] == [60, 60, 60, 62] and bench.frames[0][2][58:] == bytes(2)


def test_silent_and_failed_packets(rng):
    """Nothing is sent, their beats come back in order, each has its done pulse."""
    packets = [Packet.random(rng, rng.choice([0, 5, 100]), lane=rng.randrange(8), silent=rng.random() < 0.3, failed=rng.random() < 0.3)
               for _ in range(60)]
    run(packets, rng)
    bench = run([Packet.random(rng, 40, silent=1) for _ in range(30)], rng)
    assert bench.done[-1][0] - bench.done[0][0] == 29 and not bench.frames     # one each cycle


def test_latency_and_acceptance(rng):
    """The first beat as soon as the contract says; packets are taken one a cycle until the places are used up."""
    bench = run([Packet.random(rng, 0, kind=0) for _ in range(50)], rng)
    assert bench.frames[0][0] - bench.taken[0] == 9 + bench.dut.latency
    n = TINY.packets_on_the_way - 2
    assert bench.taken[:n] == list(range(bench.taken[0], bench.taken[0] + n))
    assert bench.frames[-1][1] - bench.frames[0][0] + 1 == 50 * 8


@pytest.mark.parametrize("knobs", [dict(ipv6=False), dict(vlan=False), dict(pass_through=False), dict(ipv6=False, vlan=False)])
def test_options(knobs, rng):
    """Without IPv6 or tags, what a peer's entry says of them is ignored."""
    peers = [i for i, p in enumerate(PEERS)
             if (knobs.get("ipv6", True) or p.ip.version == 4) and (knobs.get("vlan", True) or p.tci is None)]
    packets = [Packet.random(rng, rng.randrange(60), lane=rng.randrange(8), peer=rng.choice(peers)) for _ in range(12)]
    run(packets, rng, knobs=knobs)
