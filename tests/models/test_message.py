"""Coverage of a message: success needs every byte once, whatever the count says."""

from types import SimpleNamespace

from sim.models.message import Message


def piece(offset, size, total):
    return SimpleNamespace(offset=offset, payload=bytes(size), msg_len=total)


def placed(total, *pieces):
    message = Message()
    for offset, size in pieces:
        message.place(piece(offset, size, total))
    return message


def test_any_order_completes():
    assert placed(30, (20, 10), (0, 10), (10, 10)).complete
    assert not placed(30, (20, 10), (0, 10)).complete


def test_duplicate_in_place_of_a_loss_does_not():
    message = placed(30, (0, 10), (0, 10), (20, 10))
    assert message.byte_len == 30 and not message.complete


def test_overlap_never_completes():
    for pieces in [((0, 10), (5, 10), (15, 15)), ((0, 10), (10, 20), (29, 1)), ((5, 5), (0, 30)), ((0, 30), (5, 5))]:
        assert not placed(30, *pieces).complete


def test_empty_pieces_count_nothing():
    assert placed(0, (0, 0)).complete
    assert not placed(10, (10, 0)).complete
    assert placed(10, (3, 0), (0, 10)).complete


def test_random_tilings(rng):
    # Against a byte map.
    for _ in range(300):
        total = rng.randrange(1, 40)
        counts, message = [0] * total, Message()
        for _ in range(rng.randrange(1, 8)):
            start = rng.randrange(total)
            size = rng.randrange(total - start + 1)
            message.place(piece(start, size, total))
            for i in range(start, start + size):
                counts[i] += 1
            assert message.complete == (set(counts) == {1})
            assert message.byte_len == sum(counts)
