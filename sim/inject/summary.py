"""A campaign from beginning to end: what was done already, what is left, and the shares that come of it."""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from hashlib import sha256
import json
from math import sqrt
from multiprocessing import get_context
from pathlib import Path

from sim.build import nic_verilog

from .campaign import BATCH, TARGETS, InjectError, Targets, batch_of, run_batch
from .outcome import CLASSES, FAILURES, SERIOUS
from . import workload

__all__ = ["FORMAT", "campaign", "summary", "wilson", "tables"]

FORMAT = 1
Z95 = 1.959964          # two-sided 95 %


def wilson(hits, n):
    """{"share", "low", "high"}: the share of `hits` in `n` and its 95 % confidence interval (Wilson's score interval, E. B. Wilson,
    J. Am. Stat. Assoc. 22, 1927)."""
    if not n:
        return {"share": None, "low": 0.0, "high": 1.0}
    p, z2 = hits / n, Z95 * Z95
    middle, half = p + z2 / (2 * n), Z95 * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return {"share": p, "low": max(0.0, (middle - half) / (1 + z2 / n)), "high": min(1.0, (middle + half) / (1 + z2 / n))}


def campaign(cfg, preset, *, targets=TARGETS, runs=1000, seed=1, jobs=1, folder=Path("build/inject"), progress=lambda text: None,
             count=lambda done, total: None):
    """The summary of `runs` runs of each target on configuration `cfg` (made from `preset`).

    Every run that has ended is kept in a file of `folder`, one line of JSON each, under a name that holds the hash of the Verilog and
    the seed; a campaign that was interrupted goes on from there, and one with more runs adds to it."""
    if cfg.num_qps <= workload.ROWS or cfg.num_regions < 4:
        raise InjectError(f"num_qps={cfg.num_qps} is too few: the workload uses {workload.ROWS} queue pairs; take num_qps=16 or more")
    progress(f"{cfg.transport}: the card, if it has to be compiled")
    design = sha256(nic_verilog(cfg).encode()).hexdigest()
    cells = Targets.of(cfg)
    path = Path(folder) / f"{cfg.transport}-{preset}-{design[:12]}-{_workload_digest()}-{seed}.jsonl"
    found = {(r["target"], r["index"]): r for r in _kept(path)}
    wanted = [(target, i) for target in targets for i in range(runs)]
    todo = {}
    for target, i in wanted:
        if (target, i) not in found:
            todo.setdefault((target, batch_of(i)), []).append(i)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = len(wanted) - sum(map(len, todo.values()))
    progress(f"{cfg.transport}: {len(wanted)} runs, {done} of them known")
    count(done, len(wanted))
    with open(path, "a") as log, ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        futures = [pool.submit(_batch, cfg, cells, seed, target, indices) for (target, _), indices in todo.items()]
        try:
            for future in as_completed(futures):
                for record in future.result():
                    log.write(json.dumps(record) + "\n")
                    found[record["target"], record["index"]] = record
                    done += 1
                log.flush()
                count(done, len(wanted))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return summary(cfg, preset, design, cells, seed, [found[key] for key in wanted])


def _batch(cfg, cells, seed, target, indices):
    found = []
    run_batch(cfg, cells, seed, target, indices, found.append)
    return found


def _workload_digest():
    """Other work, or another judgement of it, gives other results: they are not to be mixed."""
    here = Path(__file__).parent
    return sha256(b"".join((here / f"{name}.py").read_bytes() for name in ("workload", "outcome", "campaign"))).hexdigest()[:8]


def _kept(path):
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            pass        # the line that an interrupted campaign was writing; that run is done again


def summary(cfg, preset, design, cells, seed, records):
    """Shares by target and by cell, as a plain dict."""
    result = {"format": FORMAT, "transport": cfg.transport, "preset": preset, "config": cfg.as_dict(), "config_hash": f"{cfg.hash:08x}",
              "verilog_sha256": design, "seed": seed, "batch": BATCH, "rows_in_use": workload.ROWS, "rows": cfg.num_qps, "targets": {}}
    for target in TARGETS:
        mine = [r for r in records if r["target"] == target]
        if mine:
            groups = {}
            for r in mine:
                groups.setdefault(_group(target, r["cell"]), []).append(r)
            bits = Counter()
            for cell in cells.cells[target]:
                bits[_group(target, cell.name)] += cell.bits * (cell.rows or 1)
            result["targets"][target] = {"bits": cells.bits(target), **_shares(mine), "reasons": _reasons(mine),
                                         "groups": {name: {"bits": bits[name], **_shares(groups.get(name, []))} for name in sorted(bits)}}
    return result


def _group(target, cell):
    """Memories one by one, registers by block."""
    parts = cell.split(".")
    if target == "registers":
        return ".".join(parts[:2] if parts[0] == "transmit" else parts[:1]) if len(parts) > 1 else "(top)"
    return ".".join(parts[:-1] if parts[-1] == "ram" else parts)


def _shares(records):
    classes = Counter(r["class"] for r in records)
    n = sum(classes[c] for c in CLASSES)        # runs in which the simulation itself failed say nothing
    shares = {name: wilson(sum(classes[c] for c in of), n) for name, of in (("failure", FAILURES), ("serious", SERIOUS))}
    return {"runs": n, "errors": classes["error"], "classes": {c: classes[c] for c in CLASSES}, **shares}


def _reasons(records):
    """How often each failure was what, the numbers in it left out."""
    return dict(Counter(f"{r['class']}: {''.join(c for c in r['reason'] if not c.isdigit())[:70]}" for r in records
                        if r["class"] in FAILURES).most_common(12))


# -- showing ------------------------------------------------------------------------------------------


def tables(results):
    """[(title, [(head, justify)], rows)] of a list of summaries."""
    left, right = "left", "right"
    columns = [("transport", left), ("target", left), ("bits", right), ("runs", right), *((c, right) for c in CLASSES),
               ("any failure, 95 %", right), ("silent or hang, 95 %", right)]
    rows = [(r["transport"], name, f"{t['bits']:,}", t["runs"], *t["classes"].values(), _interval(t["failure"]), _interval(t["serious"]))
            for r in results for name, t in r["targets"].items()]
    found = [("What a flipped bit comes to", columns, rows)]
    for r in results:
        worst = sorted(((t["serious"]["share"] * g["bits"], name, kind, g) for kind, t in r["targets"].items()
                        for name, g in t["groups"].items() if g["runs"] for t in [g]), key=lambda row: -row[0])[:12]
        found.append((f"{r['transport']}: where silent corruption and hangs come from (share of the flips there, times bits)",
                      [("memory or block", left), ("target", left), ("bits", right), ("runs", right), ("any failure", right),
                       ("silent or hang", right)],
                      [(name, kind, f"{g['bits']:,}", g["runs"], _interval(g["failure"]), _interval(g["serious"]))
                       for _, name, kind, g in worst]))
    return found


def _interval(share):
    if share["share"] is None:
        return "-"
    return f"{100 * share['share']:.1f} % ({100 * share['low']:.1f} to {100 * share['high']:.1f})"
