"""`optinic bench latency`: a quick run, and that its parts fit together."""

import pytest

from optinic.config import preset
from sim.experiments.bench_latency import CABLE_NS, SIZES, Pair, run, tables
from sim.experiments.bench_rx import BenchError

TINY = preset("tiny")
pytestmark = pytest.mark.rtl


def test_quick_run():
    result = run(TINY, seed=3, quick=True, host_ns=400)
    first = {(r["size"], r["inline"]): r["cycles_median"] for r in result["first_beat"]}
    done = {r["payload"]: r["cycles_median"] for r in result["completion"]}
    ways = {(r["size"], r["inline"]): r for r in result["one_way"]}
    assert set(ways) == {(8, True)} | {(size, False) for size in SIZES}
    for key in ((8, True), (8, False), (64, False)):
        way = ways[key]
        # the parts and the cable are shorter than the whole; the CQE's write is what comes to it
        parts = first[key] + done[key[0]] + CABLE_NS / TINY.clock_ns
        assert parts < way["cycles_median"] < parts + way["host_cycles"] + 60, way
        assert way["cycles_min"] <= way["cycles_median"] <= way["cycles_max"]
        assert way["arrival_cycles_median"] < way["cycles_median"] - done[key[0]] + 1
    assert ways[8, False]["cycles_median"] - ways[8, True]["cycles_median"] >= ways[8, True]["host_cycles"]
    assert ways[8, False]["ns_without_host"] == pytest.approx(ways[8, False]["ns_median"] - 4 * 400)
    text = str(tables(result))
    for word in ("8 bytes inline", "4,096 bytes", "One way", "each host access 400 ns", "Generated Verilog"):
        assert word in text, word


def test_a_message_that_does_not_arrive_is_noticed(monkeypatch):
    """Negative control."""
    with Pair(TINY, 1, 400) as pair:
        assert pair.one_way(64, False)[1] > pair.one_way(64, False)[0] > 0
        pair.network.links[0].impair(loss=1)
        with pytest.raises(BenchError, match="one message of 64 bytes made 0 CQEs"):
            pair.one_way(64, False)
