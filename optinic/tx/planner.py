"""From a WQE and where its message stands to the next packet of it."""

from amaranth.hdl import C, Cat, Mux, Signal
from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum

from optinic.abi.registers import QP_STATE, QP_TYPE
from optinic.abi.structs import CAUSE, INLINE_MAX, SEND_OP, STATUS
from optinic.tx.records import OFFSET_UNIT, READ_RESPONSE
from optinic.wire.opcodes import CNP, UC_BASE, XP_BASE

__all__ = ["CNP_BYTES", "CNP_CLASS", "OVERHEAD", "Kind", "delay_of", "expires", "facts_layout", "has_no_wqe", "last_byte_of", "mtu_of", "plan", "psn_behind", "weigh"]

CNP_CLASS = 48 << 2         #: traffic class of a CNP: DSCP 48, as ConnectX sends it by default
_LOW = {"send": 0x04, "send_imm": 0x05, "write": 0x0A, "write_imm": 0x0B, "read": 0x0C}
_RESPONSE = 0x10
OVERHEAD = 14 + 20 + 8 + 12 + 4        # bytes of a frame around its extension headers and payload (IPv4, no tag)
CNP_BYTES = 16                         # reserved bytes of a CNP; it has no extension header (annex A17.9.3)


class Kind(Enum, shape=2):
    """What is planned."""
    OWN = 0         # the next packet of a work request
    ANSWER = 1      # the next packet of the answer to a peer's READ
    CNP = 2         # a congestion notification to the QP's peer
    SILENT = 3      # no packet: the end of a command


def has_no_wqe(kind):
    return (kind == Kind.CNP) | (kind == Kind.SILENT)


def facts_layout(cfg):
    """What the next packet depends on: `rest` bytes of the message are left (its low bits), `some` or none, of which `whole` says
    that they fit this one packet, `onward` the offset behind it if they don't; `ready`, `failed`, `bad`, `expired`: why the message may end here without one; `due`: ns / 1024 until
    its deadline, all ones if that is far. `tells`: its end is told to the driver. `base`: the high bits of the opcode."""
    return StructLayout({"rest": range(cfg.mtu_max + 1), "some": 1, "whole": 1, "mtu": range(cfg.mtu_max + 1), "onward": 32 - OFFSET_UNIT,
                         "ready": 1, "failed": 1, "bad": 1, "expired": 1, "due": 10, "tells": 1,
                         "read": 1, "reth": 1, "immdt": 1, "tracked": 1, "uc": 1, "xp": 1, "code": 5, "base": 3, "tclass": 8})


def last_byte_of(wqe, offset):
    """Of what is left of a message from `offset` on, the number of the last byte, counted from its first, and 2^32; less than
    that when nothing is left."""
    return wqe.length + ~Cat(C(0, OFFSET_UNIT), offset)


def mtu_of(m, cfg, own):
    mtu = Signal(range(cfg.mtu_max + 1))
    with m.Switch(own.mtu):
        for code in range(1, 6):
            if 128 << code <= cfg.mtu_max:
                with m.Case(code):
                    m.d.comb += mtu.eq(128 << code)
        with m.Default():
            m.d.comb += mtu.eq(cfg.mtu_max)
    return mtu


def weigh(m, cfg, facts, kind, wqe, until, offset, last_byte, context, own, failed):
    """Sets `facts` (comb) from a WQE, the ticks that are left until its deadline, the bytes of it that are planned
    (in units of 2^OFFSET_UNIT), what last_byte_of says of these, and the QP's contexts. For a CNP, and what is silent, `wqe` is
    zero and `failed` low."""
    op, uc = wqe.opcode, own.type == QP_TYPE["uc"]
    is_op = {name: op == SEND_OP[name] for name in _LOW}
    answer, cnp = kind == Kind.ANSWER, kind == Kind.CNP
    response = answer & (op == READ_RESPONSE)
    beyond = Signal(32)             # bits of the last byte's number that are beyond one MTU
    mtu = mtu_of(m, cfg, own)
    whole = Signal()
    m.d.comb += [beyond.eq(last_byte[:32] & ~(mtu - 1)), whole.eq((beyond == 0) | ~last_byte[32] | is_op["read"])]
    known = response | (~answer & Cat(is_op.values()).any())
    m.d.comb += [
        facts.rest.eq(Mux(cnp, CNP_BYTES, last_byte + 1)), facts.some.eq(last_byte[32] | cnp), facts.whole.eq(whole | cnp), facts.mtu.eq(mtu), facts.onward.eq(offset + (mtu >> OFFSET_UNIT)),
        # an answer to a READ of an earlier life is not given
        facts.ready.eq(cnp | ((own.state == QP_STATE["ready"]) & (kind != Kind.SILENT) & ~(answer & (wqe.imm[:8] != own.generation)))),
        facts.failed.eq(failed), facts.tells.eq((kind == Kind.OWN) & (own.state != QP_STATE["free"])),
        facts.bad.eq(~cnp & (~known | (uc & (is_op["read"] | response | ~whole)) | (wqe.inline & (wqe.length > INLINE_MAX)))),
        facts.expired.eq(wqe.deadline_set & (until[31] | (until == 0))),
        facts.due.eq(Mux(wqe.deadline_set & ~until[14:31].any(), until[4:14], -1)),
        facts.read.eq(is_op["read"]), facts.reth.eq(is_op["read"] | is_op["write"] | is_op["write_imm"]),
        facts.immdt.eq(is_op["send_imm"] | is_op["write_imm"]), facts.uc.eq(uc), facts.xp.eq(~uc & ~cnp),
        facts.tracked.eq(~uc & (is_op["send"] | is_op["send_imm"] | is_op["write_imm"] | response)),
        facts.code.eq(Mux(cnp, CNP & 31, _RESPONSE)), facts.base.eq(Mux(cnp, CNP, Mux(uc, UC_BASE, XP_BASE)) >> 5),
        facts.tclass.eq(Mux(cnp, CNP_CLASS, context.tclass)),
    ]
    for name, low in _LOW.items():
        with m.If(is_op[name]):
            m.d.comb += facts.code.eq(low)


