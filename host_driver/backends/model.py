"""The card as a model in Python: no compiler, and time that is told without a clock. See `sim.model_device`."""

from .simulation import SimulatedCards, configuration, part

__all__ = ["open_devices"]


def open_devices(count, *, cfg="tiny", network=None, seed=1, changes=None, knobs=None, **options):
    """`count` cards of configuration `cfg` (a NicConfig or the name of a preset) with `changes` to it. `knobs` are those of the
    simulated device; `options` those of the cable (rate, delay_ns, loss, ...)."""
    cfg = configuration(cfg, changes)
    device = part("sim.model_device", "ModelDevice")
    if network is None:
        options["seed"] = seed
    return SimulatedCards(lambda i: device(cfg, seed=seed + i, **(knobs or {})), count, network, **options)
