"""Ways to a card: `model` (Python), `rtl` (the generated Verilog under Verilator) and `pci` (a board). Each makes devices, as
`host_driver.card` describes them. The simulator is loaded when it is asked for, so that the driver of a board needs none."""

from importlib import import_module

from ..errors import BackendError

__all__ = ["NAMES", "backend"]

NAMES = ("model", "rtl", "pci")


def backend(name):
    """The module of a backend."""
    if name not in NAMES:
        raise BackendError(f"there is no backend {name!r}; known are {', '.join(NAMES)}")
    return import_module(f"{__name__}.{name}")
