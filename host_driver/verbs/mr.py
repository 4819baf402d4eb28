"""A memory region: memory that the card may use, and the key by which it does."""

import numpy as np

from ..errors import UsageError
from .enums import AccessFlags
from .resource import Resource
from .wr import SGE

__all__ = ["MR"]


class MR(Resource):
    """MR(pd, length, access), or MR(pd, array, access) for memory of the array's size, shape and type that begins with its
    contents.

    The memory is the card's: allocated here in the way of the backend, given back when this is closed. Or it is at `address`, an
    address on the card's bus, and somebody else's. Addresses in SGEs are `mr.addr` and up.

    **What the program sees of it.** :meth:`read` and :meth:`write` always work. `mr.array` is a NumPy array with the contents.
    On a backend where the program and the card share memory (pci) it *is* the memory. In a simulation it is a copy: before the
    card is to see what was put into it, :meth:`sync_to_card`; before the program looks at what the card has written,
    :meth:`sync_from_card`. A program that calls both runs on every backend, as where nothing is to be copied they do nothing.
    The array given to MR() is copied and not touched again.
    """

    def __init__(self, pd, what, access=AccessFlags.IBV_ACCESS_LOCAL_WRITE, *, address=None):
        given = None
        if not isinstance(what, (int, np.integer)):
            given = np.ascontiguousarray(what) if isinstance(what, np.ndarray) else np.frombuffer(what, np.uint8)
        length = int(what) if given is None else given.nbytes
        if length <= 0:
            raise UsageError(f"a memory region of {length} bytes")
        access = AccessFlags(access)
        if access & AccessFlags.IBV_ACCESS_REMOTE_ATOMIC and not pd.context.has_atomics:
            raise UsageError("the card knows no atomic operations; a card of transport rc does, unless it was generated with "
                             "rc_atomics=off")
        for right in (AccessFlags.IBV_ACCESS_REMOTE_WRITE, AccessFlags.IBV_ACCESS_REMOTE_ATOMIC):
            if access & right and not access & AccessFlags.IBV_ACCESS_LOCAL_WRITE:
                raise UsageError(f"{right.name} goes with IBV_ACCESS_LOCAL_WRITE, as in verbs")
        super().__init__(pd)
        self.pd, self.length, self.access = pd, length, access
        self._shape, self._dtype = ((length,), np.uint8) if given is None else (given.shape, given.dtype)
        self._array = None
        card = pd.context.card
        self._allocated = address is None
        self.addr = card.device.alloc(length, 4096) if self._allocated else address
        try:
            self.lkey = self.rkey = pd.context.numbers.register(
                lambda key: card.add_region(key, self.addr, length, int(access), pd=pd.handle))
        except Exception:
            if self._allocated:
                card.free(self.addr)
            raise
        self._born()
        if given is not None:
            self.write(given.tobytes())

    def __repr__(self):
        return f"MR(addr={self.addr:#x}, length={self.length}, lkey={self.lkey:#x})"

    def __len__(self):
        return self.length

    @property
    def valid(self):
        """False once it is closed, or a peer has invalidated its key by a SEND with invalidate: then it is memory without a key."""
        return not self.closed and self.pd.context.card.has_region(self.lkey)

    def sge(self, offset=0, length=None):
        """A piece of it, by default all that is behind `offset`."""
        length = self.length - offset if length is None else length
        self._check(offset, length)
        return SGE(self.addr + offset, length, self.lkey)

    def _check(self, offset, length):
        self.check_open()
        if not 0 <= offset <= offset + length <= self.length:
            raise UsageError(f"bytes {offset} to {offset + length} are not all in a region of {self.length}")

    def read(self, length=None, offset=0):
        """Its bytes, as they are in the card's memory."""
        length = self.length - offset if length is None else length
        self._check(offset, length)
        return self.pd.context.device.read(self.addr + offset, length)

    def write(self, data, length=None, offset=0):
        """Put `data` (its first `length` bytes) there."""
        data = data.tobytes() if isinstance(data, np.ndarray) else bytes(data)
        data = data if length is None else data[:length]
        self._check(offset, len(data))
        self.pd.context.device.write(self.addr + offset, data)

    # -- as an array ------------------------------------------------------------------------------------

    @property
    def array(self):
        """Made when it is first asked for, with what is in memory then."""
        self.check_open()
        if self._array is None:
            view = getattr(self.pd.context.device, "view", None)
            if view:
                raw = np.frombuffer(view(self.addr, self.length), np.uint8)
            else:
                raw = np.frombuffer(bytearray(self.read()), np.uint8)
            self.shares_memory = view is not None
            self._array = raw.view(self._dtype).reshape(self._shape)
        return self._array

    def _bytes_of_array(self):
        return self.array.reshape(-1).view(np.uint8)

    def sync_to_card(self, offset=0, length=None):
        """What is in `array` (in those bytes of it) is in the card's memory from here on."""
        length = self.length - offset if length is None else length
        self._check(offset, length)
        raw = self._bytes_of_array()
        if not self.shares_memory:
            self.write(raw[offset:offset + length].tobytes(), offset=offset)

    def sync_from_card(self, offset=0, length=None):
        """What is in the card's memory is in `array`, which this returns."""
        length = self.length - offset if length is None else length
        self._check(offset, length)
        raw = self._bytes_of_array()
        if not self.shares_memory:
            raw[offset:offset + length] = np.frombuffer(self.read(length, offset), np.uint8)
        return self.array

    def _close(self):
        card = self.pd.context.card
        if card.has_region(self.lkey):      # no peer has invalidated it
            card.remove_region(self.lkey)
        self._array = None
        if self._allocated:
            card.free(self.addr)
