"""The model card held against what was there before it: the tests of the whole generated card, and the plain model of receiving."""

from pathlib import Path
import os
import re
import subprocess
import sys

import pytest

from sim.fuzz import Difference, fuzz, model, posts_of
from sim.model_device import ModelDevice
from sim.replay.engine_rtl import Session
from sim.replay.setup import parse_setup

ROOT = Path(__file__).resolve().parents[2]
ENOUGH = 80         # of the system tests must be fit for the model, or their names have changed


def test_the_system_tests_pass_on_the_model():
    run = subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.sim.on_model", "-p", "no:cacheprovider", "-q", "--tb=short",
                          "tests/system"], cwd=ROOT, capture_output=True, text=True,
                         env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")})
    passed = re.search(r"(\d+) passed", run.stdout)
    assert run.returncode == 0 and passed and int(passed[1]) >= ENOUGH, run.stdout[-4000:] + run.stderr[-2000:]


def card(scenario):
    """A scenario through driver, rings, registers and the model device: what `rtl` of sim.fuzz does with the generated card."""
    setup = parse_setup(scenario.setup)
    cfg = setup.config.with_(trace=True)
    with ModelDevice(cfg, seed=scenario.seed) as device:
        session = Session(setup, cfg, device)
        session.configure()
        device.set(**scenario.bus)
        session.play(scenario.frames, lambda *_: None, posts_of(scenario))
        return session.result(scenario.frames)


@pytest.mark.parametrize("preset, knobs", [("tiny", {}), ("small", {"arrival_map": True}), ("small", {"ipv6": False, "uc": False})])
def test_random_traffic_through_the_whole_card(preset, knobs):
    frames, scenarios, verdicts = fuzz(3000, 1, preset, left=card, right=model, **knobs)
    assert frames >= 3000 and scenarios >= 10 and len(verdicts) > 12


@pytest.mark.parametrize("fault", ["late", "tag", "skipped"])
def test_negative_control(monkeypatch, fault):
    """A card that gets a completion or a verdict wrong is found."""
    import sim.model_card as model_card
    if fault == "late":
        right = model_card.Receiver._find_message

        def wrong(self, qp, packet, now):
            reason = right(self, qp, packet, now)
            return "no_receive" if reason == "late" else reason
        monkeypatch.setattr(model_card.Receiver, "_find_message", wrong)
    else:
        right = model_card.ModelCard._write_cqe
        change = {"tag": lambda f: f | {"tag": f.get("tag", 0) ^ (f.get("tag", 0) > 9)},
                  "skipped": lambda f: f | {"skipped": max(0, f.get("skipped", 0) - 1)}}[fault]
        monkeypatch.setattr(model_card.ModelCard, "_write_cqe",
                            lambda self, index, overrun, **f: right(self, index, overrun, **change(f)))
    with pytest.raises((Difference, RuntimeError)):
        fuzz(1500, 1, "tiny", left=card, right=model)


