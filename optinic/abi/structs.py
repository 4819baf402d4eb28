"""The structures in host memory: receive WQE and CQE, and the numbers in them."""

from .fields import Field, Struct

__all__ = ["STATUS", "CAUSE", "OPCODE", "RECV_WQE", "CQE", "TICK_NS"]

TICK_NS = 64

STATUS = {"success": 0, "partial": 1, "error": 2}
CAUSE = {"complete": 0, "timeout": 1, "preempted": 2, "flushed": 3}
OPCODE = {"none": 0, "send": 1, "send_imm": 2, "write_imm": 3, "refusal": 7}

RECV_WQE = Struct("recv_wqe", 32, "A posted receive, in the ring of its QP.", (
    Field("va", 0, 64, "address of the buffer, in the region named by lkey"),
    Field("length", 64, 32, "bytes of the buffer"),
    Field("lkey", 96, 32, "key of the region that holds the buffer"),
    Field("timeout", 128, 32, f"ticks of {TICK_NS} ns from when the receive becomes head; 0: none. At most 2^31 - 1"),
    Field("absolute", 160, 1, "timeout is an absolute NIC time (its low 32 bits, in ticks) instead"),
))

CQE = Struct("cqe", 32, "A completion. The card writes it in one piece; the phase bit is in its last byte.", (
    Field("qpn", 0, 24, "QP number"),
    Field("opcode", 24, 8, "what filled the receive; refusal: this is an entry of the refusal log, a frame of the QP was refused", OPCODE),
    Field("wqe_index", 32, 32, "message sequence: the count of receives posted before this one"),
    Field("byte_len", 64, 32, "bytes placed in memory"),
    Field("msg_len", 96, 32, "bytes that the sender announced; 0 when nothing arrived"),
    Field("imm", 128, 32, "immediate, as a number (big endian on the wire); of a refusal, the reason"),
    Field("tag", 160, 16, "tag of the XP header"),
    Field("skipped", 176, 16, "receives just before this one that completed empty and have no CQE of their own"),
    Field("time", 192, 48, "NIC time in ns when the completion was decided"),
    Field("format", 240, 8, "always 1, so that no CQE is all zeroes"),
    Field("phase", 248, 1, "1 on the first lap of the ring, then it alternates"),
    Field("status", 249, 2, "how it ended", STATUS),
    Field("cause", 251, 3, "why it ended", CAUSE),
    Field("queue", 254, 1, "0 receive, 1 send"),
))
