"""A card has more ports than a package has pins: this puts shift registers around a mapped card, so that it can be placed.

Every input of the card comes from a register, and all these registers are one long shift register. Every output goes to a
register, which either captures the output or shifts. Four pins are left: clock, serial input, capture, serial output (reset
is an input like the others). The wrapper is added to the mapped netlist, so the card is the same to the cell as without,
and what the wrapper costs is known exactly and reported apart. Nothing of the card is optimised away, as all its inputs are
unknown and all its outputs are used; its paths from and to ports count like those between registers.
"""

__all__ = ["PREFIX", "wrap"]

PREFIX = "scan_wrapper"
#: LUT4 truth table, most significant bit first: C ? A : B
_SELECT = "".join(str((i & 1) if i >> 2 & 1 else (i >> 1 & 1)) for i in reversed(range(16)))


def wrap(module, clock="clk"):
    """`module`: one module of Yosys' JSON, mapped to ECP5. Returns (the same with a wrapper, what the wrapper adds)."""
    cells = {name: cell for name, cell in module["cells"].items() if cell["type"] != "$scopeinfo"}
    nets = 1 + max(b for c in cells.values() for bits in c["connections"].values() for b in bits if isinstance(b, int))
    ports = module["ports"]
    nets = max([nets] + [b + 1 for p in ports.values() for b in p["bits"] if isinstance(b, int)])
    clk = ports[clock]["bits"][0]
    names = {}

    def net(name):
        nonlocal nets
        nets += 1
        names[name] = {"hide_name": 0, "bits": [nets], "attributes": {}}
        return nets

    def register(name, data, q):
        cells[name] = {
            "hide_name": 0, "type": "TRELLIS_FF",
            "parameters": {"CEMUX": "1 ", "CLKMUX": "CLK", "GSR": "DISABLED", "LSRMUX": "LSR", "REGSET": "RESET",
                           "SRMODE": "LSR_OVER_CE"},
            "attributes": {}, "port_directions": {"CLK": "input", "DI": "input", "LSR": "input", "Q": "output"},
            "connections": {"CLK": [clk], "DI": [data], "LSR": ["0"], "Q": [q]}}

    scan_in, capture_pin, capture = net("scan_in"), net("capture"), net(f"{PREFIX}.capture")
    register(f"{PREFIX}.capture_register", capture_pin, capture)
    chain, inputs, outputs = scan_in, 0, 0
    for name, port in ports.items():
        for i, bit in enumerate(port["bits"]):
            if port["direction"] == "input" and name != clock:
                register(f"{PREFIX}.in.{name}.{i}", chain, bit)
                chain, inputs = bit, inputs + 1
    for name, port in ports.items():
        for i, bit in enumerate(port["bits"]):
            if port["direction"] == "output":
                d, q = net(f"{PREFIX}.{name}.{i}.d"), net(f"{PREFIX}.{name}.{i}.q")
                cells[f"{PREFIX}.select.{name}.{i}"] = {
                    "hide_name": 0, "type": "LUT4", "parameters": {"INIT": _SELECT}, "attributes": {},
                    "port_directions": {"A": "input", "B": "input", "C": "input", "D": "input", "Z": "output"},
                    "connections": {"A": [bit], "B": [chain], "C": [capture], "D": ["0"], "Z": [d]}}
                register(f"{PREFIX}.out.{name}.{i}", d, q)
                chain, outputs = q, outputs + 1
    wrapped = {
        "attributes": {"top": "00000000000000000000000000000001"},
        "ports": {clock: ports[clock], "scan_in": {"direction": "input", "bits": [scan_in]},
                  "capture": {"direction": "input", "bits": [capture_pin]}, "scan_out": {"direction": "output", "bits": [chain]}},
        "cells": cells,
        "netnames": {name: value for name, value in module["netnames"].items() if not value["hide_name"]} | names,
    }
    return wrapped, {"ff": inputs + outputs + 1, "lut": outputs, "inputs": inputs, "outputs": outputs, "pins": 4}
