"""What was aimed at, what was found, and, of each figure, what it is mostly made of: which table is to blame."""

__all__ = ["goals"]

#: bytes of state for each QP, and ratio of block RAM, as the project has set them; that of the times between failures is what is published
STATE, BRAM = 64, 2.7
MOST = 3


def goals(designs, comparison, soft):
    """Rows {"design", "goal", "wanted", "found", "met", "because"} for each pair of an xp and an rc design that was compared; `designs`,
    `comparison` and `soft` as in the report. What was not measured has no row."""
    by_name = {d["name"]: d for d in designs}
    rows = []
    for pair in comparison:
        xp, rc = by_name[pair["xp"]], by_name[pair["rc"]]
        figures = {f["name"]: f for f in pair["figures"]}
        name = xp["name"].removeprefix("xp-")

        def row(goal, wanted, found, met, because):
            rows.append({"design": name, "goal": goal, "wanted": wanted, "found": round(found, 2), "met": met, "because": because})

        state = xp["state"]["bytes_per_qp"]
        row("state of an xp QP, bytes", f"at most {STATE}", state, state <= STATE,
            _largest(((t["table"], t["bits_per_qp"]) for t in xp["state"]["tables"] if t["per"] == "qp"), "bits"))
        ram = figures.get("block RAM mapped, RAMB36") or figures["block RAM of tables, RAMB36"]
        row(f"{ram['name'].removesuffix(', RAMB36')}, rc over xp", f"at least {BRAM}", ram["ratio"], ram["ratio"] >= BRAM,
            f"of xp {_largest(_memories(xp), 'RAMB36')}; of rc {_largest(_memories(rc), 'RAMB36')}")
        for found in (soft or {}).get("pairs", ()):
            if (found["xp"], found["rc"]) == (pair["xp"], pair["rc"]):
                terms = {r["name"]: r["failure"]["terms"] for r in soft["rows"]}
                parts = [f"of {which} {_largest(((k, t['fit']) for k, t in terms[found[which]].items()), 'FIT')}" for which in ("xp", "rc")]
                wanted = soft["published"]["ratio"]
                row("time between failures, xp over rc", f"at least {wanted:.2f}", found["failure"], found["failure"] >= wanted, "; ".join(parts))
        if xp["mapped"]:
            limit, deep = xp["levels"]["limit"], xp["levels"]["registers"]
            path = xp["levels"]["paths"][0] if xp["levels"]["paths"] else None
            row("logic levels of xp", f"at most {limit}", deep, deep <= limit, f"{path['start']} to {path['end']}" if path else "")
    return rows


def _memories(design):
    """(name, blocks) of the memories of a mapped design, else of its tables, as predicted."""
    if design["mapped"]:
        return [(m["table"] or m["path"], m["mapped"]) for m in design["memories"]["memories"]]
    return [(t["table"], t["bram36"]) for t in design["state"]["tables"]]


def _largest(items, unit):
    items = sorted(items, key=lambda item: -item[1])
    total = sum(n for _, n in items)
    return ", ".join(f"{name} {n:,.1f}".removesuffix(".0") for name, n in items[:MOST] if n) + f" of {total:,.1f} {unit}".replace(".0 ", " ")
