"""Commands in a guest, and connections with it: sockets of this machine behind which nothing moves unless the guest may run.

Everything that waits does so by the guest's `patience`. The protocol of jobs is described in guest/job_server.c.
"""

import socket
import struct

from .errors import PeerError

__all__ = ["Job", "GuestSocket", "GuestListener"]

LONGEST = 1 << 20


class GuestSocket:
    """A connected TCP socket whose `recv` lets the guest run while it waits, with a few of a socket's methods. `timeout_s`,
    seconds of the guest, is for every wait; PeerTimeout when it is over."""

    def __init__(self, guest, connected, timeout_s=30):
        self.guest, self._socket, self.timeout_s = guest, connected, timeout_s
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._read, self.ended = bytearray(), False

    @classmethod
    def connect(cls, guest, port, timeout_s=30):
        """To `port` of the guest, at which a program listens."""
        return cls(guest, socket.create_connection(("127.0.0.1", guest.forward(port))), timeout_s)

    def poll(self):
        """Take what has come, without waiting."""
        while not self.ended:
            try:
                found = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except ConnectionError:
                found = b""
            self._read += found
            self.ended = not found

    def _has(self, n):
        self.poll()
        return self.ended or len(self._read) >= n

    def _take(self, n):
        found = bytes(self._read[:n])
        del self._read[:n]
        return found

    def recv(self, n):
        """At most `n` bytes, at least one, or b"" at the end."""
        self.guest.patience(lambda: self._has(1), self.timeout_s, "data from the guest")
        return self._take(n)

    def recv_exactly(self, n):
        """`n` bytes; PeerError if the connection ends before."""
        self.guest.patience(lambda: self._has(n), self.timeout_s, f"{n} bytes from the guest")
        if len(self._read) < n:
            raise PeerError(f"the guest has closed the connection after {len(self._read)} of {n} bytes: "
                            f"{bytes(self._read[:200])!r}")
        return self._take(n)

    def has_line(self):
        self.poll()
        return self.ended or b"\n" in self._read

    def readline(self):
        """A line without its end."""
        self.guest.patience(self.has_line, self.timeout_s, "a line from the guest")
        if b"\n" not in self._read:
            raise PeerError(f"the guest has closed the connection; it said {bytes(self._read[:200])!r}")
        return self._take(self._read.index(b"\n") + 1)[:-1].decode()

    def sendall(self, data):
        data = memoryview(bytes(data))

        def sent():
            nonlocal data
            try:
                data = data[self._socket.send(data):]
            except BlockingIOError:
                pass
            except ConnectionError:
                raise PeerError("the guest has closed the connection") from None
            return not data
        if len(data):
            self.guest.patience(sent, self.timeout_s, "the guest to take data")

    def settimeout(self, seconds):
        self.timeout_s = 1e9 if seconds is None else seconds

    def close(self):
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class GuestListener:
    """A port of this machine, which the guest reaches as 10.0.2.2:`port`. Without `port`, one that is free."""

    HOST = "10.0.2.2"

    def __init__(self, guest, port=0):
        self.guest, self._socket = guest, socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self._socket.setblocking(False)

    def accept(self, timeout_s=30):
        """The next connection, a GuestSocket."""
        found = []

        def came():
            try:
                found.append(self._socket.accept()[0])
            except BlockingIOError:
                pass
            return found
        self.guest.patience(came, timeout_s, f"a connection to port {self.port} from the guest")
        return GuestSocket(self.guest, found[0], timeout_s)

    def close(self):
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Job:
    """A shell script in a guest. `output` is what it has written so far, `status` its exit status once it has one, else None."""

    def __init__(self, guest, script, host_port):
        self.guest, self.script = guest, script
        self._socket = GuestSocket(guest, socket.create_connection(("127.0.0.1", host_port)))
        self._output, self._record, self.status = bytearray(), None, None
        text = script.encode()
        if len(text) > LONGEST:
            raise PeerError(f"a script of {len(text)} bytes; at most {LONGEST} are taken")
        self._socket.sendall(struct.pack(">I", len(text)) + text)

    def __repr__(self):
        return f"Job({self.script[:40]!r})"

    def done(self):
        """Take what has come; whether it has ended."""
        while self.status is None:
            if self._record is None:
                if not self._socket._has(5):
                    break
                if self._socket.ended and len(self._socket._read) < 5:
                    raise PeerError(f"{self!r}: the guest has closed the connection")
                kind, length = struct.unpack(">cI", self._socket._take(5))
                self._record = kind, length
            kind, length = self._record
            if not self._socket._has(length):
                break
            data, self._record = self._socket._take(length), None
            if kind == b"o":
                self._output += data
            else:
                self.status = int(data)
        return self.status is not None

    @property
    def output(self):
        self.done()
        return self._output.decode(errors="replace")

    def wait(self, timeout_s=30):
        """Its exit status when it has ended."""
        self.guest.patience(self.done, timeout_s, f"{self.script.strip()[:80]!r} to end in the guest")
        return self.status

    def wait_for(self, text, timeout_s=30):
        """Return when it has written `text`; PeerError if it ends without."""
        self.guest.patience(lambda: text.encode() in self._output or self.done(), timeout_s,
                            f"{self.script.strip()[:80]!r} to say {text!r} in the guest")
        if text.encode() not in self._output:
            raise PeerError(f"{self!r} has ended with status {self.status} and did not say {text!r}: {self.output[-500:]}")

    def kill(self):
        """End it and what it has started, as far as it still runs."""
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
