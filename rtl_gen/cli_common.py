"""What the commands of `optinic` share: options, errors in one line, JSON beside tables, what is under way."""

from contextlib import contextmanager
import json as jsonlib
import os
from pathlib import Path
import sys

import click

from optinic.config import ConfigError, NicConfig, PRESETS, preset as make_config

from .verilog import PackageError

__all__ = ["Commands", "configured", "configuration", "json_option", "emit", "fail", "one_line", "print_table", "console", "number",
           "stages"]


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
            fail(error.format_message())
        except (ConfigError, PackageError, OSError) as error:
            fail(str(error))
        sys.exit(result if isinstance(result, int) else 0)


def fail(message):
    click.echo("optinic: " + " ".join(message.split()), err=True)
    sys.exit(2)


@contextmanager
def one_line(*errors):
    """These errors are the user's to read: as one line, not as a traceback."""
    try:
        yield
    except errors as error:
        raise click.ClickException(str(error)) from None


def configuration(preset, transport, settings):
    knobs = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set {setting!r} has no '='; write --set knob=value, for example --set num_qps=64")
        knobs[name] = NicConfig.parse(name, text)
    if transport is not None:
        knobs["transport"] = transport
    return make_config(preset, **knobs)


def configured(command=None, *, default="small", several=False):
    """Options that choose a configuration; the command gets it as `cfg`, or with `several` one for each transport that was asked
    for, as `configs`."""
    if command is None:
        return lambda command: configured(command, default=default, several=several)

    def run(preset, transport, settings, **kwargs):
        if several:
            names = (transport or "xp").split(",")
            return command(configs=[configuration(preset, name.strip(), settings) for name in dict.fromkeys(names)], **kwargs)
        return command(cfg=configuration(preset, transport, settings), **kwargs)
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__click_params__ = getattr(command, "__click_params__", [])
    which = ("T[,T]", "Transport engines, each measured: xp (OptiNIC), rc (the reliable baseline).") if several else \
        ("T", "Transport engine: xp (OptiNIC) or rc (the reliable baseline).")
    for option in (click.option("--set", "settings", metavar="KNOB=VALUE", multiple=True,
                                help="Change one knob of the preset; may be repeated. `optinic config` lists the knobs."),
                   click.option("--transport", metavar=which[0], help=which[1]),
                   click.option("--preset", default=default, metavar="P", show_default=True,
                                help=f"Where to start from: {', '.join(PRESETS)}.")):
        run = option(run)
    return run


def json_option(command):
    return click.option("--json", "json_to", is_flag=False, flag_value="-", metavar="[FILE]",
                        help="Write the result as JSON to FILE; without FILE, to standard output instead of the table.")(command)


def emit(data, json_to, show):
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


def print_table(title, columns, rows, footer=None):
    from rich.table import Table
    table = Table(show_footer=footer is not None, show_header=any(head for head, _ in columns))
    for i, (head, justify) in enumerate(columns):
        table.add_column(head, justify=justify, footer=str(footer[i]) if footer else "", no_wrap=i == 0)
    for row in rows:
        table.add_row(*map(str, row))
    out = console()
    out.print(title, style="bold")      # not the table's own title, which would be folded to the table's width
    out.print(table)


def console():
    from rich.console import Console
    # A pipe has no width; 80 columns would cut tables that a file can hold whole.
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=132)


@contextmanager
def stages():
    """Two functions that say on standard error what is under way: `stage(text)`, what begins, and `count(done, total)`, how far it
    is. On a terminal that is a bar, elsewhere a line for each stage."""
    if not sys.stderr.isatty():
        yield lambda text: click.echo(text, err=True), lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True),
                  transient=True) as bar:
        task = bar.add_task("", total=None)
        yield (lambda text: bar.reset(task, description=text, total=None),
               lambda done, total: bar.update(task, completed=done, total=total))


def number(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        text = f"{value:,.2f}"
        return text[:-3] if text.endswith(".00") else text
    return f"{value:,}" if isinstance(value, int) else str(value)
