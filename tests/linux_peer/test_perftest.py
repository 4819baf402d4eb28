"""perftest's ib_write_bw and ib_send_bw, RC and UC, as client and as server, with the reliable card as Verilog."""

import re

import pytest

from host_driver.exchange import ExchangeError, Perftest, bandwidth, contents, pingpong
from sim.rc_frames import Packet
from .stock import PORTS, answering, gid_index, run

pytestmark = [pytest.mark.rtl, pytest.mark.peer]
COUNT = 40


def data_frames(lab, kind):
    """SEND and WRITE packets on their way to the card, each once (the guest's clock may have run out before an acknowledgement was
    there), in order; a list that fills itself."""
    seen, prefix = [], "" if kind == "rc" else "UC_"

    def note(frame):
        if frame[12:14] in (b"\x08\0", b"\x86\xdd"):
            try:
                packet = Packet(frame)
            except (AssertionError, IndexError):
                return False
            if packet.name.startswith((prefix + "SEND", prefix + "WRITE")) and packet.psn not in {p.psn for p in seen}:
                seen.append(packet)
        return False
    lab.network.rule(destination=0, match=note, loss=1)
    return seen


@pytest.mark.parametrize("size", [1, 1000, 1024, 5000])
@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("kind", ["rc", "uc"])
@pytest.mark.parametrize("operation", ["write", "send"])
def test_stock_perftest(guest, rng, operation, kind, role, size):
    with answering("rtl", guest, rng) as lab:
        card, seen, got = lab.cards[0], data_frames(lab, kind), {}
        tool = f"ib_{operation}_bw -d rxe0 -x {gid_index(guest, False)} -F -m 1024 -n {COUNT} -s {size} -c {kind.upper()}"
        result, said = run(lab, guest, tool, role, bandwidth, operation=operation, kind=kind, size=size, iterations=COUNT,
                           each=got.__setitem__)
        line = re.search(rf"^ {size} +{COUNT} +[\d.]+ +[\d.]+", said, re.M)
        assert line, said
        if role == "server":
            assert result["sent"] == COUNT and not seen
            if operation == "write":        # the tool as server prints what it was told
                assert result["report"][:2] == [size, COUNT]
        elif operation == "write":
            assert result["report"][:2] == [size, COUNT] and memory_of(seen, result) == result["last"]
        else:
            assert [got[n] for n in range(COUNT)] == messages_of(seen, size)
        counters = card.counters()
        assert counters["drop_icrc"] == counters["drop_sequence"] == counters["drop_no_receive"] == 0


def memory_of(seen, result):
    """What the WRITEs that were seen on the wire leave in the memory that was offered."""
    memory, at = bytearray(len(result["last"])), None
    base = min(p.reth[0] for p in seen if p.reth)
    for packet in seen:
        at = packet.reth[0] - base if packet.reth else at
        memory[at:at + len(packet.payload)] = packet.payload
        at += len(packet.payload)
    return bytes(memory)


def messages_of(seen, size):
    found, last = [], b""
    for packet in seen:
        last += packet.payload
        if len(last) == size:
            found.append(last)
            last = b""
    return found


def test_over_ip6(guest, rng):
    with answering("rtl", guest, rng) as lab:
        tool = f"ib_write_bw -d rxe0 -x {gid_index(guest, True)} -F -m 512 -n 10 -s 2000"
        result, _ = run(lab, guest, tool, "client", bandwidth, operation="write", size=2000, iterations=10, ip6=True)
        assert result["mtu"] == 512 and result["report"][:2] == [2000, 10]
        counts = lab.cards[0].neighbours.counts         # whoever went to RTR first has asked the other one
        assert counts["nd_answers"] or counts["asked"]


def test_two_tools_that_do_not_fit(guest, rng):
    """A pingpong meets perftest, and the other way round: said in one line, and the card is free again."""
    with answering("rtl", guest, rng) as lab:
        card, gid = lab.cards[0], gid_index(guest, False)
        for tool, program, said in ((f"ibv_rc_pingpong -d rxe0 -g {gid}", bandwidth, "looks like an ibv_rc_pingpong"),
                                    (f"ib_send_bw -d rxe0 -x {gid}", pingpong, "after 16 of the 52 bytes .*looks like perftest")):
            with lab.serve(timeout_s=5) as listener, guest.start(f"exec {tool} -p {listener.port} {lab.HOST}"), \
                    listener.accept() as line, pytest.raises(ExchangeError, match=said):
                program(card, line, client=False)
        port = next(PORTS)
        with guest.start(f"exec ib_write_bw -d rxe0 -x {gid} -p {port}") as job, lab.call(guest, port, job) as line:
            with pytest.raises(ExchangeError, match="speaks version 6.06 of perftest's exchange, and this side 5.00"):
                Perftest(line, True, version="5.00").parameters()
        result, _ = run(lab, guest, f"ibv_rc_pingpong -d rxe0 -g {gid} -n 3 -s 64", "server", pingpong, size=64, iterations=3)
        assert result["last"] == contents(2, 64)
