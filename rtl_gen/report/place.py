"""Place and route on an ECP5, for a real clock: nextpnr on the mapped card in its shift-register wrapper (scan.py).

The part is an LFE5UM5G-85F, speed grade 8, package CABGA381. Timing-driven, toward the card's own clock; the figure is what the
tool says the slowest path allows, after routing. A placement is one draw, so several seeds are run. Router 2 negotiates for crowded
wires; router 1, the tool's choice for this family, rips up and searches again, and was not seen to the end of a card close
to these.
"""

import hashlib
import json
import shutil
import statistics
import tempfile
from pathlib import Path

from ..yosys import nextpnr_version, run_nextpnr
from .netlist import load_flat
from .scan import PREFIX, wrap

__all__ = ["PART", "PART_HAS", "fits", "place", "place_key", "spread"]

PART = "LFE5UM5G-85F-8BG381"
FLAGS = ("--um5g-85k", "--package", "CABGA381", "--speed", "8", "--timing-allow-fail", "--lpf-allow-unconstrained",
         "--placer-heap-timingweight", "40", "--placer-heap-critexp", "4", "--router", "router2")
#: what the part has, by Lattice's data sheet FPGA-DS-02012
PART_HAS = {"lut": 83_640, "ff": 83_640, "bram18": 208, "dsp": 156}


def fits(cells):
    """Whether counts of a mapped card leave hope of placing it; the tool has the last word."""
    return {name: {"used": int(cells["ramb18"] if name == "bram18" else cells[name]), "available": most}
            for name, most in PART_HAS.items()}


def place_key(result_key, clock_hz, seed):
    flags = hashlib.sha256(" ".join(FLAGS).encode()).hexdigest()[:8]
    return f"{result_key}-{clock_hz // 1000}-{flags}-{nextpnr_version()}-seed{seed}"


def place(netlist, clock_hz, seed, top="top"):
    """Place and route the netlist (path of Yosys' JSON of a card). Returns a dict with "fmax_mhz"; raises ToolError."""
    wrapped, wrapper = wrap(load_flat(netlist, top))
    work = Path(tempfile.mkdtemp(prefix=".place.", dir=Path(netlist).parent))
    try:
        (work / "wrapped.json").write_text(json.dumps({"creator": "optinic", "modules": {top: wrapped}}))
        run_nextpnr([*FLAGS, "--json", "wrapped.json", "--freq", f"{clock_hz / 1e6:g}", "--seed", str(seed),
                     "--report", "report.json"], work, log="nextpnr.log")
        report = json.loads((work / "report.json").read_text())
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {"seed": seed, "wrapper": wrapper, "tool": nextpnr_version(), "part": PART} | _read(report)


def _read(report):
    """What is wanted of nextpnr's report: one clock, use of the part, and the slowest path."""
    (clock,) = report["fmax"].values()
    found = {"fmax_mhz": round(clock["achieved"], 2), "wanted_mhz": round(clock["constraint"], 2),
             "utilization": {name: row for name, row in report["utilization"].items() if row["used"]}}
    outside = lambda path: any(path[end].startswith("<async>") for end in ("from", "to"))
    paths = [path for path in report.get("critical_paths", []) if not outside(path)]
    if paths:
        steps = max(paths, key=lambda p: sum(step["delay"] for step in p["path"]))["path"]
        ends = steps[0]["from"]["cell"], steps[-1]["to"]["cell"]
        found["critical"] = {
            "from": ends[0], "to": ends[1], "ns": round(sum(step["delay"] for step in steps), 2),
            "logic_ns": round(sum(step["delay"] for step in steps if step["type"] != "routing"), 2),
            "routing_ns": round(sum(step["delay"] for step in steps if step["type"] == "routing"), 2),
            "in_wrapper": all(end.startswith(PREFIX) for end in ends)}
    return found


def spread(runs):
    """Least, middle and most of the runs' clocks."""
    clocks = sorted(run["fmax_mhz"] for run in runs)
    return {"min": clocks[0], "median": round(statistics.median(clocks), 2), "max": clocks[-1],
            "seeds": [run["seed"] for run in runs]}
