"""The register space of abi/registers.py behind an AXI4-Lite port."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..abi.registers import (ABI_VERSION, COUNTER_BASE, FEATURES, ID_WORD, REGISTERS, TRANSPORT, CONGESTION)
from ..abi.verdicts import NUM_COUNTERS
from .lite import AxiLiteSlave
from .signatures import AxiLiteSignature

__all__ = ["RegisterBank", "EventSignature"]

GROUP = 16      #: registers that the first stage of the read multiplexer chooses from


class EventSignature(wiring.Signature):
    """A write to a "wo" register: `data` is stable while `valid`, and the write ends when `ready` takes it."""

    def __init__(self):
        super().__init__({"valid": Out(1), "data": Out(32), "ready": In(1)})


def _constants(cfg):
    return {
        "ID": ID_WORD, "VERSION": ABI_VERSION, "TRANSPORT": TRANSPORT[cfg.transport], "CONFIG_HASH": cfg.hash,
        "DATA_WIDTH": cfg.data_width, "NUM_QPS": cfg.num_qps, "NUM_REGIONS": cfg.num_regions, "NUM_CQS": cfg.num_cqs,
        "NUM_PEERS": cfg.num_peers, "CLOCK_HZ": cfg.clock_hz, "MTU_MAX": cfg.mtu_max, "RQ_ENTRIES": cfg.rq_entries,
        "FEATURES": sum(cfg.has(name) << bit for bit, name in enumerate(FEATURES)),
        "RX_BUFFER_BYTES": cfg.rx_buffer_bytes, "NUM_VECTORS": cfg.num_vectors, "SQ_ENTRIES": cfg.sq_entries,
        "CONGESTION": CONGESTION[cfg.congestion], "RC_OUTSTANDING": cfg.rc_outstanding if cfg.rc else 0,
        "RC_RESOURCES": min(cfg.rc_resources, cfg.read_jobs) if cfg.rc else 0,
    }


class RegisterBank(wiring.Component):
    """AXI4-Lite slave with the registers of `REGISTERS` and the counters at `COUNTER_BASE`.

    Ports, generated from the list:

    - "ro": input `ro_<name>`, but for what the configuration settles (answered from inside) and TIME_LO and TIME_HI,
      which come from `time`.
    - "rw": output `rw_<name>`, a 32-bit register with the reset value of the list. Byte strobes are honoured.
    - "wo": output `wo_<name>` (EventSignature). The AXI write waits until the event is taken: its B response comes
      later, and no further write is accepted meanwhile; reads go on. The word is taken whole whatever its strobes, but a
      write without any strobe (as a bus width converter makes them) is no event.

    Reading TIME_LO keeps the high word of that instant for TIME_HI. Reading the low word of a counter likewise keeps its
    high word, which the next read of any counter's high word returns: so read low, then high, with no other counter in
    between. `counter_addr` is stable during a read; `counter_data` must follow it within ``COUNTER_LATENCY`` cycles.

    Answers: a read of a "wo" register gives 0 with OKAY. A read elsewhere than at a register or counter gives 0, and a
    write elsewhere than at a "rw" or "wo" register changes nothing; both answer SLVERR. Addresses are whole words: the two
    low bits are ignored.

    A read takes COUNTER_LATENCY + 2 cycles from AR's register to R's, a write two and the wait of a "wo".
    """

    COUNTER_LATENCY = 4

    def __init__(self, cfg):
        self._constants = _constants(cfg)
        members = {"axi": In(AxiLiteSignature()), "time": In(64), "counter_addr": Out(6), "counter_data": In(64)}
        for r in REGISTERS:
            name = f"{r.access}_{r.name.lower()}"
            if r.access == "rw":
                members[name] = Out(32, init=r.reset)
            elif r.access == "wo":
                members[name] = Out(EventSignature())
            elif r.name not in self._constants and r.name not in ("TIME_LO", "TIME_HI"):
                members[name] = In(32)
        super().__init__(members)

    @staticmethod
    def tables(cfg):
        return []

    def elaborate(self, platform):
        m = Module()
        m.submodules.slave = slave = AxiLiteSlave()
        wiring.connect(m, wiring.flipped(self.axi), slave.axi)
        self._writes(m, slave.write)
        self._reads(m, slave.read)
        return m

    def _writes(self, m, write):
        """One cycle to decode the address into one line a register, then the write itself."""
        decoded = Signal()
        m.d.sync += decoded.eq(write.valid & ~write.ready)      # stays while an event waits
        known = Signal()
        some = Signal()         # at least one strobe
        m.d.sync += some.eq(write.strb.any())
        with m.If(decoded):
            m.d.comb += [write.ready.eq(1), write.error.eq(~known)]
        hits = []
        for r in REGISTERS:
            if r.access == "ro":
                continue
            port = getattr(self, f"{r.access}_{r.name.lower()}")
            hit = Signal(name=f"hit_{r.name.lower()}")
            hits.append(hit)
            m.d.sync += hit.eq(write.addr == r.offset // 4)
            if r.access == "rw":
                for byte in range(4):
                    with m.If(decoded & hit & write.strb[byte]):
                        m.d.sync += port.word_select(byte, 8).eq(write.data.word_select(byte, 8))
            else:
                m.d.comb += [port.valid.eq(decoded & hit & some), port.data.eq(write.data)]
                with m.If(port.valid & ~port.ready):
                    m.d.comb += write.ready.eq(0)
        m.d.comb += known.eq(Cat(hits).any())

    def _reads(self, m, read):
        """Wait until counter_data is there; choose within each group; choose the group."""
        time_hi = Signal(32)
        counter_hi = Signal(32)
        values = {}
        for r in REGISTERS:
            if r.name in self._constants:
                values[r.offset // 4] = self._constants[r.name]
            elif r.access == "wo":
                values[r.offset // 4] = 0
            elif r.name == "TIME_LO":
                values[r.offset // 4] = self.time[:32]
            elif r.name == "TIME_HI":
                values[r.offset // 4] = time_hi
            else:
                values[r.offset // 4] = getattr(self, f"{r.access}_{r.name.lower()}")
        time_lo = next(r.offset for r in REGISTERS if r.name == "TIME_LO") // 4

        step = Signal(range(self.COUNTER_LATENCY + 2))
        sample = Signal()       # the cycle in which every value is taken
        done = Signal()
        m.d.comb += sample.eq(read.valid & (step == self.COUNTER_LATENCY))
        m.d.comb += done.eq(read.valid & (step == self.COUNTER_LATENCY + 1))
        with m.If(done):
            m.d.sync += step.eq(0)
        with m.Elif(read.valid):
            m.d.sync += step.eq(step + 1)

        groups = sorted({word // GROUP for word in values})
        chosen = []             # value and knowledge of each group, zero unless it is the addressed one
        for group in groups:
            value = Signal(32, name=f"group{group}")
            known = Signal(name=f"group{group}_known")
            m.d.sync += [value.eq(0), known.eq(0)]
            with m.Switch(read.addr[:4]):
                for word in sorted(w for w in values if w // GROUP == group):
                    with m.Case(word % GROUP):
                        m.d.sync += [value.eq(values[word]), known.eq(1)]
            here = Signal(name=f"group{group}_here")
            m.d.sync += here.eq(read.addr[4:] == group)
            chosen.append((here, known, value))

        words = 2 * NUM_COUNTERS
        assert COUNTER_BASE // 4 % words == 0, "the counters are decoded by their high address bits"
        is_counter = Signal()
        is_time = Signal()
        counter = Signal(32)
        m.d.comb += self.counter_addr.eq(read.addr[1:1 + len(self.counter_addr)])
        m.d.sync += [
            is_counter.eq(read.addr[words.bit_length() - 1:] == COUNTER_BASE // 4 // words),
            is_time.eq(read.addr == time_lo),
            counter.eq(self.counter_data[:32]),
        ]
        with m.If(read.addr[0]):
            m.d.sync += counter.eq(counter_hi)
        with m.If(sample & is_counter & ~read.addr[0]):
            m.d.sync += counter_hi.eq(self.counter_data[32:])
        with m.If(sample & is_time):
            m.d.sync += time_hi.eq(self.time[32:])

        data, known = 0, is_counter
        for here, group_known, value in [*chosen, (is_counter, 1, counter)]:
            data |= value & here.replicate(32)
            known |= here & group_known
        m.d.comb += [read.ready.eq(done), read.data.eq(data), read.error.eq(~known)]
