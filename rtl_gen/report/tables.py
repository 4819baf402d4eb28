"""The tables of a report, once, for the terminal, Markdown, CSV and the page: [(title, note, [(head, justify)], rows)]."""

import csv
import io

from .soft_section import soft_tables

__all__ = ["as_csv", "as_markdown", "tables"]


def _n(value, digits=0):
    """A number for people; None is a dash."""
    if value is None:
        return "-"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.{max(digits, 1)}f}"
    return f"{value:,.0f}"


def tables(data):
    mapped = [d for d in data["designs"] if d["mapped"]]
    found = [_summary(data["designs"])]
    if data["goals"]:
        found.append(_goals(data["goals"]))
    if mapped:
        found += [_modules(mapped), _levels(mapped), _paths(mapped), _prediction(mapped)]
    placed = [d for d in mapped if d.get("place")]
    if placed:
        found.append(_places(placed))
    if data["comparison"]:
        found.append(_comparison(data["comparison"]))
    found.append(_sensitivity(data["sensitivity"]))
    if data["soft_errors"]:
        found += soft_tables(data["soft_errors"])
    found += [_state(data["designs"]), _peers(data)]
    return found


def _right(*names):
    return [(name, "right") for name in names]


def _summary(designs):
    rows = []
    for d in designs:
        c = d.get("cells", {})
        place = d.get("place") or {}
        rows.append([d["name"], _n(d["state"]["bytes_per_qp"], 1), _n(c.get("lut")), _n(c.get("ff")), _n(c.get("lut_ram")),
                     _n(c.get("bram36")), _n(d["table_bram36"]), _n(c.get("dsp")), _n(d["levels"]["registers"]) if c else "-",
                     _n(d["levels"]["ports"]) if c else "-", _n(place.get("fmax_mhz", {}).get("median"), 1)])
    return ("What each design costs",
            "Block RAM in RAMB36, a RAMB18 or DP16KD as a half; LUT includes LUTRAM. Of tables: predicted from their widths and depths. "
            "Levels: LUTs between registers, and with ports. LUT and levels compare within a family only.",
            [("design", "left"), *_right("bytes/QP", "LUT", "FF", "LUTRAM", "BRAM", "of tables", "DSP", "levels", "with ports",
                                         "MHz placed")],
            rows)


def _goals(goals):
    rows = [[g["design"], g["goal"], g["wanted"], _n(g["found"], 2 if isinstance(g["found"], float) else 0), "yes" if g["met"] else "NO", g["because"]] for g in goals]
    return ("What was aimed at",
            "Largest first: what the figure is mostly made of, and so what to blame where it is missed. The goal for the time between failures is what is "
            "published of another card, with other constants; the levels' path is the first of the deepest.",
            [("design", "left"), ("goal", "left"), ("wanted", "left"), ("found", "right"), ("met", "left"), ("mostly", "left")], rows)


def _modules(designs):
    rows = []
    for d in designs:
        total = d["cells"]
        for name, c in sorted(d["modules"].items(), key=lambda item: -item[1]["lut"]):
            if c["lut"] * 200 >= total["lut"] or c["bram36"]:
                rows.append([d["name"], name or "(top)", _n(c["lut"]), _n(c["ff"]), _n(c["lut_ram"]), _n(c["bram36"]), _n(c["dsp"])])
        rows.append([d["name"], "all", _n(total["lut"]), _n(total["ff"]), _n(total["lut_ram"]), _n(total["bram36"]), _n(total["dsp"])])
    return ("By module",
            "Two levels of the hierarchy; registers and memories belong to where they are declared, logic to where its result is named or "
            "used. Modules with less than half a percent of the LUTs and no block RAM are left out, but counted in 'all'.",
            [("design", "left"), ("module", "left"), *_right("LUT", "FF", "LUTRAM", "BRAM", "DSP")], rows)


