"""Controller and pacer together, as the model of the send half asks them."""

import pytest

from sim.models.congestion import SHARED, DcqcnModel, PacerModel, interval_of
from sim.models.pacing import Pacing

QP, SIZE, MS = 3, 1000, 1_000_000


def test_a_rate_that_the_host_gives():
    pacing = Pacing.fixed(burst=0)
    pacing.reset(QP, 5)
    pacing.sent(QP, SIZE, 10)
    assert pacing.not_before(QP, 10) == 10
    pacing.set(QP, 8 << 16, 10)
    pacing.sent(QP, SIZE, 10)
    assert pacing.not_before(QP, 10) == pacing.not_before(QP, 5000) == 8010 and pacing.not_before(QP, 9000) == 9000
    pacing.cnp(QP, 20)                  # it doesn't listen
    assert pacing.not_before(QP, 20) == 8010
    pacing.reset(QP, 30)
    assert pacing.not_before(QP, 30) == 30


def test_a_controller_that_finds_out_by_itself():
    pacing = Pacing(DcqcnModel(rate_bits=14, line_rate=8000), burst=0)
    pacing.reset(QP, 0)
    pacing.set(QP, 1 << 24, 0)          # it doesn't listen
    pacing.sent(QP, SIZE, 0)
    assert pacing.not_before(QP, 0) == 0
    pacing.cnp(QP, 1000)
    rate = pacing.controller.rate(QP)
    assert 3990 < rate < 4010
    pacing.sent(QP, SIZE, 1000)
    exact = 1000 + SIZE * interval_of(rate) / 65536
    assert 0 <= exact - pacing.not_before(QP, 1000) <= 0.003 * SIZE * interval_of(rate) / 65536 + 1
    time, fastest = 1000, 0
    while time < 3 * MS:                # sending on, it recovers
        time = max(pacing.not_before(QP, time), time + 100)
        pacing.sent(QP, SIZE, time)
        fastest = max(fastest, pacing.controller.rate(QP))
    assert fastest > 7000


@pytest.mark.parametrize("ms, forgotten", [(1, False), (8, False), (9, True), (17, True), (18, True), (40, True)])
def test_congestion_is_forgotten_in_time_even_where_the_cards_times_wrap(ms, forgotten):
    pacing = Pacing(DcqcnModel(rate_bits=14, line_rate=8000, rate_ai=0, rate_hai=0, increase_timer=1023))
    for _ in range(8):
        pacing.cnp(QP, 0)
    pacing.not_before(QP, ms * MS)
    assert (QP not in pacing.controller.state) == forgotten


def test_without_the_round_it_would_not_be():
    model = DcqcnModel(rate_bits=14, line_rate=8000, increase_timer=1023)
    model.cnp(QP, 0)
    model.sweep(QP, 17 * MS)            # 16.8 ms look like none
    assert QP in model.state


def test_lives_of_one_queue_pair_have_one_row():
    """A new number with the same low bits: what was known of the old life is gone, and its row is free."""
    pacing = Pacing(DcqcnModel(pool=4), qp_bits=4)
    for number in (0x13, 0x14, 0x15):
        pacing.cnp(number, 1000)
    assert pacing.controller.state.keys() == {3, 4, SHARED} and pacing.controller.sharing.keys() == {5}
    pacing.reset(0x23, 2000)
    assert 3 not in pacing.controller.state and not pacing.pacer.paced(3)
    pacing.cnp(0x26, 3000)
    assert 6 in pacing.controller.state


@pytest.mark.parametrize("leave", [False, True])
def test_rounds_see_to_who_shares(leave):
    """Those that share a row and are never heard of again are set free when it is stale, however lively the others are; and the
    row is cleared when all of them have been reset."""
    pacing = Pacing(DcqcnModel(pool=4))
    for number in range(6):
        pacing.cnp(number, 0)
    assert pacing.controller.sharing.keys() == {2, 3, 4, 5}
    for number in range(2, 6) if leave else ():
        pacing.reset(number, 0)
    for ms in range(1, 14):
        pacing.cnp(0, ms * MS)                              # the two with rows of their own stay congested
        pacing.cnp(1, ms * MS)
    assert pacing.controller.state.keys() == {0, 1} and not pacing.controller.sharing
    assert not any(pacing.pacer.paced(number) for number in range(2, 6))


def test_a_shared_row_that_lives_is_not_taken_for_a_stale_one():
    """One of those who share is silent for long; the others' events keep the row."""
    pacing = Pacing(DcqcnModel(pool=4, increase_timer=1023, alpha_timer=1023))
    for number in range(5):
        pacing.cnp(number, 0)
    for ms in range(1, 30):
        for number in (0, 1, 2):
            pacing.cnp(number, ms * MS)
    pacing.not_before(4, 29 * MS + 1000)
    assert pacing.controller.sharing.keys() >= {2, 4} and pacing.pacer.paced(4)
    pacing.sent(4, SIZE, 29 * MS + 2000)
    assert pacing.controller.interval(4) == interval_of(pacing.controller.state[SHARED].rate)


def test_a_time_far_ahead_is_no_work():
    pacing = Pacing(DcqcnModel(pool=4))
    for number in range(5):
        pacing.cnp(number, 1000)
    pacing.not_before(0, 1 << 62)
    assert not pacing.controller.state and not pacing.controller.sharing


def test_what_the_pacer_keeps():
    pacer = PacerModel()
    pacing = Pacing.fixed()
    for interval in (1, 511, 513, 5243, 52_428_800):
        pacing.set(QP, interval, 0), pacer.rate(QP, interval)
        assert pacing.pacer.intervals[QP] == pacer.intervals[QP]
