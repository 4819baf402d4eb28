"""Completion queues, and channels on which to wait for them."""

from collections import deque

from ..errors import UsageError
from .resource import Resource

__all__ = ["CQ", "CompChannel"]


class CompChannel(Resource):
    """Where completion queues say that something has come, if they were asked to with CQ.req_notify.

    One interrupt vector can serve queues of several channels: the context looks which of them it was.
    """

    def __init__(self, context):
        super().__init__(context)
        self.context, self.events = context, deque()
        context._channels.append(self)
        self._born()

    def __repr__(self):
        return f"CompChannel({len(self._users)} CQs)"

    def get_cq_event(self, expected_cq=None, timeout_ns=10_000_000):
        """Wait for an event and return its CQ; None if none came in `timeout_ns` (None: wait for ever). With `expected_cq`, an
        event of another CQ is an error, as in pyverbs.

        Notification is asked for once an event. So that nothing is missed: poll until nothing is left, `req_notify`, poll
        once more, and wait only if that found nothing."""
        self.check_open()
        if not self.events and not self.context.wait_until(self._look, 1 << 62 if timeout_ns is None else timeout_ns):
            return None
        cq = self.events.popleft()
        if expected_cq is not None and cq is not expected_cq:
            self.events.appendleft(cq)
            raise UsageError(f"the event is of {cq!r}, not of {expected_cq!r}")
        return cq

    def _look(self):
        """Take note of the vectors that are pending."""
        context = self.context
        mask = sum({1 << cq.comp_vector for channel in context._channels for cq in channel._users})
        for cq in self._users:
            context.card.look_beside(cq.index)
        pending = context.card.pending_vectors() & mask
        if pending:
            context.card.clear_vectors(pending)     # before looking: what comes now sets it anew
            for channel in context._channels:
                for cq in channel._users:
                    if pending >> cq.comp_vector & 1 and cq._notified():
                        channel.events.append(cq)
        return self.events

    def _close(self):
        self.context._channels.remove(self)


class CQ(Resource):
    """CQ(context, cqe, cq_context, channel, comp_vector) as in pyverbs. It has room for `cqe` completions, rounded up to a power of
    two; as many work requests can be under way as it has room for, whichever queue pairs they belong to."""

    def __init__(self, context, cqe, cq_context=None, channel=None, comp_vector=0):
        if not 1 <= cqe <= 32768:
            raise UsageError(f"cqe={cqe} is outside 1..32768")
        if not 0 <= comp_vector < context.card.num_vectors:
            raise UsageError(f"comp_vector={comp_vector}: the card has {context.card.num_vectors}")
        super().__init__(context)
        self.context, self.cq_context, self.channel, self.comp_vector = context, cq_context, channel, comp_vector
        self.cqe = max(2, 1 << (cqe - 1).bit_length())
        self.index = context.numbers.cq()
        self._ready = deque()               # WCs that were more than somebody polled for
        self._armed_at = None               # how many had been consumed then
        try:
            context.card.set_cq(self.index, self.cqe, vector=comp_vector)
        except Exception:
            context.numbers.free_cq(self.index)
            raise
        if channel is not None:
            self._use(channel)
        self._born()

    def __repr__(self):
        return f"CQ({self.index}, cqe={self.cqe})"

    @property
    def _ring(self):
        return self.context.card._cqs[self.index]

    def poll(self, num_entries=1):
        """(how many, [WC, ...]) as in pyverbs, at most `num_entries`. Never waits."""
        self.check_open()
        if len(self._ready) < num_entries:
            for completion in self.context.card.poll(self.index):
                self._ready += completion.wr_id.end(completion) if completion.wr_id else ()
        found = [self._ready.popleft() for _ in range(min(num_entries, len(self._ready)))]
        return len(found), found

    @property
    def waiting(self):
        """Completions of the card that wait to be polled."""
        return len(self._ready) + self.context.card.waiting_completions(self.index)

    def wait(self, count=1, timeout_ns=10_000_000):
        """Poll until `count` completions have come or `timeout_ns` are over; a list of what has come."""
        found = []

        def enough():
            found.extend(self.poll(count - len(found))[1])
            return len(found) >= count
        self.context.wait_until(enough, timeout_ns)
        return found

    def req_notify(self, solicited_only=False):
        """Have the channel get one event once there is a completion beyond those polled; at once, if there is one already."""
        self.check_open()
        if self.channel is None:
            raise UsageError(f"{self!r} has no CompChannel to be notified on; give it one when it is made")
        if solicited_only:
            raise UsageError("the card doesn't tell solicited completions from others; ask for all of them")
        if self._ready or self._ring.backlog:
            self.channel.events.append(self)
            self._armed_at = None
        else:
            self._armed_at = self._ring.consumed
            self.context.card.arm(self.index)

    def _notified(self):
        """Whether what it was armed for has come. Then it is armed no more."""
        if self._armed_at is None or not (self._ring.consumed != self._armed_at or self._ring.waiting(self.context.device)):
            return False
        self._armed_at = None
        return True

    def ack_events(self, num_events):
        """Nothing to do: an event that was taken is gone. Here for programs that call it."""

    def _close(self):
        if self.channel is not None:
            self._unuse(self.channel)
            self.channel.events = deque(cq for cq in self.channel.events if cq is not self)
        self.context.card.remove_cq(self.index)
        self.context.numbers.free_cq(self.index)
