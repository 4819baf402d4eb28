"""Transport rc and UC: from a WQE and where its message stands to the next packet of it; ACKs and the answers to READs and atomics.

Opcodes and what follows them: IBTA volume 1, 9.2 and 9.4. The functions are those of optinic/tx/planner.py, for the same machine.
"""

from amaranth.hdl import C, Cat, Const, Mux, Signal
from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum

from optinic.abi.registers import QP_STATE, QP_TYPE
from optinic.abi.structs import CAUSE, INLINE_MAX, INLINE_OFFSET, SEND_OP, STATUS
from optinic.tx.planner import CNP_BYTES, CNP_CLASS, OVERHEAD, mtu_of
from optinic.tx.records import ATOMIC_RESPONSE, OFFSET_UNIT, READ_RESPONSE
from optinic.wire.opcodes import CNP, RC_BASE, UC_BASE

__all__ = ["ACK_EVERY", "Kind", "delay_of", "expires", "facts_layout", "has_no_wqe", "plan", "psn_behind", "weigh"]

ACK_EVERY = 64      #: inside a message, the last one of so many PSNs asks for an ACK
_ATOMIC_BYTES = 16  # operands of an atomic
assert _ATOMIC_BYTES == CNP_BYTES
_ACK = 0x11         # low five bits of the opcode, as all these
#: FIRST, MIDDLE, LAST, ONLY; a READ request is never cut, nor is an atomic
_CODES = {
    "send": (0x00, 0x01, 0x02, 0x04), "send_imm": (0x00, 0x01, 0x03, 0x05), "send_inv": (0x00, 0x01, 0x16, 0x17),
    "write": (0x06, 0x07, 0x08, 0x0A), "write_imm": (0x06, 0x07, 0x09, 0x0B),
    "read": (0x0C,) * 4, "compare_swap": (0x13,) * 4, "fetch_add": (0x14,) * 4,
}
_UC = ("send", "send_imm", "write", "write_imm")
_READ_ANSWER, _ATOMIC_ANSWER = (0x0D, 0x0E, 0x0F, 0x10), (0x12,) * 4


class Kind(Enum, shape=3):
    """What is planned."""
    OWN = 0         # the next packet of a work request
    ANSWER = 1      # the next packet of the answer to a peer's READ, or the one to its atomic
    CNP = 2         # a congestion notification to the QP's peer
    SILENT = 3      # no packet: the end of a command
    ACK = 4         # an ACK or a NAK


def has_no_wqe(kind):
    return (kind == Kind.CNP) | (kind == Kind.SILENT) | (kind == Kind.ACK)


def facts_layout(cfg):
    """What the next packet depends on: `rest` bytes of the message are left, `some` or none, of which `whole` says that they
    fit this one packet, `onward` the offset behind it if they don't; `ready`, `failed`, `bad`: why the message may end here
    without one. `begins`: it is the first packet of a request of an RC QP, whose last PSN is `span` ahead. `bare`: it has no
    payload. `word`: there is an ImmDt, IETH or AETH. Opcode and word depend on whether this is the end: `last` or `part`.
    `turned`: an atomic's numbers, big endian on the wire. `tells`: its end is told to the driver. `base`: the high bits of the
    opcode."""
    return StructLayout({"rest": 32, "some": 1, "whole": 1, "mtu": range(cfg.mtu_max + 1), "onward": 32 - OFFSET_UNIT,
                         "ready": 1, "failed": 1, "bad": 1, "tells": 1, "reliable": 1, "uc": 1, "begins": 1, "span": 24,
                         "read": 1, "bare": 1, "reth": 1, "atomic": 1, "turned": 1, "inline": 1, "word_last": 1, "word_part": 1,
                         "code_last": 5, "code_part": 5, "base": 3, "tclass": 8})


