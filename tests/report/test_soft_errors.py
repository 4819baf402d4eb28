"""The estimate of soft errors: published anchors, what cancels in the ratio, ranges, and constants from files."""

import json

import pytest

from rtl_gen.report.seu_constants import ConstantError, Constants
from rtl_gen.report.soft_errors import cluster_hours, compare, constants_of, injection, mtbf, section, sensitivity

XP = {"transport": "xp", "lut": 38_000, "ff": 60_000, "lutram_bits": 400_000, "bram36": 68, "bram18": 0, "uram": 0, "dsp": 0,
      "table_bits": 1_000_000}
RC = {**XP, "transport": "rc", "lut": 45_000, "bram36": 150, "table_bits": 3_000_000}
NO_RESULTS = {}


def result(transport, share, runs=1000):
    part = {"share": share, "low": share * 0.8, "high": share * 1.2}
    one = {"runs": runs, "bits": 10, "failure": part, "serious": {k: v / 2 for k, v in part.items()}, "classes": {}, "groups": {}}
    return {"transport": transport, "preset": "tiny", "seed": 1, "config_hash": "0", "verilog_sha256": "0",
            "targets": {t: one for t in ("tables", "buffers", "registers")}}


def test_published_anchors():
    """arXiv 2512.22743: 80.5 and 42.8 hours at 15,000 nodes, that is 828 and 1558 FIT a card."""
    assert cluster_hours(828, 15_000) == pytest.approx(80.5, abs=0.05)
    assert cluster_hours(1558, 15_000) == pytest.approx(42.8, abs=0.05)
    assert 1558 / 828 == pytest.approx(80.5 / 42.8, abs=0.005) == pytest.approx(1.88, abs=0.005)
    shown = section({"xp": XP, "rc": RC}, results=NO_RESULTS)["published"]
    assert shown["ratio"] == pytest.approx(1.88, abs=0.005)


def test_by_hand():
    """One Mb of block RAM of nothing but table state, of which half the upsets matter, and one Mb of flip-flops."""
    inv = {"transport": "xp", "lut": 0, "ff": 1 << 20, "lutram_bits": 0, "bram36": (1 << 20) / 36_864, "uram": 0, "dsp": 0,
           "table_bits": 1 << 20}
    c = Constants().with_(fit_bram=10, avf_tables=0.5, fit_ff=4, avf_ff=0.25, weight_bram=0, flux=2, nodes=100)
    found = mtbf(inv, c)
    assert found["terms"]["block RAM"] == {"bits": 1 << 20, "raw": pytest.approx(20), "fit": pytest.approx(10)}
    assert found["terms"]["flip-flops"]["fit"] == pytest.approx(2) and found["fit"] == pytest.approx(12)
    assert found["mtbf_nic_hours"] == pytest.approx(1e9 / 12) and found["mtbf_cluster_hours"] == pytest.approx(1e7 / 12)
    assert mtbf(inv, c.with_(ecc_tables=1))["terms"]["block RAM"]["fit"] == 0
    assert mtbf({**inv, "secded_share": 0.75}, c)["terms"]["block RAM"]["fit"] == pytest.approx(2.5)
    # a device that is full: all of its configuration is in use
    full = {**inv, "ff": 0, "bram36": 0, "lut": 1_182_240, "table_bits": 0}
    bits = mtbf(full, c.with_(weight_lut=1))["terms"]["configuration"]["bits"]
    assert bits == 641_272_864 - 2160 * 36_864


def test_padding_of_block_ram_is_no_state():
    inv = {**XP, "lutram_bits": 0, "table_bits": 1000}
    c = Constants()
    assert mtbf({**inv, "buffer_bits": 0}, c)["terms"]["block RAM"]["fit"] == pytest.approx(
        c.value("fit_bram") * 1000 / (1 << 20) * c.value("avf_tables"))


def test_what_the_two_share_cancels():
    """The ratio doesn't depend on flux and nodes; if one class of memory dominates, not on its FIT/Mb either."""
    base = compare(RC, XP, results=NO_RESULTS)["ratio"]
    assert compare(RC, XP, Constants().with_(flux=14, nodes=99), results=NO_RESULTS)["ratio"] == pytest.approx(base)
    only = {k: 0 for k in ("lut", "ff", "lutram_bits", "uram", "dsp")}
    a, b = ({**inv, **only} for inv in (RC, XP))
    c = Constants().with_(weight_bram=0)
    assert compare(a, b, c, results=NO_RESULTS)["ratio"] == pytest.approx(compare(a, b, c.with_(fit_bram=99), results=NO_RESULTS)["ratio"])
    assert not {"flux", "nodes"} & {row["constant"] for row in sensitivity(RC, XP, results=NO_RESULTS) if row["swing"] > 1e-9}


