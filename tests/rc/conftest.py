import pytest

from sim.rc_rig import ENGINES, MAKERS


@pytest.fixture(params=[pytest.param(e, marks=pytest.mark.rtl) if e == "rtl" else e for e in ENGINES])
def make(request):
    """Makes a card: make(cfg, seed)."""
    return MAKERS[request.param]
