"""What is in a mapped netlist (Yosys JSON, Xilinx cells): cell counts, where they belong, and the deepest logic.

Levels: a LUT counts 1 (an inverter is a LUT); MUXF and CARRY count 0, as they are fast and dedicated. A path begins at
a register, block RAM, DSP with registers, or port, and ends at one. Distributed RAM and shift registers are written
like registers and read through a LUT: their output counts 1 from the clock, and 1 more than their read address.
LUT pairs that a vendor tool would pack into one LUT6 are counted as two.
"""

import json
import re
from collections import Counter, defaultdict, deque

__all__ = ["Netlist", "count_cells", "load_modules"]

FLIP_FLOP = re.compile(r"(FD[RSCP]E|LD[CP]E)(_1)?$")
LUT = re.compile(r"LUT([1-6])$")
#: LUT sites that a distributed RAM or shift register takes
RAM_SITES = {
    "RAM32X1S": 1, "RAM64X1S": 1, "RAM128X1S": 2, "RAM256X1S": 4, "RAM512X1S": 8,
    "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4, "RAM256X1D": 8,
    "RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8, "RAM64X8SW": 8, "RAM32X16DR8": 8,
}
SRL_SITES = {"SRL16": 1, "SRL16E": 1, "SRLC16": 1, "SRLC16E": 1, "SRLC32E": 1}
BLOCK_RAM = {"RAMB36E2": 1, "RAMB36E1": 1, "FIFO36E2": 1, "RAMB18E2": 0.5, "RAMB18E1": 0.5, "FIFO18E2": 0.5}
THROUGH = {"BUFG": "I", "IBUF": "I", "OBUF": "I", "BUFGCE": "I"}
MUX = {"MUXF5", "MUXF6", "MUXF7", "MUXF8", "MUXF9"}
CARRY = {"CARRY4": 4, "CARRY8": 8}
IGNORED = {"$scopeinfo", "GND", "VCC"}


