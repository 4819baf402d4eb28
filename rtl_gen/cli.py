"""The `optinic` command. What is heavy is imported when it is used, so that --help answers at once."""

from contextlib import contextmanager
import json as jsonlib
import os
from pathlib import Path
import sys

import click

from optinic.config import ConfigError, NicConfig, PRESETS, preset as make_config

from .verilog import PackageError, write_package

__all__ = ["main"]

DERIVED = ("beat_bytes", "max_frame_bytes", "max_frame_beats", "rx_buffer_beats", "qp_bits", "qpn_tag_bits", "cq_bits",
           "peer_bits", "scan_rows", "clock_ns")


class Commands(click.Group):
    """A wrong command line, file or configuration ends with one line on standard error and status 2."""

    def main(self, *args, standalone_mode=True, **kwargs):
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **kwargs)
        try:
            result = super().main(*args, standalone_mode=False, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(2)
        except click.Abort:
            click.echo("optinic: interrupted", err=True)
            sys.exit(130)
        except BrokenPipeError:
            # The reader (head, less) has gone, and what is still buffered has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except click.ClickException as error:
            _fail(error.format_message())
        except (ConfigError, PackageError, OSError) as error:
            _fail(str(error))
        sys.exit(result if isinstance(result, int) else 0)


def _fail(message):
    click.echo("optinic: " + " ".join(message.split()), err=True)
    sys.exit(2)


@contextmanager
def _one_line(*errors):
    """These errors are the user's to read: as one line, not as a traceback."""
    try:
        yield
    except errors as error:
        raise click.ClickException(str(error)) from None


def _config(preset, transport, settings):
    knobs = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set {setting!r} has no '='; write --set knob=value, for example --set num_qps=64")
        knobs[name] = NicConfig.parse(name, text)
    if transport is not None:
        knobs["transport"] = transport
    return make_config(preset, **knobs)


def configured(command):
    """Options that choose a configuration; the command gets it as `cfg`."""
    def run(preset, transport, settings, **kwargs):
        return command(cfg=_config(preset, transport, settings), **kwargs)
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__click_params__ = getattr(command, "__click_params__", [])
    for option in (click.option("--set", "settings", metavar="KNOB=VALUE", multiple=True,
                                help="Change one knob of the preset; may be repeated. `optinic config` lists the knobs."),
                   click.option("--transport", metavar="T", help="Transport engine: xp. (rc is not built yet.)"),
                   click.option("--preset", default="small", metavar="P", show_default=True,
                                help=f"Where to start from: {', '.join(PRESETS)}.")):
        run = option(run)
    return run


def json_option(command):
    return click.option("--json", "json_to", is_flag=False, flag_value="-", metavar="[FILE]",
                        help="Write the result as JSON to FILE; without FILE, to standard output instead of the table.")(command)


def _emit(data, json_to, show):
    """`data` as JSON where it was asked for, and as a table unless standard output has the JSON."""
    text = jsonlib.dumps(data, indent=1) + "\n"
    if json_to == "-":
        click.echo(text, nl=False)
        return
    if json_to:
        _write_whole(Path(json_to), text)
    show(data)


def _write_whole(path, text):
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _print_table(title, columns, rows, footer=None):
    from rich.console import Console
    from rich.table import Table
    table = Table(show_footer=footer is not None)
    for i, (head, justify) in enumerate(columns):
        table.add_column(head, justify=justify, footer=str(footer[i]) if footer else "", no_wrap=i == 0)
    for row in rows:
        table.add_row(*map(str, row))
    console = _console(Console)
    console.print(title, style="bold")      # not the table's own title, which would be folded to the table's width
    console.print(table)


def _console(Console):
    # A pipe has no width; 80 columns would cut tables that a file can hold whole.
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=132)


