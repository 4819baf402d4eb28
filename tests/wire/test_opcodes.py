"""The opcode table against the numbers of the standard (written out again) and scapy's."""

from scapy.contrib.roce import _bth_opcodes

from optinic.wire.opcodes import OPCODES, OPERATION


def test_which_are_defined():
    rc = {*range(0x00, 0x15), 0x16, 0x17, 0x1C, 0x1D}
    uc = {*range(0x20, 0x2C)}
    assert set(OPCODES) == rc | uc | {0x64, 0x65, 0x81} | {0xE4, 0xE5, 0xEA, 0xEB, 0xEC, 0xF0, 0xF1, 0xFE}
    assert all(code == op.code for code, op in OPCODES.items())


def test_standard_ones_are_scapys():
    assert {c for c in _bth_opcodes if c >> 5 != 2} <= set(OPCODES)     # but RD


def test_extension_headers():
    sizes = {0x00: 0, 0x03: 4, 0x06: 16, 0x09: 4, 0x0B: 20, 0x0C: 16, 0x0D: 4, 0x0E: 0, 0x11: 4, 0x12: 12, 0x13: 28, 0x14: 28,
             0x16: 4, 0x1C: 20, 0x1D: 16, 0x24: 0, 0x25: 4, 0x2A: 16, 0x2B: 20, 0x64: 8, 0x65: 12, 0x81: 0,
             0xE4: 16, 0xE5: 20, 0xEA: 32, 0xEB: 36, 0xEC: 32, 0xF0: 16, 0xF1: 16, 0xFE: 16}
    assert {code: OPCODES[code].ext_bytes for code in sizes} == sizes


def test_what_is_placed():
    flags = {code: (op.is_write, op.has_imm, op.tracked) for code, op in OPCODES.items() if op.placed}
    single = {4: (False, False, True), 5: (False, True, True), 10: (True, False, False), 11: (True, True, True)}
    answer = {0xF0: (False, False, True)}       # of a READ: placed as a SEND is
    assert flags == {base | low: f for base in (0x20, 0xE0) for low, f in single.items()} | answer
    assert [code for code, op in OPCODES.items() if op.is_read] == [0xEC]


def test_what_the_baseline_speaks():
    spoken = {code for code, op in OPCODES.items() if op.connected}
    assert spoken == {*range(0x00, 0x15), 0x16, 0x17} | {*range(0x20, 0x2C)}
    assert OPERATION["read_request"] == 0x0C and OPERATION["send_only_invalidate"] == 0x17
    assert all(OPCODES[code].name == f"rc_{name}" and OPCODES[code].low == code for name, code in OPERATION.items())
