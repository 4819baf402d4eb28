"""What ends a replay before it starts."""

__all__ = ["ReplayError"]


class ReplayError(Exception):
    """One line for the user: what is wrong, where, and what would be right. Exit status 2."""
