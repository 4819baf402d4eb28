"""What becomes of a settled record: which of it is carried out, and the jobs for the host writer that say so."""

from amaranth.hdl import Mux, Signal
from amaranth.lib.data import StructLayout

from optinic.abi.structs import CAUSE, FATAL, OPCODE, STATUS
from optinic.abi.verdicts import REASON
from optinic.memory.job import JobKind
from optinic.transport.rc.records import Place, Reply, Turn
from optinic.transport.xp.records import Verdict, WorkKind

__all__ = ["flags_layout", "weigh", "fill_job", "too_long"]


def flags_layout():
    """`refused`: memory says no. `fatal`: the QP fails here. `spoiled`: a piece of this UC message was refused. `drop`: the
    frame isn't placed. `retires`: requests of ours are done. `first`, `second`, `log`: there is a job of that kind, see
    fill_job. `put`: something is owed to the peer; `turn`: the send half has something to do; `atomic`, `search`, `answer`: an
    atomic is to be carried out, or its old result to be found, or a READ to be answered."""
    return StructLayout({name: 1 for name in ("refused", "fatal", "spoiled", "drop", "retires", "first", "second", "log", "put",
                                              "turn", "atomic", "search", "answer")})


def too_long(r):
    """A SEND that is longer than its receive is an invalid request, not a wrong access."""
    return (r.place == Place.SEND) & r.short & ~r.failed


def _unreadable(r):
    return r.has_wqe & r.failed


def weigh(m, f, reason, r, row, log_en):
    """Sets the flags `f` and the `reason` of a refusal, in registers, from the record and what is known of its QP
    (RcCommit.row_layout)."""
    frame, ours = r.kind == WorkKind.FRAME, r.place == Place.ANSWER
    command = (r.kind == WorkKind.RESET) | (r.kind == WorkKind.FLUSH) | (r.kind == WorkKind.FENCE)
    refused = frame & (r.place != Place.NONE) & ((r.mem_reason != 0) | _unreadable(r) | r.short)
    dead = row.dead & frame & r.known & ~r.is_cnp
    lives = ~row.dead
    fatal = lives & (r.fatal | (refused & ~r.uc))
    spoiled = lives & r.uc & (refused | (row.spoiled & ~r.begins))
    good = lives & ~refused
    drop = Signal()
    acknowledges = (r.reply == Reply.ACK) | ((r.reply == Reply.READ) & (r.place != Place.ATOMIC))
    m.d.comb += drop.eq(dead | refused | spoiled | (r.verdict == Verdict.DROPPED))
    m.d.sync += [
        f.refused.eq(lives & refused), f.fatal.eq(fatal), f.spoiled.eq(spoiled), f.drop.eq(drop),
        f.retires.eq(lives & (r.retired != Mux(refused & ours, r.whole, 0))),
        f.first.eq(frame | command | (lives & (r.retired != 0))), f.second.eq(fatal), f.log.eq(log_en & r.known & drop),
        f.put.eq((r.kind == WorkKind.RESET) | (good & acknowledges) | (lives & refused & ~ours & ~r.uc)),
        f.turn.eq((lives & (r.turn != Turn.NONE)) | ((r.kind == WorkKind.FLUSH) & (r.turn != Turn.NONE)) | fatal),
        f.atomic.eq(good & (r.place == Place.ATOMIC)), f.search.eq(lives & (r.reply == Reply.REPLAY)),
        f.answer.eq(good & (r.reply == Reply.READ) & (r.place == Place.READ)),
    ]
    early = (r.verdict == Verdict.DROPPED) & (r.reason < REASON["state"])
    with m.If(dead & ~early):
        m.d.sync += reason.eq(REASON["state"])
    with m.Elif(refused):
        m.d.sync += reason.eq(Mux(_unreadable(r), REASON["no_receive"], Mux(r.mem_reason != 0, r.mem_reason, REASON["bounds"])))
    with m.Else():
        m.d.sync += reason.eq(Mux(spoiled & (r.verdict != Verdict.DROPPED), REASON["sequence"], r.reason))


