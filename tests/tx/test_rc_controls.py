"""The tests of transport rc's send half notice mistakes in it."""

import pytest

from amaranth.hdl import Mux

from optinic.transport.rc import planner
from optinic.tx import active

from . import test_rc_frames as frames, test_rc_send_queue as tests


def fails(check, *args):
    with pytest.raises(AssertionError):
        check(*args)


def test_a_read_that_takes_one_psn(monkeypatch, seed):
    monkeypatch.setattr(planner, "psn_behind", lambda facts, kind, position, ends: Mux(ends, position.psn, position.psn + 1))
    fails(tests.test_every_opcode_at_every_cut, False, 256, seed)


def test_no_window(monkeypatch, seed):
    monkeypatch.setattr(active.ActiveQueue, "_window", lambda self, command: 0)
    fails(tests.test_window, 2, seed)


def test_asking_for_acks_too_often(monkeypatch, seed):
    monkeypatch.setattr(planner, "ACK_EVERY", 32)
    fails(tests.test_ack_is_asked_for_inside_long_messages, seed)


def test_operands_in_the_host_s_byte_order(monkeypatch, seed):
    real = planner.weigh

    def unturned(m, cfg, facts, *args):
        real(m, cfg, facts, *args)
        m.d.comb += facts.turned.eq(0)
    monkeypatch.setattr(planner, "weigh", unturned)
    fails(frames.test_requester, "rc_atomic")
