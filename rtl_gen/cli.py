"""The `optinic` command. What is heavy is imported when it is used, so that --help answers at once."""

import json as jsonlib
from pathlib import Path

import click

from optinic.config import NicConfig, PRESETS

from .cli_common import Commands, configured, console, emit, json_option, number, one_line, print_table
from .cli_inject import inject
from .cli_peer import peer
from .cli_report import report
from .cli_run import bench, demo
from .verilog import write_package

__all__ = ["main"]

DERIVED = ("beat_bytes", "max_frame_bytes", "max_frame_beats", "rx_buffer_beats", "qp_bits", "qpn_tag_bits", "cq_bits",
           "peer_bits", "scan_rows", "clock_ns")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main():
    """A generator of RDMA network cards.

    \b
    See what there is:          optinic config
    Verilog of a card:          optinic generate --preset small -o build/small
    A capture against the card: optinic replay --setup SETUP.json --pcap FRAMES.pcap --json OUT.json
    A tensor over a lossy net:  optinic demo
    A card and a live Linux:    optinic peer
    How fast it is:             optinic bench rx --preset small
    What it costs:              optinic report --predict
    What one block costs:       optinic synth --preset small --module ingress
    What a flipped bit does:    optinic inject --runs 100
    """


main.add_command(bench)
main.add_command(demo)
main.add_command(report)
main.add_command(inject)
main.add_command(peer)


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
    with TemporaryDirectory() as folder, one_line(ReplayError, BuildError):
        out = Path(folder, "out.json") if json_to in (None, "-") else Path(json_to)
        run(setup, pcap, out, engine=engine, tx_pcap=tx_pcap)
        result = jsonlib.loads(out.read_text(encoding="utf-8"))
    emit(result, "-" if json_to == "-" else None, _show_replay)


def _show_replay(result):
    from collections import Counter
    verdicts = Counter((f["verdict"], f.get("reason", f.get("kind", ""))) for f in result["frames"])
    placed = sum(f.get("bytes", 0) for f in result["frames"] if f["verdict"] == "placed")
    print_table("Frames", [("verdict", "left"), ("why", "left"), ("frames", "right")],
                [(*key, number(n)) for key, n in sorted(verdicts.items())],
                ("all", f"{placed:,} bytes placed", number(len(result["frames"]))))
    ends = Counter((c["queue"], c["status"], c["cause"]) for c in result["completions"])
    print_table("Completions", [("queue", "left"), ("status", "left"), ("cause", "left"), ("completions", "right")],
                [(*key, number(n)) for key, n in sorted(ends.items())])


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
    with one_line(ImportError, AttributeError):
        component = build_block(cfg, block)
    emit(report(component, name=block), json_to, lambda data: show(data, console()))


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
        emit({"config": cfg.as_dict()} | state_of(cfg), json_to, _show_state)
    elif any(ctx.get_parameter_source(name) != click.core.ParameterSource.DEFAULT
             for name in ("preset", "transport", "settings")):
        emit(_sizes(cfg), json_to, _show_config)
    else:
        emit({name: _sizes(cfg) for name, cfg in PRESETS.items()}, json_to, _show_presets)


def _sizes(cfg):
    return {"config": cfg.as_dict(), "derived": {name: getattr(cfg, name) for name in DERIVED}, "hash": f"{cfg.hash:08x}"}


def _show_presets(presets):
    print_table("Presets (optinic config --preset P explains the knobs)",
                [("knob", "left")] + [(name, "right") for name in presets],
                [(knob.name, *(number(p["config"][knob.name]) for p in presets.values())) for knob in NicConfig.knobs()] +
                [(f"({name})", *(number(p["derived"][name]) for p in presets.values())) for name in DERIVED])


def _show_config(data):
    limits = []
    for knob in NicConfig.knobs():
        m = knob.metadata
        limit = ", ".join(map(str, m["choices"])) if m["choices"] else f"{m['low']:,}..{m['high']:,}" if m["low"] is not None \
            else "on, off"
        limits.append((knob.name, number(data["config"][knob.name]), limit + (", 2^n" if m["power_of_two"] else ""), m["doc"]))
    print_table(f"Configuration {data['hash']}", [("knob", "left"), ("value", "right"), ("may be", "left"), ("what", "left")],
                limits)
    print_table("Derived", [("size", "left"), ("value", "right")], [(n, number(v)) for n, v in data["derived"].items()])


def _show_state(data):
    columns = [("table", "left"), ("owner", "left"), ("kind", "left"), ("per", "left"), ("width", "right"), ("depth", "right"),
               ("copies", "right"), ("bits", "right"), ("bits/QP", "right")]
    rows = [(r["table"], r["owner"], r["kind"], r["per"], number(r["width"]), number(r["depth"]), r["copies"],
             number(r["bits"]), number(float(r["bits_per_qp"]))) for r in data["tables"]]
    own = sum(r["bits"] for r in data["tables"] if r["per"] == "qp")
    total = number(float(data["bits_per_qp"]))
    bytes_ = number(data["bits_per_qp"] / 8)
    print_table(f"State, {data['num_qps']:,} QPs", columns, [r for r in rows if r[3] == "qp"],
                ("all per QP", "", "", "", "", "", f"{bytes_} bytes", number(own), total))
    print_table("Shared tables (bits/QP: divided by all QPs)", columns, [r for r in rows if r[3] != "qp"],
                ("all shared", "", "", "", "", "", "", number(data["shared_bits"]),
                 number(data["shared_bits"] / data["num_qps"])))


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
