"""The exchange of perftest 4.5 (ib_write_bw, ib_send_bw and their kin), over its TCP socket.

Every step is a message from the client and one of the same length and meaning from the server:

    version         text, 16 bytes, padded with NUL: "6.06" is that of perftest 4.5+0.20 (Debian 12)
    buffer size     32 bits, and cache line size, 32 bits: the larger of the two sides' count for both
    path MTU        its number in verbs as a digit and NUL: the smaller counts
    address         lid:out_reads:qpn:psn:rkey:vaddr:gid:srqn: with 4, 4, 6, 6, 8, 16, 16 times 2 and 8 digits, and NUL: 108 bytes
    the same again  as often as the two sides have to be in step
    report          (where one side alone sends WRITEs, or both send) bytes, iterations: 64 bits; peak, average, rate: doubles
    "done"          5 bytes with NUL, after the address once more

All numbers big-endian. What is between, and how often, is the program's: see `programs`.
"""

from contextlib import suppress
from functools import partial
import re
import struct

from ..errors import ExchangeError
from ..verbs.enums import mtu_bytes, mtu_code
from .address import Address, gid_bytes, gid_of
from .line import described
from .rdma_core import DONE

__all__ = ["Perftest", "VERSION", "text_of", "address_of", "LENGTH"]

VERSION = "6.06"
VERSION_LENGTH = 16
MESSAGE = re.compile(rb"([0-9a-fA-F]{4}):([0-9a-fA-F]{4}):([0-9a-fA-F]{6}):([0-9a-fA-F]{6}):([0-9a-fA-F]{8}):([0-9a-fA-F]{16}):"
                     rb"((?:[0-9a-fA-F]{2}:){16})([0-9a-fA-F]{8}):\0")
LENGTH = 108


def text_of(a):
    gid = "".join(f"{byte:02x}:" for byte in gid_bytes(a.gid)).encode()
    return b"%04x:%04x:%06x:%06x:%08x:%016x:%s%08x:\0" % (a.lid, a.out_reads, a.qpn, a.psn, a.rkey, a.vaddr, gid, a.srqn)


def address_of(data, line):
    match = MESSAGE.fullmatch(data)
    if not match:
        raise ExchangeError(f"{line.peer} sent no address in the format of perftest {VERSION} but {described(data)}")
    *numbers, gid, srqn = match.groups()
    lid, reads, qpn, psn, rkey, vaddr = (int(n, 16) for n in numbers)
    return Address(qpn, psn, gid_of(bytes.fromhex(gid.decode().replace(":", "")), line), lid=lid, rkey=rkey, vaddr=vaddr,
                   out_reads=reads, srqn=int(srqn, 16))


class Perftest:
    """One side of an exchange over `line`. Steps are to be called in the order of the tool that is at the other end. `buffer`,
    `cache_line` and `mtu` are what both sides agree on, once :meth:`parameters` is over."""

    def __init__(self, line, client, *, buffer=4096, cache_line=64, mtu=1024, version=VERSION):
        self.line, self.client, self.version = line, client, version
        self.buffer, self.cache_line, self.mtu = buffer, cache_line, mtu
        self.own = self.peer = None

    def _swap(self, data, what, understand):
        """Tell it, and hear as much, which `understand` makes something of. Where it can't, the peer is told nevertheless: it may
        know why."""
        if self.client:
            self.line.write(data, what)
        found = self.line.read(len(data), f"the peer's {what}")
        try:
            understood = understand(found)
        except ExchangeError:
            if not self.client:
                with suppress(ExchangeError):
                    self.line.write(data, what)
            raise
        if not self.client:
            self.line.write(data, what)
        return understood

    def parameters(self):
        """Version, sizes and MTU."""
        self._swap(self.version.encode().ljust(VERSION_LENGTH, b"\0"), "version", self._same_version)
        self.buffer = max(self.buffer, self._number(self.buffer, "buffer size", 1 << 30))
        self.cache_line = max(self.cache_line, self._number(self.cache_line, "cache line size", 4096))
        self.mtu = min(self.mtu, self._swap(b"%d\0" % mtu_code(self.mtu), "path MTU", self._mtu_of))
        return self.mtu

    def _same_version(self, said):
        theirs = re.fullmatch(rb"(\d+\.\d+)\0+", said)
        if not theirs:
            raise ExchangeError(f"{self.line.peer} sent no version of perftest but {described(said)}; run ib_write_bw or "
                                "ib_send_bw there, without -R")
        if theirs[1].decode() != self.version:
            raise ExchangeError(f"{self.line.peer} speaks version {theirs[1].decode()} of perftest's exchange, and this side "
                                f"{self.version}, that of perftest 4.5 (Debian 12, package 4.5+0.20); other versions exchange "
                                "other things")

    def _mtu_of(self, said):
        if not re.fullmatch(rb"[1-5]\0", said):
            raise ExchangeError(f"{self.line.peer} sent no path MTU (1 to 5) but {described(said)}")
        return mtu_bytes(int(said[:1]))

    def _number(self, value, what, most):
        def understand(said):
            found, = struct.unpack(">I", said)
            if not 0 < found <= most:
                raise ExchangeError(f"{self.line.peer} has a {what} of {found}, which is outside 1..{most}")
            return found
        return self._swap(struct.pack(">I", value), what, understand)

    def _address(self, what):
        return self._swap(text_of(self.own), what, lambda said: address_of(said, self.line))

    def addresses(self, own):
        """The peer's Address; from then on :meth:`in_step` repeats both."""
        self.own = own
        self.peer = self._address("address")
        return self.peer

    def in_step(self, what="sign to go on"):
        """Go on when the other side is here too."""
        found = self._address(what)
        if found != self.peer:
            raise ExchangeError(f"{self.line.peer} is now another queue pair ({found.qpn:#x} instead of {self.peer.qpn:#x}); one "
                                "queue pair is spoken of here: run it without -q")

    def report(self, size=0, iterations=0, peak=0.0, average=0.0, rate=0.0):
        """What was measured: bytes, iterations, MiB/s twice, millions of messages a second. The peer's numbers, in the same order;
        a side that has not measured sends what happens to be in its memory."""
        theirs = []
        for form, value, what in ((">Q", size, "size"), (">Q", iterations, "iterations"), (">d", peak, "peak"),
                                  (">d", average, "average"), (">d", rate, "rate")):
            theirs += self._swap(struct.pack(form, value), f"report ({what})", partial(struct.unpack, form))
        return theirs

    def close(self):
        """The end: both say so."""
        self.in_step("last sign")
        self.line.write(DONE, '"done"')
        said = self.line.read(len(DONE), 'the peer\'s "done"')
        if said != DONE:
            raise ExchangeError(f'{self.line.peer} should have said "done", and said {described(said)}')
