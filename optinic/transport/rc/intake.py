"""What RcOrder takes up next: a command, a doorbell, a complaint of the send half, a time that has come, or a frame."""

from optinic.transport.xp.records import WorkKind

__all__ = ["choose"]


def choose(m, ports, kind, qp, number, told, bell, note, rings, turn, have_frame, frame_qpn):
    """In the state CHOOSE: of RcOrder's inputs (`ports`) that wait takes the first one in that order, sets `kind`, `qp` and what
    belongs to it, and goes on to READ. Frames and deadlines take turns. Doorbells: `rings` of receives or `bell` of sends, and
    the `number` posted; one of a QP that doesn't exist is forgotten. `note`: `told` is the complaint. The caller clears these
    three flags before. A command and a frame stay where they are until they have had their effect; what else is chosen is taken
    at once.
    """
    num_qps = ports.cfg.num_qps
    bells, sq_bells, failed, deadlines = ports.doorbells, ports.sq_doorbells, ports.failed, ports.deadlines
    with m.If(~ports.clearing):
        m.next = "READ"
        with m.If(ports.commands.valid):
            m.d.sync += [kind.eq(ports.commands.payload.kind), qp.eq(ports.commands.payload.qp)]
        with m.Elif(bells.valid):
            m.d.comb += bells.ready.eq(1)
            m.d.sync += [kind.eq(WorkKind.SERVICE), rings.eq(1), qp.eq(bells.payload[16:]), number.eq(bells.payload)]
            with m.If(bells.payload[16:] >= num_qps):
                m.next = "CHOOSE"
        with m.Elif(sq_bells.valid):
            m.d.comb += sq_bells.ready.eq(1)
            m.d.sync += [kind.eq(WorkKind.SERVICE), bell.eq(1), qp.eq(sq_bells.payload[16:]), number.eq(sq_bells.payload)]
            with m.If(sq_bells.payload[16:] >= num_qps):
                m.next = "CHOOSE"
        with m.Elif(failed.valid):
            m.d.comb += failed.ready.eq(1)
            m.d.sync += [kind.eq(WorkKind.SERVICE), note.eq(1), qp.eq(failed.payload.qp), told.eq(failed.payload)]
        with m.Elif(deadlines.valid & (turn | ~have_frame)):
            m.d.comb += deadlines.ready.eq(1)
            m.d.sync += [kind.eq(WorkKind.DEADLINE), qp.eq(deadlines.payload.qp), turn.eq(0)]
        with m.Elif(have_frame):
            m.d.sync += [kind.eq(WorkKind.FRAME), qp.eq(frame_qpn), turn.eq(1)]
        with m.Else():
            m.next = "CHOOSE"
