"""The way to a board, as far as files can stand in for one: memory, what is said where something is missing, a whole driver."""

import struct

import numpy as np
import pytest

from host_driver.backends import hugepages
from host_driver.backends.blocks import Block, Blocks
from host_driver.backends.hugepages import huge_pages, merge, physical
from host_driver.backends.pci import BAR_BYTES, open_device as open_pci
from host_driver.verbs import *
from host_driver.verbs import open_device
from optinic.config import preset
from .conftest import ALL
from .served_bar import ServedCard, WaitingDevice

CFG = preset("tiny")


def blocks(*sizes, base=0x1000_0000, gap=0x1000):
    found = []
    for size in sizes:
        found.append(Block(base, memoryview(bytearray(b"\xaa" * size))))
        base += size + gap
    return Blocks(found)


def test_pieces_of_memory(rng):
    memory = blocks(1 << 16, 1 << 14)
    taken = {}
    for _ in range(2000):
        if taken and rng.random() < 0.5:
            addr = rng.choice(list(taken))
            assert memory.read(addr, len(taken[addr])) == taken.pop(addr)
            memory.free(addr)
            continue
        length, align = rng.choice([1, 64, 100, 5000]), rng.choice([1, 64, 4096])
        try:
            addr = memory.alloc(length, align)
        except BackendError:
            continue
        assert addr % align == 0 and memory.read(addr, length) == bytes(length)
        assert all(addr + length <= other or other + len(data) <= addr for other, data in taken.items())
        taken[addr] = rng.randbytes(length)
        memory.write(addr, taken[addr])
    for addr in list(taken):
        memory.free(addr)
    assert memory.largest == 1 << 16 and memory.alloc(1 << 16) and memory.alloc(1 << 14)      # in one piece again
    with pytest.raises(BackendError, match="1 bytes that are contiguous .* the largest free piece has 0"):
        memory.alloc(1)
    with pytest.raises(BackendError, match="is not the address of anything"):
        memory.free(5)
    with pytest.raises(BackendError, match="is not memory of this backend"):
        memory.read(0x1000_0000 + (1 << 16) - 1, 2)


def test_blocks_that_touch_stay_apart():
    """Memory that is contiguous on the bus by chance may not be so for the program."""
    memory = blocks(4096, 4096, gap=0)
    first, second = memory.alloc(4096), memory.alloc(4096)
    memory.free(second), memory.free(first)
    assert memory.largest == 4096
    with pytest.raises(BackendError, match="overlaps"):
        blocks(4096, 4096, gap=-64)
    with pytest.raises(BackendError, match="not aligned"):
        blocks(4096, base=8)


def test_huge_pages_that_are_neighbours_are_one_block():
    size, memory = 1 << 21, memoryview(bytearray(5 << 21))
    memory[3 << 21] = 9
    found = merge([4 * size, 5 * size, 9 * size, 8 * size, 9 * size], size, memory)
    assert [(b.bus, len(b.memory)) for b in found] == [(4 * size, 2 * size), (9 * size, size), (8 * size, 2 * size)]
    assert found[2].memory[0] == 9


def test_physical_addresses(tmp_path):
    pagemap = tmp_path / "pagemap"
    pagemap.write_bytes(bytes(8 * 512) + struct.pack("<Q", 1 << 63 | 0x1234) + bytes(8 * 511) + struct.pack("<Q", 1 << 63 | 0x5600))
    assert physical(512 * 4096, 2, 1 << 21, pagemap) == [0x1234 << 12, 0x5600 << 12]
    with pytest.raises(BackendError, match="doesn't tell the physical addresses.*run as root"):
        physical(0, 1, 1 << 21, pagemap)
    with pytest.raises(BackendError, match="can't be read"):
        physical(0, 1, 1 << 21, tmp_path / "none")


def test_no_huge_pages(monkeypatch):
    def refuse(*_):
        raise OSError(12, "Cannot allocate memory")
    monkeypatch.setattr(hugepages.mmap, "mmap", refuse)
    with pytest.raises(BackendError, match=r"32 huge pages of 2M are not to be had .*echo 32 > .*hugepages-2048kB/nr_hugepages"):
        huge_pages(64)
    with pytest.raises(BackendError, match="page='4K' is not one of 2M, 1G"):
        huge_pages(64, "4K")


@pytest.fixture
def sysfs(tmp_path):
    """A PCI device as sysfs has it."""
    device = tmp_path / "0000:65:00.0"
    device.mkdir()
    (device / "enable").write_text("0\n")
    (device / "config").write_bytes(bytes(64))
    (device / "resource0").write_bytes(bytes(BAR_BYTES))
    (tmp_path / "memory").write_bytes(bytes(1 << 16))
    return tmp_path


