"""The short form of the tests with a Linux peer: one boot, the tiny reliable card as Verilog, both roles, and a bad network."""

import pytest

from .rig import KINDS, ends, retries, run_all

pytestmark = pytest.mark.rtl
SIZES = (0, 1, 3, 1023, 1024, 1025, 5000)


@pytest.mark.parametrize("requester", ["linux", "card"])
def test_every_operation(guest, rng, requester):
    with ends("rtl", guest, rng, mtu=1024) as pair:
        traffic = pair.traffic(requester, rng)
        for size in SIZES:
            for name in KINDS:
                traffic.make(name, size)
            traffic.run(depth=16)
        traffic.check()
        assert not retries(pair.changed())


def test_a_bad_network(guest, rng):
    """Both ways at once, until frames were lost in both directions."""
    bad = dict(loss=.04, duplicate=.03, reorder=(.04, (1000, 8000)))
    with ends("rtl", guest, rng, mtu=256, size=1 << 18, lab=bad, card_attributes=dict(timeout=7), timeout=14) as pair:
        lanes = pair.lab.network.lanes
        both = [pair.traffic(requester, rng) for requester in ("linux", "card")]
        for _ in range(8):
            for traffic in both:
                for name in KINDS:
                    traffic.make(name, rng.choice((0, 1, 255, 256, 700)))
            run_all(both, depth=8)
            if all(lane.dropped["loss"] > 3 for lane in lanes):
                break
        both[0].check()
        assert all(lane.dropped["loss"] for lane in lanes)
        assert retries(pair.changed())
