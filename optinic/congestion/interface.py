"""What a congestion controller is told and what it answers, so that DCQCN, Swift, EQDS or a fixed rate can take each other's place."""

from amaranth.lib import stream
from amaranth.lib.data import StructLayout
from amaranth.lib.enum import Enum
from amaranth.lib.wiring import In, Out

from optinic.stream.push import PushSignature

__all__ = ["EventKind", "INTERVAL_BITS", "INTERVAL_FRACTION", "controller_members", "event_layout", "rate_layout"]

INTERVAL_FRACTION = 16      #: an interval is ns a byte * 2^16; 0 means not paced. 100 Gb/s: 5243; 10 Mb/s: 52,428,800
INTERVAL_BITS = 30


class EventKind(Enum, shape=3):
    RESET = 0       # a new life of the QP: back to line rate, nothing remembered
    SENT = 1        # `bytes` of a frame have left
    CNP = 2         # a congestion notification arrived
    FEEDBACK = 3    # `value`: a delay in ns that the peer echoed (Swift)
    CREDIT = 4      # `value`: a cumulative credit (EQDS)
    SET = 5         # the driver gives the QP a rate: `value` is its interval (controller "fixed"; others ignore it)


def event_layout(cfg):
    return StructLayout({"kind": EventKind, "qp": cfg.qp_bits, "bytes": 14, "value": 32})


def rate_layout(cfg):
    return StructLayout({"qp": cfg.qp_bits, "interval": INTERVAL_BITS})


def controller_members(cfg, params):
    """Ports of a controller. `events` may be held back for a while but not for ever; the caller has a queue with a stated
    overflow policy before it. A `rate` is told whenever it may have changed. `time`: NIC time in ns. `params`: register inputs."""
    return {
        "events": In(stream.Signature(event_layout(cfg))),
        "rate": Out(PushSignature(rate_layout(cfg))),
        "time": In(64), "clearing": Out(1), "idle": Out(1),
        **{name: In(32) for name in params},
    }
