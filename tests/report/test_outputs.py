"""What a report is written as: JSON by its schema, Markdown, CSV, a page that needs nothing else; and the terminal's tables."""

import copy
import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from rtl_gen.report import charts
from rtl_gen.report.assemble import assemble
from rtl_gen.report.designs import designs_of
from rtl_gen.report.goals import goals
from rtl_gen.report.measure import predicted
from rtl_gen.report.page import as_page
from rtl_gen.report.tables import as_csv, as_markdown, tables

from .fakes import fake_result

SCHEMA = json.loads(Path("rtl_gen/report/schema.json").read_text())
PLACE = {"fits": True, "room": {"lut": {"used": 5, "available": 10}, "bram18": {"used": 1, "available": 10}},
         "runs": [{"seed": 1, "wrapper": {"ff": 7, "lut": 4, "inputs": 2, "outputs": 4, "pins": 4}, "tool": "1", "part": "P", "fmax_mhz": 99.0,
                   "wanted_mhz": 125.0, "utilization": {"TRELLIS_FF": {"used": 7, "available": 9}},
                   "critical": {"from": "a", "to": "b", "ns": 10.1, "logic_ns": 4.0, "routing_ns": 6.1, "in_wrapper": False}}],
         "fmax_mhz": {"min": 99.0, "median": 99.0, "max": 99.0, "seeds": [1]}}


@pytest.fixture(scope="module")
def mapped():
    found = {d: fake_result(d.cfg, d.family) for d in designs_of("tiny", "xp,rc", "16,64", families="xcup,ecp5")}
    for design, result in found.items():
        if design.family == "ecp5":
            result["place"] = PLACE
    return assemble(found, "optinic report <x>")


@pytest.fixture(scope="module")
def unmapped():
    return assemble({d: predicted(d.cfg, d.family) for d in designs_of("c100g", "xp,rc", "1024,10240")}, "optinic report --predict")


@pytest.fixture(params=["mapped", "unmapped"])
def data(request):
    return request.getfixturevalue(request.param)


def test_json_by_its_schema(data):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(json.dumps(data)), SCHEMA)


@pytest.mark.parametrize("spoil", [
    lambda d: d.pop("peers"), lambda d: d["designs"][0].update(family="ice40"), lambda d: d["designs"][0]["cells"].pop("lut"),
    lambda d: d["designs"][0]["state"]["tables"][0].update(width="8"), lambda d: d.update(more=1)])
def test_the_schema_refuses(mapped, spoil):
    data = json.loads(json.dumps(mapped))
    spoil(data)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


def test_every_row_fits_its_columns(data):
    for title, note, columns, rows in tables(data):
        assert title and note and rows
        assert all(len(row) == len(columns) for row in rows), title


def test_csv(data):
    rows = list(csv.DictReader(io.StringIO(as_csv(data))))
    assert [row["name"] for row in rows] == [d["name"] for d in data["designs"]]
    assert float(rows[0]["bits_per_qp"]) == data["designs"][0]["state"]["bits_per_qp"]
    assert rows[0]["lut"] == (str(data["designs"][0]["cells"]["lut"]) if data["designs"][0]["mapped"] else "")


def test_markdown(data):
    text = as_markdown(data)
    assert all(f"## {title}" in text for title, *_ in tables(data))
    assert all(sentence in text for sentence in data["assumptions"])
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


class Outside(HTMLParser):
    """Everything that would be loaded from elsewhere, and whether the tags are balanced."""
    VOID = {"meta", "rect", "line", "circle", "polyline", "br"}

    def __init__(self):
        super().__init__()
        self.loads, self.open, self.wrong = [], [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [(tag, k, v) for k, v in attrs if k in ("src", "href", "xlink:href", "data", "action") or "url(" in (v or "")]
        if tag in ("script", "iframe", "link", "img", "object"):
            self.loads.append((tag, "", ""))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag not in self.VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)


def test_the_page_needs_nothing_else(data):
    page = as_page(data)
    parser = Outside()
    parser.feed(page)
    assert parser.loads == [] and parser.wrong == [] and parser.open == []
    assert "@import" not in page and "url(" not in page and "prefers-color-scheme: dark" in page
    assert "optinic report" in page and "<x>" not in page           # what the user typed is text