def expires(facts):
    """Why the message ends, if it does without a packet: its deadline."""
    return facts.expired


def delay_of(facts, pause):
    """How long a QP with `pause` before it may give its slots back: its deadline may come first."""
    return Mux(facts.due < pause, facts.due, pause)


def psn_behind(facts, kind, position, ends):
    """The PSN of the packet behind the one that is planned."""
    return Mux(ends, position.psn, position.psn + 1)


def plan(m, cfg, out, query, facts, kind, wqe, position, offset, context, own, qp, run, ack):
    """Fills `out` (planned_layout) and `query` with the next packet, or with the silent one that ends the message. A fence has
    behind it, if `run.count` isn't 0, the completion of so many sends as flushed, the last of which is `run.last`; `ack` is of transport
    rc. Returns (ends, over, bytes): the message ends without a packet; this is the last of it; and how long the frame is, about."""
    ends, over = Signal(), Signal()
    pay = Signal(range(cfg.mtu_max + 1))
    length = Signal(14)
    answer, cnp, fence = kind == Kind.ANSWER, kind == Kind.CNP, kind == Kind.SILENT
    m.d.comb += [
        ends.eq(~facts.ready | facts.failed | facts.bad | facts.expired), over.eq(ends | facts.whole),
        pay.eq(Mux(facts.read, 0, Mux(facts.whole, facts.rest, facts.mtu))),
        length.eq(pay + (OVERHEAD + 16 * ~facts.uc) + Cat(C(0, 2), facts.immdt, C(0, 1), facts.reth)),
    ]
    bytes_before = Cat(C(0, OFFSET_UNIT), offset)
    fold, mask, psn = Signal(14), Signal(7), Signal(24)
    inline = wqe.inline | cnp
    m.d.comb += [
        fold.eq(context.dest_qpn[:14] ^ context.dest_qpn[10:] ^ qp), mask.eq((1 << context.paths) - 1), psn.eq(Mux(cnp, 0, position.psn)),
        out.opcode.eq(Cat(facts.code, facts.base)), out.xpeth.eq(facts.xp), out.reth.eq(facts.reth), out.immdt.eq(facts.immdt),
        out.becn.eq(cnp), out.solicited.eq(wqe.solicited & facts.whole), out.peer.eq(own.peer), out.dest_qpn.eq(context.dest_qpn),
        out.psn.eq(psn), out.tclass.eq(facts.tclass), out.sport.eq(Cat(fold ^ (psn[:7] & mask), C(3, 2))),
        out.tracked.eq(facts.tracked), out.generation.eq(context.generation), out.tag.eq(Mux(fence, run.count - 1, wqe.tag)),
        out.seq.eq(Mux(wqe.opcode == SEND_OP["write"], 0, wqe.seq)), out.msg_len.eq(wqe.length), out.offset.eq(offset),
        out.va.eq(wqe.remote_va + bytes_before), out.rkey.eq(wqe.rkey), out.imm.eq(wqe.imm), out.len.eq(Mux(ends, 0, pay)),
        out.some.eq(~ends & ~facts.read & facts.some),
        out.silent.eq(ends), out.inline.eq(inline), out.inline_data.eq(wqe.as_value()[256:512]),
        query.key.eq(wqe.lkey), query.va.eq(wqe.va + bytes_before), query.pd.eq(own.pd), query.len.eq(Mux(ends | inline, 0, pay)),
        query.remote.eq(answer), out.remote.eq(answer), out.qp.eq(qp), out.fence.eq(fence), out.always.eq(wqe.signaled | ends),
        out.last.eq(Mux(fence, run.count != 0, over & facts.tells)),
    ]
    e = out.end
    m.d.comb += [
        e.cq.eq(context.cq), e.tag.eq(own.tag), e.index.eq(Mux(fence, run.last, position.sent)), e.opcode.eq(wqe.opcode),
        e.status.eq(STATUS["success"]), e.cause.eq(CAUSE["complete"]),
    ]
    with m.If(~facts.ready):
        m.d.comb += [e.status.eq(STATUS["error"]), e.cause.eq(CAUSE["flushed"])]
    with m.Elif(facts.failed):
        m.d.comb += [e.status.eq(STATUS["error"]), e.cause.eq(CAUSE["bus"])]
    with m.Elif(facts.bad):
        m.d.comb += [e.status.eq(STATUS["error"]), e.cause.eq(CAUSE["length"])]
    with m.Elif(facts.expired):
        m.d.comb += [e.status.eq(STATUS["partial"]), e.cause.eq(CAUSE["timeout"])]
    return ends, over, length
