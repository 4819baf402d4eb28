"""`optinic bench pair`, and the two senders behind one port, on the model; what of it needs the Verilog is in the benches' quick runs."""

import pytest

from optinic.config import preset
from sim.experiments import bench_pair
from sim.experiments.bench_pair import exchange, run, tables
from sim.experiments.dcqcn import jain, plot, share

TINY = preset("tiny")


def test_jain():
    assert jain([5, 5]) == jain([1, 1, 1]) == 1 and jain([7, 0]) == 0.5 and jain([0, 0]) == 0
    assert jain([3, 1]) == pytest.approx(0.8)


def test_without_loss():
    row = exchange("model", TINY, 0.0, messages=16, size=4096)
    assert (row["complete"], row["partial"], row["frames_lost"], row["frames_refused"]) == (32, 0, 0, {})
    assert row["frames"] == 2 * 16 * 4
    for goodput in row["goodput_gbit_s"]:       # most of what a cable of 8 Gbit/s carries with these headers
        assert 5 < goodput < 8 * 1024 / (1024 + 98)
    assert 4096 * 8 / 8 < row["ns_p50"] <= row["ns_p99"] <= row["ns_max"] < row["timeout_ns"]


def test_losses_end_in_time():
    """All ends, whatever is lost, and no later than the deadline allows for the messages before it."""
    heard = []
    row = exchange("model", TINY, 0.05, messages=64, size=4096, progress=lambda done, total: heard.append((done, total)))
    assert row["complete"] + row["partial"] == 128 and row["partial"] > 5 and row["frames_lost"] > 10
    assert row["ns_max"] < 2 * row["timeout_ns"] and heard[-1] == (128, 128)


def test_two_senders_share(tmp_path):
    row = share("model", TINY, time_ns=5_000_000)
    assert row["jain"] > 0.9 and row["used_percent"] > 60 and row["cnps"] > 5 and row["dropped"] == 0
    assert row["queue_us"]["max"] < 100 and row["parameters"]["line_rate"] == 8000
    first = [rates[2] for rates in row["course_gbit_s"]]
    assert first[0] > 7 and first[1] == 0       # the second one begins later
    plot(row, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"


def test_two_senders_without_marks():
    """Negative control: nobody is told, the queue is full all the time, and frames are lost."""
    row = share("model", TINY, ecn=False, time_ns=2_000_000)
    assert row["cnps"] == 0 and row["dropped"] > 100 and row["queue_us"]["p50"] > 300


def test_tables(monkeypatch):
    monkeypatch.setattr(bench_pair, "QUICK_MESSAGE", 2048)
    monkeypatch.setattr(bench_pair, "share", lambda simulator, cfg, **how: share(simulator, cfg, time_ns=300_000, ecn=how["ecn"]))
    stages = []
    result = run([TINY], backend="model", quick=True, losses=(0.0, 0.01), progress=stages.append)
    assert [r["transport"] for r in result["loss"]] == ["xp", "xp"] and len(result["dcqcn"]) == 2 and len(stages) == 4
    text = str(tables(result))
    for word in ("Model: two cards of 64 bits", "2,048 bytes", "1 %", "Jain", "model, 64 bits", "of 128"):
        assert word in text, word
    result = run([TINY.with_(congestion="none")], backend="model", quick=True, losses=(0.0,))
    assert result["dcqcn"] == [] and len(tables(result)) == 1


@pytest.mark.rtl
def test_on_the_verilog():
    """The same program; what the model does at once takes the card some time."""
    row = exchange("rtl", TINY, 0.02, messages=16, size=4096)
    assert row["complete"] + row["partial"] == 32 and row["frames_lost"] > 0 and row["partial"] > 0
    row = share("rtl", TINY, time_ns=600_000)
    assert row["cnps"] > 0 and row["dropped"] == 0 and row["simulated"] == "generated Verilog"
