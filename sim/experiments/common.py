"""What experiments with several cards share: how fast their cables and their hosts are, and what may not happen."""

from .bench_rx import BenchError

__all__ = ["SIMULATED", "cable_rate", "host_knobs", "check"]

SIMULATED = {"rtl": "generated Verilog", "model": "model"}
ETHERNET = (10, 25, 40, 50, 100, 200, 400)      # Gbit/s


def cable_rate(cfg):
    """Bit/s: of the usual rates the highest that the datapath keeps up with, or the datapath's own if that is less than all."""
    datapath = cfg.data_width * cfg.clock_hz
    return max((gbit * 10**9 for gbit in ETHERNET if gbit * 10**9 <= datapath), default=datapath)


def host_knobs(backend, cfg, host_ns):
    """How slow the simulated hosts are."""
    cycles = max(1, round(host_ns / cfg.clock_ns))
    return {"read_latency": cycles, "write_latency": cycles} if backend == "rtl" else {}


def check(cards):
    """No card did to its host what it may not."""
    for card in cards:
        wrong = [*card.device.faults, *card.device.violations]
        if wrong:
            raise BenchError(f"{card.name} did what it may not: {wrong[0]}")
