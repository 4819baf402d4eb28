"""Benches for test_runner: one that passes, one that fails, one without tests, one whose simulation dies."""

import os

import cocotb

from sim.bench.bfm import begin, cycles
from sim.runner import bench_parameters

WHAT = bench_parameters()["what"]

if WHAT != "nothing":
    @cocotb.test()
    async def one(dut):
        rng = await begin(dut)
        if WHAT == "dies":
            os._exit(0)
        print("drew", rng.random())
        await cycles(dut, 3)
        assert WHAT != "fails", "as it should"
