"""Two cards and congestion between them: marks, notifications not too often, a rate that falls and recovers."""

from collections import Counter
from itertools import pairwise

from sim.network import Network

from .pair import BOTH, CFG, Pair, Tap

INTERVAL_NS = 20_000
MARKED, CAPABLE = 3, 2      # traffic classes: as if a switch had marked it; ECT(0)
CNP = 1                     # low bits of the opcode


def cnps(tap, qpn=None):
    return [(time, p) for time, p in tap.packets() if p.kind == "cnp" and qpn in (None, p.qpn)]


def bottleneck(seed, rate):
    """From card 0 to card 1 through a switch whose cable to card 1 has that rate, and which marks."""
    net = Network(seed)
    a, b, switch = net.port(), net.port(), net.switch(latency_ns=100)
    line = CFG.data_width * CFG.clock_hz
    net.link(a, switch, rate=line, delay_ns=500)
    net.link(switch, b, delay_ns=500, there={"rate": rate, "ecn": (4000, 20_000, .3), "record": True}, back={"rate": line})
    switch.static("02:00:00:00:00:01", a), switch.static("02:00:00:00:00:02", b)
    return net


@BOTH
def test_at_most_one_notification_in_an_interval(make, seed):
    """Of each queue pair, however many of its packets are marked; both ends count them; of the unmarked there are none."""
    with Pair(make, seed) as pair:
        near, far = pair.ends
        for end in pair.ends:
            end.card.reg_write("CNP_INTERVAL", INTERVAL_NS)
            end.card.reg_write("DCQCN_RATE_MIN", 4000)
        links = [pair.link(traffic_class=MARKED), pair.link(traffic_class=MARKED, type="uc", address="ip6"),
                 pair.link(traffic_class=MARKED, address="vlan4")]
        plain = pair.link(traffic_class=CAPABLE)
        tap = Tap(far.port.out)
        streams = {(link, 0): [(pair.rng.choice(("send", "write")), 250, {}) for _ in range(150)] for link in (*links, plain)}
        pair.play(streams, window=64)
        pair.settle(), pair.verify(), pair.balance()
        found = cnps(tap)
        assert {p.qpn for _, p in found} == {link.qpns[0] for link in links}
        for link in links:
            times = [time for time, _ in cnps(tap, link.qpns[0])]
            gaps = [b - a for a, b in pairwise(times)]
            assert len(times) >= 4 and min(gaps) > INTERVAL_NS - 500
            assert len(times) <= (times[-1] - times[0]) / INTERVAL_NS + 2
        assert far.count("cnp_due") == 450 and far.count("cnp_sent") == len(found) == near.count("cnp_received")
        assert near.count("frames_consumed") == len(found) and far.count("marks_lost") == 0
        assert near.count("cnp_due") == near.count("cnp_sent") == far.count("cnp_received") == 0
        for time, frame in tap.frames:
            if frame[14] == 0x45 and frame[42] == 0x81 or frame[12:14] == b"\x86\xdd" and frame[62] == 0x81:
                at = 42 if frame[14] == 0x45 else 62
                assert frame[at + 4] & 0x40 and frame[at + 12:at + 28] == bytes(16)       # BECN, and 16 bytes of nothing
                assert (frame[15] if at == 42 else (frame[14] << 4 | frame[15] >> 4) & 0xFF) == 48 << 2


@BOTH
def test_switched_off_nobody_is_told(make, seed):
    """With tx disabled no frame is begun, and so no notification; it goes out when sending is enabled."""
    with Pair(make, seed) as pair:
        near, far = pair.ends
        far.card.enable(hold=True, tx=False)
        link = pair.link(traffic_class=MARKED)
        made = [pair.post(link, 0, "send", 100) for _ in range(5)]
        pair.all_over(made)
        pair.run(10_000)
        assert far.port.out.frames == 0 and far.count("cnp_due") == 5
        far.card.enable(hold=True)
        pair.settle()
        assert near.count("cnp_received") == 1


