"""The peer's answers to our requests: what is done by them, what is sent again, and when (IBTA volume 1, 9.7.5 to 9.7.7)."""

from amaranth.hdl import C, Cat, Mux, Signal
from amaranth.lib.data import StructLayout

from optinic.abi.structs import FATAL
from optinic.abi.verdicts import REASON
from optinic.memory.table import TableSpec
from optinic.transport.rc.records import NAK_ACCESS, NAK_INVALID, Place, Turn, turn_layout
from optinic.transport.xp.records import Verdict

__all__ = ["requester_layout", "outstanding_layout", "tables", "slot_bits", "rnr_ticks", "ack_ticks", "walk", "measured_layout",
           "measure", "judge", "LONGEST_TIMEOUT"]

LONGEST_TIMEOUT = 24        #: a larger exponent is taken for this one: 4.096 us * 2^24, 69 s

# RNR timer codes, in units of 10 us (IBTA volume 1, table "RNR NAK timer field"); code 0 is the longest
_RNR_10US = [65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
             8192, 12288, 16384, 24576, 32768, 49152]


def requester_layout():
    """Of every QP's own requests: `una`, the oldest that isn't done, `first` its first PSN, `psn` the PSN that has to be
    acknowledged next; how many READs and atomics are done; how many requests are posted. `recovering`: what was lost has been
    asked for again, nothing has come of it yet. `waits`: for the peer to have a receive. `armed`: something happens at
    `deadline` (ticks). `failed`: request `failed_index` can't be sent. `stopped`: the QP has failed."""
    return StructLayout({"una": 16, "psn": 24, "first": 24, "reads": 16, "posted": 16, "retry": 3, "rnr": 3, "recovering": 1,
                         "waits": 1, "armed": 1, "deadline": 32, "failed": 1, "failed_cause": 3, "failed_index": 16, "stopped": 1})


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


def walk(m, frame, kinds, is_frame, req, entry, head, retired, lost, peek, unsent):
    """The states from WALK to the one before MEASURE, of RcOrder's machine: two cycles for each request that an ACK or an
    answer covers, which is taken off (in `req`) and counted in `retired`, and for the one behind those, which is `head`, if
    `head.valid`. `entry` is what the ring of requests holds in the place that `req.una` and `peek` name, a cycle late. A READ
    or atomic stops the walk: its answer is `lost`, if there is a later request; two more cycles to see whether, else it is
    `unsent`."""
    bits = len(retired) - 1         # of a place in the ring
    with m.State("WALK"):
        m.next = "TEST"
    with m.State("TEST"):
        e = entry
        there, covered = Signal(), Signal()
        m.d.comb += there.eq(e.valid & (e.lap == req.una[bits]))
        m.d.sync += [head.eq(e), head.valid.eq(there)]
        m.next = "MEASURE"
        reach = Signal(24)
        m.d.comb += [reach.eq(frame.psn - e.end - ~(kinds.ack & (frame.syndrome[5:7] == 0))),
                     covered.eq(there & ~reach[23] & is_frame)]
        with m.If(covered & ~e.rd & (retired != 1 << bits)):
            m.d.sync += [retired.eq(retired + 1), req.una.eq(req.una + 1), req.psn.eq(e.end + 1), req.first.eq(e.end + 1)]
            m.next = "WALK"
        with m.Elif(covered):
            m.d.sync += [lost.eq(1), peek.eq(1)]
            m.next = "PEEK"
    with m.State("PEEK"):
        m.next = "BEYOND"
    with m.State("BEYOND"):         # something behind that READ must have been sent, or the answer makes no sense
        m.d.sync += unsent.eq(~(entry.valid & (entry.lap == (req.una + 1)[bits])))
        m.next = "MEASURE"


class Judgement:
    """`progress`: something is done. `back`, `wait`: what is lost is asked for again, at once or later. `ends`: the open
    request has its answer. `ghost`: nothing of the frame counts, not what was taken off either. `fails`: the QP has failed.
    `rnr`: the peer has no receive. `busy`: requests are still open."""

    def __init__(self):
        # Signals of their own: a field that decides over another one of its Signal would be read in the block that writes it,
        # which a Verilog simulator runs but once.
        self.progress, self.back, self.wait, self.rnr, self.ends, self.ghost, self.fails, self.busy = (
            Signal(name=name) for name in ("progress", "back", "wait", "rnr", "ends", "ghost", "fails", "busy"))


def measured_layout():
    """How the frame stands to what comes next. `next`: its PSN is that one; `end`: it is the last one of the open request.
    `partial`: an ACK of some of that request; `answers`, `good`: its answer comes, and is right; `missing`: its answer should
    have come before; `ghost`: an ACK of what has not been sent. `far`, `gone`: packets of the open request that are done,
    before the frame and with what it acknowledges. `after`: the PSN behind what it acknowledges; `behind`: behind the open
    request. `spent`, `rnr_spent`: no retry is left; `never`, `rnr_never`: there never was one. `busy`, `still_busy`: there are
    requests beside those that are done, and beside the open one. `open`: there is an open one. `stuck`, `then_stuck`: the one
    that can't be sent is the open one, or the next one. `some`: requests are done. `retry`, `tries`: the counts of retries, one
    further. `rnr`, `gap`, `refused`: it is a NAK of that kind."""
    return StructLayout({"some": 1, "retry": 3, "tries": 3, "rnr": 1, "gap": 1, "refused": 1, "next": 1, "end": 1, "partial": 1,
                         "answers": 1, "good": 1, "missing": 1, "ghost": 1, "open": 1, "far": 24, "gone": 24, "after": 24,
                         "behind": 24, "spent": 1, "rnr_spent": 1, "never": 1, "rnr_never": 1,
                         "busy": 1, "still_busy": 1, "stuck": 1, "then_stuck": 1})


