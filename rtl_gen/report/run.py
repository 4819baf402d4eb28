"""Measures a list of designs: what is known is taken from the store, the rest is mapped in parallel, here or on a cluster."""

from contextlib import contextmanager
from pathlib import Path

from ..yosys import ToolError, nextpnr_version, yosys_version
from .flow import BUILD
from .measure import card_key, measure, predicted, result_key
from .place import fits, place, place_key, spread

__all__ = ["RunError", "local_pool", "cluster_pool", "run"]


class RunError(RuntimeError):
    """Some designs could not be measured; the message says which and that the others are kept."""


def run(designs, store, *, pool, seeds=(), build=BUILD, work=measure, say=lambda text: None, count=lambda done, total: None):
    """{design: result} of every design; a result of ECP5 has "place" if there are seeds.

    `pool` is one of those below (`at_once`: how many jobs it works on; None: give it all), `work` what it does for a design (tests
    have another one). Each result is stored the moment it is there; if any failed, RunError says so when all have ended.
    """
    yosys_version()
    if seeds:
        nextpnr_version()
    results, waiting, jobs, failed = {}, [], {}, {}
    build = str(Path(build).absolute())
    total = done = 0

    def start(kind, design, *args):
        nonlocal total
        total += 1
        waiting.append((kind, design, args))

    def hand_out():
        """As much as the pool works on at once. A place and route goes before what waits longer: it takes longest."""
        waiting.sort(key=lambda job: job[0] != "place")
        while waiting and (pool.at_once is None or len(jobs) < pool.at_once):
            kind, design, args = waiting.pop(0)
            jobs[pool.submit(*args)] = (kind, design, args)

    def start_places(design):
        result = results[design]
        room = fits(result["cells"])
        result["place"] = {"fits": all(r["used"] <= r["available"] for r in room.values()), "room": room, "runs": []}
        if not result["place"]["fits"]:
            return
        for seed in seeds:
            kept = store.get("places", place_key(result["key"], design.cfg.clock_hz, seed))
            if kept:
                result["place"]["runs"].append(kept)
            else:
                start("place", design, _place, design.cfg.as_dict(), design.family, build, result["netlist"],
                      design.cfg.clock_hz, seed)

    # What takes longest goes first, so that no core waits for it at the end.
    size = lambda d: (not (d.family == "ecp5" and seeds), -d.cfg.data_width, -d.cfg.num_qps, d.cfg.transport)
    for design in sorted(designs, key=size):
        kept = known(store, design)
        if kept:
            results[design] = kept
            if design.family == "ecp5" and seeds:
                start_places(design)
        else:
            start("map", design, work, design.cfg.as_dict(), design.family, build)
    count(done, total)
    hand_out()
    while jobs:
        future = pool.next_done(jobs)
        kind, design, args = jobs.pop(future)
        done += 1
        try:
            got = future.result()
        except Exception as error:      # whatever it is, it takes nothing of the others with it
            what = "" if isinstance(error, (ToolError, OSError, RuntimeError)) else f"{type(error).__name__}: "
            failed[f"{design.name}{f' seed {args[-1]}' if kind == 'place' else ''}"] = what + str(error)
        else:
            if kind == "map":
                store.put("cards", card_key(design.cfg), {"rtlil_sha256": got["rtlil_sha256"]})
                store.put("results", got["key"], got["result"])
                results[design] = got["result"] | {"key": got["key"]}
                if design.family == "ecp5" and seeds:
                    start_places(design)
            else:
                store.put("places", place_key(results[design]["key"], design.cfg.clock_hz, got["seed"]), got)
                results[design]["place"]["runs"].append(got)
            say(f"{design.name}: {'mapped' if kind == 'map' else 'placed, seed %d' % got['seed']}")
        hand_out()
        count(done, total)
    for result in results.values():
        if result.get("place", {}).get("runs"):
            result["place"]["runs"].sort(key=lambda r: r["seed"])
            result["place"]["fmax_mhz"] = spread(result["place"]["runs"])
    if failed:
        raise RunError(f"{len(failed)} of {total} runs failed, and the rest is kept: " +
                       "; ".join(f"{name}: {' '.join(text.split())[:200]}" for name, text in sorted(failed.items())))
    return {design: predicted(design.cfg, design.family) | results[design] for design in designs}


def known(store, design):
    """The stored result of a design whose sources and configuration have not changed, or have changed without a difference."""
    card = store.get("cards", card_key(design.cfg))
    if not card:
        return None
    key = result_key(card["rtlil_sha256"], design.family)
    result = store.get("results", key)
    return result and result | {"key": key}


def _place(config, family, build, netlist, clock_hz, seed):
    """A job: on a machine that doesn't have the mapped netlist, the card is mapped first."""
    path = Path(build, netlist, "top.json")
    if not path.exists():
        got = measure(config, family, build)
        path = Path(build, got["result"]["netlist"], "top.json")
    return place(path, clock_hz, seed)


# -- where jobs run ------------------------------------------------------------------------------------


class _Local:
    def __init__(self, executor, jobs):
        self._executor, self.at_once = executor, jobs
        self.submit = executor.submit

    def next_done(self, futures):
        from concurrent.futures import FIRST_COMPLETED, wait
        return next(iter(wait(futures, return_when=FIRST_COMPLETED).done))


def _end_with(parent):
    """In a worker: when the process that started it is gone, however it ended, so is the worker, and the tool that it runs."""
    import os
    import signal
    import threading
    import time

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)
    os.setpgid(0, 0)
    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def local_pool(jobs):
    """`jobs` processes on this machine, which end when this one does."""
    import os
    import signal
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context
    executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),))
    try:
        yield _Local(executor, jobs)
    except BaseException:
        # Nobody waits for what is under way: the next run maps it again.
        for child in active_children():
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:      # not yet a group of its own
                child.kill()
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()


class _Cluster:
    at_once = None      # the scheduler has the queue

    def __init__(self, client):
        self._client = client

    def submit(self, function, *args):
        return self._client.submit(function, *args, pure=False, retries=2)

    def next_done(self, futures):
        from distributed import wait
        return next(iter(wait(list(futures), return_when="FIRST_COMPLETED").done))


@contextmanager
def cluster_pool(address, timeout=10):
    """The workers of a dask.distributed scheduler. They need this package, of the same version, and its extra `synth`."""
    try:
        from distributed import Client
    except ImportError:
        raise RunError("--scheduler needs dask.distributed; pip install 'optinic[cluster]'") from None
    try:
        client = Client(address, timeout=timeout)
    except (OSError, ValueError) as error:
        raise RunError(f"no scheduler at {address} ({str(error).splitlines()[0]}); start one with 'dask scheduler'") from None
    try:
        yield _Cluster(client)
    finally:
        client.close()
