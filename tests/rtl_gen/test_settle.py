"""Constants that drive part of a signal: there in the emitted Verilog from the start, in both simulators."""

import re
import shutil
import subprocess

import pytest

from optinic.config import preset
from rtl_gen.settle import SelfReadingBlock, settle_constants
from rtl_gen.verilog import generate_verilog

CONSTANT = r"always @\*\n\s+\S[^;=\n]*= \d+'[bdh]"


#: as Yosys writes a structure of which one field depends on `a` and another is always 1010
PARTLY = """module optinic_nic(a, b);
  input a;
  output [7:0] b;
  reg [7:0] b;
  always @* begin
    b[3:0] = 4'h0;
    if (a) begin
      b[3:0] = 4'h3;
    end
  end
  always @*
    b[7:4] = 4'ha;
endmodule
"""

BENCH = """
module bench; reg a = 0; wire [7:0] b;
  optinic_nic dut(.a(a), .b(b));
  initial begin #1 if (b !== 8'ha0) $display("WRONG %h", b); a = 1; #1 if (b !== 8'ha3) $display("WRONG %h", b); $display("END"); end
endmodule
"""


def icarus(text, folder):
    (folder / "b.v").write_text(text + BENCH)
    subprocess.run(["iverilog", "-g2005", "-o", "b", "b.v"], cwd=folder, check=True)
    return subprocess.run(["vvp", "b"], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="iverilog is not installed; make test installs it")
def test_a_constant_part_is_there(tmp_path):
    assert "WRONG" in icarus(PARTLY, tmp_path)          # what settle_constants is for
    fixed = settle_constants(PARTLY)
    assert not re.search(CONSTANT, fixed) and icarus(fixed, tmp_path) == "END\n"
    assert settle_constants(fixed) == fixed


def test_one_part_of_a_signal_must_not_decide_over_another():
    with pytest.raises(SelfReadingBlock, match="one part of b is the condition"):
        settle_constants(PARTLY.replace("    if (a) begin", "    if (b[7]) begin"))
    settle_constants(PARTLY.replace("    if (a) begin", "    if (ab[7] | c.b) begin"))


def test_a_module_with_a_trigger_uses_it():
    text = PARTLY.replace("  reg [7:0] b;\n", "  reg \\$auto$verilog_backend.cc:1:x$9  = 0;\n  reg [7:0] b;\n")
    fixed = settle_constants(text)
    assert "if (\\$auto$verilog_backend.cc:1:x$9 ) begin end\n    b[7:4]" in fixed and "settle" not in fixed


def test_the_whole_card_has_none():
    assert not re.search(CONSTANT, generate_verilog(preset("tiny")))
