"""A card in plain Python, as a World wants one: what comes from the cable goes back, its addresses exchanged."""

from collections import deque

__all__ = ["EchoCard"]

BEAT = 64


class EchoCard:
    """One frame at a time, 64 bytes a cycle; the answer begins `latency` cycles after a frame's last beat. `echo` off: it only
    listens. `got`: (frame, cycle of the last beat)."""

    def __init__(self, echo=True, latency=10):
        self.cycle, self.echo, self.latency = 0, echo, latency
        self.coming, self.going, self.sent, self.got = deque(), deque(), [], []
        self.free = 0                   # the cable's side is busy until this cycle

    def start(self, frame, at_cycle=0):
        """A frame of its own."""
        self.going.append((max(at_cycle, self.cycle), frame))

    def send(self, frame, *, at_cycle, user=0):
        assert at_cycle >= self.cycle, f"a frame for cycle {at_cycle} comes in cycle {self.cycle}"
        if not user:
            self.coming.append((at_cycle, frame))

    def run(self, cycles):
        end = self.cycle + cycles
        while self.coming:
            at, frame = self.coming[0]
            last = at + -(-len(frame) // BEAT) - 1
            if last >= end:
                break
            self.coming.popleft()
            self.got.append((frame, last))
            if self.echo:
                self.going.append((last + self.latency, frame[6:12] + frame[:6] + frame[12:]))
        while self.going:
            at, frame = self.going[0]
            first = max(at, self.free)
            last = first + -(-len(frame) // BEAT) - 1
            if last >= end:
                break
            self.going.popleft()
            self.free = last + 1
            self.sent.append((frame, first, last, 0))
        self.cycle = end

    def sent_frames(self):
        found, self.sent = self.sent, []
        return found

    def idle(self, quiet_cycles):
        return not (self.coming or self.going or self.sent)
