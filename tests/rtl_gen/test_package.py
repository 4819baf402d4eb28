"""Verilog and its package: the same bytes every time, and nothing half-written."""

import json
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.config import preset
from optinic.axi.signatures import AxiLiteSignature
from rtl_gen import verilog
from rtl_gen.verilog import MANIFEST, TOP, PackageError, generate_verilog, write_package

ROOT = Path(__file__).parents[2]
TINY = preset("tiny")


class Stub(wiring.Component):
    """Small enough to be generated a dozen times; what is tested here is the packaging."""

    _MustUse__silence = True    # some tests fail on purpose between its construction and its use

    def __init__(self, cfg):
        super().__init__({"i": In(cfg.data_width), "o": Out(8), "none": In(0), "bus": In(AxiLiteSignature())})

    def elaborate(self, platform):
        m = Module()
        count = Signal(8)
        m.d.sync += count.eq(count + self.i[0])
        m.d.comb += [self.o.eq(count), self.bus.awready.eq(1)]
        return m


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(verilog, "_nic", Stub)


def tree(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


def header_ports(text):
    """(direction, width, name) of the top module's ports, as the Verilog says."""
    body = text[text.index(f"module {TOP}("):]
    body = body[:body.index("endmodule")]
    found = re.findall(r"^\s*(input|output)\s+(?:wire\s+|reg\s+)?(?:\[(\d+):0\]\s+)?(\w+)\s*;", body, re.M)
    return {(direction, int(high or 0) + 1, name) for direction, high, name in found}


def test_package(stub, tmp_path):
    manifest = write_package(TINY, tmp_path / "a" / "card")
    files = tree(tmp_path / "a" / "card")
    assert set(files) == {MANIFEST, "files.f", *manifest["files"]}
    assert json.loads(files[MANIFEST]) == manifest
    assert manifest["top"] == TOP and manifest["config"] == TINY.as_dict()
    assert manifest["config_hash"] == f"{TINY.hash:08x}"
    assert manifest["tools"]["amaranth"] == "0.5.10"
    assert header_ports(files[f"{TOP}.v"].decode()) == {(p["direction"], p["width"], p["name"]) for p in manifest["ports"]}
    assert {"name": "i", "direction": "input", "width": 64} in manifest["ports"]
    assert not {"none"} & {p["name"] for p in manifest["ports"]}
    for data in files.values():
        assert b"\r" not in data and str(ROOT).encode() not in data and str(tmp_path).encode() not in data


def test_earlier_package_is_replaced(stub, tmp_path):
    write_package(TINY, tmp_path / "card")
    first = tree(tmp_path / "card")
    write_package(TINY.with_(num_qps=32), tmp_path / "card")
    second = tree(tmp_path / "card")
    assert first[MANIFEST] != second[MANIFEST]
    write_package(TINY, tmp_path / "card")
    assert tree(tmp_path / "card") == first
    assert [p.name for p in tmp_path.iterdir()] == ["card"]


def test_empty_folder_is_taken(stub, tmp_path):
    (tmp_path / "card").mkdir()
    write_package(TINY, tmp_path / "card")
    assert (tmp_path / "card" / MANIFEST).exists()


@pytest.mark.parametrize("content", ["notes", "foreign manifest", "extra", "file"])
def test_what_is_not_ours_is_left_alone(stub, tmp_path, content):
    card = tmp_path / "card"
    if content == "notes":
        card.mkdir()
        (card / "notes.txt").write_text("mine")
    elif content == "foreign manifest":
        card.mkdir()
        (card / MANIFEST).write_text('["mine"]')
    elif content == "extra":
        write_package(TINY, card)
        (card / "wrapper.v").write_text("mine")
    else:
        card.write_text("mine")
    before = tree(card) if card.is_dir() else card.read_bytes()
    with pytest.raises(PackageError, match="choose another"):
        write_package(TINY, card)
    assert (tree(card) if card.is_dir() else card.read_bytes()) == before
    assert [p.name for p in tmp_path.iterdir()] == ["card"]


@pytest.mark.parametrize("step", ["_nic", "_convert", "write_exports", "manifest_of"])
def test_nothing_is_half_written(stub, monkeypatch, tmp_path, step):
    """Whatever step fails, an earlier package is as it was, and no folder appears where none was."""
    write_package(TINY, tmp_path / "card")
    before = tree(tmp_path / "card")

    def fail(*args):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(verilog, step, fail)
    with pytest.raises(OSError):
        write_package(TINY.with_(num_qps=32), tmp_path / "card")
    with pytest.raises(OSError):
        write_package(TINY, tmp_path / "other")
    assert tree(tmp_path / "card") == before
    assert [p.name for p in tmp_path.iterdir()] == ["card"]


def test_yosys_of_the_system_is_not_used(stub, monkeypatch, tmp_path):
    """A yosys on PATH that would be preferred otherwise, and says so when it is called."""
    trap = tmp_path / "yosys"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\necho 'Yosys 0.60 (git sha1 0)'\n")
    trap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert f"module {TOP}(" in generate_verilog(TINY)
    assert not (tmp_path / "called").exists()
    assert "AMARANTH_USE_YOSYS" not in os.environ


GENERATE = "import sys; from optinic.config import preset; from rtl_gen.verilog import write_package; " \
           "write_package(preset('tiny', **eval(sys.argv[2])), sys.argv[1])"


def generate_elsewhere(folder, hash_seed, **knobs):
    env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", GENERATE, str(folder), repr(knobs)], cwd=folder.parent, env=env, check=True)


@pytest.mark.parametrize("knobs", [{}, {"data_width": 256, "num_qps": 100, "ipv6": False}], ids=["tiny", "256"])
def test_card_is_the_same_to_the_byte(tmp_path, knobs):
    """The real card, over processes, folders and hash seeds."""
    (tmp_path / "x").mkdir()
    generate_elsewhere(tmp_path / "one", "0", **knobs)
    generate_elsewhere(tmp_path / "x" / "two", "4711", **knobs)
    assert tree(tmp_path / "one") == tree(tmp_path / "x" / "two")


def test_card_ports(tmp_path):
    manifest = write_package(TINY, tmp_path / "card")
    text = (tmp_path / "card" / f"{TOP}.v").read_text()
    assert text == generate_verilog(TINY)
    assert header_ports(text) == {(p["direction"], p["width"], p["name"]) for p in manifest["ports"]}
    assert "src =" not in text and str(ROOT) not in text
