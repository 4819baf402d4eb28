"""A measurement that takes no synthesis, for tests of all that is around it: figures of the right form, not of a card."""

import os
import time
from pathlib import Path

from optinic.config import NicConfig
from rtl_gen.report.cells import count_cells
from rtl_gen.report.inventory import inventory_of
from rtl_gen.report.measure import predicted, result_key
from rtl_gen.state import state_of

TYPES = ["LUT6"] * 900 + ["LUT2"] * 100 + ["RAM64M8"] * 10 + ["FDRE"] * 700 + ["RAMB36E2"] * 20 + ["RAMB18E2"] * 3 + ["DSP48E2"] * 2


def fake_measure(config, family, build):
    """Notes in `build`/log who measured what, and waits as long as `build`/wait says."""
    build = Path(build)
    build.mkdir(parents=True, exist_ok=True)
    cfg = NicConfig(**config)
    with open(build / "log", "a") as log:
        log.write(f"{os.getpid()} {cfg.transport} {cfg.num_qps} {family}\n")
    if (build / "wait").exists():
        time.sleep(float((build / "wait").read_text()))
    if (build / "fail").exists() and (build / "fail").read_text() == cfg.transport:
        raise RuntimeError("the tool said no")
    sha256 = f"{cfg.hash:064x}"
    return {"rtlil_sha256": sha256, "key": result_key(sha256, family), "result": fake_result(cfg, family, sha256)}


def fake_result(cfg, family, sha256="0" * 64):
    known = predicted(cfg, family)
    cells = count_cells(TYPES * (1 + cfg.rc))
    path = {"levels": 8, "start": "a", "start_src": "x.py:1", "end": "b", "end_src": "x.py:2", "cells": ["LUT6"] * 8, "via": []}
    tables = [{"table": t["table"], "memories": [f"{t['table']}.ram"], "predicted": t["bram36"], "mapped": t["bram36"]}
              for t in known["state"]["tables"]]
    half = count_cells(TYPES[::2] * (1 + cfg.rc))
    return known | {
        "rtlil_sha256": sha256, "flow": "none", "yosys": "0", "netlist": "none", "map_seconds": 1.5, "cells": cells,
        "modules": {"": half, "transmit": half, "transmit.queue": count_cells(["LUT6"])}, "unknown_cells": {}, "loops": [],
        "levels": {"limit": 8, "registers": 8, "ports": 9, "histogram": [[n, 4000 >> n] for n in range(9)], "paths": [path],
                   "port_paths": [path]},
        "memories": {"tables": tables, "memories": [], "unplaced_tables": [], "predicted": 21.5, "mapped": 21.5, "mixed": 20.0, "off": 0.0},
        "inventory": inventory_of(family, cfg.transport, cells, state_of(cfg), []),
    }


class Inline:
    """A pool that works at once, in this process."""
    at_once = 1

    def submit(self, function, *args):
        from concurrent.futures import Future
        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def next_done(self, futures):
        return next(iter(futures))
