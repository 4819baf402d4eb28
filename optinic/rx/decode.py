"""From the captured header to a descriptor: framing rules, IPv4 checksum, opcode, length checks, verdict."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from optinic.abi.verdicts import REASON
from optinic.wire.headers import BTH, ETHERNET, ICRC_BYTES, IMMDT, IPV4, IPV6, PROTOCOL_UDP, RETH, ROCE_PORT, UDP, VLAN, XPETH
from optinic.wire.opcodes import OPCODES

from .capture import captured_signature, slice_field, variants
from .descriptor import descriptor_layout
from .icrc import IcrcCheck
from .pipeline import FixedPipe

__all__ = ["Decode", "opcode_among"]

_MIN_TRANSPORT = UDP.size + BTH.size + ICRC_BYTES


def opcode_among(code, condition):
    """Whether `code` is that of a defined opcode for which `condition` holds."""
    value = Const(0)
    for op in OPCODES.values():
        if condition(op):
            value |= code == op.code
    return value


class Decode(wiring.Component):
    """Takes `captured` in the cycle of a frame's last beat; `descriptor` comes with `done` `latency` cycles later.

    Never stalls; a frame may end each cycle. `icrc_ok` is that of the frame whose last beat entered IcrcCheck.latency
    cycles before. Of several reasons to refuse a frame the one with the smallest number counts, except that framing is
    judged from the outside in: what a header announces is not looked at once an outer one is wrong or not ours.

    This is the one of transport xp; :class:`DecodeRc` has its own opcodes, lengths and fields.
    """

    latency = IcrcCheck.latency + 1
    ext_bytes = XPETH.size + RETH.size + IMMDT.size     #: the most that stands between BTH and payload
    bth_fields = ("opcode", "pad_count", "version", "pkey", "dest_qp", "psn")

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__({
            "captured": In(captured_signature(cfg)), "icrc_ok": In(1),
            "done": Out(1), "descriptor": Out(descriptor_layout(cfg)),
        })

    def elaborate(self, platform):
        m = Module()
        p = FixedPipe(m, "dec")
        ends = Signal(self.latency)
        m.d.sync += ends.eq(Cat(self.captured.valid & self.captured.last, ends))
        m.d.comb += self.done.eq(ends[-1])

        self._select(p)
        self._framing(p)
        self._checksum(p)
        self._opcode(p)
        self._lengths(p)
        self._verdict(m, p)
        return m

    # -- stage 1: every field that matters, out of its place for the kind of frame ------------------

    def _select(self, p):
        cfg, f = self.cfg, self.captured
        byte = lambda i: f.header.word_select(i, 8)
        choose = lambda value: variants(cfg, f.vlan, f.v6, value)
        l3_field = lambda v4, v6: choose(lambda l3, is_v6: slice_field(byte, l3, *((IPV6, v6) if is_v6 else (IPV4, v4))))
        behind_ip = lambda l3, is_v6: l3 + (IPV6 if is_v6 else IPV4).size
        udp = lambda name: choose(lambda l3, is_v6: slice_field(byte, behind_ip(l3, is_v6), UDP, name))
        bth = lambda name: choose(lambda l3, is_v6: slice_field(byte, behind_ip(l3, is_v6) + UDP.size, BTH, name))
        v4_field = lambda name: variants(cfg.with_(ipv6=False), f.vlan, f.v6,
                                         lambda l3, _: slice_field(byte, l3, IPV4, name))

        for name in ("vlan", "v4", "v6", "damaged", "over", "beats"):
            p.put(name, 1, getattr(f, name))
        l3 = Mux(f.vlan, ETHERNET.size + VLAN.size, ETHERNET.size)
        p.put("tail", 1, f.length[:(self.cfg.beat_bytes - 1).bit_length()])
        p.put("no_ethernet", 1, f.length < l3)
        p.put("room", 1, (f.length - l3)[:len(f.length)])      # bytes from the IP header on
        p.put("ip_version", 1, l3_field("version", "version"))
        p.put("ihl", 1, v4_field("ihl"))
        p.put("protocol", 1, l3_field("protocol", "next_header"))
        p.put("ip_length", 1, l3_field("total_length", "payload_length"))
        p.put("fragment", 1, v4_field("fragment_offset"))
        p.put("more_fragments", 1, v4_field("flags")[0])
        p.put("ce", 1, l3_field("ecn", "ecn") == 3)
        p.put("src_low", 1, choose(lambda l3, is_v6: slice_field(byte, l3, IPV6, "src")[:32] if is_v6
                                   else slice_field(byte, l3, IPV4, "src")))
        if cfg.ipv6:
            p.put("src_high", 1, choose(lambda l3, is_v6: slice_field(byte, l3, IPV6, "src")[32:] if is_v6
                                        else Const(0, 96)))
        for i in range(IPV4.size // 2):
            word = lambda l3, _: Cat(byte(l3 + 2 * i + 1), byte(l3 + 2 * i))
            p.put(f"ip_word{i}", 1, variants(cfg.with_(ipv6=False), f.vlan, f.v6, word))
        for name in ("dst_port", "length"):
            p.put(f"udp_{name}", 1, udp(name))
        for name in self.bth_fields:
            p.put(f"bth_{name}", 1, bth(name))
        for i in range(self.ext_bytes):
            p.put(f"ext{i}", 1, choose(lambda l3, is_v6: byte(behind_ip(l3, is_v6) + UDP.size + BTH.size + i)))

    # -- stages 2 to 5: Ethernet, IP and UDP agree with each other and with the frame ---------------

    def _framing(self, p):
        v = p.at(1)
        p.put("bad_version", 2, Mux(v.v6, v.ip_version != 6, (v.ip_version != 4) | (v.ihl < 5)))
        p.put("options", 2, v.v4 & (v.ihl > 5))
        p.put("not_udp", 2, v.protocol != PROTOCOL_UDP)
        p.put("not_roce", 2, v.udp_dst_port != ROCE_PORT)
        p.put("is_fragment", 2, v.v4 & (v.more_fragments | (v.fragment != 0)))
        for name, size in (("no_ip", 0), ("no_udp", UDP.size), ("no_bth", _MIN_TRANSPORT)):
            p.put(name, 2, Mux(v.v6, v.room < IPV6.size + size, v.room < IPV4.size + size))
        p.put("datagram", 2, v.ip_length + Mux(v.v6, IPV6.size, 0))     # bytes from the IP header to the ICRC's end
        p.put("udp_want", 2, (v.ip_length - Mux(v.v6, 0, IPV4.size))[:17])

        v = p.at(2)
        p.put("too_long", 3, v.datagram > v.room)
        p.put("too_short", 3, Mux(v.v6, v.datagram < IPV6.size + _MIN_TRANSPORT, v.datagram < IPV4.size + _MIN_TRANSPORT))
        p.put("udp_differs", 3, v.udp_length != v.udp_want)

        v = p.at(3)
        p.put("bad_lengths", 4, v.too_long | v.too_short | v.udp_differs | v.is_fragment)
        # The first of these that applies decides: (condition, verdict).
        rules = [
            (v.damaged, "runt"), (v.over, "length"), (v.no_ethernet, "runt"), (~v.v4 & ~v.v6, "passed"),
            (v.no_ip, "runt"), (v.bad_version, "length"), (v.not_udp, "passed"), (v.options, "length"),
            (v.no_udp, "runt"), (v.not_roce, "passed"), (v.no_bth, "runt"),
        ]
        for verdict in ("passed", "runt", "length"):
            value = Const(0)
            for condition, then in reversed(rules):
                value = (condition | value) if then == verdict else (~condition & value)
            p.put(f"outer_{verdict}", 4, value)
        v = p.at(4)
        p.put("passed", 5, v.outer_passed)
        p.put("runt", 5, v.outer_runt)
        p.put("bad_framing", 5, v.outer_length | v.bad_lengths)

    # -- stages 2 to 8: sum of ten words, carries folded in twice, all ones when right -----------------

    def _checksum(self, p):
        for i in range(5):
            p.put(f"sum2_{i}", 2, p.get(f"ip_word{2 * i}", 1) + p.get(f"ip_word{2 * i + 1}", 1))
        p.put("sum4_0", 3, p.get("sum2_0", 2) + p.get("sum2_1", 2))
        p.put("sum4_1", 3, p.get("sum2_2", 2) + p.get("sum2_3", 2))
        p.put("sum8", 4, p.get("sum4_0", 3) + p.get("sum4_1", 3))
        p.put("sum10", 5, (p.get("sum8", 4) + p.get("sum2_4", 4))[:20])
        total = p.get("sum10", 5)
        p.put("folded", 6, total[:16] + total[16:])
        once = p.get("folded", 6)
        p.put("folded_twice", 7, (once[:16] + once[16])[:16])
        p.put("bad_checksum", 8, p.get("v4", 7) & (p.get("folded_twice", 7) != 0xFFFF))

    # -- stage 2: what the opcode says ----------------------------------------------------------------

    def _opcode(self, p):
        code = p.get("bth_opcode", 1)
        among = lambda condition: opcode_among(code, condition)
        placed = lambda op: op.placed and (op.transport == "xp" or self.cfg.uc)
        p.put("defined", 2, among(lambda op: True))
        p.put("is_xp", 2, among(lambda op: (placed(op) or op.is_read) and op.transport == "xp"))
        p.put("is_read", 2, among(lambda op: op.is_read))
        p.put("is_answer", 2, among(lambda op: op.name == "xp_read_response"))
        p.put("is_uc", 2, among(lambda op: placed(op) and op.transport == "uc"))
        p.put("is_cnp", 2, among(lambda op: op.transport == "cnp"))
        p.put("other", 2, among(lambda op: not placed(op) and not op.is_read and op.transport != "cnp"))
        p.put("is_placed", 2, among(placed))
        p.put("is_write", 2, among(lambda op: placed(op) and op.is_write))
        p.put("has_imm", 2, among(lambda op: placed(op) and op.has_imm))
        p.put("tracked", 2, among(lambda op: placed(op) and op.tracked))
        # Those whose extension headers must fit: where the payload's length means something to a queue pair here.
        sized = lambda op: placed(op) or op.is_read or op.transport in ("uc", "cnp")
        p.put("is_sized", 2, among(sized))
        ext = Cat(among(lambda op: sized(op) and op.ext_bytes >> bit & 1) for bit in range(6))
        p.put("ext_bytes", 2, ext)

        v = p.at(1)
        xp = code[5:] == 7
        byte = lambda i: p.get(f"ext{i}", 1)
        for name in ("generation", "tag", "seq"):
            p.put(name, 2, slice_field(byte, 0, XPETH, name))
        p.put("xp_msg_len", 2, slice_field(byte, 0, XPETH, "msg_len"))
        p.put("offset", 2, Mux(xp, slice_field(byte, 0, XPETH, "offset"), 0))
        for field, name in (("va", "va"), ("rkey", "rkey"), ("length", "reth_length")):
            p.put(name, 2, Mux(xp, slice_field(byte, XPETH.size, RETH, field), slice_field(byte, 0, RETH, field)))
        write = code[3]     # of the single-packet forms, SEND is 0010x and WRITE is 0101x
        imm = lambda at: slice_field(byte, at, IMMDT, "imm")
        p.put("imm", 2, Mux(xp, Mux(write, imm(XPETH.size + RETH.size), imm(XPETH.size)),
                            Mux(write, imm(RETH.size), imm(0))))

    # -- stages 3 to 7: payload length --------------------------------------------------------------

    def _lengths(self, p):
        v = p.at(2)
        p.put("overhead", 3, v.ext_bytes + v.bth_pad_count + (_MIN_TRANSPORT))
        l3_size = Mux(v.v6, IPV6.size, IPV4.size)
        p.put("l4_offset", 3, l3_size + Mux(v.vlan, ETHERNET.size + VLAN.size, ETHERNET.size))
        v = p.at(3)
        p.put("payload", 4, v.udp_length - v.overhead)         # negative: the headers don't fit
        p.put("pay_off", 4, (v.l4_offset + v.ext_bytes + (UDP.size + BTH.size))[:7])
        bad_payload = self._payload(p)
        p.put("bad_length", 7, bad_payload | p.get("bad_framing", 6))

    def _payload(self, p):
        """Whether the payload's length is wrong: a value of stage 6."""
        v = p.at(4)
        size = v.payload[:16]
        p.put("misfit", 5, v.is_sized & v.payload[-1])
        p.put("too_big", 5, v.is_placed & (size > self.cfg.mtu_max))
        p.put("reth_differs", 5, v.is_write & (v.reth_length != size))
        p.put("not_bare", 5, v.is_read & ((size != 0) | (v.reth_length != v.xp_msg_len)))
        p.put("reach", 5, v.offset + size)
        v = p.at(5)
        p.put("beyond", 6, v.is_xp & v.tracked & (v.reach > v.xp_msg_len))
        p.put("bad_payload", 6, v.misfit | v.too_big | v.reth_differs | v.not_bare)
        v = p.at(6)
        return v.bad_payload | v.beyond

    # -- stages 9 and 10: the verdict ---------------------------------------------------------------

    def _verdict(self, m, p):
        v = p.at(8)
        checks = [(v.runt, "runt"), (v.bad_length, "length"), (v.bad_checksum, "checksum")]
        reason = Const(REASON["none"], 5)
        for bad, name in reversed(checks):
            reason = Mux(bad, Const(REASON[name], 5), reason)
        p.put("outer_reason", 9, reason)
        p.put("inner_reason", 9, Mux(v.bth_version != 0, Const(REASON["version"], 5),
                                     Mux(~v.defined, Const(REASON["opcode"], 5), Const(REASON["none"], 5))))
        v = p.at(9)
        reason = Mux(v.outer_reason.any(), v.outer_reason, Mux(~self.icrc_ok, Const(REASON["icrc"], 5), v.inner_reason))
        p.put("reason", 10, Mux(v.passed, Const(REASON["none"], 5), reason))
        p.put("size", 9, p.get("payload", 8)[:16])
        # of a frame for the host the reader needs to know how far its last beat goes
        v = p.at(9)
        p.put("place", 10, Mux(v.passed, v.tail, v.pay_off))
        direct = self._fields(p)

        v, out = p.at(10), self.descriptor
        m.d.comb += [getattr(out, name).eq(getattr(v, name)) for name in direct]
        m.d.comb += [
            out.qpn.eq(v.bth_dest_qp), out.pkey.eq(v.bth_pkey), out.psn.eq(v.bth_psn),
            out.src_ip.eq(Cat(v.src_low, v.src_high) if self.cfg.ipv6 else v.src_low), out.src_v6.eq(v.v6),
            out.pay_len.eq(v.size), out.pay_off.eq(v.place),
        ]

    def _fields(self, p):
        """Values of stage 10 that are fields of the descriptor by the same name."""
        p.put("msg_len", 9, Mux(p.get("is_xp", 8), p.get("xp_msg_len", 8), p.get("payload", 8)[:16]))
        return ("passed", "reason", "beats", "is_xp", "is_uc", "is_cnp", "other", "tracked", "is_write", "has_imm",
                "is_read", "is_answer", "ce", "generation", "tag", "seq", "msg_len", "offset", "va", "rkey", "imm")
