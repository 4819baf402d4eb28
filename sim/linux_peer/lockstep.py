"""Guests on a simulated network, in step with the simulated cards: see docs/linux-peer.md, "Time".

A guest's clock goes `ratio` times as fast as that of the world. The world runs for a while, then the guests get what they are
owed, all together, in turns of about `turn_ns`; while the world runs they are stopped, and while they run the world stands still.
"""

from collections import deque
import time

from .errors import PeerError, PeerTimeout

__all__ = ["Lockstep"]

AGAIN_NS = 100_000          # until a full socket is tried again
FRAMES_A_TURN = 48          # to a guest: it has room for 1024 pieces of 1.5 KiB, and may be slow to take them


class Lockstep:
    """`guests`: {port of the world's network: Guest}. `busy()` says whether a driver waits for something that needs time to pass
    in the world, beside what can be seen of cards and network.

    From here to `close`, guests run only in their turns: when the world is run, or when somebody waits for something in a guest.
    """

    def __init__(self, world, guests, *, ratio=100, turn_ns=1_000_000, busy=lambda: False):
        if not (isinstance(ratio, int) and ratio > 0 and turn_ns > 0):
            raise ValueError(f"ratio={ratio!r} is not a whole number above 0, or turn_ns={turn_ns!r} not above 0")
        self.world, self.ratio, self.turn_ns, self.busy = world, ratio, turn_ns, busy
        self._ends = [_End(world, port, guest) for port, guest in guests.items()]
        self._owed_ns, self._last_ps = 0, world.now_ps
        self.turns = 0
        self.longest_turn_ns = 0
        for end in self._ends:
            end.guest.pause()
            end.guest.receive_frames()          # of the time before: not for this network
            end.guest.patience = self.patience
        world.followers.append(self._follow)

    def close(self):
        """Guests are stopped, and free again: the next wait for one lets it run."""
        if self._follow in self.world.followers:
            self.world.followers.remove(self._follow)
            for end in self._ends:
                end.guest.patience = end.guest.wait_freely

    # -- time -----------------------------------------------------------------------------------------------

    def _follow(self):
        now = self.world.now_ps
        self._owed_ns += (now - self._last_ps) * self.ratio / 1000
        self._last_ps = now
        if self._owed_ns >= self.turn_ns:
            # A turn is longer than it should be when this machine is busy with something else. The world needn't make up for it:
            # its cards have then waited for less than the guests' clock says.
            self._owed_ns = max(self._owed_ns - self._turn(self._owed_ns), -self.turn_ns)

    def asleep(self):
        """Nothing in the world waits for anything: no frame is under way, no card at work, nor was one a moment ago (what it sends
        may not be on the wire yet), and no driver waits."""
        return not (self.world.network.next_ps is not None or any(end.waiting for end in self._ends) or self.busy()
                    or not self.world.idle())

    def patience(self, condition, timeout_s, what):
        """Let time pass until `condition()`; PeerTimeout after so many seconds of the guests' clock. While the world is asleep
        only guests run."""
        end_ns = self.clock_ns + timeout_s * 1e9
        while not condition():
            for end in self._ends:
                if not end.guest.alive():
                    raise PeerError(f"{what}: QEMU has ended")
            if self.clock_ns > end_ns:
                raise PeerTimeout(f"{what}: not within {timeout_s:g} s of the guest")
            if self.asleep():
                self._turn(self.turn_ns, first_frame=True)
            else:
                self.world.run_ns(self.turn_ns / self.ratio)

    def carried(self):
        """[(frames handed to a guest, frames taken from it), ...]: what its interface should have counted since the beginning."""
        return [(end.handed, end.taken) for end in self._ends]

    @property
    def clock_ns(self):
        return self._ends[0].guest.clock_ns

    def _turn(self, ns, first_frame=False):
        """Let the guests run for `ns`, or with `first_frame` until one has sent something; for how long they ran at most."""
        ends, inbox = self._ends, []
        before = [end.guest.clock_ns for end in ends]
        for end in ends:
            end.begin_turn()
            end.guest.resume()
        until = time.monotonic_ns() + ns
        while (left := until - time.monotonic_ns()) > 0:
            for end in ends:
                end.flush()
            # One guest can be slept on; the others are looked at when that is over.
            ends[0].guest.wait_for_frame((min(left, AGAIN_NS) if len(ends) > 1 or ends[0].waiting else left) / 1e9)
            inbox += [(end, frame) for end in ends for frame in end.frames()]
            if first_frame and inbox:
                break
        for end in ends:
            end.guest.pause()
        inbox += [(end, frame) for end in ends for frame in end.frames()]
        for end, frame in inbox:
            self.world.send(end.port, frame)
        ran = max(end.guest.clock_ns - start for end, start in zip(ends, before))
        self.turns += 1
        self.longest_turn_ns = max(self.longest_turn_ns, ran)
        return ran


class _End:
    """A guest's end of its link: what has arrived for it, and was not yet taken."""

    def __init__(self, world, port, guest):
        self.world, self.port, self.guest = world, port, guest
        self._known, self._ready, self._room = deque(), deque(), 0
        self.handed = self.taken = 0            # frames to the guest and from it

    @property
    def waiting(self):
        return bool(self._known or self._ready)

    def begin_turn(self):
        """The world tells of arrivals up to a quantum before they happen; a frame with a wrong FCS no MAC would pass on."""
        self._known += self.world.deliveries(self.port)
        while self._known and self._known[0].time_ps <= self.world.now_ps:
            delivery = self._known.popleft()
            if not delivery.damaged:
                self._ready.append(delivery.frame)
        self._room = FRAMES_A_TURN

    def flush(self):
        """Hand on what is ready, as much as a turn allows."""
        while self._ready and self._room and self.guest.send_frame(self._ready[0]):
            self._ready.popleft()
            self._room -= 1
            self.handed += 1

    def frames(self):
        """What the guest has sent since the last call."""
        found = self.guest.receive_frames()
        self.taken += len(found)
        return found
