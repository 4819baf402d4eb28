"""Makes constant parts of a signal take effect at the start of a simulation.

Yosys writes a signal that is driven bit range by bit range as one `always @*` for each range. A range that is always the
same constant reads nothing, so by the rules of Verilog its block is never run, and simulators show 0 or x there, while
synthesis sees the constant. Blocks with more than one statement read a register made for this; those with one don't.
"""

import re

__all__ = ["settle_constants"]

_TRIGGER = re.compile(r"^  reg (\\\$auto\$verilog_backend\S* ) = 0;$", re.M)
_CONSTANT = re.compile(r"^  always @\*\n    (\S[^;=\n]*= \d+'[bdh][0-9a-fxz]+;)$", re.M)


def settle_constants(text):
    """The same Verilog, with every constant block reading its module's trigger, which is added where there is none."""
    parts = re.split(r"(?m)^(?=module )", text)
    return "".join(_module(part, number) for number, part in enumerate(parts))


def _module(text, number):
    if not _CONSTANT.search(text):
        return text
    found = _TRIGGER.search(text)
    if found:
        trigger = found[1]
    else:
        trigger = f"\\$auto$settle${number} "
        text = text.replace(";\n", f";\n  reg {trigger} = 0;\n", 1)
    return _CONSTANT.sub(lambda m: f"  always @* begin\n    if ({trigger}) begin end\n    {m[1]}\n  end", text)
