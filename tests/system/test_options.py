"""Options switched off one at a time: what is off is refused in its documented way, and all the rest flows."""

import pytest

from sim.frames import REMOTE
from .rig import CFG, FAST, Rig, ends

pytestmark = pytest.mark.rtl

OFF = {"none": CFG, "vlan and arrival_map": FAST, "ipv6": CFG.with_(ipv6=False), "uc": CFG.with_(uc=False),
       "pass_through": CFG.with_(pass_through=False)}


@pytest.mark.parametrize("off", OFF)
def test_all_else_flows(seed, rng, off):
    cfg = OFF[off]
    with Rig(cfg, seed=seed) as rig:
        card = rig.card
        assert card.features == {n for n in ("ipv6", "vlan", "uc", "pass_through", "trace", "arrival_map") if getattr(cfg, n)}
        card.set_peer(1, REMOTE[2])
        rig.qp(1), rig.qp(2, peer=1), rig.qp(3, "uc")
        for qpn in (1, 2, 3):
            rig.post(qpn, 20)
        six = dict(src=REMOTE[2])
        arp = b"\xff" * 12 + b"\x08\x06" + bytes(46)
        passed = "passed"       # also without pass_through: then it is counted and discarded
        cases = [(rig.message(1, 0, b"plain"), "placed"), (rig.message(1, 1, b"tag", vlan=0x123), "placed" if cfg.vlan else passed),
                 (rig.message(2, 0, b"six", **six), "placed" if cfg.ipv6 else passed),
                 (rig.message(2, 1, b"six, tagged", vlan=5, **six), "placed" if cfg.ipv6 and cfg.vlan else passed),
                 (rig.message(3, 0, b"uc"), "placed" if cfg.uc else "opcode"),
                 (rig.write(3, b"uc write", 99), "placed" if cfg.uc else "opcode"),
                 (arp, passed), (rig.write(1, b"write", 5000), "placed"), (b"runt", "runt"),
                 (rig.write(1, b"x", icrc_xor=5), "icrc")]
        frames, expected = zip(*cases)
        assert rig.exchange(*frames) == list(expected)
        handed = [f for f, e in cases if e == "passed"]
        if cfg.pass_through:
            assert rig.dev.host_frames() == handed
        assert card.counter("frames_passed") == len(handed)
        done = card.poll(0)
        assert ends(done, 1)[0] == (0, "success", "complete") and bool(ends(done, 2)) == cfg.ipv6 and bool(ends(done, 3)) == cfg.uc
        assert rig.window(1)[5000:5005] == b"write" and rig.dev.faults == []