def count_cells(types):
    """Totals of an iterable of cell types."""
    n = Counter(types)
    luts = {f"lut{k}": n[f"LUT{k}"] for k in range(1, 7)}
    luts["lut1"] += n["INV"]
    logic = sum(luts.values())
    ram = sum(RAM_SITES.get(t, 0) * c for t, c in n.items())
    srl = sum(SRL_SITES.get(t, 0) * c for t, c in n.items())
    return {
        "lut": logic + ram + srl, "lut_logic": logic, "lut_ram": ram, "lut_srl": srl, **luts,
        "ff": sum(c for t, c in n.items() if FLIP_FLOP.match(t)),
        "ramb36": sum(c for t, c in n.items() if BLOCK_RAM.get(t) == 1),
        "ramb18": sum(c for t, c in n.items() if BLOCK_RAM.get(t) == 0.5),
        "bram36": sum(BLOCK_RAM.get(t, 0) * c for t, c in n.items()),
        "uram": n["URAM288"],
        "dsp": sum(c for t, c in n.items() if t.startswith("DSP48")),
        "carry": sum(n[t] for t in CARRY),
        "muxf": sum(n[t] for t in MUX),
    }


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
        self.module = module
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
            self._add(name, cell)
        for name, port in module["ports"].items():
            for i, b in enumerate(port["bits"]):
                if port["direction"] == "input":
                    self.launch[b] = (0, None, f"{name}[{i}]" if len(port["bits"]) > 1 else name)
                elif isinstance(b, int):
                    self.ends.append((b, None, f"{name}[{i}]" if len(port["bits"]) > 1 else name))
        self._propagate()

    @classmethod
    def load(cls, path, top):
        with open(path) as f:
            return cls(json.load(f)["modules"][top])

    # -- building the graph ------------------------------------------------------------------------

    def _node(self, cell, out, weight, inputs):
        self.node_of[out] = len(self.out)
        self.out.append(out)
        self.weight.append(weight)
        self.inputs.append([b for b in inputs if isinstance(b, int)])
        self.cell_of.append(cell)

    def _start(self, name, port, bits, levels=0):
        for b in bits:
            if isinstance(b, int):
                self.launch[b] = (levels, name, port)

    def _end(self, name, port, bits):
        for b in bits:
            if isinstance(b, int):
                self.ends.append((b, name, port))

    def _add(self, name, cell):
        kind, pins = cell["type"], cell["connections"]
        if FLIP_FLOP.match(kind):
            self._start(name, "Q", pins["Q"])
            for p in pins:
                if p not in ("Q", "C", "G"):
                    self._end(name, p, pins[p])
        elif LUT.match(kind) or kind == "INV":
            self._node(name, pins["O"][0], 1, [b for p in pins if p != "O" for b in pins[p]])
        elif kind in MUX:
            self._node(name, pins["O"][0], 0, pins["I0"] + pins["I1"] + pins["S"])
        elif kind in CARRY:
            self._carry(name, pins, CARRY[kind])
        elif kind in THROUGH:
            self._node(name, pins["O"][0], 0, pins[THROUGH[kind]])
        elif kind in RAM_SITES or kind in SRL_SITES:
            self._lut_ram(name, kind, pins)
        elif kind.startswith("DSP48") and not self._has_registers(cell):
            inputs = [b for p, bits in pins.items() if cell["port_directions"][p] == "input" for b in bits]
            for p, bits in pins.items():
                if cell["port_directions"][p] == "output":
                    for b in bits:
                        if isinstance(b, int):
                            self._node(name, b, 1, inputs)
        else:
            if kind not in BLOCK_RAM and kind != "URAM288" and not kind.startswith("DSP48"):
                self.unknown[kind] += 1
            for p, bits in pins.items():
                if cell["port_directions"][p] == "output":
                    self._start(name, p, bits)
                elif "CLK" not in p:
                    self._end(name, p, bits)

    @staticmethod
    def _has_registers(cell):
        return any(int(str(cell["parameters"].get(p, "0")), 2) for p in ("AREG", "BREG", "MREG", "PREG"))

    def _carry(self, name, pins, width):
        """Each sum and carry bit depends on the bits up to it only, so that no false loops appear."""
        pad = lambda p: (pins.get(p, []) + ["0"] * width)[:width]
        below = [b for p in ("CI", "CYINIT", "CI_TOP") for b in pins.get(p, [])]
        for s, d, o, c in zip(pad("S"), pad("DI"), pad("O"), pad("CO")):
            if isinstance(o, int):
                self._node(name, o, 0, below + [s])
            if not isinstance(c, int):
                c, self._spare = self._spare, self._spare + 1
            self._node(name, c, 0, below + [s, d])
            below = [c]

    def _lut_ram(self, name, kind, pins):
        def read(out, *address):
            bits = [b for p in address for b in pins.get(p, [])]
            for b in pins.get(out, []):
                if isinstance(b, int):
                    clock, self._spare = self._spare, self._spare + 1
                    self.launch[clock] = (0, name, out)
                    self._node(name, b, 1, bits + [clock])

        numbered = lambda stem: sorted(p for p in pins if re.fullmatch(rf"{stem}\d*", p))
        if kind in SRL_SITES:
            read("Q", *numbered("A"))
            for out in ("Q15", "Q31"):
                self._start(name, out, pins.get(out, []))
            write = ["D", "CE"]
        elif "X1" in kind:          # A: write address, and read address of SPO or O; DPRA: of DPO
            read("O", *numbered("A"))
            read("SPO", *numbered("A"))
            read("DPO", *numbered("DPRA"))
            write = ["D", "WE", *numbered("A")]
        else:                       # DOx is read at ADDRx; the last letter's address is that of the write as well
            letters = sorted(p[-1] for p in pins if re.fullmatch(r"ADDR[A-H]", p))
            for x in letters:
                read(f"DO{x}", f"ADDR{x}")
            write = [p for p in pins if re.fullmatch(r"DI[A-H]|WE|WSEL\d*", p)] + [f"ADDR{letters[-1]}"]
        for p in write:
            self._end(name, p, pins.get(p, []))

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

    # -- names -------------------------------------------------------------------------------------

    def _aliases(self, wanted):
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

    def _describe(self, net, cell, port, aliases, *, start):
        """(name with bit, name without, source) of a start or end."""
        if cell is None:
            return port, port.split("[")[0], "port"
        src = self.cells[cell].get("attributes", {}).get("src", "")
        src = "|".join(s for s in src.split("|") if not s.startswith("/share/"))    # the techmap's own files
        kind, named = self.cells[cell]["type"], self._named_by(cell)
        if named is not None:
            sources = set(src.split("|"))
            names = sorted(aliases.get(named, []), key=lambda a: (not sources & set(a[2].split("|")), -a[0].count("."), a[0]))
            if names:
                name, bit, _ = names[0]
                pin = f" ({kind} {port})" if not FLIP_FLOP.match(kind) else "" if start or port == "D" else f" ({port})"
                return name + (f"[{bit}]" if bit is not None else "") + pin, name + pin, src
        base = re.sub(r"(\.\d+)+$", "", cell)
        return f"{cell} ({kind} {port})", f"{base} {port}", src

    def _named_by(self, cell):
        """The net whose name in the source is a better name for the cell than its own, if there is one."""
        if cell is None or not (cell.startswith("$") or FLIP_FLOP.match(self.cells[cell]["type"])):
            return None
        pins, ways = self.cells[cell]["connections"], self.cells[cell]["port_directions"]
        return next((b for p in pins if ways[p] == "output" for b in pins[p] if isinstance(b, int)), None)

    def _path(self, net, inner):
        """Nets from the start of the worst path to `net`."""
        worst = self.worst_inner if inner else self.worst
        nets = [net]
        while (b := worst.get(nets[-1])) is not None:
            nets.append(b)
        return nets[::-1]

    # -- results -----------------------------------------------------------------------------------

    def levels(self, ports=False):
        """Depth of the deepest path between registers; with `ports`, also of those from or to a port."""
        if ports:
            return max((self.level.get(b, 0) for b, _, _ in self.ends), default=0)
        return max((self.inner.get(b, 0) for b, c, _ in self.ends if c is not None), default=0)

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
                wanted.add(self._named_by(c))
        aliases = self._aliases(wanted)
        paths, seen = [], set()
        for lv, nets, start_cell, start_port, cell, port in traced:
            start, start_base, start_src = self._describe(nets[0], start_cell, start_port, aliases, start=True)
            end, end_base, end_src = self._describe(nets[-1], cell, port, aliases, start=False)
            if (start_base, end_base) in seen:
                continue
            seen.add((start_base, end_base))
            through = [self.cells[self.cell_of[self.node_of[b]]]["type"] for b in nets if b in self.node_of]
            paths.append({"levels": lv, "start": start, "start_src": start_src, "end": end, "end_src": end_src,
                          "cells": through, "nets": nets})
            if len(paths) == count:
                break
        middle = self._aliases({b for p in paths for b in p["nets"]})
        for p in paths:
            p["via"] = [max(middle[b], key=lambda a: a[0].count("."))[0] for b in p.pop("nets")[1:-1] if middle.get(b)]
        return paths

    def by_module(self, depth=2):
        """Counts by module, to `depth` levels below the top.

        Registers and memories belong to where they are declared. A LUT mostly has no name after optimisation: it is
        counted where its output is named, else where it is used.
        """
        def cut(name):
            """Scope of a hierarchical name."""
            parts = name.split(".")[:-1]
            while parts and ".".join(parts) not in self.scopes:
                parts.pop()
            return ".".join(parts[:depth])

        best, scope = {}, {}
        for name, net in self.module["netnames"].items():
            if not net["hide_name"]:
                where, deep = cut(name), name.count(".")
                for b in net["bits"]:
                    if deep > best.get(b, -1):
                        best[b], scope[b] = deep, where
        home = {}
        sinks = {}
        for name, cell in self.cells.items():
            if not (LUT.match(cell["type"]) or cell["type"] in ("INV", *MUX, *CARRY)):
                outs = [b for p, bits in cell["connections"].items() if cell["port_directions"][p] == "output" for b in bits]
                own = cut(name) if not name.startswith("$") else ""
                home[name] = own or next((scope[b] for b in outs if b in scope), "")
                for p, bits in cell["connections"].items():
                    if cell["port_directions"][p] == "input":
                        for b in bits:
                            sinks.setdefault(b, home[name])
        for n in reversed(self.order):
            cell, out = self.cell_of[n], self.out[n]
            if cell not in home or not home[cell]:
                home[cell] = scope.get(out) or sinks.get(out, "")
            for b in self.inputs[n]:
                sinks.setdefault(b, home[cell])
        groups = defaultdict(list)
        for name, cell in self.cells.items():
            groups[home.get(name, "")].append(cell["type"])
        return {k: count_cells(groups[k]) for k in sorted(groups)}

    def report(self, paths=10, depth=2):
        """Everything as a plain dict."""
        names = self._aliases({b for loop in self.loops for b in loop})
        return {
            "cells": count_cells(c["type"] for c in self.cells.values()),
            "unknown_cells": dict(self.unknown),
            "loops": [[names[b][0][0] if names.get(b) else f"net {b}" for b in loop] for loop in self.loops],
            "levels": self.levels(),
            "levels_with_ports": self.levels(ports=True),
            "paths": self.longest_paths(paths),
            "port_paths": self.longest_paths(paths, ports=True),
            "modules": self.by_module(depth),
        }
