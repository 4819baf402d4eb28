"""Addresses and pings with Linux, beyond the first meeting: link-local ones, duplicates, too long ones, many, several cards."""

import re

import pytest

from host_driver.exchange import contents, pingpong
from host_driver.verbs import NeighbourError
from optinic.config import preset
from .stock import answering, run

pytestmark = pytest.mark.peer
BACKENDS = pytest.mark.parametrize("backend", ["model", pytest.param("rtl", marks=pytest.mark.rtl)])


def link_local(guest):
    return re.search(r"inet6 (fe80[^/]*)/", guest.run("ip -6 addr show dev link0"))[1]


@pytest.mark.rtl
@pytest.mark.parametrize("role", ["client", "server"])
def test_a_link_local_peer(guest, rng, role):
    """Linux by its link-local GID, which the card finds by neighbour discovery."""
    with answering("rtl", guest, rng) as lab:
        gid = guest.gid_index(link_local(guest))
        result, said = run(lab, guest, f"ibv_rc_pingpong -d rxe0 -g {gid} -s 1500 -n 5", role, pingpong, size=1500, iterations=5,
                           ip6=True)
        assert result["received"] == 5 and str(result["peer"].gid.ip) == link_local(guest) and link_local(guest) in said
        assert result["last"] == contents(4 - (role == "client"), 1500)
        assert lab.cards[0].neighbours.resolve(link_local(guest)) == guest.address.mac


@BACKENDS
def test_long_pings(guest, rng, backend):
    """As long as the card takes them they are answered; longer ones, and the fragments of those that are longer still, are dropped
    and counted, and then all is as before."""
    with answering(backend, guest, rng) as lab:
        card = lab.cards[0]
        longest = preset("tiny", transport="rc").max_frame_bytes - 42

        def ping(size, name="ping", ip=card.ip):
            return " 0% packet loss" in guest.run(f"{name} -c 1 -W 1 -s {size} {ip}", check=False)[1]
        assert ping(0) and ping(longest) and ping(1400, "ping -6", card.ip6)
        dropped = card.counters()["drop_length"]
        assert not ping(longest + 1) and not ping(4000) and not ping(20_000)
        assert card.counters()["drop_length"] > dropped and ping(56) and ping(56, "ping -6", card.ip6)
        assert not card.neighbours.counts["malformed"]


@BACKENDS
def test_many_pings(guest, rng, backend):
    with answering(backend, guest, rng) as lab:
        said = guest.run(f"ping -q -c 150 -i 0.002 {lab.cards[0].ip}")
        assert "150 packets received" in said and lab.cards[0].neighbours.counts["echo4_answers"] == 150


@BACKENDS
def test_linux_sees_that_an_address_is_taken(guest, rng, backend):
    """Its own duplicate address detection, with the card's addresses."""
    with answering(backend, guest, rng) as lab:
        card = lab.cards[0]
        knob = "/proc/sys/net/ipv6/conf/link0/dad_transmits"
        try:
            said = guest.run(f"echo 1 > {knob}; ip -6 addr add {card.ip6}/64 dev link0; ip -6 addr add fd77::abcd/64 dev link0; "
                             "sleep 2.5; ip -6 addr show dev link0")
        finally:
            guest.run(f"echo 0 > {knob}; ip -6 addr del {card.ip6}/64 dev link0; ip -6 addr del fd77::abcd/64 dev link0",
                      check=False)
        states = {line.split()[1].split("/")[0]: line for line in said.splitlines() if "inet6" in line}
        free = states["fd77::abcd"]
        assert "dadfailed" in states[card.ip6] and "dadfailed" not in free and "tentative" not in free
        status, said = guest.run(f"arping -D -c 2 -w 2 -I link0 {card.ip}", check=False)
        assert status == 1 and card.mac in said.lower()
        status, said = guest.run("arping -D -c 2 -w 2 -I link0 10.77.0.77", check=False)
        assert status == 0


@BACKENDS
def test_two_cards_and_linux_on_a_switch(guest, rng, backend):
    """Everybody finds everybody."""
    with answering(backend, guest, rng, count=2) as lab:
        a, b = lab.cards
        for card in lab.cards:
            guest.run(f"ping -c 1 {card.ip} && ping -6 -c 1 {card.ip6}")
            assert card.neighbours.resolve(guest.address.ip) == card.neighbours.resolve(guest.address.ip6) == guest.address.mac
        assert a.neighbours.resolve(b.ip) == b.mac and b.neighbours.resolve(a.ip6) == a.mac
        assert 0 < a.neighbours.ping(b.ip) < 20_000 and a.neighbours.ping(guest.address.ip) > 0
        with pytest.raises(NeighbourError, match="10.77.0.99"):
            a.neighbours.resolve("10.77.0.99")


def test_linux_moves(guest, rng):
    """Another MAC address at the other end: what Linux says of itself is believed, and the next queue pair finds it."""
    with answering("model", guest, rng) as lab:
        card, moved = lab.cards[0], "02:00:0a:4d:00:99"
        assert card.neighbours.resolve(guest.address.ip) == guest.address.mac
        try:
            guest.run(f"ip link set link0 down; ip link set link0 address {moved}; ip link set link0 up; arping -U -c 1 -I link0 "
                      f"{guest.address.ip}; ping -c 2 -W 1 {card.ip}", check=False)
            assert card.neighbours.resolve(guest.address.ip) == moved and card.neighbours.counts["moved"] >= 1
            assert card.neighbours.ping(guest.address.ip) > 0
        finally:
            guest.run(f"ip link set link0 down; ip link set link0 address {guest.address.mac}; ip link set link0 up; ip -6 addr "
                      f"add {guest.address.ip6}/64 dev link0 nodad; sleep 0.5", check=False)
