"""The driver's side of arrival maps, against the card made of Python: arguments, rows, and what is refused."""

import pytest

from host_driver.card import ArrivalMap, Card, CardError, QueueFull
from optinic.abi.registers import FEATURES, offset_of
from .test_card import CFG, FakeDevice

WHERE = ArrivalMap(0x12_0000_0040, 8, 2)


@pytest.fixture
def dev():
    dev = FakeDevice()
    dev.regs[offset_of("FEATURES")] = 1 << FEATURES.index("arrival_map") | 1 << FEATURES.index("uc")
    return dev


@pytest.fixture
def card(dev):
    card = Card(dev, CFG)
    card.set_cq(2, entries=8)
    card.create_qp(5, cq=2, mtu=256, arrival_map=WHERE)
    return card


def test_the_card_is_told(card, dev):
    assert dev.commands[-1][:9] == ("qp_set", 5, 2 | 1 << 8 | 1 << 24, 0, 0, 2, 3 | 1 << 8, 0x40, 0x12)
    card.create_qp(6, cq=2)
    assert dev.commands[-1][2] >> 24 == 0
    with pytest.raises(CardError, match="QP 0x6 has no arrival map"):
        card.arrived(6, 0)


def test_a_row_is_wiped_for_its_receive_and_read_for_it(card, dev):
    for i in range(2):
        card.post_receive(5, 0x1000, 100, 77)
    assert dev.read(WHERE.addr, 16) == b"\xff" * 8 + b"\xfe" * 8
    with pytest.raises(QueueFull, match="its arrival map a row for each"):
        card.post_receive(5, 0x1000, 100, 77)
    dev.complete(2, qpn=5, wqe_index=0, opcode=1)
    assert len(card.poll(2)) == 1
    dev.write(WHERE.addr + 2, b"\0\0")
    assert card.arrived(5, 0, 5 * 256 - 3) == [False, False, True, True, False] and card.arrived(5, 1) == [False] * 8
    card.post_receive(5, 0x1000, 100, 77)
    assert dev.read(WHERE.addr, 8) == b"\xfd" * 8


def test_refused_by_the_driver(card):
    with pytest.raises(ValueError, match="type='uc' has no arrival map"):
        card.create_qp(7, type="uc", cq=2, arrival_map=WHERE)
    with pytest.raises(CardError, match="this card has none; generate it with arrival_map=on"):
        Card(FakeDevice(), CFG).create_qp(7, arrival_map=WHERE)


@pytest.mark.parametrize("wrong, text", [
    ((64, 3), "pieces=3 .* power of two"), ((64, 1 << 25), "pieces=33554432"), ((64, 8, 0), "rows=0"), ((64, 8, 65536), "rows="),
    ((32, 8), "addr=0x20 .* multiple of 64"), (((1 << 64) - 64, 128), "64-bit address space"), ((-64, 8), "addr=")])
def test_a_map_is_checked_when_it_is_named(wrong, text):
    with pytest.raises(ValueError, match=text):
        ArrivalMap(*wrong)
