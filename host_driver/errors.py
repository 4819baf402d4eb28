"""What can go wrong, as exceptions. Every one says what was found, what was wanted, and where there is one, the remedy.

    OptinicError
      CardError           the card is not what was expected, doesn't answer, or broke a promise
        CommandError      it refused a command
        QueueFull         a ring has no free slot; nothing was posted
      BackendError        the way to the card isn't there: no simulator, no device file, no rights, no memory
      NeighbourError      nobody on the link has an address, or the one that has it does not answer
      ExchangeError       what came over TCP from the peer's program is not what was expected, or nothing came
      UsageError          the program asked for something that makes no sense
        StateError        ... in this state of the queue pair
        ClosedError       ... of something that is closed already
        ResourceError     ... and the card has no more of it (queue pairs, keys, completion queues, peers)

A value of the wrong size or kind is a ValueError, as everywhere in Python.
"""

__all__ = ["OptinicError", "CardError", "CommandError", "QueueFull", "BackendError", "UsageError", "StateError", "ClosedError",
           "ResourceError", "NeighbourError", "ExchangeError"]


class OptinicError(RuntimeError):
    """The root of what this driver raises."""


class CardError(OptinicError):
    """The card is not what was expected, doesn't answer, or broke a promise."""


class CommandError(CardError):
    """The card refused a command; `code` is its name in abi COMMAND_ERROR."""

    def __init__(self, command, code, args):
        super().__init__(f"{command} was refused: {code} ({', '.join(f'{a:#x}' for a in args)})")
        self.command, self.code = command, code


class QueueFull(CardError):
    """A ring has no free slot, an arrival map no free row, or a completion queue could not take what would come of it; nothing
    was posted. Of a chain of work requests, `bad_wr` is the first that was not posted."""

    bad_wr = None


class BackendError(OptinicError):
    """The way to the card isn't there."""


class UsageError(OptinicError):
    """The program asked for something that makes no sense. `bad_wr` as in QueueFull."""

    bad_wr = None


class StateError(UsageError):
    """Not in this state of the queue pair."""


class ClosedError(UsageError):
    """It is closed already."""


class ResourceError(UsageError):
    """The card has no more of it."""


class NeighbourError(OptinicError):
    """Nobody on the link says to have the address, or the one that has it does not answer."""


class ExchangeError(OptinicError):
    """What came over TCP from the peer's program is not what was expected, or nothing came in time."""
