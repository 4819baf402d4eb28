"""A frame on its way."""

from typing import NamedTuple

__all__ = ["Packet"]


class Packet(NamedTuple):
    data: bytes
    source: object          #: the Port that it entered by
    damaged: bool           #: its FCS is wrong
    begin: int              #: earliest time at which the next transmitter may begin with it
