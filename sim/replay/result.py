"""What a replay found, and OUT.json of it: the same shape whichever engine ran."""

from dataclasses import dataclass, field
import hashlib
import json
import os
import tempfile

from .errors import ReplayError

__all__ = ["Result", "Event", "report", "write_json", "replace_file"]

SIMULTANEOUS_NS = 2000
"""Deadlines of different queue pairs that end within this of each other count as one moment: the card finds them in the
order of its scan, which no user means. Such completions are listed by QPN."""


@dataclass(frozen=True)
class Event:
    """A queue pair of type rc has failed by a request of its peer."""
    qpn: int
    index: int              #: the receive that would have been next
    cause: str
    time: int               #: ns


@dataclass
class Result:
    verdicts: list          #: sim.models.nic.Verdict, one for each frame
    completions: list       #: sim.models.nic.Completion, in order
    regions: dict           #: key -> bytes
    counters: dict
    refused: dict           #: QPN -> {reason: count}, of frames that name an existing queue pair
    arrival_maps: dict = field(default_factory=dict)    #: QPN -> bytes
    events: list = field(default_factory=list)          #: of Event
    sent: list = None       #: capture.Frame of each frame that the card sent, its time from the first frame on; None: not known


def report(result):
    """OUT.json as a value."""
    return {
        "frames": [frame_entry(i, verdict) for i, verdict in enumerate(result.verdicts)],
        "completions": [completion_entry(completion) for completion in settle(result.completions)],
        "regions": [{"rkey": key, "sha256": hashlib.sha256(data).hexdigest()} for key, data in result.regions.items()],
        "counters": result.counters,
        "refused_by_qp": {str(qpn): dict(sorted(counts.items())) for qpn, counts in sorted(result.refused.items())},
    } | ({"arrival_maps": [{"qpn": qpn, "sha256": hashlib.sha256(data).hexdigest()}
                           for qpn, data in sorted(result.arrival_maps.items())]} if result.arrival_maps else {}) | (
        {"events": [{"qpn": e.qpn, "index": e.index, "cause": e.cause, "time_us": round(e.time / 1000, 3)} for e in result.events]}
        if result.events else {})


def frame_entry(index, verdict):
    entry = {"index": index, "verdict": verdict.verdict}
    for name in ("reason", "qpn", "bytes", "kind"):
        if getattr(verdict, name) is not None:
            entry[name] = getattr(verdict, name)
    return entry


def completion_entry(c):
    return {"qpn": c.qpn, "queue": "receive", "index": c.index, "opcode": c.opcode, "status": c.status, "cause": c.cause,
            "byte_len": c.byte_len, "msg_len": c.msg_len, "imm": c.imm, "tag": c.tag, "time_us": round(c.time / 1000, 3)}


def settle(completions):
    """`completions` with each run of simultaneous time-outs in the order of QPN and index."""
    out, run = [], []
    for c in completions:
        if run and not (c.cause == "timeout" and c.time - run[-1].time <= SIMULTANEOUS_NS):
            out += sorted(run, key=lambda c: (c.qpn, c.index))
            run = []
        (run if c.cause == "timeout" else out).append(c)
    return out + sorted(run, key=lambda c: (c.qpn, c.index))


def write_json(path, value):
    replace_file(path, lambda temporary: write_text(temporary, json.dumps(value, indent=1) + "\n"))


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def replace_file(path, write):
    """The file at `path` becomes what `write(temporary path)` wrote, in one step, or stays as it was."""
    folder, name = os.path.split(os.path.abspath(path))
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
        os.close(handle)
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        raise ReplayError(f"{path}: {error.strerror}") from None
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
