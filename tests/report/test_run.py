"""Measuring many designs: what is known isn't measured again, what failed or was killed takes nothing else with it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from rtl_gen.report import flow, run as run_module
from rtl_gen.report.designs import designs_of
from rtl_gen.report.flow import map_rtlil
from rtl_gen.report.run import RunError, local_pool, run
from rtl_gen.report.store import Store

from .fakes import Inline, fake_measure, fake_result


def designs():
    return designs_of("tiny", "xp,rc", "16,32")


def measured(tmp_path):
    """What the fake measurement was asked for so far, without who did it."""
    log = tmp_path / "build" / "log"
    return [line.split(maxsplit=1)[1] for line in log.read_text().splitlines()] if log.exists() else []


def go(tmp_path, wanted=None, **options):
    return run(wanted or designs(), Store(tmp_path / "cache"), pool=Inline(), build=tmp_path / "build", work=fake_measure, **options)


def test_a_second_run_measures_nothing(tmp_path):
    first = go(tmp_path)
    assert len(first) == 4 and len(measured(tmp_path)) == 4
    assert go(tmp_path) == first and len(measured(tmp_path)) == 4
    go(tmp_path, designs_of("tiny", "xp", "16,64"))
    assert measured(tmp_path)[4:] == ["xp 64 xcup"]


def test_other_sources_or_another_tool_are_measured_again(tmp_path, monkeypatch):
    one = designs_of("tiny", "xp")
    go(tmp_path, one)
    monkeypatch.setattr(run_module, "card_key", lambda cfg: "other sources")
    go(tmp_path, one)
    assert len(measured(tmp_path)) == 2
    monkeypatch.setattr(run_module, "result_key", lambda sha256, family: "another tool")
    go(tmp_path, one)
    assert len(measured(tmp_path)) == 3


def test_a_failure_takes_nothing_with_it(tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "fail").write_text("rc")
    with pytest.raises(RunError, match=r"2 of 4 runs failed, and the rest is kept: rc-tiny-64b-16qp-xcup: the tool said no"):
        go(tmp_path)
    (tmp_path / "build" / "fail").unlink()
    assert len(go(tmp_path)) == 4
    assert sorted(measured(tmp_path)) == sorted(["xp 16 xcup", "xp 32 xcup", *["rc 16 xcup", "rc 32 xcup"] * 2])


def test_a_damaged_result_is_measured_again(tmp_path):
    go(tmp_path)
    for path in (tmp_path / "cache" / "results").iterdir():
        path.write_text(path.read_text()[:100])
    assert len(go(tmp_path)) == 4 and len(measured(tmp_path)) == 8


def test_processes(tmp_path):
    with local_pool(2) as pool:
        assert len(run(designs(), Store(tmp_path / "cache"), pool=pool, build=tmp_path / "build", work=fake_measure)) == 4
    assert len({line.split()[0] for line in (tmp_path / "build" / "log").read_text().splitlines()} - {str(os.getpid())}) >= 1


def test_a_killed_run_goes_on(tmp_path):
    """Killed without notice after its first result: that one is kept, and no file is half-written."""
    build = tmp_path / "build"
    build.mkdir()
    (build / "wait").write_text("0.5")
    program = textwrap.dedent(f"""
        from rtl_gen.report.run import run
        from rtl_gen.report.store import Store
        from tests.report.fakes import fake_measure
        from tests.report.test_run import designs
        class Job:
            def __init__(self, function, *args):
                self.result = lambda: function(*args)
        class Lazy:                 # works when it is asked for the result
            submit, at_once = Job, None
            def next_done(self, jobs):
                return next(iter(jobs))
        run(designs(), Store({str(tmp_path / 'cache')!r}), pool=Lazy(), build={str(build)!r}, work=fake_measure)
    """)
    process = subprocess.Popen([sys.executable, "-c", program])
    results = tmp_path / "cache" / "results"
    until = time.monotonic() + 60
    while not (results.exists() and [p for p in results.iterdir() if p.suffix == ".json" and not p.name.startswith(".")]):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = [p for p in results.iterdir() if not p.name.startswith(".")]
    assert 1 <= len(kept) < 4 and all(json.loads(p.read_text()) for p in kept)
    before = len(measured(tmp_path))
    (build / "wait").unlink()
    assert len(go(tmp_path)) == 4
    assert len(measured(tmp_path)) - before == 4 - len(kept)


def test_a_mapping_that_is_stopped_leaves_nothing(tmp_path, monkeypatch):
    def stopped(script, work):
        (work / "top.json").write_text("{")
        raise KeyboardInterrupt
    monkeypatch.setattr(flow, "run_yosys", stopped)
    with pytest.raises(KeyboardInterrupt):
        map_rtlil("module \\top\nend\n", build=tmp_path)
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []
    # and what one that was killed has left is taken away by the next
    (lock,) = tmp_path.iterdir()
    (tmp_path / lock.name.replace(".lock", ".old")).mkdir()
    with pytest.raises(KeyboardInterrupt):
        map_rtlil("module \\top\nend\n", build=tmp_path)
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []


def test_seeds_are_kept_one_by_one(tmp_path, monkeypatch):
    placed = []

    def place(config, family, build, netlist, clock_hz, seed):
        placed.append(seed)
        return {"seed": seed, "fmax_mhz": 100.0 + seed, "wrapper": {"lut": 1, "ff": 1, "inputs": 1, "outputs": 1, "pins": 4}}
    monkeypatch.setattr(run_module, "_place", place)
    one = designs_of("tiny", "xp", families="ecp5")
    (result,) = go(tmp_path, one, seeds=(1, 2)).values()
    (result,) = go(tmp_path, one, seeds=(1, 2, 5)).values()
    assert placed == [1, 2, 5]
    assert result["place"]["fmax_mhz"] == {"min": 101.0, "median": 102.0, "max": 105.0, "seeds": [1, 2, 5]}


def test_what_takes_longest_goes_first(tmp_path, monkeypatch):
    """Place and route as soon as its netlist is there, and not behind all that is to be mapped."""
    order = []

    def place(config, family, build, netlist, clock_hz, seed):
        order.append("place")
        return {"seed": seed, "fmax_mhz": 100.0, "wrapper": {"lut": 1, "ff": 1, "inputs": 1, "outputs": 1, "pins": 4}}

    def work(config, family, build):
        order.append(family)
        return fake_measure(config, family, build)
    monkeypatch.setattr(run_module, "_place", place)
    mixed = [*designs_of("tiny", "xp,rc", "16,32"), *designs_of("tiny", "xp", families="ecp5")]
    run(mixed, Store(tmp_path / "cache"), pool=Inline(), build=tmp_path / "build", work=work, seeds=(1, 2))
    assert order == ["ecp5", "place", "place", *["xcup"] * 4]


def test_what_does_not_fit_is_not_placed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "_place", None)

    def huge(config, family, build):
        found = fake_measure(config, family, build)
        found["result"]["cells"]["lut"] = 90_000
        return found
    (result,) = run(designs_of("tiny", "xp", families="ecp5"), Store(tmp_path / "cache"), pool=Inline(), build=tmp_path / "build", work=huge,
                    seeds=(1,)).values()
    assert result["place"]["fits"] is False and result["place"]["runs"] == []


def test_the_fake_is_like_a_result():
    """So that these tests stand for something: the form is that of the schema (test_outputs.py)."""
    (design,) = designs_of("tiny", "xp")
    assert fake_result(design.cfg, design.family)["cells"]["bram36"] == 21.5


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_and_their_tools_end_with_the_run(tmp_path, how):
    """A run that is killed or interrupted leaves no process behind that maps on for nobody, and doesn't wait for one."""
    program = textwrap.dedent(f"""
        import signal
        from rtl_gen.report.run import local_pool
        from tests.report.test_run import start_a_tool
        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)    # a shell's background job would ignore it
            with local_pool(1) as pool:
                pool.submit(start_a_tool, {str(tmp_path / 'pids')!r}).result()
    """)
    process = subprocess.Popen([sys.executable, "-c", program])
    until = time.monotonic() + 60
    while not (tmp_path / "pids").exists():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    process.send_signal(how)
    process.wait(timeout=60)
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < until, pids
        time.sleep(0.1)


def start_a_tool(path):
    """In a worker: a tool that takes long."""
    tool = subprocess.Popen(["sleep", "300"])
    part = f"{path}.part"
    with open(part, "w") as file:
        file.write(f"{os.getpid()} {tool.pid}")
    os.rename(part, path)
    tool.wait()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
