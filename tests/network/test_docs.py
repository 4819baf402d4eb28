"""The examples of docs/network.md that need no card run as they stand."""

from pathlib import Path
import re

PAGE = Path(__file__).resolve().parents[2] / "docs" / "network.md"


def test_examples(capsys):
    blocks = [b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "from sim." in b]
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
    said = capsys.readouterr().out
    assert said.count(" got 1098 bytes at 1179520 ps") == 2 and "'delivered': 2" in said
