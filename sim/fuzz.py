"""Random scenarios on two engines, held against each other: every verdict, byte, completion and counter.

    python -m sim.fuzz --frames 100000 --seed 1 --preset small

On a difference it says which, cuts the traffic down to what still shows it, and leaves a setup and a capture for
`optinic replay`.
"""

from collections import defaultdict
from dataclasses import replace
import json
from pathlib import Path
import sys

from host_driver.card import QueueFull
from sim.fuzzing import Difference, campaign, command_line, shrink_parts
from sim.models.wire import Rules, inspect
from sim.replay import execute
from sim.replay.capture import write_pcap
from sim.replay.setup import parse_receive, parse_setup
from sim.scenario import make_scenario

__all__ = ["Difference", "difference", "fuzz", "rtl", "model", "main"]

SHRINK_RUNS = 150


def model(scenario):
    return execute(parse_setup(scenario.setup), scenario.frames, "model", posts=posts_of(scenario))


def rtl(scenario):
    return execute(parse_setup(scenario.setup), scenario.frames, "rtl", posts=posts_of(scenario), seed=scenario.seed,
                   bus=scenario.bus)


def posts_of(scenario):
    return {i: [(time, qpn, parse_receive(receive, "")) for time, qpn, receive in posts]
            for i, posts in scenario.posts.items()}


def difference(left, right, names=("rtl", "model")):
    """The first thing in which two Results differ, as text, or None. Times are compared only as far as a bus allows."""
    for i, (a, b) in enumerate(zip(left.verdicts, right.verdicts)):
        if a != b:
            return f"frame {i}: {names[0]} {say(a)}, {names[1]} {say(b)}"
    if len(left.verdicts) != len(right.verdicts):
        return f"{names[0]} has {len(left.verdicts)} verdicts, {names[1]} {len(right.verdicts)}"
    a, b = by_qp(left.completions), by_qp(right.completions)
    for qpn in sorted(a.keys() | b.keys()):
        for i in range(max(len(a[qpn]), len(b[qpn]))):
            x, y = (side[qpn][i] if i < len(side[qpn]) else None for side in (a, b))
            if x != y:
                return f"completion {i} of QP {qpn}: {names[0]} {say(x)}, {names[1]} {say(y)}"
    a, b = ([(c.qpn, c.index) for c in side.completions if c.cause == "complete"] for side in (left, right))
    if a != b:
        return f"successes in another order: {names[0]} {a}, {names[1]} {b}"
    for key, data in left.regions.items():
        other = right.regions[key]
        if data != other:
            at = next(i for i, (p, q) in enumerate(zip(data, other)) if p != q)
            return f"region {key}, byte {at}: {names[0]} {data[at:at + 8].hex()}, {names[1]} {other[at:at + 8].hex()}"
    for qpn, data in left.arrival_maps.items():
        other = right.arrival_maps[qpn]
        if data != other:
            at = next(i for i, (p, q) in enumerate(zip(data, other)) if p != q)
            return f"arrival map of QP {qpn}, byte {at}: {names[0]} {data[at]:#04x}, {names[1]} {other[at]:#04x}"
    if left.refused != right.refused:
        return f"refusals by QP: {names[0]} {left.refused}, {names[1]} {right.refused}"
    for name in sorted(left.counters.keys() | right.counters.keys()):
        a, b = left.counters.get(name), right.counters.get(name)
        if a != b:
            return f"counter {name}: {names[0]} {a}, {names[1]} {b}"
    return None


def by_qp(completions):
    out = defaultdict(list)
    for c in completions:
        out[c.qpn].append(replace(c, time=0))
    return out


def say(thing):
    if thing is None:
        return "none"
    return "(" + " ".join(str(v) for k, v in vars(thing).items() if v is not None and k not in ("qpn", "time")) + ")"


def describe(frame, cfg):
    rules = Rules(cfg.mtu_max, cfg.max_frame_bytes, cfg.ipv6, cfg.vlan, cfg.uc)
    packet = inspect(frame.data, rules)
    text = f"t={frame.time} ns, {len(frame.data)} bytes: "
    if packet.passed or packet.reason:
        return text + (packet.reason or "passed")
    fields = {k: v for k, v in vars(packet).items() if k not in ("passed", "reason", "payload", "source", "pkey")}
    return text + " ".join(f"{k}={v}" for k, v in fields.items()) + f" payload={len(packet.payload)}"


def shrink(scenario, differs, runs=SHRINK_RUNS):
    """`scenario` with as many frames left out as still leave a difference, and the difference.

    The first frame stays: the times of all others, and of the deadlines, count from it. A frame that is left out may have made
    room for what is posted later."""
    return shrink_parts(scenario, differs, runs, count=lambda s: len(s.frames), without=without, first=1, excused=QueueFull)[:2]


def without(scenario, start, end):
    """`scenario` without the frames start ..< end; what was posted between them is posted before the next one."""
    posts = defaultdict(list)
    for i, some in sorted(scenario.posts.items()):
        posts[i if i <= start else max(start, i - (end - start))] += some
    return replace(scenario, frames=scenario.frames[:start] + scenario.frames[end:], posts=dict(posts))


def fuzz(frames, seed=1, preset="small", left=rtl, right=model, per_scenario=300, progress=None, **knobs):
    """A :func:`sim.fuzzing.campaign`; what it counts is verdicts."""
    def make(seed, left_over):
        scenario = make_scenario(seed, preset, min(per_scenario, left_over), **knobs)
        return scenario, len(scenario.frames)

    names = (left.__name__, right.__name__)
    return campaign(frames, seed, make, left, right, difference=lambda s, a, b: difference(a, b, names), shrink=shrink, progress=progress,
                    tally=lambda result: (v.reason or v.verdict for v in result.verdicts))


def keep(scenario, folder):
    """Write what `optinic replay` needs to see it again, as far as receives that are posted on the way don't matter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "setup.json").write_text(json.dumps(scenario.setup, indent=1) + "\n")
    write_pcap(folder / "frames.pcap", scenario.frames)


def explain(scenario, options):
    folder = options.keep / f"seed-{scenario.seed}"
    keep(scenario, folder)
    cfg = parse_setup(scenario.setup).config
    for i, frame in enumerate(scenario.frames[:20]):
        print(f"  frame {i}: {describe(frame, cfg)}", file=sys.stderr)
    print(f"bus: {scenario.bus}\nsee it again: optinic replay --setup {folder}/setup.json --pcap {folder}/frames.pcap "
          f"--json rtl.json, and with --engine model", file=sys.stderr)


def main(arguments=None, left=rtl, right=model):
    kept = ("--keep", dict(type=Path, default=Path("build/fuzz"), metavar="DIR", help="where a failing scenario is left"))
    return command_line(arguments, "python -m sim.fuzz", __doc__, preset="small", more=[kept], explain=explain,
                        fuzz=lambda *args, **more: fuzz(*args, left=left, right=right, **more))


if __name__ == "__main__":
    sys.exit(main())
