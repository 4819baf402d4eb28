"""The model, rule by rule: what each packet does to queue pair, memory, completions and counters."""

import pytest

from sim.frames import REMOTE, build, cnp, uc_send, uc_write, xp_answer, xp_read, xp_send, xp_write
from sim.models.memory import Memory, Region, spans
from sim.models.nic import COUNTERS, ArrivalMap, NicModel, ceil_ticks

KEY, OTHER_PD, NO_ACCESS, VA = 7, 8, 9, 0x10000
QP = 17
EVERY = frozenset(("local_write", "remote_write"))


def make(receives=(), kind="xp", most_open=None, **qp):
    """A card with one queue pair whose receives are (length, timeout in ticks), buffers 4 KiB apart."""
    model = NicModel(regions=[Region(KEY, VA, 0x10000, EVERY, 1), Region(OTHER_PD, 0x80000, 0x1000, EVERY, 2),
                              Region(NO_ACCESS, 0x90000, 0x1000, frozenset(("remote_read",)), 1)], most_open=most_open)
    model.add_qp(QP, **dict(kind=kind, pd=1, generation=3) | qp)
    for i, (length, timeout) in enumerate(receives):
        model.post(QP, VA + 0x1000 * i, length, KEY, timeout)
    return model


def send(payload=b"data", **fields):
    return xp_send(QP, payload, **dict(generation=3) | fields)


def write(payload=b"data", va=VA, key=KEY, **fields):
    return xp_write(QP, payload, va, key, **dict(generation=3) | fields)


def ends(model):
    return [(c.index, c.status, c.cause) for c in model.completions]


def refused(model, frame, reason, now=0):
    before = model.counters
    verdict = model.frame(frame, now)
    assert (verdict.verdict, verdict.reason) == ("dropped", reason)
    assert model.counters[f"drop_{reason}"] == before[f"drop_{reason}"] + 1
    assert model.counters["frames_placed"] == before["frames_placed"]


# -- placement and success ------------------------------------------------------------------------------

def test_send():
    model = make([(4096, 0)])
    verdict = model.frame(send(b"hello", tag=5, imm=6), 640)
    assert (verdict.verdict, verdict.qpn, verdict.bytes) == ("placed", QP, 5)
    assert model.memory.read(VA, 6) == b"hello\0"
    c, = model.completions
    assert (c.qpn, c.index, c.opcode, c.status, c.cause) == (QP, 0, "send_imm", "success", "complete")
    assert (c.byte_len, c.msg_len, c.imm, c.tag, c.time) == (5, 5, 6, 5, 640)
    assert model.counters == dict.fromkeys(COUNTERS, 0) | {"frames_placed": 1, "placed_bytes": 5}


def test_pieces_out_of_order():
    model = make([(4096, 0)])
    for offset in (20, 0, 10):
        assert not model.completions
        model.frame(send(bytes([offset] * 10), msg_len=30, offset=offset), 0)
    assert ends(model) == [(0, "success", "complete")]
    assert model.memory.read(VA, 30) == b"\0" * 10 + b"\x0a" * 10 + b"\x14" * 10
    assert model.completions[0].imm is None


def test_duplicate_with_loss_is_no_success():
    model = make([(4096, 100)])
    for offset in (0, 0, 20):
        model.frame(send(bytes(10), msg_len=30, offset=offset), 0)
    assert not model.completions
    model.advance(100 * 64)
    assert ends(model) == [(0, "partial", "timeout")]
    assert model.completions[0].byte_len == 30


def test_empty_message_completes_without_memory():
    model = NicModel()
    model.add_qp(QP, pd=1, generation=3)
    model.post(QP, 0, 0, 12345)
    assert model.frame(send(b""), 0).bytes == 0
    assert ends(model) == [(0, "success", "complete")]


def test_plain_write_completes_nothing():
    model = make([(4096, 0)])
    assert model.frame(write(b"abc", VA + 3), 0).verdict == "placed"
    assert model.memory.read(VA, 7) == b"\0\0\0abc\0"
    assert not model.completions
    assert make().frame(write(b"abc"), 0).verdict == "placed"       # no receive needed


def test_write_with_immediate_takes_a_receive():
    model = make([(4, 0), (4, 0)])
    model.frame(write(bytes(100), imm=1), 0)        # longer than the posted buffer: that isn't where it goes
    c, = model.completions
    assert (c.opcode, c.imm, c.byte_len) == ("write_imm", 1, 100)


