"""What can go wrong with a Linux peer."""

__all__ = ["PeerError", "PeerUnavailable", "PeerTimeout"]


class PeerError(RuntimeError):
    """A guest, or a program in it, did not do what it was asked to."""


class PeerUnavailable(PeerError):
    """There can be no guest on this machine as it is; the message is one line with the remedy."""


class PeerTimeout(PeerError):
    """What was waited for did not come in time."""
