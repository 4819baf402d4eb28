"""Verdicts on received frames, the reasons of refusal in their order of precedence, and the counters."""

__all__ = ["VERDICT", "REASON", "CONSUMED", "COUNTERS", "REASON_DOC"]

VERDICT = {"placed": 0, "consumed": 1, "dropped": 2, "passed": 3}

#: kind of a consumed frame
CONSUMED = {"none": 0, "cnp": 1, "read": 2}

REASON_DOC = {
    "none": "not refused",
    "runt": "the frame ends inside its headers",
    "length": "IP, UDP, BTH and frame disagree, or the payload disagrees with DMALen or exceeds the MTU",
    "checksum": "IPv4 header checksum",
    "icrc": "invariant CRC",
    "version": "BTH TVer is not 0",
    "opcode": "unknown, or not for this type of QP",
    "qpn": "no such QP",
    "state": "the QP is not ready to receive",
    "pkey": "partition key",
    "source": "sender is not the QP's peer",
    "generation": "packet of another life of the QP",
    "late": "its message is already completed",
    "no_receive": "no receive posted for its message",
    "rkey": "no region has this key",
    "pd": "region of another protection domain",
    "access": "region forbids this access",
    "bounds": "outside the region or the posted buffer",
    "psn": "packet sequence number",
    "sequence": "FIRST, MIDDLE, LAST out of order",
    "overflow": "no room in the packet buffer, for one more READ request, or for one more message that is partly here",
}

#: name -> number, in order of precedence: of several reasons the smallest counts
REASON = {name: i for i, name in enumerate(REASON_DOC)}

#: 64-bit event counters, by their index in the counter bank. Index 0..31 is the reason's number (0: frames placed).
COUNTERS = {"frames_placed": 0, **{f"drop_{name}": i for name, i in REASON.items() if i}}
COUNTERS |= {
    "frames_consumed": 32,
    "frames_passed": 33,
    "placed_bytes": 34,
    "cnp_received": 35,
    "cnp_due": 36,
    "pass_overflow": 37,
    "completions": 38,
    "cq_overrun": 39,
    "write_errors": 40,
    "fetch_errors": 41,
    "deadlines": 42,
    "preempted": 43,
    "log_overrun": 44,
    "frames_sent": 45,
    "sent_bytes": 46,
    "host_frames_sent": 47,
    "cnp_sent": 48,
    "send_errors": 49,          # packets that were not sent: local key, host read
    "wqe_errors": 50,           # send WQEs that could not be read
    "sends_expired": 51,
    "reads_served": 52,         # READ requests taken
    "marks_lost": 53,           # CE marks that the notification point had no time for
    "go_backs": 54,             # transport rc, this one and the following: retransmissions begun
    "ack_timeouts": 55,
    "rnr_waits": 56,            # RNR NAKs received
    "acks_sent": 57,            # ACKs and NAKs
    "naks_sent": 58,
    "duplicates": 59,           # requests received again
    "table_corrected": 60,      # rows of protected tables (table_protection) found with one wrong bit, and corrected
    "table_detected": 61,       # ... found with more than can be corrected
}
NUM_COUNTERS = 64