def test_congestion_counts_only_when_placed():
    model = make([(4096, 0)])
    model.frame(send(tos=3), 0)
    refused(model, send(tos=3), "late")
    assert model.counters["cnp_due"] == 1


def test_arrival_map():
    model = make([(4096, 0)] * 3, mtu=256, arrivals=ArrivalMap(4, 2))
    rows = lambda: [model.qps[QP].arrivals.data[i:i + 4].hex() for i in (0, 4)]
    assert rows() == ["fdfdfdfd", "fefefefe"]       # of receives 2 and 1: the third took the first one's row
    model.qps[QP].arrivals.wipe(0)
    piece = lambda seq, n, size=256, **more: model.frame(send(bytes(size), seq=seq, msg_len=2000, offset=256 * n, **more), 0).verdict
    assert [piece(0, 1), piece(0, 3), piece(0, 4), piece(0, 0, 0)] == ["placed"] * 4       # beyond the row; without a payload
    assert rows() == ["ff00ff00", "fefefefe"]
    assert [piece(1, 2), piece(0, 2), piece(1, 3, tver=1), piece(1, 3, 257)] == ["placed"] + ["dropped"] * 3
    model.frame(write(), 0), model.frame(uc_send(QP, b"uc"), 0)
    assert rows() == ["ff00ff00", "fefe01fe"]


# -- message order --------------------------------------------------------------------------------------

def test_late():
    model = make([(4096, 0)] * 2)
    model.frame(send(), 0)
    refused(model, send(), "late")
    refused(model, send(seq=0xFFFFFFFF), "late")


def test_no_receive():
    model = make([(4096, 0)])
    refused(model, send(seq=1), "no_receive")
    refused(model, send(seq=0x7FFFFFFF), "no_receive")
    assert not model.completions and model.frame(send(), 0).verdict == "placed"


def test_jump_completes_what_was_open_and_what_lies_between():
    model = make([(4096, 0)] * 4)
    model.frame(send(b"ab", msg_len=4, tag=9), 10)
    model.frame(send(b"cd", seq=3), 20)
    assert ends(model) == [(0, "partial", "preempted"), (1, "partial", "preempted"), (2, "partial", "preempted"),
                           (3, "success", "complete")]
    first, empty = model.completions[:2]
    assert (first.opcode, first.byte_len, first.msg_len, first.tag) == ("send", 2, 4, 9)
    assert (empty.opcode, empty.byte_len, empty.msg_len, empty.imm, empty.tag) == (None, 0, 0, None, 0)
    assert model.counters["preempted"] == 1
    assert model.memory.read(VA + 0x3000, 2) == b"cd"
    refused(model, send(seq=2), "late")


def test_refused_by_memory_has_moved_head():
    model = make([(4096, 0), (2, 0)])
    refused(model, send(seq=1), "bounds")
    assert ends(model) == [(0, "partial", "preempted")]
    refused(model, send(), "late")
    assert model.frame(send(b"ab", seq=1), 0).verdict == "placed"


def test_refused_by_queue_pair_moves_nothing():
    model = make([(4096, 0)] * 2)
    refused(model, send(seq=1, generation=4), "generation")
    assert not model.completions and model.frame(send(), 0).verdict == "placed"


def test_another_length_of_the_open_message():
    model = make([(4096, 0)])
    model.frame(send(b"ab", msg_len=4), 0)
    refused(model, send(b"cd", msg_len=5, offset=2), "length")
    model.frame(send(b"cd", msg_len=4, offset=2), 0)
    assert ends(model) == [(0, "success", "complete")]


def test_refused_opener_fixes_no_length():
    model = make([(4, 0)])
    refused(model, send(b"abcd", msg_len=8, offset=4), "bounds")
    model.frame(send(b"abcd"), 0)
    assert ends(model) == [(0, "success", "complete")]


def test_standard_messages_take_receives_in_turn():
    model = make([(4096, 0), (2, 0), (4096, 0)], kind="uc")
    model.frame(uc_send(QP, b"abcd", imm=4), 0)
    refused(model, uc_send(QP, b"abcd"), "bounds")          # touched receive 1
    model.frame(uc_write(QP, b"ef", VA, KEY, imm=5), 0)     # so this one goes to 2
    assert ends(model) == [(0, "success", "complete"), (1, "partial", "preempted"), (2, "success", "complete")]
    refused(model, uc_send(QP, b"abcd"), "no_receive")


