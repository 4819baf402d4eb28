"""Best effort beside reliable: ratios of two designs that differ in the transport only, and how they move with what was assumed."""

from dataclasses import replace

from optinic.config import ConfigError

from .measure import predicted

__all__ = ["assumptions", "pairs", "sensitivity"]

#: what is compared: (name, how to read it off a result)
FIGURES = (
    ("state, bytes for each QP", lambda r: r["state"]["bytes_per_qp"]),
    ("block RAM of tables, RAMB36", lambda r: r["table_bram36"]),
    ("block RAM of tables for QPs, RAMB36", lambda r: r["table_bram36_of_qps"]),
    ("block RAM mapped, RAMB36", lambda r: r["cells"]["bram36"] if "cells" in r else None),
    ("LUT", lambda r: r["cells"]["lut"] if "cells" in r else None),
    ("FF", lambda r: r["cells"]["ff"] if "cells" in r else None),
    ("levels between registers", lambda r: r["levels"]["registers"] if "levels" in r else None),
)
OUTSTANDING = (4, 8, 16, 32, 64)
RESOURCES = (1, 4, 8, 16, 32, 64)
QPS = (256, 1024, 4096, 10240, 16384)


def pairs(results):
    """One row for each xp design that has an rc counterpart: {"xp", "rc": names, "figures": [{"name", "xp", "rc", "ratio"}]}."""
    found = []
    for xp, a in results.items():
        for rc, b in results.items():
            if (xp.cfg.transport, rc.cfg.transport) != ("xp", "rc") or (xp.preset, xp.family) != (rc.preset, rc.family) \
                    or replace(xp.cfg, transport="rc") != rc.cfg:
                continue
            figures = []
            for name, read in FIGURES:
                ours, theirs = read(a), read(b)
                if ours is not None and theirs is not None:
                    figures.append({"name": name, "xp": ours, "rc": theirs, "ratio": theirs / ours if ours else None})
            found.append({"xp": xp.name, "rc": rc.name, "figures": figures})
    return found


def sensitivity(design):
    """How the ratio moves with the reliable card's depths and with the number of QPs, from the state tables alone.

    `design` gives everything that is not varied. A combination that the configuration refuses is left out.
    """
    rows = []

    def add(knob, value, **knobs):
        try:
            ours, theirs = (replace(design.cfg, **{"transport": t, **knobs}) for t in ("xp", "rc"))
        except ConfigError:
            return
        a, b = predicted(ours, design.family), predicted(theirs, design.family)
        rows.append({
            "knob": knob, "value": value, "as_built": all(getattr(design.cfg, k) == v for k, v in knobs.items()),
            "xp_bytes_per_qp": a["state"]["bytes_per_qp"], "rc_bytes_per_qp": b["state"]["bytes_per_qp"],
            "state_ratio": b["state"]["bits_per_qp"] / a["state"]["bits_per_qp"],
            "xp_bram36": a["table_bram36"], "rc_bram36": b["table_bram36"], "bram_ratio": b["table_bram36"] / a["table_bram36"]})

    for n in OUTSTANDING:
        add("rc_outstanding", n, rc_outstanding=n)
    for n in RESOURCES:
        add("rc_resources", n, rc_resources=n)
    for on in (True, False):
        add("rc_atomics", "on" if on else "off", rc_atomics=on)
    for code in ("none", "parity", "secded"):
        add("table_protection", code, table_protection=code)
    add("rc_outstanding, rc_resources, rc_atomics", "4, 1, off", rc_outstanding=4, rc_resources=1, rc_atomics=False)
    for n in QPS:
        add("num_qps", n, num_qps=n)
    return rows


def assumptions(design):
    """What the comparison rests on, in sentences."""
    cfg = design.cfg
    return [
        "Both cards come from one generator and share all but the transport: parser, ICRC, regions, DMA, queues, registers, "
        f"congestion control ({cfg.congestion}).",
        f"The reliable card keeps {cfg.rc_outstanding} unacknowledged requests and {cfg.rc_resources} READ and atomic requests for each "
        "QP (rc_outstanding, rc_resources), results of atomics for replay "
        f"{'included' if cfg.rc_atomics else 'not included (rc_atomics=off)'}. It keeps no copy of payload: what is sent again is read from host memory again.",
        "Its depths decide the ratio more than anything else, hence the table of sensitivity: it is to be read before the ratio.",
        "State is what the design's own tables hold, unused bits of block RAM left out; block RAM counts whole blocks, a RAMB18 as a half.",
        "LUT, FF and levels are of open synthesis (Yosys), without place and route for the AMD parts: good for comparing two designs "
        "that went through the same flow, and no promise of what a vendor's tool makes of either.",
        "Selective repeat is not built; the reliable card goes back to the first lost packet.",
    ]
