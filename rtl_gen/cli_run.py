"""The commands of `optinic` that run cards in simulation: the demo and the benches."""

from pathlib import Path
import sys

import click

from .cli_common import configured, console, emit, json_option, one_line, print_table, stages

__all__ = ["bench", "demo"]

MTUS = ("256", "512", "1024", "2048", "4096")
MOST_BYTES = 1 << 26


def failures():
    """What can go wrong with simulated cards, and is the user's to read."""
    from host_driver.errors import OptinicError
    from sim.build import BuildError
    from sim.experiments.bench_rx import BenchError
    from sim.experiments.demo import DemoError
    from sim.network import NetworkError
    return BenchError, BuildError, DemoError, NetworkError, OptinicError


def show_tables(tables):
    def show(data):
        for title, columns, rows in tables(data):
            print_table(title, columns, rows)
    return show


# -- the demo -----------------------------------------------------------------------------------------


def only_xp(cfg, why):
    """Refuse a card of another transport."""
    if cfg.transport != "xp":
        raise click.UsageError(f"--transport {cfg.transport}: {why}, so it is for xp; 'optinic bench pair --transport xp,rc' measures both")


@click.command()
@click.option("--backend", type=click.Choice(["model", "rtl"]), default="model", show_default=True,
              help="The cards: a model in Python, or the generated Verilog under Verilator, compiled at first use (minutes).")
@click.option("--loss", type=click.FloatRange(0, 1), default=0.02, show_default=True, metavar="P",
              help="Probability with which the network loses a frame.")
@click.option("--mtu", type=click.Choice(MTUS), help="Payload of a packet, bytes.  [default: the most that the card takes]")
@click.option("--bytes", "size", type=click.IntRange(4, MOST_BYTES), default=1 << 20, show_default=True, help="Size of the tensor.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the tensor and of the losses.")
@click.option("--pcap", metavar="FILE", type=click.Path(path_type=Path),
              help="Record what the first card sends and gets; docs/wireshark/ has a dissector for it.")
@configured(default="tiny")
@json_option
def demo(cfg, backend, loss, mtu, size, seed, pcap, json_to):
    """A tensor from one card to another over a network that loses frames, by a deadline.

    Two cards, driven through the verbs-like API of host_driver.verbs. The tensor is cut into messages; each has a receive
    with a deadline. Nothing is sent twice: a message that lost a packet ends in time and says what is there, and where
    nothing arrived the tensor stays zero. The end shows what arrived, how late that was known, and what the loss costs.

    \b
    optinic demo                                  on the model, a few seconds
    optinic demo --backend rtl                    the same program on the generated Verilog
    optinic demo --loss 0.1 --mtu 256             a bad network, small packets
    optinic demo --pcap demo.pcap                 and look at it with Wireshark

    Exit status: 0, 1 if what arrived is not what was sent, 2 for a wrong command line.
    """
    only_xp(cfg, "the demo shows what best effort gives")
    with one_line(*failures()):
        from sim.experiments.demo import run
        with story(sys.stderr if json_to == "-" else sys.stdout) as (say, progress):
            result = run(backend, cfg, loss=loss, mtu=int(mtu) if mtu else None, size=size, seed=seed, pcap=pcap, say=say,
                         progress=progress)
    emit(result, json_to, _show_demo)
    for problem in result["problems"]:
        click.echo(f"optinic: {problem}", err=True)
    sys.exit(1 if result["problems"] else 0)


def _show_demo(result):
    from sim.experiments.demo import picture, table
    out = console()
    out.print("The tensor at the receiver, a character for each message, as full as the message is:")
    out.print(picture(result), style="green")
    print_table("What came of it", [("", "left"), ("", "left")], table(result))


def story(stream, counted="receives that have ended"):
    """`say(text)`, a line of the story, and `progress(done, total)`, a bar of what is
    `counted` below it while a terminal looks on."""
    from contextlib import contextmanager

    @contextmanager
    def telling():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        if not stream.isatty():
            yield lambda text: click.echo(text, file=stream), lambda done, total: None
            return
        out = Console(file=stream, highlight=False)
        with Progress(TextColumn(counted), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                      console=out) as bar:
            task = bar.add_task("", total=None, visible=False)
            yield out.print, lambda done, total: bar.update(task, completed=done, total=total, visible=True)
    return telling()


# -- benches ------------------------------------------------------------------------------------------


@click.group()
def bench():
    """Measure cards in simulation: the generated Verilog, cycle by cycle, unless a command says otherwise.

    \b
    optinic bench rx         receiving: beats, completions, deadlines
    optinic bench tx         sending: beats, messages a second, doorbell to cable
    optinic bench pair       two cards and losses, two senders and one port
    optinic bench latency    where the time of one message goes
    optinic bench sim        how fast the simulation is

    Each takes --preset (c100g is the card of 100 Gbit/s; its first use compiles for minutes), --quick and --json.
    """


quick_option = click.option("--quick", is_flag=True, help="Less of everything: a look, not a measurement.")
seed_option = click.option("--seed", type=int, default=1, show_default=True, help="Of everything random.")


