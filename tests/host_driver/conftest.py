"""Cards for the driver: `backend` is each simulated one in turn, or those named in OPTINIC_DRIVER_BACKENDS."""

from dataclasses import dataclass
import os

import pytest

from host_driver.verbs import (CQ, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, MR,
                               PD, QP, Context)
from host_driver.verbs import QPCap, QPInitAttr, open_cards

ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
BACKENDS = os.environ.get("OPTINIC_DRIVER_BACKENDS", "model").split(",")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.rtl if name == "rtl" else ()) for name in BACKENDS])
def backend(request):
    return request.param


@dataclass
class End:
    """A card with what a program makes on it: memory, a CQ for sends, one for receives, a queue pair."""
    context: Context
    pd: PD
    mr: MR
    scq: CQ
    rcq: CQ
    qp: QP = None


def make_end(context, *, size=1 << 16, cqe=256, reads=0, qp_type=None, **attr):
    pd = PD(context)
    access = ALL | IBV_ACCESS_REMOTE_ATOMIC if context.has_atomics else ALL
    end = End(context, pd, MR(pd, size, access), CQ(context, cqe), CQ(context, cqe))
    add_qp(end, reads=reads, **({} if qp_type is None else {"qp_type": qp_type}), **attr)
    return end


def add_qp(end, *, reads=0, **attr):
    end.qp = QP(end.pd, QPInitAttr(scq=end.scq, rcq=end.rcq, cap=QPCap(max_rd_atomic=reads), **attr))
    return end.qp


def connect(a, b, **how):
    a, b = getattr(a, "qp", a), getattr(b, "qp", b)
    infos = a.info(), b.info()
    a.connect(infos[1], **how), b.connect(infos[0], **how)


@pytest.fixture
def cards(backend):
    with open_cards(backend, 2, cfg="tiny") as cards:
        yield cards
        for card in cards:
            assert not card.device.violations and not card.device.faults


@pytest.fixture
def pair(cards):
    """Two connected ends that can READ."""
    ends = [make_end(context, reads=4) for context in cards]
    connect(*ends)
    return ends


@pytest.fixture
def rc_cards(backend):
    with open_cards(backend, 2, cfg="tiny", transport="rc", changes={"trace": True}) as cards:     # the card of tests/rc: one to compile
        yield cards
        for card in cards:
            assert not card.device.violations and not card.device.faults


@pytest.fixture
def rc_pair(rc_cards):
    """Two connected ends of type RC."""
    ends = [make_end(context) for context in rc_cards]
    connect(*ends)
    return ends
