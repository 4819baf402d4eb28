"""Makes the generated Verilog mean the same to simulators as to synthesis.

Constant parts of a signal take effect at the start of a simulation:

Yosys writes a signal that is driven bit range by bit range as one `always @*` for each range. A range that is always the
same constant reads nothing, so by the rules of Verilog its block is never run, and simulators show 0 or x there, while
synthesis sees the constant. Blocks with more than one statement read a register made for this; those with one don't.

And no block decides by one part of a signal over another part of the same one: a simulator may not run it again when the first
part changes, which another block has written.
"""

import re

__all__ = ["settle_constants", "SelfReadingBlock"]

_TRIGGER = re.compile(r"^  reg (\\\$auto\$verilog_backend\S* ) = 0;$", re.M)
_BLOCK = re.compile(r"^  always @\* begin\n(.*?)^  end$", re.M | re.S)
_ASSIGNED = re.compile(r"^\s*(?:[^:\n]*: )?(\\?[\w$.]+ ?)(?:\[[\d:]+\] ?)?= ", re.M)
_CONDITION = re.compile(r"\b(?:if|case|casez) \((.*)\)")
_CONSTANT = re.compile(r"^  always @\*\n    (\S[^;=\n]*= \d+'[bdh][0-9a-fxz]+;)$", re.M)


class SelfReadingBlock(ValueError):
    """A part of a signal decides over another part of it."""


def _check(text):
    for block in _BLOCK.finditer(text):
        conditions = " ".join(_CONDITION.findall(block[1]))
        for name in {name.strip() for name in _ASSIGNED.findall(block[1])}:
            if re.search(rf"(?<![\w$.\\]){re.escape(name)}(?![\w$.])", conditions):
                raise SelfReadingBlock(f"one part of {name} is the condition for another part of it; make them signals of their own, or "
                                       f"simulators of the Verilog will disagree with Amaranth's")


def settle_constants(text):
    """The same Verilog, with every constant block reading its module's trigger, which is added where there is none. Raises
    SelfReadingBlock."""
    _check(text)
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
