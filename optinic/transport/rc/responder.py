"""What becomes of a request of the peer: PSN, order, receives, and the answer that is owed (IBTA volume 1, 9.7.4 and 9.7.5)."""

from amaranth.hdl import Mux, Signal
from amaranth.lib.data import StructLayout
from amaranth.lib.enum import IntEnum

from optinic.abi.registers import QP_TYPE
from optinic.abi.structs import FATAL, OPCODE
from optinic.abi.verdicts import REASON
from optinic.memory.table import TableSpec
from optinic.transport.rc.records import ACK_NO_CREDITS, NAK_INVALID, NAK_SEQUENCE, RNR, Place, Reply, atomic_operands
from optinic.transport.xp.records import Verdict

__all__ = ["Phase", "responder_layout", "inbound_layout", "tables", "facts_layout", "weigh", "respond"]


class Phase(IntEnum, shape=2):
    """Which message of the peer is under way. ANSWER: none, and the last request was a READ or an atomic."""
    NONE = 0
    SEND = 1
    WRITE = 2
    ANSWER = 3


def responder_layout():
    """Of every QP: the PSN that comes next; messages that have ended; receives that are used up; whether a NAK has been sent for
    this PSN."""
    return StructLayout({"psn": 24, "msn": 24, "head": 32, "nak": 1, "phase": Phase})


def inbound_layout():
    """The message under way. WRITE: the address and key that come next, bytes left, bytes in all. SEND: `va` is the offset."""
    return StructLayout({"va": 64, "rkey": 32, "left": 32, "total": 32})


def tables(cfg):
    return [TableSpec("rc_responder", "rc order", responder_layout().size, cfg.num_qps, "qp", "hot"),
            TableSpec("rc_inbound", "rc order", inbound_layout().size, cfg.num_qps, "qp", "message")]


def facts_layout():
    """`same`, `behind`: the PSN is the one that comes next, or an earlier one; `turn`: it may come now. `full`, `over`: of the
    payload against the MTU. `order`, `size`: the packet may be the next one, by its place in a message and its lengths;
    `lacks`: the receive that it takes isn't posted. `sum`, `after`, `span`: the bytes of a SEND with this packet, the address
    behind it, the packets of a READ's answer."""
    return StructLayout({"same": 1, "behind": 1, "turn": 1, "full": 1, "over": 1, "order": 1, "size": 1, "lacks": 1, "sum": 32,
                         "after": 64, "span": 24})


def weigh(m, cfg, facts, frame, kinds, rc, mtu, mtu_code, rsp, msg, posted):
    """Sets `facts` (in a register) for `respond` in the next cycle."""
    k = kinds
    ahead = Signal(24)
    packets = Signal(25)        # of a READ's answer, as far as there are more than one
    before = Signal(33)
    m.d.comb += [ahead.eq(frame.psn - rsp.psn), before.eq(frame.dma_len + (mtu - 1))]
    with m.Switch(mtu_code):
        for code in range(1, 6):
            with m.Case(code):
                m.d.comb += packets.eq(before >> (code + 7))
    full, over, empty = frame.pay_len == mtu, frame.pay_len > mtu, frame.pay_len == 0
    size = Signal()
    with m.If(k.read):
        m.d.comb += size.eq(~frame.dma_len[31])
    with m.Elif(k.atomic):
        m.d.comb += size.eq((frame.va[:3] == 0) & bool(cfg.rc_atomics))
    with m.Elif(k.write):
        m.d.comb += size.eq(Mux(k.first, full & (frame.dma_len > frame.pay_len), Mux(k.middle, full & (msg.left > frame.pay_len),
                            Mux(k.last, ~empty & (msg.left == frame.pay_len), ~over & (frame.dma_len == frame.pay_len)))))
    with m.Else():
        m.d.comb += size.eq(Mux(k.first | k.middle, full, ~over & ~(k.last & empty)))
    begins = k.first | k.only | k.read | k.atomic
    takes = (k.send & (k.first | k.only)) | (k.write & k.imm)       # a receive must be there
    m.d.sync += [
        facts.same.eq(ahead == 0), facts.behind.eq(ahead[23]), facts.turn.eq((ahead == 0) | (~rc & (k.first | k.only))),
        facts.full.eq(full), facts.over.eq(over), facts.size.eq(size), facts.lacks.eq(takes & (posted == rsp.head[:16])),
        facts.order.eq(Mux(begins, ~rc | (rsp.phase == Phase.NONE) | (rsp.phase == Phase.ANSWER),
                           rsp.phase == Mux(k.write, Phase.WRITE, Phase.SEND))),
        facts.sum.eq(msg.va[:32] + frame.pay_len), facts.after.eq(Mux(k.first, frame.va, msg.va) + frame.pay_len),
        facts.span.eq(Mux(frame.dma_len == 0, 1, packets)),
    ]


