"""A card behind files, as the pci backend sees one: a BAR of 4 KiB and memory at a given bus address. The model serves them from
a thread.

A file doesn't say when it is written. So registers that do something when they are written lie at TAKEN until the driver writes
one; the server takes the value and puts TAKEN back, and the test's device waits for that before it goes on.
"""

import threading
import time

import sim.model_device
from host_driver.backends.blocks import Block, Blocks
from host_driver.backends.pci import BAR_BYTES, PciDevice, map_file
from optinic.abi.registers import COUNTER_BASE, NUM_COUNTERS, REGISTERS
from sim.model_memory import HostMemory

TAKEN = 0xFFFF_FFFF
EVENTS = [r.offset for r in REGISTERS if r.access == "wo"]
STORED = [r.offset for r in REGISTERS if r.access == "rw"]
SHOWN = [r.offset for r in REGISTERS if r.access == "ro"] + list(range(COUNTER_BASE, COUNTER_BASE + 8 * NUM_COUNTERS, 4))


class FileMemory(HostMemory):
    """Host memory that is a Block."""

    blocks = None

    def read(self, addr, n):
        return self.blocks.read(addr, n)

    def write(self, addr, data):
        self.blocks.write(addr, data)


class WaitingDevice(PciDevice):
    def reg_write(self, offset, value):
        super().reg_write(offset, value)
        while offset in EVENTS and self._words[offset >> 2] != TAKEN:
            time.sleep(0)


class ServedCard:
    """Serves `bar_file` and the memory of `memory_file` at `iova`, until it is closed."""

    def __init__(self, cfg, bar_file, memory_file, iova, memory_bytes):
        bar_file.write_bytes(bytes(BAR_BYTES))
        with open(memory_file, "wb") as file:
            file.truncate(memory_bytes)
        self._bar = map_file(bar_file, BAR_BYTES, what="registers")
        self._words = memoryview(self._bar).cast("I")
        for offset in EVENTS:
            self._words[offset >> 2] = TAKEN
        shared = Blocks([Block(iova, memoryview(map_file(memory_file, what="memory")))])
        memory = type("Memory", (FileMemory,), {"blocks": shared})
        original, sim.model_device.HostMemory = sim.model_device.HostMemory, memory
        try:
            self.card = sim.model_device.ModelDevice(cfg)
        finally:
            sim.model_device.HostMemory = original
        self.card.map(iova, memory_bytes)
        self._stored = {offset: self.card.reg_read(offset) for offset in STORED}
        for offset, value in self._stored.items():
            self._words[offset >> 2] = value
        self._show()
        self.error, self._stop = None, False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        try:
            while not self._stop:
                self._take()
                self.card.run(50)
                self._show()
                time.sleep(0)
        except Exception as error:
            self.error = error
            raise

    def _take(self):
        for offset in EVENTS:
            value = self._words[offset >> 2]
            if value == TAKEN:
                continue
            for stored in STORED:       # what was written before it
                if self._words[stored >> 2] != self._stored[stored]:
                    self._stored[stored] = self._words[stored >> 2]
                    self.card.reg_write(stored, self._stored[stored])
            self.card.reg_write(offset, value)
            self._show()
            self._words[offset >> 2] = TAKEN
        ctrl = next(r.offset for r in REGISTERS if r.name == "CTRL")
        if self._words[ctrl >> 2] != self._stored[ctrl]:
            self._stored[ctrl] = self._words[ctrl >> 2]
            self.card.reg_write(ctrl, self._stored[ctrl])

    def _show(self):
        for offset in SHOWN:
            self._words[offset >> 2] = self.card._read_register(offset)

    def close(self):
        self._stop = True
        self._thread.join()
