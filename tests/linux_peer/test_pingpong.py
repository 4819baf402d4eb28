"""rdma-core's ibv_rc_pingpong and ibv_uc_pingpong, as client and as server, with the reliable card as Verilog."""

import pytest

from host_driver.exchange import contents, pingpong
from .stock import answering, gid_index, run

pytestmark = [pytest.mark.rtl, pytest.mark.peer]
COUNT = 12


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("kind", ["rc", "uc"])
@pytest.mark.parametrize("ip6, mtu, sizes", [(False, 1024, (1, 1023, 1024, 1025, 4096)), (True, 256, (255, 256, 257, 2000))],
                         ids=["v4", "v6"])
def test_stock_pingpong(guest, rng, role, kind, ip6, mtu, sizes):
    with answering("rtl", guest, rng) as lab:
        card = lab.cards[0]
        for size in sizes:
            got = {}
            tool = f"ibv_{kind}_pingpong -d rxe0 -g {gid_index(guest, ip6)} -m {mtu} -s {size} -n {COUNT}"
            result, said = run(lab, guest, tool, role, pingpong, kind=kind, size=size, iterations=COUNT, mtu=mtu, ip6=ip6,
                               each=got.__setitem__)
            assert result["sent"] == result["received"] == COUNT and f"{COUNT} iters in" in said
            assert f"PSN 0x{result['peer'].psn:06x}" in said and str(result["peer"].gid.ip) in said
            for n in range(COUNT):
                wanted = n - 1 if role == "client" else n
                assert got[n] == (contents(wanted, size) if wanted >= 0 else b"\x7b" * size), n
        counters = card.counters()
        assert counters["go_backs"] == counters["naks_sent"] == counters["drop_psn"] == counters["drop_icrc"] == 0
        # One packet of data for each message at least, of type rc an acknowledgement too.
        assert counters["frames_sent"] >= COUNT * len(sizes) * (2 if kind == "rc" else 1)


@pytest.mark.parametrize("role", ["client", "server"])
def test_on_a_bad_network(guest, rng, role):
    """What was lost is sent again, by both; the tool's own timeout is 67 ms of its clock, and 0.67 ms of the card's."""
    with answering("rtl", guest, rng, loss=0.05) as lab:
        # Linux asks who has the address once, and gives up the queue pair if that is lost.
        guest.run(f"until ping -c 1 -W 1 {lab.cards[0].ip}; do :; done")
        got = {}
        tool = f"ibv_rc_pingpong -d rxe0 -g {gid_index(guest, False)} -m 256 -s 1000 -n 30"
        result, _ = run(lab, guest, tool, role, pingpong, size=1000, iterations=30, mtu=256, timeout=7, each=got.__setitem__)
        assert got[29] == contents(29 - (role == "client"), 1000) and len(got) == 30
        assert sum(lane.dropped["loss"] for lane in lab.network.lanes) > 3
