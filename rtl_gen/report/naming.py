"""Names in the source for what is in a mapped netlist, and what of it belongs to which module."""

import re
from collections import defaultdict

from .cells import FLIP_FLOP, count_cells, is_logic

__all__ = ["Names", "by_module"]


class Names:
    """Names of nets and cells of a flat module, given as Yosys' JSON."""

    def __init__(self, module):
        self.module, self.cells = module, module["cells"]

    def of_nets(self, wanted):
        """net -> [(name, bit or None, source)] of its names in the source, for the nets in `wanted`."""
        found = defaultdict(list)
        for name, net in self.module["netnames"].items():
            if net["hide_name"]:
                continue
            bits = net["bits"]
            src = net.get("attributes", {}).get("src", "")
            for i, b in enumerate(bits):
                if b in wanted:
                    found[b].append((name, i if len(bits) > 1 else None, src))
        return found

    def describe(self, cell, port, aliases, *, start):
        """(name with bit, name without, source) of a start or end of a path; `cell` is None for a port of the design."""
        if cell is None:
            return port, port.split("[")[0], "port"
        src = self.cells[cell].get("attributes", {}).get("src", "")
        src = "|".join(s for s in src.split("|") if not s.startswith("/"))      # not the tools' own files
        kind, named = self.cells[cell]["type"], self.named_by(cell)
        if named is not None:
            sources = set(src.split("|"))
            names = sorted(aliases.get(named, []), key=lambda a: (not sources & set(a[2].split("|")), -a[0].count("."), a[0]))
            if names:
                name, bit, _ = names[0]
                pin = f" ({kind} {port})" if not FLIP_FLOP.match(kind) else "" if start or port in ("D", "DI") else f" ({port})"
                return name + (f"[{bit}]" if bit is not None else "") + pin, name + pin, src
        base = re.sub(r"(\.\d+)+$", "", cell)
        return f"{cell} ({kind} {port})", f"{base} {port}", src

    def named_by(self, cell):
        """The net whose name in the source is a better name for the cell than its own, if there is one."""
        if cell is None or not (cell.startswith("$") or FLIP_FLOP.match(self.cells[cell]["type"])):
            return None
        pins, ways = self.cells[cell]["connections"], self.cells[cell]["port_directions"]
        return next((b for p in pins if ways[p] == "output" for b in pins[p] if isinstance(b, int)), None)


def by_module(netlist, depth=2):
    """Counts by module, to `depth` levels below the top.

    Registers and memories belong to where they are declared. A LUT mostly has no name after optimisation: it is
    counted where its output is named, else where it is used.
    """
    def cut(name):
        """Scope of a hierarchical name."""
        parts = name.split(".")[:-1]
        while parts and ".".join(parts) not in netlist.scopes:
            parts.pop()
        return ".".join(parts[:depth])

    best, scope = {}, {}
    for name, net in netlist.module["netnames"].items():
        if not net["hide_name"]:
            where, deep = cut(name), name.count(".")
            for b in net["bits"]:
                if deep > best.get(b, -1):
                    best[b], scope[b] = deep, where
    home = {}
    sinks = {}
    for name, cell in netlist.cells.items():
        if not is_logic(cell["type"]):
            outs = [b for p, bits in cell["connections"].items() if cell["port_directions"][p] == "output" for b in bits]
            own = cut(name) if not name.startswith("$") else ""
            home[name] = own or next((scope[b] for b in outs if b in scope), "")
            for p, bits in cell["connections"].items():
                if cell["port_directions"][p] == "input":
                    for b in bits:
                        sinks.setdefault(b, home[name])
    for n in reversed(netlist.order):
        cell, out = netlist.cell_of[n], netlist.out[n]
        if cell not in home or not home[cell]:
            home[cell] = scope.get(out) or sinks.get(out, "")
        for b in netlist.inputs[n]:
            sinks.setdefault(b, home[cell])
    groups = defaultdict(list)
    for name, cell in netlist.cells.items():
        groups[home.get(name, "")].append(cell["type"])
    return {k: count_cells(groups[k]) for k in sorted(groups)}
