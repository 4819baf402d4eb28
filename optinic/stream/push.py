"""A stream that can't be refused: the sender knows by other means that there is room."""

from amaranth.lib import wiring
from amaranth.lib.wiring import Out

__all__ = ["PushSignature"]


class PushSignature(wiring.Signature):
    """`payload` is taken in every cycle in which `valid` is high. Who receives it says how the sender knows of the room."""

    def __init__(self, shape):
        self.payload_shape = shape
        super().__init__({"valid": Out(1), "payload": Out(shape)})
