"""Memory for a card without an IOMMU before it, or with one that maps everything as it is: huge pages, whose physical addresses
the kernel tells to root, and which stay where they are."""

import ctypes
import mmap
import os
import struct

from ..errors import BackendError
from .blocks import Block

__all__ = ["huge_pages"]

MAP_HUGETLB, SIZE_SHIFT = 0x40000, 26       # of Linux; newer Pythons have names for them
PAGE_BITS = {"2M": 21, "1G": 30}
PRESENT, FRAME = 1 << 63, (1 << 55) - 1


def huge_pages(megabytes, page="2M", pagemap="/proc/self/pagemap"):
    """Blocks of so many megabytes altogether; pages that happen to be neighbours in physical memory are one block."""
    if page not in PAGE_BITS:
        raise BackendError(f"page={page!r} is not one of {', '.join(PAGE_BITS)}")
    size = 1 << PAGE_BITS[page]
    count = -(-(megabytes << 20) // size)
    try:
        area = mmap.mmap(-1, count * size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_HUGETLB | PAGE_BITS[page] << SIZE_SHIFT)
    except OSError as error:
        raise BackendError(f"{count} huge pages of {page} are not to be had ({error.strerror}); as root: echo {count} > "
                           f"/sys/kernel/mm/hugepages/hugepages-{size >> 10}kB/nr_hugepages") from None
    memory = memoryview(area)
    for i in range(count):
        memory[i * size] = 0        # a page is there when it has been touched
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    return merge(physical(start, count, size, pagemap), size, memory)


def physical(start, count, size, pagemap):
    """The physical addresses of the pages from virtual address `start` on."""
    small = mmap.PAGESIZE
    found = []
    try:
        with open(pagemap, "rb", buffering=0) as file:
            for i in range(count):
                word, = struct.unpack("<Q", os.pread(file.fileno(), 8, (start + i * size) // small * 8))
                found.append((word & FRAME) * small if word & PRESENT else 0)
    except (OSError, struct.error) as error:
        raise BackendError(f"{pagemap} can't be read ({error}); run as root") from None
    if not all(found):
        raise BackendError("the kernel doesn't tell the physical addresses of huge pages; run as root (it takes CAP_SYS_ADMIN)")
    return found


def merge(addresses, size, memory):
    """Blocks of pages that are neighbours in both kinds of memory."""
    runs = []
    for i, address in enumerate(addresses):
        if runs and address == runs[-1][0] + (i - runs[-1][1]) * size:
            continue
        runs.append((address, i))
    ends = [first for _, first in runs[1:]] + [len(addresses)]
    return [Block(address, memory[first * size:end * size]) for (address, first), end in zip(runs, ends)]
