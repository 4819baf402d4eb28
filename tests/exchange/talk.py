"""The other end of an exchange: plain sockets that play what was recorded, and two programs of ours by turns."""

import json
from pathlib import Path
import re
import socket
import threading
import time

HEX = re.compile("[0-9a-f]{16}")
RECORDED = json.loads((Path(__file__).parents[1] / "data/exchange.json").read_text())


def recorded(name):
    """[(side, bytes)], one a message."""
    return [(side, bytes.fromhex(text) if HEX.fullmatch(text) else text.encode("latin1")) for side, text in RECORDED[name]]


class Peer:
    """A thread with the other socket of a pair. `script(self)` runs there; what went wrong in it is raised by `end`."""

    def __init__(self, script):
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(10)
        self.error, self.heard = None, b""
        self._thread = threading.Thread(target=self._run, args=(script,), daemon=True)
        self._thread.start()

    def _run(self, script):
        try:
            script(self)
        except Exception as error:      # raised where the test is
            self.error = error
        finally:
            self.theirs.close()

    def say(self, data):
        self.theirs.sendall(data)

    def hear(self, n):
        found = b""
        while len(found) < n:
            new = self.theirs.recv(n - len(found))
            if not new:
                raise EOFError(f"closed after {found!r}")
            found += new
        self.heard += found
        return found

    def end(self):
        self._thread.join(10)
        self.ours.close()
        if self.error:
            raise self.error


def player(name, plays, *, change=None, pieces=None):
    """A script: say what the side `plays` said in the recording `name`, hear as many bytes as the other one did. `change(i, data)`
    may change message i of what is said; `pieces`: say so many bytes at a time."""
    def script(peer):
        for i, (side, data) in enumerate(recorded(name)):
            if side != plays:
                peer.hear(len(data))
                continue
            data = change(i, data) if change else data
            for at in range(0, len(data), pieces or len(data) or 1):
                peer.say(data[at:at + (pieces or len(data))])
                if pieces:
                    time.sleep(0.0005)
    return script


class Turns:
    """Two programs in threads on one simulation: only one runs at a time, and it gives way where it waits."""

    def __init__(self):
        self._lock = threading.Lock()

    def patience(self, context, step_ns=2000):
        def wait(condition, timeout_s, what=None):
            end = time.monotonic() + timeout_s
            while not condition():
                if time.monotonic() > end:
                    return False
                self._lock.release()
                time.sleep(0.0002)
                self._lock.acquire()
                context.sleep_ns(step_ns)
            return True
        return wait

    def run(self, *programs):
        """Their results, each in a thread of its own; the first exception is raised."""
        results = [None] * len(programs)

        def one(i, program):
            with self._lock:
                try:
                    results[i] = program()
                except Exception as error:
                    results[i] = error
        threads = [threading.Thread(target=one, args=pair, daemon=True) for pair in enumerate(programs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for found in results:
            if isinstance(found, Exception):
                raise found
        return results
