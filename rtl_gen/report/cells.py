"""The cells of a mapped netlist, of both makers: what each one counts as, and what way a signal takes through it.

A level is a LUT between registers. What counts as one, and what does not:

=====================  ===============================================  =================================================
                       Xilinx (xcup, xc7)                               Lattice (ecp5)
=====================  ===============================================  =================================================
1 level                LUT1..LUT6, INV                                  LUT4, INV
0, fast and dedicated  MUXF7..9, CARRY4, CARRY8 (the LUTs in front of   PFUMX, L6MUX21; of a CCU2C the way from CIN
                       a carry are cells of their own, and count)
1, a LUT with carry    -                                                CCU2C from A, B, C, D: its LUTs are inside
1 from the clock, and  distributed RAM, shift registers                 TRELLIS_DPR16X4
1 from the address
0 from the clock       registers, block RAM, DSP with registers         TRELLIS_FF, DP16KD, MULT18X18D with registers
=====================  ===============================================  =================================================

A LUT4 does less than a LUT6, so a level of the one is not a level of the other: compare within a family.
"""

import re
from collections import Counter

__all__ = ["BLOCK_RAM", "CARRY", "FLIP_FLOP", "IGNORED", "LUT", "MUX", "NETLIST_SITES", "add_cell", "count_cells", "is_logic"]

FLIP_FLOP = re.compile(r"(FD[RSCP]E|LD[CP]E)(_1)?$|TRELLIS_FF$")
LUT = re.compile(r"LUT([1-6])$")
#: LUT sites that a distributed RAM takes. TRELLIS_DPR16X4: four LUTs that store, and the slice of two that writes them.
RAM_SITES = {
    "RAM32X1S": 1, "RAM64X1S": 1, "RAM128X1S": 2, "RAM256X1S": 4, "RAM512X1S": 8,
    "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4, "RAM256X1D": 8,
    "RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8, "RAM64X8SW": 8, "RAM32X16DR8": 8,
    "TRELLIS_DPR16X4": 6,
}
SRL_SITES = {"SRL16": 1, "SRL16E": 1, "SRLC16": 1, "SRLC16E": 1, "SRLC32E": 1}
NETLIST_SITES = RAM_SITES | SRL_SITES
#: in units of 36 Kib; a DP16KD has 18 Kib
BLOCK_RAM = {"RAMB36E2": 1, "RAMB36E1": 1, "FIFO36E2": 1, "RAMB18E2": 0.5, "RAMB18E1": 0.5, "FIFO18E2": 0.5, "DP16KD": 0.5,
             "PDPW16KD": 0.5}
DSP = re.compile(r"DSP48|MULT18X18|ALU54")
THROUGH = {"BUFG": "I", "IBUF": "I", "OBUF": "I", "BUFGCE": "I"}
#: selectors: (data inputs, select)
MUX = {**{f"MUXF{n}": ("I0", "I1", "S") for n in range(5, 10)}, "PFUMX": ("ALUT", "BLUT", "C0"), "L6MUX21": ("D0", "D1", "SD")}
CARRY = {"CARRY4": 4, "CARRY8": 8}
IGNORED = {"$scopeinfo", "GND", "VCC", "VLO", "VHI"}
CLOCK_PINS = {"C", "G", "CLK", "CLKA", "CLKB", "CLKR", "CLKW", "WCK", "WCLK"}


def count_cells(types):
    """Totals of an iterable of cell types; block RAM in units of 36 Kib."""
    n = Counter(types)
    luts = {f"lut{k}": n[f"LUT{k}"] for k in range(1, 7)}
    luts["lut1"] += n["INV"]
    with_carry = 2 * n["CCU2C"]
    logic = sum(luts.values()) + with_carry
    ram = sum(RAM_SITES.get(t, 0) * c for t, c in n.items())
    srl = sum(SRL_SITES.get(t, 0) * c for t, c in n.items())
    return {
        "lut": logic + ram + srl, "lut_logic": logic, "lut_ram": ram, "lut_srl": srl, **luts,
        "ff": sum(c for t, c in n.items() if FLIP_FLOP.match(t)),
        "ramb36": sum(c for t, c in n.items() if BLOCK_RAM.get(t) == 1),
        "ramb18": sum(c for t, c in n.items() if BLOCK_RAM.get(t) == 0.5),
        "bram36": sum(BLOCK_RAM.get(t, 0) * c for t, c in n.items()),
        "uram": n["URAM288"],
        "dsp": sum(c for t, c in n.items() if DSP.match(t)),
        "carry": sum(n[t] for t in CARRY) + n["CCU2C"],
        "muxf": sum(n[t] for t in MUX),
    }


def is_logic(kind):
    """Whether a cell is combinational and has no home of its own in the source."""
    return bool(LUT.match(kind)) or kind in MUX or kind in CARRY or kind in ("INV", "CCU2C")


