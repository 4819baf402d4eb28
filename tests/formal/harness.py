"""Formal checks of Amaranth designs: yosys writes SMT2, yosys-smtbmc and Boolector judge it.

A check is a component or elaboratable whose module contains Assert, Assume and Cover. Its clock is the one of the
check; its reset may come at any time, unless the check assumes otherwise (`never_reset`). Memories become registers,
so keep them small.
"""

from dataclasses import dataclass, field
from pathlib import Path
import re

from amaranth.back import rtlil
from amaranth.hdl import Assert, Assume, Elaboratable, Fragment, Module, ResetSignal, Signal

from amaranth.lib.wiring import In

from rtl_gen.yosys import ToolError, run_smtbmc, run_yosys

__all__ = ["Result", "prove", "judge", "opened", "never_reset", "free", "Check"]

BUILD = Path("build/formal")

_SCRIPT = """
read_rtlil top.il
prep -flatten -top top
memory_nordff
memory_map -formal
async2sync
chformal -lower
{only}
formalff -clk2ff -ff2anyinit -hierarchy
setundef -undriven -anyseq
opt_clean
opt -fast
dffunmap
write_smt2 -wires top.smt2
"""


@dataclass
class Result:
    passed: bool
    failed: list = field(default_factory=list)      #: what smtbmc says about the assertions that failed
    reached: dict = field(default_factory=dict)     #: cover statement -> step
    log: str = ""

    def __bool__(self):
        return self.passed


def prove(top, depth, mode="bmc", *, name, build=BUILD):
    """Check `top` for `depth` cycles.

    mode "bmc": no assertion fails within `depth` cycles of the start. "prove": none ever does, by induction over
    `depth` cycles after the same base case. "cover": every cover statement is reached within `depth` cycles.
    """
    folder = Path(build) / re.sub(r"\W+", "_", f"{name}_{mode}")
    folder.mkdir(parents=True, exist_ok=True)
    ports = None if hasattr(top, "signature") else list(getattr(top, "ports", ()))
    (folder / "top.il").write_text(rtlil.convert(top, name="top", **({} if ports is None else {"ports": ports})))
    only = "chformal -assert -remove" if mode == "cover" else "chformal -cover -remove"
    run_yosys(_SCRIPT.format(only=only), folder)
    if mode == "cover":
        return _smtbmc(["-c", "-t", str(depth)], folder, "cover.log")
    result = _smtbmc(["-t", str(depth), "--dump-vcd", "fail.vcd"], folder, "bmc.log")
    if mode == "prove" and result:
        result = _smtbmc(["-i", "-t", str(depth), "--dump-vcd", "induction.vcd"], folder, "induction.log")
    return result


def _smtbmc(args, folder, log):
    status, text = run_smtbmc(["-m", "top", *args, "top.smt2"], folder, log=log)
    verdict = re.search(r"Status: (\w+)", text)
    if verdict is None:
        raise ToolError(f"the checker gave no verdict (status {status}), see {folder / log}:\n{text[-600:]}")
    failed = re.findall(r"(?:Assert failed in|Unreached cover statement at|Unreached cover statement in) (.*)", text)
    reached = {what: int(step) for step, what in re.findall(r"Reached cover statement in step (\d+) at (.*)", text)}
    return Result(verdict[1].upper() == "PASSED", failed, reached, text)


# -- building blocks of a check ------------------------------------------------------------------------


class Check(Elaboratable):
    """An elaboratable made of a function build(m, free): `free(shape, name)` makes an input that the checker chooses."""

    def __init__(self, build):
        self.ports = []
        self._module = Module()
        build(self._module, self._free)

    def _free(self, shape, name):
        signal = Signal(shape, name=name)
        self.ports.append(signal.as_value() if hasattr(signal, "as_value") else signal)
        return signal

    def elaborate(self, platform):
        return self._module


def judge(m, contract, port, name, *, design):
    """Hold `port` against `contract`; `design` ("source", "sink" or "both") is the side that the design plays."""
    m.submodules[name] = contract
    m.d.comb += contract.watch(port)
    for side in "source", "sink":
        faults = getattr(contract, f"{side}_fault")
        for flag in faults.shape().members:
            rule = Assert if design in (side, "both") else Assume
            m.d.comb += rule(~faults[flag])


def free(m, free_, port, name):
    """Let the checker choose every input of `port` (a flat interface as the design sees it); nested ones by path."""
    for path, member, value in port.signature.flatten(port):
        if member.flow is In:
            label = "__".join([name, *map(str, path)])
            value = value.as_value() if hasattr(value, "as_value") else value
            m.d.comb += value.eq(free_(len(value), label))


def opened(component):
    """(`component` elaborated, for use as a submodule; its driven signals by name, "sub.name" below a submodule).

    An induction must be told how a design's registers hang together, and those have no ports.
    """
    def collect(fragment, prefix):
        for statements in fragment.statements.values():
            for statement in statements:
                for signal in statement._lhs_signals():
                    found.setdefault(prefix + signal.name, signal)
        for sub, name, *_ in fragment.subfragments:
            collect(sub, f"{prefix}{name}.")

    found, fragment = {}, Fragment.get(component, None)
    collect(fragment, "")
    return fragment, found


def never_reset(m):
    m.d.comb += Assume(~ResetSignal())
