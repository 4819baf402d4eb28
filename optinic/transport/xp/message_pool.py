"""State of open messages from a pool: of each QP only what it needs without a packet, the rest for those that have one."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.memory.table import Table, TableSpec, alarm_members, connect_alarms, protect
from optinic.stream.fifo import StreamFifo

__all__ = ["LEAD", "MessagePool"]

LEAD = 5            #: cycles from a QP's index to the decision about its record
_BODY = ("msg_len", "missing", "cover", "imm", "tag")


def _head_layout(cfg, message):
    """`opcode` is 0 if the QP has no row in the pool; `row` means nothing then."""
    own = {name: field.shape for name, field in message if name not in _BODY}
    return StructLayout(own | {"row": range(cfg.open_messages)})


def _body_layout(message):
    return StructLayout({name: message[name].shape for name in _BODY})


def _free_list(cfg):
    return TableSpec("message_free", "admission", (cfg.open_messages - 1).bit_length(), cfg.open_messages, "qp", "message",
                     rows_per=cfg.num_qps / cfg.open_messages, style="block" if cfg.open_messages >= 512 else "distributed")


class MessagePool(wiring.Component):
    """The newest state of a record's QP, for Admission, and where its decisions are kept.

    `next_qp` shows a record's QP LEAD cycles before its decision. In the cycle of the decision `st` is the state that all
    decisions before it have left. `qp` and `touches` say in that cycle what is decided, `last` a cycle later what became of it.
    Records may follow each other in every cycle, and those of one QP too; nothing ever waits.

    A row is taken by the decision after which the message has a placed packet (`opcode`), and given back by the one after which it has
    none. `room` says, exactly, whether a row may be taken by the decision of this cycle: fewer than cfg.most_open are. Overflow:
    whoever decides must not take one without room; Admission refuses the packet, counted as "overflow".

    Two tables, the second addressed by what the first says; so a state is read four cycles before it is needed, and what has been decided
    since is remembered: of the five last decisions the newest that is of this QP is its state, and the tables' answer if none is.
    """

    def __init__(self, cfg, message):
        self.cfg, self._message = cfg, message
        super().__init__({
            "next_qp": In(cfg.qp_bits), "st": Out(message), "room": Out(1),
            "qp": In(cfg.qp_bits), "touches": In(1), "last": In(message), "clearing": Out(1),
        } | alarm_members(cfg))

    @staticmethod
    def tables(cfg, message):
        rows_per = cfg.num_qps / cfg.open_messages
        return [*protect(cfg, [
            TableSpec("message", "admission", _head_layout(cfg, message).size, cfg.num_qps, "qp", "message"),
            TableSpec("message_body", "admission", _body_layout(message).size, cfg.open_messages, "qp", "message", rows_per=rows_per),
        ]), _free_list(cfg)]

    def elaborate(self, platform):
        m = Module()
        cfg, message = self.cfg, self._message
        heads_spec, bodies_spec, _ = self.tables(cfg, message)
        m.submodules.heads = heads = Table(heads_spec, _head_layout(cfg, message))
        m.submodules.bodies = bodies = Table(bodies_spec, _body_layout(message), latency=1)
        connect_alarms(m, self, (heads, bodies))
        Entry = StructLayout({"state": message, "row": range(cfg.open_messages)})

        # the record's QP, from four cycles before its decision to one
        ahead = [Signal(cfg.qp_bits, name=f"ahead{i}", reset_less=True) for i in range(1, LEAD)]
        m.d.sync += [now.eq(before) for now, before in zip(ahead, [self.next_qp, *ahead])]
        qp2, qp1 = ahead[2], ahead[3]
        m.d.comb += [heads.read0_addr.eq(ahead[0]), bodies.read0_addr.eq(heads.read0_data.row)]
        head = Signal(_head_layout(cfg, message), reset_less=True)
        m.d.sync += head.eq(heads.read0_data)
        stored = Signal(Entry)
        m.d.comb += [stored.row.eq(head.row),
                     *(stored.state[name].eq((bodies.read0_data if name in _BODY else head)[name]) for name, _ in message)]

        # the last five decisions: 0 is under way, 1 has just been made
        kept = Signal(Entry)            # the state and the row of the record that is being decided
        row1 = Signal(range(cfg.open_messages), reset_less=True)
        first = Signal(Entry)
        m.d.comb += [first.state.eq(self.last), first.row.eq(row1)]
        entries, qps, live = [first], [self.qp], [self.touches]
        for i in range(2, LEAD):
            entry, valid = Signal(Entry, name=f"entry{i}", reset_less=True), Signal(name=f"live{i}")
            qp = Signal(cfg.qp_bits, name=f"qp{i}", reset_less=True)
            m.d.sync += [entry.eq(entries[-1]), qp.eq(qps[-1]), valid.eq(live[-1])]
            entries.append(entry), qps.append(qp), live.append(valid)

        # compared a cycle early, when each decision is one stage back: all but the last into a register, the last one behind it
        newest = Signal(range(LEAD))
        hits = [live[i] & (qps[i] == qp2) for i in range(LEAD - 1)]
        m.d.sync += newest.eq(Mux(hits[0], 1, Mux(hits[1], 2, Mux(hits[2], 3, Mux(hits[3], 4, 0)))))
        found = Signal(Entry, reset_less=True)
        with m.Switch(newest):
            for i, entry in enumerate(entries):
                with m.Case(i + 1):
                    m.d.sync += found.eq(entry)
            with m.Default():
                m.d.sync += found.eq(stored)
        again = Signal()
        m.d.sync += again.eq(live[0] & (qps[0] == qp1))
        m.d.comb += [kept.eq(Mux(again, first, found)), self.st.eq(kept.state)]

        candidate, filling = self._rows(m, kept, row1)
        m.d.sync += row1.eq(Mux(kept.state.opcode.any(), kept.row, candidate))

        touched1 = live[1]
        m.d.comb += [
            heads.write_en.eq(touched1), heads.write_addr.eq(qps[1]), heads.write_data.row.eq(row1),
            *(heads.write_data[name].eq(self.last[name]) for name, _ in message if name not in _BODY),
            bodies.write_en.eq(touched1 & self.last.opcode.any()), bodies.write_addr.eq(row1),
            *(bodies.write_data[name].eq(self.last[name]) for name in _BODY),
            self.clearing.eq(heads.clearing | bodies.clearing | filling),
        ]
        return m

    def _rows(self, m, kept, row1):
        """Who has which row. Returns (the row for a decision that takes one, whether the list is being filled).

        Whether a decision took its row is known a cycle later, in registers; so two candidates serve the decisions in turn, and one that
        was not taken comes again two cycles later. The free list is a queue: POOL_RESERVE rows are enough that, while there is room,
        a candidate is at hand, however the rows go and come."""
        cfg = self.cfg
        bits = range(cfg.open_messages)
        spec = _free_list(cfg)
        m.submodules.free = free = StreamFifo(spec.width, spec.depth, style=spec.style)
        self.candidate_valid = Signal()             # for the proof that it is, whenever there is room
        touched1, held1 = Signal(), Signal()
        takes, gives = Signal(), Signal()           # what the last decision did
        gone = Signal(bits, reset_less=True)        # the row that it would give back
        m.d.sync += [touched1.eq(self.touches), held1.eq(kept.state.opcode.any()), gone.eq(kept.row)]
        m.d.comb += [takes.eq(touched1 & ~held1 & self.last.opcode.any()), gives.eq(touched1 & held1 & ~self.last.opcode.any())]

        filled = Signal(range(cfg.open_messages + 1))
        filling = filled != cfg.open_messages
        m.d.comb += [free.i.valid.eq(gives | filling), free.i.payload.eq(Mux(filling, filled, gone))]
        with m.If(filling):
            m.d.sync += filled.eq(filled + 1)

        Candidate = StructLayout({"valid": 1, "row": bits})
        candidate, other = Signal(Candidate), Signal(Candidate)
        fetch = takes | ~other.valid
        m.d.comb += [free.o.ready.eq(fetch), self.candidate_valid.eq(candidate.valid)]
        m.d.sync += [other.eq(candidate), candidate.eq(other)]
        with m.If(fetch):
            m.d.sync += [candidate.valid.eq(free.o.valid), candidate.row.eq(free.o.payload)]

        taken = Signal(range(cfg.open_messages + 1))    # without the last decision
        most = cfg.most_open
        m.d.sync += taken.eq(taken + takes - gives)
        m.d.comb += self.room.eq(gives | Mux(takes, taken < most - 1, taken < most))
        return candidate.row, filling
