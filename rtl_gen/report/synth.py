"""What a configuration, or one component, costs on UltraScale+, and how deep its logic is: `optinic synth`."""

import importlib
import json

from .flow import BUILD, Mapped, map_rtlil, rtlil_of

__all__ = ["Mapped", "BLOCKS", "build_block", "synthesize", "report", "main", "show"]

MAX_LEVELS = 8          #: LUTs between registers, the limit that the design sets itself

#: blocks that can be asked for by name: where each one is, constructed as Class(cfg)
BLOCKS = {
    "nic": ("optinic.nic", "Nic"),
    "ingress": ("optinic.rx.ingress", "Ingress"),
    "lookup": ("optinic.transport.xp.lookup", "Lookup"),
    "receive_queue": ("optinic.queues.receive", "ReceiveQueue"),
    "regions": ("optinic.memory.regions", "Regions"),
    "admission": ("optinic.transport.xp.admission", "Admission"),
    "dispatch": ("optinic.transport.xp.dispatch", "Dispatch"),
    "rc_order": ("optinic.transport.rc.order", "RcOrder"),
    "rc_commit": ("optinic.transport.rc.commit", "RcCommit"),
    "ack_board": ("optinic.transport.rc.ack_board", "AckBoard"),
    "atomic_unit": ("optinic.transport.rc.atomic", "AtomicUnit"),
    "deadlines": ("optinic.transport.xp.deadlines", "DeadlineScanner"),
    "host_writer": ("optinic.memory.host_writer", "HostWriter"),
    "counters": ("optinic.transport.counters", "Counters"),
    "send_queue": ("optinic.tx.send_queue", "SendQueue"),
    "congestion": ("optinic.congestion.control", "CongestionControl"),
    "payload_reader": ("optinic.tx.reader", "PayloadReader"),
    "frame_builder": ("optinic.tx.builder", "FrameBuilder"),
    "transmit": ("optinic.tx.transmit", "Transmit"),
    "register_bank": ("optinic.axi.register_bank", "RegisterBank"),
}


def synthesize(component, *, family="xcup", top="top", hierarchical=False, cache=True, build=BUILD):
    """Map an Amaranth component, or the NIC of a NicConfig.

    Flattened, unless `hierarchical`: then each module is mapped for itself, which costs a little more logic but shows
    where it is. `cache` off maps again and replaces what is kept.
    """
    if not hasattr(component, "elaborate"):
        component = build_block(component, "nic")
    return map_rtlil(rtlil_of(component, top), family=family, top=top, hierarchical=hierarchical, cache=cache, build=build)


def build_block(cfg, name):
    """Block `name` of BLOCKS, or "module.path:Class", for configuration `cfg`."""
    if name in BLOCKS:
        module, cls = BLOCKS[name]
    elif ":" in name:
        module, cls = name.split(":")
    else:
        raise ValueError(f"unknown block {name!r}; known are {', '.join(BLOCKS)}, or write module.path:Class")
    return getattr(importlib.import_module(module), cls)(cfg)


# -- reports -------------------------------------------------------------------------------------------


def report(component, *, paths=10, name="", **options):
    """Counts, levels and longest paths of a component or configuration, as a plain dict."""
    mapped = synthesize(component, **options)
    netlist = mapped.netlist()
    result = {"name": name, "netlist": str(mapped.path), "seconds": round(mapped.seconds, 1), "limit": MAX_LEVELS}
    return result | netlist.report(paths=paths)


def main(preset="c100g", module="nic", knobs=None, *, paths=10, cache=True, hierarchical=False):
    """`optinic synth`: the report of one block of a preset. `knobs` is a dict of NicConfig values over the preset."""
    from optinic.config import preset as make
    cfg = make(preset, **(knobs or {}))
    component = build_block(cfg, module)
    result = report(component, paths=paths, name=f"{module} ({preset})", cache=cache)
    if hierarchical:
        result["modules_alone"] = {
            name: {"instances": n, **cells}
            for name, (n, cells) in synthesize(component, hierarchical=True, cache=cache).modules().items()}
    return result


def show(result, console=None):
    """Print a report as tables."""
    from rich.console import Console
    from rich.table import Table
    console = console or Console()
    c = result["cells"]
    head = Table(title=f"{result['name'] or 'design'}: UltraScale+ mapping")
    for column in ("LUT", "as logic", "as LUTRAM", "as shift register", "FF", "BRAM36", "DSP", "CARRY4", "levels", "with ports"):
        head.add_column(column, justify="right")
    head.add_row(*(f"{v:,}" if isinstance(v, int) else f"{v:g}" for v in (
        c["lut"], c["lut_logic"], c["lut_ram"], c["lut_srl"], c["ff"], c["bram36"], c["dsp"], c["carry"],
        result["levels"], result["levels_with_ports"])))
    console.print(head)
    for loop in result["loops"]:
        console.print(f"[red]combinational loop[/red]: {' -> '.join(loop)}")
    for kind, n in result["unknown_cells"].items():
        console.print(f"[yellow]not analysed[/yellow]: {n} cells of type {kind}")

    where = Table(title="by module (logic is counted where its result is used)")
    for column, justify in (("module", "left"), ("LUT", "right"), ("FF", "right"), ("BRAM36", "right")):
        where.add_column(column, justify=justify)
    for name, row in result["modules"].items():
        where.add_row(name or "(top)", f"{row['lut']:,}", f"{row['ff']:,}", f"{row['bram36']:g}")
    console.print(where)

    deep = Table(title=f"longest paths (limit {result['limit']} levels)")
    for column, justify in (("levels", "right"), ("from", "left"), ("to", "left")):
        deep.add_column(column, justify=justify, overflow="fold")
    for path in result["paths"]:
        deep.add_row(str(path["levels"]), f"{path['start']}\n[dim]{path['start_src']}[/dim]",
                     f"{path['end']}\n[dim]{path['end_src']}[/dim]")
    console.print(deep)


if __name__ == "__main__":
    import argparse
    parser = argparse.ArgumentParser(description="Map one block and report its cost and logic depth.")
    parser.add_argument("--preset", default="c100g")
    parser.add_argument("--module", default="nic")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    from optinic.config import NicConfig
    knobs = {k: NicConfig.parse(k, v) for k, v in (s.split("=", 1) for s in args.set)}
    result = main(args.preset, args.module, knobs)
    print(json.dumps(result, indent=2)) if args.json else show(result)
