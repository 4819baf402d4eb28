"""Which acknowledges are owed to peers: one each queue pair, the newest, and none while a READ or atomic of it is unanswered."""

__all__ = ["Acknowledges"]


class Acknowledges:
    def __init__(self):
        self._owed = {}         # QPN: (psn, msn, syndrome), those that have waited longest first
        self._answers = {}      # QPN: READs and atomics not yet answered

    def owe(self, number, psn, msn, syndrome):
        """The newest takes the place of what isn't sent yet."""
        self._owed[number] = psn, msn, syndrome

    def answering(self, number, again=False):
        """An answer will be given. Unless it answers something received `again`, it acknowledges all that came before."""
        self._answers[number] = self._answers.get(number, 0) + 1
        if not again:
            self._owed.pop(number, None)

    def answered(self, number):
        self._answers[number] = max(0, self._answers.get(number, 0) - 1)

    def reset(self, number):
        self._owed.pop(number, None)
        self._answers.pop(number, None)

    def _next(self):
        return next((number for number in self._owed if not self._answers.get(number)), None)

    def __bool__(self):
        return self._next() is not None

    def take(self):
        """(QPN, (psn, msn, syndrome)) of the next, or None."""
        number = self._next()
        return None if number is None else (number, self._owed.pop(number))
