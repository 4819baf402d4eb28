"""The words with which the ends of a connection find each other: those of rdma-core's pingpong programs, and one line of ours.

`lid:qpn:psn:gid` in hex, 4, 6, 6 and 32 digits, and a zero byte; after it, where both ends want it, `optinic:rkey:address:length`
with 8, 16 and 8 digits and a line feed.
"""

from dataclasses import dataclass
import re

from host_driver.verbs import GID

from .errors import PeerError

__all__ = ["End", "PINGPONG_BYTES", "OURS_BYTES"]

PINGPONG_BYTES, OURS_BYTES = 52, 43
DONE = b"done\0"


@dataclass
class End:
    """One end of a connection. `rkey`, `addr` and `length` of its memory are 0 where only pingpong's words were said."""
    qpn: int
    psn: int
    gid: GID
    rkey: int = 0
    addr: int = 0
    length: int = 0

    def pingpong(self):
        return f"{0:04x}:{self.qpn:06x}:{self.psn:06x}:{self.gid.gid.replace(':', '')}".encode() + b"\0"

    def ours(self):
        return f"optinic:{self.rkey:08x}:{self.addr:016x}:{self.length:08x}\n".encode()

    @classmethod
    def of_pingpong(cls, said):
        found = re.fullmatch(rb"[0-9a-f]{4}:([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\0", said)
        if not found:
            raise PeerError(f"{said!r} is not lid:qpn:psn:gid of a pingpong program")
        qpn, psn, gid = found.groups()
        groups = [gid.decode()[i:i + 4] for i in range(0, 32, 4)]
        return cls(int(qpn, 16), int(psn, 16), GID(":".join(groups)))

    def add_ours(self, said):
        found = re.fullmatch(rb"optinic:([0-9a-f]{8}):([0-9a-f]{16}):([0-9a-f]{8})\n", said)
        if not found:
            raise PeerError(f"{said!r} is not optinic:rkey:address:length")
        self.rkey, self.addr, self.length = (int(field, 16) for field in found.groups())
