"""Soft errors in the report: tables and charts of what `soft_errors.section` found."""

from .charts import stacked

__all__ = ["soft_figures", "soft_tables"]

NOTE = ("FIT: failures in 1e9 hours. Serious: silent corruption and hangs, that nobody is told of in time. The constants, their ranges and "
        "sources are in the JSON and in docs/soft-errors.md; the ratio stands first, as most of them cancel in it.")


def _hours(value):
    return "-" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _ratios(data, what):
    return ", ".join(f"{pair[what]:.2f}" for pair in data["pairs"]) or "-"


def soft_tables(data):
    """[(title, note, columns, rows)] as in tables.py."""
    both = ("failure", "serious")
    rows = [[r["name"], *(f"{r[what]['fit']:,.1f}" for what in both), *(_hours(r[what]["mtbf_nic_hours"]) for what in both),
             *(_hours(r[what]["mtbf_cluster_hours"]) for what in both)] for r in data["rows"]]
    nodes = f"{data['rows'][0]['failure']['nodes']:,}"
    right = lambda *names: [(name, "right") for name in names]
    which = "" if len(data["pairs"]) < 2 else f" (of {', '.join(pair['xp'] for pair in data['pairs'])}, each over its rc)"
    found = [(f"Soft errors: MTBF ratio xp over rc {_ratios(data, 'failure')}, of serious failures {_ratios(data, 'serious')}{which}", NOTE,
              [("design", "left"), *right("FIT", "serious FIT", "hours, one card", "serious", f"hours, {nodes} cards", "serious")], rows)]
    if data["sensitivity"]:
        found.append(("Soft errors: how the ratio moves with each constant",
                      "Of the first pair. Each constant at both ends of its range, the others as they are; the one that moves the ratio most first.",
                      [("constant", "left"), *right("low", "high", "ratio at low", "ratio at high"), ("kind", "left")],
                      [[r["constant"], f"{r['low']:g}", f"{r['high']:g}", f"{r['ratio_low']:.2f}", f"{r['ratio_high']:.2f}", r["kind"]]
                       for r in data["sensitivity"]]))
    constants = next(iter(data["constants"].values()))
    found.append(("Soft errors: the constants", "For the first transport of the report; measured factors differ by transport.",
                  [("constant", "left"), *right("value", "low", "high"), ("kind", "left"), ("source", "left")],
                  [[c["name"], f"{c['value']:g}", f"{c['low']:g}", f"{c['high']:g}", c["kind"], c["source"]] for c in constants]))
    return found


def soft_figures(data):
    """Charts: failures by kind of memory, and the time between failures."""
    published = data["published"]
    # Without measured factors the two are the same, and one bar is enough.
    kinds = ("failure", "serious") if any(r["failure"]["fit"] != r["serious"]["fit"] for r in data["rows"]) else ("failure",)
    hours = [(f"{r['name']}{', serious' if what == 'serious' else ''}", {"hours": r[what]["mtbf_cluster_hours"] or 0})
             for r in data["rows"] for what in kinds]
    return [
        stacked("fit", "Failures by soft errors, by where the bit was", "FIT of one card, after the share of upsets that somebody notices.",
                "failures in 1e9 hours of one card",
                [(r["name"], {kind: term["fit"] for kind, term in r["failure"]["terms"].items()}) for r in data["rows"]]),
        stacked("mtbf", "Mean time between failures of a cluster",
                f"{data['rows'][0]['failure']['nodes']:,} cards; any failure, and serious ones alone. Ratio xp over rc: "
                f"{_ratios(data, 'failure')}; {published['ratio']:.2f} is published for another card with other constants ({published['source']}).", "hours between failures", hours),
    ]
