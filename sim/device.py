"""The NIC under Verilator, in this process: its memory, its cable and its registers as Python calls.

The clock runs in C++ (`sim/rtl`); Python only sets things up, runs, and looks. Everything random comes from one seed, so
the same calls give the same run.

    with SimDevice(preset("small", trace=True), seed=7) as dev:
        dev.map(0x10000, 0x1000)                # memory that the card may touch; elsewhere is a fault
        dev.send(frame)
        dev.run_until("idle", limit=100_000)
        assert dev.host_frames() == [frame] and not dev.faults and not dev.violations
"""

from collections import namedtuple
import ctypes as C
import functools

import numpy as np

from optinic.abi.verdicts import CONSUMED, REASON, VERDICT

from .build import BuildError, build_model, nic_verilog

__all__ = ["SimDevice", "SimError", "TraceRecord", "Fault", "Violation", "HostFrame", "SentFrame", "BuildError"]

TOP = "optinic_nic"

Fault = namedtuple("Fault", "cycle addr length kind")           #: kind: "read" or "write" outside the mapped windows
Violation = namedtuple("Violation", "cycle addr text")          #: the card broke a rule of AXI
HostFrame = namedtuple("HostFrame", "frame first last user")    #: with the cycles of its first and its last beat
SentFrame = namedtuple("SentFrame", "frame first last user")    #: likewise, on the cable; `user` 1: to be sent damaged
CellInfo = namedtuple("CellInfo", "name bits rows table")      #: a register (rows None) or a memory
TraceRecord = namedtuple("TraceRecord", "cycle verdict reason qpn length kind frames_in")

TRACE = np.dtype([("cycle", "<u8"), ("verdict", "<u4"), ("reason", "<u4"), ("qpn", "<u4"), ("length", "<u4"), ("kind", "<u4"),
                  ("frames_in", "<u4")])
TRANSFER = np.dtype([("cycle", "<u8"), ("end_cycle", "<u8"), ("addr", "<u8"), ("length", "<u8"), ("id", "<u4"), ("resp", "<u4"),
                     ("write", "<u4"), ("pad", "<u4")])
PAIR = np.dtype([("cycle", "<u8"), ("value", "<u8")])
STAMP = np.dtype([("first", "<u8"), ("last", "<u8")])
SUNK = np.dtype([("first", "<u8"), ("last", "<u8"), ("length", "<u4"), ("user", "<u4")])

UNTIL = {"cycle": 0, "sent": 1, "traces": 2, "host_frames": 3, "idle": 4, "writes": 5, "irq": 6, "byte": 7,
         "traces_and_overflows": 8, "mac_frames": 9}
ACTION = {"slverr": 1, "decerr": 2, "never": 3, "late": 4, "short": 5}
VISIBILITY = {"response": 0, "accept": 1, "random": 2}

_NAME = {kind: {n: name for name, n in table.items()}
         for kind, table in (("verdict", VERDICT), ("reason", REASON), ("kind", CONSUMED))}


class SimError(RuntimeError):
    """The device didn't answer, or was asked for something that it hasn't got."""


class _Fault(C.Structure):
    _fields_ = [("cycle", C.c_uint64), ("addr", C.c_uint64), ("length", C.c_uint64), ("write", C.c_int)]


