"""Neighbours of a card, with scapy at the other end of the cable: what is answered, asked, learned, and left to the program."""

import pytest

from host_driver.neighbours import packets
from host_driver.verbs import *
from host_driver.verbs import open_cards, open_device
from .conftest import add_qp, connect, make_end
from .station import *
from .station import at_one_end

REQUEST = REQUEST_TO_CARD
REPLY = Ether(src=MAC, dst=CARD_MAC) / ARP(op=2, hwsrc=MAC, psrc=IP4, hwdst=CARD_MAC, pdst=CARD_IP)
SOLICIT = (Ether(src=MAC, dst=SOLICITED_MAC) / IPv6(src=IP6, dst=SOLICITED) / ICMPv6ND_NS(tgt=CARD_IP6) /
           ICMPv6NDOptSrcLLAddr(lladdr=MAC))
ADVERTISE = (Ether(src=MAC, dst=CARD_MAC) / IPv6(src=IP6, dst=CARD_IP6, hlim=255) / ICMPv6ND_NA(tgt=IP6, R=0, S=1, O=1) /
             ICMPv6NDOptDstLLAddr(lladdr=MAC))


@pytest.fixture
def station(backend):
    with at_one_end(backend) as station:
        yield station


def test_arp_is_answered(station):
    answer, = station.ask(REQUEST)
    assert (answer.src, answer.dst) == (CARD_MAC, MAC)
    arp = answer[ARP]
    assert (arp.op, arp.hwsrc, arp.psrc, arp.hwdst, arp.pdst) == (2, CARD_MAC, CARD_IP, MAC, IP4)
    assert station.neighbours.entries()[0]["mac"] == MAC and station.counts["arp_answers"] == station.counts["learned"] == 1
    assert station.neighbours.resolve(IP4) == MAC and station.take() == []      # learned from the question


def test_a_probe_is_answered_and_teaches_nothing(station):
    answer, = station.ask(Ether(src=MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=MAC, psrc="0.0.0.0", pdst=CARD_IP))
    assert answer[ARP].op == 2 and station.neighbours.entries() == []


def test_solicitation_is_answered(station):
    answer, = station.ask(SOLICIT)
    assert (answer.src, answer.dst, answer[IPv6].src, answer[IPv6].dst, answer[IPv6].hlim) == (CARD_MAC, MAC, CARD_IP6, IP6, 255)
    na = answer[ICMPv6ND_NA]
    assert (na.tgt, na.R, na.S, na.O, answer[ICMPv6NDOptDstLLAddr].lladdr) == (CARD_IP6, 0, 1, 1, CARD_MAC)
    assert station.neighbours.resolve(IP6) == MAC and station.take() == []


def test_is_somebody_there(station):
    """Duplicate address detection: from nobody, answered to all."""
    answer, = station.ask(Ether(src=MAC, dst=SOLICITED_MAC) / IPv6(src="::", dst=SOLICITED) / ICMPv6ND_NS(tgt=CARD_IP6))
    assert (answer.dst, answer[IPv6].dst, answer[ICMPv6ND_NA].S) == ("33:33:00:00:00:01", "ff02::1", 0)
    assert station.neighbours.entries() == []


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(56)), bytes(1400)], ids=len)
def test_echo_is_answered(station, data):
    four = Ether(src=MAC, dst=CARD_MAC) / IP(src=IP4, dst=CARD_IP, ttl=3) / ICMP(id=77, seq=5) / Raw(data)
    six = Ether(src=MAC, dst=CARD_MAC) / IPv6(src=IP6, dst=CARD_IP6) / ICMPv6EchoRequest(id=77, seq=5, data=data)
    a, b = station.ask(four, six)
    padding = a.len + 14
    assert (a[IP].src, a[IP].dst, a[ICMP].type, a[ICMP].id, a[ICMP].seq) == (CARD_IP, IP4, 0, 77, 5) and a.dst == MAC
    assert bytes(a)[42:padding] == data
    assert (b[IPv6].src, b[IPv6].dst) == (CARD_IP6, IP6) and b.getlayer(2).type == 129 and b.getlayer(2).data == data


