"""The structures in host memory: receive WQE and CQE, and the numbers in them."""

from .fields import Field, Struct

__all__ = ["STATUS", "CAUSE", "FATAL", "OPCODE", "SEND_OP", "RC_ONLY", "RECV_WQE", "SEND_WQE", "CQE", "INLINE_MAX", "INLINE_OFFSET", "TICK_NS"]

TICK_NS = 64

STATUS = {"success": 0, "partial": 1, "error": 2, "fatal": 3}
CAUSE = {"complete": 0, "timeout": 1, "preempted": 2, "flushed": 3, "protection": 4, "bus": 5, "length": 6}
#: why the QP has failed, in place of the cause when the status is fatal (transport rc)
FATAL = {"retry": 0, "rnr_retry": 1, "remote_access": 2, "remote_invalid": 3, "remote_operation": 4, "protection": 5, "bus": 6, "length": 7}
OPCODE = {"none": 0, "send": 1, "send_imm": 2, "write_imm": 3, "write": 4, "read": 5, "refusal": 7, "compare_swap": 8, "fetch_add": 9,
          "send_inv": 10, "event": 11}
#: as in OPCODE
SEND_OP = {"send": 1, "send_imm": 2, "write_imm": 3, "write": 4, "read": 5, "compare_swap": 8, "fetch_add": 9, "send_inv": 10}
RC_ONLY = ("compare_swap", "fetch_add", "send_inv")     #: of SEND_OP, for QPs of type rc
INLINE_MAX, INLINE_OFFSET = 32, 32      #: bytes of payload that a send WQE may carry itself, and where

RECV_WQE = Struct("recv_wqe", 32, "A posted receive, in the ring of its QP.", (
    Field("va", 0, 64, "address of the buffer, in the region named by lkey"),
    Field("length", 64, 32, "bytes of the buffer"),
    Field("lkey", 96, 32, "key of the region that holds the buffer"),
    Field("timeout", 128, 32, f"ticks of {TICK_NS} ns from when the receive becomes head; 0: none. At most 2^31 - 1"),
    Field("absolute", 160, 1, "timeout is an absolute NIC time (its low 32 bits, in ticks) instead"),
))

SEND_WQE = Struct("send_wqe", 64, "A posted send, in the ring of its QP.", (
    Field("opcode", 0, 4, "what to do", SEND_OP),
    Field("signaled", 4, 1, "complete with a CQE when all went well; anything else always has one"),
    Field("inline", 5, 1, "the payload is in the last 32 bytes of the WQE, instead of va and lkey"),
    Field("deadline_set", 6, 1, "deadline counts: what is unsent then is abandoned"),
    Field("solicited", 7, 1, "sets the solicited event bit in the last packet"),
    Field("tag", 16, 16, "tag of the XP header; not with type uc"),
    Field("length", 32, 32, "bytes of the message; of a READ, bytes to read"),
    Field("imm", 64, 32, "immediate, as a number (big endian on the wire); of send_inv, the key to be invalidated at the peer"),
    Field("seq", 96, 32, "SEND, WRITE with immediate: the receive that the message consumes at the peer. READ: the receive of "
                         "this QP that takes the answer"),
    Field("deadline", 128, 32, f"absolute NIC time, its low 32 bits in ticks of {TICK_NS} ns"),
    Field("rkey", 160, 32, "key of the region at the peer (WRITE, READ)"),
    Field("remote_va", 192, 64, "address there"),
    Field("va", 256, 64, "address of the payload, in the region named by lkey; of an atomic, what to swap in or to add"),
    Field("lkey", 320, 32, "key of the region that holds the payload; of an atomic, the low word of what to compare with"),
    Field("compare_hi", 352, 32, "of an atomic, the high word of what to compare with"),
))

CQE = Struct("cqe", 32, "A completion. The card writes it in one piece; the phase bit is in its last byte.", (
    Field("qpn", 0, 24, "QP number"),
    Field("opcode", 24, 8, "what filled the receive, or what was sent; refusal: this is an entry of the refusal log, a frame of the QP was refused; event: "
                               "the QP has failed on behalf of a request of the peer", OPCODE),
    Field("wqe_index", 32, 32, "message sequence: the count of receives posted before this one; of a send, the low 16 bits of that count"),
    Field("byte_len", 64, 32, "bytes placed in memory; of a send, bytes that went out (0 with status error)"),
    Field("msg_len", 96, 32, "bytes that the sender announced; 0 when nothing arrived"),
    Field("imm", 128, 32, "immediate, as a number (big endian on the wire); of a refusal, the reason"),
    Field("tag", 160, 16, "tag of the XP header"),
    Field("skipped", 176, 16, "receives (sends) just before this one that completed empty and have no CQE of their own"),
    Field("time", 192, 48, "NIC time in ns when the completion was decided"),
    Field("format", 240, 8, "always 1, so that no CQE is all zeroes"),
    Field("phase", 248, 1, "1 on the first lap of the ring, then it alternates"),
    Field("status", 249, 2, "how it ended", STATUS),
    Field("cause", 251, 3, "why it ended; with status fatal: " + ", ".join(f"{v} {k}" for k, v in FATAL.items()), CAUSE),
    Field("queue", 254, 1, "0 receive, 1 send"),
))
