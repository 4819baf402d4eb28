"""Controller and pacer together, as the model of the send half asks them."""

import pytest

from sim.models.congestion import DcqcnModel, PacerModel, interval_of
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


def test_what_the_pacer_keeps():
    pacer = PacerModel()
    pacing = Pacing.fixed()
    for interval in (1, 511, 513, 5243, 52_428_800):
        pacing.set(QP, interval, 0), pacer.rate(QP, interval)
        assert pacing.pacer.intervals[QP] == pacer.intervals[QP]
