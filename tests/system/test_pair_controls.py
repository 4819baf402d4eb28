"""These tests can fail: what a wrong card or a wrong network would do is noticed by the account that the Pair keeps."""

import pytest

from sim import frames
from sim.models.wire import inspect

from .pair import BOTH, FILL, Pair, pieces
from .test_pair_lossy import NETWORKS

BTH, XPETH, ICRC = 12, 16, 4


def anew(frame, payload, **header):
    """An IPv4 frame of type XP with other bytes in it, and a right ICRC again: `header` has (place, bytes) in XPETH and RETH."""
    bth = 14 + 20 + 8
    number = lambda at, n: int.from_bytes(frame[at:at + n], "big")
    packet = inspect(frame)
    end = 14 + number(16, 2) - ICRC
    extended = bytearray(frame[bth + BTH:end - len(packet.payload) - (frame[bth + 1] >> 4 & 3)])
    for at, value in header.values():
        extended[at:at + len(value)] = value
    text = lambda at: ".".join(map(str, frame[at:at + 4]))
    mac = lambda at: frame[at:at + 6].hex(":")
    return frames.build(frame[bth], number(bth + 5, 3), headers=bytes(extended), payload=payload, psn=number(bth + 9, 3),
                        solicited=frame[bth + 1] >> 7, src=text(26), dst=text(30), sport=number(34, 2), tos=frame[15],
                        ttl=frame[22], src_mac=mac(6), dst_mac=mac(0)).ljust(60, b"\0")


def flipped(payload):
    at = len(payload) // 2
    other = payload[at] ^ 0x10
    return payload[:at] + bytes([other if other != FILL else other ^ 1]) + payload[at + 1:]


CHANGES = {
    "nothing": lambda frame, p: anew(frame, p.payload),
    "a byte of the payload": lambda frame, p: anew(frame, flipped(p.payload)),
    "one byte less, and one of zeroes": lambda frame, p: anew(frame, p.payload[:-1] + b"\0"),
    "the offset": lambda frame, p: anew(frame, p.payload, offset=(12, (p.offset ^ 256).to_bytes(4, "big"))),
    "the address": lambda frame, p: anew(frame, p.payload, va=(16, (p.va + 1).to_bytes(8, "big"))),
    "the message": lambda frame, p: anew(frame, p.payload, seq=(4, (p.seq ^ 1).to_bytes(4, "big"))),
    "the tag": lambda frame, p: anew(frame, p.payload, tag=(2, (p.tag ^ 1).to_bytes(2, "big"))),
    "its loss": lambda frame, p: None,
}


class Tamper:
    """On a lane: the `nth` XP packet with opcode `op` is replaced by `change` of it. Like a rule of the network, but its faults
    keep the ICRC right, and it tells nobody."""

    def __init__(self, lane, op, nth, change):
        self.op, self.nth, self.change, self.seen, self.done = op, nth, change, 0, 0
        lane.rules.append(self)

    def befall(self, data, damaged, source, lane):
        packet = inspect(data)
        if packet.kind == "xp" and packet.op == self.op:
            self.seen += 1
            if self.seen == self.nth:
                self.done += 1
                data = self.change(data, packet)
                return () if data is None else ((0, data, damaged),)
        return ((0, data, damaged),)


def exchange(pair):
    link, reads = pair.link(), pair.link()
    made = [pair.post(link, side, op, n, timeout_ns=50_000) for n in (700, 600) for side in range(2) for op in ("send", "write")]
    made += [pair.post(reads, 0, "read", 600, timeout_ns=50_000)]
    pair.all_over(made)
    pair.settle(), pair.verify(), pair.balance()
    return made


OPS = {"send": (0x04, 0), "write": (0x0A, 1), "read": (0x10, 1)}
#: a WRITE has an address, the others a place in a message
CASES = [(change, op) for change in CHANGES for op in OPS
         if change not in (("the offset", "the message", "the tag") if op == "write" else ("the address",))]


@BOTH
@pytest.mark.parametrize("change, op", CASES)
def test_a_changed_packet_is_noticed(make, seed, change, op):
    """One of a message that is otherwise all right; in a frame that the cards find nothing wrong with."""
    code, side = OPS[op]
    with Pair(make, seed) as pair:
        last = change == "the tag"          # of three; the completion has that of the last one
        tamper = Tamper(pair.ends[side].port.out, code, 3 if last else 2, CHANGES[change])
        if change == "nothing":
            exchange(pair)
        else:
            with pytest.raises(AssertionError) as found:
                exchange(pair)
            print(f"{change}: {str(found.value).splitlines()[0][:150]}")
        assert tamper.done == 1


@BOTH
@pytest.mark.parametrize("change", ["a byte of the payload", "the offset", "its loss", "the tag"])
def test_so_it_is_where_packets_are_lost_too(make, seed, change):
    """The account is less strict there, but a wrong byte, or a packet that nobody has counted, is one too many."""
    with Pair(make, seed, strict=False, **NETWORKS["loss"]) as pair:
        tampers = [Tamper(end.port.out, 0x04, n, CHANGES[change]) for end in pair.ends for n in (3, 4, 5)]
        with pytest.raises(AssertionError):
            exchange(pair)
        assert sum(t.done for t in tampers)


@BOTH
@pytest.mark.parametrize("what", ["a byte beside the message", "a byte of the source", "a completion less", "a completion more",
                                  "late"])
def test_a_wrong_card_is_noticed(make, seed, what):
    with Pair(make, seed) as pair:
        near, far = pair.ends
        link = pair.link()
        pair.post(link, 0, "send", 700, timeout_ns=50_000)
        pair.settle()
        m, = pair.messages
        assert m.over and pieces(700, 256)[-1] == (512, 188)
        pair.verify()
        with pytest.raises(AssertionError):
            if what == "a byte beside the message":
                far.dev.write(far.memory + (1 << 16) + m.to + m.length, b"\0")
                pair.verify()
            elif what == "a byte of the source":
                near.dev.write(near.memory + 99, b"\xee")
                pair.verify()
            elif what == "late":
                pair.late_ns = 100
                pair.post(link, 0, "send", 10, receive=True, timeout_ns=3000, signaled=False, bell=False)
                pair.strict = False
                pair.until(lambda: pair.messages[-1].received)
            else:
                pair.post(link, 0, "send", 10), pair.post(link, 0, "send", 20)
                line = far.posted[link.qpns[1]]
                if what == "a completion less":
                    line.appendleft(line[0].__class__(line[0].qpn, line[0].index - 1, 0, None, None, None, (0, 0)))
                else:
                    line.popleft()
                pair.until(lambda: pair.messages[-1].over)
