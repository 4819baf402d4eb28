"""The command line: it teaches, says what is wrong in one line with status 2, and gives JSON beside every table."""

import json
import subprocess
import sys
import time

from click.testing import CliRunner
import pytest

from optinic.config import PRESETS, NicConfig, preset
from rtl_gen import cli, verilog
from rtl_gen.cli import main

from .test_package import Stub


@pytest.fixture
def run():
    def invoke(*args):
        return CliRunner().invoke(main, [str(a) for a in args], prog_name="optinic")
    return invoke


def refused(result, *words):
    """One line on standard error that says these words, nothing on standard output, status 2."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("optinic: ") and result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("command", [(), ("generate",), ("replay",), ("bench",), ("bench", "rx"), ("config",), ("synth",), ("report",),
                                     ("abi",)])
def test_help(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    if command and command != ("bench",):
        assert f"optinic {' '.join(command)}" in result.stdout.split("Usage:")[1]


def test_help_is_quick():
    """Neither the hardware library nor NumPy is loaded for it."""
    code = "import sys; from rtl_gen.cli import main\n" \
           "try: main(['--help'])\nexcept SystemExit: pass\n" \
           "print([m for m in ('amaranth', 'numpy', 'rich', 'cocotb', 'sim') if m in sys.modules], file=sys.stderr)"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert time.monotonic() - start < 5


def test_no_command_shows_help(run):
    result = run()
    assert result.exit_code == 2 and "Usage:" in result.output


@pytest.mark.parametrize("args, words", [
    (("nothing",), ("nothing",)),
    (("generate",), ("--output",)),
    (("generate", "-o", "x", "--preset", "huge"), ("unknown preset 'huge'", "c100g")),
    (("generate", "-o", "x", "--set", "num_qps"), ("knob=value",)),
    (("generate", "-o", "x", "--set", "num_qp=4"), ("unknown knob 'num_qp'", "num_qps")),
    (("generate", "-o", "x", "--set", "num_qps=many"), ("num_qps", "whole number")),
    (("generate", "-o", "x", "--set", "data_width=96"), ("data_width=96", "512")),
    (("generate", "-o", "x", "--set", "rq_cache_lines=33"), ("power of two", "64")),
    (("generate", "-o", "x", "--set", "ipv6=maybe"), ("ipv6=on",)),
    (("generate", "-o", "x", "--transport", "sr"), ("sr", "not built")),
    (("generate", "-o", "x", "--set", "rx_buffer_bytes=8192"), ("rx_buffer_bytes=8192", "raise rx_buffer_bytes")),
    (("generate", "--transport", "rc", "-o", "x", "--set", "arrival_map=on"), ("arrival_map=True", "set arrival_map=off")),
    (("generate", "--transport", "rc", "-o", "x", "--set", "sq_entries=8"), ("rc_outstanding=16 exceeds sq_entries=8", "raise sq_entries")),
    (("generate", "--transport", "rc", "-o", "x", "--set", "reads_outstanding=128"), ("reads_outstanding=128", "lower it to 64", "rc_atomics=off")),
    (("config", "--bogus"), ("--bogus",)),
    (("config", "--preset", "huge", "--json"), ("unknown preset",)),
    (("replay", "--pcap", "x"), ("--setup",)),
    (("replay", "--setup", "nowhere.json", "--pcap", "nowhere.pcap"), ("nowhere.json",)),
    (("synth", "--module", "nothing"), ("unknown block",)),
    (("bench", "rx", "--preset", "huge"), ("unknown preset",)),
    (("bench", "rx", "--seed", "x"), ("--seed",)),
])
def test_errors(run, monkeypatch, tmp_path, args, words):
    monkeypatch.chdir(tmp_path)
    refused(run(*args), *words)
    assert not list(tmp_path.iterdir())


def test_error_of_a_process(tmp_path):
    """The installed entry point, not the test runner's idea of it."""
    done = subprocess.run([sys.executable, "-m", "rtl_gen.cli", "generate", "-o", str(tmp_path / "x"), "--set", "num_qps=1"],
                          capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr and not (tmp_path / "x").exists()


def test_generate(run, monkeypatch, tmp_path):
    monkeypatch.setattr(verilog, "_nic", Stub)
    result = run("generate", "--preset", "tiny", "--transport", "xp", "--set", "num_qps=0x20", "--set", "vlan=off",
                 "-o", tmp_path / "card")
    assert result.exit_code == 0, result.output
    manifest = json.loads((tmp_path / "card" / "manifest.json").read_text())
    assert manifest["config"] == preset("tiny", num_qps=32, vlan=False).as_dict()
    assert manifest["config_hash"] in result.stdout
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a").write_text("")
    refused(run("generate", "-o", tmp_path / "notes"), "choose another folder")
    (tmp_path / "file").write_text("")
    refused(run("generate", "-o", tmp_path / "file" / "card"), "file")


def test_config_presets(run):
    result = run("config")
    assert result.exit_code == 0
    for word in [*PRESETS, *(f.name for f in NicConfig.knobs())]:
        assert word in result.stdout
    data = json.loads(run("config", "--json").stdout)
    assert {name: entry["config"] for name, entry in data.items()} == {n: c.as_dict() for n, c in PRESETS.items()}


def test_config_of_one(run, tmp_path):
    result = run("config", "--preset", "c100g", "--set", "num_qps=2_000", "--json", tmp_path / "c.json")
    assert "2,000" in result.stdout
    data = json.loads((tmp_path / "c.json").read_text())
    cfg = preset("c100g", num_qps=2000)
    assert data["config"] == cfg.as_dict() and data["derived"]["scan_rows"] == 250 and data["hash"] == f"{cfg.hash:08x}"
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]
    refused(run("config", "--json", tmp_path / "no" / "c.json"), "c.json")


def test_config_state(run):
    data = json.loads(run("config", "--preset", "scale10k", "--state", "--json").stdout)
    assert data["num_qps"] == 10240 and data["tables"]
    table = run("config", "--preset", "scale10k", "--state").stdout
    for row in data["tables"]:
        assert row["table"] in table


def test_abi(run, tmp_path):
    result = run("abi", "-o", tmp_path)
    assert result.exit_code == 0 and result.stdout.split() == sorted(str(p) for p in tmp_path.iterdir())


def test_replay_table():
    """Verdicts are counted with their reasons."""
    result = {"frames": [{"index": 0, "verdict": "placed", "qpn": 1, "bytes": 1500}, {"index": 1, "verdict": "passed"},
                         {"index": 2, "verdict": "dropped", "reason": "icrc"}, {"index": 3, "verdict": "dropped", "reason": "icrc"}],
              "completions": [{"queue": "receive", "status": "partial", "cause": "timeout"}]}
    import click

    @click.command()
    def show():
        cli._show_replay(result)
    lines = CliRunner().invoke(show).stdout.splitlines()
    assert any("dropped" in line and "icrc" in line and " 2 " in line for line in lines)
    assert any("1,500 bytes placed" in line and " 4 " in line for line in lines)
    assert any("partial" in line and "timeout" in line for line in lines)


def test_closed_pipe():
    """`optinic config | head -1` ends without a traceback."""
    done = subprocess.run(f"{sys.executable} -m rtl_gen.cli config --json | head -1", shell=True, capture_output=True, text=True)
    assert done.stderr == ""
