"""One seed for everything random, printed; OPTINIC_SEED=n chooses another one."""

import os
import random
from zlib import crc32

import hypothesis
import numpy
import pytest

SEED = int(os.environ.get("OPTINIC_SEED", "1"))

# The same examples every time, so that a change is what made a test fail, not the draw.
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, deadline=None, print_blob=True)
hypothesis.settings.load_profile("fixed")


def pytest_report_header(config):
    return f"seed: {SEED} (OPTINIC_SEED)"


@pytest.fixture
def seed(request):
    """A number of this test's own, the same in every run with the same OPTINIC_SEED."""
    return crc32(f"{SEED} {request.node.nodeid}".encode())


@pytest.fixture
def rng(seed):
    return random.Random(seed)


@pytest.fixture(autouse=True)
def _global_generators(seed):
    """What draws from the global generators is repeatable too; the line shows with the output of a failed test."""
    print(f"seed {seed}, OPTINIC_SEED={SEED}")
    random.seed(seed)
    numpy.random.seed(seed)
