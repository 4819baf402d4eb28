"""The card as the generated Verilog, compiled by Verilator into this process: needs g++, make and perl. See `sim.device`."""

from ..errors import BackendError
from .simulation import SimulatedCards, configuration, part

__all__ = ["open_devices"]


def open_devices(count, *, cfg="tiny", network=None, seed=1, changes=None, knobs=None, **options):
    """As `backends.model.open_devices`; the first card of a configuration takes a minute to compile."""
    cfg = configuration(cfg, changes)
    device, cannot = part("sim.device", "SimDevice"), part("sim.build", "BuildError")

    def make(i):
        try:
            return device(cfg, seed=seed + i, **(knobs or {}))
        except cannot as error:
            raise BackendError(f"the card can't be compiled: {' '.join(str(error).split())}") from None
    if network is None:
        options["seed"] = seed
    return SimulatedCards(make, count, network, **options)