def test_sensitivity_is_the_end_of_each_range():
    rows = {row["constant"]: row for row in sensitivity(RC, XP, results=NO_RESULTS)}
    for end in ("low", "high"):
        c = Constants()
        want = compare(RC, XP, c.with_(fit_bram=getattr(c.fit_bram, end)), results=NO_RESULTS)["ratio"]
        assert rows["fit_bram"][f"ratio_{end}"] == pytest.approx(want)
    swings = [row["swing"] for row in sensitivity(RC, XP, results=NO_RESULTS)]
    assert swings == sorted(swings, reverse=True) and swings[0] > 0


def test_measured_factors_replace_assumed_ones_but_not_given_ones():
    results = {"xp": result("xp", 0.02), "rc": result("rc", 0.04)}
    c = constants_of("xp", Constants().with_(avf_ff=0.3), results=results)
    assert (c.avf_tables.value, c.avf_tables.kind, c.avf_tables.high) == (0.02, "measured", pytest.approx(0.024))
    assert (c.avf_ff.value, c.avf_ff.kind) == (0.3, "given")
    assert constants_of("xp", what="serious", results=results).avf_tables.value == 0.01
    assert constants_of("xp", results=NO_RESULTS) == Constants()
    found = section({"mine": XP, "theirs": RC}, results=results)
    assert found["pairs"][0]["failure"] > compare(RC, XP, results={t: result(t, 0.02) for t in ("xp", "rc")})["ratio"]
    assert [row["name"] for row in found["rows"]] == ["mine", "theirs"]
    # each card's own factor moves the ratio by itself
    assert {"avf_tables of xp", "avf_tables of rc"} <= {row["constant"] for row in found["sensitivity"]}
    json.dumps(found)


def test_a_design_alone_has_no_ratio():
    found = section({"xp": XP}, results=NO_RESULTS)
    assert found["pairs"] == [] and found["sensitivity"] == [] and found["rows"][0]["failure"]["fit"] > 0


def test_the_committed_campaign():
    """It is there, of both transports, of enough runs to say something, and section() uses it."""
    results = injection()
    assert results.keys() == {"xp", "rc"}
    for summary in results.values():
        for target in ("tables", "buffers", "registers"):
            found = summary["targets"][target]
            assert found["runs"] >= 500 and sum(found["classes"].values()) == found["runs"]
            assert found["failure"]["low"] <= found["failure"]["share"] <= found["failure"]["high"]
    found = section({"xp": XP, "rc": RC})
    assert {row["kind"] for row in found["constants"]["xp"] if row["name"].startswith("avf_t")} == {"measured"}


def test_every_constant_says_where_it_comes_from():
    for row in Constants().rows():
        assert row["kind"] in ("cited", "assumed", "given") and len(row["source"]) > 10 and row["low"] <= row["value"] <= row["high"], row


@pytest.mark.parametrize("text, name", [('{"fit_bram": 9.5, "nodes": {"value": 40000, "source": "ours"}}', "c.json"),
                                        ('fit_bram = 9.5\n[nodes]\nvalue = 40000\nsource = "ours"\n', "c.toml")])
def test_constants_from_a_file(tmp_path, text, name):
    (tmp_path / name).write_text(text)
    c = Constants.load(tmp_path / name)
    assert (c.fit_bram.value, c.fit_bram.kind, c.fit_bram.source) == (9.5, "given", f"from {name}")
    assert (c.nodes.value, c.nodes.source) == (40_000, "ours") and c.fit_uram == Constants().fit_uram
    assert c.set(["fit_bram=3", "flux=2"]).value("fit_bram") == 3


@pytest.mark.parametrize("settings", [["fit_bram"], ["no_such=1"], ["avf_ff=1.5"], ["fit_bram=-1"], ["fit_bram=many"], ["flux=nan"]])
def test_wrong_constants(settings):
    with pytest.raises(ConstantError) as error:
        Constants().set(settings)
    assert "\n" not in str(error.value) and settings[0].partition("=")[0] in str(error.value)


def test_wrong_files(tmp_path):
    for text in ("{", "[1]", '{"fit_bram": {"low": 1}}', '{"fit_bram": {"value": 1, "kind": "guessed"}}'):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(ConstantError):
            Constants.load(tmp_path / "c.json")
