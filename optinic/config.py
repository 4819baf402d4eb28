"""NicConfig: every knob of the generator, the widths derived from them, and the checks across them.

A configuration is complete and consistent once it exists: a wrong value or a contradiction raises
:class:`ConfigError` at construction, naming the value, the limit and the remedy.
"""

from dataclasses import dataclass, fields, replace, asdict
import hashlib
import json

__all__ = ["ConfigError", "NicConfig", "PRESETS", "preset"]

TICK_NS = 64            #: unit of every timeout and deadline
WQE_BYTES = 32          #: receive work queue element
SEND_WQE_BYTES = 64
LINE_WQES = 4           #: receive WQEs fetched by one host read
CQE_BYTES = 32
POOL_RESERVE = 8        #: rows of a pool of open messages that are on their way to or from the free list


class ConfigError(ValueError):
    """A knob has a value that the generator can't build, or two knobs contradict each other."""


def knob(default, doc, *, choices=None, low=None, high=None, power_of_two=False):
    from dataclasses import field
    return field(default=default, metadata=dict(doc=doc, choices=choices, low=low, high=high,
                                                power_of_two=power_of_two))


@dataclass(frozen=True)
class NicConfig:
    transport: str = knob("xp", "transport engine: xp OptiNIC, rc the reliable baseline", choices=("xp", "rc"))
    data_width: int = knob(512, "datapath width in bits", choices=(64, 128, 256, 512, 1024))
    clock_hz: int = knob(250_000_000, "clock of the one domain, Hz", low=10_000_000, high=1_000_000_000)
    num_qps: int = knob(1024, "queue pairs", low=2, high=16384)
    num_regions: int = knob(512, "memory regions (two-bank cuckoo table)", low=8, high=16384, power_of_two=True)
    num_cqs: int = knob(256, "completion queues", low=2, high=4096, power_of_two=True)
    num_peers: int = knob(256, "remote addresses that queue pairs share", low=2, high=16384, power_of_two=True)
    num_vectors: int = knob(4, "completion vectors, one interrupt line each", low=1, high=32)
    mtu_max: int = knob(4096, "largest path MTU, bytes", choices=(256, 512, 1024, 2048, 4096))
    rq_entries: int = knob(256, "receive ring size of every QP, work requests", low=8, high=32768, power_of_two=True)
    rq_cache_lines: int = knob(256, "receive WQE lines (4 WQEs each) on the chip", low=8, high=4096, power_of_two=True)
    open_messages: int = knob(2048, "transport xp: messages of several packets that may be partly here at once, less 8 (from num_qps on: one "
                                    "of each QP, and none less)", low=16, high=16384, power_of_two=True)
    rq_prefetch_lines: int = knob(4, "lines fetched ahead of the one in use", low=0, high=7)
    rx_buffer_bytes: int = knob(32768, "store-and-forward packet buffer", low=4096, high=1 << 20, power_of_two=True)
    rx_frames: int = knob(64, "frames that may wait in the packet buffer", low=8, high=1024, power_of_two=True)
    reads_outstanding: int = knob(32, "host reads in flight for receive WQEs", low=2, high=128, power_of_two=True)
    writes_outstanding: int = knob(128, "packets whose host writes may be unacknowledged", low=8, high=1024,
                                   power_of_two=True)
    sq_entries: int = knob(256, "send ring size of every QP, work requests", low=8, high=32768, power_of_two=True)
    tx_slots: int = knob(64, "send WQEs and READ responses on the chip", low=16, high=64, power_of_two=True)
    tx_reads_outstanding: int = knob(64, "packets whose payload may be under way from host memory", low=4, high=64,
                                     power_of_two=True)
    tx_buffer_bytes: int = knob(32768, "payload on its way from host memory to the cable", low=4096, high=1 << 20,
                                power_of_two=True)
    read_jobs: int = knob(64, "READ requests of peers that may wait for their responses", low=4, high=1024, power_of_two=True)
    congestion: str = knob("dcqcn", "congestion controller", choices=("none", "dcqcn", "fixed"))
    congested_qps: int = knob(1024, "rows for queue pairs whose rate DCQCN keeps; num_qps or more: one each; fewer: a pool, one "
                                    "row of it being empty and one for all that find none free", low=4, high=16384, power_of_two=True)
    deadline_lanes: int = knob(8, "deadlines that the scanner compares each cycle", choices=(1, 2, 4, 8, 16))
    ipv6: bool = knob(True, "accept IPv6")
    vlan: bool = knob(True, "accept one 802.1Q tag")
    uc: bool = knob(True, "accept standard UC single-packet messages")
    pass_through: bool = knob(True, "hand frames that are not for the transport to the host (off: discard, counted)")
    arrival_map: bool = knob(False, "a QP may have a map in host memory of which pieces of its messages arrived")
    rc_outstanding: int = knob(16, "transport rc: requests of a QP that may be unacknowledged", low=2, high=64, power_of_two=True)
    rc_resources: int = knob(16, "transport rc: READ and atomic requests of a peer's QP that may be unanswered; atomic results kept "
                                 "for replay", low=1, high=64, power_of_two=True)
    rc_atomics: bool = knob(True, "transport rc: compare and swap, fetch and add")
    table_protection: str = knob("none", "check bits of the tables of queue pairs and regions: secded corrects one wrong bit of a row, parity "
                                 "refuses it where that can be done", choices=("none", "parity", "secded"))
    trace: bool = knob(False, "bring out one verdict for each frame (simulation, logic analyser)")

    # -- checks -----------------------------------------------------------------------------------

    def __post_init__(self):
        for f in fields(self):
            self._check_knob(f, getattr(self, f.name))
        if self.rx_buffer_bytes < 4 * self.max_frame_bytes:
            raise ConfigError(f"rx_buffer_bytes={self.rx_buffer_bytes} holds fewer than four frames of "
                              f"{self.max_frame_bytes} bytes (mtu_max={self.mtu_max}); raise rx_buffer_bytes to "
                              f"{_pow2_at_least(4 * self.max_frame_bytes)} or lower mtu_max")
        if self.tx_buffer_bytes < 4 * (self.mtu_max + self.beat_bytes):
            raise ConfigError(f"tx_buffer_bytes={self.tx_buffer_bytes} holds fewer than four payloads of mtu_max={self.mtu_max}; "
                              f"raise it to {_pow2_at_least(4 * (self.mtu_max + self.beat_bytes))} or lower mtu_max")
        if self.num_qps < self.deadline_lanes:
            raise ConfigError(f"deadline_lanes={self.deadline_lanes} exceeds num_qps={self.num_qps}; "
                              f"lower deadline_lanes or raise num_qps")
        if self.rc and self.arrival_map:
            raise ConfigError("arrival_map=True has no use with transport='rc', whose messages arrive whole; set arrival_map=off")
        if self.rc and self.rc_outstanding > self.sq_entries:
            raise ConfigError(f"rc_outstanding={self.rc_outstanding} exceeds sq_entries={self.sq_entries}; lower rc_outstanding or "
                              f"raise sq_entries")
        if self.rc and self.rc_atomics and self.reads_outstanding > 64:
            raise ConfigError(f"reads_outstanding={self.reads_outstanding} leaves no AXI ID for the reads of atomics; lower it to 64, or set "
                              f"rc_atomics=off")
        if (self.rq_prefetch_lines + 1) * LINE_WQES > self.rq_entries:
            raise ConfigError(f"rq_prefetch_lines={self.rq_prefetch_lines} reaches past a ring of "
                              f"rq_entries={self.rq_entries}; lower it to at most {self.rq_entries // LINE_WQES - 1}")

    def _check_knob(self, f, value):
        m, name = f.metadata, f.name
        want = type(f.default)
        if want is int and isinstance(value, bool) or not isinstance(value, want):
            raise ConfigError(f"{name}={value!r} is not of type {want.__name__}; give {name}={f.default!r}, for example")
        if m["choices"] and value not in m["choices"]:
            extra = " (sr is not built: see the table in README.md)" if name == "transport" else ""
            raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(str, m['choices']))}{extra}")
        if m["low"] is not None and not m["low"] <= value <= m["high"]:
            raise ConfigError(f"{name}={value} is outside {m['low']}..{m['high']}; choose a value in that range")
        if m["power_of_two"] and value & (value - 1):
            raise ConfigError(f"{name}={value} is not a power of two; the nearest above is {_pow2_at_least(value)}")

    # -- derived ----------------------------------------------------------------------------------

    def has(self, feature):
        """Whether the card has a feature, by the name of its knob. What only the other transport uses doesn't count."""
        return getattr(self, feature) and (self.rc or not feature.startswith("rc_"))

    @property
    def packets_on_the_way(self):
        """What short queues of packets' records hold: what is under way between two places a few dozen cycles apart. With 64 bits even the
        shortest frame takes ten cycles, and a small part's LUT memory has sixteen rows."""
        return 16 if self.data_width == 64 else 32

    @property
    def lookups_on_the_way(self):
        """Packets that wait for the receive that they belong to, which may have to be read from host memory."""
        return 16 if self.data_width == 64 else 64

    @property
    def rc(self):
        """Whether this is the reliable baseline."""
        return self.transport == "rc"

    @property
    def beat_bytes(self):
        return self.data_width // 8

    @property
    def max_frame_bytes(self):
        """Largest frame accepted: full MTU behind the longest headers, or a full-size Ethernet frame."""
        return max(self.mtu_max + 128, 1536)

    @property
    def max_frame_beats(self):
        return -(-self.max_frame_bytes // self.beat_bytes)

    @property
    def rx_buffer_beats(self):
        return self.rx_buffer_bytes // self.beat_bytes

    @property
    def tx_buffer_beats(self):
        return self.tx_buffer_bytes // self.beat_bytes

    @property
    def qp_bits(self):
        """Bits of a QP index; the QPN's bits above are a tag held in the QP's context."""
        return max(1, (self.num_qps - 1).bit_length())

    @property
    def ring_bits(self):
        """Bits of the number of a ring of receive WQEs: one for each QP, and with transport rc, behind them, one for the results of
        its READs and atomics."""
        return self.qp_bits + self.rc

    @property
    def qpn_tag_bits(self):
        return 24 - self.qp_bits

    @property
    def cq_bits(self):
        return (self.num_cqs - 1).bit_length()

    @property
    def peer_bits(self):
        return (self.num_peers - 1).bit_length()

    @property
    def messages_pooled(self):
        """Whether QPs share rows for their open messages."""
        return not self.rc and self.open_messages < self.num_qps

    @property
    def most_open(self):
        """Messages that may be partly here at once; None: one of each QP."""
        return self.open_messages - POOL_RESERVE if self.messages_pooled else None

    @property
    def dcqcn_pool(self):
        """Rows of DCQCN's state for the queue pairs that are congested; 0: every queue pair has its own."""
        return self.congested_qps if self.congested_qps < self.num_qps else 0

    @property
    def dcqcn_slot_bits(self):
        return (self.dcqcn_pool - 1).bit_length() if self.dcqcn_pool else 0

    @property
    def scan_rows(self):
        return -(-self.num_qps // self.deadline_lanes)

    @property
    def clock_ns(self):
        return 1e9 / self.clock_hz

    # -- making and showing -----------------------------------------------------------------------

    def with_(self, **knobs):
        """A copy with some knobs changed; unknown names are refused."""
        known = {f.name for f in fields(self)}
        for name in knobs:
            if name not in known:
                raise ConfigError(f"unknown knob {name!r}; known are {', '.join(sorted(known))}")
        return replace(self, **knobs)

    def as_dict(self):
        return asdict(self)

    @property
    def hash(self):
        """First 32 bits of SHA-256 over the sorted JSON of all knobs; readable from the card."""
        blob = json.dumps(self.as_dict(), sort_keys=True).encode()
        return int.from_bytes(hashlib.sha256(blob).digest()[:4], "big")

    @classmethod
    def knobs(cls):
        return fields(cls)

    @classmethod
    def parse(cls, name, text):
        """The value of knob `name` from the text of a command line."""
        known = {f.name: f for f in fields(cls)}
        if name not in known:
            raise ConfigError(f"unknown knob {name!r}; known are {', '.join(sorted(known))}")
        want = type(known[name].default)
        if want is bool:
            table = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}
            if text.lower() not in table:
                raise ConfigError(f"{name}={text!r} is not a switch; write {name}=on or {name}=off")
            return table[text.lower()]
        if want is int:
            try:
                return int(text.replace("_", ""), 0)
            except ValueError:
                raise ConfigError(f"{name}={text!r} is not a whole number; for example {name}={known[name].default}") from None
        return text


def _pow2_at_least(n):
    return 1 << max(0, (n - 1).bit_length())


_C100G = NicConfig()

PRESETS = {
    "tiny": _C100G.with_(data_width=64, clock_hz=125_000_000, num_qps=16, num_regions=32, num_cqs=8, num_peers=16,
                         num_vectors=1, mtu_max=1024, rq_entries=64, rq_cache_lines=64, rx_buffer_bytes=8192,
                         rx_frames=16, reads_outstanding=8, writes_outstanding=16, deadline_lanes=1,
                         sq_entries=64, tx_slots=16, tx_reads_outstanding=8, tx_buffer_bytes=8192, read_jobs=8),
    "small": _C100G.with_(data_width=128, num_qps=64, num_regions=64, num_cqs=16, num_peers=32, num_vectors=2,
                          rq_cache_lines=128, rx_buffer_bytes=32768, reads_outstanding=16, writes_outstanding=64, tx_slots=32, tx_reads_outstanding=16, read_jobs=16),
    "c100g": _C100G,
    "scale10k": _C100G.with_(num_qps=10240, num_regions=1024, num_cqs=1024, num_peers=1024, rq_entries=64,
                             sq_entries=64),
    "c400g": _C100G.with_(data_width=1024, clock_hz=400_000_000, rx_buffer_bytes=131072, writes_outstanding=256,
                         tx_buffer_bytes=131072),
}


def preset(name, **knobs):
    """Preset `name` with some knobs changed."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; known are {', '.join(PRESETS)}")
    return PRESETS[name].with_(**knobs)
