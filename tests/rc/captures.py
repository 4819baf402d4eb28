"""The captures of a real pair of peers, A and B, with what a card must know to be the one or the other: from the frames alone."""

import ipaddress
from collections import namedtuple

from sim.rc_frames import NAK_ACCESS, Packet
from tests.rx.golden import frames, names

__all__ = ["RC", "UC", "WITH_LOSS", "Capture", "Message", "Span", "messages"]

MAC_A = bytes.fromhex("02000a4d0001")
RC = [n for n in names() if Packet(frames(n)[0]).code < 0x20]
UC = [n for n in names() if 0x20 <= Packet(frames(n)[0]).code < 0x40]
WITH_LOSS = [n for n in RC if "loss" in n]

Span = namedtuple("Span", "key va data")        #: a region of B as it was before
#: a request of A: `psn` of its first packet; `slot` where its payload is, or its result goes
Message = namedtuple("Message", "op psn payload reth imm atomic solicited")
OPS = {"SEND_ONLY": "send", "SEND_ONLY_IMM": "send_imm", "SEND_ONLY_INV": "send_inv", "WRITE_ONLY": "write",
       "WRITE_ONLY_IMM": "write_imm", "SEND_LAST": "send", "SEND_LAST_IMM": "send_imm", "SEND_LAST_INV": "send_inv",
       "WRITE_LAST": "write", "WRITE_LAST_IMM": "write_imm", "READ_REQ": "read", "CMP_SWAP": "compare_swap",
       "FETCH_ADD": "fetch_add"}


class Capture:
    """`packets`: (whether A sent it, Packet) in order."""

    def __init__(self, name):
        self.name = name
        self.packets = [(frame[6:12] == MAC_A, Packet(frame)) for frame in frames(name)]
        self.requests = [p for from_a, p in self.packets if from_a and not p.is_answer]
        self.answers = [p for from_a, p in self.packets if not from_a and p.is_answer]
        first = self.requests[0]
        self.psn, self.qpn, self.v6, self.tclass = first.psn, first.qpn, first.v6, first.tclass
        self.answer_qpn = self.answers[0].qpn if self.answers else first.qpn
        whole = {len(p.payload) for p in self.requests + self.answers if p.name.endswith(("_FIRST", "_MIDDLE"))}
        assert len(whole) <= 1, "packets that are not the last of a message are as long as the MTU"
        self.mtu = whole.pop() if whole else 1024
        ends = first.datagram[8:40] if first.v6 else first.datagram[12:20]
        half = len(ends) // 2
        self.ip = [str(ipaddress.ip_address(end)) for end in (ends[:half], ends[half:])]
        self.mac = [":".join(f"{b:02x}" for b in mac) for mac in (first.frame[6:12], first.frame[:6])]

    def node(self, i):
        """Options of a Node that is A (0) or B (1)."""
        end = lambda i: (self.mac[i], *((("10.0.0.1", self.ip[i])) if self.v6 else (self.ip[i], "fd00::1")))
        return dict(local=end(i), remote=end(1 - i), v6=self.v6)

    def new(self):
        """A's request packets, each once: without those of a repetition."""
        found, expected = [], self.psn
        for p in self.requests:
            if p.psn == expected:
                found.append(p)
                length = p.reth[2] if p.name == "READ_REQ" else 0
                expected = (p.psn + max(1, -(-length // self.mtu))) % (1 << 24)
        return found

    def memory(self):
        """The Spans of B before the first request: what READs and atomics found there, and zeroes. A request that B refused names
        memory that isn't there."""
        refused = {p.psn for p in self.answers if p.syndrome == NAK_ACCESS}
        good = [p for p in self.new() if p.psn not in refused]
        found, low, high = {}, {}, {}       # by key: bytes that were there; bounds
        known = {}                          # by key: addresses written to
        answer = {p.psn: p for p in self.answers if p.name.startswith("READ_RESP") or p.name == "ATOMIC_ACK"}
        for p in good:
            va, key, length = p.reth or (*p.atomic[:2], 8) if p.reth or p.atomic else (0, None, 0)
            if key is None or not length:
                continue
            low[key], high[key] = min(low.get(key, va), va), max(high.get(key, 0), va + length)
            bytes_there, written = found.setdefault(key, {}), known.setdefault(key, set())
            if p.name == "READ_REQ":
                for i in range(-(-length // self.mtu)):
                    if r := answer.get((p.psn + i) % (1 << 24)):
                        for j, byte in enumerate(r.payload):
                            if va + i * self.mtu + j not in written:
                                bytes_there.setdefault(va + i * self.mtu + j, byte)
            elif p.atomic:
                if va not in written and p.psn in answer:
                    for j, byte in enumerate(answer[p.psn].original.to_bytes(8, "little")):
                        bytes_there.setdefault(va + j, byte)
                written.update(range(va, va + 8))
            else:
                written.update(range(va, va + length))
        spans = []
        for key in found:
            data = bytearray(high[key] - low[key])
            for at, byte in found[key].items():
                data[at - low[key]] = byte
            spans.append(Span(key, low[key], bytes(data)))
        return spans


def messages(packets):
    """The Messages in A's packets, which must be whole and without repetition."""
    found, payload, first = [], b"", None
    for p in packets:
        name = p.name.removeprefix("UC_")
        first = first or p
        payload += p.payload
        if name in OPS:
            imm = p.ieth if p.ieth is not None else p.imm
            found.append(Message(OPS[name], first.psn, payload, first.reth, imm, first.atomic, p.solicited))
            payload, first = b"", None
    assert first is None, "the capture ends inside a message"
    return found