def test_with_a_tag(station):
    tagged = Ether(src=MAC, dst="ff:ff:ff:ff:ff:ff") / Dot1Q(vlan=5, prio=3) / ARP(op=1, hwsrc=MAC, psrc=IP4, pdst=CARD_IP)
    answer, = station.ask(tagged)
    assert (answer[Dot1Q].vlan, answer[Dot1Q].prio) == (5, 3) and answer[ARP].op == 2
    assert station.neighbours.resolve(IP4, vlan=5) == MAC
    with pytest.raises(NeighbourError):         # in another network
        station.neighbours.resolve(IP4, timeout_ns=50_000)


def answering(station, *answers):
    """Have `answers` come to the next question; the questions are in the list returned."""
    asked = []
    poll = station.neighbours.poll

    def also():
        new = station.take()
        asked.extend(new)
        if new and len(asked) == len(new):
            for answer in answers:
                station.world.send(1, bytes(answer).ljust(60, b"\0"))
        poll()
    station.neighbours.poll = also
    return asked


def test_asks_and_is_told(station):
    asked = answering(station, REPLY)
    assert station.neighbours.resolve(IP4) == MAC
    question, = asked
    assert (question.dst, question.src, question[ARP].op, question[ARP].pdst) == ("ff:ff:ff:ff:ff:ff", CARD_MAC, 1, IP4)
    assert (question[ARP].hwsrc, question[ARP].psrc, question[ARP].hwdst) == (CARD_MAC, CARD_IP, "00:00:00:00:00:00")
    assert station.neighbours.resolve(IP4) == MAC and len(asked) == 1


def test_solicits_and_is_told(station):
    asked = answering(station, ADVERTISE)
    assert station.neighbours.resolve(IP6) == MAC
    question, = asked
    assert (question.dst, question[IPv6].dst, question[IPv6].hlim) == ("33:33:ff:00:00:77", "ff02::1:ff00:77", 255)
    assert question[ICMPv6ND_NS].tgt == IP6 and question[ICMPv6NDOptSrcLLAddr].lladdr == CARD_MAC


@pytest.mark.parametrize("ip, kind", [(IP4, "ARP requests"), (IP6, "neighbour solicitations")])
def test_nobody_answers(station, ip, kind):
    start = station.card.time_ns()
    with pytest.raises(NeighbourError, match=rf"nobody says to have {ip}: 4 {kind} from .* not answered within 200 us"):
        station.neighbours.resolve(ip, timeout_ns=200_000)
    assert 200_000 <= station.card.time_ns() - start < 230_000 and len(station.take()) == 4 and station.neighbours.entries() == []


def test_a_lost_question_is_asked_again(backend):
    network = back_to_back(rate=100 * GBIT, delay_ns=500)
    with open_cards(backend, 2, cfg="tiny", network=network) as (a, b):
        network.rule(nth=(1, 2), loss=1)
        assert a.neighbours.resolve("10.0.0.2") == "02:00:00:00:00:02" and a.neighbours.counts["asked"] == 3


@pytest.mark.parametrize("ip, said", [("224.0.0.1", "not the address of one station"), ("255.255.255.255", "one station"),
                                      ("ff02::1", "one station"), ("::", "one station"), ("nonsense", "nonsense")])
def test_what_makes_no_sense(station, ip, said):
    with pytest.raises(ValueError if ip == "nonsense" else UsageError, match=said):
        station.neighbours.resolve(ip)
    assert station.take() == []


def test_own_address_and_none(station):
    assert station.neighbours.resolve(CARD_IP) == CARD_MAC and station.take() == []
    with open_device("model") as ctx, pytest.raises(UsageError, match="this port has none; open the Context with ip6="):
        ctx.neighbours.resolve(IP6)


def test_static_entries(station):
    station.neighbours.add(IP4, "02:00:00:00:00:99")
    station.give(REPLY, REQUEST)
    assert station.neighbours.resolve(IP4) == "02:00:00:00:00:99"
    station.neighbours.forget(IP4)
    station.give(REQUEST)
    assert station.neighbours.resolve(IP4) == MAC