def test_standard_message_after_a_part_preempts_it():
    model = make([(4096, 0)] * 2)
    model.frame(send(b"ab", msg_len=4), 0)
    model.frame(uc_send(QP, b"xy"), 0)
    assert ends(model) == [(0, "partial", "preempted"), (1, "success", "complete")]


# -- deadlines ------------------------------------------------------------------------------------------

def test_ticks_round_up():
    assert [ceil_ticks(ns) for ns in (0, 1, 64, 65)] == [0, 1, 1, 2]


def test_deadline_ends_the_head_and_starts_the_next():
    model = make([(4096, 10), (4096, 5), (4096, 0), (4096, 1)])
    model.advance(10 * 64 - 1)
    assert not model.completions
    model.advance(1 << 40)
    assert [(c.index, c.cause, c.time) for c in model.completions] == [(0, "timeout", 640), (1, "timeout", 960)]
    assert model.counters["deadlines"] == 2
    assert model.next_deadline() is None


def test_deadline_is_looked_at_before_the_packet():
    early, late = make([(4096, 10)]), make([(4096, 10)])
    assert early.frame(send(), 639).verdict == "placed"
    refused(late, send(), "late", 640)
    assert ends(late) == [(0, "partial", "timeout")]


def test_success_starts_the_next_clock():
    model = make([(4096, 10), (4096, 10)])
    model.frame(send(), 500)
    assert model.next_deadline() == (500 // 64 + 10) * 64


def test_preemption_starts_the_clock_of_the_new_head():
    model = make([(4096, 0), (4096, 1), (4096, 10)])
    model.frame(send(b"a", msg_len=2, seq=2), 640)
    assert model.next_deadline() == 1280


def test_clock_starts_when_posted():
    model = make()
    model.post(QP, VA, 4096, KEY, 10, now=6400)
    assert model.next_deadline() == 7040


def test_absolute_deadline():
    model = make()
    model.post(QP, VA, 4096, KEY, 100, absolute=True)
    model.post(QP, VA, 4096, KEY, 50, absolute=True)
    model.advance(10000)
    assert [(c.index, c.time) for c in model.completions] == [(0, 6400), (1, 6400)]


# -- memory ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("key, va, reason", [
    (99, VA, "rkey"), (OTHER_PD, 0x80000, "pd"), (NO_ACCESS, 0x90000, "access"), (OTHER_PD, 0, "pd"), (NO_ACCESS, 0, "access"),
    (KEY, VA - 1, "bounds"), (KEY, VA + 0xFFFD, "bounds"), (KEY, VA + 0x10000, "bounds"), (KEY, 0, "bounds"),
    (KEY, 2**64 - 2, "bounds"), (KEY, 2**64 - 4, "bounds")])
def test_write_refused(key, va, reason):
    model = make([(4096, 0)])
    refused(model, write(va=va, key=key), reason)
    refused(model, write(va=va, key=key, imm=1), reason)
    assert not any(model.region_bytes(KEY))
    assert model.frame(write(b"", va=va, key=key), 0).verdict == "placed"       # nothing to write, nothing to check


def test_last_bytes_of_a_region_and_of_the_address_space():
    model = make()
    assert model.frame(write(va=VA + 0xFFFC), 0).verdict == "placed"
    top = NicModel(regions=[Region(KEY, 2**64 - 8, 8, EVERY, 0)])
    top.add_qp(QP, generation=3)
    assert top.frame(write(va=2**64 - 4), 0).verdict == "placed"
    refused(top, write(va=2**64 - 3), "bounds")
    assert top.region_bytes(KEY) == b"\0\0\0\0data"


def test_send_beyond_the_posted_buffer():
    model = make([(6, 0)])
    model.frame(send(b"abcd", msg_len=8), 0)
    refused(model, send(b"efgh", msg_len=8, offset=4), "bounds")
    assert model.memory.read(VA, 8) == b"abcd\0\0\0\0"


def test_receive_whose_buffer_wraps():
    model = make()
    model.post(QP, 2**64 - 2, 4096, KEY)
    refused(model, send(), "bounds")


def test_shared_bytes():
    assert spans([(0, 10), (5, 10), (15, 5), (30, 1)]) == [(0, 15), (15, 20), (30, 31)]
    memory = Memory([(0, 10), (5, 10)])
    memory.write(4, b"abcd")
    assert memory.read(5, 3) == b"bcd"
    with pytest.raises(IndexError):
        memory.write(14, b"ab")


