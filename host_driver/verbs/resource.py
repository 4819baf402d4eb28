"""What has a life: it belongs to a parent, can be closed (by hand, by `with`, or with its parent), and is of no use afterwards."""

from ..errors import ClosedError, UsageError

__all__ = ["Resource"]


class Resource:
    """Closing a parent closes its children, the youngest first, and whatever uses one of them before that. To close by hand what
    something else still uses (a CQ of a queue pair, a CompChannel of a CQ) is a UsageError: the card would go on using it.
    What is closed twice is closed.
    """

    def __init__(self, parent=None):
        self.closed = False
        self._parent, self._children, self._users = parent, [], []
        if parent is not None:
            parent.check_open()

    def _born(self):
        """The last step of a constructor: nothing that failed half way is anybody's child."""
        self._parent._children.append(self)

    def check_open(self):
        if self.closed:
            raise ClosedError(f"{self!r} is closed")

    def _use(self, *others):
        """Keep `others` from being closed before this one is."""
        for other in others:
            other.check_open()
            other._users.append(self)

    def _unuse(self, *others):
        for other in others:
            other._users.remove(self)

    def close(self):
        if self.closed:
            return
        if self._users:
            more = " and others" if len(self._users) > 1 else ""
            raise UsageError(f"{self!r} is in use by {self._users[0]!r}{more}; close that first")
        self._close_all()

    def _close_all(self):
        for user in list(self._users):
            user._close_all()
        while self._children:
            self._children[-1]._close_all()
        if not self.closed:
            self._close()
            self.closed = True
            if self._parent is not None:
                self._parent._children.remove(self)

    def _close(self):
        """Give back what the card holds for it."""

    def __enter__(self):
        self.check_open()
        return self

    def __exit__(self, *_):
        self.close()
