"""The exported interface: the committed copies are fresh, and C and Python agree with the tables they came from."""

import json
from pathlib import Path
import runpy
import subprocess

import pytest

from optinic.abi.fields import Field, Struct
from optinic.abi.registers import COMMANDS, REGISTERS, offset_of
from optinic.abi.structs import CQE, RECV_WQE
from optinic.abi.verdicts import COUNTERS, REASON
from rtl_gen.exports import EXPORTS, c_members, to_c, to_json, to_markdown, to_python, write_exports

COMMITTED = Path(__file__).parents[2] / "docs" / "abi"


@pytest.mark.parametrize("name", EXPORTS)
def test_committed_copy_is_fresh(name):
    assert (COMMITTED / name).read_text(encoding="utf-8") == EXPORTS[name](), "run `make abi` and commit docs/abi"


def test_write_exports(tmp_path):
    assert write_exports(tmp_path / "a" / "b") == sorted(p.name for p in (tmp_path / "a" / "b").iterdir())


def test_json_has_everything():
    data = json.loads(to_json())
    assert {r["name"]: r["offset"] for r in data["registers"]} == {r.name: r.offset for r in REGISTERS}
    assert {c["name"]: c["offset"] for c in data["counters"]} == {name: offset_of(name) for name in COUNTERS}
    assert {c["name"]: c["number"] for c in data["commands"]} == {name: n for name, (n, _) in COMMANDS.items()}
    for s in (RECV_WQE, CQE):
        entry = next(e for e in data["structs"] if e["name"] == s.name)
        assert [(f["name"], f["bit"], f["width"]) for f in entry["fields"]] == [(f.name, f.bit, f.width) for f in s.fields]


def test_python_map(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(to_python())
    module = runpy.run_path(str(path))
    assert module["REGISTERS"]["CTRL"] == offset_of("CTRL")
    assert module["REGISTER_FIELDS"]["CTRL", "rx_hold"] == (1, 1)
    assert module["COUNTERS"] == {name: offset_of(name) for name in COUNTERS}
    assert module["REASON"] == REASON
    assert module["MTU_CODE"][1024] == 3
    assert module["STRUCTS"]["cqe"] == (32, {f.name: (f.bit, f.width) for f in CQE.fields})


def test_markdown_has_every_name():
    text = to_markdown()
    for name in [r.name for r in REGISTERS if not r.name.startswith("ARG")] + [*COUNTERS, *COMMANDS] + \
            [f.name for s in (RECV_WQE, CQE) for f in s.fields]:
        assert f"| {name} |" in text, name


def compile_c(folder, source, *, run=True):
    (folder / "optinic_abi.h").write_text(to_c())
    (folder / "t.c").write_text(source)
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "t.c", "-o", "t"], cwd=folder, check=True)
    return subprocess.run([folder / "t"], check=True, capture_output=True, text=True).stdout if run else None


def test_c_header_packs_as_the_tables_do(tmp_path, rng):
    """Random values, set field by field in C, give the bytes that `Struct.pack` gives, and read back the same."""
    body, want = [], []
    for s in (RECV_WQE, CQE):
        for _ in range(8):
            values = {f.name: rng.getrandbits(f.width) for f in s.fields}
            body += ["{", f"struct optinic_{s.name} x; memset(&x, 0xff, sizeof x);", "memset(&x, 0, sizeof x);"]
            body += [f"optinic_{s.name}_set_{n}(&x, {v}ull);" for n, v in values.items()]
            body += [f'if (optinic_{s.name}_get_{n}(&x) != {v}ull) puts("{s.name}.{n}");' for n, v in values.items()]
            body += ["for (i = 0; i < sizeof x; i++) printf(\"%02x\", ((unsigned char *)&x)[i]);", 'puts("");', "}"]
            want.append(s.pack(**values).hex())
    source = '#include <stdio.h>\n#include <string.h>\n#include "optinic_abi.h"\nint main(void) { size_t i;\n' \
             + "\n".join(body) + "\nreturn 0; }\n"
    assert compile_c(tmp_path, source).split() == want


def test_c_header_numbers(tmp_path):
    source = '#include <stdio.h>\n#include "optinic_abi.h"\nint main(void) { printf("%u %u %u %u\\n", OPTINIC_REG_COMMAND, ' \
             'OPTINIC_COUNTER_DROP_ICRC, OPTINIC_CTRL_RX_HOLD_MASK, OPTINIC_COMMAND_FENCE); return 0; }\n'
    assert compile_c(tmp_path, source).split() == [str(offset_of("COMMAND")), str(offset_of("drop_icrc")), "2",
                                                   str(COMMANDS["fence"][0])]


def test_c_header_refuses_a_wrong_layout(tmp_path):
    """Negative control: the assertions in the header do fail when a member has moved."""
    text = to_c().replace("    uint32_t length;", "    uint64_t length;", 1)
    (tmp_path / "optinic_abi.h").write_text(text)
    (tmp_path / "t.c").write_text('#include "optinic_abi.h"\nint main(void) { return 0; }\n')
    done = subprocess.run(["gcc", "-std=c99", "-c", "t.c"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode and "optinic_assert_optinic_recv_wqe" in done.stderr


def test_c_members_cover_the_structure():
    s = Struct("s", 16, "", (Field("a", 0, 3, ""), Field("b", 5, 2, ""), Field("c", 16, 32, ""), Field("d", 64, 16, "")))
    members = c_members(s)
    assert [(offset, size) for _, offset, size, _ in members] == [(0, 1), (1, 1), (2, 4), (6, 2), (8, 2), (10, 6)]
    assert [decl for decl, *_ in members][2] == "uint8_t c[4]"      # not aligned to its size
    with pytest.raises(ValueError):
        c_members(Struct("s", 2, "", (Field("a", 4, 6, ""),)))
