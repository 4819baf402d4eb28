"""What is in a card between its registers, its cable and its host: the ABI around the models of `sim.models`, without time.

Everything happens at once when it is called; :mod:`sim.model_device` says when.
"""

from collections import Counter

from optinic.abi.congestion import DCQCN
from optinic.abi.registers import (ABI_VERSION, ACCESS, ARG_BASE, COMMAND_ERROR, COMMANDS, CONGESTION, COUNTER_BASE, FEATURES,
                                   ID_WORD, MTU_CODE, NUM_ARGS, QP_STATE, QP_TYPE, REGISTERS, TRANSPORT)
from optinic.abi.structs import CAUSE, CQE, FATAL, OPCODE, STATUS
from optinic.abi.verdicts import COUNTERS, NUM_COUNTERS, REASON
from sim.model_tables import CompletionQueue, Map, QueuePair, ReceiveRing, RegionTable, SendRing
from sim.models.congestion import DcqcnModel, NotificationModel
from sim.models.memory import Region
from sim.models.nic import NicModel
from sim.models.outgoing import Peer, Port
from sim.models.pacing import Pacing
from sim.models.send import SendModel
from sim.models.wire import Rules

__all__ = ["ModelCard"]

REGISTER_AT = {r.offset: r for r in REGISTERS}
OFFSET = {r.name: r.offset for r in REGISTERS}
COUNTER_NAME = {number: name for name, number in COUNTERS.items()}
COMMAND_NAME = {code: name for name, (code, _) in COMMANDS.items()}
STATE_NAME, TYPE_NAME = ({n: name for name, n in table.items()} for table in (QP_STATE, QP_TYPE))
MTU_OF = {code: mtu for mtu, code in MTU_CODE.items()}
WORD = 0xFFFFFFFF


class Receiver(NicModel):
    """The receive half in a card: what it says besides its verdicts goes to the card."""

    def __init__(self, card, rules):
        super().__init__(rules, most_open=card.cfg.most_open)
        self.card, self.regions, self.memory = card, card.regions, card

    def on_refusal(self, packet, reason):
        self.card.log_refusal(packet, reason)

    def on_mark(self, qp):
        self.card.sender.mark(qp.number, self.card.now)

    def on_read(self, qp, packet):
        return self.card.take_read(qp, packet)


