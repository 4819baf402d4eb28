"""The committed main figures of the presets: what the README shows, and what a change is held against."""

import json
from pathlib import Path

from .store import write_whole

__all__ = ["BASELINE", "GROWTH", "figures_of", "load_baseline", "problems", "update_baseline"]

BASELINE = Path("docs/report/baseline.json")
GROWTH = 0.05           #: share by which a figure may grow without a new baseline
GUARDED = ("lut", "ff", "bram36")


def figures_of(design, soft=None):
    """The main figures of one design of a report, as the baseline holds them; `soft`: the report's account of soft errors."""
    cells, levels = design["cells"], design["levels"]
    found = {
        "preset": design["preset"], "transport": design["transport"], "family": design["family"], "data_width": design["data_width"],
        "num_qps": design["num_qps"], "config_hash": design["config_hash"], "rtlil_sha256": design["rtlil_sha256"],
        "yosys": design["yosys"],
        "lut": cells["lut"], "lut_ram": cells["lut_ram"], "ff": cells["ff"], "bram36": cells["bram36"],
        "bram36_predicted": design["memories"]["predicted"], "dsp": cells["dsp"],
        "table_bram36": design["table_bram36"], "bytes_per_qp": design["state"]["bytes_per_qp"],
        "levels": levels["registers"], "levels_with_ports": levels["ports"],
    }
    if design.get("place"):
        found["fmax_mhz"] = design["place"].get("fmax_mhz")
    for row in (soft or {}).get("rows", ()):
        if row["name"] == design["name"]:
            found["fit"] = {what: round(row[what]["fit"], 2) for what in ("failure", "serious")}
    return found


def load_baseline(path=BASELINE):
    """{design's name: figures}; empty if there is none yet."""
    path = Path(path)
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))["designs"]


def update_baseline(path, data):
    """Put the mapped designs of a report into the baseline. Returns their names."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    designs = load_baseline(path)
    new = {d["name"]: figures_of(d, data["soft_errors"]) for d in data["designs"] if d["mapped"]}
    designs.update(new)
    designs = dict(sorted(designs.items()))
    write_whole(path, json.dumps({"made_by": "make baseline", "designs": designs}, indent=1) + "\n")
    return list(new)


def problems(committed, measured, limit):
    """What a measured design does worse than its committed figures allow, as sentences; none is good."""
    found = []
    for name in GUARDED:
        if measured[name] > committed[name] * (1 + GROWTH):
            found.append(f"{name} grew from {committed[name]:,} to {measured[name]:,}, which is more than {GROWTH:.0%}")
    most = max(limit, committed["levels"])
    if measured["levels"] > most:
        found.append(f"{measured['levels']} levels between registers, and {most} are allowed")
    return found
