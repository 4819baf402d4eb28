"""The tools' own processes: what the programs that start them read from them."""

import os
import subprocess
import sys

from rtl_gen import yosys


def test_the_solver_says_nothing_of_its_own_when_it_is_started_first(tmp_path):
    """The checker takes all that comes from the solver's process for an answer, and a tool's first start is announced on stderr."""
    done = subprocess.run([sys.executable, yosys.__file__, "boolector", "--version"], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)})
    assert list(tmp_path.rglob("*")), "the solver was not compiled here, so this says nothing"
    assert done.returncode == 0 and done.stdout.split() == ["3.2.3"], done.stdout
