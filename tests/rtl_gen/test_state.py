"""The state report adds up what the tables say."""

import pytest

from optinic.config import PRESETS, preset
from optinic.memory.table import TableSpec
from rtl_gen.state import state_of

SENDS = ("send scheduler", "active queue", "send completions", "congestion.dcqcn", "congestion.slots", "congestion.pacer",
         "congestion.wheel", "congestion.notify")


def test_sums():
    cfg = preset("tiny")
    tables = [
        TableSpec("context", "lookup", 80, 16, "qp", "context"),
        TableSpec("hot", "admission", 64, 16, "qp", "hot", reads=2),
        TableSpec("deadline", "scanner", 4 * 32, 4, "qp", "message", rows_per=4),
        TableSpec("region", "regions", 200, 32, "region", "address"),
    ]
    state = state_of(cfg, tables)
    assert state["bits_per_qp"] == 80 + 128 + 32
    assert state["bits_per_qp_without_copies"] == 80 + 64 + 32
    assert state["bits_per_qp_by_kind"] == {"context": 80, "hot": 128, "message": 32}
    assert state["shared_bits"] == 6400
    assert state["total_bits"] == 80 * 16 + 128 * 16 + 128 * 4 + 6400
    assert state["item_bits"] == state["total_bits"] and state["secded_share"] == 0
    region = next(row for row in state["tables"] if row["table"] == "region")
    assert region["bits_per_qp"] == 6400 / 16
    assert [row["per"] for row in state["tables"]] == ["qp"] * 3 + ["region"]


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    """Each table of the design is there once, and no preset spends more on a QP than it did: 64 bytes to receive, 96 in all (the
    goal is 64 in all, see README)."""
    state = state_of(preset(name))
    names = [row["table"] for row in state["tables"]]
    assert names and len(names) == len(set(names))
    sends = sum(row["bits_per_qp"] for row in state["tables"] if row["per"] == "qp" and row["owner"] in SENDS)
    assert 0 < state["bits_per_qp"] - sends <= 64 * 8 and state["bits_per_qp"] <= 96 * 8


def test_check_bits_are_counted():
    """SECDED of 57 bits takes 7; the packet buffer and cached lines are no tables."""
    bare, safe = (state_of(preset("tiny", table_protection=p)) for p in ("none", "secded"))
    row = lambda state, name: next(r for r in state["tables"] if r["table"] == name)
    assert row(safe, "qp_context")["bits"] == 16 * (57 + 7) and row(bare, "qp_context")["bits"] == 16 * 57
    assert safe["bits_per_qp"] > bare["bits_per_qp"] and bare["secded_share"] == 0 < safe["secded_share"] < 1
    assert bare["total_bits"] - bare["item_bits"] == sum(r["bits"] for r in bare["tables"] if r["per"] in ("beat", "frame", "line"))


@pytest.mark.parametrize("transport", ["xp", "rc"])
def test_congestion_takes_rows_from_a_pool(transport):
    """Not a row for each queue pair where there are more of them; rows of the pool, and the list of free ones, count by what they come to
    for each."""
    big, own = (state_of(preset("scale10k", transport=transport, congested_qps=n)) for n in (1024, 16384))
    rows = lambda state: {r["table"]: (r["width"], r["depth"], r["per"]) for r in state["tables"] if "dcqcn" in r["table"]}
    assert rows(big) == {"dcqcn": (72, 1024, "qp"), "dcqcn_slot": (10, 10240, "qp"), "dcqcn_free": (10, 1024, "qp")}
    assert rows(own) == {"dcqcn": (72, 10240, "qp")}
    assert own["bits_per_qp"] - big["bits_per_qp"] == pytest.approx(72 - 10 - (72 + 10) / 10) and big["shared_bits"] == own["shared_bits"]
    assert rows(state_of(preset("c100g", transport=transport))) == {"dcqcn": (72, 1024, "qp")}
