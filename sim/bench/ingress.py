"""Frames through Ingress and what it says of them, held against the independent model of the wire."""

import cocotb

from optinic.abi.verdicts import REASON
from optinic.rx.descriptor import descriptor_layout
from sim.models.wire import Rules, inspect

from .bfm import FrameSource, StreamSink, config, cycles, reset, unpack, until

__all__ = ["IngressBench"]

NAME = {number: name for name, number in REASON.items()}


class IngressBench:
    """Sends frames back to back, reads each one back out of the packet buffer, frees it, and compares."""

    def __init__(self, dut, rng, pause=0.0):
        self.dut, self.cfg = dut, config()
        cfg = self.cfg
        self.rules = Rules(mtu_max=cfg.mtu_max, max_frame_bytes=cfg.max_frame_bytes, ipv6=cfg.ipv6, vlan=cfg.vlan, uc=cfg.uc)
        self.source = FrameSource(dut, "mac__", rng, pause)
        self.sink = StreamSink(dut, "descriptors__", rng, ("payload",), pause)
        self.taken = self.at = 0
        self.overflows = 0
        dut.enable.value, dut.hold.value = 1, 1
        cocotb.start_soon(self._count())

    async def _count(self):
        while True:
            await cycles(self.dut, 1)
            self.overflows += int(self.dut.overflow.value)

    async def restart(self):
        """Reset, wherever it is; the packet buffer begins at its beat 0 again."""
        self.dut.rd_pointer.value = self.at = 0
        await reset(self.dut)
        self.taken = len(self.sink.got)

    async def run(self, frames):
        """[what was said of each frame: "passed", "none" or a reason]"""
        for frame in frames:
            self.source.send(frame)
        said = []
        for i, frame in enumerate(frames):
            await until(self.dut, lambda: len(self.sink.got) > self.taken, what=f"the descriptor of frame {i}")
            d = unpack(descriptor_layout(self.cfg), self.sink.got[self.taken]["payload"])
            self.taken += 1
            stored = await self._read_back(d["beats"])
            self.at = (self.at + d["beats"]) % (2 * self.cfg.rx_buffer_beats)
            self.dut.rd_pointer.value = self.at
            said.append(self._compare(f"frame {i} ({frame[:200].hex()})", frame, d, stored))
        await cycles(self.dut, 40)
        assert len(self.sink.got) == self.taken and self.overflows == 0, "more descriptors than frames"
        assert self.dut.idle.value == 1
        return said

    async def _read_back(self, beats):
        found, depth, width = [], self.cfg.rx_buffer_beats, self.cfg.beat_bytes
        for i in range(beats + 3):      # set behind one edge, seen by the next, out of the register behind the one after
            if i >= 3:
                found.append(int(self.dut.rd_data.value).to_bytes(width, "little"))
            self.dut.rd_addr.value = (self.at + min(i, beats - 1)) % depth
            await cycles(self.dut, 1)
        return b"".join(found)

    def _compare(self, what, frame, d, stored):
        want = inspect(frame, self.rules)
        expected = "passed" if want.passed else want.reason or "none"
        said = "passed" if d["passed"] else NAME[d["reason"]]
        assert said == expected, f"{what}: {said}, the model says {expected}"
        assert d["beats"] == min(self.cfg.max_frame_beats, -(-len(frame) // self.cfg.beat_bytes)), f"{what}: {d['beats']} beats"
        assert stored[:len(frame)] == frame[:len(stored)], f"{what}: differs in the packet buffer"
        if said != "none":
            return said
        fields = {"is_xp": want.kind == "xp", "is_uc": want.kind == "uc", "is_cnp": want.kind == "cnp",
                  "other": want.kind == "other", "ce": want.ce, "qpn": want.qpn, "pkey": want.pkey,
                  "src_ip": int.from_bytes(want.source, "big"), "src_v6": len(want.source) == 16}
        if want.kind in ("xp", "uc"):
            fields |= {"tracked": want.tracked, "is_write": want.write, "has_imm": want.has_imm, "pay_len": len(want.payload),
                       "msg_len": want.msg_len, "offset": want.offset}
            fields |= {"va": want.va, "rkey": want.rkey} if want.write else {}
            fields |= {"imm": want.imm} if want.has_imm else {}
            fields |= {"generation": want.generation, "tag": want.tag, "seq": want.seq} if want.kind == "xp" else {}
            start = d["pay_off"]
            assert stored[start:start + len(want.payload)] == want.payload, f"{what}: pay_off={start}"
        for name, value in fields.items():
            assert d[name] == value, f"{what}: {name} is {d[name]:#x}, the model says {int(value):#x}"
        return said
