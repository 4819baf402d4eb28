"""`optinic inject`: soft errors on the simulated card."""

from pathlib import Path

import click

from .cli_common import configured, emit, json_option, one_line, print_table, stages

__all__ = ["inject"]

TARGETS = ("tables", "buffers", "registers", "all")


def one_run(ctx, param, text):
    """(target, index) of TARGET:INDEX."""
    if text is None:
        return None
    target, _, index = text.partition(":")
    if target not in TARGETS[:-1] or not index.isdecimal():
        raise click.BadParameter(f"{text!r} is not a run; write for example tables:17")
    return target, int(index)


@click.command()
@configured(default="tiny", several=True)
@click.option("--runs", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Flips for each target.")
@click.option("--target", type=click.Choice(TARGETS), default="all", show_default=True,
              help="Where bits are flipped: per-item tables, all other memories, registers.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of everything random.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes that run at once.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/inject"), show_default=True,
              help="Where runs that have ended are kept; an interrupted campaign goes on from there.")
@click.option("--run", "single", metavar="TARGET:INDEX", callback=one_run, help="One run of the campaign alone, for example tables:17.")
@json_option
@click.pass_context
def inject(ctx, configs, runs, target, seed, jobs, folder, single, json_to):
    """Flip bits of the card's state while two cards work, and see what comes of it.

    Each run flips one bit of one card, drawn with equal chances for each bit of the target, at a random time of a workload of SEND,
    WRITE with immediate and READ on twelve rows of the queue pair tables, both ways. How a run is judged (masked, statistics,
    corrected, detected, hang, silent) is in docs/soft-errors.md.

    \b
    optinic inject --transport xp,rc --runs 1000 --jobs 2 --json injection.json
    optinic inject --target tables --runs 200
    optinic inject --run tables:17                one run again, as it was in the campaign
    """
    from sim.build import BuildError
    from sim.inject.campaign import InjectError, Targets, run_batch
    from sim.inject.summary import TARGETS as every, campaign, tables
    preset = ctx.params["preset"]
    with one_line(BuildError, InjectError), stages() as (stage, count):
        if single:
            found = []
            for cfg in configs:
                run_batch(cfg, Targets.of(cfg), seed, single[0], [single[1]],
                          lambda r, cfg=cfg: found.append({"transport": cfg.transport, **r}))
        else:
            chosen = every if target == "all" else (target,)
            found = [campaign(cfg, preset, targets=chosen, runs=runs, seed=seed, jobs=jobs, folder=folder, progress=stage, count=count)
                     for cfg in configs]
    if single:
        emit(found, json_to, lambda data: print_table("One run", [("", "left"), ("", "left")],
                                                      [(k, v) for record in data for k, v in record.items()]))
    else:
        settings = "".join(f" --set {setting}" for setting in ctx.params["settings"])
        command = (f"optinic inject --transport {','.join(c.transport for c in configs)} --preset {preset}{settings} --target {target} "
                   f"--runs {runs} --seed {seed}")
        emit({"command": command, "results": found}, json_to,
             lambda data: [print_table(*table) for table in tables(data["results"])])

