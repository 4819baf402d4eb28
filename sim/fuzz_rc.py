"""Random scenarios for transport rc on two engines, held against each other: every verdict, byte, completion, counter, and frame sent.

    python -m sim.fuzz_rc --frames 100000 --seed 1 --preset tiny

Between the steps of a scenario the card comes to rest, so that nothing but acknowledges, which may be joined, hangs on how fast it is. On
a difference it says which, and cuts the scenario down to what still shows it.
"""

import sys
from dataclasses import replace

from sim.device import SimDevice
from sim.fuzzing import Difference, campaign, command_line, shrink_parts
from sim.model_device import ModelDevice
from sim.models.rc_wire import read_rc
from sim.models.wire import Rules, inspect
from sim.rc_player import Player, describe, normal
from sim.scenario_rc import make_scenario

__all__ = ["Difference", "difference", "fuzz", "main", "model", "rtl", "shrink"]

SHRINK_RUNS = 200
#: counters of what hangs on how acknowledges and marks are joined
OF_TIMING = ("acks_sent", "naks_sent", "frames_sent", "sent_bytes", "cnp_sent", "marks_lost")

#: counters that RcOrder keeps, which may go on for a QP that has failed behind it, in RcCommit
OF_THE_LIVING = ("duplicates", "go_backs", "rnr_waits")


def play(scenario, device):
    """The Records of the steps, and the counters at the end. After an error there is no more."""
    with Player(device) as player:
        records = []
        for step in scenario.steps:
            records.append(player.step(step))
            if records[-1].error:
                return records, None
        return records, player.counters()


def model(scenario):
    return play(scenario, ModelDevice(scenario.cfg, seed=scenario.seed))


def rtl(scenario):
    return play(scenario, SimDevice(scenario.cfg, seed=scenario.seed, **{"read_latency": 20, "write_latency": 20, **scenario.bus}))


def difference(scenario, left, right, names=("rtl", "model")):
    """The first thing in which what two engines did differs, as text, or None."""
    for i, (a, b) in enumerate(zip(left[0], right[0])):
        step = scenario.steps[i]
        say = lambda what, x, y: f"step {i}, {what}: {names[0]} {x}, {names[1]} {y}"
        if a.error != b.error:
            return say("error", a.error, b.error)
        if a.verdicts != b.verdicts:
            n = next((n for n, (x, y) in enumerate(zip(a.verdicts, b.verdicts)) if x != y), min(len(a.verdicts), len(b.verdicts)))
            return say(f"verdict {n}", a.verdicts[n:n + 1], b.verdicts[n:n + 1])
        if a.completions != b.completions:
            return say("completions", a.completions, b.completions)
        exact = sum(len(op[1]) for op in step if op[0] == "frames") < 2
        for qpn in sorted(a.sent.keys() | b.sent.keys()):
            x, y = a.sent.get(qpn, []), b.sent.get(qpn, [])
            if normal(x, exact) != normal(y, exact):
                return say(f"sent to QP {qpn:#x}", describe(x), describe(y))
        if a.passed != b.passed:
            return say("passed frames", len(a.passed), len(b.passed))
        if a.memory != b.memory:
            return say("memory", a.memory, b.memory)
    if left[1] is None or right[1] is None:
        return None
    skipped = {"cnp_sent", "marks_lost", "send_errors"} | (set() if scenario.calm else set(OF_TIMING))
    if left[1]["cnp_sent"] != right[1]["cnp_sent"]:
        skipped |= {"frames_sent", "sent_bytes"}
    if any(reason == "state" for record in right[0] for _, reason, *_ in record.verdicts):
        skipped |= set(OF_THE_LIVING)
    for name in left[1].keys() - skipped:
        if left[1][name] != right[1][name]:
            return f"counter {name}: {names[0]} {left[1][name]}, {names[1]} {right[1][name]}"
    return None


def shrink(scenario, differs, runs=SHRINK_RUNS):
    """`scenario` with as many steps, then operations of steps, left out as still leave a difference, and the difference."""
    excused = (KeyError, IndexError)        # what is left out made the QP

    def without(scenario, start, end):
        return replace(scenario, steps=scenario.steps[:start] + scenario.steps[end:])

    scenario, text, runs = shrink_parts(scenario, differs, runs, count=lambda s: len(s.steps), without=without, excused=excused)
    for i in reversed(range(len(scenario.steps))):
        for j in reversed(range(len(scenario.steps[i]))):
            if runs <= 0 or len(scenario.steps[i]) == 1:
                break
            runs -= 1
            steps = list(scenario.steps)
            steps[i] = steps[i][:j] + steps[i][j + 1:]
            candidate = replace(scenario, steps=steps)
            try:
                found = differs(candidate)
            except excused:
                continue
            if found:
                scenario, text = candidate, found
    return scenario, text


def fuzz(frames, seed=1, preset="tiny", left=rtl, right=model, per_scenario=150, progress=None, **knobs):
    """A :func:`sim.fuzzing.campaign`; what it counts is verdicts, kinds of completions, and packets sent."""
    def make(seed, left_over):
        scenario = make_scenario(seed, preset, min(per_scenario, max(20, left_over)), **knobs)
        return scenario, scenario.frames

    names = (left.__name__, right.__name__)
    return campaign(frames, seed, make, left, right, difference=lambda s, a, b: difference(s, a, b, names), shrink=shrink,
                    progress=progress, tally=_things_seen)


def _things_seen(played):
    for record in played[0]:
        yield from (reason if verdict == "dropped" else verdict for verdict, reason, *_ in record.verdicts)
        yield from (f"{d.queue} {d.status} {d.cause}" for d in record.completions if len(d) > 3)
        yield from (p.name for packets in record.sent.values() for p in packets)


def show(scenario, out=None):
    """The steps of a scenario, to be read."""
    out = out or sys.stderr
    cfg = scenario.cfg
    rules = Rules(cfg.mtu_max, cfg.max_frame_bytes, cfg.ipv6, cfg.vlan, cfg.uc)
    for i, step in enumerate(scenario.steps):
        for op, *args in step:
            if op != "frames":
                print(f"  {i}: {op} {' '.join(str(a) for a in args)}", file=out)
                continue
            for frame in args[0]:
                packet = inspect(frame, rules, read_rc)
                fields = {k: v for k, v in vars(packet).items() if v and k not in ("source", "pkey", "payload")}
                print(f"  {i}: frame of {len(frame)} bytes, payload {len(packet.payload)}: {fields}", file=out)


def explain(scenario, options):
    print(f"bus: {scenario.bus}", file=sys.stderr)
    show(scenario)


def main(arguments=None, left=rtl, right=model):
    return command_line(arguments, "python -m sim.fuzz_rc", __doc__, preset="tiny", explain=explain,
                        fuzz=lambda *args, **more: fuzz(*args, left=left, right=right, **more))


if __name__ == "__main__":
    sys.exit(main())
