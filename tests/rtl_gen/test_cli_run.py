"""`optinic demo` and `optinic bench`: help, what is refused, what comes out. How they measure is tested in tests/sim."""

import json

from click.testing import CliRunner
import pytest

from rtl_gen.cli import main
from sim.experiments import demo as demo_module

from .test_cli import refused

BENCHES = ("rx", "tx", "pair", "latency", "sim")


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(main, [str(a) for a in args], prog_name="optinic")


@pytest.mark.parametrize("command", [("demo",), *(("bench", name) for name in BENCHES)])
def test_help(run, command):
    """What it does, what its options mean, and a line to try."""
    result = run(*command, "--help")
    assert result.exit_code == 0
    text = result.stdout
    assert f"optinic {' '.join(command)} [OPTIONS]" in text and "--json" in text and "--preset" in text
    assert any(line.strip().startswith(f"optinic {' '.join(command)}") for line in text.splitlines())


def test_help_of_the_group(run):
    text = run("bench", "--help").stdout
    for name in BENCHES:
        assert f"optinic bench {name}" in text
    assert "optinic demo" in run("--help").stdout


@pytest.mark.parametrize("args, words", [
    (("demo", "--backend", "board"), ("board", "model", "rtl")),
    (("demo", "--loss", "2"), ("--loss", "0<=x<=1")),
    (("demo", "--mtu", "100"), ("--mtu", "256")),
    (("demo", "--mtu", "4096"), ("--mtu 4096 is above 1024", "--preset")),
    (("demo", "--bytes", "0"), ("--bytes",)),
    (("demo", "--seed", "x"), ("--seed",)),
    (("demo", "--preset", "huge"), ("unknown preset",)),
    (("demo", "--set", "num_qps=0"), ("num_qps=0",)),
    (("demo", "--transport", "rc"), ("rc", "bench pair --transport xp,rc")),
    (("bench", "tx", "--transport", "rc"), ("rc", "bench pair --transport xp,rc")),
    (("bench", "tx", "--host-ns", "0"), ("--host-ns",)),
    (("bench", "tx", "--preset", "huge"), ("unknown preset", "c100g")),
    (("bench", "tx", "extra"), ("extra",)),
    (("bench", "pair", "--transport", "xp,sr"), ("sr", "not built")),
    (("bench", "pair", "--loss", "0,2"), ("--loss", "0,2", "0.001")),
    (("bench", "pair", "--backend", "pci"), ("pci",)),
    (("bench", "latency", "--set", "mtu_max=100"), ("mtu_max=100",)),
    (("bench", "sim", "--host-ns", "5"), ("--host-ns",)),
])
def test_errors(run, tmp_path, args, words):
    result = run(*args)
    if "4096" not in args:
        refused(result, *words)
    assert result.exit_code == 2 and all(word in result.stderr for word in words)
    assert not list(tmp_path.iterdir())


def test_demo(run, tmp_path):
    result = run("demo", "--loss", "0.1", "--bytes", "60000", "--seed", "4", "--json", "x.json", "--pcap", "x.pcap")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "x.json").read_text())
    assert data["bytes"] == 60000 and data["partial"] > 0 and data["problems"] == [] and data["seed"] == 4
    for words in ("Two cards, each a model in Python", "loses 10 %", "Nothing will be sent twice", "x.pcap",
                  f"{data['complete']} of {data['messages']}", "goodput", "largest wait past the deadline"):
        assert words in result.stdout, words
    assert (tmp_path / "x.pcap").stat().st_size > 50_000


def test_demo_as_json_only(run):
    result = run("demo", "--bytes", "5000", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["bytes"] == 5000 and "Two cards" in result.stderr


def test_demo_that_cannot_write(run):
    result = run("demo", "--bytes", "5000", "--pcap", "no/where.pcap")
    assert result.exit_code == 2 and "no/where.pcap can't be written" in result.stderr and "Traceback" not in result.output


def test_demo_that_finds_something_wrong(run, monkeypatch):
    """Negative control: a tensor that isn't what was sent ends with status 1 and says so."""
    compare = demo_module.comparison

    def damaged(sent, got, pieces, mtu):
        got = got.copy()
        got[3] += 1
        return compare(sent, got, pieces, mtu)
    monkeypatch.setattr(demo_module, "comparison", damaged)
    result = run("demo", "--bytes", "5000", "--loss", "0")
    assert result.exit_code == 1 and "1024 bytes are neither what was sent nor zero" in result.stderr


def test_bench_pair(run, tmp_path, monkeypatch):
    from sim.experiments import bench_pair
    monkeypatch.setattr(bench_pair, "LOSSES", (0.0,))
    monkeypatch.setattr(bench_pair, "QUICK_MESSAGE", 2048)
    share = bench_pair.share
    monkeypatch.setattr(bench_pair, "share", lambda *args, **how: share(*args, **how | {"time_ns": 300_000}))
    result = run("bench", "pair", "--preset", "tiny", "--backend", "model", "--quick", "--json", "p.json", "--plot", "p.png")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["simulated"] == "model" and list(data["configs"]) == ["xp"] and len(data["dcqcn"]) == 2
    assert "Jain" in result.stdout and "xp: loss 0 %" in result.stderr and (tmp_path / "p.png").exists()
