"""A memory behind an AXI4 write port, for the benches of blocks that write: strict, with random pauses and latencies."""

from collections import deque, namedtuple

import cocotb
from cocotb.triggers import RisingEdge

__all__ = ["AxiWriteMemory", "Burst"]

Burst = namedtuple("Burst", "addr data begun acked")    #: bytes strobed, as {address: byte}; cycles of AW and of B


class AxiWriteMemory:
    """`bytes` is what is in memory (written when the answer is given), `bursts` all answered writes in order.

    `error(addr)` may say that a burst is answered with SLVERR, and then it isn't written. `on_burst(addr)` is called when an
    address is accepted, when `bursts` has what was answered in cycles before.
    """

    def __init__(self, dut, prefix, rng, pause=0.0, latency=(1, 20), error=lambda addr: False,
                 on_burst=lambda addr: None):
        self.dut, self.rng, self.pause, self.latency, self.error, self.on_burst = dut, rng, pause, latency, error, on_burst
        self.port = {n: getattr(dut, prefix + n) for n in (
            "awid", "awaddr", "awlen", "awsize", "awburst", "awvalid", "awready", "wdata", "wstrb", "wlast", "wvalid", "wready",
            "bid", "bresp", "bvalid", "bready")}
        self.lanes = len(self.port["wstrb"])
        self.bytes, self.bursts, self.open, self.cycle = {}, [], deque(), 0
        self.in_flight = deque()
        cocotb.start_soon(self._run())

    @property
    def idle(self):
        return not self.open and not self.in_flight

    def read(self, addr, n):
        return bytes(self.bytes.get(addr + i, 0) for i in range(n))

    async def _run(self):
        p, early, due, held = self.port, deque(), 0, None
        while True:
            await RisingEdge(self.dut.clk)
            self.cycle += 1
            if self.dut.rst.value:
                early.clear(), self.open.clear(), self.in_flight.clear()
                held = None
                p["awready"].value = p["wready"].value = p["bvalid"].value = 0
                continue
            now = lambda *names: tuple(int(p[n].value) for n in names)
            aw, w = now("awid", "awaddr", "awlen", "awsize", "awburst"), now("wdata", "wstrb", "wlast")
            valids = now("awvalid", "awready", "wvalid", "wready")
            if held:
                assert not held[0] or valids[0] and aw == held[1], "AW changed or was withdrawn before it was accepted"
                assert not held[2] or valids[2] and w == held[3], "W changed or was withdrawn before it was accepted"
            held = (valids[0] and not valids[1], aw, valids[2] and not valids[3], w)
            if valids[0] and valids[1]:
                self._address(*aw)
            if valids[2] and valids[3]:
                early.append(w)
            while early and self.open:
                if self._data(*early.popleft()):
                    burst = self.open.popleft()
                    due = max(due, self.cycle + self.rng.randint(*self.latency))
                    self.in_flight.append((due, burst))
            if p["bvalid"].value and p["bready"].value:
                _, (ident, addr, _, data, begun) = self.in_flight.popleft()
                self.bursts.append(Burst(addr, data, begun, self.cycle))
                p["bvalid"].value = 0
                answering = False
            else:
                answering = bool(p["bvalid"].value)
            if not answering and self.in_flight and self.in_flight[0][0] <= self.cycle and self.rng.random() >= self.pause:
                ident, addr, _, data, _ = self.in_flight[0][1]
                bad = self.error(addr)
                if not bad:
                    self.bytes.update(data)
                p["bid"].value, p["bresp"].value, p["bvalid"].value = ident, 2 * bad, 1
            p["awready"].value = int(self.rng.random() >= self.pause)
            p["wready"].value = int(self.rng.random() >= self.pause)

    def _address(self, ident, addr, length, size, burst):
        beats = length + 1
        assert burst == 1 and 1 << size == self.lanes, f"burst type {burst}, size {size}"
        start = addr // self.lanes * self.lanes
        assert start // 4096 == (start + beats * self.lanes - 1) // 4096, f"burst of {beats} beats at {addr:#x} crosses 4 KiB"
        self.on_burst(addr)
        self.open.append((ident, addr, [beats, start], {}, self.cycle))

    def _data(self, data, strobe, last):
        _, addr, state, written, _ = self.open[0]
        for lane in range(self.lanes):
            if strobe >> lane & 1:
                assert state[1] + lane >= addr, f"strobe before the address {addr:#x}"
                written[state[1] + lane] = data >> 8 * lane & 0xFF
        state[0] -= 1
        state[1] += self.lanes
        assert bool(last) == (state[0] == 0), "wlast is not on the last beat"
        return last
