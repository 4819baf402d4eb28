"""`optinic bench rx`: what it prints of a result, and a quick run of the real thing."""

import pytest

from optinic.config import preset
from sim.experiments import bench_rx
from sim.experiments.bench_rx import KINDS, BenchError, draw, run, tables


def made_up(late=1000):
    throughput = [{"kind": k.name, "payload": p, "qps": 16, "frames": 100, "beats_per_frame": 3, "busy_percent": 99.5, "gbit_s": 50.25}
                  for k in KINDS for p in (64, 1024)]
    return {
        "config": preset("tiny").as_dict(), "seed": 1, "quick": True, "host_ns": 500, "throughput": throughput,
        "back_to_back": [{"kind": "xp_write", "qps": n, "frames": 512, "beats_per_frame": 3, "lost_cycles": 0} for n in (1, 2)],
        "completion": [{"payload": 64, "packets": 10, "host_cycles": 60, "cycles_min": 100, "cycles_median": 101.0, "cycles_max": 110}],
        "lateness": [{"qps": 1024, "case": "one", "expiries": 8, "late_ns_max": late, "late_ns_mean": 700.0, "bound_ns": 2000.0,
                      "within": late <= 2000}],
        "simulated_cycles_per_second": 123456.0,
    }


def test_tables():
    text = str(tables(made_up()))
    for word in ("99.5 (50.2)", "0 in 512", "110", "1,024", "2,000", "123,456", "XP WRITE", "UC SEND"):
        assert word in text, word
    assert "OUTSIDE" not in text and "OUTSIDE" in str(tables(made_up(late=3000)))


def test_draw(tmp_path):
    draw(made_up(), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.rtl
def test_quick_run():
    """The smallest card keeps what the bench states: deadlines within their bound, no cycle lost, no more than all beats."""
    cfg = preset("tiny", trace=True)
    result = run(cfg, seed=3, quick=True, qp_counts=(cfg.num_qps,))
    assert {r["kind"] for r in result["throughput"]} == {k.name for k in KINDS}
    assert all(0 < r["busy_percent"] <= 100 for r in result["throughput"])
    # Writes and long messages don't depend on how many receive WQEs the cache holds.
    for r in result["throughput"]:
        if r["kind"] in ("xp_write", "uc_write", "xp_send"):
            assert r["busy_percent"] > 99, r
    for r in result["back_to_back"]:
        if r["kind"] in ("xp_write", "uc_write") or r["kind"] == "xp_send_single" and r["qps"] <= 2:
            assert r["lost_cycles"] == 0, r
    assert all(r["within"] for r in result["lateness"]) and len(result["lateness"]) == 3
    assert result["simulated_cycles_per_second"] > 0


@pytest.mark.rtl
def test_a_lost_frame_is_noticed(monkeypatch):
    """Negative control: frames that the card refuses end the measurement."""
    monkeypatch.setattr(bench_rx, "PEER", "10.0.0.3")
    cfg = preset("tiny", trace=True)
    with bench_rx.Bench(cfg, 1, 500) as bench:
        monkeypatch.setattr(bench_rx, "PEER", "10.0.0.4")
        with pytest.raises(BenchError, match="should have been placed"):
            bench.flood(KINDS[0], 64, 1, 10)
