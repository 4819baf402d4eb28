"""The mailbox: commands that change QPs, regions, peers and CQs, one at a time, each with an error code."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from optinic.abi.registers import COMMAND_ERROR, COMMANDS, NUM_ARGS, QP_STATE, QP_TYPE
from optinic.memory.table import Table, TableSpec
from optinic.queues.completion import cq_set_signature
from optinic.transport.xp.arrival import map_set_signature
from optinic.transport.rc.order import command_layout as record_layout
from optinic.transport.rc.records import rules_layout
from optinic.transport.xp.records import WorkKind, peer_layout
from optinic.tx.peers import peer_set_signature
from optinic.tx.records import Event, command_layout, common_layout, context_layout as send_context_layout

__all__ = ["Commands"]

CODE = {name: code for name, (code, _) in COMMANDS.items()}


class Commands(wiring.Component):
    """Carries out abi.registers.COMMANDS. `start` takes the number of a command, with its arguments in `args`; `busy` is high
    until it is done and `error` then says how it ended. While busy, `start` is taken and ignored.

    A command that takes something away (a life of a QP, a region's old entry) goes through both halves of the card: a record
    through the receive half, behind all that is under way there, then an event through the send half, then a record again
    for the completions that the send half has made. It is done when `fence_done` says that everything before that has been
    acknowledged by the host.

    Which QPs exist is kept in a table of one bit each, so that a flush of one that doesn't is refused. `clearing`: it is being
    cleared after reset.
    """

    def __init__(self, cfg, region_set):
        """`region_set` is the shape of the port that writes the region table."""
        self.cfg = cfg
        qp = range(1 << cfg.qp_bits)
        super().__init__({
            "start": In(stream.Signature(32)), **{f"arg{i}": In(32) for i in range(NUM_ARGS)},
            "busy": Out(1, init=0), "error": Out(8),
            "context_set": Out(wiring.Signature({"en": Out(1), "qp": Out(qp), "entry": Out(common_layout(cfg))})),
            "peer_set": Out(wiring.Signature({"en": Out(1), "index": Out(range(cfg.num_peers)), "entry": Out(peer_layout(cfg))})),
            "region_set": Out(region_set), "cq_set": Out(cq_set_signature(cfg)),
            "records": Out(stream.Signature(record_layout(cfg) if cfg.rc else StructLayout({"kind": WorkKind, "qp": cfg.qp_bits}))),
            "fence_done": In(1),
            "send_events": Out(stream.Signature(command_layout(cfg))), "send_done": In(1),
            "send_context_set": Out(wiring.Signature({"en": Out(1), "qp": Out(qp), "entry": Out(send_context_layout(cfg))})),
            "send_peer_set": Out(peer_set_signature(cfg)),
            "set_rate": Out(stream.Signature(StructLayout({"qp": cfg.qp_bits, "interval": 30}))),
            "invalidate": Out(1), "invalidate_qp": Out(cfg.qp_bits), "invalidate_done": In(1), "clearing": Out(1),
        } | ({"map_set": Out(map_set_signature(cfg))} if cfg.arrival_map else {})
          | ({"rules_set": Out(wiring.Signature({"en": Out(1), "qp": Out(qp), "entry": Out(rules_layout(cfg))}))} if cfg.rc else {}))

    @staticmethod
    def tables(cfg):
        return [TableSpec("qp_exists", "commands", 1, cfg.num_qps, "qp", "context")]

    def elaborate(self, platform):
        m = Module()
        cfg = self.cfg
        arg = [getattr(self, f"arg{i}") for i in range(NUM_ARGS)]
        command = Signal(8)
        qp = arg[0][:cfg.qp_bits]
        # which tables have such an entry; the arguments are there before the command
        qp_ok, region_ok, peer_ok, cq_ok = (Signal(name=f"{name}_ok") for name in ("qp", "region", "peer", "cq"))
        m.d.sync += [qp_ok.eq((qp < cfg.num_qps) & (arg[0][24:] == 0)), region_ok.eq(arg[0][:31] < cfg.num_regions // 2),
                     peer_ok.eq(arg[0] < cfg.num_peers), cq_ok.eq(arg[0] < cfg.num_cqs)]

        m.submodules.exists = exists = Table(self.tables(cfg)[0], 1)
        m.d.comb += [exists.read0_addr.eq(qp), exists.write_addr.eq(qp),
                     exists.write_data.eq((command == CODE["qp_set"]) & (arg[1][:2] != QP_STATE["free"])),
                     self.clearing.eq(exists.clearing)]

        # tables' ports carry the arguments all the time; only the enables are pulsed, those that nothing waits for a cycle late
        m.d.sync += [self.context_set.en.eq(0), self.peer_set.en.eq(0), self.cq_set.en.eq(0)]
        entry = self.context_set.entry
        ends = Signal()         # the context is that of a QP that is no more, whatever the arguments say
        m.d.comb += [
            self.context_set.qp.eq(qp), self.invalidate_qp.eq(qp),
            entry.state.eq(Mux(ends, QP_STATE["free"], arg[1][0:2])), entry.type.eq(arg[1][4:6]), entry.mtu.eq(arg[1][8:11]),
            entry.pd.eq(arg[2]), entry.peer.eq(arg[3]), entry.cq.eq(arg[4]), entry.tag.eq(arg[0][cfg.qp_bits:24]),
            self.peer_set.index.eq(arg[0]), self.peer_set.entry.ip.eq(Cat(*arg[1:5])), self.peer_set.entry.v6.eq(arg[5][0]),
            self.cq_set.index.eq(arg[0]), self.cq_set.base.eq(Cat(arg[1], arg[2])), self.cq_set.log2_entries.eq(arg[3]),
            self.cq_set.vector.eq(arg[3][8:]), self.cq_set.valid.eq(arg[3][31]),
        ]
        sends = self.send_context_set.entry
        m.d.comb += [
            self.send_context_set.en.eq(self.context_set.en), self.send_context_set.qp.eq(qp),
            sends.cq.eq(arg[9]), sends.tclass.eq(arg[9][16:24]), sends.dest_qpn.eq(arg[8]),
            self.send_peer_set.en.eq(self.peer_set.en), self.send_peer_set.index.eq(arg[0]),
            self.send_peer_set.entry.ip.eq(Cat(*arg[1:5])), self.send_peer_set.entry.v6.eq(arg[5][0]),
            self.send_peer_set.entry.mac.eq(Cat(arg[6], arg[7][:16])), self.send_peer_set.entry.tci.eq(arg[8]),
            self.send_peer_set.entry.vlan.eq(arg[8][16]),
            self.set_rate.payload.qp.eq(qp), self.set_rate.payload.interval.eq(arg[1]),
            self.send_events.payload.qp.eq(qp), self.send_events.payload.kind.eq(Event.FENCE),
        ]
        if cfg.rc:
            self._reliable(m, arg, qp)
        else:
            m.d.comb += [entry.generation.eq(arg[1][16:24]), sends.paths.eq(arg[9][24:27]), sends.generation.eq(arg[8][24:])]
        with m.Switch(command):
            with m.Case(CODE["qp_set"], CODE["qp_destroy"]):
                m.d.comb += self.send_events.payload.kind.eq(Event.RESET)
            with m.Case(CODE["qp_flush"]):
                m.d.comb += self.send_events.payload.kind.eq(Event.FLUSH)
        behind = Signal()       # the send half is through
        region = self.region_set
        m.d.comb += [
            region.slot_bank.eq(arg[0][31]), region.slot_row.eq(arg[0]), region.entry.key.eq(arg[1]),
            region.entry.va.eq(Cat(arg[2], arg[3])), region.entry.length.eq(Cat(arg[4], arg[5])),
            region.entry.delta.eq(Cat(arg[6], arg[7])), region.entry.pd.eq(arg[8]), region.entry.access.eq(arg[8][16:20]),
            region.entry.valid.eq(arg[8][31]),
        ]
        if cfg.arrival_map:
            maps = self.map_set
            m.d.comb += [
                maps.qp.eq(qp), maps.entry.valid.eq(arg[1][24]), maps.entry.mtu.eq(arg[1][8:11]), maps.entry.pieces.eq(arg[5][:5]),
                maps.entry.rows.eq(arg[5][8:12]), maps.entry.base.eq(Cat(arg[6], arg[7])[6:]),
            ]
        m.d.comb += [self.start.ready.eq(1), self.records.payload.qp.eq(qp)]

        def finish(error="none"):
            m.d.sync += self.error.eq(COMMAND_ERROR[error])
            m.next = "IDLE"

        with m.FSM() as fsm:
            # a cycle behind the state, as its ways back to IDLE are long
            m.d.sync += self.busy.eq(self.start.valid | ~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                with m.If(self.start.valid):
                    m.d.sync += command.eq(self.start.payload)
                    m.next = "LOOK"
            with m.State("LOOK"):       # the table's answer is on its way
                m.next = "BEGIN"
            with m.State("BEGIN"):
                with m.Switch(command):
                    with m.Case(CODE["qp_set"], CODE["qp_destroy"], CODE["qp_flush"]):
                        with m.If(qp_ok & (command == CODE["qp_flush"]) & ~exists.read0_data):
                            finish("no_qp")
                        with m.Elif(qp_ok):
                            # no packet of the old life after this; a flush keeps the context for its completions
                            m.d.sync += [self.context_set.en.eq(1), ends.eq(command != CODE["qp_flush"])]
                            m.next = "CONTEXT"
                        with m.Else():
                            finish("bad_index")
                    with m.Case(CODE["region_set"]):
                        with m.If(region_ok):
                            m.d.comb += region.en.eq(1)
                            m.next = "RECORD"
                        with m.Else():
                            finish("bad_index")
                    with m.Case(CODE["peer_set"]):
                        with m.If(peer_ok):
                            m.d.sync += self.peer_set.en.eq(1)
                            finish()
                        with m.Else():
                            finish("bad_index")
                    with m.Case(CODE["cq_set"]):
                        with m.If(cq_ok):
                            m.d.sync += self.cq_set.en.eq(1)
                            finish()
                        with m.Else():
                            finish("bad_index")
                    with m.Case(CODE["fence"]):
                        m.next = "RECORD"
                    with m.Case(CODE["rate_set"]):
                        with m.If(qp_ok):
                            m.next = "RATE"
                        with m.Else():
                            finish("bad_index")
                    with m.Default():
                        finish("unknown_command")
            with m.State("CONTEXT"):    # is being written
                m.d.sync += ends.eq(0)
                m.next = "RECORD"
            with m.State("RATE"):
                m.d.comb += self.set_rate.valid.eq(1)
                with m.If(self.set_rate.ready):
                    finish()
            with m.State("RECORD"):
                kind = self.records.payload.kind
                # a life ends again behind the send half: a refused CQE of it is not the next life's error
                with m.Switch(Mux(behind & (command == CODE["qp_flush"]), CODE["fence"], command)):
                    with m.Case(CODE["qp_set"], CODE["qp_destroy"]):
                        m.d.comb += kind.eq(WorkKind.RESET)
                    with m.Case(CODE["qp_flush"]):
                        m.d.comb += kind.eq(WorkKind.FLUSH)
                    with m.Default():
                        m.d.comb += kind.eq(WorkKind.FENCE)
                m.d.comb += self.records.valid.eq(1)
                with m.If(self.records.ready):
                    m.next = "FENCE"
            with m.State("FENCE"):
                with m.If(self.fence_done & ~behind):
                    m.next = "SENDS"
                with m.Elif(self.fence_done):
                    m.d.sync += behind.eq(0)
                    with m.If((command == CODE["qp_set"]) | (command == CODE["qp_destroy"])):
                        m.d.comb += self.invalidate.eq(1)
                        m.next = "INVALIDATE"
                    with m.Else():
                        finish()
            with m.State("SENDS"):
                m.d.comb += self.send_events.valid.eq(1)
                with m.If(self.send_events.ready):
                    m.next = "SENT"
            with m.State("SENT"):
                with m.If(self.send_done):
                    m.d.sync += behind.eq(1)
                    m.next = "RECORD"
            with m.State("INVALIDATE"):
                with m.If(self.invalidate_done):
                    # nothing of the QP is under way: its map's entry can change
                    m.d.comb += exists.write_en.eq(1)
                    m.d.sync += self.context_set.en.eq(command == CODE["qp_set"])
                    if cfg.arrival_map:
                        m.d.comb += maps.en.eq(command == CODE["qp_set"])
                    finish()
        return m

    def _reliable(self, m, arg, qp):
        """What a QP of transport rc is told beside: first PSNs, timers, its window."""
        rules, event, record = self.rules_set.entry, self.send_events.payload, self.records.payload
        m.d.comb += [
            self.rules_set.en.eq(self.context_set.en), self.rules_set.qp.eq(qp), rules.send_cq.eq(arg[9]), rules.retries.eq(arg[5][24:27]),
            rules.rnr_retries.eq(arg[5][27:30]), rules.timeout.eq(arg[6][24:29]), rules.rnr_code.eq(arg[7][:5]),
            self.context_set.entry.life.eq(arg[1][16:18]), record.psn.eq(arg[5]), record.expected.eq(arg[6]), event.psn.eq(arg[5]), event.window.eq(arg[7][8:15]),
            event.uc.eq(arg[1][4:6] == QP_TYPE["uc"]),
        ]