@BOTH
def test_the_sender_slows_down_and_recovers(make, seed):
    """Through a cable of a quarter of the rate, no frame is lost and the queue stays short; then all of the rate comes back."""
    rate = CFG.data_width * CFG.clock_hz // 4
    with Pair(make, seed, net=bottleneck(seed, rate)) as pair:
        near, far = pair.ends
        for end in pair.ends:
            for name, value in {"CNP_INTERVAL": 25_000, "DCQCN_LINE_RATE": 8000, "DCQCN_INCREASE_TIMER": 6, "DCQCN_ALPHA_TIMER": 6,
                                    "DCQCN_G": 64, "DCQCN_RATE_AI": 100, "DCQCN_RATE_HAI": 400, "DCQCN_BYTE_COUNTER": 0}.items():
                end.card.reg_write(name, value)
        link = pair.link(traffic_class=CAPABLE)
        tap, back, queue = Tap(near.port.out), Tap(far.port.out), far.port.into.queue

        def send_for(ns):
            """Write one place over and over; the beginning."""
            began = pair.world.now_ns
            while pair.world.now_ns < began + ns:
                if pair.room(link, 0, "write") > 8:
                    for i in range(4):
                        pair.post(link, 0, "write", 8192, bell=i == 3, to=64, at=0)
                    far.expected.clear()
                pair.run(5000)
            return began

        def gigabits(begin, end):
            return sum(len(frame) + 24 for time, frame in tap.frames if begin <= time < end) * 8 / (end - begin)

        line, most = 4 * rate / 1e9, rate / 1e9
        began = send_for(1_500_000)
        first, later = gigabits(began + 3000, began + 25_000), gigabits(began + 300_000, began + 1_500_000)
        least = min(gigabits(began + t, began + t + 100_000) for t in range(0, 1_400_000, 100_000))
        print(f"{first:.2f} Gb/s at first, {later:.2f} later, {least:.2f} at least; {len(cnps(back))} CNPs, queue {queue.most}")
        assert first > 0.85 * line and 0.4 * most < later < 1.2 * most and least < 0.5 * most
        pair.settle(20_000_000)
        assert near.count("cnp_received") == far.count("cnp_sent") == len(cnps(back)) > 10
        assert queue.marked == far.count("cnp_due") > 0
        assert sum(lane.dropped.total() for lane in pair.net.lanes) == 0 and far.count("frames_placed") == near.port.out.frames

        # the bottleneck is gone: nothing is marked any more
        far.port.into.rate = 4 * rate
        far.port.into._wire_ps.clear()
        told, began = near.count("cnp_received"), send_for(1_300_000)
        recovered = gigabits(began + 1_100_000, began + 1_300_000)
        print(f"{recovered:.2f} Gb/s without it")
        assert recovered > 0.9 * line and near.count("cnp_received") - told < 5


@BOTH
def test_only_the_queue_pair_that_was_told_slows_down(make, seed):
    with Pair(make, seed) as pair:
        near = pair.ends[0]
        for end in pair.ends:
            for name, value in {"CNP_INTERVAL": 4000, "DCQCN_LINE_RATE": 8000, "DCQCN_RATE_MIN": 500}.items():
                end.card.reg_write(name, value)
        marked, plain = pair.link(traffic_class=MARKED), pair.link(traffic_class=CAPABLE)
        tap = Tap(near.port.out)
        made = [pair.post(link, 0, "write", 40_000) for link in (marked, plain)]
        pair.all_over([made[1]])
        assert not made[0].over
        sent = Counter(packet.qpn for _, packet in tap.packets())
        assert sent[plain.qpns[1]] == 157 and sent[marked.qpns[1]] < 100
        pair.all_over([made[0]], 5_000_000)
        pair.settle(), pair.verify(), pair.balance()


@BOTH
def test_a_deadline_while_paced(make, seed):
    """A queue pair that may hardly send: its sends end in time, and it keeps no others from sending."""
    with Pair(make, seed, strict=False) as pair:
        near = pair.ends[0]
        for end in pair.ends:
            for name, value in {"CNP_INTERVAL": 4000, "DCQCN_LINE_RATE": 8000, "DCQCN_RATE_MIN": 50, "DCQCN_G": 512}.items():
                end.card.reg_write(name, value)
        marked, plain = pair.link(traffic_class=MARKED), pair.link()
        slow = pair.post(marked, 0, "write", 30_000)
        pair.until(lambda: near.count("cnp_received") > 5, 3_000_000)
        assert not slow.over
        began, after = near.now_ns, (30_000, 200_000, 215_000, 500_000)
        made = [pair.post(marked, 0, "write", 50_000, deadline_ns=began + ns) for ns in after]
        good = [pair.post(plain, 0, "send", 500) for _ in range(50)]
        pair.all_over(good)
        assert all(m.sent.status == m.received.status == "success" for m in good) and not slow.over
        pair.until(lambda: slow.over and all(m.over for m in made), 30_000_000, 10_000)
        start = slow.sent.time_ns
        for m, ns in zip(made, after):
            late = m.sent.time_ns - max(began + ns, start)
            assert m.sent.cause == "timeout" and 0 <= late < 64_000 + 5000, (m, late)
            start = m.sent.time_ns
        pair.settle(60_000_000), pair.verify(), pair.balance()


@BOTH
def test_more_queue_pairs_are_told_than_there_are_rows(make, seed):
    """Rows for two, and one for all others: each of five slows down, those that share too, and one that isn't told does not."""
    cfg = CFG.with_(congested_qps=4)
    assert cfg.dcqcn_pool
    with Pair(make, seed, cfg) as pair:
        for end in pair.ends:
            for name, value in {"CNP_INTERVAL": 4000, "DCQCN_LINE_RATE": 8000, "DCQCN_RATE_MIN": 500}.items():
                end.card.reg_write(name, value)
        marked, plain = [pair.link(traffic_class=MARKED) for _ in range(5)], pair.link(traffic_class=CAPABLE)
        tap = Tap(pair.ends[0].port.out)
        made = [pair.post(link, 0, "write", 40_000) for link in (*marked, plain)]
        pair.all_over([made[-1]])
        assert not any(m.over for m in made[:-1])
        sent = Counter(packet.qpn for _, packet in tap.packets())
        print([sent[link.qpns[1]] for link in (*marked, plain)])
        assert sent[plain.qpns[1]] == 157 and all(sent[link.qpns[1]] < 100 for link in marked)
        pair.all_over(made[:-1], 20_000_000)
        pair.settle(), pair.verify(), pair.balance()
