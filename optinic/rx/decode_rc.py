"""Decode of the reliable baseline: RC and UC opcodes, their extension headers, and the payload lengths that go with them."""

from amaranth.hdl import Cat, Mux

from optinic.wire.headers import AETH, ATOMIC_ACK_ETH, ATOMIC_ETH, IMMDT, RETH
from optinic.wire.opcodes import OPERATION

from .capture import slice_field
from .decode import Decode, opcode_among

__all__ = ["DecodeRc"]


class DecodeRc(Decode):
    """As :class:`Decode`, latency and throughput included, with `descriptor` of :func:`rc_descriptor_layout`.

    Refused as `length`: an RC or UC packet whose extension headers don't fit, a payload beyond cfg.mtu_max, and one where none
    may be (READ request, acknowledge, atomics; an atomic's answer has 8 bytes). What RETH says of the payload is the responder's
    to judge, who answers. UC that is left out (cfg.uc) is looked at as in transport xp: the headers have to fit. Atomics are for
    a QP here whatever cfg.rc_atomics: it has to refuse them.
    """

    ext_bytes = max(RETH.size + IMMDT.size, ATOMIC_ETH.size)
    bth_fields = ("opcode", "solicited", "pad_count", "version", "pkey", "dest_qp", "ack_req", "psn")

    def _opcode(self, p):
        code = p.get("bth_opcode", 1)
        among = lambda condition: opcode_among(code, condition)
        mine = lambda op: op.connected and (op.transport == "rc" or self.cfg.uc)
        sized = lambda op: op.connected or op.transport == "cnp"
        # the original value is what an atomic's answer carries
        bare = lambda op: op.low in (OPERATION[n] for n in ("read_request", "acknowledge", "compare_swap", "fetch_add"))
        original = lambda op: ATOMIC_ACK_ETH in op.headers
        before_payload = lambda op: op.ext_bytes - (ATOMIC_ACK_ETH.size if original(op) else 0)
        p.put("defined", 2, among(lambda op: True))
        p.put("is_cnp", 2, among(lambda op: op.transport == "cnp"))
        p.put("other", 2, among(lambda op: not mine(op) and op.transport != "cnp"))
        p.put("uc", 2, code[5:] == 1)
        p.put("op", 2, code[:5])
        for name in ("ack_req", "solicited"):
            p.put(name, 2, p.get(f"bth_{name}", 1))
        p.put("is_mine", 2, among(mine))
        p.put("is_sized", 2, among(sized))
        p.put("is_bare", 2, among(lambda op: mine(op) and bare(op)))
        p.put("is_original", 2, among(lambda op: mine(op) and original(op)))
        p.put("ext_bytes", 2, Cat(among(lambda op: sized(op) and before_payload(op) >> bit & 1) for bit in range(5)))

        byte = lambda i: p.get(f"ext{i}", 1)
        for header, field, name in ((RETH, "va", "va"), (RETH, "rkey", "rkey"), (RETH, "length", "dma_len"),
                                    (AETH, "syndrome", "syndrome"), (AETH, "msn", "msn")):
            p.put(name, 2, slice_field(byte, 0, header, field))
        if self.cfg.rc_atomics:
            for name in ("swap_add", "compare"):
                p.put(name, 2, slice_field(byte, 0, ATOMIC_ETH, name))
        imm = lambda at: slice_field(byte, at, IMMDT, "imm")
        # IETH stands where ImmDt does
        p.put("imm", 2, Mux(code[:5] == OPERATION["write_only_imm"], imm(RETH.size), imm(0)))

    def _payload(self, p):
        v = p.at(4)
        size = v.payload[:16]
        p.put("misfit", 5, v.is_sized & v.payload[-1])
        p.put("too_big", 5, v.is_mine & (size > self.cfg.mtu_max))
        p.put("not_bare", 5, v.is_bare & (size != 0))
        p.put("not_original", 5, v.is_original & (size != ATOMIC_ACK_ETH.size))
        v = p.at(5)
        p.put("bad_payload", 6, v.misfit | v.too_big | v.not_bare | v.not_original)
        return p.get("bad_payload", 6)

    def _fields(self, p):
        return ("passed", "reason", "beats", "is_cnp", "other", "uc", "op", "ce", "ack_req", "solicited",
                "va", "rkey", "dma_len", "imm", "syndrome", "msn", *(("swap_add", "compare") if self.cfg.rc_atomics else ()))
