"""How often a card fails because a particle flipped a bit: FIT and mean time between failures, of one card and of a cluster.

    FIT = flux * sum over kinds of memory of  FIT/Mb * Mb in use * AVF * (1 - share that ECC corrects)

for configuration, block RAM, UltraRAM, LUT RAM and flip-flops. AVF is the share of upsets that somebody notices: for configuration
AMD's device vulnerability factor, for the rest what fault injection has measured (docs/report/injection.json). The method and its
limits are in docs/soft-errors.md. Two cards are compared with the same constants, and the ratio stands first: most constants
cancel in it, and the sensitivity says which do not.
"""

from dataclasses import fields
from functools import cache
import json
from pathlib import Path

from .seu_constants import Constants

__all__ = ["INJECTION", "injection", "mtbf", "cluster_hours", "compare", "sensitivity", "section"]

MB = 1 << 20
BRAM36_BITS, URAM_BITS = 36_864, 294_912
#: results of the campaign that is committed with the sources
INJECTION = Path(__file__).resolve().parents[2] / "docs" / "report" / "injection.json"
BASELINE, PRODUCT = "rc", "xp"
MEASURED = ("avf_tables", "avf_buffers", "avf_ff")


@cache
def injection(path=INJECTION):
    """{transport: summary} of a file that `optinic inject --json` wrote; empty if there is none."""
    path = Path(path)
    if not path.exists():
        return {}
    return {result["transport"]: result for result in json.loads(path.read_text())["results"]}


def cluster_hours(fit, nodes):
    """Hours between failures of `nodes` cards of so many FIT each."""
    return 1e9 / fit / nodes


def mtbf(inventory, constants=None):
    """FIT and MTBF of one design, a plain dict.

    `inventory` has lut, ff, lutram_bits, bram36 (a RAMB18 as one half), uram, dsp and table_bits as of
    rtl_gen.report.inventory. Better known, it also has "item_bits" and "secded_share" of rtl_gen.state (table_bits counts packet buffer
    and cached lines as well, whose bits are buffers' here), and "buffer_bits", what else of its memories is state (else all that
    they occupy, padding included). `constants`: a :class:`Constants`, the default ones without it.

    "terms" has, for each kind of memory, the bits in use, the FIT before AVF ("raw") and after ("fit").
    """
    c = constants or Constants()
    v = c.value
    block, ultra, lutram = inventory["bram36"] * BRAM36_BITS, inventory.get("uram", 0) * URAM_BITS, inventory["lutram_bits"]
    occupied = block + ultra + lutram
    tables = min(inventory.get("item_bits", inventory["table_bits"]), occupied)
    buffers = min(inventory.get("buffer_bits", occupied), occupied - tables)
    # of a bit of memory, wherever it is: is it a table's, a buffer's or padding
    ecc = max(v("ecc_tables"), inventory.get("secded_share", 0))
    avf = (tables * v("avf_tables") * (1 - ecc) + buffers * v("avf_buffers") * (1 - v("ecc_buffers"))) / occupied if occupied else 0
    rows = {
        "configuration": (_configuration_bits(inventory, v), v("fit_config"), v("avf_config")),
        "block RAM": (block, v("fit_bram"), avf),
        "UltraRAM": (ultra, v("fit_uram"), avf),
        "LUT RAM": (lutram, v("fit_lutram"), avf),
        "flip-flops": (inventory["ff"], v("fit_ff"), v("avf_ff")),
    }
    terms = {name: {"bits": round(bits), "raw": v("flux") * rate * bits / MB, "fit": v("flux") * rate * bits / MB * share}
             for name, (bits, rate, share) in rows.items()}
    fit = sum(term["fit"] for term in terms.values())
    return {"terms": terms, "fit": fit, "raw_fit": sum(term["raw"] for term in terms.values()),
            "mtbf_nic_hours": 1e9 / fit if fit else None, "nodes": int(v("nodes")),
            "mtbf_cluster_hours": cluster_hours(fit, v("nodes")) if fit else None}


def _configuration_bits(inventory, v):
    """Bits that belong to the logic, memories and DSPs in use, by their share of the device. The contents of block RAM are in the
    bitstream and are no configuration."""
    device = v("device_bitstream_bits") - v("device_bram36") * BRAM36_BITS
    used = (v("weight_lut") * inventory["lut"] / v("device_lut") + v("weight_bram") * inventory["bram36"] / v("device_bram36") +
            v("weight_dsp") * inventory.get("dsp", 0) / v("device_dsp"))
    return device * used


def constants_of(transport, constants=None, what="failure", results=None):
    """`constants` with the vulnerability factors that were measured for a transport; those that the user has given stay."""
    constants = constants or Constants()
    results = injection() if results is None else results
    if transport not in results:
        return constants
    given = {name: vars(getattr(constants, name)) for name in MEASURED if getattr(constants, name).kind != "assumed"}
    found = constants.measured(results[transport], what)
    return found.with_(**{name: {k: old[k] for k in ("value", "low", "high", "kind", "source")} for name, old in given.items()})


