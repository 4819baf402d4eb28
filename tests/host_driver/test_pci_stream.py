"""A board's pass-through stream: a network interface of Linux, and a driver that asks for addresses and answers through it."""

from collections import deque
import socket
import struct
from types import SimpleNamespace

import pytest

from host_driver.backends.packet_socket import AUXDATA, PACKET_AUXDATA, SOL_PACKET, PacketSocket, with_tag
from host_driver.backends.pci import open_device as open_pci
from host_driver.verbs import *
from host_driver.verbs import open_device
from optinic.config import preset
from .conftest import make_end
from .served_bar import ServedCard, WaitingDevice
from .station import CARD_IP, MAC, REQUEST_TO_CARD, checked
from .test_neighbour_frames import Host

CFG = preset("tiny")


def raw_sockets():
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
        return True
    except (OSError, AttributeError):
        return False


@pytest.mark.skipif(not raw_sockets(), reason="raw sockets need root and Linux")
def test_an_interface_carries_frames():
    """Over lo, which brings back what is sent."""
    stream, frame = PacketSocket("lo"), bytes(12) + b"\x88\xb5" + bytes(range(50))
    try:
        stream.host_frames()
        stream.host_send(frame)
        assert [f for f in stream.host_frames() if f[12:14] == b"\x88\xb5"] == [frame]      # once, not also as sent
        with pytest.raises(BackendError, match="a frame of 3 bytes can't be sent"):
            stream.host_send(b"abc")
    finally:
        stream.close()
    with pytest.raises(BackendError, match="network interface none0 can't be used .*`ip link`"):
        PacketSocket("none0")


def test_tags_are_put_back():
    frame = bytes(range(12)) + b"\x08\x06" + bytes(46)
    extra = lambda status: [(SOL_PACKET, PACKET_AUXDATA, AUXDATA.pack(status, 60, 60, 0, 14, 0x2005, 0x8100))]
    assert with_tag(frame, extra(0)) == frame == with_tag(frame, [])
    assert with_tag(frame, extra(0x10)) == frame[:12] + struct.pack(">HH", 0x8100, 0x2005) + frame[12:]


def test_without_rights(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")
    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(BackendError, match="no raw socket is to be had for eth3 .* run as root"):
        PacketSocket("eth3")


@pytest.fixture
def board(tmp_path, monkeypatch):
    """The options of a board that a thread serves, with a station at the end of its cable."""
    served = ServedCard(CFG, tmp_path / "bar", tmp_path / "memory", 1 << 33, 8 << 20)
    station, to_card, from_card, seen = Host("02:00:00:00:00:77", "10.0.0.77", None), deque(), deque(), []
    run = served.card.run

    def run_with_stream(cycles):
        while to_card:
            served.card.host_send(to_card.popleft())
        run(cycles)
        from_card.extend(served.card.host_frames())
        for sent in served.card.sent_frames():
            seen.append(sent.frame)
            for answer in station.take(sent.frame)[0]:
                served.card.send(answer.ljust(60, b"\0"))
    served.card.run = run_with_stream
    stream = SimpleNamespace(host_send=to_card.append, host_frames=lambda: [from_card.popleft() for _ in range(len(from_card))])
    monkeypatch.setattr("host_driver.backends.pci.PciDevice", WaitingDevice)
    monkeypatch.setattr("host_driver.backends.pci.PacketSocket", lambda name: stream)
    options = dict(bar_file=tmp_path / "bar", memory_file=tmp_path / "memory", iova=1 << 33)
    yield SimpleNamespace(options=options, served=served, seen=seen)
    served.close()
    assert served.error is None


def test_a_board_finds_its_peer_and_is_found(board):
    with open_device("pci", cfg=CFG, host_interface="eth3", **board.options) as ctx:
        end = make_end(ctx, size=4096)
        ctx.neighbours.timeout_ns = 10**9        # a thread serves the card, whenever it gets to it
        end.qp.to_rts(QPAttr(dest_qp_num=1, dest_generation=0, ah_attr=AHAttr(GlobalRoute(GID("10.0.0.77")))))
        assert end.qp.query()[0].ah_attr.mac == MAC
        board.served.card.send(bytes(REQUEST_TO_CARD).ljust(60, b"\0"))
        assert ctx.wait_until(lambda: ctx.neighbours.counts["arp_answers"] == 1, 10**9)
        ctx.sleep_ns(10**6)
        assert checked(board.seen[-1]).psrc == CARD_IP


def test_a_board_without_an_interface(board):
    with open_device("pci", cfg=CFG, **board.options) as ctx:
        assert not ctx.neighbours.available and ctx.neighbours.frames() == []
        with pytest.raises(UsageError, match="give host_interface=\\); or give AHAttr the peer's mac"):
            ctx.neighbours.resolve("10.0.0.77")
        ctx.neighbours.add("10.0.0.77", MAC)
        assert ctx.neighbours.resolve("10.0.0.77") == MAC


def test_an_interface_that_is_not_there(tmp_path):
    (tmp_path / "bar").write_bytes(bytes(4096))
    with pytest.raises(BackendError, match="none0 can't be used|no raw socket"):
        open_pci(bar_file=tmp_path / "bar", memory_file=tmp_path / "bar", iova=0, host_interface="none0")
