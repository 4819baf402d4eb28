"""Engines that are there to be caught."""

import pytest

__all__ = ["breaker"]


def breaker(model):
    """What makes of a patch, a function that takes pytest's monkeypatch, an engine: `model` as long as the patch is applied."""
    def broken(patch):
        def engine(scenario):
            with pytest.MonkeyPatch.context() as monkeypatch:
                patch(monkeypatch)
                return model(scenario)
        engine.__name__ = patch.__name__
        return engine
    return broken