# -- queue pair -----------------------------------------------------------------------------------------

def test_checks_of_the_queue_pair_in_their_order():
    wrong = dict(generation=9, src="10.0.0.9", pkey=0x8001)
    assert make().frame(xp_send(18, b"", **wrong), 0).reason == "qpn"
    refused(make(mtu=256, state="init"), send(bytes(257), **wrong), "length")
    refused(make(state="init"), send(**wrong), "state")
    refused(make(state="error"), send(), "state")
    refused(make(state="free"), send(), "qpn")
    refused(make(kind="uc"), send(**wrong), "opcode")
    refused(make(), build(0x04, QP, **{k: v for k, v in wrong.items() if k != "generation"}), "opcode")
    refused(make(), send(**wrong), "pkey")
    del wrong["pkey"]
    refused(make(), send(**wrong), "source")
    del wrong["src"]
    refused(make(), send(**wrong), "generation")


@pytest.mark.parametrize("port, packet, right", [(0xFFFF, 0xFFFF, True), (0xFFFF, 0x7FFF, True), (0x7FFF, 0xFFFF, True),
                                                 (0x7FFF, 0x7FFF, False), (0xFFFF, 0xFFFE, False)])
def test_partition_keys(port, packet, right):
    model = make()
    model.pkey = port
    assert (model.frame(write(pkey=packet), 0).verdict == "placed") == right


def test_address_of_the_other_family_is_another_peer():
    refused(make(), send(src=REMOTE[2]), "source")
    refused(make(peer=REMOTE[2]), send(), "source")
    assert make(peer=REMOTE[2]).frame(write(src=REMOTE[2]), 0).verdict == "placed"


def test_notification():
    model = make()
    verdict = model.frame(cnp(QP), 0)
    assert (verdict.verdict, verdict.qpn, verdict.kind) == ("consumed", QP, "cnp")
    refused(model, cnp(QP, src="10.0.0.9"), "source")
    refused(model, cnp(18), "qpn")
    assert (model.counters["cnp_received"], model.counters["frames_consumed"]) == (1, 1)


def test_new_life():
    model = make([(4096, 10)] * 2)
    model.frame(send(), 0)
    model.add_qp(QP, pd=1, generation=4)
    refused(model, send(), "generation")
    refused(model, send(generation=4), "no_receive")
    model.advance(1 << 40)
    assert len(model.completions) == 1          # the old life's clock is gone


def test_passed():
    model = make()
    assert model.frame(bytes(60), 0).verdict == "passed"
    assert model.counters["frames_passed"] == 1


# -- READ -----------------------------------------------------------------------------------------------

def read(va=0x90000, length=100, key=NO_ACCESS, **fields):
    return xp_read(QP, va, key, length, **dict(generation=3, seq=5, tag=6) | fields)


def answer(payload=b"data", **fields):
    return xp_answer(QP, payload, **dict(generation=3) | fields)


def test_a_read_is_consumed_and_takes_no_receive():
    model, seen = make(), []
    model.on_read = lambda qp, p: seen.append((qp.number, p.va, p.rkey, p.read_len, p.seq, p.tag)) or True
    verdict = model.frame(read(), 0)
    assert (verdict.verdict, verdict.qpn, verdict.kind, verdict.bytes) == ("consumed", QP, "read", None)
    assert seen == [(QP, 0x90000, NO_ACCESS, 100, 5, 6)] and model.counters["frames_consumed"] == 1
    assert model.frame(read(length=(1 << 32) - 1, va=0, key=99), 0).verdict == "dropped"
    assert model.frame(read(length=0, va=0, key=99), 0).verdict == "consumed"      # of no bytes: no key is looked at


@pytest.mark.parametrize("fields, reason", [
    (dict(key=99), "rkey"), (dict(key=OTHER_PD), "pd"), (dict(key=KEY, va=VA), "access"), (dict(va=0x90000 - 1), "bounds"),
    (dict(length=0x1001), "bounds"), (dict(length=(1 << 32) - 1), "bounds"), (dict(va=(1 << 64) - 50), "bounds"),
    (dict(generation=4), "generation"), (dict(src="10.0.0.9"), "source"), (dict(pkey=5), "pkey")])
def test_a_read_refused(fields, reason):
    model = make()
    model.on_read = lambda qp, packet: pytest.fail("it was taken")
    refused(model, read(**fields), reason)