def _number(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        text = f"{value:,.2f}"
        return text[:-3] if text.endswith(".00") else text
    return f"{value:,}" if isinstance(value, int) else str(value)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main():
    """A generator of RDMA network cards.

    \b
    See what there is:          optinic config
    Verilog of a card:          optinic generate --preset small -o build/small
    A capture against the card: optinic replay --setup SETUP.json --pcap FRAMES.pcap --json OUT.json
    How fast it takes frames:   optinic bench rx --preset small
    What it costs:              optinic synth --preset small
    """


@main.command()
@configured
@click.option("-o", "--output", required=True, metavar="DIR", type=click.Path(path_type=Path),
              help="Folder of the package; made, or replaced if it holds an earlier one.")
def generate(cfg, output):
    """Write the Verilog of a card and what belongs to it.

    \b
    DIR then holds
      optinic_nic.v          the card; top module optinic_nic
      manifest.json          top, configuration, ports, tool versions, hash
      optinic_abi.json .h .md .py    registers, commands, structures
      files.f                file list for a simulator or a synthesis tool

    The same configuration gives the same bytes every time. On an error DIR is left as it was.

    \b
    optinic generate --preset c100g --set num_qps=4096 -o build/card
    """
    manifest = write_package(cfg, output)
    click.echo(f"{output}: {manifest['top']}, {cfg.data_width} bits, {cfg.num_qps:,} QPs, "
               f"configuration {manifest['config_hash']}, Verilog {manifest['verilog_sha256'][:16]}")


@main.command()
@click.option("--setup", required=True, metavar="SETUP.json", type=click.Path(path_type=Path),
              help="Configuration, regions, queue pairs and receives; see docs/replay.md.")
@click.option("--pcap", required=True, metavar="FRAMES", type=click.Path(path_type=Path),
              help="Capture to replay: pcap or pcapng, Ethernet.")
@json_option
@click.option("--engine", type=click.Choice(["rtl", "model"]), default="rtl", show_default=True,
              help="The generated Verilog under Verilator, or the independent Python model.")
@click.option("--tx-pcap", metavar="SENT.pcap", type=click.Path(path_type=Path),
              help="Keep the frames that the card sent.")
def replay(setup, pcap, json_to, engine, tx_pcap):
    """What the card does with each frame of a capture, and why.

    \b
    optinic replay --setup examples/replay/uc_send.json --pcap tests/data/golden/uc_send.pcap --json out.json
    """
    from tempfile import TemporaryDirectory
    from sim.build import BuildError
    from sim.replay import ReplayError, run
    with TemporaryDirectory() as folder, _one_line(ReplayError, BuildError):
        out = Path(folder, "out.json") if json_to in (None, "-") else Path(json_to)
        run(setup, pcap, out, engine=engine, tx_pcap=tx_pcap)
        result = jsonlib.loads(out.read_text(encoding="utf-8"))
    _emit(result, "-" if json_to == "-" else None, _show_replay)


def _show_replay(result):
    from collections import Counter
    verdicts = Counter((f["verdict"], f.get("reason", f.get("kind", ""))) for f in result["frames"])
    placed = sum(f.get("bytes", 0) for f in result["frames"] if f["verdict"] == "placed")
    _print_table("Frames", [("verdict", "left"), ("why", "left"), ("frames", "right")],
                 [(*key, _number(n)) for key, n in sorted(verdicts.items())],
                 ("all", f"{placed:,} bytes placed", _number(len(result["frames"]))))
    ends = Counter((c["queue"], c["status"], c["cause"]) for c in result["completions"])
    _print_table("Completions", [("queue", "left"), ("status", "left"), ("cause", "left"), ("completions", "right")],
                 [(*key, _number(n)) for key, n in sorted(ends.items())])


@main.group()
def bench():
    """Measure the generated Verilog in simulation."""


@bench.command("rx")
@configured
@click.option("--quick", is_flag=True, help="Fewer frames and expiries: a look, not a measurement.")
@click.option("--host-ns", type=click.FloatRange(1, 100_000), default=500, show_default=True,
              help="Latency of the simulated host, of reads and of writes.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of everything random.")
@click.option("--plot", metavar="PNG", type=click.Path(path_type=Path), help="Draw the result too.")
@json_option
def bench_rx(cfg, quick, host_ns, seed, plot, json_to):
    """How fast the receive half is: beats busy by payload, cycles lost between frames, lateness of deadlines.

    \b
    optinic bench rx --preset small --json rx.json --plot rx.png
    """
    from host_driver.card import CardError
    from sim.build import BuildError
    from sim.experiments.bench_rx import BenchError, draw, run, tables
    with _one_line(BenchError, BuildError, CardError):
        result = run(cfg, seed=seed, quick=quick, host_ns=host_ns, progress=lambda text: click.echo(text, err=True))
    if plot:
        draw(result, plot)

    def show(data):
        for title, columns, rows in tables(data):
            _print_table(title, columns, rows)
    _emit(result, json_to, show)


@main.command()
@configured
@click.option("--module", "block", default="nic", show_default=True, metavar="BLOCK",
              help="The whole card, or one block of it, or module.path:Class.")
@json_option
def synth(cfg, block, json_to):
    """Resources and logic levels on UltraScale+, by open synthesis.

    A whole card of 512 bits takes many minutes. The mapped netlist is kept, so that asking again is quick.

    \b
    optinic synth --preset small --module ingress
    """
    from .report.synth import BLOCKS, build_block, report, show
    if block not in BLOCKS and ":" not in block:
        raise click.UsageError(f"unknown block {block!r}; known are {', '.join(BLOCKS)}, or write module.path:Class")
    with _one_line(ImportError, AttributeError):
        component = build_block(cfg, block)
    from rich.console import Console
    _emit(report(component, name=block), json_to, lambda data: show(data, _console(Console)))


@main.command()
@configured
@click.option("--state", is_flag=True, help="State on the chip instead, in bits by table.")
@json_option
@click.pass_context
def config(ctx, cfg, state, json_to):
    """Show the presets, or one configuration with its derived sizes, or its state on the chip.

    \b
    optinic config                              all presets
    optinic config --preset c100g               one, with every knob explained
    optinic config --preset scale10k --state    bits for each QP, by table
    """
    if state:
        from .state import state_of
        _emit({"config": cfg.as_dict()} | state_of(cfg), json_to, _show_state)
    elif any(ctx.get_parameter_source(name) != click.core.ParameterSource.DEFAULT
             for name in ("preset", "transport", "settings")):
        _emit(_sizes(cfg), json_to, _show_config)
    else:
        _emit({name: _sizes(cfg) for name, cfg in PRESETS.items()}, json_to, _show_presets)


def _sizes(cfg):
    return {"config": cfg.as_dict(), "derived": {name: getattr(cfg, name) for name in DERIVED}, "hash": f"{cfg.hash:08x}"}


def _show_presets(presets):
    _print_table("Presets (optinic config --preset P explains the knobs)",
                 [("knob", "left")] + [(name, "right") for name in presets],
                 [(knob.name, *(_number(p["config"][knob.name]) for p in presets.values())) for knob in NicConfig.knobs()] +
                 [(f"({name})", *(_number(p["derived"][name]) for p in presets.values())) for name in DERIVED])


def _show_config(data):
    limits = []
    for knob in NicConfig.knobs():
        m = knob.metadata
        limit = ", ".join(map(str, m["choices"])) if m["choices"] else f"{m['low']:,}..{m['high']:,}" if m["low"] is not None \
            else "on, off"
        limits.append((knob.name, _number(data["config"][knob.name]), limit + (", 2^n" if m["power_of_two"] else ""), m["doc"]))
    _print_table(f"Configuration {data['hash']}", [("knob", "left"), ("value", "right"), ("may be", "left"), ("what", "left")],
                 limits)
    _print_table("Derived", [("size", "left"), ("value", "right")], [(n, _number(v)) for n, v in data["derived"].items()])


def _show_state(data):
    columns = [("table", "left"), ("owner", "left"), ("kind", "left"), ("per", "left"), ("width", "right"), ("depth", "right"),
               ("copies", "right"), ("bits", "right"), ("bits/QP", "right")]
    rows = [(r["table"], r["owner"], r["kind"], r["per"], _number(r["width"]), _number(r["depth"]), r["copies"],
             _number(r["bits"]), _number(float(r["bits_per_qp"]))) for r in data["tables"]]
    own = sum(r["bits"] for r in data["tables"] if r["per"] == "qp")
    total = _number(float(data["bits_per_qp"]))
    bytes_ = _number(data["bits_per_qp"] / 8)
    _print_table(f"State, {data['num_qps']:,} QPs", columns, [r for r in rows if r[3] == "qp"],
                 ("all per QP", "", "", "", "", "", f"{bytes_} bytes", _number(own), total))
    _print_table("Shared tables (bits/QP: divided by all QPs)", columns, [r for r in rows if r[3] != "qp"],
                 ("all shared", "", "", "", "", "", "", _number(data["shared_bits"]),
                  _number(data["shared_bits"] / data["num_qps"])))


@main.command()
@click.option("-o", "--output", default="docs/abi", show_default=True, metavar="DIR", type=click.Path(path_type=Path),
              help="Folder to write into.")
def abi(output):
    """Write the register map, commands and structures as JSON, C, Markdown and Python."""
    from .exports import write_exports
    for name in write_exports(output):
        click.echo(output / name)


if __name__ == "__main__":
    main(prog_name="optinic")
