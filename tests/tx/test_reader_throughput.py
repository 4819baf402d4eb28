"""How fast PayloadReader is, in cycles, on the datapath of 512 bits with 64 reads in flight and a buffer of 32 KiB."""

import pytest

from optinic.config import preset

from .reader_bench import simulate

LATENCY = 250       #: of the host, in cycles: 1 us at 250 MHz


def steady(size, packets, *, addr=None, latency=LATENCY, **kind):
    """The bench after `packets` packets of `size` bytes, and the R channel from the 10th to the 90th percent of its beats."""
    async def scenario(bench):
        for _ in range(packets):
            bench.send(size, bench.rng.getrandbits(40) if addr is None else addr, **kind)
        await bench.drain()
    bench = simulate(preset("c100g"), scenario, size, answer=lambda *_: (latency, "ok"),
                     oldest_first=True, verify=False)
    assert not bench.failed and len(bench.log) == packets
    beats = [cycle for cycle, (valid, ready) in enumerate(bench.r_log) if valid and ready]
    window = bench.r_log[beats[len(beats) // 10]:beats[-len(beats) // 10]]
    return bench, window


@pytest.mark.parametrize("size, packets", [(4096, 30), (1024, 100), (256, 250)])
def test_data_channel_is_kept_busy(size, packets):
    bench, window = steady(size, packets)
    busy = sum(valid and ready for valid, ready in window) / len(window)
    print(f"{size} bytes: {100 * busy:.2f} % of {len(window)} cycles")
    assert busy >= .99 and all(ready for _, ready in window)


@pytest.mark.parametrize("latency, pace", [(250, 4.1), (100, 1.75), (20, 1.0)])
def test_small_packets(latency, pace):
    """64 bytes in one beat: 64 packets in flight, or one a cycle."""
    bench, _ = steady(64, 300, addr=0x1000, latency=latency)
    cycles = (bench.accept_log[100 + 128] - bench.accept_log[100]) / 128
    print(f"latency {latency}: a packet each {cycles:.2f} cycles")
    assert cycles <= pace


@pytest.mark.parametrize("kind, pace", [(dict(size=32, inline=1), 2), (dict(size=0), 1), (dict(size=64, silent=1), 1)])
def test_packets_without_reads(kind, pace):
    async def scenario(bench):
        for _ in range(100):
            bench.send(**kind)
        await bench.drain()
    bench = simulate(preset("c100g"), scenario, 1)
    assert bench.accept_log[-1] - bench.accept_log[10] == pace * 89       # the first fill what waits inside
