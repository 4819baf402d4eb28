"""A Lab whose cards answer for themselves, and the TCP lines between programs in a guest and programs here.

    with Guest(build_image()) as guest, AnsweringLab("rtl", [guest]) as lab:
        guest.run("ping -c 1 10.77.0.1")
        with lab.serve(18515) as listener:
            job = guest.start(f"ibv_rc_pingpong -g 1 {lab.HOST}")
            with listener.accept() as line:
                pingpong(lab.cards[0], line, client=False)
"""

from host_driver.exchange import Listener, connect

from .errors import PeerTimeout
from .jobs import GuestListener
from .lab import Lab

__all__ = ["AnsweringLab"]

LINE_S = 60         # of the guest, that programs wait for each other


class AnsweringLab(Lab):
    """Nothing is entered into the guests' neighbour tables, and what is in them of the link is removed. Whoever waits for a guest
    looks at the frames that the cards have passed to their host meanwhile."""

    HOST = GuestListener.HOST       #: this machine, as a guest sees it

    def __init__(self, backend, guests, **options):
        super().__init__(backend, guests, neighbours=False, **options)
        try:
            for guest in self.guests:
                guest.patience = self._answering
                guest.run("ip neigh flush dev link0 nud permanent; ip neigh flush dev link0 nud all")
        except BaseException:
            self.close()
            raise

    def _answering(self, condition, timeout_s, what):
        def served():
            for card in self.cards:
                card.neighbours.poll()
            return condition()
        self.lockstep.patience(served, timeout_s, what)

    def patience(self, condition, timeout_s, what):
        """As host_driver.exchange wants it; seconds are those of the guests."""
        try:
            self._answering(condition, timeout_s, what)
        except PeerTimeout:
            return False
        return True

    def serve(self, port=0, timeout_s=LINE_S):
        """A Listener, for programs in a guest that connect to HOST."""
        return Listener(port, timeout_s=timeout_s, patience=self.patience)

    def call(self, guest, port, job=None, timeout_s=LINE_S):
        """The Line to a program in `guest` that listens at `port`, once it does. `job`: that program; if it ends before, an error
        says what it said."""
        wanted = f"until grep -qi ':{port:04x} .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.02; done"
        with guest.start(wanted) as listening:
            guest.patience(lambda: listening.done() or job is not None and job.done(), timeout_s,
                           f"somebody in the guest to listen at {port}")
        return connect("127.0.0.1", guest.forward(port), timeout_s=timeout_s, patience=self.patience)
