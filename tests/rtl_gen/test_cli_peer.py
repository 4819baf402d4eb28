"""`optinic peer` where there can be no Linux, and with wrong options: one line, status 2, nothing written."""

import pytest
from click.testing import CliRunner

from rtl_gen.cli import main
from sim.linux_peer import PeerUnavailable, host_tools


def said(*options):
    found = CliRunner().invoke(main, ["peer", *options])
    return found.exit_code, found.stderr.strip().splitlines()


def test_without_qemu(monkeypatch, tmp_path):
    monkeypatch.setattr(host_tools.shutil, "which", lambda command, path=None: None if "qemu" in command else f"/usr/bin/{command}")
    monkeypatch.setattr(host_tools.os, "geteuid", lambda: 1000)
    code, lines = said("--json", str(tmp_path / "out.json"))
    assert code == 2 and len(lines) == 1 and "qemu-system-x86" in lines[0] and "sudo apt-get install" in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_where_a_guest_does_not_boot(monkeypatch):
    def no_guest(*_, **__):
        raise PeerUnavailable("no guest\ntoday; try tomorrow")
    monkeypatch.setattr("sim.experiments.peer.build_image", no_guest)
    assert said() == (2, ["optinic: no guest today; try tomorrow"])


@pytest.mark.parametrize("options, match", [
    (["--mtu", "4096"], "--mtu 4096 is above 1024"), (["--transport", "ud"], "'ud' is not one of"),
    (["--loss", "0.9"], "0.9 is not in the range"),
    (["--bytes", "1"], "1 is not in the range"), (["--set", "num_qps"], "has no '='"), (["--preset", "none"], "none"),
    (["--backend", "pci"], "'pci' is not one of"),
])
def test_wrong_options(options, match):
    code, lines = said(*options)
    assert code == 2 and len(lines) == 1 and match in lines[0]
