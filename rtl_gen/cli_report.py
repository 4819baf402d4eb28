"""`optinic report`: what each design costs."""

import json as jsonlib
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path

import click

from optinic.config import PRESETS

from .cli_common import console, one_line, print_table

__all__ = ["report"]

SCHEDULER_WAIT = 10     #: seconds
FORMATS = ("table", "json", "md", "csv", "html")


def _whole_numbers(ctx, param, text):
    if text in ("", "none"):
        return ()
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers, nor 'none'; for example 1,2,3") from None


def _formats(ctx, param, text):
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    for part in wanted:
        if part not in FORMATS:
            raise click.BadParameter(f"{part!r} is unknown; known are {', '.join(FORMATS)}")
    return wanted


@click.command()
@click.option("--preset", default="c100g", show_default=True, metavar="P[,P]", help=f"Where to start from: {', '.join(PRESETS)}.")
@click.option("--transport", default="xp,rc", show_default=True, metavar="T[,T]",
              help="Transport engines: xp (OptiNIC), rc (the baseline).")
@click.option("--qps", metavar="N[,N]", help="Numbers of queue pairs.  [default: the preset's]")
@click.option("--width", metavar="W[,W]", help="Widths of the datapath, bits.  [default: the preset's]")
@click.option("--family", default="xcup", show_default=True, metavar="F[,F]",
              help="Parts: xcup (UltraScale+), xc7 (7 series), ecp5, which is also placed and routed if it fits.")
@click.option("--also", metavar="P/T/F[/N[/W]]", multiple=True,
              help="Further designs, by preset, transport, family, queue pairs and width, as tiny/xp,rc/ecp5; may be repeated.")
@click.option("--set", "settings", metavar="KNOB=VALUE", multiple=True, help="Change one knob of every design; may be repeated.")
@click.option("-o", "--output", default="build/report", show_default=True, metavar="DIR", type=click.Path(path_type=Path),
              help="Folder for report.json, .md, .csv, .html, and for finished results (DIR/cache).")
@click.option("--format", "formats", default="table,json,md,csv,html", show_default=True, metavar="F[,F]", callback=_formats,
              help="What to write; table is the one on the terminal.")
@click.option("--predict", is_flag=True, help="State and block RAM from the tables alone: no synthesis, seconds.")
@click.option("--seeds", default="1,2,3", show_default=True, metavar="N[,N]", callback=_whole_numbers,
              help="Seeds of place and route on ECP5; none: don't place.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1, 256), metavar="N",
              help="Designs at a time on this machine.")
@click.option("--scheduler", metavar="ADDRESS",
              help="Run on the workers of this dask.distributed scheduler instead, as tcp://host:8786.")
@click.option("--readme", "readme", metavar="[FILE]", is_flag=False, flag_value="README.md", type=click.Path(path_type=Path),
              help="Only put the committed baseline's table between the markers in README.md.")
@click.option("--baseline", metavar="[FILE]", is_flag=False, flag_value="docs/report/baseline.json", type=click.Path(path_type=Path),
              help="Measure, and put the main figures of these designs into the baseline, beside what else it holds.")
def report(preset, transport, qps, width, family, also, settings, output, formats, predict, seeds, jobs, scheduler, readme, baseline):
    """What each design costs: state, block RAM, logic, depth, and the best effort card beside the reliable one.

    Every combination of the lists is one design. Finished results are kept: a run that was stopped goes on where it was, and a second
    run of the same hardware is done at once. docs/report.md says what is measured and how.

    \b
    optinic report --predict --qps 256,1024,4096,10240      state and block RAM, no synthesis
    optinic report --preset tiny                            both cards, mapped for UltraScale+ (minutes)
    optinic report --preset tiny --family xcup,ecp5         and placed and routed on an ECP5
    optinic report --qps 1024,10240 --width 64,512 --jobs 8 -o build/grid
    optinic report --qps 1024,10240 --also tiny/xp/ecp5     and a small card of another family, in one report
    optinic report --qps 1024,10240 --scheduler tcp://head:8786

    Exit status: 0, or 2 with one line: what was finished is kept.
    """
    from .report.readme import write_readme
    if readme:
        with one_line(ValueError):
            changed = write_readme(readme)
        click.echo(f"{readme}: {'table replaced' if changed else 'table is up to date'}")
        return
    from .report.assemble import assemble
    from .report.designs import designs_of, more_designs
    from .report.flow import FlowError
    from .report.run import RunError, cluster_pool, local_pool, run
    from .report.store import Store, usable_folder
    from .yosys import ToolError
    with one_line(FlowError, RunError, ToolError, OSError):
        designs = designs_of(preset, transport, qps, width, family, settings)
        designs = list(dict.fromkeys(designs + [design for text in also for design in more_designs(text, settings)]))
        usable_folder(output)
        if predict:
            from .report.measure import predicted
            results = {design: predicted(design.cfg, design.family) for design in designs}
        else:
            # The pool is started when there is work for it, so that a second run answers at once.
            pool = cluster_pool(scheduler, SCHEDULER_WAIT) if scheduler else local_pool(min(jobs, len(designs) * max(1, len(seeds))))
            with pool as workers, _progress(len(designs)) as (say, count):
                results = run(designs, Store(output / "cache"), pool=workers, seeds=seeds, say=say, count=count)
        data = assemble(results, _command())
        _write(data, output, formats)
        if baseline:
            from .report.baseline import update_baseline
            click.echo(f"{baseline}: {', '.join(update_baseline(baseline, data))}")


def _command():
    return "optinic " + " ".join(shlex.quote(part) for part in sys.argv[1:])


@contextmanager
def _progress(designs):
    """A bar on a terminal, elsewhere a line for each thing done."""
    if not sys.stderr.isatty():
        yield lambda text: click.echo(text, err=True), lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                  console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{designs} designs: mapping and placing", total=None)
        yield bar.console.print, lambda done, total: bar.update(task, completed=done, total=total or None)


def _write(data, output, formats):
    from .report.page import as_page
    from .report.store import write_whole
    from .report.tables import as_csv, as_markdown, tables
    writers = {"json": lambda d: jsonlib.dumps(d, indent=1) + "\n", "md": as_markdown, "csv": as_csv, "html": as_page}
    written = []
    for name, make in writers.items():
        if name in formats:
            write_whole(output / f"report.{name}", make(data))
            written.append(str(output / f"report.{name}"))
    if "table" in formats:
        out = console()
        for title, note, columns, rows in tables(data):
            if title.startswith(("What", "Reliable", "How", "Block RAM", "Placed", "Soft")):
                print_table(title, columns, rows)
                out.print(note, style="dim")
        for sentence in data["assumptions"]:
            out.print(f"- {sentence}", style="dim")
    for path in written:
        click.echo(path)
