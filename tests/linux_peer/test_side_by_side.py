"""Pings and the tools at once: frames of the host and of the transport take turns in the card, and none is the worse for the other."""

import pytest

from host_driver.exchange import bandwidth, contents, pingpong
from .stock import answering, gid_index, run

pytestmark = [pytest.mark.rtl, pytest.mark.peer]
PINGS = 150


@pytest.mark.parametrize("transport, kind", [("rc", "rc"), ("rc", "uc"), ("xp", "uc")])
def test_pings_beside_the_tools(guest, rng, transport, kind):
    size = 700 if transport == "xp" else 3000
    with answering("rtl", guest, rng, transport=transport) as lab:
        card, gid = lab.cards[0], gid_index(guest, False)
        with guest.start(f"ping -q -c {PINGS} -i 0.01 -s 900 {card.ip}") as four, \
                guest.start(f"ping -6 -q -c {PINGS} -i 0.01 {card.ip6}") as six:
            for role in ("client", "server"):
                got = {}
                tool = f"ibv_{kind}_pingpong -d rxe0 -g {gid} -m 1024 -s {size} -n 40"
                run(lab, guest, tool, role, pingpong, kind=kind, size=size, iterations=40, each=got.__setitem__)
                assert [got[n] for n in range(1, 40)] == [contents(n - (role == "client"), size) for n in range(1, 40)]
                tool = f"ib_write_bw -d rxe0 -x {gid} -F -m 1024 -n 60 -s {size} -c {kind.upper()}"
                result, _ = run(lab, guest, tool, role, bandwidth, operation="write", kind=kind, size=size, iterations=60)
                assert role == "client" or result["sent"] == 60
            for job in (four, six):
                assert job.wait() == 0 and f"{PINGS} packets received" in job.output, job.output
        counters = card.counters()
        assert counters["pass_overflow"] == counters["drop_overflow"] == counters["drop_icrc"] == 0
        assert counters["host_frames_sent"] >= 2 * PINGS and not card.neighbours.counts["malformed"]
