"""`optinic peer`: what it shows is what happened, and what is wrong is found."""

import json

from click.testing import CliRunner
import pytest

from rtl_gen.cli import main
from sim.linux_peer import VerbsPeer

pytestmark = pytest.mark.peer


def show(*options):
    found = CliRunner().invoke(main, ["peer", "--json", *options])
    result = json.loads(found.stdout) if found.stdout.startswith("{") else None
    return found.exit_code, result, found.stderr


@pytest.mark.parametrize("options, steps", [
    (["--bytes", "5000", "--mtu", "256"], 12), (["--loss", "0.03"], 12), (["--transport", "xp"], 8),
    (["--transport", "xp", "--loss", "0.1", "--bytes", "40000"], 6),
    pytest.param(["--backend", "rtl", "--loss", "0.01", "--set", "trace=on"], 12, marks=pytest.mark.rtl),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_shows_it(options, steps, tmp_path):
    code, result, story = show(*options, "--pcap", str(tmp_path / "x.pcap"))
    assert code == 0 and result["problems"] == [] and len(result["steps"]) == steps, story
    lossy, rc = result["loss"] > 0, "xp" not in options
    for step in result["steps"]:
        assert step["right"] + step["lost"] == step["messages"] > 0 and step["ns"] > 0
        assert step["lost"] == 0 or lossy and (not rc or step["what"].startswith("ping"))
    lost = sum(step["lost"] for step in result["steps"])
    assert (sum(result["frames"]["dropped"].values()) > 0) == lossy and (rc or lossy == (lost > 0))
    assert "ping 10.77.0.1 by Linux" in story and "neighbour table: 10.77.0.1 lladdr 02:00:0a:4d:00:01" in story
    assert (tmp_path / "x.pcap").stat().st_size > 5000
    assert result["neighbours"]["arp_answers"] and result["neighbours"]["nd_answers"]


def test_finds_a_wrong_byte(monkeypatch):
    """The negative control: Linux' memory is read with one bit changed."""
    right = VerbsPeer.dump
    monkeypatch.setattr(VerbsPeer, "dump", lambda self, at, n: bytes([right(self, at, n)[0] ^ 1]) + right(self, at, n)[1:])
    code, result, story = show("--transport", "xp")
    assert code == 1 and any("WRITE by the card: of 16 messages 15 are right" in problem for problem in result["problems"])
    assert "optinic: WRITE by the card" in story
