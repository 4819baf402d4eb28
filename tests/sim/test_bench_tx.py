"""`optinic bench tx`: what it prints of a result, and a quick run of the real thing."""

import pytest

from optinic.config import preset
from sim.experiments import bench_tx
from sim.experiments.bench_rx import BenchError
from sim.experiments.bench_tx import RATES, STREAMS, SendBench, run, tables

TINY = preset("tiny")


def made_up():
    return {
        "config": TINY.as_dict(), "seed": 1, "quick": True, "host_ns": 1000, "simulated": "generated Verilog",
        "throughput": [{"kind": op, "single": single, "mtu": mtu, "qps": qps, "busy_percent": 98.25, "gbit_s": 7.5}
                       for op, single in STREAMS for mtu in (1024, 256) for qps in (1, 16)],
        "messages": [{"case": case.name, "qps": qps, "cycles_per_message": 7.75, "million_per_s": 32.25}
                     for case in RATES for qps in (1, 16)],
        "first_beat": [{"size": 8, "inline": inline, "host_cycles": 125, "cycles_min": 100, "cycles_median": 101.0,
                        "cycles_max": 103} for inline in (True, False)],
        "simulated_cycles_per_second": 123456.0,
    }


def test_tables():
    text = str(tables(made_up()))
    for word in ("WRITE, one packet a message", "98.2 (7.5)", "7.75 (32.2)", "8 bytes inline", "MTU 1024", "1 QP", "16 QPs",
                 "123,456", "Generated Verilog", "after 125"):
        assert word in text, word


@pytest.mark.rtl
def test_quick_run():
    """The smallest card sends without a pause, and a message is ready when the one before it has left."""
    result = run(TINY, seed=3, quick=True)
    assert len(result["throughput"]) == len(STREAMS) * 2 * 2 and len(result["messages"]) == len(RATES) * 2
    for r in result["throughput"]:
        assert r["busy_percent"] <= 100.001
        if not r["single"]:
            assert r["busy_percent"] > 99, r
    for r in result["messages"]:
        assert r["beats_per_frame"] <= r["cycles_per_message"] < r["beats_per_frame"] + 8, r
    inline, small, *_ = result["first_beat"]
    assert inline["host_cycles"] == 125 and inline["cycles_max"] < 125 + 100
    # one access to the host's memory more
    assert 120 < small["cycles_median"] - inline["cycles_median"] < 140


@pytest.mark.rtl
def test_a_send_that_fails_is_noticed(monkeypatch):
    """Negative control: with a key that nobody has no frame leaves, and that is not taken for a fast card."""
    with SendBench(TINY, 1, 500) as bench:
        monkeypatch.setattr(bench_tx, "KEY", 0x4321)
        monkeypatch.setattr(bench, "timed", lambda *_: bench.dev.run(5000))
        with pytest.raises(BenchError, match="0 frames instead of 1"):
            bench.first_beat(64, False, 1)


@pytest.mark.rtl
def test_a_slow_cable_is_noticed():
    """Negative control: where the cable takes only two beats in three, they are not all busy."""
    with SendBench(TINY, 1, 500) as bench:
        bench.dev.set(mac_pause=1 / 3)
        assert 60 < bench.stream("send", 1024, 1, False, True)["busy_percent"] < 70
