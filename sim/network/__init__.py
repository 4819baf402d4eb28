"""A network of links and switches between cards, to the picosecond, with faults made on purpose. See docs/network.md."""

from .core import Delivery, Network
from .errors import NetworkError
from .impair import IMPAIRMENTS
from .link import Lane, Link
from .queue import Ecn, mark_ce
from .switch import Switch
from .topology import back_to_back, star
from .units import GBIT, MS, NS, SECOND, US

__all__ = ["Network", "NetworkError", "Delivery", "Link", "Lane", "Switch", "Ecn", "mark_ce", "back_to_back", "star", "IMPAIRMENTS",
           "GBIT", "NS", "US", "MS", "SECOND"]
