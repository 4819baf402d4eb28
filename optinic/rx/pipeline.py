"""A fixed-latency pipeline written by stage numbers: values carry their stage, and are delayed to where they are used."""

from amaranth.hdl import Signal, Value

__all__ = ["FixedPipe"]


class FixedPipe:
    """Named values of a pipeline that never stalls.

    ``pipe.put(name, stage, value)`` registers `value`, computed from values of the stage before; ``pipe.get(name, stage)``
    is that value at `stage`, through as many further registers as it takes. The registers have no reset: what goes with
    them is a valid bit that has.
    """

    def __init__(self, m, prefix="p"):
        self._m, self._prefix, self._values, self._first = m, prefix, {}, {}

    def put(self, name, stage, value):
        assert name not in self._first, f"{name} is put twice"
        value = Value.cast(value)
        reg = Signal(value.shape(), name=f"{self._prefix}{stage}_{name}", reset_less=True)
        self._m.d.sync += reg.eq(value)
        self._values[name, stage], self._first[name] = reg, stage
        return reg

    def get(self, name, stage):
        first = self._first[name]
        assert stage >= first, f"{name} exists from stage {first} on, not at {stage}"
        if (name, stage) not in self._values:
            before = self.get(name, stage - 1)
            reg = Signal.like(before, name=f"{self._prefix}{stage}_{name}", reset_less=True)
            self._m.d.sync += reg.eq(before)
            self._values[name, stage] = reg
        return self._values[name, stage]

    def at(self, stage):
        """All names at once: ``v = pipe.at(3); v.length`` is ``pipe.get("length", 3)``."""
        return _Stage(self, stage)


class _Stage:
    def __init__(self, pipe, stage):
        self._pipe, self._stage = pipe, stage

    def __getattr__(self, name):
        return self._pipe.get(name, self._stage)
