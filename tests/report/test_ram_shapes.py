"""The rules for block RAM: figures that can be worked out by hand, and then what Yosys makes of memories of many sizes."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
import pytest

from rtl_gen.report import ram_shapes
from rtl_gen.report.flow import map_rtlil, rtlil_of
from rtl_gen.report.memories import check, mapped_memories, memories_of, place_tables
from rtl_gen.report.ram_shapes import tile


@pytest.mark.parametrize("family, width, depth, units", [
    ("xcup", 1, 32768, 1), ("xcup", 1, 32769, 1.5), ("xcup", 36, 1024, 1), ("xcup", 37, 1024, 1.5), ("xcup", 72, 512, 1),
    ("xcup", 18, 1024, 0.5), ("xcup", 9, 2048, 0.5), ("xcup", 512, 512, 7.5), ("xcup", 215, 1024, 6), ("xcup", 8, 16384, 4),
    ("xc7", 36, 512, 0.5), ("ecp5", 36, 512, 0.5), ("ecp5", 36, 1024, 1), ("ecp5", 18, 1024, 0.5), ("ecp5", 64, 1024, 2), ("ecp5", 1, 16384, 0.5),
])
def test_by_hand(family, width, depth, units):
    assert tile(family, width, depth, style="block").units == units


def test_copies_and_the_shared_port():
    assert tile("xcup", 36, 1024, copies=2, style="block").units == 2
    # 72 x 512 has one port to write and one to read: a reader at the writer's port needs the narrower shapes
    assert tile("xcup", 72, 512, style="block").units == 1
    assert tile("xcup", 72, 512, shared=1, style="block").units == 2
    # Yosys makes a copy for it on ECP5
    assert tile("ecp5", 36, 512, shared=1, style="block").units == 1 == 2 * tile("ecp5", 36, 512, style="block").units


def test_small_memories_go_to_luts_unless_the_design_says_otherwise():
    assert tile("xcup", 16, 32).kind == "lut" and tile("xcup", 16, 1024).kind == "block"
    assert tile("xcup", 16, 32, style="block").kind == "block" and tile("xcup", 512, 64, style="distributed").kind == "lut"
    assert tile("xcup", 14, 32).luts == 8 and tile("xcup", 15, 32).luts == 16 and tile("ecp5", 8, 17).luts == 24


def test_mixed_shapes_never_cost_more():
    t = tile("xcup", 37, 1024, style="block")
    assert t.mixed == 1.5
    t = tile("xcup", 73, 512, style="block")        # 72 columns, and one in half a block
    assert (t.units, t.mixed) == (1.5, 1.5)
    t = tile("xcup", 5, 10240, style="block")       # 5 blocks of 1 x 32768; or 4 x 8192 twice and 1 x 16384 for the fifth column
    assert t.mixed <= t.units


def test_ultraram_takes_what_fills_it_by_half():
    assert tile("xcup", 72, 4096, style="block", uram=True).kind == "uram"
    assert tile("xcup", 72, 2048, style="block", uram=True).kind == "uram"
    assert tile("xcup", 72, 2047, style="block", uram=True).kind == "block"
    assert tile("ecp5", 72, 4096, style="block", uram=True).kind == "block"


SIZES = [(1, 2048), (5, 4096), (9, 2048), (19, 1024), (37, 1024), (72, 512), (129, 256), (13, 10240), (8, 128), (40, 32)]


class Memories(wiring.Component):
    """One memory of each size; every bit is used. The last two have a second reader, and one at the writer's address."""

    def __init__(self):
        super().__init__({"addr": In(14), "other": In(14), "data": In(160), "en": In(1), "pick": In(5), "out": Out(160)})

    def elaborate(self, platform):
        m = Module()
        results = []

        def memory(name, width, depth, second=False, shared=False):
            m.submodules[name] = ram = Memory(shape=width, depth=depth, init=[], attrs={"ram_style": "block"} if depth >= 512 else {})
            write, reads = ram.write_port(), [ram.read_port()]
            m.d.comb += [write.addr.eq(self.addr), write.data.eq(self.data), write.en.eq(self.en), reads[0].addr.eq(self.other)]
            if second:
                reads.append(ram.read_port())
                m.d.comb += reads[1].addr.eq(self.other ^ self.data[:14])
            if shared:
                reads.append(ram.read_port())
                m.d.comb += reads[-1].addr.eq(write.addr)
            for read in reads:
                kept = Signal(width, name=f"kept_{name}")
                m.d.sync += kept.eq(read.data)
                results.append(kept)

        for width, depth in SIZES:
            memory(f"m{width}x{depth}", width, depth)
        memory("twice", 30, 1024, second=True)
        memory("aside", 60, 1024, shared=True)
        with m.Switch(self.pick):
            for i, kept in enumerate(results):
                with m.Case(i):
                    m.d.sync += self.out.eq(kept)
        return m


@pytest.fixture(scope="module")
def text():
    return rtlil_of(Memories())


@pytest.mark.parametrize("family", ["xcup", pytest.param("xc7", marks=pytest.mark.soak), pytest.param("ecp5", marks=pytest.mark.soak)])
def test_against_yosys(text, family, monkeypatch):
    memories = memories_of(text)
    assert {(m.width, m.depth) for m in memories} >= set(SIZES)
    assert {m.path: (m.copies, m.shared) for m in memories if m.path in ("twice", "aside")} == {"twice": (2, 0), "aside": (1, 1)}
    cells = map_rtlil(text, family=family).netlist().cells
    found = check(memories, [], cells, family)
    wrong = {r["path"]: (r["shape"], r["predicted"], r["mapped"]) for r in found["memories"] if r["predicted"] != r["mapped"]}
    assert wrong == {} and found["mapped"] > 10
    # the negative control: without the widest shape the prediction is another one, and the check sees it
    f = ram_shapes.FAMILIES[family]
    monkeypatch.setitem(ram_shapes.FAMILIES, family, ram_shapes.Family(f.name, tuple(s for s in f.blocks if not s.one_way), f.lut_ram,
                                                                       f.block_luts))
    assert abs(check(memories, [], cells, family)["off"]) > 0.01


def test_memories_of_a_netlist_are_found_by_their_names():
    cells = {"a.ram.0.0": {"type": "RAMB36E2"}, "a.ram.0.1": {"type": "RAMB36E2"}, "b.1.4": {"type": "RAMB18E2"},
             "c.0.0.genblk1.genblk1[3].genblk1.slice": {"type": "RAM64X1S"}, "d": {"type": "LUT4"}}
    assert mapped_memories(cells) == {"a.ram": {"bram36": 2, "uram": 0, "lut_ram": 0}, "b": {"bram36": 0.5, "uram": 0, "lut_ram": 0},
                                      "c": {"bram36": 0, "uram": 0, "lut_ram": 1}}


def test_a_table_is_found_by_size_then_by_name():
    row = lambda table, owner, width, depth: {"table": table, "owner": owner, "width": width, "depth": depth, "check_bits": 0,
                                                 "bits": width * depth}
    memory = lambda path, width, depth: type("M", (), {"path": path, "width": width, "depth": depth})()
    found = place_tables([row("exists", "commands", 1, 64), row("errors", "acks", 1, 64), row("wide", "queue", 100, 64), row("none", "x", 3, 3)],
                         [memory("writer.acks.errors.ram", 1, 64), memory("commands.exists.ram", 1, 64), memory("q.data0", 60, 64),
                          memory("q.data1", 40, 64)])
    assert found == {"exists": ["commands.exists.ram"], "errors": ["writer.acks.errors.ram"], "wide": ["q.data0", "q.data1"]}
