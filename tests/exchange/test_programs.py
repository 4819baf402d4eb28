"""The tools' tests with one of our cards at each end: both sides of every program, in threads that take turns."""

import pytest

from host_driver.exchange import ExchangeError, Line, ProgramError, bandwidth, contents, letting_time_pass, pingpong
from host_driver.verbs import UsageError, open_cards
from .talk import Peer, Turns, player

import socket

KINDS = [("rc", "rc"), ("rc", "uc"), ("xp", "uc")]


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(kind))
def both(request):
    """(run, kind): `run(program, a's options, b's)` is the results of client and server."""
    transport, kind = request.param
    with open_cards("model", 2, cfg="tiny", transport=transport) as cards:
        yield runner(cards), kind


def runner(cards, timeout_s=20):
    turns = Turns()

    def run(program, client=None, server=None, **options):
        lines = [Line(end, timeout_s=timeout_s, patience=turns.patience(card)) for end, card in zip(socket.socketpair(), cards)]
        sides = [options | (client or {}) | {"client": True}, options | (server or {}) | {"client": False}]

        def one(i):
            with lines[i]:
                return program(cards[i], lines[i], **sides[i])
        return turns.run(lambda: one(0), lambda: one(1))
    return run


@pytest.mark.parametrize("ip6", [False, True], ids=["v4", "v6"])
@pytest.mark.parametrize("size", [1, 200, 256])
def test_pingpong(both, size, ip6):
    run, kind = both
    for result in run(pingpong, size=size, iterations=20, kind=kind, mtu=256, ip6=ip6):
        assert result["sent"] == result["received"] == 20 and result["last"] == contents(19, size) and result["ns"] > 20_000


@pytest.mark.parametrize("kind", ["rc", "uc"])
def test_messages_of_several_packets(kind):
    with open_cards("model", 2, cfg="tiny", transport="rc") as cards:
        a, b = runner(cards)(pingpong, size=1025, iterations=40, kind=kind, mtu=256)
        assert a["last"] == b["last"] == contents(39, 1025)


@pytest.mark.parametrize("operation", ["write", "send"])
def test_bandwidth(both, operation):
    run, kind = both
    a, b = run(bandwidth, operation=operation, size=200, iterations=50, kind=kind, client={"mtu": 256}, server={"mtu": 1024})
    assert a["mtu"] == b["mtu"] == 256 and a["sent"] == 50 and b["sent"] == 0
    if operation == "send":
        assert b["received"] == 50 and b["last"] == contents(49, 200) and b["report"] is None
    else:
        places = 4096 // 256
        for n in range(50 - places, 50):        # the last ones at each place
            assert b["last"][n % places * 256:][:200] == contents(n, 200)
        assert a["report"][:2] == [200, 50] == b["report"][:2] and a["report"] == b["report"] and a["report"][3] > 1


def test_larger_than_the_buffer(both):
    run, kind = both
    a, b = run(bandwidth, operation="write", size=6000 if kind == "rc" else 256, iterations=6, kind=kind, mtu=256)
    assert b["last"][:a["size"]] == contents(5, a["size"]) or kind == "uc"


def test_two_programs_that_differ(both):
    run, kind = both
    with pytest.raises(ExchangeError, match="looks like|closed|said nothing"):
        turns = runner_of_two_programs(run)
        turns(kind)


def runner_of_two_programs(run):
    def program(ctx, line, *, client, kind):
        return pingpong(ctx, line, client=True, kind=kind) if client else bandwidth(ctx, line, client=False, kind=kind)
    return lambda kind: run(program, kind=kind)


def test_loss_of_type_uc_ends_the_test():
    """Nothing is sent again: the test says how far it got. The queue pair and the rest are gone, so that the next one works."""
    with open_cards("model", 2, cfg="tiny") as cards:
        rule = cards.network.rule(match=lambda frame: len(frame) > 150, nth=7, loss=1)
        run = runner(cards)
        said = "did not end within 1 s: . of . sends have ended and 3 messages have come, 10 were"
        with pytest.raises(ProgramError, match=said) as caught:
            run(pingpong, size=200, iterations=10, mtu=256, give_up_s=1)
        assert caught.value.result["received"] == 3
        rule.active = False
        assert run(pingpong, size=200, iterations=10, mtu=256)[0]["received"] == 10


def test_loss_of_type_rc_does_not():
    with open_cards("model", 2, cfg="tiny", transport="rc", loss=0.03) as cards:
        a, b = runner(cards)(pingpong, size=1000, iterations=30, mtu=256, timeout=6)
        assert a["last"] == b["last"] == contents(29, 1000)


def test_an_error_completion_ends_it():
    """A peer that is reached and has no such queue pair: the retries run out."""
    with open_cards("model", 2, cfg="tiny", transport="rc") as cards:
        peer = Peer(player("rc_pingpong", "server", change=lambda i, data: data.replace(b"0a4d0002", b"0a000002")))
        with Line(peer.ours, timeout_s=5, patience=letting_time_pass(cards[0])) as line:
            with pytest.raises(ProgramError, match="send 0 of the test ended with IBV_WC_RETRY_EXC_ERR .retry."):
                pingpong(cards[0], line, client=True, timeout=4, retry_cnt=1)
        peer.end()


def test_what_makes_no_sense():
    with open_cards("model", 1, cfg="tiny") as (card,):
        a, _ = socket.socketpair()
        with Line(a) as line:
            with pytest.raises(UsageError, match="neither rc nor uc"):
                pingpong(card, line, client=True, kind="ud")
            with pytest.raises(UsageError, match="neither write nor send"):
                bandwidth(card, line, client=True, operation="read")
            with pytest.raises(UsageError, match="card is of transport xp"):
                pingpong(card, line, client=True, kind="rc")
        peer = Peer(player("uc_pingpong", "server"))        # IPv4 at the other end
        with Line(peer.ours, patience=letting_time_pass(card)) as line, pytest.raises(ExchangeError, match="GIDs of one kind"):
            pingpong(card, line, client=True, ip6=True)
