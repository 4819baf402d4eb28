"""What a counter that has moved means, and what to do about it: the words of a status."""

__all__ = ["REFUSED", "EVENTS"]

#: reason of a refusal -> (what it means, what to do)
REFUSED = {
    "runt": ("frames end inside their headers, or the MAC marks them damaged", "look at the cable, the MAC and its clock"),
    "length": ("IP, UDP, BTH and payload disagree, or a payload exceeds the queue pair's MTU",
               "give both ends the same path_mtu; a message to a UC queue pair is one packet"),
    "checksum": ("the IPv4 header checksum is wrong", "look at what is between the cards: something changes headers"),
    "icrc": ("the invariant CRC is wrong: bytes changed on the way", "look at the cable, and at what rewrites packets on the way"),
    "version": ("BTH TVer is not 0", "the sender doesn't speak this protocol"),
    "opcode": ("an opcode that the queue pair's type doesn't know",
               "both ends need the same qp_type; a standard peer may only send UC single-packet messages"),
    "qpn": ("frames name a queue pair that isn't there", "the peer holds an old info(): exchange info() and connect() again"),
    "state": ("frames come for a queue pair that is not ready",
              "bring it to RTR before the peer sends; after ERR, reset it and connect again"),
    "pkey": ("another partition key", "give both cards the same PKEY"),
    "source": ("the sender's address is not the one that the queue pair is connected to",
               "compare the peer's ip with that in the info() that was given to connect()"),
    "generation": ("packets of another life of the queue pair",
                   "the peer holds an old info(): exchange info() and connect() again"),
    "late": ("packets came after their message had ended",
             "give receives more time (timeout_ns), or see why the network takes so long"),
    "no_receive": ("messages came for which no receive was posted", "post receives before the peer sends, and more of them"),
    "rkey": ("no memory region has this key",
             "the peer holds the rkey of an MR that is closed, or a receive has the lkey of one, or no buffer at all"),
    "pd": ("the key is of another protection domain", "register the memory in the PD of the queue pair"),
    "access": ("the region forbids it",
               "give the MR IBV_ACCESS_REMOTE_WRITE (WRITE), _REMOTE_READ (READ) or _LOCAL_WRITE (receives)"),
    "bounds": ("outside the region, or longer than the posted buffer", "post larger buffers; check remote_addr and length"),
    "overflow": ("no room in the packet buffer, or for one more READ request",
                 "the host's memory is too slow or too much comes at once: slow the senders down, open the Context with hold=True "
                 "where the network has PFC, or let fewer READs be under way"),
}

#: other counters that tell of trouble
EVENTS = {
    "cq_overrun": ("completions were lost: a completion queue was full", "make the CQ larger, or poll more often"),
    "log_overrun": ("the refusal log was full: refusals by queue pair are incomplete",
                    "look at status() more often, or raise log_entries"),
    "pass_overflow": ("frames for the host's own network stack were lost", "take them faster"),
    "write_errors": ("host memory refused writes of the card",
                     "an address that the card may not use: check the IOMMU and the MRs' addresses"),
    "fetch_errors": ("receive work requests could not be read",
                     "host memory does not answer the card: check the IOMMU, or reset the card"),
    "wqe_errors": ("send work requests could not be read",
                   "host memory does not answer the card: check the IOMMU, or reset the card"),
    "send_errors": ("packets could not be sent: local key, bounds, or host memory", "see the cause of the sends' completions"),
    "sends_expired": ("sends ran out of time before all of them had left",
                      "give them more time, or send less: the rate may be limited"),
    "deadlines": ("receives ran out of time", "what is partial says so in its WC; give receives more time, or look for losses"),
    "preempted": ("messages ended because a later one had begun",
                  "packets were lost or overtaken; what is partial says so in its WC"),
    "marks_lost": ("congestion marks came faster than they could be answered", "the network is congested; nothing is lost by this"),
}
