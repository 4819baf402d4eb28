"""The parameters of congestion control: registers of the card, with their units, defaults and where these come from.

No hardware library is imported here.
"""

from dataclasses import dataclass

__all__ = ["DCQCN", "NOTIFY", "PACER", "Param"]


@dataclass(frozen=True)
class Param:
    default: int
    unit: str
    doc: str


PAPER = "DCQCN paper (SIGCOMM 2015)"
NS3 = "HPCC's ns-3 simulator"

DCQCN = {
    "g": Param(4, "1/1024", f"gain of alpha; 1/256: {PAPER}; ConnectX: 5"),
    "alpha_timer": Param(13, "4.096 us", "alpha decays once this time after a CNP, at most increase_timer; 55 us: " + PAPER),
    "increase_timer": Param(13, "4.096 us", f"the rate rises once in this time, 1..1023; 55 us: {PAPER}; ConnectX: 300 us"),
    "decrease_interval": Param(1, "4.096 us", f"a CNP this soon after a decrease belongs to it; 4 us: {NS3}, ConnectX"),
    "byte_counter": Param(153, "64 KiB", f"the rate rises once in so many bytes, 0: never, up to 255; 10 MB: {PAPER}"),
    "fast_steps": Param(5, "steps", f"F, steps of fast recovery, up to 6: {PAPER}"),
    "rate_ai": Param(40, "Mb/s", f"R_AI, additive increase of the target: {PAPER}; ConnectX: 5"),
    "rate_hai": Param(100, "Mb/s", f"R_HAI, hyper increase of the target: configuration of {NS3}; ConnectX: 50"),
    "rate_min": Param(100, "Mb/s", f"no lower rate is set; from 10 on: {NS3}"),
    "line_rate": Param(100_000, "Mb/s", "rate of the port; a QP that gets there is no longer paced"),
}

PACER = {
    "burst": Param(8192, "ns", "time that a QP may make up for when it was late to send; it covers the timing wheel's "
                               "bucket (1.024 us) and queues on the way. Own choice; at most 2^22"),
}

NOTIFY = {
    "interval": Param(50_000, "ns", "a QP causes at most one CNP in this time, up to 1,000,000: N of the DCQCN paper (SIGCOMM "
                                    "2015); ConnectX: 2,000 to 4,000"),
}
