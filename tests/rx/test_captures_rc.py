"""The ingress of transport rc on the captures of Soft-RoCE."""

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether

from optinic.config import preset

from . import golden
from .bench import check

TINY = preset("tiny", transport="rc")
WIDE = preset("c100g", transport="rc")
FAMILIES = ["rc_", "uc_", "ud_", "v6_", "pf_", "pp_"]


def capture(name, whole):
    """Frames of a capture; of one of more than 32 KiB, unless `whole`, six of each opcode and length."""
    frames, seen = golden.frames(name), {}
    if whole or sum(map(len, frames)) < 1 << 15:
        return frames
    few = []
    for f in frames:
        key = f[42 if f[12:14] == b"\x08\x00" else 62], len(f)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= 6:
            few.append(f)
    return few


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_capture(family, whole):
    """At 512 bits, one behind the other without a gap. None is refused but for UD, which is `other`; scapy reads the same BTH."""
    frames = [f for name in golden.names() if name.startswith(family) for f in capture(name, whole)]
    assert len(frames) > 15
    results = check(WIDE, frames, read=False).results
    for (d, _), frame in zip(results, frames):
        bth = Ether(frame)[BTH]
        assert not d.passed and d.reason == 0 and d.other == (bth.opcode >> 5 == 3) and not d.is_cnp
        assert (d.qpn, d.psn, d.pkey, d.ack_req, d.solicited) == (bth.dqpn, bth.psn, bth.pkey, bth.ackreq, bth.solicited)
        if not d.other:
            assert (d.uc << 5 | d.op) == bth.opcode
            assert d.pay_off + d.pay_len + bth.padcount + 4 == len(frame)


@pytest.mark.parametrize("name", ["rc_atomic", "rc_zero_length", "rc_send_inv_only", "v6_rc_linklocal", "rc_nak_access_write", "uc_send"])
def test_captured_on_a_narrow_bus(name):
    check(TINY, golden.frames(f"{name}.pcap")[:20], gap=0.05, stall=0.2)
