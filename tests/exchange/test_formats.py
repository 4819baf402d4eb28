"""The formats against what the stock tools said to each other, and against everything that is not quite that."""

import socket
import threading
import time

import pytest

from host_driver.exchange import Address, ExchangeError, Line, Listener, Perftest, as_client, as_server, connect
from host_driver.exchange import perftest as perftest_format, rdma_core as pingpong_format
from host_driver.verbs import GID
from .talk import Peer, player, recorded

CLIENT, SERVER = "10.77.0.1", "10.77.0.2"
SIDES = ("client", "server")


def parties(name):
    """{side: Address} of a recording."""
    found = {}
    for side, data in recorded(name):
        if side not in found and len(data) in (52, 108):
            found[side] = (pingpong_format if len(data) == 52 else perftest_format).address_of(data, None)
    return found


@pytest.mark.parametrize("name, qpn, psn", [("rc_pingpong", 0x11, 0x830fed), ("uc_pingpong", 0x12, 0xcf741b),
                                            ("write_bw", 0x13, 0x331a28),
                                            ("send_bw", 0x14, 0xd3982b), ("read_bw", 0x1a, 0x404aa8)])
def test_addresses_as_recorded(name, qpn, psn):
    found = parties(name)
    a, b = found["client"], found["server"]
    assert (a.qpn, a.psn, a.gid, b.gid) == (qpn, psn, GID(CLIENT), GID(SERVER))
    if name == "write_bw":
        assert (a.rkey, a.vaddr, a.out_reads, b.rkey, b.vaddr) == (0x493, 0x55d56403e000, 1, 0x483, 0x560be5039000)
    assert a.out_reads == (0x80 if name == "read_bw" else 1)
    module = pingpong_format if "pingpong" in name else perftest_format
    for side, address in found.items():     # to the byte as the tool has it
        assert (side, module.text_of(address)) in recorded(name)


def whole_exchange(line, name, side, own):
    """What a program here does, without its queue pair; the peer's Address."""
    if "pingpong" in name:
        return as_client(line, own) if side == "client" else as_server(line, own, lambda peer: None)
    talk = Perftest(line, side == "client")
    assert talk.parameters() == 1024 and (talk.buffer, talk.cache_line) == (4096, 64)
    peer = talk.addresses(own)
    one_way_write = name.startswith(("write", "read"))
    for _ in range(2 if one_way_write else 3):
        talk.in_step()
    if one_way_write:
        talk.in_step()
        theirs = talk.report(1000, 5, 1.0, 1.0, 0.5)
        assert side == "client" or theirs[:2] == [1000, 5]
    talk.close()
    return peer


ONE_QP = ("rc_pingpong", "uc_pingpong", "write_bw", "send_bw", "write_bw_uc", "send_bw_uc", "read_bw")


