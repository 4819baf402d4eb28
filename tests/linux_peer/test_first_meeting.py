"""The short form of the tests without anything entered by hand: Linux finds the card, and the stock pingpong runs with it."""

import pytest

from host_driver.exchange import contents, pingpong
from .stock import answering, gid_index, run

pytestmark = pytest.mark.rtl


def test_found_and_talked_to(guest, rng):
    with answering("rtl", guest, rng) as lab:
        card = lab.cards[0]
        said = guest.run(f"ping -c 2 -i 0.1 {card.ip} && ping -6 -c 2 -i 0.1 {card.ip6} && ip neigh show dev link0")
        assert said.count(" 0% packet loss") == 2 and "PERMANENT" not in said
        for ip in (card.ip, card.ip6):
            assert f"{ip} lladdr {card.mac} " in said
        counts = card.neighbours.counts
        assert counts["echo4_answers"] == counts["echo6_answers"] == 2 and counts["arp_answers"] and counts["nd_answers"]
        for role in ("client", "server"):
            got = {}
            tool = f"ibv_rc_pingpong -d rxe0 -g {gid_index(guest, False)} -s 1500 -n 6"
            result, said = run(lab, guest, tool, role, pingpong, size=1500, iterations=6, each=got.__setitem__)
            assert result["sent"] == result["received"] == 6 and "6 iters in" in said
            # Linux sends back what it has got, and has got nothing when it begins.
            first = {0: b"\x7b" * 1500} if role == "client" else {}
            assert got == {n: contents(n - (role == "client"), 1500) for n in range(6)} | first
