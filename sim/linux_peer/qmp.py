"""QEMU's control socket (QMP): a command, its answer."""

import json
import socket
import time

from .errors import PeerError

__all__ = ["Qmp"]

ANSWER_S = 30


class Qmp:
    """Connected to the Unix socket at `path`, which has to be there within `within_s`; `alive()` says whether QEMU still runs."""

    def __init__(self, path, within_s, alive):
        self._socket, self._read = socket.socket(socket.AF_UNIX), b""
        end = time.monotonic() + within_s
        while True:
            try:
                self._socket.connect(str(path))
                break
            except OSError:
                if time.monotonic() > end or not alive():
                    self._socket.close()
                    raise PeerError(f"QEMU does not answer at {path}") from None
                time.sleep(0.01)
        self._socket.settimeout(ANSWER_S)
        self._message()                         # the greeting
        self.command("qmp_capabilities")

    def _message(self):
        while b"\n" not in self._read:
            try:
                found = self._socket.recv(65536)
            except TimeoutError:
                raise PeerError(f"QEMU said nothing for {ANSWER_S} s") from None
            if not found:
                raise PeerError("QEMU has ended")
            self._read += found
        line, self._read = self._read.split(b"\n", 1)
        return json.loads(line)

    def command(self, name, **arguments):
        """Have it done and return what QEMU says of it."""
        message = {"execute": name} | ({"arguments": arguments} if arguments else {})
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise PeerError("QEMU has ended") from None
        while True:
            answer = self._message()
            if "error" in answer:
                raise PeerError(f"QEMU refused {name}: {answer['error']['desc']}")
            if "return" in answer:              # everything else is an event
                return answer["return"]

    def monitor(self, line):
        """A command of the human monitor, for what QMP itself lacks; what it prints."""
        return self.command("human-monitor-command", **{"command-line": line})

    def close(self):
        self._socket.close()
