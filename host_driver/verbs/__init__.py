"""A verbs-like API, with names and shapes as in pyverbs; docs/driver.md has both side by side.

    from host_driver.verbs import *

    with open_cards("model", 2) as (a, b):
        ...
"""

from ..errors import (BackendError, CardError, ClosedError, CommandError, NeighbourError, OptinicError, QueueFull, ResourceError,
                      StateError, UsageError)
from . import enums
from .addr import GID, AHAttr, GlobalRoute
from .cq import CQ, CompChannel
from .device import Context, DeviceAttr, PortAttr
from .enums import *        # noqa: F403, names and numbers of libibverbs
from .mr import MR
from .opening import open_cards, open_device
from .pd import PD
from .qp import QP
from .qp_attr import QPAttr, QPCap, QPInitAttr
from .status import Status
from .wr import SGE, WC, RecvWR, SendWR

__all__ = ["open_device", "open_cards", "Context", "DeviceAttr", "PortAttr", "PD", "MR", "CQ", "CompChannel", "QP", "QPCap",
           "QPInitAttr", "QPAttr", "AHAttr", "GlobalRoute", "GID", "SGE", "RecvWR", "SendWR", "WC", "Status", "OptinicError",
           "CardError", "CommandError", "QueueFull", "BackendError", "NeighbourError", "UsageError", "StateError", "ClosedError",
           "ResourceError", *enums.__all__]
