"""Whole cards, mapped: their depth, their block RAM beside the prediction, and their size beside the committed baseline.

The smallest card is mapped here, once for all these tests. The others are held against the baseline by a hash of their hardware: a
card that has changed needs a new baseline (`make baseline`), which maps it.
"""

import pytest

from optinic.config import preset
from rtl_gen.report.baseline import figures_of, load_baseline, problems
from rtl_gen.report.flow import BUILD
from rtl_gen.report.measure import generate, measure, rtlil_sha256
from rtl_gen.report.memories import memories_of, place_tables
from rtl_gen.report.readme import BEGIN, END, headline, write_readme
from rtl_gen.report.synth import MAX_LEVELS
from rtl_gen.state import state_of

BASE = load_baseline()
#: one entry of the baseline for each card of a preset that isn't mapped here
#: those that aren't mapped here, whatever for
OTHERS = {(f["preset"], f["transport"], str(f["num_qps"])): f for f in BASE.values() if (f["preset"], f["transport"]) != ("tiny", "xp")}


def measured(cfg):
    result = measure(cfg.as_dict(), "xcup", BUILD)["result"]
    assert result["unknown_cells"] == {} and result["loops"] == []
    return result


@pytest.fixture(scope="module")
def tiny():
    return measured(preset("tiny"))


def too_deep(result):
    return "\n".join(f"{p['levels']} {p['start']} -> {p['end']} ({p['end_src']})" for p in
                     result["levels"]["paths"] + result["levels"]["port_paths"]) if result["levels"]["ports"] > MAX_LEVELS else ""


def test_levels_of_the_tiny_card(tiny):
    assert not too_deep(tiny), too_deep(tiny)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["c100g", "scale10k"])
def test_levels_of_a_card(name):
    result = measured(preset(name))
    assert not too_deep(result), too_deep(result)
    if name == "c100g":
        assert result["cells"]["lut"] <= 40_000 and result["cells"]["bram36"] <= 80, result["cells"]


def test_block_ram_is_as_predicted(tiny):
    """In all within 5 %; which memories differ is shown. Every table of the design is found in it."""
    found = tiny["memories"]
    differ = [{k: m[k] for k in ("path", "width", "depth", "copies", "shape", "predicted", "mapped")} for m in found["memories"]
              if m["predicted"] != m["mapped"]]
    assert abs(found["off"]) <= 0.05, differ
    assert found["unplaced_tables"] == []
    assert {t["table"]: t["predicted"] for t in found["tables"]} == {t["table"]: t["mapped"] for t in found["tables"]}
    assert found["mapped"] == tiny["cells"]["bram36"] > 5


@pytest.mark.parametrize("name", BASE)
def test_block_ram_was_as_predicted(name):
    """The committed figures of the cards that are not mapped here."""
    f = BASE[name]
    assert abs(f["bram36_predicted"] - f["bram36"]) <= 0.05 * f["bram36"]


def test_the_tiny_card_has_not_grown(tiny):
    committed = BASE["xp-tiny-64b-16qp-xcup"]
    now = {**tiny["cells"], "levels": tiny["levels"]["registers"]}
    assert problems(committed, now, MAX_LEVELS) == [], "make it smaller, or 'make baseline' and commit docs/report/baseline.json"


@pytest.mark.parametrize("card", OTHERS, ids="-".join)
def test_other_cards_are_those_of_the_baseline(card):
    cfg = preset(card[0], transport=card[1], num_qps=int(card[2]))
    text = generate(cfg)
    assert rtlil_sha256(text) == OTHERS[card]["rtlil_sha256"], f"{card} has changed: 'make baseline' and commit docs/report/baseline.json"
    tables = state_of(cfg)["tables"]
    assert set(place_tables(tables, memories_of(text))) == {t["table"] for t in tables}


def test_growth_is_seen():
    """The negative control of the guards: each figure by itself."""
    committed = {"lut": 1000, "ff": 500, "bram36": 10.0, "levels": 8}
    assert problems(committed, committed | {"lut": 1050, "ff": 525, "bram36": 10.5}, 8) == []
    for name, value in (("lut", 1051), ("ff", 526), ("bram36", 11.0)):
        (problem,) = problems(committed, committed | {name: value}, 8)
        assert problem.startswith(f"{name} grew")
    assert problems(committed, committed | {"levels": 9}, 8) == ["9 levels between registers, and 8 are allowed"]
    assert problems(committed | {"levels": 10}, committed | {"levels": 10}, 8) == []
    assert problems(committed | {"levels": 10}, committed | {"levels": 11}, 8) != []


def test_the_baseline_is_of_a_report(tiny):
    cfg = preset("tiny")
    design = tiny | {"preset": "tiny", "transport": "xp", "family": "xcup", "data_width": cfg.data_width, "num_qps": cfg.num_qps,
                     "config_hash": f"{cfg.hash:08x}"}
    assert figures_of(design).keys() <= BASE["xp-tiny-64b-16qp-xcup"].keys()
    assert all(BASE["xp-tiny-64b-16qp-xcup"][key] == design[key] for key in ("preset", "transport", "family", "data_width", "num_qps"))


def test_the_readme_shows_the_baseline():
    text = open("README.md", encoding="utf-8").read()
    assert text.split(BEGIN)[1].split(END)[0].strip() == headline(BASE), "run: optinic report --readme"


def test_writing_the_readme(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert write_readme(readme) is True and write_readme(readme) is False
    assert readme.read_text() == f"before\n{BEGIN}\n{headline(BASE)}\n{END}\nafter\n"
    for text in ("nothing", f"{END} {BEGIN}", f"{BEGIN}{BEGIN}{END}"):
        readme.write_text(text)
        with pytest.raises(ValueError, match="lacks the markers"):
            write_readme(readme)
        assert readme.read_text() == text