def host_option(default):
    return click.option("--host-ns", type=click.FloatRange(1, 100_000), default=default, show_default=True,
                        help="Latency of the simulated host, of reads and of writes.")


@bench.command("rx")
@configured
@quick_option
@host_option(500)
@seed_option
@click.option("--plot", metavar="PNG", type=click.Path(path_type=Path), help="Draw the result too.")
@json_option
def bench_rx(cfg, quick, host_ns, seed, plot, json_to):
    """How fast the receive half is: beats busy by payload, cycles lost between frames, lateness of deadlines.

    \b
    optinic bench rx --preset small --json rx.json --plot rx.png
    """
    only_xp(cfg, "bench rx is made of its traffic")
    with one_line(*failures()), stages() as (stage, _):
        from sim.experiments.bench_rx import draw, run, tables
        result = run(cfg, seed=seed, quick=quick, host_ns=host_ns, progress=stage)
    if plot:
        draw(result, plot)
    emit(result, json_to, show_tables(tables))


@bench.command("tx")
@configured
@quick_option
@host_option(1000)
@seed_option
@json_option
def bench_tx(cfg, quick, host_ns, seed, json_to):
    """How fast the send half is: beats on the cable by MTU, cycles from message to message, doorbell to cable.

    For one queue pair and for 64. Everything is posted before sending is switched on, and the cable takes a beat in every cycle.

    \b
    optinic bench tx --preset c100g --json tx.json
    """
    only_xp(cfg, "bench tx is made of its traffic")
    with one_line(*failures()), stages() as (stage, _):
        from sim.experiments.bench_tx import run, tables
        result = run(cfg, seed=seed, quick=quick, host_ns=host_ns, progress=stage)
    emit(result, json_to, show_tables(tables))


def losses(ctx, param, text):
    """The parts of a list of losses, each a share of the frames from 0 to below 1."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (-1,)
    if not all(0 <= loss < 1 for loss in found):
        raise click.BadParameter(f"{text!r} is not a list of shares of the frames, from 0 to less than 1; for example 0,0.001,0.05")
    return found


@bench.command("pair")
@configured(several=True)
@click.option("--loss", "lost", metavar="P[,P]", default="0,0.001,0.01", show_default=True, callback=losses,
              help="Shares of the frames that the cable loses, each one measured.")
@click.option("--backend", type=click.Choice(["rtl", "model"]), default="rtl", show_default=True,
              help="The cards: the generated Verilog, or the model in Python, which needs no compiler.")
@quick_option
@host_option(500)
@seed_option
@click.option("--plot", metavar="PNG", type=click.Path(path_type=Path), help="Draw the course of the longest run of two senders.")
@json_option
def bench_pair(configs, lost, backend, quick, host_ns, seed, plot, json_to):
    """Two cards through a cable that loses frames; two senders into one port of a switch that marks (DCQCN).

    Of the first: bytes placed, and the time from posting to completion, for each loss. Of the second: Jain's
    index, use of the port and length of its queue, with marks and without; on the Verilog for few milliseconds, and on the
    model, on a slower cable, for more.

    \b
    optinic bench pair --preset c100g --json pair.json
    optinic bench pair --transport xp,rc --loss 0,0.001,0.01,0.05
    optinic bench pair --backend model --quick
    """
    with one_line(*failures()), stages() as (stage, count):
        from sim.experiments.bench_pair import run, tables
        from sim.experiments.dcqcn import plot as draw
        result = run(configs, backend=backend, seed=seed, quick=quick, host_ns=host_ns, losses=lost, progress=stage, count=count)
    marked = [row for row in result["dcqcn"] if row["ecn"]]
    if plot and marked:
        draw(max(marked, key=lambda row: row["time_ns"]), plot)
    emit(result, json_to, show_tables(tables))


@bench.command("latency")
@configured
@quick_option
@host_option(500)
@seed_option
@json_option
def bench_latency(cfg, quick, host_ns, seed, json_to):
    """Where the time of one message goes: doorbell to cable, last beat to completion, and all the way between two cards.

    \b
    optinic bench latency --preset c100g --json latency.json
    """
    only_xp(cfg, "bench latency is made of its traffic")
    with one_line(*failures()), stages() as (stage, _):
        from sim.experiments.bench_latency import run, tables
        result = run(cfg, seed=seed, quick=quick, host_ns=host_ns, progress=stage)
    emit(result, json_to, show_tables(tables))


@bench.command("sim")
@configured
@quick_option
@seed_option
@json_option
def bench_sim(cfg, quick, seed, json_to):
    """How fast the simulation is: cycles a second of one card, of two and of eight, at rest and at work.

    \b
    optinic bench sim --preset c100g
    """
    only_xp(cfg, "bench sim is made of its traffic")
    with one_line(*failures()), stages() as (stage, _):
        from sim.experiments.bench_sim import run, tables
        result = run(cfg, seed=seed, quick=quick, progress=stage)
    emit(result, json_to, show_tables(tables))
