"""`optinic peer`: a card and a live Linux."""

from pathlib import Path
import sys

import click

from optinic.config import PRESETS

from .cli_common import configuration, console, emit, json_option, one_line, print_table
from .cli_run import failures, story

__all__ = ["peer"]

MTUS = ("256", "512", "1024", "2048", "4096")
MOST_BYTES = 1 << 20


@click.command()
@click.option("--backend", type=click.Choice(["model", "rtl"]), default="model", show_default=True,
              help="The card: a model in Python, or the generated Verilog under Verilator, compiled at first use (minutes).")
@click.option("--transport", type=click.Choice(["rc", "xp"]), default="rc", show_default=True,
              help="rc: Reliable Connection, all that Linux can do. xp: best effort, UC messages of one packet.")
@click.option("--loss", type=click.FloatRange(0, 0.5), default=0.0, show_default=True, metavar="P",
              help="Probability with which the cable loses a frame.")
@click.option("--mtu", type=click.Choice(MTUS), help="Path MTU, bytes.  [default: 1024, or the most that the card takes]")
@click.option("--bytes", "size", type=click.IntRange(64, MOST_BYTES), default=1 << 14, show_default=True,
              help="What each operation moves, in several messages.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the data and of the losses.")
@click.option("--pcap", metavar="FILE", type=click.Path(path_type=Path), help="Record what Linux sends and gets.")
@click.option("--preset", default="tiny", metavar="P", show_default=True, help=f"The card: {', '.join(PRESETS)}.")
@click.option("--set", "settings", metavar="KNOB=VALUE", multiple=True,
              help="Change one knob of the preset; may be repeated. `optinic config` lists the knobs.")
@json_option
def peer(backend, transport, loss, mtu, size, seed, pcap, preset, settings, json_to):
    """A card and a Linux that is alive: its kernel's own RoCE, its own tools, each in the other's memory.

    Linux boots in QEMU (no KVM, no root, half a minute at the first time to make it from packages). It finds the card by ARP and
    neighbour discovery, pings it, and runs rdma-core's pingpong with it as client and as server. Then both WRITE, READ, SEND and
    add in each other's memory, and all of it is compared.

    \b
    optinic peer                                  on the model, less than a minute
    optinic peer --backend rtl --loss 0.02        the generated Verilog, on a bad cable
    optinic peer --transport xp                   best effort with a standard peer
    optinic peer --pcap peer.pcap --json peer.json

    Exit status: 0, 1 if something was not as it must be, 2 for a wrong command line or if there can be no Linux here.
    """
    cfg = configuration(preset, transport, settings)
    mtu = int(mtu) if mtu else None
    if mtu and mtu > cfg.mtu_max:
        raise click.UsageError(f"--mtu {mtu} is above {cfg.mtu_max}, the most that this card takes; choose a smaller one, or "
                               "another --preset")
    from sim.linux_peer import PeerError
    with one_line(PeerError, *failures()):
        from sim.experiments.peer import run
        with story(sys.stderr if json_to == "-" else sys.stdout, "steps") as (say, progress):
            result = run(backend, cfg, loss=loss, size=size, mtu=mtu, seed=seed, pcap=pcap, say=say, progress=progress)
    emit(result, json_to, show)
    for problem in result["problems"]:
        click.echo(f"optinic: {problem}", err=True)
    sys.exit(1 if result["problems"] else 0)


COLUMNS = [("what", "left"), ("by", "left"), ("messages", "right"), ("bytes", "right"), ("right", "right"), ("lost", "right"),
           ("us", "right"), ("Gbit/s", "right")]
AGAIN = {"go_backs": "the card sent again", "ack_timeouts": "its timeouts", "duplicates": "duplicates that it got",
         "naks_sent": "NAKs that it sent"}


def show(result):
    from sim.experiments.peer import table
    print_table("What came of it (times and rates are the card's, and with them Linux' slowness)", COLUMNS, table(result))
    frames, card = result["frames"], result["card"]
    again = ", ".join(f"{words} {card[name]}" for name, words in AGAIN.items() if card.get(name)) or "nothing had to be sent again"
    console().print(f"{frames['delivered']:,} frames arrived, {sum(frames['dropped'].values())} were lost; {again}.")
    console().print(f"{result['simulated_ns'] / 1e6:.2f} ms of the card, {result['guest_ns'] / 1e9:.1f} s of Linux, "
                    f"{result['seconds']:.0f} s of ours. {'All is right.' if not result['problems'] else 'Not all is right:'}")
