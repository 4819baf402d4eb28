"""The headline table of the README, made from the committed baseline."""

from pathlib import Path

from .baseline import BASELINE, load_baseline
from .store import write_whole

__all__ = ["headline", "write_readme"]

BEGIN, END = "<!-- report: begin -->", "<!-- report: end -->"


def headline(designs):
    """Markdown of the main figures of {name: figures}."""
    lines = ["| card | QPs | bytes/QP | LUT | FF | block RAM (RAMB36) | levels | clock |", "|---|---:|---:|---:|---:|---:|---:|---|"]
    order = {"xcup": 0, "xc7": 1, "ecp5": 2}
    kinds = {"xcup": "UltraScale+", "xc7": "7 series", "ecp5": "ECP5"}
    for f in sorted(designs.values(), key=lambda f: (order[f["family"]], f["data_width"], f["num_qps"], f["transport"] == "rc")):
        clock = f.get("fmax_mhz")
        placed = f"{clock['median']:.1f} MHz placed" if clock else ""
        if clock and len(clock["seeds"]) > 1:
            placed += f" ({clock['min']:.1f} to {clock['max']:.1f})"
        lines.append(f"| {'OptiNIC' if f['transport'] == 'xp' else 'reliable'}, {f['data_width']} bit, {kinds[f['family']]} | "
                     f"{f['num_qps']:,} | {f['bytes_per_qp']:,.1f} | {f['lut']:,} | {f['ff']:,} | {f['bram36']:,g} | {f['levels']} | "
                     f"{placed} |")
    lines += ["", *_ratios(designs), "", "`make report` measures and compares ([more](docs/report.md)); this table: `optinic report --readme`, from "
              "[docs/report/baseline.json](docs/report/baseline.json)."]
    return "\n".join(lines)


def _ratios(designs):
    """Sentences about each two that differ in the transport only, and for which soft errors were estimated."""
    lines, pair = [], lambda f: (f["preset"], f["family"], f["data_width"], f["num_qps"])
    for xp in sorted((f for f in designs.values() if f["transport"] == "xp" and "fit" in f), key=lambda f: (f["data_width"], f["num_qps"])):
        for rc in (f for f in designs.values() if f["transport"] == "rc" and "fit" in f and pair(f) == pair(xp)):
            lines.append(f"- {xp['data_width']} bit, {xp['num_qps']:,} QPs: the reliable card has {rc['bytes_per_qp'] / xp['bytes_per_qp']:.1f} times the state "
                         f"for each QP and {rc['bram36'] / xp['bram36']:.1f} times the block RAM; OptiNIC works {rc['fit']['failure'] / xp['fit']['failure']:.2f} "
                         f"times as long between failures by soft errors, {rc['fit']['serious'] / xp['fit']['serious']:.2f} times between those that "
                         "nobody is told of.")
    return lines


def write_readme(path, baseline=BASELINE):
    """Put the table between the markers of the README; says whether that changed it. Raises ValueError without markers."""
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{path} lacks the markers {BEGIN} and {END}; put both where the table belongs")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    new = f"{head}{BEGIN}\n{headline(load_baseline(baseline))}\n{END}{tail}"
    if new != text:
        write_whole(path, new)
    return new != text
