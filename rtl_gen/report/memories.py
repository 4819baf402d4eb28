"""The memories of a design, what each should take, and what the mapping made of it.

Three sources are held against each other: the design's list of tables (`Nic.tables`), the memories in the generated RTLIL, and
the cells of the mapped netlist, which keep the memory's name. Only the first is needed to predict a card that nobody mapped.
"""

import re
from dataclasses import asdict, dataclass

from .cells import BLOCK_RAM, NETLIST_SITES
from .ram_shapes import tile

__all__ = ["Memory", "check", "mapped_memories", "memories_of", "place_tables", "predict_tables"]

_MODULE = re.compile(r"^module \\(\S+)\n(.*?)^end\n", re.M | re.S)
_DECLARED = re.compile(r'((?:^  attribute [^\n]*\n)*)^  memory width (\d+) size (\d+) \\(\S+)\n', re.M)
_PORT = re.compile(r"^  cell \$mem(rd|wr)_v2 [^\n]*\n(.*?)^  end\n", re.M | re.S)


@dataclass
class Memory:
    """`path` is its name in the flat design; `copies` ports read at addresses of their own, `shared` ones at a writer's address."""
    path: str
    width: int
    depth: int
    copies: int
    shared: int
    writes: int
    style: str | None

    @property
    def bits(self):
        return self.width * self.depth


def memories_of(rtlil, top="top"):
    """Every memory declared in the RTLIL of a hierarchical design."""
    found = []
    for name, body in _MODULE.findall(rtlil):
        ports = [(way, _connected(text, "MEMID", "parameter").strip('"').lstrip("\\"), _connected(text, "ADDR"))
                 for way, text in _PORT.findall(body)]
        for attributes, width, depth, memory in _DECLARED.findall(body):
            style = re.search(r'ram_style "(\w+)"', attributes)
            written = [address for way, of, address in ports if way == "wr" and of == memory]
            read = [address for way, of, address in ports if way == "rd" and of == memory]
            own = {address for address in read if address not in written}
            path = ".".join([*name.split(".")[1:], memory])
            found.append(Memory(path, int(width), int(depth), len(own), len({a for a in read if a in written}),
                                len(written), style and style[1]))
    return found


def _connected(text, pin, what="connect"):
    # The names end with "\\\\": RTLIL quotes a backslash.
    found = re.search(rf"^    {what} \\{pin} ([^\n]*)$", text, re.M)
    return found[1].replace("\\\\", "\\") if found else ""


def predict(memory, family, uram=False):
    return tile(family, memory.width, memory.depth, copies=memory.copies, shared=memory.shared, style=memory.style, uram=uram)


# -- tables --------------------------------------------------------------------------------------------


def predict_tables(tables, family, uram=False):
    """Rows of `state_of` with what each table should take, from its width and depth alone.

    A table that asks for no RAM of a kind gets block RAM from 512 rows on (`optinic.memory.table`), else the cheaper one.
    """
    rows = []
    for row in tables:
        style = row["style"] or ("block" if row["depth"] >= 512 else None)
        t = tile(family, _row_bits(row), row["depth"], copies=row["copies"], style=style, uram=uram)
        rows.append({**row, "ram": t.kind, "shape": t.shape, "blocks": t.blocks, "bram36": t.units, "bram36_mixed": t.mixed,
                     "lut_ram": t.luts})
    return rows


def _row_bits(row):
    """Check bits are stored with the row."""
    return row["width"] + row["check_bits"]


def place_tables(tables, memories):
    """{table's name: [paths]}: which memories hold a table. Width and depth decide, then words that the names share.

    A row may be split over memories of one module whose names differ by a number.
    """
    left, found = list(memories), {}
    for row in sorted(tables, key=lambda r: -r["bits"]):
        fits = [m for m in left if m.depth == row["depth"] and m.width == _row_bits(row)]
        if fits:
            best = max(fits, key=lambda m: _likeness(row, m.path))
            found[row["table"]] = [best.path]
            left.remove(best)
            continue
        parts = {}
        for m in left:
            if m.depth == row["depth"]:
                parts.setdefault(re.sub(r"\d+$", "", m.path), []).append(m)
        for group in parts.values():
            if len(group) > 1 and sum(m.width for m in group) == _row_bits(row):
                found[row["table"]] = [m.path for m in group]
                left = [m for m in left if m not in group]
                break
    return found


def _likeness(row, path):
    words = lambda text: {w.rstrip("s") for w in re.split(r"[._\s\d$]+", text.lower()) if w}
    return len(words(f"{row['table']} {row['owner']}") & words(path))


# -- against the mapping -------------------------------------------------------------------------------


def mapped_memories(cells):
    """{path: {"bram36", "lut_ram"}} of the RAM cells of a netlist; their names are those of the memory with numbers behind."""
    found = {}
    for name, cell in cells.items():
        kind = cell["type"]
        if kind in BLOCK_RAM or kind == "URAM288" or kind in NETLIST_SITES:
            path = re.sub(r"(\.\d+\.\d+)(\..*)?$", "", name)
            row = found.setdefault(path, {"bram36": 0, "uram": 0, "lut_ram": 0})
            row["bram36"] += BLOCK_RAM.get(kind, 0)
            row["uram"] += kind == "URAM288"
            row["lut_ram"] += NETLIST_SITES.get(kind, 0)
    return found


def check(memories, tables, cells, family):
    """What was predicted beside what was mapped, for each memory with block RAM in either, each table, and in all.

    A memory that is "gone" has no RAM cell: it is in registers, or nobody reads it and Yosys has removed it.

    {"memories": [...], "tables": [...], "predicted", "mapped", "mixed", "off": share by which the prediction is off}
    """
    mapped = mapped_memories(cells)
    places = place_tables(tables, memories)
    table_at = {path: name for name, paths in places.items() for path in paths}
    rows = []
    for memory in memories:
        want, got = predict(memory, family), mapped.get(memory.path, {"bram36": 0, "uram": 0, "lut_ram": 0})
        rows.append({**asdict(memory), "table": table_at.get(memory.path), "ram": want.kind, "shape": want.shape,
                     "predicted": want.units, "mixed": want.mixed, "mapped": got["bram36"],
                     "predicted_lut_ram": want.luts, "mapped_lut_ram": got["lut_ram"],
                     "gone": memory.path not in mapped})
    predicted, real = sum(r["predicted"] for r in rows), sum(r["mapped"] for r in rows)
    at = {row["path"]: row for row in rows}
    by_table = []
    for row in predict_tables(tables, family):
        paths = places.get(row["table"], [])
        by_table.append({"table": row["table"], "memories": paths, "predicted": row["bram36"],
                         "mapped": sum(at[path]["mapped"] for path in paths)})
    return {"tables": by_table,
            "memories": sorted(rows, key=lambda r: (-r["mapped"], -r["predicted"], r["path"])),
            "unplaced_tables": sorted({r["table"] for r in tables} - set(places)),
            "predicted": predicted, "mapped": real, "mixed": sum(r["mixed"] for r in rows),
            "off": (predicted - real) / real if real else 0.0}
