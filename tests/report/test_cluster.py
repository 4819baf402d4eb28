"""Designs measured by the workers of a dask.distributed scheduler, each a process of its own; one of them dies at work."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from rtl_gen.report.designs import designs_of
from rtl_gen.report.run import cluster_pool, run
from rtl_gen.report.store import Store

from .fakes import fake_measure

pytest.importorskip("distributed", reason="dask.distributed is not installed: pip install 'optinic[cluster]'")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def cluster(tmp_path):
    """(address, worker processes) of a scheduler and two workers of one thread."""
    address = f"tcp://127.0.0.1:{free_port()}"
    host, port = address.removeprefix("tcp://").split(":")
    processes = []

    def start(*args):
        processes.append(subprocess.Popen([sys.executable, "-m", "dask", *args], cwd=os.getcwd(), stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL))
        return processes[-1]

    start("scheduler", "--host", host, "--port", port, "--no-dashboard")
    workers = [start("worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--local-directory", str(tmp_path / name))
               for name in ("one", "two")]
    yield address, workers
    for process in processes:
        process.kill()
        process.wait()


def test_two_workers_and_one_dies(cluster, tmp_path):
    address, workers = cluster
    build = tmp_path / "build"
    build.mkdir()
    (build / "wait").write_text("1")
    wanted = designs_of("tiny", "xp,rc", "16,32,64")

    def kill_one():
        """Once both have begun."""
        until = time.monotonic() + 90
        while time.monotonic() < until:
            if (build / "log").exists() and len({line.split()[0] for line in (build / "log").read_text().splitlines()}) == 2:
                (build / "wait").write_text("0")
                workers[0].send_signal(signal.SIGKILL)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with cluster_pool(address, timeout=60) as pool:
        results = run(wanted, Store(tmp_path / "cache"), pool=pool, build=build, work=fake_measure)
    killer.join()
    assert len(results) == 6 and workers[0].poll() is not None
    log = [line.split() for line in (build / "log").read_text().splitlines()]
    assert {line[0] for line in log} == {str(w.pid) for w in workers}
    assert len({tuple(line[1:]) for line in log}) == 6