@functools.cache
def _load(path):
    lib = C.CDLL(str(path))
    p, u64, i64, u32, i32, s = C.c_void_p, C.c_uint64, C.c_int64, C.c_uint32, C.c_int, C.c_char_p
    P = C.POINTER
    for name, result, *args in (
            ("dev_new", p, u64), ("dev_free", None, p), ("dev_waves", i32, p, s),
            ("dev_ports", i32, p, u64, P(s), P(u32), P(i32)),
            ("dev_set_knob", i32, p, s, i64), ("dev_knob", i32, p, u64, P(s), P(i64)), ("dev_seed", None, p, u64),
            ("dev_cycle", u64, p), ("dev_run", None, p, u64), ("dev_run_until", i32, p, i32, u64, u64, u64, u64),
            ("dev_reset", None, p, u64, i32),
            ("dev_mem_read", None, p, u64, p, u64), ("dev_mem_write", None, p, u64, p, u64),
            ("dev_mem_fill", None, p, u64, i32, u64), ("dev_map", None, p, u64, u64), ("dev_unmap", None, p, u64, u64),
            ("dev_fault_count", u64, p), ("dev_fault", i32, p, u64, P(_Fault)), ("dev_violation_count", u64, p),
            ("dev_violation", i32, p, u64, P(u64), P(u64), P(s)), ("dev_clear_faults", None, p),
            ("dev_cell", i32, p, u64, P(s), P(u32), P(u32), P(i32)), ("dev_bit", i32, p, u64, u64, u32),
            ("dev_flip", i32, p, u64, u64, u32), ("dev_settle", None, p),
            ("dev_axi", p, p, s), ("axi_rule", None, p, u64, u64, i32, i32, i32, u64, i64), ("axi_clear_rules", None, p),
            ("axi_unasked", i32, p, s, u32, u32),
            ("axi_log", u64, p, u64, p, u64), ("axi_log_size", u64, p), ("axi_totals", None, p, s, p),
            ("dev_source", p, p, s), ("source_send", None, p, s, u64, u64, i32), ("source_send_many", None, p, s, p, p, u64),
            ("source_totals", None, p, p), ("source_stamps", u64, p, u64, p, u64),
            ("dev_sink", p, p, s), ("sink_waiting", None, p, p), ("sink_take", None, p, u64, p, p),
            ("dev_master", p, p, s), ("master_begin", None, p, i32, u32, u32, u32),
            ("master_wait", i32, p, p, P(u32), u64), ("master_give_up", None, p),
            ("dev_trace", p, p, s), ("trace_count", u64, p), ("trace_copy", u64, p, u64, p, u64),
            ("trace_overflow_count", u64, p), ("trace_overflows", u64, p, u64, p, u64),
            ("dev_irq", p, p, s), ("irq_value", u64, p), ("irq_edge_count", u64, p), ("irq_edges", u64, p, u64, p, u64)):
        f = getattr(lib, name)
        f.restype, f.argtypes = result, args
    return lib


