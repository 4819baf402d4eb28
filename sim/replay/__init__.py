"""`optinic replay`: a capture against the card, or against the model of it; what became of each frame, and why."""

import importlib
import sys
import time

from .capture import Frame, read_capture, write_pcap
from .errors import ReplayError
from .result import replace_file, report, write_json
from .setup import read_setup

__all__ = ["run", "replay", "execute", "ReplayError", "ENGINES"]

#: engine -> (module, function); loaded when used, so that the model needs no Verilator
ENGINES = {"rtl": ("sim.replay.engine_rtl", "replay_rtl"), "model": ("sim.replay.engine_model", "replay_model")}
PROGRESS_EVERY_S = 2.0


def run(setup_path, pcap_path, json_path, engine="rtl", tx_pcap=None):
    """Replay the capture at `pcap_path` on `engine` and write OUT.json; also returns it.

    Raises :class:`ReplayError` and writes nothing when the setup or the capture is wrong."""
    value = replay(setup_path, pcap_path, engine, tx_pcap)
    write_json(json_path, value)
    return value


def replay(setup_path, pcap_path, engine="rtl", tx_pcap=None):
    """As :func:`run`, without a file for OUT.json. `tx_pcap`: a capture of the frames that the card sent, at their times by the
    clock of the capture that is replayed."""
    if engine not in ENGINES:
        raise ReplayError(f"engine {engine!r} is unknown; known are {', '.join(ENGINES)}")
    setup = read_setup(setup_path)
    frames = read_capture(pcap_path)
    wanted = {"sent": True} if tx_pcap and engine == "model" else {}
    result = execute(setup, frames, engine, Progress(), **wanted)
    if tx_pcap:
        begin = frames[0].time if frames else 0
        sent = [Frame(frame.data, begin + frame.time) for frame in result.sent]
        replace_file(tx_pcap, lambda temporary: write_pcap(temporary, sent))
    return report(result)


def execute(setup, frames, engine, progress=lambda done, total: None, **options):
    """The :class:`~sim.replay.result.Result` of `frames` (of sim.replay.capture) on a card set up as `setup` says.

    `options` are those of the engine."""
    module, function = ENGINES[engine]
    return getattr(importlib.import_module(module), function)(setup, frames, progress, **options)


class Progress:
    """Says on standard error how far a long replay is."""

    def __init__(self):
        self._next = time.monotonic() + PROGRESS_EVERY_S

    def __call__(self, done, total):
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_EVERY_S
            print(f"replay: {done} of {total} frames", file=sys.stderr, flush=True)
