"""Arrival maps on a whole card: what is noted is what was placed, when the completion is visible, and nothing else."""

import pytest

from host_driver.card import ArrivalMap, CardError, QueueFull
from sim.frames import REMOTE, uc_send, uc_write, xp_send, xp_write
from .rig import FAST, SLOT, WINDOW, Rig, ends

pytestmark = pytest.mark.rtl

MTU, PIECES, ROWS = 256, 16, 4
SIZE = PIECES * MTU         # of a message that fills its row
BESIDE = 64                 # bytes before and behind a map that are looked at too


@pytest.fixture
def rig(seed):
    with Rig(seed=seed) as rig:
        yield rig


def mapped(rig, qpn, pieces=PIECES, rows=ROWS, **fields):
    """A QP with an arrival map that is aligned to no more than it has to be, between bytes that must stay as they are."""
    place = rig.dev.alloc(BESIDE + pieces * rows + BESIDE)
    rig.dev.write(place, bytes([0x5A]) * (2 * BESIDE + pieces * rows))
    where = ArrivalMap(place + BESIDE, pieces, rows)
    rig.qp(qpn, arrival_map=where, **{"mtu": MTU, **fields})
    return where


def rows_of(rig, where):
    """The rows of a map, after a look at what lies beside it."""
    data = rig.dev.read(where.addr - BESIDE, where.size + 2 * BESIDE)
    assert data[:BESIDE] == data[-BESIDE:] == bytes([0x5A]) * BESIDE
    return [data[BESIDE + r * where.pieces:BESIDE + (r + 1) * where.pieces] for r in range(where.rows)]


def post(rig, qpn, count=1, length=SIZE, **fields):
    """Receives of SIZE bytes side by side in the QP's window."""
    for _ in range(count):
        index = rig.card._qp(qpn).posted
        rig.card.post_receive(qpn, rig.va(qpn) + index * SIZE % WINDOW, length, rig.key(qpn), **fields)
    return index


def buffer(rig, qpn, index):
    return rig.dev.read(rig.memory[qpn] + index * SIZE % WINDOW, SIZE)