def fill_job(m, job, step, f, reason, r, row, una, retired, log_cq, time):
    """The record's jobs, by `step`: 0 the frame's own, with what completes well, or a command's fence; 1 the failure of the QP;
    2 the entry of the refusal log. `una` and `retired`: our first open request, and how many before it are done by this."""
    frame, place, ours = r.kind == WorkKind.FRAME, r.place, r.place == Place.ANSWER
    command = (r.kind == WorkKind.RESET) | (r.kind == WorkKind.FLUSH) | (r.kind == WorkKind.FENCE)
    c = job.completion
    posted = Signal(16)     # receives that a flush completes
    m.d.comb += [posted.eq(r.posted - row.head), job.qp.eq(r.qp), c.qpn.eq(r.qpn), c.time.eq(time)]
    with m.Switch(step):
        with m.Case(0):
            with m.If(frame):
                m.d.comb += [job.beats.eq(r.beats), job.pay_off.eq(r.pay_off), job.len.eq(r.pay_len), job.addr.eq(r.addr),
                             job.kind.eq(JobKind.SKIP)]
                with m.If(r.verdict == Verdict.PASSED):
                    m.d.comb += job.kind.eq(JobKind.PASS)
                with m.Elif((place != Place.NONE) & (r.verdict == Verdict.PLACED) & ~f.drop):
                    m.d.comb += job.kind.eq(JobKind.PLACE)
            m.d.comb += [job.fence.eq(command | f.answer), job.ends_life.eq(r.kind == WorkKind.RESET),
                         c.status.eq(STATUS["success"]), c.cause.eq(CAUSE["complete"])]
            with m.If(f.retires):
                m.d.comb += [job.complete.eq(1), c.queue.eq(1), c.cq.eq(r.send_cq), c.wqe_index.eq((una - 1)[:16]),
                             c.skipped.eq(retired - 1)]
            with m.Elif(r.kind == WorkKind.FLUSH):
                m.d.comb += [job.complete.eq(posted != 0), c.cq.eq(r.cq), c.status.eq(STATUS["error"]),
                             c.cause.eq(CAUSE["flushed"]),
                             c.wqe_index.eq(r.index + (r.posted - r.index[:16])[:16] - 1), c.skipped.eq(posted - 1)]
            with m.Else():
                m.d.comb += [job.complete.eq(frame & r.complete & (~f.drop | f.spoiled)), c.cq.eq(r.cq), c.opcode.eq(r.opcode),
                             c.wqe_index.eq(r.index), c.byte_len.eq(r.length), c.msg_len.eq(r.length), c.imm.eq(r.imm)]
                with m.If(f.spoiled):
                    m.d.comb += [c.status.eq(STATUS["error"]), c.cause.eq(CAUSE["protection"]), c.byte_len.eq(0)]
        with m.Case(1):
            sends = Mux(f.refused, ours, r.ours)
            m.d.comb += [
                job.complete.eq(1), c.queue.eq(sends), c.cq.eq(Mux(sends, r.send_cq, r.cq)), c.status.eq(STATUS["fatal"]),
                c.cause.eq(r.cause), c.wqe_index.eq(Mux(sends, una, Mux(place == Place.ATOMIC, 0, r.index))),
                c.opcode.eq(Mux(sends, 0, OPCODE["event"])),
            ]
            with m.If(f.atomic | (f.refused & _unreadable(r))):     # an atomic that was allowed, but the bus failed
                m.d.comb += c.cause.eq(FATAL["bus"])
            with m.Elif(f.refused & ours):
                m.d.comb += c.cause.eq(Mux(r.short, FATAL["length"], FATAL["protection"]))
            with m.Elif(f.refused):
                m.d.comb += c.cause.eq(Mux(too_long(r), FATAL["remote_invalid"], Mux(place == Place.SEND, FATAL["protection"],
                                                                                     FATAL["remote_access"])))
        with m.Default():
            m.d.comb += [job.complete.eq(1), c.cq.eq(log_cq), c.opcode.eq(OPCODE["refusal"]), c.status.eq(STATUS["error"]),
                         c.wqe_index.eq(r.psn), c.byte_len.eq(r.pay_len), c.imm.eq(reason)]
