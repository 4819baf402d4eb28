"""How a card and verbs_peer in a guest find each other: in the words of rdma-core's pingpong programs, and one line of ours behind
them: `optinic:rkey:address:length` in hex, 8, 16 and 8 digits and a line feed, the memory that the other end may use.
"""

from dataclasses import dataclass
import re

from host_driver.exchange import Address, as_client, as_server
from host_driver.verbs import GID

from .errors import PeerError

__all__ = ["End", "Words", "exchange"]

LINE_BYTES = len("optinic:00000000:0000000000000000:00000000\n")


@dataclass(frozen=True)
class End:
    """One end of a connection, and its memory."""
    qpn: int
    psn: int
    gid: GID
    rkey: int = 0
    addr: int = 0
    length: int = 0


class Words:
    """A GuestSocket as host_driver.exchange wants a connection."""

    peer = "the program in the guest"

    def __init__(self, link):
        self._link = link

    def read(self, length, what):
        del what
        return self._link.recv_exactly(length)

    def write(self, data, what):
        del what
        self._link.sendall(data)


def exchange(link, mine, *, client):
    """Tell the other side of a GuestSocket `mine`, an End, and learn its own. `client`: this side has connected."""
    words, address = Words(link), Address(mine.qpn, mine.psn, mine.gid)
    there = as_client(words, address) if client else as_server(words, address, lambda _: None)
    link.sendall(f"optinic:{mine.rkey:08x}:{mine.addr:016x}:{mine.length:08x}\n".encode())
    said = link.recv_exactly(LINE_BYTES)
    memory = re.fullmatch(rb"optinic:([0-9a-f]{8}):([0-9a-f]{16}):([0-9a-f]{8})\n", said)
    if not memory:
        raise PeerError(f"{said!r} is not optinic:rkey:address:length")
    return End(there.qpn, there.psn, there.gid, *(int(field, 16) for field in memory.groups()))
