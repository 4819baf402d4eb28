"""A TCP connection on which messages of known length come and go, and what is said when they don't.

Whatever waits does so by a *patience*, a function (condition, timeout in seconds, what is waited for) that is true once
`condition()` is, and false when time is over. Without one, nothing happens here meanwhile. :func:`letting_time_pass` is for a
simulated card: the peer's program may need an answer of the card (to an ARP request, say) before it goes on.
"""

import errno
import re
import select
import socket
import time

from ..errors import ExchangeError

__all__ = ["Line", "Listener", "connect", "letting_time_pass"]

TIMEOUT_S = 30
PAUSE_S = 0.005         # between two looks, if nobody has anything better to do
PORT = 18515            # of all these tools

#: what the first bytes of other programs look like
FORMATS = (
    (re.compile(rb"[0-9a-f]{4}:[0-9a-f]{6}:[0-9a-f]{4}"), "an ibv_rc_pingpong or ibv_uc_pingpong"),
    (re.compile(rb"[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{6}:"), "perftest, further on"),
    (re.compile(rb"\d+\.\d+\0"), "perftest"),
    (re.compile(rb"(GET|POST|HEAD|HTTP/)"), "HTTP"),
    (re.compile(rb"SSH-"), "SSH"),
)


def described(data):
    """Bytes that were not expected, for a message to people."""
    shown = repr(bytes(data[:64]))[1:] + ("..." if len(data) > 64 else "")
    known = next((name for pattern, name in FORMATS if pattern.match(data)), None)
    return f"{shown}, which looks like {known}" if known else shown


class Line:
    """A connected socket. Waits at most `timeout_s` for the other side."""

    def __init__(self, connected, *, timeout_s=TIMEOUT_S, patience=None):
        self._socket, self.timeout_s, self.patience = connected, timeout_s, patience or wait
        connected.setblocking(False)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peer = "{}:{}".format(*connected.getpeername()[:2])
        except (OSError, IndexError):
            self.peer = "the peer"

    def read(self, length, what):
        """`length` bytes; `what` they are, for the error."""
        found = b""

        def more():
            nonlocal found
            try:
                new = self._socket.recv(length - len(found))
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                raise ExchangeError(f"{self.peer} broke the connection ({error.strerror}) "
                                    f"{self._where(found, length, what)}") from None
            if not new:
                raise ExchangeError(f"{self.peer} closed the connection {self._where(found, length, what)}")
            found += new
            return len(found) == length
        if not self.patience(more, self.timeout_s, what):
            raise ExchangeError(f"{self.peer} said nothing more for {self.timeout_s:g} s {self._where(found, length, what)}; both "
                                "sides have to run the same test with the same options")
        return found

    @staticmethod
    def _where(found, length, what):
        if not found:
            return f"before {what} came; see what the program there says"
        return f"after {len(found)} of the {length} bytes of {what}: {described(found)}"

    def write(self, data, what):
        left = memoryview(bytes(data))

        def more():
            nonlocal left
            try:
                left = left[self._socket.send(left):]
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                raise ExchangeError(f"{what} can't be sent to {self.peer}: {error.strerror}; see what the program there "
                                    "says") from None
            return not left
        if not self.patience(more, self.timeout_s, what):
            raise ExchangeError(f"{self.peer} took nothing for {self.timeout_s:g} s while {what} was to be sent")

    def close(self):
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Listener:
    """Waits for a client on `port` (0: any that is free, then in `port`) of `host`. A guest of QEMU's user network finds the host's
    127.0.0.1 as 10.0.2.2."""

    def __init__(self, port=PORT, *, host="127.0.0.1", timeout_s=TIMEOUT_S, patience=None):
        self.timeout_s, self.patience = timeout_s, patience or wait
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self._socket.listen(1)
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise ExchangeError(f"nobody can listen at {host}:{port} ({getattr(error, 'strerror', error)}); take another "
                                "port") from None
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]

    def accept(self):
        """The Line to the first client that comes."""
        found = []

        def somebody():
            try:
                found.append(self._socket.accept()[0])
            except (BlockingIOError, InterruptedError):
                return False
            return True
        if not self.patience(somebody, self.timeout_s, f"a connection to port {self.port}"):
            raise ExchangeError(f"nobody connected to {self.host}:{self.port} within {self.timeout_s:g} s; is the other side told "
                                "this address and port?")
        return Line(found[0], timeout_s=self.timeout_s, patience=self.patience)

    def close(self):
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def connect(host, port=PORT, *, timeout_s=TIMEOUT_S, patience=None):
    """The Line to a server; one that isn't listening yet is tried again until the time is over."""
    patience = patience or wait
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError) as error:
        raise ExchangeError(f"{host}:{port} is no address to connect to: {error}") from None
    trying, code = None, errno.ECONNREFUSED

    def reached():
        nonlocal trying, code
        if code == errno.ECONNREFUSED:      # nobody listens, yet
            if trying is not None:
                trying.close()
            trying = socket.socket(family, kind, protocol)
            trying.setblocking(False)
            code = trying.connect_ex(address)
        elif code == errno.EINPROGRESS and select.select([], [trying], [], 0)[1]:
            code = trying.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return code not in (errno.ECONNREFUSED, errno.EINPROGRESS)
    patience(reached, timeout_s, f"a connection to {host}:{port}")
    if code:
        trying.close()
        raise ExchangeError(f"{host}:{port} can't be reached within {timeout_s:g} s ({errno.errorcode.get(code, code)}); is the "
                            "program there started, as a server?")
    return Line(trying, timeout_s=timeout_s, patience=patience)


def wait(condition, timeout_s, what=None, between=lambda: time.sleep(PAUSE_S)):
    """The patience of somebody with nothing to do; seconds are real ones."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= end:
            return False
        between()
    return True


def letting_time_pass(context, step_ns=20_000):
    """A patience that lets time pass on the simulated card of `context`, and all that is in its simulation; seconds are real
    ones."""
    return lambda condition, timeout_s, what=None: wait(condition, timeout_s, what, lambda: context.sleep_ns(step_ns))
