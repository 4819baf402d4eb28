"""A board behind PCIe: its registers are a BAR, mapped through sysfs; its memory is this machine's.

**Never tried on hardware.** What a file can stand in for is tested with files (tests/host_driver/test_pci.py).

It needs root, Linux, and memory that the card can reach at known addresses. Either huge pages (no IOMMU, or one in passthrough
mode), or memory that something else has made reachable at a known address: a u-dma-buf, a reserved region, a mapping by VFIO. The
card writes to memory while this process lives *and after it died*: the next driver stops it, but until then memory that was this
process's may be somebody else's. An IOMMU that forgets the mapping with the process is the remedy.
"""

import mmap
import os
from pathlib import Path
import time

from optinic.abi.registers import offset_of

from ..errors import BackendError
from .blocks import Block, Blocks
from .hugepages import huge_pages
from .packet_socket import PacketSocket

__all__ = ["PciDevice", "open_device"]

SYSFS = "/sys/bus/pci/devices"
COMMAND_REGISTER, MEMORY_SPACE, BUS_MASTER = 4, 2, 4        # of PCI configuration space
BAR_BYTES = 4096


def open_device(*, address=None, bar=0, bar_file=None, memory_file=None, iova=None, memory_bytes=None, memory_offset=0,
                hugepages_mb=64, hugepage="2M", host_interface=None, sysfs=SYSFS):
    """The card at PCI `address` ("0000:65:00.0"), registers in BAR `bar`; or any file with its registers, `bar_file`.

    Memory: `memory_file` (with `memory_offset`), which the card finds at bus address `iova`, all of it or `memory_bytes`; or
    else `hugepages_mb` of huge pages of size `hugepage`, "2M" or "1G". The rings of all queue pairs are one piece each, NUM_QPS x
    RQ_ENTRIES x 32 and NUM_QPS x SQ_ENTRIES x 64 bytes: where huge pages are scattered, take the large ones.

    `host_interface`: the network interface ("eth3") at which the card's pass-through stream comes out; without one no address can be
    asked for, and nobody answers for the card.
    """
    if (address is None) == (bar_file is None):
        raise BackendError("give the card's PCI address, or a bar_file")
    if (memory_file is None) != (iova is None):
        raise BackendError("memory_file and iova, the bus address where the card finds it, go together")
    if address is not None:
        bar_file = wake(Path(sysfs) / address, bar)
    stream = None if host_interface is None else PacketSocket(host_interface)
    registers = map_file(bar_file, BAR_BYTES, what="registers")
    if memory_file is None:
        blocks = huge_pages(hugepages_mb, hugepage)
    else:
        blocks = [Block(iova, memoryview(map_file(memory_file, memory_bytes, memory_offset, what="memory")))]
    return PciDevice(registers, Blocks(blocks), stream)


def wake(device, bar):
    """Have the card answer to its BAR and let it use memory; the BAR's file."""
    if not device.is_dir():
        raise BackendError(f"{device} isn't there: no PCI device of that address; `lspci -D` lists them")
    resource = device / f"resource{bar}"
    if not resource.exists():
        raise BackendError(f"{resource} isn't there: the device has no BAR {bar}")
    try:
        (device / "enable").write_text("1")
        with open(device / "config", "r+b", buffering=0) as config:
            word = int.from_bytes(os.pread(config.fileno(), 2, COMMAND_REGISTER), "little") | MEMORY_SPACE | BUS_MASTER
            os.pwrite(config.fileno(), word.to_bytes(2, "little"), COMMAND_REGISTER)
    except PermissionError as error:
        raise BackendError(f"{error.filename} can't be written; run as root") from None
    except OSError as error:
        raise BackendError(f"{device} can't be enabled: {error}") from None
    return resource


def map_file(path, length=None, offset=0, *, what):
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_SYNC)
        try:
            size = os.fstat(descriptor).st_size or os.lseek(descriptor, 0, os.SEEK_END)
            length = length or max(0, size - offset)
            if not length or size and size < offset + length:
                raise BackendError(f"{path} has {size} bytes, and {offset + length if length else 'some'} of {what} are needed")
            return mmap.mmap(descriptor, length, mmap.MAP_SHARED, offset=offset)
        finally:
            os.close(descriptor)
    except PermissionError:
        raise BackendError(f"{path} can't be opened; run as root") from None
    except (OSError, ValueError) as error:
        raise BackendError(f"the {what} in {path} can't be mapped: {error}") from None


class PciDevice:
    """`registers` is a mapped BAR, `memory` Blocks, `stream` what has host_send and host_frames for frames of the host's own, or
    None."""

    live_memory = True      # the card writes while a read is under way

    def __init__(self, registers, memory, stream=None):
        self._map, self.memory, self._stream = registers, memory, stream
        if stream is not None:
            self.host_send, self.host_frames = stream.host_send, stream.host_frames
        # One aligned access of 32 bits each: what a BAR wants.
        self._words = memoryview(registers).cast("I")
        for name in ("alloc", "free", "read", "write", "view"):
            setattr(self, name, getattr(memory, name))
        self._period = None

    def reg_read(self, offset):
        return self._words[offset >> 2]

    def reg_write(self, offset, value):
        self._words[offset >> 2] = value

    def run(self, cycles):
        """Wait that long, at least: the card needs nobody to run it."""
        if self._period is None:
            self._period = 1 / (self.reg_read(offset_of("CLOCK_HZ")) or 250_000_000)
        time.sleep(cycles * self._period)

    def close(self):
        """The registers are gone; memory stays mapped for as long as an array shares it."""
        self._words.release()
        self._map.close()
        if hasattr(self._stream, "close"):
            self._stream.close()
