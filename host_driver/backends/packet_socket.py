"""Frames of the host's own through a network interface of Linux: the way to the pass-through stream of a board."""

import socket
import struct

from ..errors import BackendError

__all__ = ["PacketSocket"]

ALL_PROTOCOLS = 3                       # ETH_P_ALL
SOL_PACKET, PACKET_AUXDATA = 263, 8     # of Linux; Python has no names for them
AUXDATA = struct.Struct("=IIIHHHH")     # tpacket_auxdata: status, len, snaplen, mac, net, vlan_tci, vlan_tpid
VLAN_VALID = 0x10
LONGEST = 65536


class PacketSocket:
    """Every frame that comes in at `interface`, and frames out of it; needs Linux and the right to open raw sockets. The kernel
    takes VLAN tags off; here they are put back."""

    def __init__(self, interface):
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        except (OSError, AttributeError) as error:
            raise BackendError(f"no raw socket is to be had for {interface} ({error}); run as root, on Linux") from None
        try:
            self._socket.bind((interface, ALL_PROTOCOLS))
            self._socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            self._socket.setblocking(False)
        except OSError as error:
            self._socket.close()
            raise BackendError(f"network interface {interface} can't be used ({error.strerror}); `ip link` lists them") from None

    def host_send(self, frame):
        try:
            self._socket.send(bytes(frame))
        except OSError as error:
            raise BackendError(f"a frame of {len(frame)} bytes can't be sent: {error.strerror}; see `ip link`") from None

    def host_frames(self):
        """What has come in since the last call."""
        found = []
        while True:
            try:
                data, extra, _, address = self._socket.recvmsg(LONGEST, socket.CMSG_SPACE(AUXDATA.size))
            except BlockingIOError:
                return found
            except OSError as error:
                raise BackendError(f"frames can't be received: {error.strerror}; see `ip link`") from None
            if address[2] != socket.PACKET_OUTGOING:        # what other programs of this machine send there
                found.append(with_tag(data, extra))

    def close(self):
        self._socket.close()


def with_tag(frame, extra):
    for level, kind, data in extra:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA) and len(data) >= AUXDATA.size:
            status, *_, tag, protocol = AUXDATA.unpack_from(data)
            if status & VLAN_VALID:
                return frame[:12] + struct.pack(">HH", protocol or 0x8100, tag) + frame[12:]
    return frame
