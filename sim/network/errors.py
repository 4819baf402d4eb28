"""What a wrong use of the network raises."""

__all__ = ["NetworkError"]


class NetworkError(ValueError):
    """A knob that doesn't exist, a value out of range, a frame in the past: the message says which and what would do."""
