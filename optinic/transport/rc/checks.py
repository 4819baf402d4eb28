"""What RcOrder finds out of every frame before its PSN counts, and how it sets a QP's timer."""

from amaranth.hdl import Cat, Mux, Signal
from amaranth.lib.data import StructLayout

from optinic.abi.registers import QP_STATE, QP_TYPE
from optinic.abi.verdicts import REASON
from optinic.transport.xp.deadlines import LaneKind
from optinic.transport.xp.records import Verdict, WorkKind

__all__ = ["KINDS", "kinds_layout", "kinds", "common", "judge", "same_source", "set_lane"]

KINDS = ("send", "write", "read", "atomic", "response", "ack", "first", "middle", "last", "only", "final", "imm", "inv")


def kinds_layout():
    """What the opcode says, one bit each. `response`: of a READ or an atomic; `final`: the last one, or the only one."""
    return StructLayout({name: 1 for name in KINDS})


def kinds(m, frame):
    """Flags of the frame's opcode, ready two cycles after the frame; `none`: it is for nobody."""
    op = frame.op
    among = lambda *codes: Cat(op == code for code in codes).any()
    k = Signal(StructLayout({**kinds_layout().members, "none": 1}))
    m.d.sync += [
        k.send.eq((op < 6) | among(0x16, 0x17)), k.write.eq((op >= 6) & (op <= 0x0B)), k.read.eq(op == 0x0C),
        k.atomic.eq(among(0x13, 0x14)),
        k.response.eq(among(0x0D, 0x0E, 0x0F, 0x10, 0x12)), k.ack.eq(op == 0x11), k.first.eq(among(0, 6)), k.middle.eq(among(1, 7)),
        k.last.eq(among(2, 3, 8, 9, 0x16)), k.only.eq(among(4, 5, 0x0A, 0x0B, 0x17)), k.final.eq(among(0x0F, 0x10, 0x12)),
        k.imm.eq(among(3, 5, 9, 0x0B)), k.inv.eq(among(0x16, 0x17)), k.none.eq(frame.passed | (frame.reason != 0)),
    ]
    return k


def common(m, w, frame, kind, qp, ctx, rules, receives):
    """What of the record is the same whatever is decided."""
    m.d.comb += [
        w.kind.eq(kind), w.beats.eq(frame.beats), w.pay_off.eq(frame.pay_off), w.pay_len.eq(frame.pay_len), w.qp.eq(qp),
        w.qpn.eq(Mux(kind == WorkKind.FRAME, frame.qpn, Cat(qp, ctx.tag))), w.pd.eq(ctx.pd), w.life.eq(ctx.life), w.ce.eq(frame.ce),
        w.is_cnp.eq(frame.is_cnp), w.cq.eq(ctx.cq), w.send_cq.eq(rules.send_cq), w.posted.eq(receives),
    ]


def judge(m, cfg, w, frame, k, ctx, same, is_frame, pkey):
    """Verdict and reason of a frame that never gets as far as its PSN, in w; returns whether it is one. All but its source is
    looked at a cycle before."""
    known, refused, reason = Signal(), Signal(), Signal(5)
    low, full = frame.pkey[:15] == pkey[:15], frame.pkey[15] | pkey[15]
    foreign = frame.other | (~frame.is_cnp
                             & ((frame.uc != (ctx.type == QP_TYPE["uc"])) | (frame.uc & (k.read | k.atomic | k.response | k.ack))))
    there = (ctx.state != QP_STATE["free"]) & (frame.qpn[cfg.qp_bits:] == ctx.tag) & (frame.qpn[:cfg.qp_bits] < cfg.num_qps)
    m.d.sync += [known.eq(there), refused.eq(0)]
    for i, (name, wrong) in enumerate((("qpn", ~there), ("state", ctx.state != QP_STATE["ready"]), ("opcode", foreign),
                                       ("pkey", ~(low & full)))):
        with m.If(wrong) if i == 0 else m.Elif(wrong):
            m.d.sync += [refused.eq(1), reason.eq(REASON[name])]
    stopped = Signal()
    m.d.comb += [stopped.eq(refused | ~same), w.known.eq(is_frame & ~k.none & known), w.verdict.eq(Verdict.CONSUMED)]
    with m.If(is_frame):
        with m.If(frame.passed):
            m.d.comb += w.verdict.eq(Verdict.PASSED)
        with m.Elif(frame.reason != 0):
            m.d.comb += [w.verdict.eq(Verdict.DROPPED), w.reason.eq(frame.reason)]
        with m.Elif(stopped):
            m.d.comb += [w.verdict.eq(Verdict.DROPPED), w.reason.eq(Mux(refused, reason, REASON["source"]))]
    return stopped


def same_source(cfg, frame, peer):
    """Whether the frame comes from the peer."""
    if cfg.ipv6:
        return (peer.ip == frame.src_ip) & (peer.v6 == frame.src_v6)
    return peer.ip == frame.src_ip[:32]


def set_lane(m, lane, now, en, qp, armed, due):
    """The scanner's entry of the QP, a cycle later: a deadline further off than it can say is approached in steps."""
    en2, qp2, armed2, due2, left = Signal(), Signal.like(qp), Signal(), Signal(32), Signal(32)
    m.d.sync += [en2.eq(en), qp2.eq(qp), armed2.eq(armed), due2.eq(due), left.eq(due - now)]
    far = ~left[31] & left[18:31].any()
    m.d.sync += [
        lane.en.eq(en2), lane.qp.eq(qp2), lane.kind.eq(LaneKind.DEADLINE), lane.active.eq(armed2),
        lane.coarse.eq(Mux(far, now[4:20] + (1 << 14), due2[4:20] + due2[:4].any())),
    ]