@pytest.mark.parametrize("pieces", [None, 7], ids=["whole", "pieces"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ONE_QP)
def test_either_side_of_a_recording(name, side, pieces):
    """We play one side; what we said is what the tool had said, but for the report."""
    other = SIDES[1 - SIDES.index(side)]
    peer = Peer(player(name, other, pieces=pieces))
    found = parties(name)
    with Line(peer.ours, timeout_s=5) as line:
        assert whole_exchange(line, name, side, found[side]) == found[other]
        peer.end()
    wanted = b"".join(data for who, data in recorded(name) if who == side and len(data) != 8)
    said = b"".join(piece for piece in split(peer.heard, name, side) if len(piece) != 8)
    assert said == wanted


def split(data, name, side):
    for who, message in recorded(name):
        if who == side:
            yield data[:len(message)]
            data = data[len(message):]
    assert not data


# -- what is not quite that -----------------------------------------------------------------------------------

OWN = Address(5, 6, GID(CLIENT))


def refused(script, talk, match, timeout_s=0.3):
    peer = Peer(script)
    with Line(peer.ours, timeout_s=timeout_s) as line, pytest.raises(ExchangeError, match=match) as caught:
        talk(line)
    assert "\n" not in str(caught.value)
    return caught.value


def says(*messages, then=None):
    """A script that doesn't care what it hears; then it closes, or listens."""
    def script(peer):
        for message in messages:
            peer.say(message)
        while then != "close" and peer.theirs.recv(1000):
            pass
    return script


def serve_pingpong(line):
    as_server(line, OWN, lambda peer: None)


def ask_pingpong(line):
    as_client(line, OWN)


def open_perftest(line):
    Perftest(line, False).parameters()


GOOD = recorded("rc_pingpong")[0][1]
VERSION = recorded("write_bw")[0][1]


@pytest.mark.parametrize("messages, then, match", [
    ((), "close", "closed the connection before the client's address came"),
    ((GOOD[:20],), "close",
     "closed the connection after 20 of the 52 bytes of the client's address: .*looks like an ibv_rc_pingpong"),
    ((), None, r"said nothing more for 0.3 s before the client's address came"),
    ((VERSION,), None, "after 16 of the 52 bytes .*looks like perftest; both sides have to run the same test"),
    ((b"GET / HTTP/1.1\r\nHost: 10.0.2.2:18515\r\nUser-Agent: x\r\n\r\n",), None,
     "no address in the format of ibv_rc_pingpong.*looks like HTTP"),
    ((GOOD.replace(b":", b";"),), None, "no address in the format"),
    ((GOOD.replace(b"8", b"x", 1),), None, "no address in the format"),
    ((GOOD[:-1] + b"\n",), None, "no address in the format"),
    ((GOOD[:-33] + b"0" * 32 + b"\0",), None, "has no GID, .*-g of ibv_"),
    ((GOOD, b"nope\0"), None, 'should have said "done", and said .nope'),
    ((GOOD,), None, 'said nothing more for 0.3 s before the client\'s "done" came'),
])
def test_not_a_pingpong_client(messages, then, match):
    refused(says(*messages, then=then), serve_pingpong, match)


def test_not_a_pingpong_server():
    refused(says(b"x" * 52), ask_pingpong, "no address in the format")
    refused(says(then="close"), ask_pingpong,
            "closed the connection before the server's address|can't be sent|broke the connection")


@pytest.mark.parametrize("messages, then, match", [
    ((b"6.16".ljust(16, b"\0"),), None, "speaks version 6.16 of perftest's exchange, and this side 6.06, that of perftest 4.5"),
    ((b"5.31".ljust(16, b"\0"),), None, "speaks version 5.31"),
    ((GOOD,), None, "sent no version of perftest but .*looks like an ibv_rc_pingpong"),
    ((b"6.06",), None, "after 4 of the 16 bytes"), ((b"6.06" + b"x" * 12,), None, "no version of perftest"),
    ((VERSION, bytes(4)), None, "buffer size of 0, which is outside"), ((VERSION, b"\xff" * 4), None, "buffer size of 4294967295"),
    ((VERSION, b"\0\0\x10\0", b"\0\1\0\0"), None, "cache line size of 65536"),
    ((VERSION, b"\0\0\x10\0", b"\0\0\0\x40", b"9\0"), None, r"no path MTU \(1 to 5\) but"),
    ((VERSION, b"\0\0\x10\0", b"\0\0\0\x40", b"33"), None, "no path MTU"),
    ((VERSION, b"\0\0\x10\0"), None, "said nothing more for 0.3 s before the peer's cache line size came"),
    ((VERSION, b"\0\0\x10\0"), "close", "closed the connection before the peer's cache line size came|can't be sent|broke"),
    ((b"5.31".ljust(16, b"\0"),), "close", "speaks version 5.31"),
])
def test_not_perftest(messages, then, match):
    refused(says(*messages, then=then), open_perftest, match)


def perftest_to_the_end(line):
    whole_exchange(line, "write_bw", "server", parties("write_bw")["server"])


@pytest.mark.parametrize("at, change, match", [
    (8, lambda data: data.replace(b"0000:0001:", b"0000;0001:"), "no address in the format of perftest"),
    (8, lambda data: data[:40] + b"0" * 15 + data[55:], "no address in the format of perftest"),
    (8, lambda data: data.replace(b"ff:ff:0a:4d:00:01", b"00:00:00:00:00:00"), "has no GID, .*-x of perftest"),
    (10, lambda data: data.replace(b"000013", b"000014"), r"now another queue pair \(0x14 instead of 0x13\)"),
    (10, lambda data: data[:50], "said nothing more"),
    (28, lambda data: b"gone\0", 'should have said "done", and said .gone'),
])
def test_perftest_goes_wrong_on_the_way(at, change, match):
    assert recorded("write_bw")[at][0] == "client"
    refused(player("write_bw", "client", change=lambda i, data: change(data) if i == at else data), perftest_to_the_end, match, 0.5)


@pytest.mark.parametrize("name", ["write_bw_two_qps_ip6"])
def test_two_queue_pairs_are_too_many(name):
    def talk(line):
        whole_exchange(line, name, "server", parties(name)["server"])
    refused(player(name, "client"), talk, "0x18 instead of 0x17.*without -q", 1)


def test_any_byte_of_an_address_matters(rng):
    """Whatever single byte of a message is another one: refused, or read as what it then says. Never a crash."""
    for module, good in ((pingpong_format, GOOD), (perftest_format, recorded("write_bw")[8][1])):
        line = Line(socket.socketpair()[0])
        right = module.address_of(good, line)
        for at in range(len(good)):
            for byte in {rng.randrange(256), 0, 0x3A, 0x30, good[at] ^ 1}:
                bad = good[:at] + bytes([byte]) + good[at + 1:]
                try:
                    found = module.address_of(bad, line)
                except ExchangeError:
                    assert bad != good
                else:
                    assert (found == right) == (bad.lower() == good.lower()) or module.text_of(found) == bad.lower()
        line.close()


# -- connections --------------------------------------------------------------------------------------------------


def test_listening_and_connecting():
    with Listener(0, timeout_s=5) as listener:
        found = {}
        thread = threading.Thread(target=lambda: found.update(line=connect("127.0.0.1", listener.port, timeout_s=5)))
        thread.start()
        with listener.accept() as line:
            thread.join()
            line.write(b"abc", "it")
            assert found["line"].read(3, "it") == b"abc" and line.peer.startswith("127.0.0.1:")
            found["line"].close()
            with pytest.raises(ExchangeError, match="closed the connection before more came"):
                line.read(1, "more")
        with pytest.raises(ExchangeError, match=f"nobody can listen at 127.0.0.1:{listener.port} .*take another port"):
            Listener(listener.port)


def test_nobody_there():
    with Listener(0, timeout_s=0.1) as listener:
        with pytest.raises(ExchangeError, match="nobody connected to 127.0.0.1:.* within 0.1 s"):
            listener.accept()
        port = listener.port
    with pytest.raises(ExchangeError, match="can't be reached within 0.2 s .E(CONNREFUSED|INPROGRESS)"):
        connect("127.0.0.1", port, timeout_s=0.2)
    with pytest.raises(ExchangeError, match="no address to connect to"):
        connect("no.such.host.invalid", 1, timeout_s=0.2)
    with pytest.raises(ExchangeError):
        Listener(70000)


def test_a_server_that_comes_late():
    with Listener(0) as first:
        port = first.port
    late = {}
    timer = threading.Timer(0.3, lambda: late.update(listener=Listener(port, timeout_s=5)))
    timer.start()
    with connect("127.0.0.1", port, timeout_s=5):
        timer.join()
        late["listener"].accept().close()
    late["listener"].close()


def test_patience_is_asked():
    """What somebody waits for, and that the clock of the peer's side runs meanwhile, is the caller's."""
    asked = []

    def patience(condition, timeout_s, what):
        asked.append(what)
        peer.say(GOOD)
        while not condition():
            time.sleep(0.001)
        return True
    peer = Peer(lambda peer: time.sleep(0.3))
    with Line(peer.ours, patience=patience) as line:
        assert line.read(52, "words") == GOOD and asked == ["words"]
