"""What becomes of the peer's answers to our requests: which are done, which must be sent again, and when (IBTA volume 1, 9.7.5 to 9.7.7)."""

from amaranth.hdl import C, Cat, Mux, Signal
from amaranth.lib.data import StructLayout

from optinic.abi.structs import FATAL
from optinic.abi.verdicts import REASON
from optinic.memory.table import TableSpec
from optinic.transport.rc.records import NAK_ACCESS, NAK_INVALID, Place, Turn, turn_layout
from optinic.transport.xp.records import Verdict

__all__ = ["requester_layout", "outstanding_layout", "tables", "slot_bits", "rnr_ticks", "ack_ticks", "measured_layout", "measure", "judge", "LONGEST_TIMEOUT"]

LONGEST_TIMEOUT = 24        #: a larger exponent is taken for this one: 4.096 us * 2^24, 69 s

# RNR timer codes, in units of 10 us (IBTA volume 1, table "RNR NAK timer field"); code 0 is the longest
_RNR_10US = [65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288,
             16384, 24576, 32768, 49152]


def requester_layout():
    """Of every QP's own requests: `una`, the oldest that isn't done, `first` its first PSN, `psn` the PSN that has to be
    acknowledged next; how many READs and atomics are done; how many requests are posted. `recovering`: what was lost has been
    asked for again, nothing has come of it yet. `waits`: for the peer to have a receive. `armed`: something happens at
    `deadline` (ticks). `failed`: request `failed_index` can't be sent. `stopped`: the QP has failed."""
    return StructLayout({"una": 16, "psn": 24, "first": 24, "reads": 16, "posted": 16, "retry": 3, "rnr": 3, "recovering": 1, "waits": 1,
                         "armed": 1, "deadline": 32, "failed": 1, "failed_cause": 3, "failed_index": 16, "stopped": 1})


def slot_bits(cfg):
    return cfg.rc_outstanding.bit_length() - 1


def outstanding_layout():
    """A request that has been sent, in place index modulo rc_outstanding: its last PSN, whether it has an answer of its own, and
    the next bit of its index, so that it isn't taken for the one before it in this place."""
    return StructLayout({"valid": 1, "lap": 1, "rd": 1, "end": 24})


def tables(cfg):
    return [TableSpec("rc_requester", "rc order", requester_layout().size, cfg.num_qps, "qp", "hot"),
            TableSpec("rc_outstanding", "rc order", outstanding_layout().size, cfg.num_qps << slot_bits(cfg), "qp", "message",
                      rows_per=1 / cfg.rc_outstanding)]


