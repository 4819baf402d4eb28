"""What a counter that has moved means, and what to do about it: the words of a status."""

__all__ = ["REFUSED", "EVENTS", "FAILURES", "NEIGHBOURS"]

#: reason of a refusal -> (what it means, what to do)
REFUSED = {
    "runt": ("frames end inside their headers, or the MAC marks them damaged", "look at the cable, the MAC and its clock"),
    "length": ("IP, UDP, BTH and payload disagree, or a payload exceeds the queue pair's MTU",
               "give both ends the same path_mtu; a message to a UC queue pair is one packet"),
    "checksum": ("the IPv4 header checksum is wrong", "look at what is between the cards: something changes headers"),
    "icrc": ("the invariant CRC is wrong: bytes changed on the way", "look at the cable, and at what rewrites packets on the way"),
    "version": ("BTH TVer is not 0", "the sender doesn't speak this protocol"),
    "opcode": ("an opcode that the queue pair's type doesn't know",
               "both ends need the same qp_type; to a card of transport xp a standard peer may only send UC messages of one packet"),
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
    "psn": ("packets came out of sequence, or acknowledge what isn't waited for",
            "packets are lost, overtaken or late on the way; or the two ends don't agree on the first PSN: exchange info() again"),
    "sequence": ("FIRST, MIDDLE and LAST packets are not in order, or not as long as they must be",
                 "of UC a packet was lost; of RC the peer broke the protocol, or has another path_mtu"),
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
    "go_backs": ("requests were sent again", "packets are lost or overtaken on the way, or the ACK timeout is too short"),
    "ack_timeouts": ("no acknowledgement came in time", "the peer or the way to it is gone, or the ACK timeout is too short"),
    "rnr_waits": ("the peer had no receive posted", "post receives earlier, or more of them"),
    "naks_sent": ("requests of peers were refused or out of sequence",
                  "packets are lost on the way to this card, or receives are missing"),
    "duplicates": ("requests came a second time", "acknowledgements are lost, or the peer's ACK timeout is too short"),
    "table_corrected": ("bits of the card's tables had flipped, and were corrected",
                        "nothing is lost by it; if it goes on, look at supply and temperature of the board"),
    "table_detected": ("a row of the card's tables had wrong bits that could not be corrected",
                       "what belonged to that row may be lost: tear the card down and begin anew"),
    "marks_lost": ("congestion marks came faster than they could be answered", "the network is congested; nothing is lost by this"),
}

#: why a queue pair of type RC has failed -> (what it means, what to do)
FAILURES = {
    "retry": ("no acknowledgement came, however often the request was sent",
              "see whether the peer is there, has its queue pair in RTS, and what it refuses; raise timeout or retry_cnt"),
    "rnr_retry": ("the peer never had a receive for it", "have the peer post receives earlier, or raise rnr_retry (7: for ever)"),
    "remote_access": ("a key, its bounds, or its rights did not allow what was asked for",
                      "check rkey, remote_addr, length and the access of the MR"),
    "remote_invalid": ("the request was invalid: a message longer than the receive, or out of order", "post larger receives"),
    "remote_operation": ("the responder could not do it", "host memory there did not answer: look at the other card"),
    "protection": ("the lkey does not cover the buffer", "check the MR and the SGE"),
    "bus": ("host memory did not answer, or refused", "check the IOMMU and the MRs' addresses"),
    "length": ("too long for its kind", "see QP.cap and the size of the result buffer"),
}

#: what Neighbours have counted -> (what it means, what to do, level of the finding)
NEIGHBOURS = {
    "conflicts": ("another station says to have this port's address", "give one of them another one", "problem"),
    "dropped_answers": ("questions were not answered, as the card did not send the answers before",
                        "see why it doesn't send: is tx enabled?", "problem"),
    "malformed": ("frames say to be ARP, neighbour discovery or pings, and are not",
                  "ctx.neighbours.counts has them by reason", "note"),
    "dropped_for_program": ("frames for the program itself came when as many waited as may",
                            "call ctx.neighbours.frames() more often, if they are of interest", "note"),
}
