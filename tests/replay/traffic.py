"""Setups and expectations for the captures of a real peer in tests/data/golden, from their README alone."""

from pathlib import Path
import struct

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
READY = {"access": ["local_write", "remote_write"], "pd": 1}
SEND_VA, SEND_KEY, SLOT = 0x40000, 0x1234, 2048


def payload(op, size):
    """What the peer's program sends as operation `op`."""
    return bytes((7 * i + 3 * (i >> 8) + 31 * op + 1) & 255 for i in range(size))


def write_targets(frames):
    """(va, rkey, length) of each WRITE with a RETH among UC frames over IPv4 or IPv6."""
    for data in frames:
        bth = data[42:] if data[12:14] == b"\x08\x00" else data[62:]
        if bth[0] in (0x26, 0x2A, 0x2B):
            yield struct.unpack(">QII", bth[12:28])


def qp_setup(qpn, receives, kind="uc", v6=False, **more):
    return {"qpn": qpn, "type": kind, "pd": 1, "mtu": 1024, "expected_psn": 0x123456,
            "peer": {"mac": "02:00:0a:4d:00:01", **({"ipv6": "fd77::1"} if v6 else {"ipv4": "10.77.0.1"}), "qpn": qpn},
            "receives": receives} | more


def send_buffers(count, **more):
    return [{"va": SEND_VA + i * SLOT, "length": SLOT, "lkey": SEND_KEY} | more for i in range(count)]


def send_region(count, fill=0):
    return {"rkey": SEND_KEY, "va": SEND_VA, "length": count * SLOT, "fill": fill} | READY


def write_region(frames, fill="index"):
    targets = list(write_targets(frames))
    low = min(va for va, _, _ in targets) & ~4095
    high = max(va + length for va, _, length in targets)
    keys = {rkey for _, rkey, _ in targets}
    assert len(keys) == 1
    return {"rkey": keys.pop(), "va": low, "length": high - low + 100, "fill": fill} | READY
