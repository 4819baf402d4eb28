"""A Linux guest with Soft-RoCE as the peer of simulated cards; see docs/linux-peer.md."""

from .errors import PeerError, PeerTimeout, PeerUnavailable
from .guest import Guest, GuestAddress
from .image import Image, build_image, default_cache
from .jobs import GuestListener, GuestSocket, Job
from .lab import Lab
from .lockstep import Lockstep
from .verbs_peer import Completion, Op, VerbsPeer

__all__ = ["Completion", "Guest", "GuestAddress", "GuestListener", "GuestSocket", "Image", "Job", "Lab", "Lockstep", "Op",
           "PeerError", "PeerTimeout", "PeerUnavailable", "VerbsPeer", "build_image", "default_cache"]
