"""How many block RAMs a memory takes, from its width, its depth and the shapes that the parts have.

A part's block RAM can be had in a few shapes, width by depth. A memory is tiled with one shape: ceil(width / shape's width)
times ceil(depth / shape's depth) blocks, for each copy; the cheapest shape is taken. That is the rule of Yosys, which never
mixes shapes in one memory. `mixed` is what could be had by another shape for the leftover columns, as vendor tools may do.

Shapes: AMD UG573 (UltraScale) and UG473 (7 series), RAMB36 and RAMB18, the widest one only with one port to write and one to
read; AMD UG573, UltraRAM of 72 x 4096; Lattice FPGA-TN-02204 (ECP5 memory), DP16KD. Distributed RAM: UG574, UG474; a slice of
eight LUTs holds 32 x 14 or 64 x 7 bits with a port to write and one to read (7 series: of four LUTs 32 x 6 or 64 x 3).
"""

from dataclasses import dataclass
from functools import cache

__all__ = ["FAMILIES", "Family", "Tiling", "tile"]


def ceil_div(a, b):
    return -(-a // b)


@dataclass(frozen=True)
class Shape:
    name: str
    width: int
    depth: int
    units: float            #: of 36 Kib
    one_way: bool = False   #: one port writes, the other reads


@dataclass(frozen=True)
class Family:
    """`lut_ram`: {depth: (bits, LUTs)} of one distributed RAM; `block_luts`: how many LUTs of distributed RAM Yosys thinks as dear as
    the smallest block RAM, where the design doesn't say which to take."""
    name: str
    blocks: tuple
    lut_ram: dict
    block_luts: float
    shared_port: bool = True        #: Yosys lets a port both write and read the old row; if not, such a reader costs a copy
    uram: Shape | None = None


def _xilinx(generation):
    half = [Shape("RAMB18", w, d, 0.5) for w, d in ((1, 16384), (2, 8192), (4, 4096), (9, 2048), (18, 1024))]
    full = [Shape("RAMB36", w, d, 1) for w, d in ((1, 32768), (2, 16384), (4, 8192), (9, 4096), (18, 2048), (36, 1024))]
    return (*half, Shape("RAMB18", 36, 512, 0.5, one_way=True), *full, Shape("RAMB36", 72, 512, 1, one_way=True))


FAMILIES = {
    "xcup": Family("xcup", _xilinx("xcup"), {32: (14, 8), 64: (7, 8)}, 64.5, uram=Shape("URAM288", 72, 4096, 8)),
    "xc7": Family("xc7", _xilinx("xc7"), {32: (6, 4), 64: (3, 4)}, 64.5),
    "ecp5": Family("ecp5", (*(Shape("DP16KD", w, d, 0.5) for w, d in ((1, 16384), (2, 8192), (4, 4096), (9, 2048), (18, 1024))),
                            Shape("DP16KD", 36, 512, 0.5, one_way=True)), {16: (4, 6)}, 192, shared_port=False),
}


@dataclass(frozen=True)
class Tiling:
    """`kind` is "block", "lut" or "uram"; `blocks` of `shape` come to `units` of 36 Kib; `mixed` in the same unit."""
    kind: str
    shape: str
    blocks: int
    units: float
    mixed: float
    luts: int = 0


def tile(family, width, depth, *, copies=1, shared=0, style=None, uram=False):
    """What a memory of `depth` rows takes.

    `copies`: ports that read at an address of their own, each one of which costs a copy. `shared`: ports that read through the port
    of the writer, at its address: no copy, but one-way shapes are out for them. `style` is the design's own wish: "block",
    "distributed", "registers" or None. With `uram`, what fills UltraRAM by at least half goes there.
    """
    f = FAMILIES[family]
    if not f.shared_port:
        copies, shared = copies + shared, 0
    luts = _lut_ram(f, width, depth) * max(1, copies + shared)
    shapes = [s for s in f.blocks if not (s.one_way and shared)]
    cost, shape = min(((_count(s, width, depth) * s.units, s) for s in shapes), key=lambda c: (c[0], -c[1].units, -c[1].width))
    small = min(s.units for s in f.blocks)
    if uram and f.uram and style != "distributed":
        n = _count(f.uram, width, depth) * max(1, copies)
        if width * depth * max(1, copies) * 2 >= n * f.uram.width * f.uram.depth:
            return Tiling("uram", _shape_name(f.uram), n, 0, 0)
    in_luts = style == "distributed" or style is None and luts < cost * max(1, copies) / small * f.block_luts
    if in_luts:
        return Tiling("lut", f"{'x'.join(map(str, _lut_shape(f, depth)))} LUTRAM", 0, 0, 0, luts)
    n = max(1, copies)
    return Tiling("block", _shape_name(shape), int(cost / shape.units) * n, cost * n, _mixed(tuple(shapes), width, depth) * n)


def _count(shape, width, depth):
    return ceil_div(width, shape.width) * ceil_div(depth, shape.depth)


def _shape_name(shape):
    return f"{shape.width}x{shape.depth} {shape.name}"


def _lut_shape(family, depth):
    """(bits, rows) of the distributed RAM that fits a depth best."""
    rows = min((d for d in family.lut_ram if d >= depth), default=max(family.lut_ram))
    return family.lut_ram[rows][0], rows


def _lut_ram(family, width, depth):
    """LUTs that store; those that select between rows of slices are not counted."""
    bits, rows = _lut_shape(family, depth)
    return ceil_div(width, bits) * ceil_div(depth, rows) * family.lut_ram[rows][1]


@cache
def _mixed(shapes, width, depth):
    """Cheapest way to cover the columns with several shapes."""
    best = [0.0] + [float("inf")] * width
    for w in range(1, width + 1):
        for s in shapes:
            best[w] = min(best[w], best[max(0, w - s.width)] + s.units * ceil_div(depth, s.depth))
    return best[width]