def test_news_of_an_old_neighbour(station):
    station.give(REQUEST, SOLICIT)
    moved = "02:00:00:00:00:78"
    # unasked, and about somebody unknown: nothing is learned
    station.give(Ether(src=moved, dst=CARD_MAC) / ARP(op=2, hwsrc=moved, psrc="10.0.0.50", hwdst=CARD_MAC, pdst=CARD_IP))
    assert len(station.neighbours.entries()) == 2
    station.give(Ether(src=moved, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=moved, psrc=IP4, pdst=IP4))
    quiet = ADVERTISE.copy()
    quiet[ICMPv6ND_NA].O, quiet[ICMPv6NDOptDstLLAddr].lladdr = 0, moved
    station.give(quiet)
    assert station.neighbours.resolve(IP4) == moved and station.neighbours.resolve(IP6) == MAC      # no override
    quiet[ICMPv6ND_NA].O = 1
    del quiet[ICMPv6ND_NA].cksum
    station.give(quiet)
    assert station.neighbours.resolve(IP6) == moved and station.counts["moved"] == 2


def test_entries_age(station):
    station.give(REQUEST)
    station.neighbours.table.lifetime_ns = 10_000
    station.card.sleep_ns(20_000)
    with pytest.raises(NeighbourError):
        station.neighbours.resolve(IP4, timeout_ns=20_000)


def test_the_table_is_bounded(station):
    table = station.neighbours.table
    table.room = 4
    for n in range(20, 30):
        station.give(Ether(src=MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=MAC, psrc=f"10.0.0.{n}", pdst=CARD_IP))
    assert [e["ip"] for e in station.neighbours.entries()] == [f"10.0.0.{n}" for n in range(26, 30)]
    for n in range(4):
        station.neighbours.add(f"10.0.1.{n}", MAC)
    station.give(REQUEST)
    assert len(table) == 4 and all(e["static"] for e in station.neighbours.entries())
    with pytest.raises(UsageError, match="table is full"):
        station.neighbours.resolve("10.0.0.99")


def test_two_with_our_address(station):
    station.give(Ether(src=MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=MAC, psrc=CARD_IP, pdst=CARD_IP))
    assert station.counts["conflicts"] == 1 and station.neighbours.entries() == []
    status = station.card.status()
    assert status["card"]["neighbours"]["conflicts"] == 1 and "another station says to have this port's address" in str(status)
    assert station.card.status()["findings"] == []      # since the last look


def test_the_rest_is_the_programs(station):
    """In order, whatever it is; and no more than there is room for."""
    station.neighbours.room = 5
    other = [REQUEST.copy(), Ether(src=MAC, dst=CARD_MAC, type=0x88CC) / Raw(bytes(60)),
             Ether(src=MAC, dst=CARD_MAC) / IP(src=IP4, dst=CARD_IP, proto=6) / Raw(bytes(30)),
             Ether(src=MAC, dst="02:00:00:00:00:55") / IP(src=IP4, dst=CARD_IP) / ICMP(),           # to another station
             Ether(src=MAC, dst=CARD_MAC) / IP(src=IP4, dst=CARD_IP, flags="MF") / ICMP() / Raw(bytes(24))]
    other[0][ARP].pdst = "10.0.0.3"
    frames = [bytes(f).ljust(60, b"\0") for f in other]
    station.give(frames[0], frames[1], REQUEST, frames[2], frames[3], frames[4], frames[1], frames[1])
    assert station.neighbours.frames() == frames and station.neighbours.frames() == []
    assert station.counts["dropped_for_program"] == 2 and station.counts["for_program"] == 5
    assert [p[ARP].op for p in station.take()] == [2]
    station.give(frames[1])
    assert station.neighbours.frames() == [frames[1]]
    station.neighbours.send(frames[1])
    station.card.sleep_ns(5000)
    assert [bytes(p) for p in station.take()] == [frames[1]]


def test_answers_are_bounded(station):
    """A card that doesn't send takes nothing: questions then don't fill memory."""
    station.card.enable(tx=False)
    station.neighbours.answers = 8
    station.give(*[REQUEST] * 40)
    done = station.counts["arp_answers"], station.counts["dropped_answers"]
    assert sum(done) == 40 and 8 <= done[0] <= 10
    station.card.enable()
    station.card.sleep_ns(20_000)
    assert len(station.take()) == done[0]


