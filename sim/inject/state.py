"""Every bit of state in a card's Verilog, and where the compiled simulation keeps it.

State is what a clock edge writes: registers and memories. Verilator keeps each as a member of one class, under the name of the
register or of a wire that is connected to it; which of them it kept is read from the header that it wrote. What it kept under
no name (state that nothing depends on, or that never changes) can't be flipped and is listed with no member.
"""

from dataclasses import dataclass, replace
import re

__all__ = ["Cell", "state_of", "bits_of", "place", "binding"]

NAME = r"(?:\\\S+|[A-Za-z_][\w$]*)"
MODULE = re.compile(rf"^module\s+({NAME})\s*\((.*?)^endmodule", re.S | re.M)
DECLARED = re.compile(rf"^\s*(?:output |input )?reg (?:signed )?(?:\[(\d+):0\] )?({NAME})\s*(?:\[(\d+):0\])?\s*(?:=.*)?;", re.M)
EDGE = re.compile(r"always @\(posedge clk\)( begin\n.*?\n  end$|.*?;$)", re.S | re.M)
WRITTEN = re.compile(rf"({NAME})\s*(?:\[[^\]]*\]\s*)*<=")
ALIAS = re.compile(rf"^  assign ({NAME})\s* = ({NAME})\s*;$", re.M)
INSTANCE = re.compile(rf"^  ({NAME})\s+({NAME})\s+\(\n(.*?)^  \);", re.S | re.M)
PORT = re.compile(rf"\.({NAME})\s*\(({NAME})\s*\)")
MEMBER = re.compile(r"^\s+(?:VL_(?:IN|OUT|INOUT)(?:8|16|64|W)?\(&?(\w+),.*\);|"
                    r"(?:(?:[CSIQ]Data|VlWide<\d+>)/\*[\d:]+\*/|VlUnpacked<.*>) (\w+);)$", re.M)


@dataclass(frozen=True)
class Cell:
    """A register (`rows` is None) or a memory of `rows` rows, each of `bits` bits. `name`: instances from the top down, then its own,
    with dots. `table`: a per-item table of the design (optinic.memory.table), not a queue or a buffer. `member`: where the
    simulation has it, None if nowhere."""
    name: str
    bits: int
    rows: int = None
    table: bool = False
    net: tuple = ()
    member: str = None

    @property
    def size(self):
        return self.bits * (self.rows or 1)


class _Module:
    def __init__(self, body):
        self.declared = {name: (int(msb or 0) + 1, int(last) + 1 if last else None)
                         for msb, name, last in DECLARED.findall(body)}
        written = {name for block in EDGE.findall(body) for name in WRITTEN.findall(block)}
        self.state = sorted(written & self.declared.keys())
        self.aliases = ALIAS.findall(body)
        self.instances = [(kind, name, PORT.findall(ports)) for kind, name, ports in INSTANCE.findall(body)]


class _Nets:
    """Which names, in which instances, are one net."""

    def __init__(self):
        self._parent, self._members = {}, {}

    def _root(self, net):
        while self._parent.get(net, net) != net:
            net = self._parent[net]
        return net

    def join(self, a, b):
        a, b = self._root(a), self._root(b)
        if a != b:
            self._members[a] = self.names(a) | self.names(b)
            self._parent[b] = a

    def names(self, net):
        root = self._root(net)
        return self._members.get(root, {root})


def state_of(verilog, top):
    """([Cell], nets) of the design, in the order of the instances; `nets` is for :func:`place`."""
    modules = {name: _Module(body) for name, body in MODULE.findall(verilog)}
    cells, nets = [], _Nets()

    def walk(kind, path):
        module = modules[kind]
        for name in module.state:
            bits, rows = module.declared[name]
            cells.append(Cell(".".join((*path, name)).replace("\\", ""), bits, rows,
                              rows is not None and {"clearing", "sweep"} <= set(module.state), (path, name)))
        for a, b in module.aliases:
            nets.join((path, a), (path, b))
        for kind, name, ports in module.instances:
            if kind in modules:
                for inner, outer in ports:
                    nets.join(((*path, name), inner), (path, outer))
                walk(kind, (*path, name))

    walk(top if top in modules else "\\" + top, ())
    return cells, nets


def bits_of(verilog, top):
    """{"tables", "buffers", "registers"}: how many bits of each kind of state a design has, each memory once. "buffers" is what
    rtl_gen.report.soft_errors takes as "buffer_bits"."""
    found = {"tables": 0, "buffers": 0, "registers": 0}
    for cell in state_of(verilog, top)[0]:
        found["registers" if cell.rows is None else "tables" if cell.table else "buffers"] += cell.size
    return found


def _mangled(name):
    """As Verilator spells it in C++."""
    name = name.replace("\\", "").replace("__", "_\0")
    return "".join("__05F" if c == "\0" else c if c.isalnum() or c == "_" else f"__0{ord(c):02X}" for c in name)


def place(cells, nets, top, header):
    """The cells, each with its member in the class that `header` (Vtop___024root.h) declares, where there is one."""
    members = {port or member for port, member in MEMBER.findall(header)}

    def spelt(net):
        path, name = net
        inside = "__DOT__".join(map(_mangled, (top, *path, name)))
        return [inside] if path else [inside, _mangled(name)]

    placed = []
    for cell in cells:
        found = [s for s in spelt(cell.net) if s in members]
        if not found and cell.rows is None:
            found = sorted(s for net in nets.names(cell.net) for s in spelt(net) if s in members)
        placed.append(replace(cell, member=found[0] if found else None))
    return placed


def binding(cells):
    """C++ that makes the cells that have a member known to the model, as `cells`."""
    return "\n".join(f'        cells.push_back({{"{c.name}", {c.bits}, {c.rows or 0}, {int(c.table)}, '
                     f'sizeof(r->{c.member}) / {c.rows or 1}, &r->{c.member}}});' for c in cells if c.member)