def respond(m, cfg, out, put, moves, frame, kinds, facts, ctx, rules, rsp, msg, new_rsp, new_msg, room):
    """Fills `out` (work_layout) and the new state, which have the old one as default; `put` is high if `new_rsp` is to be
    written, `moves` if `new_msg` is. `kinds` are one-hot flags of the frame's opcode. `room`: for one more READ or atomic.
    Returns whether a job is taken."""
    rc = ctx.type == QP_TYPE["rc"]
    k, f = kinds, facts
    job = Signal()
    begins = k.first | k.only | k.read | k.atomic
    ends = k.only | k.last | k.read | k.atomic
    uses = ends & (k.send | k.imm)                                  # a receive is used up
    wants_job = k.read | k.atomic

    m.d.comb += [
        # what an accepted frame brings about; what is refused overwrites some of it
        out.place.eq(Mux(k.read, Place.READ, Mux(k.atomic, Place.ATOMIC, Mux(k.write, Place.WRITE, Place.SEND)))),
        out.index.eq(rsp.head), out.has_wqe.eq(0),
        # of a WRITE, what is to be checked: at its beginning all of it
        out.offset.eq(Mux(k.write, Mux(begins, frame.dma_len, frame.pay_len), Mux(begins, 0, msg.va))),
        out.va.eq(Mux(begins, frame.va, msg.va)),
        out.rkey.eq(Mux(begins, frame.rkey, msg.rkey)), out.psn.eq(frame.psn), out.msn.eq(rsp.msn), out.ends.eq(0), out.opcode.eq(
            Mux(k.write, OPCODE["write_imm"], Mux(k.inv, OPCODE["send_inv"], Mux(k.imm, OPCODE["send_imm"], OPCODE["send"])))),
        out.imm.eq(Mux(k.imm | k.inv, frame.imm, 0)), out.syndrome.eq(ACK_NO_CREDITS),
        out.length.eq(Mux(k.send, Mux(k.only, frame.pay_len, f.sum), Mux(begins, frame.dma_len, msg.total))),
        out.fatal.eq(0), out.cause.eq(FATAL["remote_invalid"]), out.ours.eq(0), out.uc.eq(~rc), out.begins.eq(begins),
        new_msg.va.eq(Mux(k.send, Mux(k.first, frame.pay_len, f.sum), f.after)), new_msg.rkey.eq(out.rkey),
        new_msg.left.eq(Mux(k.first, frame.dma_len, msg.left) - frame.pay_len),
        new_msg.total.eq(Mux(k.first, frame.dma_len, msg.total)),
    ]

    if cfg.rc_atomics:
        with m.If(k.atomic):
            operands = atomic_operands(out)
            m.d.comb += [operands[0].eq(frame.swap_add[:32]), operands[1].eq(frame.swap_add[32:]),
                         operands[2].eq(frame.compare[:32]), operands[3].eq(frame.compare[32:]),
                         out.opcode.eq(Mux(frame.op[0], OPCODE["compare_swap"], OPCODE["fetch_add"]))]

    def refuse(reason):
        m.d.comb += [out.verdict.eq(Verdict.DROPPED), out.reason.eq(REASON[reason]), out.place.eq(Place.NONE)]

    def nak(syndrome, psn):
        m.d.comb += [out.reply.eq(Reply.ACK), out.syndrome.eq(syndrome), out.psn.eq(psn)]

    def forget(passes=True):        # UC: the rest of the message is not wanted
        m.d.comb += [put.eq(1), new_rsp.phase.eq(Phase.NONE)]
        if passes:
            m.d.comb += new_rsp.psn.eq(frame.psn + 1)

    def busy():         # no room for one more READ or atomic: the peer shall come again
        refuse("overflow")
        nak(RNR | rules.rnr_code, rsp.psn)
        m.d.comb += [put.eq(1), new_rsp.nak.eq(1)]

    again = rc & ~f.same & f.behind
    with m.If(again):
        m.d.comb += [out.verdict.eq(Verdict.CONSUMED), out.again.eq(1), out.place.eq(Mux(k.read, Place.READ, Place.NONE))]
        with m.If(k.read | k.atomic):
            m.d.comb += [job.eq(room), out.reply.eq(Mux(k.read, Reply.READ, Reply.REPLAY))]
            with m.If(~room):
                refuse("overflow")
                m.d.comb += out.reply.eq(Reply.NONE)
        with m.Else():
            # All up to the newest request is acknowledged. But a READ or an atomic only its answer acknowledges: Soft-RoCE takes an
            # ACK with its number for the end of it, and does without what it should have brought.
            nak(ACK_NO_CREDITS, Mux(rsp.phase == Phase.ANSWER, frame.psn, rsp.psn - 1))
    with m.Elif(~f.turn):
        refuse("psn")
        with m.If(rc & ~rsp.nak):
            nak(NAK_SEQUENCE, rsp.psn)
            m.d.comb += [put.eq(1), new_rsp.nak.eq(1)]
        with m.If(~rc):
            forget(passes=False)
    with m.Elif(~f.order | ~f.size):
        refuse("sequence")
        with m.If(rc):
            nak(NAK_INVALID, rsp.psn)
            m.d.comb += out.fatal.eq(1)
        with m.Else():
            forget()
            with m.If(f.order):
                refuse("length")
    with m.Elif(f.lacks):
        refuse("no_receive")
        with m.If(rc):
            nak(RNR | rules.rnr_code, rsp.psn)
            m.d.comb += [put.eq(1), new_rsp.nak.eq(1)]
        with m.Else():
            forget()
    with m.Elif(wants_job & ~room):
        busy()
    with m.Else():
        m.d.comb += [
            put.eq(1), moves.eq(1), job.eq(wants_job), out.verdict.eq(Mux(wants_job, Verdict.CONSUMED, Verdict.PLACED)),
            out.has_wqe.eq(k.send), out.ends.eq(ends), out.complete.eq(uses),
            out.reply.eq(Mux(~rc, Reply.NONE, Mux(wants_job, Reply.READ, Mux(frame.ack_req, Reply.ACK, Reply.NONE)))),
            new_rsp.psn.eq(frame.psn + Mux(k.read, f.span, 1)), new_rsp.nak.eq(0), new_rsp.msn.eq(rsp.msn + ends),
            new_rsp.head.eq(rsp.head + uses), new_rsp.phase.eq(
                Mux(wants_job, Phase.ANSWER, Mux(ends, Phase.NONE, Mux(k.write, Phase.WRITE, Phase.SEND)))),
        ]
    return job