def compare(baseline, product, constants=None, what="failure", results=None):
    """The ratio first: how many times the time between failures of `product` is that of `baseline` (inventories with a
    "transport"), then both of them."""
    found = {role: mtbf(inv, constants_of(inv["transport"], constants, what, results))
             for role, inv in (("product", product), ("baseline", baseline))}
    return {"ratio": found["baseline"]["fit"] / found["product"]["fit"], **found}


def sensitivity(baseline, product, constants=None, what="failure", results=None):
    """[{"constant", "low", "high", "ratio_low", "ratio_high", "kind"}], the one that moves the ratio most first. Each constant is set
    to the ends of its range by itself, for both cards; a factor that was measured for each of them, for one at a time."""
    middle = compare(baseline, product, constants, what, results)["ratio"]
    own = {inv["transport"]: constants_of(inv["transport"], constants, what, results) for inv in (product, baseline)}
    fit = lambda inv, consts: mtbf(inv, consts[inv["transport"]])["fit"]
    ratio = lambda consts: fit(baseline, consts) / fit(product, consts)
    rows = []
    for f in fields(Constants):
        first = getattr(own[product["transport"]], f.name)
        apart = f.name in MEASURED and first.kind == "measured"
        for whose in [(t,) for t in own] if apart else [tuple(own)]:
            const = getattr(own[whose[0]], f.name)
            if const.low == const.high:
                continue
            ends = [ratio({t: c.with_(**{f.name: end}) if t in whose else c for t, c in own.items()}) for end in (const.low, const.high)]
            rows.append({"constant": f"{f.name} of {whose[0]}" if apart else f.name, "low": const.low, "high": const.high,
                         "ratio_low": ends[0], "ratio_high": ends[1], "kind": const.kind, "swing": max(abs(end - middle) for end in ends)})
    return sorted(rows, key=lambda row: -row["swing"])


def section(designs, pairs=None, constants=None, results=None):
    """All that a report shows of soft errors, a plain dict that fits JSON.

    `designs`: {name: inventory}, each with a "transport"; `pairs`: [(name of an xp design, name of the rc design to compare it with)], by
    default the first of each.
    `constants`: a Constants, for all of them. `results`: {transport: summary} of a fault injection, by default the committed one.

    "pairs"         of each pair {"xp", "rc", "failure", "serious"}: the names, and how many times the MTBF of rc is that of xp, of any failure
                    and of those that nobody is told of in time (silent corruption and hangs)
    "rows"          for each design: {"name", "transport", "failure": mtbf(...), "serious": mtbf(...)}
    "sensitivity"   of the first pair's ratio of any failure, see :func:`sensitivity`
    "avf"           [{"transport", "target", "runs", "bits", "failure", "serious", "classes"}], shares with 95 % intervals
    "avf_tables"    the same for each table, with its name, for those with runs
    "constants"     {transport: rows of Constants.rows()}: every value with its range and source
    "injection"     {transport: {"seed", "preset", "config_hash", "verilog_sha256"}}, where the factors come from
    "published"     the comparison in the literature, for the eye: its ratio and cluster MTBFs
    """
    results = injection() if results is None else results
    if pairs is None:
        first = [next((name for name, inv in designs.items() if inv["transport"] == t), None) for t in (PRODUCT, BASELINE)]
        pairs = [tuple(first)] if all(first) else []
    compared = [{"xp": xp, "rc": rc, **{what: compare(designs[rc], designs[xp], constants, what, results)["ratio"] for what in ("failure", "serious")}}
                for xp, rc in pairs]
    rows = [{"name": name, "transport": inv["transport"],
             **{what: mtbf(inv, constants_of(inv["transport"], constants, what, results)) for what in ("failure", "serious")}}
            for name, inv in designs.items()]
    avf, by_table = [], []
    for transport, summary in results.items():
        for target, found in summary["targets"].items():
            keep = ("runs", "bits", "failure", "serious", "classes")
            avf.append({"transport": transport, "target": target, **{k: found[k] for k in keep}})
            if target == "tables":
                by_table += [{"transport": transport, "table": name, **{k: group[k] for k in keep}}
                             for name, group in found["groups"].items() if group["runs"]]
    return {
        "pairs": compared,
        "rows": rows,
        "sensitivity": sensitivity(*(designs[name] for name in reversed(pairs[0])), constants, "failure", results) if compared else [],
        "avf": avf, "avf_tables": by_table,
        "constants": {t: constants_of(t, constants, "failure", results).rows()
                      for t in sorted({inv["transport"] for inv in designs.values()})},
        "injection": {t: {k: s[k] for k in ("seed", "preset", "config_hash", "verilog_sha256")} for t, s in results.items()},
        "published": {"source": "arXiv 2512.22743 (OptiNIC): Xilinx SEU Estimator, 15,000 nodes, 100 C, 10 % essential bits",
                      "nodes": 15_000, "ratio": 80.5 / 42.8, "mtbf_cluster_hours": {"xp": 80.5, "rc": 42.8}},
    }
