"""When each frame is on the cable."""

__all__ = ["arrivals"]


def arrivals(frames, setup):
    """(start, end) of each frame in ns after the start of the first, at the rate of the card's own stream.

    A frame starts at its own time, or, with frame_gap_cycles, that many idle cycles after the one before; never before
    the one before has ended. Captures whose times go backwards are taken in file order.
    """
    cfg = setup.config
    cycle = cfg.clock_ns
    free = 0.0
    for frame in frames:
        beats = -(-max(1, len(frame.data)) // cfg.beat_bytes)
        start = free if setup.frame_gap_cycles else max(free, frame.time - frames[0].time)
        free = start + beats * cycle
        yield int(start), int(free)
        if setup.frame_gap_cycles:
            free += setup.frame_gap_cycles * cycle
