"""Building a simulation: tools that are missing, designs that are wrong, two processes at once, what is kept."""

import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

from sim import build
from sim.build import BuildError, build_model, cached, ports_of, top_of

ADDER = """module half(a, y); input [3:0] a; output y; assign y = ^a; endmodule
module adder(clk, rst, a__x, wide, y);
  input clk;
  input rst;
  input [3:0] a__x;
  output [99:0] wide;
  output y;
  assign wide = {25{a__x}};
  half inner ( .a(a__x), .y(y) );
endmodule
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPTINIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fresh_tools():
    build.verilator_env.cache_clear()
    yield
    build.verilator_env.cache_clear()


def test_ports_and_top():
    assert top_of(ADDER) == "adder"
    assert ports_of(ADDER, "adder") == [
        ("clk", 1, True), ("rst", 1, True), ("a__x", 4, True), ("wide", 100, False), ("y", 1, False)]
    with pytest.raises(BuildError, match="no module sub"):
        ports_of(ADDER, "sub")


@pytest.mark.parametrize("tool", ["g++", "make", "perl"])
def test_a_missing_tool_is_named(tool, fresh_tools, tmp_path, monkeypatch):
    for name in {"g++", "make", "perl"} - {tool}:
        (tmp_path / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError) as err:
        build.verilator_env()
    text = str(err.value)
    assert text == f"{tool} was not found; apt-get install g++ make perl"


def test_a_wrong_design_leaves_nothing(cache):
    with pytest.raises(BuildError, match="(?s)Verilator failed .*top.v:8:3.*assing"):
        build_model(ADDER.replace("assign wide", "assing wide"), "adder")
    assert [p for p in cache.iterdir() if p.name.startswith(("device", ".device")) and p.is_dir()] == []


def test_a_cache_that_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPTINIC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(BuildError, match="set OPTINIC_CACHE"):
        build.cache_dir()


def test_what_is_built_once_is_not_built_again(cache):
    count = []

    def produce(work):
        count.append(1)
        (work / "x").write_text("made")

    for _ in range(3):
        assert (cached("thing", "k1", produce) / "x").read_text() == "made"
    cached("thing", "k2", produce)
    assert len(count) == 2

    def fails(work):
        (work / "x").write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        cached("thing", "k3", fails)
    assert not (cache / "thing-k3").exists() and (cached("thing", "k3", produce) / "x").read_text() == "made"


def test_what_nobody_uses_goes(cache):
    old, new = (cached("thing", k, lambda work: (work / "x").write_text("1")) for k in ("old", "new"))
    for path in (old, new):
        os.utime(path, (0, 0))
    cached("thing", "new", None)        # a use
    cached("thing", "other", lambda work: None)
    assert new.exists() and not old.exists()


SCRIPT = """
import sys, time
from sim.build import cached
def produce(work):
    print("built")
    time.sleep(.5)
    (work / "x").write_text("1")
print((cached("shared", "k", produce) / "x").read_text())
"""


def test_two_processes_build_once(cache):
    root = Path(build.ROOT)
    env = {**os.environ, "PYTHONPATH": str(root)}
    start = lambda: subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=root, env=env, stdout=subprocess.PIPE, text=True)
    runs = [start() for _ in range(3)]
    said = [run.communicate(timeout=60)[0].split() for run in runs]
    assert sorted(said) == [["1"], ["1"], ["built", "1"]]


def test_verilog_is_kept_until_a_source_changes(cache, monkeypatch):
    from optinic.config import preset
    import rtl_gen.verilog
    made = []
    monkeypatch.setattr(rtl_gen.verilog, "generate_verilog", lambda cfg: made.append(cfg) or f"// {cfg.hash}")
    monkeypatch.setattr(build, "_SOURCES", build._sources_digest())
    a, b = preset("tiny"), preset("tiny", uc=False)
    assert build.nic_verilog(a) == build.nic_verilog(a) == f"// {a.hash}" and build.nic_verilog(b) == f"// {b.hash}"
    assert made == [a, b]
    monkeypatch.setattr(build, "_sources_digest", lambda: "edited meanwhile")
    build.nic_verilog(a)
    build.nic_verilog(a)
    assert made == [a, b, a, a]