def weigh(m, cfg, facts, kind, wqe, until, offset, last_byte, context, own, failed):
    """Sets `facts` (comb) from a WQE, the bytes of it that are planned (in units of 2^OFFSET_UNIT), what last_byte_of says of
    these, and the QP's contexts. For an ACK, a CNP, and what is silent, `wqe` is zero and `failed` low. There are no deadlines
    (`until`)."""
    op, uc, rc = wqe.opcode, own.type == QP_TYPE["uc"], own.type == QP_TYPE["rc"]
    names = [name for name in _CODES if cfg.rc_atomics or name not in ("compare_swap", "fetch_add")]
    mine, answer, cnp, ack = (kind == k for k in (Kind.OWN, Kind.ANSWER, Kind.CNP, Kind.ACK))
    is_op = {name: op == SEND_OP[name] for name in names}         # of work requests only: the other kinds' WQEs have none of these
    read, atomic = is_op["read"], is_op["compare_swap"] | is_op["fetch_add"] if cfg.rc_atomics else Const(0)
    write = is_op["write"] | is_op["write_imm"]
    read_answer, atomic_answer = answer & (op == READ_RESPONSE), answer & (op == ATOMIC_RESPONSE) if cfg.rc_atomics else Const(0)
    mtu = mtu_of(m, cfg, own)
    first, whole, known = Signal(), Signal(), Signal()
    beyond = Signal(32)             # bits of the last byte's number that are beyond one MTU
    m.d.comb += [
        first.eq(offset == 0), beyond.eq(last_byte[:32] & ~(mtu - 1)),
        whole.eq((beyond == 0) | ~last_byte[32] | read | atomic | cnp),
        known.eq(read_answer | atomic_answer | Mux(uc, Cat(is_op[name] for name in _UC).any(), rc & Cat(is_op.values()).any())),
        facts.rest.eq(Mux(cnp | atomic, _ATOMIC_BYTES, last_byte + 1)), facts.some.eq(last_byte[32] | cnp | atomic),
        facts.whole.eq(whole), facts.mtu.eq(mtu), facts.onward.eq(offset + (mtu >> OFFSET_UNIT)),
        facts.ready.eq(cnp | ack | ((own.state == QP_STATE["ready"]) & (kind != Kind.SILENT)
                                    & ~(answer & (wqe.tag[:2] != own.life)))), facts.failed.eq(failed),
        facts.bad.eq(~cnp & ~ack & (~known | (mine & ~read & ~atomic & wqe.inline & (wqe.length > INLINE_MAX)))),
        facts.tells.eq(mine & ~rc & (own.state != QP_STATE["free"])), facts.reliable.eq(mine & rc), facts.uc.eq(uc),
        facts.begins.eq(mine & rc & first), facts.read.eq(read), facts.bare.eq(read | ack), facts.atomic.eq(atomic),
        facts.turned.eq(atomic | atomic_answer), facts.inline.eq(wqe.inline | atomic | cnp), facts.reth.eq(read | (write & first)),
        facts.word_last.eq(is_op["send_imm"] | is_op["write_imm"] | is_op["send_inv"] | read_answer | atomic_answer | ack),
        facts.word_part.eq(read_answer & first),
        facts.base.eq(Mux(cnp, CNP >> 5, Mux(uc, UC_BASE >> 5, RC_BASE >> 5))),
        facts.tclass.eq(Mux(cnp, CNP_CLASS, context.tclass)), facts.code_last.eq(Mux(cnp, CNP & 31, _ACK)),
    ]
    for chosen, codes in [*((is_op[name], _CODES[name]) for name in names), (read_answer, _READ_ANSWER),
                          (atomic_answer, _ATOMIC_ANSWER)]:
        with m.If(chosen):
            m.d.comb += [facts.code_part.eq(Mux(first, codes[0], codes[1])), facts.code_last.eq(Mux(first, codes[3], codes[2]))]
    # the number of packets that are left, but one
    with m.Switch(own.mtu):
        for code in range(1, 6):
            if 128 << code <= cfg.mtu_max:
                low = 7 + code
                with (m.Default() if 128 << code == cfg.mtu_max else m.Case(code)):
                    m.d.comb += facts.span.eq(Mux(last_byte[32] & ~atomic, last_byte[low:32], 0))


def expires(facts):
    """Whether a deadline has ended the message."""
    return C(0)


def delay_of(facts, pause):
    """How long a QP with `pause` before it may give its slots back."""
    return pause


def psn_behind(facts, kind, position, ends):
    """The PSN of the packet behind the one that is planned. A READ request has those of its answer. A request that can't be
    sent has one, too, so that the peer, which never sees it, takes none of the later requests."""
    behind = position.psn - ~Mux(facts.read, facts.span, C(0, 24))       # one adder: 1 more than the sum
    return Mux(ends & facts.uc, position.psn, behind[:24])


