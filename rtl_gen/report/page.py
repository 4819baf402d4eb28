"""The report as one HTML page that needs nothing else: no script, no network, no other file; for light and dark screens."""

from html import escape

from .charts import bars, lines, stacked
from .soft_section import soft_figures
from .tables import tables

__all__ = ["as_page", "charts"]

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #57606a; --grid: #d0d7de; --head: #f6f8fa;
  --c0: #2f6fb3; --c1: #d1642a; --c2: #3a8a56; --c3: #8b5fbf; --c4: #b98a00; --c5: #c2477f; --c6: #5c7a89; --c7: #8a5a3c; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e6eaef; --soft: #a2acb8; --grid: #3a424c; --head: #1e242b;
  --c0: #6ea8e6; --c1: #f0925c; --c2: #6cc28a; --c3: #b795e6; --c4: #dfb63f; --c5: #e884b0; --c6: #9ab4c1; --c7: #c79a7c; } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; margin: 0 auto; max-width: 70rem;
  padding: 1.5rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
.note, figcaption { color: var(--soft); } figcaption strong { color: var(--text); display: block; font-size: 1.05rem; }
figure { margin: 2.5rem 0; } figure svg[role=img] { width: 100%; height: auto; display: block; margin-top: .5rem; }
svg text { fill: var(--text); font: 13px system-ui, "DejaVu Sans", sans-serif; } svg .tick { font-size: 12px; }
svg .axis { fill: var(--soft); } svg .value { font-weight: 600; } .grid { stroke: var(--grid); stroke-width: 1; }
.limit { stroke: var(--text); stroke-width: 1.5; stroke-dasharray: 5 4; }
.line, .ring { fill: none; stroke-width: 2.5; } .d1 { stroke-dasharray: 7 4; } .d2 { stroke-dasharray: 2 4; }
rect { stroke: var(--back); stroke-width: .6; } .h1 { fill-opacity: .45; stroke: var(--text); stroke-width: .8; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: 13px; }
.legend svg { vertical-align: -2px; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { border-bottom: 1px solid var(--grid); padding: .25rem .6rem; text-align: left; overflow-wrap: anywhere; min-width: 2.5rem; } th { background: var(--head); } .r { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
summary { cursor: pointer; color: var(--soft); font-size: 13px; }
""" + "".join(f".s{i} {{ fill: var(--c{i}); }} .l{i} {{ stroke: var(--c{i}); }}\n" for i in range(8))


def charts(data):
    """The figures of a report, in order."""
    designs = data["designs"]
    cards = list({d["card"]: d for d in designs}.values())
    state = [(d["card"], {t["table"]: t["bits_per_qp"] for t in d["state"]["tables"] if t["per"] == "qp"}) for d in cards]
    found = [stacked("bits-per-qp", "State for each queue pair, by table",
                     "Bits on the chip that one queue pair costs, from the design's own list of tables; shared tables are not in it.",
                     "bits for each QP", state)]
    found.append(lines("bram-by-qps", "Block RAM of the tables against queue pairs",
                       "Lines: predicted from widths and depths, dots where it was computed. Rings: what synthesis mapped. Logarithmic in "
                       "queue pairs.", "queue pairs", "RAMB36, or two DP16KD",
                       [(f"{c['transport']} {c['preset']} {c['data_width']} bit, {c['family']}",
                         [(p["num_qps"], p["bram36"]) for p in c["predicted"]], [(p["num_qps"], p["bram36"]) for p in c["mapped"]])
                        for c in data["curves"]]))
    mapped = [d for d in designs if d["mapped"]]
    if mapped:
        for unit, key in (("LUT", "lut"), ("registers", "ff")):
            found.append(stacked(f"area-{key}", f"{unit[0].upper() + unit[1:]} by module",
                                 "First level of the hierarchy. Logic is counted where its result is named or used. Compare within a "
                                 "family only.", unit,
                                 [(d["name"], _top_modules(d["modules"], key)) for d in mapped]))
        most = max(len(d["levels"]["histogram"]) for d in mapped)
        found.append(bars("levels", "Logic levels",
                          "Inputs of registers and memories by the LUTs between them and a register; the limit is "
                          f"{mapped[0]['levels']['limit']}. Logarithmic, as the deep ones are few.",
                          "LUTs between registers", "inputs of registers",
                          [(str(n), [dict(map(tuple, d["levels"]["histogram"])).get(n, 0) for d in mapped]) for n in range(most)],
                          [d["name"] for d in mapped], log_y=True, limit=str(mapped[0]["levels"]["limit"])))
    if data["soft_errors"]:
        found += soft_figures(data["soft_errors"])
    return found


def _top_modules(modules, key):
    found = {}
    for name, counts in modules.items():
        head = name.split(".")[0] or "(top)"
        found[head] = found.get(head, 0) + counts[key]
    return {name: n for name, n in found.items() if n}


def _table(title, note, columns, rows):
    head = "".join(f'<th scope="col"{" class=r" if side == "right" else ""}>{escape(name)}</th>' for name, side in columns)
    body = "".join("<tr>" + "".join(f'<td{" class=r" if side == "right" else ""}>{escape(str(cell))}</td>'
                                    for cell, (_, side) in zip(row, columns)) + "</tr>\n" for row in rows)
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'
    if len(rows) > 24:
        table = f"<details><summary>{len(rows)} rows</summary>{table}</details>"
    return f'<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{table}'


def as_page(data):
    assumed = "".join(f"<li>{escape(sentence)}</li>" for sentence in data["assumptions"])
    tools = ", ".join(f"{name} {version}" for name, version in data["tools"].items())
    summary, *others = tables(data)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>OptiNIC: what each design costs</title><style>{STYLE}</style></head>
<body><h1>What each design costs</h1>
<p class="note">Made by <code>{escape(data["command"])}</code> with {escape(tools)}.</p>
{_table(*summary)}
<h2>What the comparison rests on</h2><ul>{assumed}</ul>
{"".join(charts(data))}
{"".join(_table(*table) for table in others)}
</body></html>
"""