def measure(m, seen, frame, kinds, facts, rules, req, head, retired, lost, unsent):
    """Sets `seen` (measured_layout, in a register), when all requests before the oldest open one are taken off: that is
    `head`, if `head.valid`. `lost`: its answer should have come before what has been acknowledged, if that isn't `unsent`."""
    distance, reach = Signal(24), Signal(24)
    ack = kinds.ack & (frame.syndrome[5:7] == 0)
    una = Signal(16)
    m.d.comb += [distance.eq(frame.psn - req.psn), reach.eq(distance - ~ack), una.eq(req.una + 1)]
    nak = kinds.ack & (frame.syndrome[5:7] == 3)
    reads, end = head.valid & head.rd & ~lost & kinds.response, frame.psn == head.end
    answers = reads & (distance == 0)
    m.d.sync += [
        seen.some.eq(retired != 0), seen.retry.eq(req.retry + 1), seen.tries.eq(req.rnr + (req.rnr != 7)),
        seen.rnr.eq(kinds.ack & (frame.syndrome[5:7] == 1)), seen.gap.eq(nak & (frame.syndrome[:5] == 0)),
        seen.refused.eq(nak & (frame.syndrome[:5] != 0)), seen.next.eq(distance == 0),
        seen.partial.eq(kinds.ack & head.valid & ~head.rd & ~lost & ~reach[23]), seen.answers.eq(answers), seen.end.eq(end),
        seen.good.eq(answers & (end == kinds.final) & Mux(kinds.final, ~facts.over, facts.full)), seen.open.eq(head.valid),
        seen.missing.eq((lost & ~unsent) | (reads & ~distance[23] & (distance != 0))),
        # an ACK of what has not been sent says nothing at all
        seen.ghost.eq(unsent | ((kinds.ack | kinds.response) & ~head.valid & ~distance[23])),
        seen.far.eq(req.psn - req.first),
        seen.gone.eq(frame.psn - req.first + ack),
        seen.after.eq(frame.psn + (ack | kinds.response)), seen.behind.eq(head.end + 1), seen.spent.eq(req.retry == rules.retries),
        seen.rnr_spent.eq((req.rnr == rules.rnr_retries) & (rules.rnr_retries != 7)),
        seen.never.eq(rules.retries == 0), seen.rnr_never.eq(rules.rnr_retries == 0),
        seen.busy.eq(req.una != req.posted), seen.still_busy.eq(una != req.posted),
        seen.stuck.eq(req.failed & (req.failed_index == req.una)), seen.then_stuck.eq(req.failed & (req.failed_index == una)),
    ]


def judge(m, out, frame, kinds, mtu_code, seen, req, new, retired, timer):
    """What the frame says of the oldest open request, by what has been `seen` of both. `timer`: there is no frame, the time is
    up. Fills `out` and `new`. Returns a Judgement."""
    k, v = kinds, Judgement()
    syndrome = frame.syndrome
    partial, good, fatal, cause = seen.partial, seen.good, Signal(name="fatal"), Signal(3, name="cause")
    at = seen.open & (seen.next | partial)      # a NAK is about what comes next
    m.d.comb += [v.ends.eq(good & seen.end), v.ghost.eq(seen.ghost), v.progress.eq((seen.some & ~seen.ghost) | partial | good)]
    # what has to be sent again, and why
    gap, expired = seen.gap & at, timer & seen.open
    # every answer behind one that is missing says so again
    asks = ((seen.missing & (v.progress | ~req.recovering)) | gap | expired) & ~req.waits
    spent = Mux(v.progress, seen.never, seen.spent)
    m.d.comb += v.rnr.eq(seen.rnr & at & ~req.waits)
    m.d.comb += v.back.eq((asks & ~spent) | (timer & req.waits))
    with m.If(seen.answers & ~good):
        m.d.comb += [fatal.eq(1), cause.eq(FATAL["remote_invalid"])]
    with m.Elif(asks & spent):
        m.d.comb += [fatal.eq(1), cause.eq(FATAL["retry"])]
    with m.Elif(seen.refused & at):
        m.d.comb += [fatal.eq(1), cause.eq(FATAL["remote_operation"])]
        with m.If(syndrome == NAK_INVALID):
            m.d.comb += cause.eq(FATAL["remote_invalid"])
        with m.Elif(syndrome == NAK_ACCESS):
            m.d.comb += cause.eq(FATAL["remote_access"])
    with m.Elif(v.rnr):
        with m.If(Mux(v.progress, seen.rnr_never, seen.rnr_spent)):
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
        turn.index.eq(req.una + v.ends + v.fails), turn.psn.eq(Mux(partial, seen.after, req.psn)),
        turn.offset.eq((Mux(partial, seen.gone, seen.far) << shift)[:24]),
        out.index.eq(req.reads), out.posted.eq(req.reads + 1), out.offset.eq(Cat(C(0, 8), (seen.far << shift)[:24])),
        out.whole.eq(seen.end), new.retry.eq(Mux(v.progress, v.back, Mux(v.back & ~(timer & req.waits), seen.retry, req.retry))),
        new.rnr.eq(Mux(v.progress, v.wait, Mux(v.wait, seen.tries, req.rnr))),
        new.recovering.eq((v.back & ~req.waits) | (req.recovering & ~v.progress)), new.waits.eq(v.wait | (req.waits & ~timer)),
        new.psn.eq(Mux(v.ends, seen.behind, Mux(good | partial, seen.after, req.psn))), new.una.eq(turn.index),
        new.first.eq(Mux(v.ends, seen.behind, req.first)),
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
