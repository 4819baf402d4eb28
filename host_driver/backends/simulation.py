"""What the two simulated backends share: their cards on one network, in this process."""

from importlib import import_module

from optinic.config import preset

from ..errors import BackendError

__all__ = ["SimulatedCards", "part", "configuration"]


def part(module, name):
    """A name of the simulator. It is found by its own name, so that the driver does not need it to be installed."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in module.split("."):
            raise BackendError(f"this backend needs the simulator, and {module} is not installed; use a checkout of "
                               f"the project") from None
        raise


def configuration(cfg, changes):
    """A NicConfig from one, or from the name of a preset, with changes."""
    cfg = preset(cfg) if isinstance(cfg, str) else cfg
    return cfg.with_(**changes) if changes else cfg


class SimulatedDevice:
    """A card in the world, as a driver wants it: everything of it, and memory that can be given back. What was given back
    the card may not touch any more; an access is among its `faults`."""

    def __init__(self, card):
        self._card, self._lengths = card, {}

    def __getattr__(self, name):
        return getattr(self._card, name)

    def alloc(self, length, align=4096):
        addr = self._card.alloc(length, align)
        self._lengths[addr] = length
        return addr

    def free(self, addr):
        length = self._lengths.pop(addr, None)
        if length is None:
            raise BackendError(f"{addr:#x} is not the address of anything that was allocated")
        self._card.unmap(addr, length)


class SimulatedCards:
    """`make(i)` makes card i. `network`, by default a cable between two or a switch with `count` ports, is a `sim.network.Network`;
    its knobs can be given as `options` instead."""

    def __init__(self, make, count, network=None, **options):
        world, net = part("sim.world", "World"), import_module("sim.network")
        self.cards = [make(i) for i in range(count)]
        if network is None:
            network = self._network(net, count, {"rate": 100 * net.GBIT, "delay_ns": 500, **options})
        elif options:
            raise BackendError(f"{', '.join(options)}: a network that was given has its own knobs")
        self.network = network
        self.world = world(self.cards, network, ports=range(count))
        self.devices = [SimulatedDevice(self.world.device(i)) for i in range(count)]

    @staticmethod
    def _network(net, count, knobs):
        # A single card is at one end of a cable, with nobody at the other.
        return net.back_to_back(**knobs) if count <= 2 else net.star(count, **knobs)

    def close(self):
        self.world.close()
        for card in self.cards:
            card.close()