def test_two_cards_and_a_queue_pair(backend):
    """Connected by address alone, both families; the peer answers although its program does nothing."""
    with open_cards(backend, 2, cfg="tiny") as cards:
        ends = [make_end(card) for card in cards]
        for ip6 in (False, True):
            infos = [{k: v for k, v in end.qp.info().items() if k != "mac"} for end in ends]
            for end, info in zip(ends, reversed(infos)):
                end.qp.connect(info, ip6=ip6)
                assert end.qp.query()[0].ah_attr.mac == info_mac(end)
            ends[1].qp.post_recv(RecvWR(1, sg=[ends[1].mr.sge(0, 100)], timeout_ns=100_000))
            ends[0].qp.post_send(SendWR(2, inline_data=b"no address by hand"))
            assert ends[1].rcq.wait(1)[0].ok and ends[1].mr.read(18) == b"no address by hand"
            for end in ends:
                end.qp.to_reset()
        counts = [card.neighbours.counts for card in cards]
        assert counts[0]["asked"] == 2 and counts[1]["asked"] == 0 and counts[1]["arp_answers"] == counts[1]["nd_answers"] == 1


def info_mac(end):
    return "02:00:00:00:00:02" if end.context.mac.endswith("1") else "02:00:00:00:00:01"


def test_rtr_without_a_neighbour_leaves_the_queue_pair_alone(cards):
    end = make_end(cards[0])
    attr = QPAttr(dest_qp_num=1, dest_generation=0, ah_attr=AHAttr(GlobalRoute(GID("10.0.0.99"))))
    cards[0].neighbours.timeout_ns = 50_000
    for state in (IBV_QPS_RESET, IBV_QPS_INIT):
        with pytest.raises(NeighbourError, match="10.0.0.99"):
            end.qp.to_rtr(attr)
        assert end.qp.qp_state == state
        if state == IBV_QPS_RESET:
            end.qp.to_init()
    attr.ah_attr.gr.dgid = GID("10.0.0.2")
    end.qp.to_rts(attr)
    assert end.qp.qp_state == IBV_QPS_RTS and attr.ah_attr.mac is None      # the program's own is as it was


def test_ping(cards):
    for ip in ("10.0.0.2", "fd00::2"):
        short, long = (cards[0].neighbours.ping(ip, bytes(n)) for n in (1, 1000))
        assert 1000 < short < long < 20_000
    cards[1].neighbours.ip = None
    with pytest.raises(NeighbourError, match="10.0.0.2 .*did not answer an echo request of 48 bytes within 20 us"):
        cards[0].neighbours.ping("10.0.0.2", timeout_ns=20_000)


def test_a_closed_card_answers_no_more(backend):
    with open_cards(backend, 2, cfg="tiny") as (a, b):
        assert a.neighbours.resolve("10.0.0.2") == b.mac
        b.close()
        a.neighbours.forget("10.0.0.2")
        with pytest.raises(NeighbourError):
            a.neighbours.resolve("10.0.0.2", timeout_ns=50_000)


def test_a_port_without_addresses(backend):
    """It neither answers nor asks, and all frames are the program's."""
    with open_device(backend, ip=None) as ctx:
        assert ctx.ip is None and ctx.neighbours.frames() == []
        with pytest.raises(UsageError, match="this port has none; open the Context with ip="):
            ctx.neighbours.resolve("10.0.0.2")


def test_traffic_beside_it(cards):
    """RDMA and pings at once: none disturbs the other."""
    a, b = ends = [make_end(card) for card in cards]
    connect(*ends)
    for i in range(8):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(0, 4096)], timeout_ns=1_000_000))
    for i in range(8):
        a.qp.post_send(SendWR(i, sg=[a.mr.sge(0, 4000)]))
        cards[i % 2].neighbours.ping(f"10.0.0.{2 - i % 2}")
    assert [wc.ok for wc in b.rcq.wait(8)] == [True] * 8
    assert add_qp(a).qp_state == IBV_QPS_RESET


def test_checksum_is_the_internet_checksum(rng):
    from scapy.utils import checksum
    for _ in range(300):
        data = rng.randbytes(rng.randrange(1, 100))
        assert packets.checksum(data) == checksum(data)