def test_a_read_for_which_there_is_no_room():
    model = make()
    model.on_read = lambda qp, packet: False
    refused(model, read(), "overflow")
    assert model.refused[QP] == {"overflow": 1}


def test_a_read_is_for_queue_pairs_of_our_own_type():
    refused(make(kind="uc"), read(), "opcode")
    refused(make(kind="uc"), answer(), "opcode")


def test_an_answer_is_placed_as_a_message():
    model = make([(4096, 0)] * 2)
    model.frame(answer(b"cd", seq=1, msg_len=4, offset=2, tag=8), 0)
    model.frame(answer(b"ab", seq=1, msg_len=4, offset=0, tag=8), 5)
    assert [(c.index, c.opcode, c.status, c.byte_len, c.imm, c.tag) for c in model.completions] == [
        (0, None, "partial", 0, None, 0), (1, "read", "success", 4, None, 8)]
    assert model.memory.read(VA + 0x1000, 4) == b"abcd"
    refused(model, answer(seq=1), "late")
    refused(model, answer(seq=2), "no_receive")


# -- a receive that can't be read, and the end of a queue pair ------------------------------------------

def test_a_receive_that_cannot_be_read():
    model = make([(4096, 0)] * 5)
    model.qps[QP].receives[0] = model.qps[QP].receives[2] = model.qps[QP].receives[3] = None
    model.rung(QP, 7)
    assert [(c.index, c.status, c.cause, c.time) for c in model.completions] == [(0, "error", "flushed", 7)]
    refused(model, send(seq=2), "no_receive", 9)
    assert ends(model)[1:] == [(1, "partial", "preempted"), (2, "error", "flushed"), (3, "error", "flushed")]
    assert model.frame(send(seq=4), 0).verdict == "placed"


def test_flush_completes_what_is_posted():
    model = make([(4096, 5), (4096, 5), (4096, 0)])
    model.frame(send(b"ab", msg_len=4), 0)
    model.flush(QP, 10)
    assert ends(model) == [(i, "error", "flushed") for i in range(3)]
    assert [c.byte_len for c in model.completions] == [2, 0, 0]
    model.advance(1 << 40)
    refused(model, send(), "state")
    assert len(model.completions) == 3
    model.remove_qp(QP)
    refused(model, send(), "qpn")


def test_a_clock_that_is_set_forward_ends_one_receive_at_a_time():
    model = make([(4096, 10)] * 3)
    model.advance(64 * 1000, jumped=True)
    assert [(c.index, c.time) for c in model.completions] == [(0, 64000)] and model.next_alarm() == 64 * 1010


def test_an_absolute_time_is_modulo_two_to_the_32():
    model, now = make(), (7 << 32) * 64
    model.post(QP, VA, 4096, KEY, 100, now=now, absolute=True)
    model.post(QP, VA, 4096, KEY, (1 << 32) - 100, now=now, absolute=True)
    model.advance(now + 64 * 99)
    assert not model.completions
    model.advance(now + 64 * 100)
    assert [(c.index, c.time - now) for c in model.completions] == [(0, 6400), (1, 6400)]


# -- a pool of open messages ------------------------------------------------------------------------------

def test_no_room_for_one_more_open_message():
    model = make([(4096, 0)] * 3, most_open=1)
    model.add_qp(QP + 1, kind="xp", pd=1, generation=3)
    for i in range(3):
        model.post(QP + 1, VA + 0x8000 + 0x1000 * i, 4096, KEY)
    other = lambda payload, **fields: xp_send(QP + 1, payload, **dict(generation=3, msg_len=8) | fields)
    assert model.frame(send(b"half", msg_len=8), 0).verdict == "placed"
    refused(model, other(b"half"), "overflow")
    assert model.frame(other(b"complete"), 0).verdict == "placed"              # the whole message needs no row
    assert model.frame(send(b"next", seq=1, msg_len=8), 0).verdict == "placed"  # nor does one that ends the message before it
    assert model.frame(send(b"rest", seq=1, msg_len=8, offset=4), 0).verdict == "placed"
    assert model.frame(other(b"half", seq=1), 0).verdict == "placed"
    refused(model, send(b"half", seq=2, msg_len=8), "overflow")
    model.flush(QP + 1, 0)
    assert model.frame(send(b"half", seq=2, msg_len=8), 0).verdict == "placed"
    model.remove_qp(QP)
    assert not model._open
