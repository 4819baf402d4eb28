"""What became of a run into which a bit was flipped, as one word and a reason.

From the worst to nothing at all; a run is the first of these that fits:

============  ==============================================================================================================
silent        wrong data, or a wrong completion, passed off as good: the data of a success differ, a length or number in a
              completion is wrong, bytes changed that nobody sent, something was written where the card may not write
hang          something has not ended by the time by which it must have, and nobody was told; or the card broke the bus protocol; or
              a queue pair can't be brought back by giving it a new life (the card needs a reset)
detected      every piece of work ended in time, some of it with an error or as partial, or the driver found a contradiction;
              new lives of the queue pairs work
corrected     all work is right, and the card noticed: it refused a frame, sent again, or corrected a stored bit
statistics    all work is right, and a counter of the card is not
masked        nothing differs but perhaps the time that it took
============  ==============================================================================================================
"""

from host_driver.verbs import IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND

from .workload import FILL, ROOM, fine

__all__ = ["CLASSES", "FAILURES", "SERIOUS", "judge"]

CLASSES = ("silent", "hang", "detected", "corrected", "statistics", "masked")
FAILURES = ("silent", "hang", "detected")       #: somebody's work is not as it should be
SERIOUS = ("silent", "hang")                    #: nobody is told in time
#: counters that say that something was noticed
NOTICED = ("drop_", "write_errors", "fetch_errors", "send_errors", "wqe_errors", "go_backs", "ack_timeouts", "rnr_waits", "naks_sent",
           "duplicates", "deadlines", "preempted", "sends_expired", "pass_overflow", "frames_passed", "corrected_", "detected_",
           "cq_overrun", "table_")
OF_TIME = ("acks_sent", "frames_consumed", "frames_sent", "sent_bytes")
RIGHT_OPCODE = {IBV_WR_SEND: "IBV_WC_RECV", IBV_WR_RDMA_WRITE_WITH_IMM: "IBV_WC_RECV_RDMA_WITH_IMM"}


def judge(work, error, reference, counts=False):
    """(class, reason) of a workload that has run; `error` is the exception that ended it early, `reference` the counters of a run
    without a flip. `counts`: the flip was in the counters themselves, so that a difference there is nothing noticed.
    Makes the driver recover the queue pairs if anything is amiss, and looks at all memory at the end."""
    wrong = _wrong_completions(work)
    stuck = _stuck(work) if error is None else []
    troubled = error is not None or not all(fine(m) for m in work.messages)
    lost = work.recover() if troubled or wrong else None
    wrong += _wrong_memory(work)
    broken = [violation.text for device in work.devices for violation in device.violations]
    if wrong:
        return "silent", wrong[0]
    if broken:
        return "hang", f"bus: {broken[0]}"
    if lost:
        return "hang", f"card: {lost}"
    if stuck:
        return "hang", f"queue pair: {stuck[0]}"
    if error is not None:
        return "detected", f"driver: {type(error).__name__}: {error}"
    if troubled:
        return "detected", _first_trouble(work)
    return _noticed(work, reference, counts)


def _wrong_completions(work):
    found = list(work.problems)
    for m in work.messages:
        for kind, (wc, held) in m.wcs.items():
            if not (wc.ok or wc.partial):
                continue
            if held is None:
                if wc.ok and wc.byte_len != m.size:
                    found.append(f"a send of {m.size} bytes succeeded with {wc.byte_len}")
                continue
            data = work.data(m)
            present, foreign = _placed(work, m, data, held)
            if foreign:
                found.append(f"a {'success' if wc.ok else 'partial message'} with wrong bytes")
            elif wc.byte_len != present or wc.ok and present != m.size:
                found.append(f"a completion says {wc.byte_len} of {m.size} bytes ({wc.status.name}), and {present} are there")
            elif wc.ok and kind == "receive" and wc.opcode.name != RIGHT_OPCODE[m.op]:
                found.append(f"a receive completed as {wc.opcode.name}")
            elif wc.ok and m.op == IBV_WR_RDMA_WRITE_WITH_IMM and kind == "receive" and wc.imm_data != m.imm:
                found.append("wrong immediate data")
    return found


def _placed(work, m, data, held):
    """(right bytes, whether there are others) of a message's place: its packets are there whole or not at all."""
    mtu, present = work.cfg.mtu_max, 0
    blank = bytes([FILL])
    for at in range(0, m.size, mtu):
        piece, right = held[at:min(at + mtu, m.size)], data[at:at + mtu]
        if piece == right:
            present += len(right)
        elif piece != blank * len(piece):
            return present, True
    return present, held[m.size:] != blank * (ROOM - m.size)


def _stuck(work):
    """Pairs of which work has not ended although nobody was told of any trouble."""
    told = {m.pair for m in work.messages if any(not wc.ok for wc, _ in m.wcs.values())}
    found = []
    for m in work.messages:
        missing = [kind for kind in m.ends() if kind not in m.wcs]
        # a receive of a reliable pair has no time limit: whoever is told at the other end ends it
        if missing and (not work.cfg.rc or m.pair not in told):
            found.append(f"{m.op.name}: no completion of its {' and '.join(missing)}")
    return found


def _wrong_memory(work):
    """Bytes that nobody sent, in all memory that the peer may write, and accesses to where there is none."""
    found = [f"write outside the card's memory at {fault.addr:#x}" for device in work.devices for fault in device.faults
             if fault.kind == "write"]
    for side, end in enumerate(work.ends):
        image = end.mr.read()
        if image[:end.half] != end.sent:
            found.append("what is sent from has changed")
        expected = bytearray([FILL]) * end.half
        for m in work.messages:
            if m.target[0] != side:
                continue
            at, data = m.target[1] * ROOM, work.data(m)
            held = image[end.half + at:end.half + at + ROOM]
            _, foreign = _placed(work, m, data, held)
            ended = m.wcs.get("send" if m.op == IBV_WR_RDMA_READ else "receive")
            if foreign or ended and (ended[0].ok or ended[0].partial) and ended[1] != held:
                found.append("a place has other bytes at the end than its message had" if ended else "wrong bytes in a place")
            expected[at:at + ROOM] = held
        if image[end.half:] != bytes(expected):
            found.append("bytes changed that nobody sent")
    return found


def _first_trouble(work):
    for m in work.messages:
        for kind in m.ends():
            if kind in m.wcs and not m.wcs[kind][0].ok:
                wc = m.wcs[kind][0]
                return f"{kind} of {m.op.name}: {wc.status.name} ({wc.cause})"
    return "work that a peer's error ended"


def _noticed(work, reference, counts):
    stray = [fault for device in work.devices for fault in device.faults]
    if stray:
        return "corrected", f"read outside the card's memory at {stray[0].addr:#x}, of no consequence"
    try:
        found = work.counters()
    except Exception as error:          # the driver gives up, whatever its reason
        return "hang", f"card: counters can't be read: {error}"
    other = [name for here, there in zip(found, reference) for name in here if here[name] != there[name]]
    noticed = [name for name in other if name.startswith(NOTICED)]
    if noticed and not counts:
        return "corrected", noticed[0]
    # how many acknowledgements go out for as many messages is a matter of time
    other = [name for name in other if counts or not work.cfg.rc or name not in OF_TIME]
    return ("statistics", other[0]) if other else ("masked", "")
