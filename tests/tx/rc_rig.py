"""Rig for the send half of transport rc: ACKs to be sent, what the peer has acknowledged, and what the receive half is told."""

from collections import deque

from optinic.abi.registers import MTU_CODE, QP_TYPE
from optinic.config import preset
from optinic.tx.records import Event

from .send_rig import DELTA, GOOD, Rig

CFG = preset("tiny", transport="rc")
#: FIRST, MIDDLE, LAST, ONLY
CODES = {"send": (0, 1, 2, 4), "send_imm": (0, 1, 3, 5), "send_inv": (0, 1, 0x16, 0x17), "write": (6, 7, 8, 0xA), "write_imm": (6, 7, 9, 0xB)}


class RcRig(Rig):
    def __init__(self, cfg, seed, **options):
        super().__init__(cfg, seed, **options)
        self.acks, self.progress = deque(), deque()
        self.outstanding, self.failed, self.answered = [], [], []
        self.shown = []             # packets and what is told of them, in order
        self.offered = {}

    def context(self, qp, *, mtu=256, type="rc", state=2, cq=1, dest=0x123456, pd=3, peer=2, tclass=8, tag=0):
        self.contexts.append((qp, dict(cq=cq, dest_qpn=dest, tclass=tclass),
                              dict(state=state, type=QP_TYPE[type], mtu=MTU_CODE[mtu], pd=pd, peer=peer, tag=tag)))

    def reset(self, qp, *, psn=0, window=16, uc=0, **fields):
        """A new life."""
        self.context(qp, type="uc" if uc else "rc", **fields)
        self.posted[qp] = 0
        self.commands.append((Event.RESET, qp, dict(psn=psn, window=window, uc=uc)))

    def go_back(self, qp, index, offset=0, psn=0, *, kind=Event.GOBACK):
        self.commands.append((kind, qp, dict(index=index, offset=offset, psn=psn)))

    def command(self, c):
        return {"kind": c[0], "qp": c[1], **(c[2] if len(c) > 2 else {})}

    def drive_more(self, ctx):
        d = self.dut
        for name, queue in (("acks", self.acks), ("progress", self.progress)):
            port = getattr(d, name)
            if not self.offered.get(name) and queue and not ctx.get(d.clearing) and self._coin():
                ctx.set(port.payload, queue[0]), ctx.set(port.valid, 1)
                self.offered[name] = True

    def watch_more(self, ctx):
        d = self.dut
        for name, queue in (("acks", self.acks), ("progress", self.progress)):
            port = getattr(d, name)
            if self.offered.get(name) is None:
                ctx.set(port.valid, 0)
            elif self.offered[name] and ctx.get(port.ready):
                queue.popleft()
                self.offered[name] = None
        for name in ("outstanding", "failed", "answered"):
            port = getattr(d, name)
            if ctx.get(port.valid):
                p = port.payload
                getattr(self, name).append(ctx.get(p) if name == "answered" else {n: ctx.get(getattr(p, n)) for n in p.shape().members})


def expected(opcode, length, f, *, mtu, psn, uc=False, offset=0):
    """(packets of a work request from `offset` on, the PSN behind them), in plain arithmetic."""
    base = 0x20 if uc else 0
    if opcode == "read":
        rest = length - offset
        packet = dict(opcode=0x0C, psn=psn, len=0, reth=1, immdt=0, atomic=0, va=f["remote_va"] + offset, rkey=f["rkey"], dma_len=rest, ack_req=1)
        return [packet], (psn + max(1, -(-rest // mtu))) % (1 << 24)
    if opcode in ("compare_swap", "fetch_add"):
        compare = f["lkey"] | f["compare_hi"] << 32
        data = f["va"].to_bytes(8, "big") + compare.to_bytes(8, "big")
        packet = dict(opcode=0x13 if opcode == "compare_swap" else 0x14, psn=psn, len=16, reth=0, immdt=0, atomic=1, va=f["remote_va"], rkey=f["rkey"],
                      ack_req=1, inline=1, inline_data=int.from_bytes(data, "little"))
        return [packet], (psn + 1) % (1 << 24)
    out, first, middle, last, only = [], *CODES[opcode]
    for at in range(offset, max(length, 1), mtu):
        n = min(mtu, length - at)
        ends, begins = at + mtu >= length, at == 0
        code = (only if begins else last) if ends else (first if begins else middle)
        p = dict(opcode=base | code, psn=psn, len=n, reth=int("write" in opcode and begins), immdt=int(ends and opcode[-4:] in ("_imm", "_inv")),
                 atomic=0, ack_req=int(not uc and (ends or psn % 64 == 63)), solicited=int(ends and f.get("solicited", 0)))
        if p["immdt"]:
            p["imm"] = f["imm"]
        if p["reth"]:
            p |= dict(va=f["remote_va"], rkey=f["rkey"], dma_len=length)
        if n and not f.get("inline"):
            p["addr"] = (f["va"] + at + DELTA) % (1 << 64)
        out.append(p)
        psn = (psn + 1) % (1 << 24)
    return out, psn


def request(rng, mtu, *, uc=False, opcode=None, length=None):
    opcode = opcode or rng.choice(["send", "send_imm", "write", "write_imm"] + ([] if uc else ["read", "send_inv", "compare_swap", "fetch_add"]))
    if length is None:
        length = rng.choice([0, 1, 31, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 1, rng.randrange(4 * mtu)])
    f = dict(va=rng.randrange(1 << 40), lkey=GOOD, remote_va=rng.randrange(1 << 40), rkey=rng.randrange(1 << 32), imm=rng.randrange(1 << 32),
             signaled=rng.randrange(2), solicited=rng.randrange(2))
    if opcode in ("compare_swap", "fetch_add"):
        f |= dict(va=rng.randrange(1 << 64), lkey=rng.randrange(1 << 32), compare_hi=rng.randrange(1 << 32))
    elif length <= 32 and opcode != "read" and rng.randrange(2):
        f["inline"] = 1
    return opcode, length, f


def check(packets, want):
    for i, (p, w) in enumerate(zip(packets, want)):
        p = p | {"inline_data": p["inline_data"] & (1 << 8 * p["len"]) - 1}
        assert {k: p[k] for k in w} == w, f"packet {i}: {p} is not {w}"
    assert len(packets) == len(want)