class ModelCard:
    """`memory` is a HostMemory. `now`, the NIC time in ns, is set by the caller before anything else is called."""

    def __init__(self, cfg, memory):
        self.cfg, self.memory, self.now = cfg, memory, 0
        self.regions = RegionTable(cfg.num_regions)
        self.pacer = self._make_pacer()
        self._make_halves(Rules(cfg.mtu_max, cfg.max_frame_bytes, cfg.ipv6, cfg.vlan, cfg.uc), (Port(), self.regions, self), dict(
            pacer=self.pacer, notifier=NotificationModel(pool=min(512, 1 << cfg.qp_bits)), answers_at_once=cfg.tx_slots // 4,
            qp_bits=cfg.qp_bits))
        self.cqs = [CompletionQueue() for _ in range(cfg.num_cqs)]
        self.qps = {}               # by index
        self.peers = {}
        self.counts = Counter()
        self.pending = 0            # completion vectors
        self.args = [0] * NUM_ARGS
        self.error = 0
        self.host_frames = []       # for the host's own network stack
        self._failed_at = None      # a write of the frame at hand was refused, when so many completions had been made
        self._storage = {r.offset: r.reset for r in REGISTERS if r.access == "rw"}
        self._constants = self._identification()
        self._counter_high = 0
        self._apply_settings()

    def _make_halves(self, rules, sending, options):
        self.receiver = Receiver(self, rules)
        self.sender = SendModel(*sending, **options)

    def _make_pacer(self):
        if self.cfg.congestion == "dcqcn":      # it keeps rates in so many bits as the datapath's own has, in Mb/s
            rate_bits = (self.cfg.data_width * self.cfg.clock_hz // 1_000_000).bit_length()
            return Pacing(DcqcnModel(rate_bits, self.cfg.dcqcn_pool), qp_bits=self.cfg.qp_bits)
        return Pacing.fixed(qp_bits=self.cfg.qp_bits) if self.cfg.congestion == "fixed" else None

    def _identification(self):
        cfg = self.cfg
        return {
            "ID": ID_WORD, "VERSION": ABI_VERSION, "TRANSPORT": TRANSPORT[cfg.transport], "CONFIG_HASH": cfg.hash,
            "DATA_WIDTH": cfg.data_width, "NUM_QPS": cfg.num_qps, "NUM_REGIONS": cfg.num_regions, "NUM_CQS": cfg.num_cqs,
            "NUM_PEERS": cfg.num_peers, "CLOCK_HZ": cfg.clock_hz, "MTU_MAX": cfg.mtu_max, "RQ_ENTRIES": cfg.rq_entries,
            "SQ_ENTRIES": cfg.sq_entries, "FEATURES": sum(cfg.has(name) << bit for bit, name in enumerate(FEATURES)),
            "RX_BUFFER_BYTES": cfg.rx_buffer_bytes, "NUM_VECTORS": cfg.num_vectors, "CONGESTION": CONGESTION[cfg.congestion],
            "RC_OUTSTANDING": cfg.rc_outstanding if cfg.rc else 0, "RC_RESOURCES": min(cfg.rc_resources, cfg.read_jobs) if cfg.rc else 0,
        }

    # -- registers ----------------------------------------------------------------------------------

    def register(self, name):
        return self._storage[OFFSET[name]]

    def pair(self, low, high):
        return self.register(high) << 32 | self.register(low)

    def reg_read(self, offset):
        """The word, or None where there is no register. Not of those that the device answers itself."""
        offset &= ~3
        if COUNTER_BASE <= offset < COUNTER_BASE + 8 * NUM_COUNTERS:
            if offset & 4:
                return self._counter_high
            value = self.counter(COUNTER_NAME.get((offset - COUNTER_BASE) // 8))
            self._counter_high = value >> 32
            return value & WORD
        register = REGISTER_AT.get(offset)
        if register is None:
            return None
        if register.access == "rw":
            return self._storage[offset]
        return {"IRQ_STATUS": self.pending}.get(register.name, self._constants.get(register.name, 0))

    def reg_write(self, offset, value):
        """False where there is nothing to be written. Of the "wo" ones, only those that act at once."""
        register = REGISTER_AT.get(offset & ~3)
        if register is None or register.access == "ro":
            return False
        if register.access == "rw":
            self._storage[register.offset] = value & WORD
            if ARG_BASE <= register.offset < ARG_BASE + 4 * NUM_ARGS:
                self.args[(register.offset - ARG_BASE) // 4] = value & WORD
            else:
                self._apply_settings()
        elif register.name == "IRQ_CLEAR":
            self.pending &= ~value
        elif register.name == "CQ_DOORBELL":
            self._cq_doorbell(value)
        return True

    def _apply_settings(self):
        r = self.register
        self.receive_enabled, self.send_enabled = bool(r("CTRL") & 1), bool(r("CTRL") & 4)
        self.receiver.pkey = r("PKEY") & 0xFFFF
        self.receive_base, self.send_base = self.pair("RQ_BASE_LO", "RQ_BASE_HI"), self.pair("SQ_BASE_LO", "SQ_BASE_HI")
        self.log_cq = r("REFUSAL_LOG") % self.cfg.num_cqs if r("REFUSAL_LOG") >> 31 else None
        ip6 = sum(r(f"LOCAL_IP6_{i}") << 32 * i for i in range(4))
        self.sender.port = Port(
            (self.pair("LOCAL_MAC_LO", "LOCAL_MAC_HI") % (1 << 48)).to_bytes(6, "big"), r("LOCAL_IP4").to_bytes(4, "big"),
            ip6.to_bytes(16, "big"), r("HOP_LIMIT") & 0xFF, r("PKEY") & 0xFFFF)
        self.sender.notifier.interval = r("CNP_INTERVAL")
        if self.pacer:
            self.pacer.pacer.burst = r("PACER_BURST")
        if self.cfg.congestion == "dcqcn":
            self.pacer.controller.p |= {name: r(f"DCQCN_{name.upper()}") for name in DCQCN}

    def counter(self, name):
        return self.receiver._counts[name] + self.sender.counts[name] + self.counts[name] & (1 << 64) - 1

    # -- the models' memory -------------------------------------------------------------------------

    def read(self, addr, n):
        return self.memory.card_read(addr, n)

    def write(self, addr, data):
        if not self.memory.card_write(addr, data):
            self.counts["write_errors"] += 1
            self._failed_at = len(self.receiver.completions)

    # -- frames -------------------------------------------------------------------------------------

    def frame(self, data, damaged=False):
        """Take a frame; its Verdict, or None if nobody listens."""
        if not self.receive_enabled:
            return None
        verdict = self.receiver.frame(b"" if damaged else data, self.now)
        if verdict.verdict == "passed" and self.cfg.pass_through:
            self.host_frames.append(data)
        elif verdict.kind == "cnp" and self.pacer:
            self.pacer.cnp(verdict.qpn, self.now)
        self.give_completions(None if self._failed_at is None else verdict.qpn)
        return verdict

    def take_read(self, qp, packet):
        sender = self.sender
        if sender.waiting_answers >= self.cfg.read_jobs:
            return False
        self.counts["reads_served"] += 1
        sender.read_request(qp.number, packet.va, packet.rkey, packet.read_len, packet.seq, packet.tag)
        return True

    def log_refusal(self, packet, reason):
        if self.log_cq is not None:
            self.give_completions()     # those that its message made come first
            self._write_cqe(self.log_cq, "log_overrun", qpn=packet.qpn, opcode=OPCODE["refusal"], status=STATUS["error"],
                            wqe_index=packet.seq, byte_len=len(packet.payload), imm=REASON[reason])

    # -- time ---------------------------------------------------------------------------------------

    def advance(self, jumped=False):
        self.receiver.advance(self.now, jumped)
        self.sender.advance(self.now)
        self.give_completions()

    def alarms(self):
        """Times in ns, or None, at which :meth:`advance` may have something to do."""
        return self.receiver.next_alarm(), self.sender.next_alarm()

    # -- completions --------------------------------------------------------------------------------

    def give_completions(self, failed_qpn=None, flushed=False):
        """Write the CQEs of what the receive half has completed. `failed_qpn`: a write of that QP was refused, `_failed_at`."""
        done, self.receiver.completions = self.receiver.completions, []
        at, self._failed_at = self._failed_at, None
        i = 0
        while i < len(done):
            if failed_qpn is not None and i >= at:
                self._write_failed(failed_qpn)
                failed_qpn = None
            c = done[i]
            # A frame that preempts, or a flush, ends a run of one QP: the first has a CQE, those behind it share one.
            last = i
            if i and c.cause in ("preempted", "flushed" if flushed else "preempted") and done[i - 1].cause == c.cause:
                while last + 1 < len(done) and done[last + 1].cause == c.cause:
                    last += 1
            self._receive_cqe(done[last], last - i)
            i = last + 1
        if failed_qpn is not None:
            self._write_failed(failed_qpn)

    def _write_failed(self, qpn):
        qp = self._named(qpn)
        if qp:
            qp.write_failed = True

    def _named(self, qpn):
        qp = self.qps.get(qpn % (1 << self.cfg.qp_bits))
        return qp if qp and qp.number == qpn else None

    def _receive_cqe(self, c, skipped):
        qp = self._named(c.qpn)
        self._complete(qp, qp.receive_cq, c, opcode=OPCODE[c.opcode or "none"], wqe_index=c.index % (1 << 32), imm=c.imm or 0,
                       skipped=skipped, queue=0, time=c.time)

    def send_completions(self):
        """[(completion queue, completion)] of the sends that have ended since the last call, to be given to :meth:`send_cqe`."""
        done, self.sender.completions = self.sender.completions, []
        return [(self._named(c.qpn), c) for c in done]

    def send_cqe(self, qp, c):
        op = c.opcode or "none"
        self._complete(qp, qp.send_cq, c, opcode=OPCODE[op] if op in OPCODE else int(op), wqe_index=c.index & 0xFFFF,
                       skipped=c.skipped, queue=1, time=self.now)

    def _complete(self, qp, cq, c, **fields):
        status = c.status
        if qp.write_failed and not fields["queue"]:     # a send completes no receive
            status, qp.write_failed = "error", False
        cause = (FATAL if status == "fatal" else CAUSE)[c.cause]
        if not self._write_cqe(cq, "cq_overrun", qpn=c.qpn, status=STATUS[status], cause=cause, byte_len=c.byte_len,
                               msg_len=c.msg_len, tag=c.tag, **fields):
            qp.write_failed = True

    def _write_cqe(self, index, overrun, *, time=None, **fields):
        """False if the bus refused it. What has no room is lost."""
        cq = self.cqs[index]
        if not cq.valid or (cq.producer - cq.consumer) & 0xFFFF == cq.entries & 0xFFFF:
            self.counts[overrun] += 1
            return True
        at = cq.producer % cq.entries
        phase = 1 - (cq.producer // cq.entries & 1)
        cq.producer = cq.producer + 1 & 0xFFFF
        time = self.now if time is None else time
        good = self.memory.card_write(cq.addr + at * CQE.size, CQE.pack(format=1, phase=phase, time=time % (1 << 48), **fields))
        self.counts["completions"] += 1
        if not good:
            self.counts["write_errors"] += 1
        cq.acked = cq.producer
        if cq.armed:
            cq.armed = False
            self._raise(cq.vector)
        return good

    def _raise(self, vector):
        if vector < self.cfg.num_vectors:
            self.pending |= 1 << vector

    def _cq_doorbell(self, value):
        cq = self.cqs[(value >> 16 & 0x7FFF) % self.cfg.num_cqs]
        cq.consumer = value & 0xFFFF
        if value >> 31:
            behind = cq.valid and cq.acked != cq.consumer
            cq.armed = cq.valid and not behind
            if behind:
                self._raise(cq.vector)

    # -- doorbells and commands ---------------------------------------------------------------------

    def doorbell(self, name, value):
        qp = self.qps.get(value >> 16)
        if qp is None:
            return
        model, queue = (self.receiver, "receives") if name == "RQ_DOORBELL" else (self.sender, "requests")
        half = model.qps[qp.number]
        getattr(half, queue).ring(value & 0xFFFF, half.head)
        model.rung(qp.number, self.now)
        self.give_completions()

    def command(self, code):
        """Do a command; the arguments are in `args`. Sets `error`."""
        name = COMMAND_NAME.get(code)
        error = getattr(self, f"_do_{name}")(*self.args) if name else "unknown_command"
        self.error = COMMAND_ERROR[error or "none"]

    def _qp_index(self, word):
        index = word % (1 << self.cfg.qp_bits)
        return index if index < self.cfg.num_qps and word < 1 << 24 else None

    def _do_qp_set(self, number, mode, pd, peer, receive_cq, *more):
        index, cfg = self._qp_index(number), self.cfg
        if index is None:
            return "bad_index"
        self._forget(index)
        send_cq = more[4] & 0xFFFF
        qp = self.qps[index] = QueuePair(number, peer % cfg.num_peers, receive_cq % cfg.num_cqs, send_cq % cfg.num_cqs)
        self._make_qp(index, number, mode, pd & 0xFFFF, *more[:5])
        self._tell_peer(qp)

    def _make_qp(self, index, number, mode, pd, shape, map_low, map_high, remote, sending):
        """The halves' part of a new QP."""
        cfg = self.cfg
        state, kind, mtu = STATE_NAME[mode & 3], TYPE_NAME[mode >> 4 & 1], MTU_OF.get(mode >> 8 & 7, 0)
        arrivals = None
        if cfg.arrival_map and mode >> 24 & 1:
            arrivals = Map(self, (map_high << 32 | map_low) & ~63, 1 << (shape & 31), 1 << (shape >> 8 & 15))
        self.receiver.add_qp(number, kind, pd, mtu, mode >> 16 & 0xFF, "0.0.0.0", state, arrivals)
        half = self.sender.add_qp(
            number, self.now, kind=kind, state=state, pd=pd, mtu=mtu if 0 < mtu <= cfg.mtu_max else cfg.mtu_max,
            dest_qpn=remote & 0xFFFFFF, dest_generation=remote >> 24, tclass=sending >> 16 & 0xFF, log2_paths=sending >> 24 & 7)
        self.receiver.qps[number].receives = ReceiveRing(self, index, cfg.rq_entries)
        half.requests = SendRing(self, index, cfg.sq_entries)

    def _do_qp_destroy(self, number, *_):
        index = self._qp_index(number)
        if index is None:
            return "bad_index"
        self._forget(index)

    def _forget(self, index):
        old = self.qps.pop(index, None)
        if old:
            self.receiver.remove_qp(old.number)
            self.sender.remove_qp(old.number)

    def _do_qp_flush(self, number, *_):
        index = self._qp_index(number)
        if index is None:
            return "bad_index"
        if index not in self.qps:
            return "no_qp"
        number = self.qps[index].number
        self.receiver.flush(number, self.now)
        self.give_completions(flushed=True)
        self.sender.flush(number, self.now)

    def _do_region_set(self, slot, key, va_low, va_high, length_low, length_high, delta_low, delta_high, rights, *_):
        row = slot & 0x7FFFFFFF
        if row >= self.cfg.num_regions // 2:
            return "bad_index"
        access = frozenset(name for name, bit in ACCESS.items() if rights >> 16 & bit)
        region = Region(key, va_high << 32 | va_low, length_high << 32 | length_low, access, rights & 0xFFFF,
                        delta_high << 32 | delta_low)
        self.regions.set(slot >> 31, row, key, region if rights >> 31 else None)

    def _do_peer_set(self, index, a, b, c, d, six, mac_low, mac_high, tag, *_):
        if index >= self.cfg.num_peers:
            return "bad_index"
        ip = (d << 96 | c << 64 | b << 32 | a).to_bytes(16, "big") if six & 1 else a.to_bytes(4, "big")
        mac = ((mac_high << 32 | mac_low) % (1 << 48)).to_bytes(6, "big")
        self.peers[index] = Peer(ip, mac, tag & 0xFFFF if tag >> 16 & 1 else None)
        for qp in self.qps.values():
            if qp.peer == index:
                self._tell_peer(qp)

    def _tell_peer(self, qp):
        peer = self.peers.get(qp.peer, Peer())
        self.receiver.qps[qp.number].peer = peer.ip
        self.sender.qps[qp.number].peer = peer

    def _do_cq_set(self, index, low, high, shape, *_):
        if index >= self.cfg.num_cqs:
            return "bad_index"
        self.cqs[index] = CompletionQueue((high << 32 | low) & ~63, 1 << (shape & 15), shape >> 8 & 31, bool(shape >> 31))

    def _do_fence(self, *_):
        pass

    def _do_rate_set(self, number, interval, *_):
        index = self._qp_index(number)
        if index is None:
            return "bad_index"
        if self.pacer and index in self.qps:
            self.pacer.set(self.qps[index].number, interval, self.now)