def packets(rig, qpn, index, data, **fields):
    """The packets of a message, by piece."""
    return {n: rig.message(qpn, index, data[n * MTU:(n + 1) * MTU], msg_len=len(data), offset=n * MTU, **fields)
            for n in range(-(-len(data) // MTU))}


def clean(index):
    return bytes([~index & 0xFF]) * PIECES


@pytest.mark.parametrize("bus", [{}, dict(write_latency=(1, 300), w_pause=.3, aw_pause=.3, visibility="random")], ids=["fast", "slow-bus"])
def test_what_arrived_of_lossy_messages(rig, rng, bus):
    """Lost, doubled and shuffled packets. What the map shows when a completion is there is what was sent, and what it shows is in
    memory: asked at once, with writes still under way for the messages behind."""
    where, beside = mapped(rig, 1), mapped(rig, 2)
    rig.dev.set(**bus)
    total, sent, done = 40, {}, []
    for first in range(0, total, ROWS):
        post(rig, 1, ROWS, timeout_ns=300_000)
        for index in range(first, first + ROWS):
            data = rng.randbytes(rng.choice((SIZE, SIZE, rng.randrange(1, SIZE))))
            frames = packets(rig, 1, index, data)
            lost = set(rng.sample(list(frames), rng.randrange(len(frames) + 1))) if index % 3 else set()
            order = [n for n in frames if n not in lost]
            order += rng.sample(order, len(order) // 4) if lost else []     # a complete message's doubles would be late
            rng.shuffle(order)
            sent[index] = data, [n not in lost for n in frames]
            rig.send(*(frames[n] for n in order))
        while len(done) < first + ROWS:
            rig.dev.run(20)
            for c in rig.card.poll(0):
                data, there = sent[c.index]
                assert rig.card.arrived(1, c.index, len(data)) == there, c
                assert rig.card.arrived(1, c.index) == there + [False] * (PIECES - len(there))
                memory = buffer(rig, 1, c.index)
                assert all(memory[n * MTU:(n + 1) * MTU][:len(data) - n * MTU] == data[n * MTU:(n + 1) * MTU]
                           for n, yes in enumerate(there) if yes)
                assert (c.status == "success") == all(there)
                done.append(c)
    assert [c.index for c in done] == list(range(total)) and {c.cause for c in done} == {"complete", "preempted", "timeout"}
    rows_of(rig, where)
    assert rows_of(rig, beside) == [b"\x5a" * PIECES] * ROWS and rig.dev.faults == []


def test_the_byte_is_the_sequences_in_every_kind_of_packet(rig, rng):
    """It is taken out of the frame, so its place depends on the headers before the payload: IPv4 and 6, tagged or not, with RETH and
    immediate or without. And it goes round after 256 messages."""
    rig.card.set_peer(1, REMOTE[2])
    cases = [(tag, kind) for tag in (None, 0xABC) for kind in ("send", "send_imm", "write_imm")]
    for qpn, address, count in ((1, {}, 260), (2, {"src": REMOTE[2]}, 24)):
        where = mapped(rig, qpn, peer=int(bool(address)))
        expected = rows_of(rig, where)
        for seq in range(count):
            post(rig, qpn)
            tag, kind = cases[seq % len(cases)]
            piece, data = rng.randrange(PIECES), rng.randbytes(rng.randrange(1, MTU + 1))
            fields = dict(seq=seq, offset=piece * MTU, msg_len=SIZE + 9, psn=rng.randrange(1 << 24), tag=rng.randrange(1 << 16),
                          imm=None if kind == "send" else rng.randrange(1 << 32), **address)
            if tag is not None:
                fields["vlan"] = tag
            frame = xp_write(qpn, data, rig.va(qpn), rig.key(qpn), **fields) if kind == "write_imm" else xp_send(qpn, data, **fields)
            assert rig.exchange(frame) == ["placed"]
            expected[seq % ROWS] = clean(seq)[:piece] + bytes([seq & 0xFF]) + clean(seq)[piece + 1:]
            assert rows_of(rig, where) == expected, (seq, tag, kind)
            rig.card.poll(0)        # the one before was preempted


def test_what_is_refused_is_not_noted(rig, rng):
    """Late, of another life, damaged, out of bounds, without a receive, of another length: no byte in the map."""
    where = mapped(rig, 1, generation=5)
    post(rig, 1, length=4 * MTU, timeout_ns=20_000)
    data = rng.randbytes(SIZE)
    first = packets(rig, 1, 0, data)
    assert rig.exchange(first[1]) == ["placed"]
    wanted = [clean(0)[:1] + b"\0" + clean(0)[2:]] + [b"\x5a" * PIECES] * (ROWS - 1)
    assert rows_of(rig, where) == wanted
    bad = [(packets(rig, 1, 0, data, generation=6)[2], "generation"), (packets(rig, 1, 0, data, icrc_xor=1)[2], "icrc"),
           (packets(rig, 1, 0, data, src="10.9.9.9")[2], "source"), (first[7], "bounds"),
           (packets(rig, 1, 1, data)[2], "no_receive"), (packets(rig, 1, 0, data[:-5])[2], "length"),
           (xp_write(1, b"w", rig.va(1), 0xBAD, imm=1, seq=0, msg_len=SIZE, offset=2 * MTU, generation=5), "rkey")]
    frames, reasons = zip(*bad)
    assert rig.exchange(*frames) == list(reasons) and rows_of(rig, where) == wanted
    done = rig.card.wait(0, limit_cycles=10_000)
    assert ends(done) == [(0, "partial", "timeout")] and rig.card.arrived(1, 0, SIZE) == [False, True] + [False] * 14
    assert rig.exchange(*first.values()) == ["late"] * PIECES and rows_of(rig, where) == wanted
    rig.card.destroy_qp(1)
    assert rig.exchange(first[3]) == ["qpn"] and rows_of(rig, where) == wanted


def test_what_carries_no_piece_is_not_noted(rig):
    """Plain WRITEs, UC packets, and packets without a payload belong to no piece of a message; what lies beyond a row is placed but
    not noted."""
    where = mapped(rig, 1, pieces=4)
    post(rig, 1, 4)
    row = lambda index: bytes([~index & 0xFF]) * 4
    wiped = [row(i) for i in range(4)]
    assert rows_of(rig, where) == wiped
    quiet = [rig.write(1, b"plain"), uc_write(1, b"uc", rig.va(1), rig.key(1)), uc_send(1, b"uc send"),
             rig.message(1, 1, b"", msg_len=SIZE, offset=MTU), rig.message(1, 1, b"", msg_len=SIZE, offset=0)]
    assert rig.exchange(*quiet) == ["placed"] * 5 and rows_of(rig, where) == wiped
    far = [rig.message(1, 2, b"x" * MTU, msg_len=SIZE, offset=n * MTU) for n in range(4, PIECES)]
    assert rig.exchange(*far) == ["placed"] * 12 and rows_of(rig, where) == wiped
    # pieces that begin between two multiples of the MTU belong to the one before; the last byte of a row is still one
    assert rig.exchange(rig.message(1, 3, b"x" * MTU, msg_len=SIZE, offset=4 * MTU - 1)) == ["placed"]
    assert rows_of(rig, where) == wiped[:3] + [row(3)[:3] + b"\3"]
    assert rig.exchange(rig.message(1, 3, b"x", msg_len=SIZE, offset=MTU - 1)) == ["placed"]
    assert rows_of(rig, where) == wiped[:3] + [b"\3" + row(3)[1:3] + b"\3"]


@pytest.mark.parametrize("error", ["slverr", "decerr"])
def test_a_refused_write_of_the_map(rig, error, rng):
    """It is an error of the message whose packet it notes, as if the payload had been refused, also if another packet completes it."""
    where, other = mapped(rig, 1), mapped(rig, 2)
    post(rig, 1, 4), post(rig, 2, 4)
    data = rng.randbytes(4 * MTU)
    rig.dev.inject(where.row(1) + 2, 1, error, on="write", count=1)
    rig.dev.inject(where.row(3) + 3, 1, error, on="write", count=1)
    frames = [packets(rig, qpn, index, data)[n] for index in range(4) for n in range(4) for qpn in (1, 2)]
    assert rig.exchange(*frames) == ["placed"] * 32
    done = rig.card.poll(0)
    assert ends(done, 1) == [(0, "success", "complete"), (1, "error", "complete"), (2, "success", "complete"), (3, "error", "complete")]
    assert ends(done, 2) == [(i, "success", "complete") for i in range(4)]
    assert rig.card.arrived(1, 1, len(data)) == [True, True, False, True] and rig.card.arrived(1, 0, len(data)) == [True] * 4
    assert all(rig.card.arrived(2, i, len(data)) == [True] * 4 for i in range(4))
    assert all(buffer(rig, 1, i)[:len(data)] == data for i in range(4))
    assert rig.card.counter("write_errors") == 2
    rows_of(rig, where), rows_of(rig, other)


def test_lives(rig, rng):
    """A new life has its own map or none; what was under way for the old one still goes to the old map, and nothing later."""
    data = rng.randbytes(SIZE)
    for life in range(6):
        where = mapped(rig, 1, generation=life)
        post(rig, 1, ROWS)
        rig.send(*(f for i in range(ROWS) for f in packets(rig, 1, i, data).values()))
        rig.dev.run(rng.randrange(2000))
        if life % 3 == 0:
            rig.qp(1, mtu=MTU, generation=life + 100)       # without one
            after = rows_of(rig, where)
            post(rig, 1)
            rig.settle(), rig.card.poll(0)
            assert rig.exchange(*packets(rig, 1, 0, data, generation=life + 100).values()) == ["placed"] * PIECES
            rig.card.poll(0)
            with pytest.raises(CardError, match="no arrival map"):
                rig.card.arrived(1, 0)
        elif life % 3 == 1:
            rig.card.destroy_qp(1)
            after = rows_of(rig, where)
        else:
            rig.card.flush_qp(1)
            done = rig.card.poll(0)
            assert [c.index for c in done] == list(range(ROWS))
            assert all(rig.card.arrived(1, c.index) == [True] * PIECES for c in done if c.status == "success")
            after = rows_of(rig, where)
        rig.settle()
        assert rows_of(rig, where) == after and rig.dev.faults == []
        rig.card.poll(0)


def test_a_row_for_each_uncompleted_receive(rig):
    mapped(rig, 1, rows=2)
    post(rig, 1, 2)
    with pytest.raises(QueueFull, match="2 uncompleted receives, and its arrival map"):
        post(rig, 1)
    assert rig.exchange(rig.message(1, 0, b"m")) == ["placed"] and len(rig.card.poll(0)) == 1
    assert rig.card.arrived(1, 0, 1) == [True] and rig.card.arrived(1, 0, 0) == []
    assert post(rig, 1) == 2


def test_a_card_without(seed):
    with Rig(FAST, seed=seed) as rig:
        with pytest.raises(CardError, match="this card has none; generate it with arrival_map=on"):
            mapped(rig, 1)
        rig.qp(1, mtu=MTU)
        post(rig, 1)
        assert rig.exchange(*packets(rig, 1, 0, bytes(SIZE)).values()) == ["placed"] * PIECES
