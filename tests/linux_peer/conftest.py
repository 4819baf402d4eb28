"""A booted guest for all tests of a process; skipped, with the reason, where there can be none."""

import pytest

from sim.linux_peer import Guest, PeerUnavailable, build_image


class Booted:
    """The guest, or why there is none; booted again if one has died."""

    def __init__(self):
        self.guest = self.why = None

    def get(self):
        if self.why is None and (self.guest is None or not self.guest.alive()):
            try:
                self.guest = Guest(build_image())
            except PeerUnavailable as error:
                self.why = str(error)
        if self.why is not None:
            pytest.skip(f"no Linux peer: {self.why}")
        return self.guest

    def close(self):
        if self.guest:
            self.guest.close()


@pytest.fixture(scope="session")
def booted():
    found = Booted()
    yield found
    found.close()


@pytest.fixture
def guest(booted):
    return booted.get()
