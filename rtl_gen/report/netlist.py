"""What is in a mapped netlist (Yosys JSON): cell counts, where they belong, and the deepest logic.

What counts as a level is in cells.py. A path begins at a register, block RAM, DSP with registers, or port, and ends at
one. LUT pairs that a vendor tool would pack into one LUT6 are counted as two.
"""

import json
from collections import Counter, deque

from .cells import IGNORED, add_cell, count_cells
from .naming import Names, by_module

__all__ = ["MEMORIES", "Netlist", "count_cells", "load_flat", "load_modules"]

MEMORIES = "mapped_memories"    #: the module in which a flat design's memories were while they were mapped (flow.py)


def load_flat(path, top):
    """The one module of a flat netlist, as Yosys' JSON has it, without the name of the module that its memories were mapped in."""
    with open(path, encoding="utf-8") as f:
        module = json.load(f)["modules"][top]
    for kind in ("cells", "netnames"):
        module[kind] = {name.removeprefix(f"{MEMORIES}."): what for name, what in module[kind].items()}
    return module


def load_modules(path, top):
    """For a netlist that kept its modules: name -> (instances below `top`, counts of one instance, own cells only)."""
    with open(path) as f:
        modules = json.load(f)["modules"]
    own = {name: [c["type"] for c in m["cells"].values()] for name, m in modules.items()
           if not m.get("attributes", {}).get("blackbox")}
    uses = Counter()

    def visit(name, n):
        uses[name] += n
        for sub, k in Counter(t for t in own[name] if t in own).items():
            visit(sub, n * k)

    visit(top, 1)
    return {name: (n, count_cells(t for t in own[name] if t not in own)) for name, n in uses.items()}


