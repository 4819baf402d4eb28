"""Every operation, at lengths from 0 to 64 KiB, odd ones too, up to 16 under way; Linux or the card as the requester. Memory of
both ends is compared to the last byte, and on a network that loses nothing nothing is sent twice."""

from dataclasses import replace

import pytest

from .rig import KINDS, LARGE, TRACED, ends, retries, run_all

pytestmark = [pytest.mark.peer, pytest.mark.rtl]
SIZES = (0, 1, 2, 3, 5, 31, 64, 255, 256, 257, 1023, 1024, 1025, 2049, 4095, 4096, 4097, 8191, 12289, 20001, 32768, 65535, 65536)
MEMORY = 1 << 21


@pytest.mark.parametrize("requester", ["linux", "card"])
@pytest.mark.parametrize("ip6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("backend, mtu", [("rtl", 256), ("rtl", 1024), ("rtl", 4096), ("model", 256), ("model", 4096)])
def test_every_operation(guest, rng, backend, mtu, ip6, requester):
    with ends(backend, guest, rng, mtu=mtu, ip6=ip6, size=MEMORY, changes=LARGE if mtu == 4096 else TRACED) as pair:
        traffic = pair.traffic(requester, rng)
        for size in SIZES:
            for name in KINDS:
                traffic.make(name, size)
            traffic.run(depth=16)
        traffic.check()
        assert not retries(pair.changed())


@pytest.mark.parametrize("backend", ["rtl", "model"])
@pytest.mark.parametrize("depth", [1, 4, 16])
def test_anything_in_any_order(guest, rng, backend, depth):
    """Both ways at once, over IPv6."""
    with ends(backend, guest, rng, mtu=1024, ip6=True, size=1 << 20) as pair:
        both = [pair.traffic(requester, rng) for requester in ("linux", "card")]
        for _ in range(4):
            for traffic in both:
                for _ in range(40):
                    traffic.make(rng.choice(KINDS), rng.choice((0, 1, 7, 1000, 1024, 1025, rng.randrange(6000))))
            run_all(both, depth)
        both[0].check()
        assert not retries(pair.changed())


@pytest.mark.parametrize("psn", [0xFFFFFF, 0xFFFFF0])
def test_numbers_wrap(guest, rng, psn):
    with ends("rtl", guest, rng, mtu=256, size=1 << 18, card_psn=psn, psn=psn) as pair:
        both = [pair.traffic(requester, rng) for requester in ("linux", "card")]
        for traffic in both:
            for name in KINDS + KINDS:
                traffic.make(name, rng.randrange(2000))
        run_all(both, 16)
        both[0].check()
        assert not retries(pair.changed())


@pytest.mark.parametrize("limit", [1, 2])
def test_few_reads_at_once(guest, rng, limit):
    """What the guest allows itself, and the card."""
    with ends("rtl", guest, rng, mtu=1024, size=1 << 18, rd_atomic=limit, card_attributes=dict(max_rd_atomic=limit)) as pair:
        both = [pair.traffic(requester, rng) for requester in ("linux", "card")]
        for traffic in both:
            for _ in range(10):
                traffic.make(rng.choice(("read", "fadd", "cas", "write")), rng.randrange(4000))
        run_all(both, 16)
        both[0].check()
        assert not retries(pair.changed())


@pytest.mark.parametrize("requester", ["linux", "card"])
def test_inline(guest, rng, requester):
    """Payload that comes with the work request, and a request for an event at the other end."""
    with ends("rtl", guest, rng, mtu=1024) as pair:
        traffic = pair.traffic(requester, rng)
        for size in (0, 1, 7, 31, 32):
            for name in ("send", "send_imm", "write", "write_imm"):
                traffic.make(name, size)
        traffic.post_receives()
        traffic._ops = [replace(op, inline=True, solicited=True) for op in traffic._ops]
        traffic.start(8)
        traffic.finish()
        traffic.finish_receives()
        traffic.check()
        assert not retries(pair.changed())
