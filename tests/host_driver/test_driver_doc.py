"""The programs in docs/driver.md run, one after the other."""

from pathlib import Path
import re

from host_driver import verbs
from host_driver.errors import OptinicError

TEXT = (Path(__file__).parents[2] / "docs/driver.md").read_text()


def test_the_programs_run(capsys):
    programs = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)
    names = {}
    for program in programs:
        exec(compile(program, "docs/driver.md", "exec"), names)
    said = capsys.readouterr().out
    assert len(programs) == 5 and "optinic1: xp" in said and "it has failed by send 3, remote_access" in said


def test_names_in_it_exist():
    for name in re.findall(r"\b(?:IBV|OPT)_[A-Z_]+[A-Z]\b", TEXT):
        assert hasattr(verbs, name), name
    errors = {name for name, value in vars(verbs).items() if isinstance(value, type) and issubclass(value, OptinicError)}
    assert errors <= set(re.findall(r"`(\w+)`", TEXT))
