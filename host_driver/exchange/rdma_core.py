"""The exchange of ibv_rc_pingpong and ibv_uc_pingpong (rdma-core): one line of text each way, then "done".

    lid:qpn:psn:gid     4, 6, 6 and 32 hexadecimal digits, the GID as its bytes are; with the NUL behind it 52 bytes

The client speaks first. The server takes its queue pair to RTR and RTS before it answers; the client then says "done" (5 bytes with
the NUL), takes its own there, and sends the first message.
"""

import re

from ..errors import ExchangeError
from .address import Address, gid_bytes, gid_of
from .line import described

__all__ = ["as_client", "as_server", "text_of", "address_of", "LENGTH", "DONE"]

MESSAGE = re.compile(rb"([0-9a-fA-F]{4}):([0-9a-fA-F]{6}):([0-9a-fA-F]{6}):([0-9a-fA-F]{32})\0")
LENGTH = len("0000:000000:000000:") + 32 + 1
DONE = b"done\0"


def text_of(address):
    return b"%04x:%06x:%06x:%s\0" % (address.lid, address.qpn, address.psn, gid_bytes(address.gid).hex().encode())


def address_of(data, line):
    match = MESSAGE.fullmatch(data)
    if not match:
        raise ExchangeError(f"{line.peer} sent no address in the format of ibv_rc_pingpong (lid:qpn:psn:gid) but "
                            f"{described(data)}; run ibv_rc_pingpong or ibv_uc_pingpong there")
    lid, qpn, psn, gid = match.groups()
    return Address(int(qpn, 16), int(psn, 16), gid_of(bytes.fromhex(gid.decode()), line), lid=int(lid, 16))


def as_client(line, own):
    """Tell the server `own`, an Address, and return the server's."""
    line.write(text_of(own), "the address")
    peer = address_of(line.read(LENGTH, "the server's address"), line)
    line.write(DONE, '"done"')
    return peer


def as_server(line, own, connect):
    """Hear the client's Address, call `connect` with it, which takes the queue pair to RTS, answer with `own`, and return the
    client's once it is done."""
    peer = address_of(line.read(LENGTH, "the client's address"), line)
    connect(peer)
    line.write(text_of(own), "the address")
    said = line.read(len(DONE), 'the client\'s "done"')
    if said != DONE:
        raise ExchangeError(f'{line.peer} should have said "done", and said {described(said)}')
    return peer