def rnr_ticks(m, code):
    """The time of an RNR timer code in ticks of 64 ns, rounded up."""
    ticks = Signal(24)
    with m.Switch(code):
        for i, tens in enumerate(_RNR_10US):
            with m.Case(i):
                m.d.comb += ticks.eq(-(-tens * 10_000 // 64))
    return ticks


def ack_ticks(timeout):
    """4.096 us * 2^timeout in ticks of 64 ns."""
    return (C(64, 32) << Mux(timeout > LONGEST_TIMEOUT, LONGEST_TIMEOUT, timeout))[:32]


class Judgement:
    """`progress`: something is done. `back`, `wait`: what is lost is asked for again, at once or later. `ends`: the open request has its answer. `ghost`: nothing of the
    frame counts, not what was taken off either. `fails`: the QP has failed. `rnr`: the peer has no receive. `busy`: requests are still open."""

    def __init__(self):
        # Signals of their own: a field that decides over another one of its Signal would be read in the block that writes it,
        # which a Verilog simulator runs but once.
        self.progress, self.back, self.wait, self.rnr, self.ends, self.ghost, self.fails, self.busy = (
            Signal(name=name) for name in ("progress", "back", "wait", "rnr", "ends", "ghost", "fails", "busy"))


def measured_layout():
    """How the frame stands to what comes next: `next`, `ahead`: its PSN is that one, or later; `covers`: it acknowledges that one, or more;
    `end`: it is the last one of the open request; `beyond`: of what has been sent. `far`, `gone`: packets of the open request that are done, before the frame and with
    what it acknowledges. `after`: the PSN behind what it acknowledges; `behind`: behind the open request. `spent`, `rnr_spent`: no retry is left.
    `busy`, `still_busy`: there are requests beside those that are done, and beside the open one. `stuck`, `then_stuck`: the one that can't be sent is the open one, or the
    next one. `some`: requests are done. `rnr`, `gap`, `refused`: it is a NAK of that kind."""
    return StructLayout({"some": 1, "rnr": 1, "gap": 1, "refused": 1, "next": 1, "ahead": 1, "covers": 1, "end": 1, "beyond": 1, "far": 24, "gone": 24, "after": 24, "behind": 24,
                         "spent": 1, "rnr_spent": 1, "busy": 1, "still_busy": 1, "stuck": 1, "then_stuck": 1})


def measure(m, seen, frame, kinds, rules, req, head, retired):
    """Sets `seen` (measured_layout, in a register), when all requests before the oldest open one are taken off."""
    distance, reach = Signal(24), Signal(24)
    ack = kinds.ack & (frame.syndrome[5:7] == 0)
    una = Signal(16)
    m.d.comb += [distance.eq(frame.psn - req.psn), reach.eq(distance - ~ack), una.eq(req.una + 1)]
    nak = kinds.ack & (frame.syndrome[5:7] == 3)
    m.d.sync += [
        seen.some.eq(retired != 0), seen.rnr.eq(kinds.ack & (frame.syndrome[5:7] == 1)), seen.gap.eq(nak & (frame.syndrome[:5] == 0)),
        seen.refused.eq(nak & (frame.syndrome[:5] != 0)), seen.next.eq(distance == 0), seen.ahead.eq(~distance[23] & (distance != 0)), seen.covers.eq(~reach[23]), seen.end.eq(frame.psn == head.end),
        seen.beyond.eq(~distance[23]), seen.far.eq(req.psn - req.first), seen.gone.eq(frame.psn - req.first + ack), seen.after.eq(frame.psn + (ack | kinds.response)),
        seen.behind.eq(head.end + 1), seen.spent.eq(req.retry == rules.retries), seen.rnr_spent.eq((req.rnr == rules.rnr_retries) & (rules.rnr_retries != 7)),
        seen.busy.eq(req.una != req.posted), seen.still_busy.eq(una != req.posted), seen.stuck.eq(req.failed & (req.failed_index == req.una)),
        seen.then_stuck.eq(req.failed & (req.failed_index == una)),
    ]


def judge(m, out, frame, kinds, facts, mtu_code, seen, req, new, head, retired, lost, unsent, timer):
    """What the frame says of the oldest open request, `head`, if `head.valid`. `lost`: its answer should have come before what has been
    acknowledged, if that isn't `unsent`. `timer`: there is no frame, the time is up. Fills `out` and `new`. Returns a Judgement."""
    k, f = kinds, facts
    v = Judgement()
    syndrome = frame.syndrome
    partial, answers, good, fatal, cause = (Signal(n, name=name) for name, n in (("partial", 1), ("answers", 1), ("good", 1), ("fatal", 1), ("cause", 3)))
    at = seen.next | partial            # a NAK is about what comes next
    m.d.comb += [
        partial.eq(k.ack & head.valid & ~head.rd & ~lost & seen.covers),
        answers.eq(k.response & head.valid & head.rd & ~lost & seen.next),
        good.eq(answers & (seen.end == k.final) & Mux(k.final, ~f.over, f.full)), v.ends.eq(good & seen.end),
        # an ACK of what has not been sent says nothing at all
        v.ghost.eq(unsent | (k.ack & ~head.valid & seen.beyond)),
        v.progress.eq((seen.some & ~v.ghost) | partial | good),
    ]
    # what has to be sent again, and why
    missing = (lost & ~unsent) | (k.response & head.valid & head.rd & ~lost & seen.ahead)
    gap = seen.gap & head.valid & at
    expired = timer & head.valid
    # every answer behind one that is missing says so again
    asks = ((missing & (v.progress | ~req.recovering)) | gap | expired) & ~req.waits
    spent = ~v.progress & seen.spent
    m.d.comb += v.rnr.eq(seen.rnr & at & head.valid & ~req.waits)
    m.d.comb += v.back.eq((asks & ~spent) | (timer & req.waits))
    with m.If(answers & ~good):
        m.d.comb += [fatal.eq(1), cause.eq(FATAL["remote_invalid"])]
    with m.Elif(asks & spent):
        m.d.comb += [fatal.eq(1), cause.eq(FATAL["retry"])]
    with m.Elif(seen.refused & at & head.valid):
        m.d.comb += [fatal.eq(1), cause.eq(FATAL["remote_operation"])]
        with m.If(syndrome == NAK_INVALID):
            m.d.comb += cause.eq(FATAL["remote_invalid"])
        with m.Elif(syndrome == NAK_ACCESS):
            m.d.comb += cause.eq(FATAL["remote_access"])
    with m.Elif(v.rnr):
        with m.If(~v.progress & seen.rnr_spent):
            m.d.comb += [fatal.eq(1), cause.eq(FATAL["rnr_retry"])]
        with m.Else():
            m.d.comb += v.wait.eq(1)
    # the request that can't be sent is the oldest one now
    stuck = ~v.ghost & ~v.back & ~fatal & Mux(v.ends, seen.then_stuck, seen.stuck)

    turn, shift, una = turn_layout()(out.va), Signal(3), Signal(16)
    m.d.comb += [
        shift.eq(mtu_code - 1), una.eq(req.una + v.ends), v.fails.eq(fatal | stuck),
        out.fatal.eq(v.fails), out.cause.eq(Mux(stuck, req.failed_cause, cause)), out.ours.eq(1), out.verdict.eq(Verdict.CONSUMED),
        out.turn.eq(Mux(v.back, Turn.GO_BACK, Mux(v.fails | v.wait, Turn.HALT, Turn.NONE))),
        # a frame that places something has no turn
        turn.index.eq(req.una + (v.ends | v.fails)), turn.psn.eq(Mux(partial, seen.after, req.psn)),
        turn.offset.eq((Mux(partial, seen.gone, seen.far) << shift)[:24]),
        out.index.eq(req.reads), out.posted.eq(req.reads + 1), out.offset.eq(Cat(C(0, 8), (seen.far << shift)[:24])), out.whole.eq(seen.end),
        new.retry.eq(Mux(v.progress, v.back, req.retry + (v.back & ~(timer & req.waits)))),
        new.rnr.eq(Mux(v.progress, v.wait, req.rnr + (v.wait & (req.rnr != 7)))),
        new.recovering.eq((v.back & ~req.waits) | (req.recovering & ~v.progress)), new.waits.eq(v.wait | (req.waits & ~timer)),
        new.psn.eq(Mux(v.ends, seen.behind, Mux(good | partial, seen.after, req.psn))), new.una.eq(turn.index), new.first.eq(Mux(v.ends, seen.behind, req.first)),
        new.reads.eq(req.reads + v.ends), new.failed.eq(req.failed & ~v.back), new.stopped.eq(v.fails | req.stopped),
        out.retired.eq(retired + v.ends), out.una.eq(una), v.busy.eq(Mux(v.ends, seen.still_busy, seen.busy)),
    ]
    with m.If(k.response):
        m.d.comb += [out.place.eq(Mux(good, Place.ANSWER, Place.NONE)), out.has_wqe.eq(good)]
        with m.If(~good):
            m.d.comb += [out.verdict.eq(Verdict.DROPPED), out.reason.eq(REASON["psn"])]
        with m.Else():
            m.d.comb += out.verdict.eq(Verdict.PLACED)
    with m.If(v.ghost):
        m.d.comb += [out.verdict.eq(Verdict.DROPPED), out.reason.eq(REASON["psn"]), out.retired.eq(0)]
    return v
