"""An oracle that shares code with what it judges is no oracle; and the hardware stands on its own feet."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def imports(folder):
    """(file, module) of every import below `folder`, wherever in the file it stands."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield path, node.module


@pytest.mark.parametrize("folder, forbidden", [
    ("sim/models", {"optinic", "rtl_gen", "host_driver"}),
    ("optinic", {"rtl_gen", "sim", "host_driver", "boards"}),
    ("host_driver", {"rtl_gen", "sim"}),
])
def test_no_forbidden_import(folder, forbidden):
    found = list(imports(folder))
    assert found, "the folder has moved"
    assert [(str(path), module) for path, module in found if module.split(".")[0] in forbidden] == []


def test_the_tables_of_the_host_interface_need_no_hardware_library():
    assert not [m for p, m in imports("optinic/abi") if m.split(".")[0] == "amaranth"]