def _levels(designs):
    most = max(len(d["levels"]["histogram"]) for d in designs)
    rows = [[d["name"], *(_n(dict(d["levels"]["histogram"]).get(n)) for n in range(most))] for d in designs]
    return ("Inputs of registers by logic levels",
            "How many inputs of registers and memories lie so many LUTs behind a register. 0: no LUT between them.",
            [("design", "left"), *_right(*map(str, range(most)))], rows)


def _paths(designs):
    rows = [[d["name"], str(p["levels"]), p["start"], p["end"]] for d in designs for p in d["levels"]["paths"]]
    return ("The ten longest paths of each design", "One for each pair of start and end register.",
            [("design", "left"), ("levels", "right"), ("from", "left"), ("to", "left")], rows)


def _prediction(designs):
    rows = []
    for d in designs:
        m = d["memories"]
        tables_mapped = sum(t["mapped"] for t in m["tables"])
        rows.append([d["name"], _n(d["table_bram36"]), _n(tables_mapped), _n(m["predicted"]), _n(m["mapped"]), f"{m['off']:+.1%}",
                     ", ".join(r["path"] for r in m["memories"] if r["gone"] and r["predicted"]) or "-", _n(m["mixed"]),
                     *(_n(d["with_uram"] and d["with_uram"][key]) for key in ("bram36", "uram"))])
    return ("Block RAM, predicted and mapped",
            "Tables: from the design's list of tables. Memories: every memory of the design, buffers and queues too. Mixed shapes: what "
            "tiling a memory with more than one shape would give. UltraRAM: the tables, if those that fill one by half go there. Gone: memories that got no RAM, as the card doesn't read them.",
            [("design", "left"), *_right("tables", "mapped", "memories", "mapped", "off by"), ("gone", "left"),
             *_right("mixed shapes", "tables with URAM", "URAM")], rows)


def _places(designs):
    rows = []
    for d in designs:
        p = d["place"]
        lut, ram = p["room"]["lut"], p["room"]["bram18"]
        use = f"{lut['used'] / lut['available']:.0%} LUT, {ram['used'] / ram['available']:.0%} RAM"
        if not p["runs"]:
            rows.append([d["name"], "yes" if p["fits"] else "no", use, "-", "-", "-", "-", "-", "-"])
            continue
        f, wrapper = p["fmax_mhz"], p["runs"][0]["wrapper"]
        worst = min(p["runs"], key=lambda r: r["fmax_mhz"]).get("critical", {})
        rows.append([d["name"], "yes", use, _n(f["min"], 1), _n(f["median"], 1), _n(f["max"], 1), str(len(f["seeds"])),
                     f"{wrapper['lut']:,} LUT, {wrapper['ff']:,} FF", f"{worst.get('from', '-')} to {worst.get('to', '-')}"])
    return ("Placed and routed on an LFE5UM5G-85F",
            "In a wrapper of shift registers, as the card has more ports than the package has pins; what the wrapper costs is apart, and "
            "not in the other tables. MHz: the tool's figure after routing, over the seeds.",
            [("design", "left"), ("fits", "left"), ("use", "left"), *_right("MHz min", "median", "max", "seeds", "wrapper"),
             ("slowest path", "left")], rows)


def _comparison(pairs):
    rows = [[pair["xp"].removeprefix("xp-"), f["name"], _n(f["xp"], 1), _n(f["rc"], 1), f"{f['ratio']:.2f}" if f["ratio"] else "-"]
            for pair in pairs for f in pair["figures"]]
    return ("Reliable over best effort",
            "Designs that differ in the transport only. The ratio stands on the assumptions and the depths below.",
            [("design", "left"), ("figure", "left"), *_right("xp", "rc", "ratio rc/xp")], rows)


