"""A bit field of a structure in host memory or of a register, and packing by such a list.

No hardware library is imported here: the driver, the exports and the RTL all read the same tables.
"""

from dataclasses import dataclass

__all__ = ["Field", "Struct"]


@dataclass(frozen=True)
class Field:
    name: str
    bit: int        #: position of the lowest bit, counted from byte 0 bit 0 (little endian)
    width: int
    doc: str
    values: dict = None     #: name -> number, for enumerated fields


@dataclass(frozen=True)
class Struct:
    """A fixed-size little-endian structure in host memory."""
    name: str
    size: int               #: bytes
    doc: str
    fields: tuple

    def __post_init__(self):
        end = 0
        for f in self.fields:
            if f.bit < end or f.bit + f.width > 8 * self.size:
                raise ValueError(f"{self.name}.{f.name} overlaps its neighbour or the end")
            end = f.bit + f.width

    def __getitem__(self, name):
        return next(f for f in self.fields if f.name == name)

    def pack(self, **values):
        word = 0
        for f in self.fields:
            v = values.pop(f.name, 0)
            if not 0 <= v < 1 << f.width:
                raise ValueError(f"{self.name}.{f.name}={v} does not fit {f.width} bits")
            word |= v << f.bit
        if values:
            raise ValueError(f"{self.name} has no field {', '.join(values)}")
        return word.to_bytes(self.size, "little")

    def unpack(self, data):
        word = int.from_bytes(data[:self.size], "little")
        return {f.name: word >> f.bit & (1 << f.width) - 1 for f in self.fields}
