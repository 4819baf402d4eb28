"""Many runs, each with one flipped bit, from few processes.

A workload is brought up once for a batch of runs. The process that runs it makes a copy of itself (fork) whenever a flip is due; the
copy flips its bit, goes on alone to the end, and says what came of it. So a run costs only what is simulated behind its flip, and
nothing of one run gets into another. Everything follows from (seed, target, index): which bit, when, and in which workload.
"""

from bisect import bisect_right
from dataclasses import asdict, dataclass
from itertools import accumulate
import json
import os
import random
import signal

from sim.device import SimDevice

from .outcome import judge
from .workload import INJECTED_ROUNDS, Workload

__all__ = ["TARGETS", "InjectError", "Flip", "Targets", "BATCH", "batch_of", "run_batch", "run_flips"]

TARGETS = ("tables", "buffers", "registers")
BATCH = 50              #: runs that share a workload
PATIENCE_S = 300        # of a run, by the clock on the wall: the simulation itself must have lost its way


class InjectError(RuntimeError):
    """The campaign can't be carried out, or a run without a flip is not clean."""


@dataclass(frozen=True)
class Flip:
    """Bit `bit` of row `row` of cell `cell` (a name of SimDevice.cells), `when` in 0..1 of the rounds in which flips happen.
    `cell` None: none at all, but a fresh evaluation of everything."""
    cell: str
    row: int = 0
    bit: int = 0
    when: float = 0.5


class Targets:
    """The cells of a device by target: tables (per-item), buffers (all other memories), registers. A bit of a target is drawn with
    equal chances for each."""

    def __init__(self, cells):
        self.number = {cell.name: i for i, cell in enumerate(cells)}
        kind = lambda c: "registers" if c.rows is None else "tables" if c.table else "buffers"
        self.cells = {t: [c for c in cells if kind(c) == t] for t in TARGETS}
        self._sums = {t: list(accumulate(c.bits * (c.rows or 1) for c in found)) for t, found in self.cells.items()}

    @classmethod
    def of(cls, cfg):
        with SimDevice(cfg, cells=True) as device:
            return cls(device.cells())

    def bits(self, target):
        return self._sums[target][-1]

    def draw(self, seed, target, index):
        rng = random.Random(f"{seed} {target} {index}")
        when, at, sums = rng.random(), rng.randrange(self.bits(target)), self._sums[target]
        i = bisect_right(sums, at)
        cell = self.cells[target][i]
        row, bit = divmod(at - (sums[i - 1] if i else 0), cell.bits)
        return Flip(cell.name, row, bit, when)


def batch_of(index):
    return index // BATCH


def run_batch(cfg, targets, seed, target, indices, tell):
    """Runs `indices` of one batch; `tell(record)` hears of each, a dict, as it ends."""
    batch, = {batch_of(i) for i in indices}
    run_flips(cfg, targets, f"{seed} {target} {batch}", {i: targets.draw(seed, target, i) for i in indices},
              lambda i, record: tell({"target": target, "index": i, **record}))


def run_flips(cfg, targets, seed, flips, tell):
    """A workload of `seed` for each flip of the dict `flips`; `tell(key, {"cell", ..., "class", "reason"})`."""
    work = Workload(cfg, random.Random(seed).getrandbits(32))
    try:
        reference = _reference(work)
        window = reference["marks"][INJECTED_ROUNDS]
        branches = _Branches(work, tell)
        for key, flip in flips.items():
            work.at(flip.when * window, lambda key=key, flip=flip: branches.begin(key, flip, targets.number.get(flip.cell)))
        result = _to_the_end(work, reference["counters"], branches)
        branches.end(result)
        if result["class"] != "masked":
            raise InjectError(f"workload {seed!r} differs from itself without any flip: {result}")
    finally:
        work.close()


def _reference(work):
    """Times and counters of the workload when nothing is flipped, from a copy of this process."""
    def child():
        marks = work.run()
        counters = work.counters()
        return {"marks": marks, "counters": counters, "judged": judge(work, None, counters)}
    found = _forked(child)
    if found is None or found["judged"][0] != "masked":
        raise InjectError(f"the workload without any flip is not clean: {found and found['judged']}")
    return found


def _to_the_end(work, counters, branches):
    try:
        work.run()
        error = None
    except Exception as err:        # a driver that meets nonsense may fail in any way
        error = err
    kind, reason = judge(work, error, counters, (branches.flipped or "").startswith("counters."))
    return {"class": kind, "reason": reason[:160]}


class _Branches:
    """The copies of this process, one at a time."""

    def __init__(self, work, tell):
        self._work, self._tell, self._pipe = work, tell, None
        self.flipped = None         # in a copy: the cell

    def begin(self, key, flip, number):
        """Fork. The copy comes back from here with its bit flipped, the original when the copy has ended."""
        if self._pipe is not None:
            return
        out, into = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(out)
            signal.alarm(PATIENCE_S)
            self._pipe, self.flipped = into, flip.cell
            self._work.forget_acts()
            device = self._work.devices[0]
            device.settle() if number is None else device.flip(number, flip.row, flip.bit)
            return
        os.close(into)
        found = _result(pid, out) or {"class": "error", "reason": "the simulation crashed or took too long"}
        self._tell(key, {**asdict(flip), "at_ns": round(self._work.now_ns), **found})

    def end(self, result):
        """In a copy: say the result, and be gone."""
        if self._pipe is not None:
            _say(self._pipe, result)


def _forked(function):
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _say(into, function())
        finally:
            os._exit(1)
    os.close(into)
    return _result(pid, out)


def _say(pipe, result):
    with os.fdopen(pipe, "w") as f:
        f.write(json.dumps(result))
    os._exit(0)


def _result(pid, pipe):
    with os.fdopen(pipe) as f:
        text = f.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if status == 0 and text else None