class Netlist:
    """A flat netlist as a graph: nodes are outputs of combinational cells, with a weight in levels."""

    def __init__(self, module):
        self.module, self.names = module, Names(module)
        self.cells = {k: c for k, c in module["cells"].items() if c["type"] not in IGNORED}
        self.scopes = {k: c.get("attributes", {}).get("module", "") for k, c in module["cells"].items()
                       if c["type"] == "$scopeinfo"}
        self.unknown = Counter()
        self.launch = {}        # net -> (levels at its start, cell name, port)
        self.ends = []          # (net, cell name, port)
        self.out, self.weight, self.inputs, self.cell_of = [], [], [], []     # per node
        self.node_of = {}       # net -> node that drives it
        self._spare = 1 + max((b for c in self.cells.values() for bits in c["connections"].values() for b in bits
                               if isinstance(b, int)), default=1)
        for name, cell in self.cells.items():
            if not add_cell(self, name, cell):
                self.unknown[cell["type"]] += 1
        for name, port in module["ports"].items():
            for i, b in enumerate(port["bits"]):
                if port["direction"] == "input":
                    self.launch[b] = (0, None, f"{name}[{i}]" if len(port["bits"]) > 1 else name)
                elif isinstance(b, int):
                    self.ends.append((b, None, f"{name}[{i}]" if len(port["bits"]) > 1 else name))
        self._propagate()

    @classmethod
    def load(cls, path, top):
        return cls(load_flat(path, top))

    # -- building the graph ------------------------------------------------------------------------

    def node(self, cell, out, weight, inputs):
        """Net `out` comes from `inputs` through a combinational cell, `weight` levels later."""
        self.node_of[out] = len(self.out)
        self.out.append(out)
        self.weight.append(weight)
        self.inputs.append([b for b in inputs if isinstance(b, int)])
        self.cell_of.append(cell)

    def start(self, name, port, bits, levels=0):
        """Paths begin at these nets, outputs of a register or the like."""
        for b in bits:
            if isinstance(b, int):
                self.launch[b] = (levels, name, port)

    def end(self, name, port, bits):
        for b in bits:
            if isinstance(b, int):
                self.ends.append((b, name, port))

    def spare(self):
        """A net that the netlist doesn't have."""
        self._spare += 1
        return self._spare - 1

    # -- levels ------------------------------------------------------------------------------------

    def _propagate(self):
        nodes = range(len(self.out))
        node_of, inputs = self.node_of, self.inputs
        waiting = [0] * len(nodes)
        users = [[] for _ in nodes]
        for n in nodes:
            for b in inputs[n]:
                d = node_of.get(b)
                if d is not None:
                    users[d].append(n)
                    waiting[n] += 1
        ready = deque(n for n in nodes if not waiting[n])
        level = {b: lv for b, (lv, _, _) in self.launch.items()}
        self.worst = {}             # net -> the input through which its level comes
        # Two figures a net: the depth from any start, and that from registers alone (None: none reaches it).
        inner = {b: lv for b, (lv, cell, _) in self.launch.items() if cell is not None}
        worst_inner = {}
        order = []
        while ready:
            n = ready.popleft()
            order.append(n)
            out, w = self.out[n], self.weight[n]
            best = best_in = -1
            by = by_in = None
            for b in inputs[n]:
                lv = level.get(b, 0)
                if lv > best:
                    best, by = lv, b
                lv = inner.get(b, -1)
                if lv > best_in:
                    best_in, by_in = lv, b
            level[out], self.worst[out] = max(best, 0) + w, by
            if by_in is not None:
                inner[out], worst_inner[out] = best_in + w, by_in
            for u in users[n]:
                waiting[u] -= 1
                if not waiting[u]:
                    ready.append(u)
        self.order, self.level, self.inner, self.worst_inner = order, level, inner, worst_inner
        self.loops = self._find_loops({n for n in nodes if waiting[n]}, users) if len(order) < len(nodes) else []

    def _find_loops(self, stuck, users, most=10):
        """Cycles among the nodes that never became ready, as lists of nets; at most `most`, sharing no node."""
        succ = {n: [u for u in users[n] if u in stuck] for n in stuck}
        loops = []
        while stuck and len(loops) < most:
            left = Counter({n: sum(u in stuck for u in succ[n]) for n in stuck})
            dead = deque(n for n in stuck if not left[n])
            while dead:             # only downstream of a loop: not part of one
                n = dead.popleft()
                stuck.discard(n)
                for b in self.inputs[n]:
                    d = self.node_of.get(b)
                    if d in stuck:
                        left[d] -= 1
                        if not left[d]:
                            dead.append(d)
            if not stuck:
                break
            seen, n = {}, min(stuck)
            while n not in seen:
                seen[n] = len(seen)
                n = next(u for u in succ[n] if u in stuck)
            loop = [k for k, i in seen.items() if i >= seen[n]]
            loops.append([self.out[k] for k in loop])
            stuck.difference_update(loop)
        return loops

    # -- results -----------------------------------------------------------------------------------

    def _path(self, net, inner):
        """Nets from the start of the worst path to `net`."""
        worst = self.worst_inner if inner else self.worst
        nets = [net]
        while (b := worst.get(nets[-1])) is not None:
            nets.append(b)
        return nets[::-1]

    def levels(self, ports=False):
        """Depth of the deepest path between registers; with `ports`, also of those from or to a port."""
        if ports:
            return max((self.level.get(b, 0) for b, _, _ in self.ends), default=0)
        return max((self.inner.get(b, 0) for b, c, _ in self.ends if c is not None), default=0)

    def histogram(self):
        """[[levels, inputs of registers whose deepest path from a register has so many levels]], ascending, without gaps."""
        found = Counter(self.inner[b] for b, c, _ in self.ends if c is not None and b in self.inner)
        return [[n, found[n]] for n in range(max(found, default=-1) + 1)]

    def longest_paths(self, count=10, ports=False, examine=5000):
        """The longest paths, one for each pair of start and end register, deepest first."""
        level = self.level if ports else self.inner
        ends = sorted(((level[b], b, c, p) for b, c, p in self.ends if b in level and (ports or c is not None)),
                      key=lambda e: -e[0])[:examine]
        traced, wanted = [], set()
        for lv, b, cell, port in ends:
            nets = self._path(b, not ports)
            _, start_cell, start_port = self.launch.get(nets[0], (0, None, "constant"))
            traced.append((lv, nets, start_cell, start_port, cell, port))
            for c in (start_cell, cell):
                wanted.add(self.names.named_by(c))
        aliases = self.names.of_nets(wanted)
        paths, seen = [], set()
        for lv, nets, start_cell, start_port, cell, port in traced:
            start, start_base, start_src = self.names.describe(start_cell, start_port, aliases, start=True)
            end, end_base, end_src = self.names.describe(cell, port, aliases, start=False)
            if (start_base, end_base) in seen:
                continue
            seen.add((start_base, end_base))
            through = [self.cells[self.cell_of[self.node_of[b]]]["type"] for b in nets if b in self.node_of]
            paths.append({"levels": lv, "start": start, "start_src": start_src, "end": end, "end_src": end_src,
                          "cells": through, "nets": nets})
            if len(paths) == count:
                break
        middle = self.names.of_nets({b for p in paths for b in p["nets"]})
        for p in paths:
            p["via"] = [max(middle[b], key=lambda a: a[0].count("."))[0] for b in p.pop("nets")[1:-1] if middle.get(b)]
        return paths

    def report(self, paths=10, depth=2):
        """Everything as a plain dict."""
        names = self.names.of_nets({b for loop in self.loops for b in loop})
        return {
            "cells": count_cells(c["type"] for c in self.cells.values()),
            "unknown_cells": dict(self.unknown),
            "loops": [[names[b][0][0] if names.get(b) else f"net {b}" for b in loop] for loop in self.loops],
            "levels": self.levels(),
            "levels_with_ports": self.levels(ports=True),
            "paths": self.longest_paths(paths),
            "histogram": self.histogram(),
            "port_paths": self.longest_paths(paths, ports=True),
            "modules": by_module(self, depth),
        }
