"""What a card of transport rc knows of a queue pair for sending: its requests, which of them are under way, and what it waits for.

Every request has its PSNs from when it is first begun. `una` is the first PSN that the peer hasn't acknowledged, `top` the one
behind the newest ever sent.
"""

from collections import deque
from dataclasses import dataclass, field

from .send import Answer, SendQueue, WorkRequest

__all__ = ["Begun", "Connection", "RcAnswer", "RcRequest"]


@dataclass(frozen=True)
class RcRequest(WorkRequest):
    operands: tuple = (0, 0)        #: of an atomic: swap or add, compare


@dataclass
class Begun:
    """A request that was begun and has not completed."""
    index: int
    request: object
    first: int              # PSN
    count: int              # PSNs
    result: int = None      # of a READ or atomic: the entry for what it brings
    got: int = 0            # PSNs acknowledged; of a READ, response packets that were placed


@dataclass(eq=False)
class Connection(SendQueue):
    """`head` is the oldest request that hasn't completed; `index`, `offset` and `psn` say what is sent next."""
    kind: str = "rc"
    retry: int = 0
    rnr_retry: int = 0
    timeout: int = 0        # ns, 0: none
    window: int = 16
    results: list = field(default_factory=list)     # receives for what READs and atomics bring
    index: int = 0
    una: int = 0
    top: int = 0
    reads: int = 0          # READs and atomics begun
    begun: deque = field(default_factory=deque)
    retries: int = 0        # used up since there was progress
    rnr_retries: int = 0
    gone_back: bool = False     # and nothing acknowledged since
    timer: int = None       # ns: when the peer has taken too long
    rest: int = None        # ns: until then it isn't ready
    broken: tuple = None    # (index, cause) of a request that can't be sent
    spoiled: str = None     # UC: why a piece of the request under way could not be sent
    dead: bool = False


@dataclass(eq=False)
class RcAnswer(Answer):
    psn: int = 0
    msn: int = 0
    original: int = None
