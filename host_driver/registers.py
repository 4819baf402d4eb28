"""The card's registers by name: what it is, commands, counters and time. See docs/host-interface.md."""

from optinic.abi.registers import (ABI_VERSION, COMMAND_ERROR, COMMANDS, CONGESTION, FEATURES, ID_WORD, TRANSPORT, offset_of)
from optinic.abi.verdicts import COUNTERS

from .errors import CardError, CommandError

__all__ = ["Registers", "name_of", "low_high"]

SIZES = ("DATA_WIDTH", "NUM_QPS", "NUM_REGIONS", "NUM_CQS", "NUM_PEERS", "CLOCK_HZ", "MTU_MAX", "RQ_ENTRIES", "RX_BUFFER_BYTES",
         "NUM_VECTORS", "SQ_ENTRIES", "RC_OUTSTANDING", "RC_RESOURCES")


def name_of(table, number):
    """The name of a number in a table of the ABI, or the number as text if the driver doesn't know it."""
    return next((name for name, n in table.items() if n == number), str(number))


def low_high(value):
    """A 64-bit number as two register words."""
    return value & 0xFFFFFFFF, value >> 32


class Registers:
    """Finds out what is behind `device`; each size register is an attribute with its name in lower case. `cfg`, if given, is
    the NicConfig that the card must have been generated from."""

    def __init__(self, device, cfg=None):
        self.device = device
        found = self.reg_read("ID")
        if found != ID_WORD:
            raise CardError(f"no OptiNIC here: ID reads {found:#010x}, not {ID_WORD:#010x}")
        self.version = self.reg_read("VERSION")
        if self.version >> 16 != ABI_VERSION >> 16:
            raise CardError(f"the card's interface is version {self.version >> 16}.{self.version & 0xFFFF}, "
                            f"this driver's is {ABI_VERSION >> 16}.{ABI_VERSION & 0xFFFF}; generate the card anew")
        self.transport = name_of(TRANSPORT, self.reg_read("TRANSPORT"))
        self.congestion = name_of(CONGESTION, self.reg_read("CONGESTION"))
        self.config_hash = self.reg_read("CONFIG_HASH")
        if cfg is not None and self.config_hash != cfg.hash:
            raise CardError(f"the card was generated from another configuration: its hash is {self.config_hash:08x}, "
                            f"that of the one given is {cfg.hash:08x}")
        for name in SIZES:
            setattr(self, name.lower(), self.reg_read(name))
        word = self.reg_read("FEATURES")
        self.features = frozenset(name for bit, name in enumerate(FEATURES) if word >> bit & 1)

    def reg_read(self, name):
        return self.device.reg_read(offset_of(name))

    def reg_write(self, name, value):
        self.device.reg_write(offset_of(name), value)

    def reg_write_wide(self, name, value):
        """A 64-bit value in the registers `name`_LO and `name`_HI."""
        for half, word in zip(("LO", "HI"), low_high(value)):
            self.reg_write(f"{name}_{half}", word)

    def run(self, cycles):
        self.device.run(cycles)

    def free(self, address):
        """Give back what the device's alloc gave, if it takes things back."""
        give_back = getattr(self.device, "free", None)
        if give_back:
            give_back(address)

    def _wait(self, what, done, polls=100_000):
        for _ in range(polls):
            if done():
                return
            self.device.run(8)
        raise CardError(f"the card hangs: waited for {what}")

    def command(self, name, *args):
        """Do a command of abi COMMANDS and wait for its end; raises CommandError."""
        for i, value in enumerate(args):
            self.reg_write(f"ARG{i}", value)
        self.reg_write("COMMAND", COMMANDS[name][0])
        status = 0

        def done():
            nonlocal status
            status = self.reg_read("COMMAND_STATUS")
            return not status >> 31

        self._wait(f"the end of {name}", done)
        if status & 0xFF:
            raise CommandError(name, name_of(COMMAND_ERROR, status & 0xFF), args)

    def fence(self):
        """Wait until every frame, read and write under way has ended."""
        self.command("fence")

    def time_ns(self):
        """The NIC's time."""
        low = self.reg_read("TIME_LO")      # latches the high word
        return self.reg_read("TIME_HI") << 32 | low

    def set_time(self, ns):
        low, high = low_high(ns)
        self.reg_write("TIME_SET_LO", low)
        self.reg_write("TIME_SET_HI", high)

    def counter(self, name):
        offset = offset_of(name)
        low = self.device.reg_read(offset)      # latches the high word
        return self.device.reg_read(offset + 4) << 32 | low

    def counters(self):
        """Every counter by its name in abi COUNTERS."""
        return {name: self.counter(name) for name in COUNTERS}
