"""Captures: others can read them, with every nanosecond, in order of time."""

from scapy.utils import PcapReader, RawPcapReader
import pytest

from sim.network import GBIT, NS, US, back_to_back, star
from sim.replay.capture import read_capture
from sim.replay.errors import ReplayError
from .helpers import frame, know_everyone, traffic


def test_scapy_reads_it(tmp_path):
    net = back_to_back(rate=100 * GBIT, delay_ns=500, loss=.5, seed=3)
    sent, arrived, card = (net.capture(tmp_path / name, at, when) for name, at, when in (
        ("sent.pcap", net.ports[0].out, "sent"), ("arrived.pcap", net.links[0], "arrived"), ("card.pcap", 1, "sent")))
    frames = [frame(size=n, psn=n) for n in range(40)]
    for n, data in enumerate(frames):
        net.inject(0, data, 10**12 + n * US)
    got = net.advance(2 * 10**12)
    net.close()
    assert 10 < len(got) < 30 and (sent.frames, arrived.frames, card.frames) == (40, len(got), len(got))
    reader = RawPcapReader(str(tmp_path / "sent.pcap"))
    assert reader.nano
    assert [data for data, _ in reader] == frames
    with PcapReader(str(tmp_path / "arrived.pcap")) as packets:
        read = [(bytes(p), p.time) for p in packets]
    assert [data for data, _ in read] == [d.frame for d in got]
    assert [int(time * 10**9) for _, time in read] == [d.time_ps // NS for d in got]
    assert [(f.data, f.time) for f in read_capture(tmp_path / "card.pcap")] == [(d.frame, d.time_ps // NS) for d in got]


def test_order_of_time_at_a_port(tmp_path):
    net = star(3, rate=100 * GBIT, delay_ns=500)
    know_everyone(net)
    with net:
        captures = [net.capture(tmp_path / f"{i}.pcap", i) for i in range(3)] + [net.capture(tmp_path / "all.pcap", net.links)]
        for time, source, data in traffic(5, 3, 200, 10 * US):
            net.inject(source, data, time)
        delivered = []
        for until in range(0, 100 * US, 700 * NS):
            delivered += net.advance(until, 500 * NS)
    for i in range(3):
        records = read_capture(tmp_path / f"{i}.pcap")
        times = [r.time for r in records]
        assert times == sorted(times)
        assert [r.data for r in records if r.data[5] == i] == [d.frame for d in delivered if d.port == i]
        assert len(records) == net.ports[i].injected + net.ports[i].delivered == captures[i].frames
    times = [r.time for r in read_capture(tmp_path / "all.pcap")]
    assert times == sorted(times) and len(times) == 400


def test_what_is_past_is_in_the_file_without_a_close(tmp_path):
    net = back_to_back(rate=100 * GBIT, delay_ns=500)
    capture = net.capture(tmp_path / "x.pcap", 0)
    net.inject(0, frame(), 0)
    net.advance(10 * US)
    assert capture.frames == 1
    capture.close(), capture.close()
    assert len(read_capture(tmp_path / "x.pcap")) == 1


def test_the_negative_control_of_a_reader(tmp_path):
    """A file cut short is refused, so the checks above do look at the file."""
    net = back_to_back(rate=100 * GBIT, delay_ns=500)
    with net:
        net.capture(tmp_path / "x.pcap", 0)
        net.inject(0, frame(), 0)
        net.advance(10 * US)
    (tmp_path / "x.pcap").write_bytes((tmp_path / "x.pcap").read_bytes()[:-1])
    with pytest.raises(ReplayError, match="truncated"):
        read_capture(tmp_path / "x.pcap")
