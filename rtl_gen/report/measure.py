"""One design measured: what its tables hold, what mapping makes of it, how deep it is. A function of plain data, so that it can run
in another process or on another machine.

Results are kept by what they depend on. `card_key` is a hash of the sources of the hardware, of the configuration and of Amaranth's
version; it leads to the hash of the RTLIL without generating it again. `result_key` is a hash of the RTLIL, of the flow, of
the tool's version, and of the code that counts.
"""

import gc
import hashlib
import json
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

from optinic.config import NicConfig

from ..state import state_of
from ..yosys import yosys_version
from .flow import hardware_of, map_rtlil, rtlil_of, script_of
from .inventory import inventory_of
from .memories import check, memories_of, predict_tables
from .synth import MAX_LEVELS

__all__ = ["card_key", "measure", "predicted", "result_key", "rtlil_sha256"]

ROOT = Path(__file__).resolve().parents[2]
COUNTING = ("cells", "netlist", "naming", "memories", "ram_shapes", "inventory", "measure")


def _hash(*parts):
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _sources(folder, *names):
    files = [Path(folder, f"{n}.py") for n in names] or sorted(Path(folder).rglob("*.py"))
    return _hash(*(part for f in files for part in (str(f.relative_to(folder)), f.read_text(encoding="utf-8"))))


def card_key(cfg):
    return _hash(_sources(str(ROOT / "optinic")), version("amaranth"), json.dumps(cfg.as_dict(), sort_keys=True))[:24]


def result_key(sha256, family):
    return _hash(sha256, script_of(family), yosys_version(), _sources(str(ROOT / "rtl_gen/report"), *COUNTING))[:24]


def rtlil_sha256(text):
    """Of the hardware alone: moved lines in the sources are no difference."""
    return hashlib.sha256(hardware_of(text).encode()).hexdigest()


def generate(cfg):
    from optinic.nic import Nic
    return rtlil_of(Nic(cfg))


def predicted(cfg, family):
    """What is known of a design without generating it: its state, and the block RAM that its tables should take."""
    state = state_of(cfg)
    tables = predict_tables(state["tables"], family)
    return {
        "state": {
            "bits_per_qp": state["bits_per_qp"], "bytes_per_qp": state["bits_per_qp"] / 8,
            "bits_per_qp_by_kind": state["bits_per_qp_by_kind"], "shared_bits": state["shared_bits"],
            "total_bits": state["total_bits"], "tables": tables,
        },
        "table_bram36": sum(row["bram36"] for row in tables),
        "table_bram36_of_qps": sum(row["bram36"] for row in tables if row["per"] == "qp"),
        "table_bram36_mixed": sum(row["bram36_mixed"] for row in tables),
        "with_uram": _with_uram(state["tables"], family),
    }


def _with_uram(tables, family):
    if family != "xcup":
        return None
    rows = predict_tables(tables, family, uram=True)
    return {"bram36": sum(r["bram36"] for r in rows), "uram": sum(r["blocks"] for r in rows if r["ram"] == "uram")}


def measure(config, family, build):
    """Generate, map and analyse a card. `config` is a dict of all knobs, `build` the folder where mapped netlists are kept.

    Returns {"rtlil_sha256", "key", "result"}; raises ToolError if Yosys fails.
    """
    with _no_collection():
        cfg = NicConfig(**config)
        text = generate(cfg)
        sha256 = rtlil_sha256(text)
        mapped = map_rtlil(text, family=family, build=build)
        return {"rtlil_sha256": sha256, "key": result_key(sha256, family), "result": analyse(cfg, family, text, mapped, sha256)}


@contextmanager
def _no_collection():
    """A card is millions of objects, nearly all alive to its end: looking for rubbish among them takes as long as making them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def analyse(cfg, family, text, mapped, sha256):
    netlist = mapped.netlist()
    found = netlist.report(paths=10)
    known = predicted(cfg, family)
    tables = known["state"]["tables"]
    memories = check(memories_of(text), tables, netlist.cells, family)
    return known | {
        "rtlil_sha256": sha256,
        "flow": script_of(family).strip().replace("\n", "; "), "yosys": yosys_version(),
        "netlist": mapped.folder.name, "map_seconds": mapped.took,
        "cells": found["cells"], "modules": found["modules"], "unknown_cells": found["unknown_cells"], "loops": found["loops"],
        "levels": {"limit": MAX_LEVELS, "registers": found["levels"], "ports": found["levels_with_ports"],
                   "histogram": found["histogram"], "paths": found["paths"], "port_paths": found["port_paths"]},
        "memories": memories,
        "inventory": inventory_of(family, cfg.transport, found["cells"], state_of(cfg), memories["memories"]),
    }
