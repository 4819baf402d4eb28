"""Negative controls: a module of the design with one piece of its source changed."""

import importlib.util
from pathlib import Path
import sys
import types

__all__ = ["mutant"]


def mutant(name, old, new):
    """Module `name`, executed anew with `old`, which must occur exactly once in its source, replaced by `new`."""
    path = Path(importlib.util.find_spec(name).origin)
    source = path.read_text()
    assert source.count(old) == 1, f"{path.name} has {source.count(old)} places with {old!r}: choose another mutation"
    module = types.ModuleType(f"{name}__mutant")
    module.__file__, module.__package__ = str(path), name.rpartition(".")[0]
    sys.modules[module.__name__] = module
    exec(compile(source.replace(old, new), str(path), "exec"), module.__dict__)
    return module
