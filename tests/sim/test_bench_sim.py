"""`optinic bench sim`: one quick run."""

import pytest

from optinic.config import preset
from sim.experiments import bench_sim
from sim.experiments.bench_sim import run, tables


@pytest.mark.rtl
def test_quick_run(monkeypatch):
    monkeypatch.setattr(bench_sim, "COUNTS", (2,))
    result = run(preset("tiny"), quick=True)
    assert [(r["where"], r["cards"]) for r in result["rows"]] == [("alone", 1), ("in a world", 2)]
    assert all(r["rest_cycles_per_s"] > 0 and r["work_cycles_per_s"] > 0 for r in result["rows"])
    assert "2 in a world" in str(tables(result))
