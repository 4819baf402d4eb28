"""Each optional part switched off, each width, the smallest sizes: it still generates, and traffic still flows."""

import pytest

from optinic.config import preset
from rtl_gen.verilog import TOP, generate_verilog

SWITCHES = ("ipv6", "vlan", "uc", "pass_through")
SMALLEST = {"num_qps": 2, "num_regions": 8, "num_cqs": 2, "num_peers": 2, "num_vectors": 1, "rq_entries": 8,
            "rq_cache_lines": 8, "rq_prefetch_lines": 0, "rx_frames": 8, "reads_outstanding": 2, "writes_outstanding": 8}
CASES = {
    **{f"no {name}": {name: False} for name in SWITCHES},
    "bare": {name: False for name in SWITCHES},
    "trace": {"trace": True},
    "arrival_map": {"arrival_map": True},
    "parity": {"table_protection": "parity"},
    "secded": {"table_protection": "secded"},
    "smallest": SMALLEST,
    "smallest, protected": {**SMALLEST, "table_protection": "secded"},
}


@pytest.mark.parametrize("case", CASES)
def test_generates(case):
    assert f"module {TOP}(" in generate_verilog(preset("tiny", **CASES[case]))


@pytest.mark.sweep
@pytest.mark.rtl
@pytest.mark.parametrize("width", (64, 128, 256, 512, 1024))
@pytest.mark.parametrize("case", ["all", *CASES])
def test_traffic_flows(width, case, seed):
    """Frames without a gap, of every kind that the configuration takes: all are placed, none breaks a rule of the bus."""
    from sim.experiments.bench_rx import KINDS, Bench
    cfg = preset("tiny", data_width=width, rx_buffer_bytes=16384, **CASES.get(case, {}))
    with Bench(cfg, seed, host_ns=200) as bench:
        for kind in KINDS:
            if kind.qp == "xp" or cfg.uc:
                for payload in (0, 1, 65, cfg.mtu_max):
                    bench.flood(kind, payload, min(3, cfg.num_qps), 60)