class SimDevice:
    """One simulated card.

    `cfg` is a NicConfig; `verilog` (with `top`) takes the place of the NIC's own, for another top with ports of the same
    names. Keyword arguments are knobs, each settable later with :meth:`set`, probabilities from 0 to 1:

    ==================================  ==========================================================================
    `pause`, `gap` (n or (min, max))    frames into the card: idle cycles inside a frame, and between frames
    `host_pause`                        ready withheld on the pass-through stream
    `mac_pause`                         ready withheld on the frames from the card to the cable (see also :meth:`pace`)
    `host_tx_pause`, `host_tx_gap`      as `pause` and `gap`, for the host's own frames into the card
    `read_latency`, `write_latency`     cycles (n or (min, max)) from the address (the last data) to the answer
    `aw_pause` `w_pause` `b_pause`      ready (or valid) withheld on that AXI channel
    `ar_pause` `r_pause`
    `reads_max`, `writes_max`           outstanding at the memory before its address ready falls
    `early_data`                        beats of write data that the memory takes before their address
    `interleave`                        read data of several IDs beat by beat
    `shuffle`                           most cycles by which reads are answered later, at random, those of different IDs in
                                        any order
    `visibility`                        when written bytes can be read: with their "response", on "accept"ance of the
                                        last beat, or at a "random" time between
    `log`                               keep a list of the AXI transfers
    `skew`                              most cycles by which register accesses are held back, at random
    ==================================  ==========================================================================
    """

    def __init__(self, cfg=None, *, seed=1, verilog=None, top=None, waves=None, cells=False, label=None, reset_cycles=4,
                 **knobs):
        self.cfg, self._dev = cfg, None
        if verilog is None:
            verilog, top = nic_verilog(cfg), TOP
        self._lib = lib = _load(build_model(verilog, top, waves=waves is not None, cells=cells,
                                            label=label or (f"{cfg.data_width} bits" if cfg else "model")))
        self.seed = seed
        self._dev = lib.dev_new(seed)
        if waves is not None and not lib.dev_waves(self._dev, str(waves).encode()):
            raise SimError(f"{waves} can't be written")
        self.ports = self._ports()
        self._mac, self._host = lib.dev_source(self._dev, b"mac_rx__"), lib.dev_sink(self._dev, b"host_rx__")
        self._mac_tx, self._host_tx = lib.dev_sink(self._dev, b"mac_tx__"), lib.dev_source(self._dev, b"host_tx__")
        self._axi, self._axil = lib.dev_axi(self._dev, b"axi__"), lib.dev_master(self._dev, b"axil__")
        self._trace, self._irq = lib.dev_trace(self._dev, b"trace__"), lib.dev_irq(self._dev, b"irq")
        self._waiting = (C.c_uint64 * 3)()
        self._next_alloc = 0x1_0000_0000
        self.set(**knobs)
        self.reset(cycles=reset_cycles)

    def close(self):
        if self._dev:
            self._lib.dev_free(self._dev)
            self._dev = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()

    def _ports(self):
        name, bits, is_input = C.c_char_p(), C.c_uint32(), C.c_int()
        found, i = {}, 0
        while self._lib.dev_ports(self._dev, i, C.byref(name), C.byref(bits), C.byref(is_input)):
            found[name.value.decode()] = (bits.value, "input" if is_input.value else "output")
            i += 1
        return found

    def _need(self, part, what):
        if not part:
            raise SimError(f"this top has no {what}")
        return part

    # -- knobs and seeds ------------------------------------------------------------------------------

    def set(self, **knobs):
        """Set knobs (see the class) from now on."""
        for name, value in knobs.items():
            low, high = value if isinstance(value, tuple) else (value, value)
            if name in ("gap", "host_tx_gap"):
                stream = {"gap": "mac_rx", "host_tx_gap": "host_tx"}[name]
                self._set(f"{stream}__gap_min", low), self._set(f"{stream}__gap_max", high)
            elif name in ("read_latency", "write_latency"):
                self._set(f"axi__{name}_min", low), self._set(f"axi__{name}_max", high)
            elif name in ("pause", "host_pause", "mac_pause", "host_tx_pause"):
                stream = {"pause": "mac_rx", "host_pause": "host_rx", "mac_pause": "mac_tx", "host_tx_pause": "host_tx"}[name]
                self._set(f"{stream}__pause", round(value * 1e6))
            elif name in ("aw_pause", "w_pause", "b_pause", "ar_pause", "r_pause"):
                self._set(f"axi__{name}", round(value * 1e6))
            elif name == "visibility":
                self._set("axi__visibility", VISIBILITY[value])
            elif name in ("reads_max", "writes_max", "early_data", "interleave", "shuffle", "log"):
                self._set(f"axi__{name}", int(value))
            elif name == "skew":
                self._set("axil__skew", value)
            else:
                raise SimError(f"unknown knob {name!r}; SimDevice's docstring has the list")

    def _set(self, name, value):
        if not self._lib.dev_set_knob(self._dev, name.encode(), value):
            raise SimError(f"this top has nothing that {name} could set")

    def pace(self, bits_per_cycle, overhead_bytes=24, min_frame_bytes=60):
        """Take frames from the card no faster than a cable of that rate, as a MAC does (0: as fast as they come)."""
        self._set("mac_tx__rate", int(bits_per_cycle * (1 << 20)))
        self._set("mac_tx__overhead", overhead_bytes), self._set("mac_tx__shortest", min_frame_bytes)

    def reseed(self, seed):
        """Begin the random choices anew."""
        self.seed = seed
        self._lib.dev_seed(self._dev, seed)

    # -- time -----------------------------------------------------------------------------------------

    @property
    def cycle(self):
        """Clock edges since the device was made, those in reset too."""
        return self._lib.dev_cycle(self._dev)

    def run(self, cycles):
        self._lib.dev_run(self._dev, cycles)

    def run_until(self, kind, value=0, *, limit, mask=0xFF, equals=0):
        """Run until a condition holds, at most `limit` cycles; returns whether it held.

        `kind` and `value`: "cycle" (number), "sent" (frames wholly taken by the card), "traces" (records in all),
        "traces_and_overflows", "host_frames" (in all), "mac_frames" (sent by the card, in all), "writes" (AXI writes
        answered in all), "irq" (mask of lines),
        "idle" (no frame left, nothing outstanding, no handshake for `value` cycles, by default 200), "byte" (address: the
        byte there, under `mask`, is `equals`).
        """
        if kind not in UNTIL:
            raise SimError(f"unknown condition {kind!r}; known are {', '.join(UNTIL)}")
        if kind == "idle":
            value = value or 200
        return bool(self._lib.dev_run_until(self._dev, UNTIL[kind], value, mask, equals, limit))

    def idle(self, quiet_cycles=200):
        """No frame left, nothing outstanding, no handshake for so many cycles."""
        return bool(self._lib.dev_run_until(self._dev, UNTIL["idle"], quiet_cycles, 0, 0, 0))

    def reset(self, cycles=4, *, cut=True):
        """Hold the card in reset. The frame under way ends there (`cut`), or its remaining beats come after the reset, as
        from a MAC that isn't reset too. Host accesses under way are forgotten on both sides; the memory stays."""
        self._lib.dev_reset(self._dev, cycles, cut)

    # -- memory ---------------------------------------------------------------------------------------

    def read(self, addr, n):
        buf = C.create_string_buffer(n)
        self._lib.dev_mem_read(self._dev, addr, buf, n)
        return buf.raw

    def write(self, addr, data):
        data = bytes(data)
        self._lib.dev_mem_write(self._dev, addr, data, len(data))

    def fill(self, addr, value, n):
        self._lib.dev_mem_fill(self._dev, addr, value, n)

    def map(self, addr, length):
        """Let the card read and write these bytes. Elsewhere it gets DECERR and the access is kept in `faults`."""
        if length:
            self._lib.dev_map(self._dev, addr, addr + length - 1)

    def unmap(self, addr, length):
        if length:
            self._lib.dev_unmap(self._dev, addr, addr + length - 1)

    def alloc(self, length, align=4096):
        """Zeroed memory that the card may use, from 4 GiB upwards; followed by a page that it may not."""
        addr = -(-self._next_alloc // align) * align
        self._next_alloc = -(-(addr + length) // 4096) * 4096 + 4096
        self.fill(addr, 0, length)
        self.map(addr, length)
        return addr

    @property
    def faults(self):
        """The first 1000 accesses outside the mapped windows."""
        out, found, i = _Fault(), [], 0
        while self._lib.dev_fault(self._dev, i, C.byref(out)):
            found.append(Fault(out.cycle, out.addr, out.length, "write" if out.write else "read"))
            i += 1
        return found

    @property
    def violations(self):
        """The first 1000 offences against AXI (bursts, strobes, wlast, stability) by the card."""
        cycle, addr, text = C.c_uint64(), C.c_uint64(), C.c_char_p()
        found, i = [], 0
        while self._lib.dev_violation(self._dev, i, C.byref(cycle), C.byref(addr), C.byref(text)):
            found.append(Violation(cycle.value, addr.value, text.value.decode()))
            i += 1
        return found

    def clear_faults(self):
        """Forget `faults` and `violations`."""
        self._lib.dev_clear_faults(self._dev)

    # -- errors on purpose, and what the AXI port did -------------------------------------------------

    def inject(self, addr, length, action, *, on="read", amount=0, count=-1):
        """Answer accesses that touch these bytes badly: the next `count` of them, or all.

        `action`: "slverr", "decerr", "never" (no answer at all), "late" (`amount` cycles later), "short" (a read that ends
        after `amount` beats). `on`: "read", "write" or "both". The rule that was made first counts.
        """
        if action not in ACTION:
            raise SimError(f"unknown action {action!r}; known are {', '.join(ACTION)}")
        self._lib.axi_rule(self._need(self._axi, "AXI master"), addr, addr + length - 1, on in ("read", "both"),
                           on in ("write", "both"), ACTION[action], amount, count)

    def answer_unasked(self, id, beats=1):
        """An answer of so many beats to a read that the card hasn't made; if reads of the same ID are open, behind theirs."""
        if not self._lib.axi_unasked(self._dev, b"axi__", id, beats):
            raise SimError("this top has no AXI master that reads")

    def clear_injections(self):
        self._lib.axi_clear_rules(self._axi)

    def transfers(self, skip=0):
        """Array of the AXI transfers since `log` was set, in order of their ends: cycle (of the address), end_cycle (of
        the answer, 2^64-1 for none), addr, length, id, resp, write."""
        return self._array(self._lib.axi_log, self._axi, self._lib.axi_log_size(self._axi), skip, TRANSFER)

    def axi_totals(self):
        """dict: transfers, bytes, and those left without an answer, each way."""
        out = (C.c_uint64 * 6)()
        self._lib.axi_totals(self._dev, b"axi__", out)
        return dict(zip(("writes", "write_bytes", "writes_unanswered", "reads", "read_bytes", "reads_unanswered"), out))

    def _array(self, copy, part, count, skip, dtype):
        out = np.zeros(max(0, count - skip), dtype)
        if len(out):
            copy(part, skip, out.ctypes.data, len(out))
        return out

    # -- frames ---------------------------------------------------------------------------------------

    def send(self, frame, *, at_cycle=None, user=0):
        """Queue a frame (no preamble, no FCS), not to begin before `at_cycle`; `user` 1 marks it damaged. Returns its
        index for :meth:`stamps`."""
        frame = bytes(frame)
        if not frame:
            raise SimError("a frame has at least one byte")
        index = self._totals()[0]
        self._lib.source_send(self._need(self._mac, "mac_rx"), frame, len(frame), at_cycle or 0, user)
        return index

    def send_many(self, frames, at_cycles=None):
        """Queue many frames at once."""
        if not all(frames):
            raise SimError("a frame has at least one byte")
        lengths = np.array([len(f) for f in frames], np.uint32)
        at = None if at_cycles is None else np.array(at_cycles, np.uint64)
        self._lib.source_send_many(self._need(self._mac, "mac_rx"), b"".join(frames), lengths.ctypes.data,
                                   None if at is None else at.ctypes.data, len(frames))

    def _totals(self):
        out = (C.c_uint64 * 4)()
        self._lib.source_totals(self._need(self._mac, "mac_rx"), out)
        return out

    @property
    def frames_sent(self):
        """Frames wholly accepted by the card (or cut by a reset)."""
        return self._totals()[1]

    @property
    def mac_stalls(self):
        """Cycles in which the card held the MAC (tvalid without tready)."""
        return self._totals()[2]

    @property
    def mac_beats(self):
        return self._totals()[3]

    def stamps(self, skip=0):
        """Array with the cycles in which the first and the last beat of each frame were accepted (2^64-1: not yet)."""
        return self._array(self._lib.source_stamps, self._mac, self._totals()[0], skip, STAMP)

    def host_frames(self, stamped=False):
        """The frames that came out of the pass-through stream since the last call; `stamped`: as HostFrame."""
        return self._take(self._need(self._host, "host_rx"), HostFrame if stamped else None)

    @property
    def sends(self):
        """The top has a stream to the cable."""
        return bool(self._mac_tx)

    def sent_frames(self):
        """The frames that the card has sent to the cable since the last call, as SentFrame."""
        return self._take(self._need(self._mac_tx, "mac_tx"), SentFrame)

    def host_send(self, frame, *, at_cycle=None, user=0):
        """Queue a frame of the host's own for the card to send, not to begin before `at_cycle`."""
        frame = bytes(frame)
        if not frame:
            raise SimError("a frame has at least one byte")
        self._lib.source_send(self._need(self._host_tx, "host_tx"), frame, len(frame), at_cycle or 0, user)

    @property
    def host_frames_sent(self):
        """Frames of the host's own that the card has wholly taken."""
        out = (C.c_uint64 * 4)()
        self._lib.source_totals(self._need(self._host_tx, "host_tx"), out)
        return out[1]

    def _take(self, sink, record):
        """All that waits in a sink, in two calls."""
        self._lib.sink_waiting(sink, self._waiting)
        count, size, _ = self._waiting
        if not count:
            return []
        blob, records = np.empty(max(1, size), np.uint8), np.empty(count, SUNK)
        self._lib.sink_take(sink, count, blob.ctypes.data, records.ctypes.data)
        blob, at, found = blob.tobytes(), 0, []
        for first, last, length, user in records.tolist():
            frame = blob[at:at + length]
            at += length
            found.append(record(frame, first, last, user) if record else frame)
        return found

    # -- verdicts and interrupts ----------------------------------------------------------------------

    def trace_array(self, skip=0):
        """The verdicts on the frames as an array of numbers, from record `skip` on."""
        part = self._need(self._trace, "trace (set trace=True in the configuration)")
        return self._array(self._lib.trace_copy, part, self._lib.trace_count(part), skip, TRACE)

    def traces(self, skip=0):
        """The verdicts as TraceRecords with the names of the ABI. `frames_in`: frames that the card had taken by then."""
        return [TraceRecord(int(r["cycle"]), *(_NAME[k].get(int(r[k]), int(r[k])) for k in ("verdict", "reason")),
                            int(r["qpn"]), int(r["length"]), _NAME["kind"].get(int(r["kind"]), int(r["kind"])), int(r["frames_in"]))
                for r in self.trace_array(skip)]

    @property
    def trace_count(self):
        return self._lib.trace_count(self._need(self._trace, "trace"))

    def overflows(self, skip=0):
        """Frames refused for lack of room: array of cycle and value = frames that the card had taken before that cycle."""
        part = self._need(self._trace, "trace")
        return self._array(self._lib.trace_overflows, part, self._lib.trace_overflow_count(part), skip, PAIR)

    @property
    def irq(self):
        """The interrupt lines, as of the last cycle."""
        return self._lib.irq_value(self._need(self._irq, "irq"))

    def irq_edges(self, skip=0):
        """Array of the changes of the interrupt lines: cycle and new value."""
        return self._array(self._lib.irq_edges, self._need(self._irq, "irq"), self._lib.irq_edge_count(self._irq), skip, PAIR)

    # -- state, of a device made with cells=True ----------------------------------------------------------

    def cells(self):
        """Every register and memory of the design, in an order that depends on nothing but the design; `rows` is None of a
        register, `table` whether a memory is a per-item table."""
        name, bits, rows, table, found = C.c_char_p(), C.c_uint32(), C.c_uint32(), C.c_int(), []
        while self._lib.dev_cell(self._dev, len(found), C.byref(name), C.byref(bits), C.byref(rows), C.byref(table)):
            found.append(CellInfo(name.value.decode(), bits.value, rows.value or None, bool(table.value)))
        return found

    def bit(self, cell, row, bit):
        """A bit of state: of cell number `cell` of :meth:`cells`, of its row (0 of a register)."""
        return self._state(self._lib.dev_bit, cell, row, bit)

    def flip(self, cell, row, bit):
        """Turn a bit of state over, between two clock edges, and let everything that depends on it follow."""
        if not self._state(self._lib.dev_flip, cell, row, bit):
            raise SimError(f"cell {cell}, row {row}, bit {bit}: what the simulation has there is not the state itself")

    def settle(self):
        """Evaluate everything that depends on state anew; changes nothing."""
        self._lib.dev_settle(self._dev)

    def _state(self, function, cell, row, bit):
        found = function(self._dev, cell, row, bit)
        if found < 0:
            raise SimError(f"there is no cell {cell}, row {row}, bit {bit} of state; a device needs cells=True to have any")
        return found

    # -- registers ------------------------------------------------------------------------------------

    def reg_begin(self, write, offset, value=0):
        """Begin a register access without letting the clock run; :meth:`reg_wait` ends it."""
        self._lib.master_begin(self._need(self._axil, "AXI-Lite port"), write, offset, value, 15)
        self._under_way = f"register {offset:#x}, {'write' if write else 'read'}"

    def reg_wait(self, cycles):
        """Run at most so many cycles until the access has ended; returns what was read (anything after a write), or None
        if it hasn't ended yet."""
        word = C.c_uint32()
        resp = self._lib.master_wait(self._dev, self._axil, C.byref(word), cycles)
        if resp > 0:
            raise SimError(f"{self._under_way}: {('OKAY', 'EXOKAY', 'SLVERR', 'DECERR')[resp]}")
        return None if resp < 0 else word.value

    def reg_give_up(self):
        """Forget the access under way; raises SimError."""
        self._lib.master_give_up(self._axil)
        raise SimError(f"{self._under_way}: no answer")

    def _access(self, write, offset, value, limit):
        self.reg_begin(write, offset, value)
        word = self.reg_wait(limit)
        return self.reg_give_up() if word is None else word

    def reg_read(self, offset, limit=10_000):
        """A 32-bit register through the AXI-Lite port; the clock runs until the answer."""
        return self._access(0, offset, 0, limit)

    def reg_write(self, offset, value, limit=10_000):
        self._access(1, offset, value, limit)