def test_every_chart_is_for_those_who_do_not_see_it(data):
    page = as_page(data)
    figures = re.findall(r"<figure.*?</figure>", page, re.S)
    wanted = ["bits-per-qp", "bram-by-qps"] + (["area-lut", "area-ff", "levels", "fit", "mtbf"] if data["designs"][0]["mapped"] else [])
    assert [re.search(r'id="([^"]*)"', f)[1] for f in figures] == wanted
    for figure in figures:
        svg = ElementTree.fromstring(re.search(r"<svg viewBox.*?</svg>", figure, re.S)[0])
        assert svg.get("role") == "img" and svg.find("title").text and svg.find("desc").text
        assert len(svg.findall("text")) > 6 and 'class="axis"' in figure and '<ul class="legend"><li>' in figure
        assert "<table>" in figure
        for shape in svg.iter():
            if shape.tag == "rect":
                assert float(shape.get("width")) >= 0 and float(shape.get("height")) >= 0


def test_bars_are_as_long_as_their_numbers():
    svg = charts.stacked("i", "t", "d", "u", [("a", {"p": 100, "q": 50}), ("b", {"p": 25})])
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)"', svg)]
    assert widths[0] == pytest.approx(2 * widths[1], rel=1e-3) == pytest.approx(4 * widths[2], rel=1e-3)
    over = lambda limit: charts.bars("i", "t", "d", "x", "y", [("8", [3]), ("9", [1])], ["a"], limit=limit).count("over the limit")
    assert over("8") == 1 and over("9") == 0
    many = charts.stacked("i", "t", "d", "u", [("a", {f"p{i}": 40 - i for i in range(30)})])
    assert "16 smaller ones" in many and many.count("<rect x=") == 15


def test_the_comparison_pairs_what_differs_in_transport_only(mapped):
    assert len(mapped["comparison"]) == 4
    for pair in mapped["comparison"]:
        assert pair["xp"].removeprefix("xp") == pair["rc"].removeprefix("rc")
        lut = next(f for f in pair["figures"] if f["name"] == "LUT")
        assert lut["ratio"] == lut["rc"] / lut["xp"] == 2


def test_sensitivity_is_of_the_tables(unmapped):
    rows = {(r["knob"], r["value"]): r for r in unmapped["sensitivity"]["rows"]}
    assert unmapped["sensitivity"]["of"] == "rc-c100g-512b-10240qp"
    for knob in ("rc_outstanding", "rc_resources"):
        ratios = [rows[knob, n]["state_ratio"] for n in (4, 8, 16, 32, 64)]
        assert ratios == sorted(ratios) and ratios[0] < ratios[-1]
    built = rows["rc_outstanding", 16]
    assert built["as_built"] and built["state_ratio"] == unmapped["comparison"][1]["figures"][0]["ratio"]
    assert rows["rc_atomics", "off"]["state_ratio"] < built["state_ratio"]


def test_peers_have_sources_of_their_own(unmapped):
    for peer in unmapped["peers"]:
        assert re.search(r"arXiv \d{4}\.\d{5}|github\.com/|docs\.", peer["source"]) and peer["how"]
    whose = {row[1] for title, _, _, rows in tables(unmapped) if title.startswith("State for each") for row in rows}
    assert whose == {"this report", "theirs"}


def test_goals_say_who_is_to_blame(mapped, unmapped):
    """Each pair is held against each goal; whether one is met follows from its figure, and what is named is the largest part."""
    timed = len(mapped["soft_errors"]["pairs"])        # those on UltraScale+
    assert len(mapped["goals"]) == 3 * len(mapped["comparison"]) + timed and 0 < timed < len(mapped["comparison"])
    assert len(unmapped["goals"]) == 2 * len(unmapped["comparison"])
    of_state = [g for g in mapped["goals"] if g["goal"].startswith("state")]
    for goal, pair in zip(of_state, mapped["comparison"]):
        design = next(d for d in mapped["designs"] if d["name"] == pair["xp"])
        largest = max((t for t in design["state"]["tables"] if t["per"] == "qp"), key=lambda t: t["bits_per_qp"])
        assert goal["because"].startswith(largest["table"]) and goal["met"] == (design["state"]["bytes_per_qp"] <= 64)
    found = {g["goal"]: g for g in goals(mapped["designs"], mapped["comparison"][:1], mapped["soft_errors"])}
    assert found["time between failures, xp over rc"]["found"] == round(mapped["soft_errors"]["pairs"][0]["failure"], 2)
    # missed and met, by the same design with other figures
    design = copy.deepcopy(mapped["designs"])
    for d in design:
        d["state"]["bytes_per_qp"] = 1000 if d["transport"] == "xp" else 2000
        d["levels"]["registers"] = 9
    assert {g["goal"]: g["met"] for g in goals(design, mapped["comparison"][:1], None)} == {
        "state of an xp QP, bytes": False, "block RAM mapped, rc over xp": False, "logic levels of xp": False}
    pair = copy.deepcopy(mapped["comparison"][0])
    next(f for f in pair["figures"] if f["name"].startswith("block RAM mapped"))["ratio"] = 2.71
    assert [g["met"] for g in goals(design, [pair], None)] == [False, True, False]