def plan(m, cfg, out, query, facts, kind, wqe, position, offset, context, own, qp, run, ack):
    """Fills `out` (planned_layout) and `query` with the next packet, or with the silent one that ends the message; an ACK's are in
    `ack`. A fence has behind it, if `run.count` isn't 0, the completion of so many sends as flushed, the last of which is
    `run.last`. Returns (ends, over, bytes): the message ends without a packet; this is the last of it; and how long the frame
    is, about."""
    ends, over = Signal(), Signal()
    pay = Signal(range(cfg.mtu_max + 1))
    length = Signal(14)
    word, fold, data = Signal(), Signal(14), Signal(8 * INLINE_MAX)
    answer, cnp, fence = kind == Kind.ANSWER, kind == Kind.CNP, kind == Kind.SILENT
    whole = facts.whole
    m.d.comb += [
        ends.eq(~facts.ready | facts.failed | facts.bad), over.eq(ends | whole),
        word.eq(Mux(whole, facts.word_last, facts.word_part)),
        pay.eq(Mux(facts.bare, 0, Mux(whole, facts.rest[:len(pay)], facts.mtu))),
        length.eq(pay + OVERHEAD + Cat(C(0, 2), word | facts.atomic, facts.atomic, facts.reth)),
        fold.eq(context.dest_qpn[:14] ^ context.dest_qpn[10:] ^ qp), data.eq(wqe.as_value()[8 * INLINE_OFFSET:]),
    ]
    with m.If(facts.turned):
        for i in range(0, _ATOMIC_BYTES, 8):
            number = wqe.as_value()[8 * (INLINE_OFFSET + i):][:64]
            m.d.comb += data[8 * i:8 * i + 64].eq(Cat(number.word_select(n, 8) for n in reversed(range(8))))
    bytes_before = Cat(C(0, OFFSET_UNIT), offset)
    m.d.comb += [
        out.opcode.eq(Cat(Mux(whole, facts.code_last, facts.code_part), facts.base)), out.reth.eq(facts.reth),
        out.atomic.eq(facts.atomic), out.immdt.eq(word), out.becn.eq(cnp), out.solicited.eq(wqe.solicited & whole),
        out.ack_req.eq(facts.reliable & (whole | position.psn[:(ACK_EVERY - 1).bit_length()].all())),
        out.peer.eq(own.peer), out.dest_qpn.eq(context.dest_qpn), out.psn.eq(Mux(cnp, 0, position.psn)),
        out.tclass.eq(facts.tclass),
        out.sport.eq(Cat(fold, C(3, 2))), out.va.eq(wqe.remote_va + bytes_before), out.rkey.eq(wqe.rkey),
        out.dma_len.eq(facts.rest), out.imm.eq(Mux(kind == Kind.ACK, Cat(ack.msn, ack.syndrome), wqe.imm)),
        out.len.eq(Mux(ends, 0, pay)), out.some.eq(~ends & ~facts.bare & facts.some), out.silent.eq(ends),
        out.inline.eq(facts.inline), out.inline_data.eq(data),
        query.key.eq(wqe.lkey), query.va.eq(wqe.va + bytes_before), query.pd.eq(own.pd),
        query.len.eq(Mux(ends | facts.inline, 0, pay)),
        query.remote.eq(answer), out.remote.eq(answer), out.qp.eq(qp), out.fence.eq(fence), out.always.eq(wqe.signaled | ends),
        out.last.eq(Mux(fence, run.count != 0, over & facts.tells)), out.msg_len.eq(wqe.length),
        out.tag.eq(Mux(fence, run.count - 1, wqe.tag)), out.index.eq(position.sent), out.reliable.eq(facts.reliable),
        out.wrong.eq(facts.reliable & facts.ready & (facts.failed | facts.bad)), out.bad.eq(~facts.failed),
    ]
    e = out.end
    m.d.comb += [
        e.cq.eq(context.cq), e.tag.eq(own.tag), e.index.eq(Mux(fence, run.last, position.sent)), e.opcode.eq(wqe.opcode),
        e.status.eq(Mux(ends, STATUS["error"], STATUS["success"])), e.cause.eq(CAUSE["complete"]),
    ]
    with m.If(~facts.ready):
        m.d.comb += e.cause.eq(CAUSE["flushed"])
    with m.Elif(facts.failed):
        m.d.comb += e.cause.eq(CAUSE["bus"])
    with m.Elif(facts.bad):
        m.d.comb += e.cause.eq(CAUSE["length"])
    return ends, over, length