# -- the way through a cell ----------------------------------------------------------------------------


def add_cell(graph, name, cell):
    """Add the ways through a cell to a `Netlist`: nodes, starts and ends. False: the kind isn't known, and only begins and ends
    paths."""
    kind, pins = cell["type"], cell["connections"]
    inputs = [p for p in pins if cell["port_directions"][p] == "input"]
    outputs = [p for p in pins if cell["port_directions"][p] == "output"]
    if FLIP_FLOP.match(kind):
        graph.start(name, "Q", pins["Q"])
        for p in inputs:
            if p not in CLOCK_PINS:
                graph.end(name, p, pins[p])
    elif LUT.match(kind) or kind == "INV":
        graph.node(name, pins[outputs[0]][0], 1, [b for p in inputs for b in pins[p]])
    elif kind in MUX:
        graph.node(name, pins[outputs[0]][0], 0, [b for p in MUX[kind] for b in pins.get(p, [])])
    elif kind in CARRY:
        _carry(graph, name, pins, CARRY[kind])
    elif kind == "CCU2C":
        _ccu2c(graph, name, pins)
    elif kind in THROUGH:
        graph.node(name, pins["O"][0], 0, pins[THROUGH[kind]])
    elif kind == "TRELLIS_DPR16X4":
        for i, b in enumerate(pins["DO"]):
            _read(graph, name, "DO", [b], pins["RAD"])
        for p in ("DI", "WAD", "WRE"):
            graph.end(name, p, pins.get(p, []))
    elif kind in RAM_SITES or kind in SRL_SITES:
        _lut_ram(graph, name, kind, pins)
    elif DSP.match(kind) and not _has_registers(cell):
        for p in outputs:
            for b in pins[p]:
                if isinstance(b, int):
                    graph.node(name, b, 1, [b for p in inputs for b in pins[p]])
    else:
        for p in outputs:
            graph.start(name, p, pins[p])
        for p in inputs:
            if "CLK" not in p:
                graph.end(name, p, pins[p])
        return kind in BLOCK_RAM or kind == "URAM288" or bool(DSP.match(kind))
    return True


def _has_registers(cell):
    p = cell["parameters"]
    return any(int(str(p.get(r, "0")), 2) for r in ("AREG", "BREG", "MREG", "PREG")) or \
        any(p.get(r, "NONE") != "NONE" for r in ("REG_INPUTA_CLK", "REG_INPUTB_CLK", "REG_PIPELINE_CLK", "REG_OUTPUT_CLK"))


def _carry(graph, name, pins, width):
    """Each sum and carry bit depends on the bits up to it only, so that no false loops appear."""
    pad = lambda p: (pins.get(p, []) + ["0"] * width)[:width]
    below = [b for p in ("CI", "CYINIT", "CI_TOP") for b in pins.get(p, [])]
    for s, d, o, c in zip(pad("S"), pad("DI"), pad("O"), pad("CO")):
        if isinstance(o, int):
            graph.node(name, o, 0, below + [s])
        if not isinstance(c, int):
            c = graph.spare()
        graph.node(name, c, 0, below + [s, d])
        below = [c]


def _ccu2c(graph, name, pins):
    """Two LUTs of a carry chain: the LUT is a level, the carry from below is not."""
    below = pins.get("CIN", [])
    for half, out in (("0", None), ("1", "COUT")):
        lut = graph.spare()
        graph.node(name, lut, 1, [b for p in "ABCD" for b in pins.get(p + half, [])])
        for b in pins.get("S" + half, []):
            if isinstance(b, int):
                graph.node(name, b, 0, below + [lut])
        carry = next((b for b in pins.get(out, []) if isinstance(b, int)), None) if out else None
        if carry is None:
            carry = graph.spare()
        graph.node(name, carry, 0, below + [lut])
        below = [carry]


def _read(graph, name, out, bits, address):
    """Outputs of a RAM of LUTs: a level after its clock, and one after its address."""
    for b in bits:
        if isinstance(b, int):
            clock = graph.spare()
            graph.start(name, out, [clock])
            graph.node(name, b, 1, address + [clock])


def _lut_ram(graph, name, kind, pins):
    def read(out, *address):
        _read(graph, name, out, pins.get(out, []), [b for p in address for b in pins.get(p, [])])

    numbered = lambda stem: sorted(p for p in pins if re.fullmatch(rf"{stem}\d*", p))
    if kind in SRL_SITES:
        read("Q", *numbered("A"))
        for out in ("Q15", "Q31"):
            graph.start(name, out, pins.get(out, []))
        write = ["D", "CE"]
    elif "X1" in kind and kind != "RAM32X16DR8":   # A: write address, and read address of SPO or O; DPRA: of DPO
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
        graph.end(name, p, pins.get(p, []))