def _sensitivity(data):
    rows = [[r["knob"], str(r["value"]) if isinstance(r["value"], str) else _n(r["value"]), "yes" if r["as_built"] else "",
             _n(r["xp_bytes_per_qp"], 1), _n(r["rc_bytes_per_qp"], 1), f"{r['state_ratio']:.2f}", _n(r["xp_bram36"]), _n(r["rc_bram36"]),
             f"{r['bram_ratio']:.2f}"] for r in data["rows"]]
    return (f"How the ratio moves: {data['of']}, {data['family']}",
            "One knob at a time, from the state tables and the predicted block RAM of tables; 'as built' marks the value of the design.",
            [("knob", "left"), ("value", "right"), ("as built", "left"),
             *_right("xp bytes/QP", "rc bytes/QP", "ratio", "xp BRAM", "rc BRAM", "ratio")], rows)


def _state(designs):
    cards, rows = set(), []
    for d in designs:
        if (d["card"], d["family"]) in cards or d["card"] in {c for c, _ in cards}:
            continue
        cards.add((d["card"], d["family"]))
        for t in d["state"]["tables"]:
            rows.append([d["card"], t["table"], t["owner"], t["kind"], t["per"], _n(t["width"]), _n(t["depth"]), str(t["copies"]),
                         _n(t["bits_per_qp"], 1), t["shape"], _n(t["bram36"])])
    return ("State by table",
            "kind: hot is touched by every packet, message once or twice a message, context is set up by the host, address belongs to a "
            "region or peer. Bits/QP of a shared table: divided by all QPs. RAM: predicted, for the card's first family.",
            [("card", "left"), ("table", "left"), ("owner", "left"), ("kind", "left"), ("per", "left"),
             *_right("width", "depth", "copies", "bits/QP"), ("RAM", "left"), ("BRAM", "right")], rows)


def _peers(data):
    ours = {}
    for d in data["designs"]:
        ours.setdefault(d["card"], d["state"]["bytes_per_qp"])
    rows = [[card, "this report", _n(value, 1), "all tables of the design that belong to QPs", "from the design's tables", ""]
            for card, value in ours.items()]
    rows += [[p["name"], "theirs", _n(p["bytes_per_qp"]), p["what"], p["how"], p["source"]] for p in data["peers"]]
    return ("State for each QP, beside what others publish",
            "Theirs are of other features, widths and sizes, and none was measured here.",
            [("design", "left"), ("whose", "left"), ("bytes/QP", "right"), ("what is in it", "left"), ("how known", "left"),
             ("source", "left")],
            rows)


# -- writing ------------------------------------------------------------------------------------------


def as_markdown(data):
    lines = ["# What each design costs", "", f"`{data['command']}`", "", "Assumptions:", ""]
    lines += [f"- {sentence}" for sentence in data["assumptions"]]
    for title, note, columns, rows in tables(data):
        lines += ["", f"## {title}", "", note, "", "| " + " | ".join(head for head, _ in columns) + " |",
                  "|" + "|".join("---:" if side == "right" else "---" for _, side in columns) + "|"]
        lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


COLUMNS = ("name", "preset", "transport", "family", "data_width", "num_qps", "config_hash")
CELLS = ("lut", "lut_logic", "lut_ram", "lut_srl", "ff", "ramb36", "ramb18", "bram36", "uram", "dsp", "carry", "muxf")


def as_csv(data):
    """One row for each design, for spreadsheets: numbers without commas, empty where nothing was measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, "bits_per_qp", "shared_bits", "table_bram36_predicted", "bram36_predicted", *CELLS, "levels",
                     "levels_with_ports", "fmax_mhz_min", "fmax_mhz_median", "fmax_mhz_max"])
    for d in data["designs"]:
        c, f = d.get("cells", {}), (d.get("place") or {}).get("fmax_mhz", {})
        levels = d.get("levels", {})
        writer.writerow([*(d[k] for k in COLUMNS), d["state"]["bits_per_qp"], d["state"]["shared_bits"], d["table_bram36"],
                         d.get("memories", {}).get("predicted", ""), *(c.get(k, "") for k in CELLS), levels.get("registers", ""),
                         levels.get("ports", ""), *(f.get(k, "") for k in ("min", "median", "max"))])
    return out.getvalue()
