"""The programs in examples/ run as they stand, say something, and fail when something is wrong."""

import os
from pathlib import Path
import subprocess
import sys

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "first_send.py": ("b'bounded in time'", "OPT_WC_PARTIAL (timeout), 0 bytes"),
    "write_with_imm.py": ("row 0 is there: 2400 bytes",),
    "partial_completion.py": ("pieces of the second message: #.##", "3072 of 4096 bytes"),
    "read_remote.py": ("IBV_WC_RDMA_READ", "refused: {'access': 1}"),
    "many_qps.py": ("32 messages on 8 queue pairs",),
    "own_network.py": ("good: 20 of 20 messages complete", "frames in own_network.pcap"),
    "dcqcn_two_senders.py": ("Jain's index", "CNPs received"),
}


def run(program, folder, *args):
    """In a folder of its own, with the driver of this tree."""
    return subprocess.run([sys.executable, str(program), *args], cwd=folder, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_all_are_known():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_model(name, tmp_path):
    done = run(ROOT / "examples" / name, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in PROGRAMS[name]:
        assert words in done.stdout
    assert {path.suffix for path in tmp_path.iterdir()} <= {".png", ".pcap"}


@pytest.mark.rtl
def test_on_the_verilog(tmp_path):
    done = run(ROOT / "examples/first_send.py", tmp_path, "rtl")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in PROGRAMS["first_send.py"]:
        assert words in done.stdout


def test_a_wrong_result_is_a_failure(tmp_path):
    """Negative control: another message than the one that the program expects."""
    text = (ROOT / "examples/first_send.py").read_text()
    (tmp_path / "wrong.py").write_text(text.replace('memory_a.write(b"bounded', 'memory_a.write(b"Bounded'))
    done = run(tmp_path / "wrong.py", tmp_path)
    assert done.returncode != 0 and "AssertionError" in done.stderr
