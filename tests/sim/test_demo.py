"""`optinic demo`: what it says is what happened."""

import numpy as np
import pytest

from optinic.config import preset
from sim.experiments.demo import DemoError, comparison, message_bytes, picture, run, table

TINY = preset("tiny")


def show(backend, **how):
    told, ended = [], []
    result = run(backend, TINY, say=told.append, progress=lambda done, total: ended.append((done, total)), **how)
    assert result["problems"] == [] and ended[-1] == (result["messages"], result["messages"])
    assert result["complete"] + result["partial"] == result["messages"]
    assert result["bytes_placed"] == result["bytes_there"] == result["bytes"] - result["bytes_missing"]
    return result, "\n".join(told)


def test_without_loss():
    result, told = show("model", loss=0, size=100_000)
    assert result["complete"] == result["messages"] == 7 and result["error_norm"] == 0 and result["late_ns"] <= 0
    assert result["frames_sent"] == -(-100_000 // 1024) and 4 < result["goodput_gbit_s"] < 8
    assert "a model in Python" in told and "25,000 float32, in 7 messages" in told
    assert picture(result) == "█" * 7 and ("largest wait past the deadline", "none: all had ended before") in table(result)


def test_with_loss():
    result, _ = show("model", loss=0.1, size=200_000, mtu=256, seed=5)
    assert result["frames_lost"] > 20 and result["bytes_missing"] == 256 * result["frames_lost"] and result["partial"] > 5
    # each value is lost with the same chance, so the error is about the root of the share that is lost
    assert result["error_norm"] == pytest.approx((result["bytes_missing"] / result["bytes"]) ** 0.5, rel=0.1)
    assert result["causes"]["timeout"] > 0 and 0 <= result["late_ns"] < 1000        # to the clock cycle, in ticks of 64 ns
    again, _ = show("model", loss=0.1, size=200_000, mtu=256, seed=5)
    assert again == result


@pytest.mark.rtl
def test_on_the_verilog(tmp_path):
    result, told = show("rtl", loss=0.05, size=60_000, seed=2, pcap=tmp_path / "x.pcap")
    assert result["frames_lost"] > 0 and result["late_ns"] < 5000 and "generated Verilog" in told
    assert (tmp_path / "x.pcap").stat().st_size > 60_000


def test_limits():
    with pytest.raises(DemoError, match="--mtu 4096 is above 1024"):
        run("model", TINY, mtu=4096)
    for size in (4, 1 << 20, 1 << 26):          # the rings hold all of the receives
        assert size <= message_bytes(TINY, size, 1024) * 32 * 8
    result, _ = show("model", size=4, loss=0)
    assert (result["bytes"], result["messages"], result["complete"]) == (4, 1, 1)


def test_wrong_bytes_are_found():
    """Negative control of the comparison."""
    sent = np.arange(1, 1025, dtype=np.float32)
    got = sent.copy()
    got[256:512] = 0
    got[700] += 1
    found = comparison(sent, got, [(0, 2048), (2048, 2048)], 1024)
    assert (found["bytes_there"], found["bytes_missing"], found["bytes_wrong"]) == (2048, 1024, 1024)
    assert found["messages_there"] == [0.5, 0.5] and found["error_norm"] > 0