def test_waking_a_device(sysfs):
    device = open_pci(address="0000:65:00.0", sysfs=sysfs, memory_file=sysfs / "memory", iova=1 << 40, memory_offset=4096)
    assert (sysfs / "0000:65:00.0/enable").read_text() == "1"
    assert (sysfs / "0000:65:00.0/config").read_bytes()[4:6] == b"\x06\x00"
    device.reg_write(0x104, 0xDEADBEEF)
    assert device.reg_read(0x104) == 0xDEADBEEF
    assert (sysfs / "0000:65:00.0/resource0").read_bytes()[0x104:0x108] == b"\xef\xbe\xad\xde"
    addr = device.alloc(100, 4096)
    assert addr == 1 << 40 and device.memory.largest == (1 << 16) - 4096 - 128
    device.write(addr, b"seen")
    assert (sysfs / "memory").read_bytes()[4096:4100] == b"seen"
    device.close()


@pytest.mark.parametrize("options, said", [
    (dict(), "PCI address, or a bar_file"), (dict(address="0000:65:00.0", bar_file="x"), "or a bar_file"),
    (dict(address="0000:65:00.0", iova=0), "go together"),
    (dict(address="0000:66:00.0"), "no PCI device of that address; `lspci -D`"),
    (dict(address="0000:65:00.0", bar=2), "no BAR 2"), (dict(bar_file="memory"), None),
    (dict(bar_file="none"), "can't be mapped"), (dict(bar_file="short"), "has 10 bytes, and 4096 of registers are needed"),
    (dict(bar_file="memory", memory_file="memory", iova=0, memory_bytes=1 << 17), "has 65536 bytes, and 131072 of memory"),
    (dict(bar_file="memory", memory_file="empty", iova=0), "has 0 bytes"),
])
def test_what_is_missing_is_named(sysfs, monkeypatch, options, said):
    (sysfs / "short").write_bytes(bytes(10)), (sysfs / "empty").write_bytes(b"")
    options = {name: sysfs / value if name.endswith("_file") else value for name, value in options.items()}
    monkeypatch.setattr("host_driver.backends.pci.huge_pages", lambda *_: (_ for _ in ()).throw(BackendError("huge pages wanted")))
    with pytest.raises(BackendError, match=said or "huge pages wanted"):
        open_pci(sysfs=sysfs, **options)


def test_without_rights(sysfs, monkeypatch):
    def refuse(*args, **_):
        raise PermissionError(13, "Permission denied", str(args[0]))
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", refuse)
        with pytest.raises(BackendError, match="enable can't be written; run as root"):
            open_pci(address="0000:65:00.0", sysfs=sysfs)
    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(BackendError, match="memory can't be opened; run as root"):
        open_pci(bar_file=sysfs / "memory")


def test_a_bar_without_a_card(sysfs):
    with pytest.raises(CardError, match="no OptiNIC here: ID reads 0x00000000"):
        open_device("pci", bar_file=sysfs / "0000:65:00.0/resource0", memory_file=sysfs / "memory", iova=0)


def test_a_whole_driver(tmp_path, monkeypatch):
    """The driver on one side of two files and a card on the other. Its cable comes back to it, so that it talks to itself."""
    served = ServedCard(CFG, tmp_path / "bar", tmp_path / "memory", 1 << 33, 8 << 20)
    run = served.card.run

    def run_and_return(cycles):
        run(cycles)
        for sent in served.card.sent_frames():
            served.card.send(sent.frame)
    served.card.run = run_and_return
    monkeypatch.setattr("host_driver.backends.pci.PciDevice", WaitingDevice)
    try:
        with open_device("pci", cfg=CFG, bar_file=tmp_path / "bar", memory_file=tmp_path / "memory", iova=1 << 33) as ctx:
            assert ctx.device.live_memory
            pd, channel = PD(ctx), CompChannel(ctx)
            cq, sends = CQ(ctx, 16, None, channel), CQ(ctx, 16)
            mr = MR(pd, np.zeros((4, 1024), np.uint8), ALL)
            qp = QP(pd, QPInitAttr(scq=sends, rcq=cq))
            qp.connect(qp.info())
            mr.array[0] = np.arange(1024) % 251         # this is the memory itself
            mr.sync_to_card()
            qp.post_recv(RecvWR("r", sg=[mr.sge(1024, 1024)]))
            cq.req_notify()
            qp.post_send(SendWR("s", sg=[mr.sge(0, 1024)], tag=5))
            assert channel.get_cq_event(timeout_ns=10**6) is cq
            received, sent = cq.wait(1, 10**6)[0], sends.wait(1, 10**6)[0]
            assert (received.wr_id, received.byte_len, received.tag, sent.wr_id) == ("r", 1024, 5, "s") and received.ok and sent.ok
            assert (mr.array[1] == mr.array[0]).all() and mr.shares_memory and (mr.sync_from_card()[1] == mr.array[0]).all()
            assert "frames_sent 1" in str(ctx.status())
            view = mr.array
        assert view[1, 5] == 5 and not served.card.faults and served.error is None      # an array outlives the card
    finally:
        served.close()
