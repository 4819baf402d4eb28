"""What every comparison of two engines on random scenarios does: run them in turn, cut down what differs, say how it goes."""

import argparse
import sys
import time
from collections import Counter

from optinic.config import PRESETS, NicConfig

__all__ = ["Difference", "campaign", "command_line", "shrink_parts"]


class Difference(Exception):
    """Two engines disagree; `scenario` is small and shows it."""

    def __init__(self, scenario, text):
        super().__init__(f"seed {scenario.seed}: {text}")
        self.scenario, self.text = scenario, text


def campaign(frames, seed, make, left, right, *, difference, shrink, tally, progress=None):
    """Run scenarios seed, seed + 1, ... until `frames` frames are through; raises :class:`Difference` at the first one.

    `make(seed, frames)` gives a scenario of at most, or about, so many frames, and how many it has. `left` and `right` play one, and
    `difference(scenario, what left did, what right did)` says how they differ, if they do. `shrink(scenario, differs)` gives a smaller
    one and its difference. Returns how many frames and scenarios there were, and how often each thing was seen of those that
    `tally(what right did)` names."""
    done, scenarios, seen = 0, 0, Counter()
    while done < frames:
        scenario, size = make(seed + scenarios, frames - done)
        expected = right(scenario)
        if difference(scenario, left(scenario), expected):
            small, text = shrink(scenario, lambda s: difference(s, left(s), right(s)))
            raise Difference(small, text or "gone when it was run again")
        seen.update(tally(expected))
        done, scenarios = done + size, scenarios + 1
        if progress:
            progress(done)
    return done, scenarios, dict(seen)


def shrink_parts(scenario, differs, runs, *, count, without, first=0, excused=()):
    """`scenario` with as many of its parts left out as still leave a difference; the difference; and what is left of `runs`.

    It has `count(scenario)` parts, of which those before `first` stay; `without(scenario, start, end)` leaves some out. Scenarios that
    can't be played, and raise one of `excused`, show nothing."""
    text = differs(scenario)
    size = max(1, count(scenario) // 2)
    while size and runs > 0:
        at = count(scenario)
        while at > first and runs > 0:      # the last parts first: most of them come after the trouble
            candidate = without(scenario, max(first, at - size), at)
            at -= size
            runs -= 1
            try:
                found = differs(candidate)
            except excused:
                continue
            if found:
                scenario, text = candidate, found
        size //= 2
    return scenario, text, runs


def command_line(arguments, prog, doc, *, preset, fuzz, explain, more=()):
    """The command `prog`: 0 if there is no difference. `fuzz(frames, seed, preset, progress=..., **knobs)` is a :func:`campaign`,
    `explain(scenario, options)` prints what to know of one that differs, `more` are (flag, keywords) of further options."""
    parser = argparse.ArgumentParser(prog=prog, description=doc.split("\n\n")[0])
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first scenario; the next ones count up")
    parser.add_argument("--preset", default=preset, choices=list(PRESETS))
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", help="change a knob of the preset")
    for flag, keywords in more:
        parser.add_argument(flag, **keywords)
    options = parser.parse_args(arguments)
    knobs = {name: NicConfig.parse(name, text) for name, _, text in (s.partition("=") for s in options.set)}
    start = last = time.monotonic()

    def progress(done):
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            print(f"{done} of {options.frames} frames, {done / (last - start):.0f} a second", file=sys.stderr, flush=True)

    try:
        done, scenarios, seen = fuzz(options.frames, options.seed, options.preset, progress=progress, **knobs)
    except Difference as found:
        print(f"difference: {found}", file=sys.stderr)
        explain(found.scenario, options)
        return 1
    print(f"{done} frames in {scenarios} scenarios, no difference ({time.monotonic() - start:.0f} s)")
    for name, count in sorted(seen.items()):
        print(f"  {name:32} {count}")
    return 0
