"""A fixed-latency pipeline written by stage numbers: values carry their stage, and are delayed to where they are used."""

from collections import defaultdict

from amaranth.hdl import Cat, Elaboratable, Module, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.utils import ceil_log2

__all__ = ["FixedPipe", "Delays"]


class FixedPipe:
    """Named values of a pipeline that never stalls.

    ``pipe.put(name, stage, value)`` registers `value`, computed from values of the stage before; ``pipe.get(name, stage)``
    is that value at `stage`, as many cycles later as it takes (Delays). ``pipe.take(name, stage, value)`` is for one that is
    of `stage` as it is. Nothing of it has a reset: what goes with the values is a valid bit that has.
    """

    def __init__(self, m, prefix="p"):
        self._m, self._prefix, self._values, self._first = m, prefix, {}, {}
        m.submodules[f"{prefix}_delays"] = self._delays = Delays()

    def put(self, name, stage, value):
        value = Value.cast(value)
        reg = Signal(value.shape(), name=f"{self._prefix}{stage}_{name}", reset_less=True)
        self._m.d.sync += reg.eq(value)
        return self.take(name, stage, reg)

    def take(self, name, stage, value):
        assert name not in self._first, f"{name} is put twice"
        self._values[name, stage], self._first[name] = Value.cast(value), stage
        return value

    def get(self, name, stage):
        first = self._first[name]
        assert stage >= first, f"{name} exists from stage {first} on, not at {stage}"
        if (name, stage) not in self._values:
            value = self._values[name, first]
            self._values[name, stage] = self._delays.later(value, stage - first, f"{self._prefix}{stage}_{name}")
        return self._values[name, stage]

    def at(self, stage):
        """All names at once: ``v = pipe.at(3); v.length`` is ``pipe.get("length", 3)``."""
        return _Stage(self, stage)


class _Stage:
    def __init__(self, pipe, stage):
        self._pipe, self._stage = pipe, stage

    def __getattr__(self, name):
        return self._pipe.get(name, self._stage)


class Delays(Elaboratable):
    """Signals, some cycles later: ``later(signal, cycles, name)`` is one with the value that `signal` had `cycles` before.

    From one use of a signal to the next it goes through a register for each cycle, or, from FAR cycles on, through a
    ring in distributed RAM with a register behind it; all that goes as far shares a ring. A fabric with shift registers
    in its LUTs would make these of them, at more LUTs for a bit; one without would need a flip-flop for each bit and
    cycle. Nothing has a reset; in the cycles after one, old values come out.
    """

    FAR = 5

    def __init__(self):
        self._taps = {}     # a signal's id -> (signal, {cycles: signal})

    def later(self, signal, cycles, name):
        _, taps = self._taps.setdefault(id(signal), (signal, {}))
        assert cycles not in taps, f"{name} is there already, as {taps[cycles].name}"
        taps[cycles] = Signal.like(signal, name=name, reset_less=True)
        return taps[cycles]

    def elaborate(self, platform):
        m = Module()
        rings = defaultdict(list)           # cycles -> [(from, to)]
        for at, taps in self._taps.values():
            now = 0
            for cycles in sorted(taps):
                if cycles - now >= self.FAR:
                    rings[cycles - now].append((at, taps[cycles]))
                else:
                    for i in range(now + 1, cycles):
                        between = Signal.like(at, name=f"{taps[cycles].name}_{i}", reset_less=True)
                        m.d.sync += between.eq(at)
                        at = between
                    m.d.sync += taps[cycles].eq(at)
                at, now = taps[cycles], cycles
        for cycles, pairs in sorted(rings.items()):
            self._ring(m, cycles, *zip(*pairs))
        return m

    @staticmethod
    def _ring(m, cycles, sources, targets):
        """What is written in one cycle is in the target's register `cycles` later, so it is read `cycles` - 1 later."""
        m.submodules[f"ring{cycles}"] = ram = Memory(shape=sum(len(s) for s in sources), depth=1 << ceil_log2(cycles), init=[],
                                                     attrs={"ram_style": "distributed"})
        write, read = ram.write_port(), ram.read_port(domain="comb")
        head = Signal(range(ram.depth), name=f"head{cycles}")
        tail = Signal(range(ram.depth), name=f"tail{cycles}", init=ram.depth - (cycles - 1))
        m.d.sync += [head.eq(head + 1), tail.eq(tail + 1), Cat(Value.cast(t) for t in targets).eq(read.data)]
        m.d.comb += [write.en.eq(1), write.addr.eq(head), write.data.eq(Cat(sources)), read.addr.eq(tail)]
