"""The tables of a model card, and what it reads from and writes to the host by way of them."""

from dataclasses import dataclass

from optinic.abi.regions import region_row
from optinic.abi.structs import INLINE_OFFSET, RC_ONLY, RECV_WQE, SEND_OP, SEND_WQE
from sim.models.nic import Receive
from sim.models.send import WorkRequest

__all__ = ["RegionTable", "ReceiveRing", "SendRing", "Map", "CompletionQueue", "QueuePair"]

OP_NAME = {number: name for name, number in SEND_OP.items() if name not in RC_ONLY}


class RegionTable:
    """The slots as the driver wrote them. A key is found where it is in one of its two slots, and only there."""

    def __init__(self, num_regions):
        self.rows = num_regions // 2
        self._slots, self._found = {}, {}

    def get(self, key):
        return self._found.get(key)

    def set(self, bank, row, key, region):
        """`region` None: the slot is not valid."""
        old = self._slots.get((bank, row))
        self._slots[bank, row] = region
        for key in {key} if old is None else {key, old.key}:
            at_home = (self._slots.get((bank, region_row(bank, key, self.rows))) for bank in range(2))
            self._found[key] = next((r for r in at_home if r and r.key == key), None)


class Ring:
    """What was posted to a QP, read from its ring in memory when it is wanted. None: it can't be read."""

    struct = errors = None      #: of a work request; and the counter of those that can't be read

    def __init__(self, card, index, entries):
        self.card, self._first, self._entries = card, index * entries, entries
        self._last, self._value = None, None
        self.posted = 0

    def __len__(self):
        return self.posted

    def ring(self, count, head):
        """A doorbell: `count` is what has been posted, modulo 2^16."""
        self.posted = head + ((count - head) & 0xFFFF)

    def __getitem__(self, index):
        if index != self._last:
            addr = self.base + (self._first + index % self._entries) * self.struct.size
            try:
                self._value = self.decode(self.card.read(addr, self.struct.size))
            except IndexError:
                self._value = None
                self.card.counts[self.errors] += 1
            self._last = index
        return self._value


class ReceiveRing(Ring):
    struct, errors = RECV_WQE, "fetch_errors"

    @property
    def base(self):
        return self.card.receive_base

    @staticmethod
    def decode(raw):
        w = RECV_WQE.unpack(raw)
        return Receive(w["va"], w["length"], w["lkey"], w["timeout"], bool(w["absolute"]))


class SendRing(Ring):
    struct, errors = SEND_WQE, "wqe_errors"

    @property
    def base(self):
        return self.card.send_base

    @staticmethod
    def decode(raw):
        w = SEND_WQE.unpack(raw)
        return WorkRequest(
            OP_NAME.get(w["opcode"], str(w["opcode"])), w["length"], w["va"], w["lkey"],
            raw[INLINE_OFFSET:] if w["inline"] else None, w["remote_va"], w["rkey"], w["imm"], w["seq"], w["tag"],
            bool(w["signaled"]), bool(w["solicited"]), w["deadline"] if w["deadline_set"] else None)


class Map:
    """A QP's arrival map in host memory."""

    def __init__(self, card, addr, pieces, rows):
        self._write, self._addr, self._pieces, self._rows = card.write, addr, pieces, rows

    def note(self, sequence, piece):
        if piece < self._pieces:
            self._write((self._addr + sequence % self._rows * self._pieces + piece) % (1 << 64), bytes([sequence % 256]))


@dataclass
class CompletionQueue:
    addr: int = 0
    entries: int = 1
    vector: int = 0
    valid: bool = False
    producer: int = 0           # modulo 2^16, as all three
    consumer: int = 0
    acked: int = 0
    armed: bool = False


@dataclass
class QueuePair:
    """What the card knows of a QP beside the two models."""
    number: int
    peer: int
    receive_cq: int
    send_cq: int
    write_failed: bool = False  # the next completion of a receive says so
