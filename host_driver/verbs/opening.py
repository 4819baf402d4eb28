"""Opening cards, by backend."""

import ipaddress

from ..backends import backend as find_backend
from ..errors import BackendError
from ..queue_pairs import mac_number, mac_text
from .device import Context

__all__ = ["open_device", "open_cards", "Cards"]

FOR_CONTEXT = ("mac", "ip", "ip6", "hold", "log_entries")


def open_device(backend, *, cfg=None, name=None, seed=None, transport=None, **options):
    """A Context for one card.

    `backend`: "model" or "rtl", a simulated card of the configuration `cfg` (a NicConfig or the name of a preset) with nothing
    at the other end of its cable; or "pci", whose options `host_driver.backends.pci` describes, and which checks the card
    against `cfg` if that is given. `transport`: "xp" or "rc", a change to the configuration; a board must be of it. `mac`,
    `ip`, `ip6`, `hold`, `log_entries` and `seed` as of Context; all other options are the backend's.
    """
    about = {key: options.pop(key) for key in FOR_CONTEXT if key in options}
    name = name or f"optinic_{backend}"
    if backend == "pci":
        device = find_backend(backend).open_device(**options)
        context = _context(device, device, cfg=cfg, name=name, seed=seed, **about)
        if transport not in (None, context.card.transport):
            context.close()
            raise BackendError(f"the board is of transport {context.card.transport}, not {transport}")
        return context
    cards = _simulated(backend, 1, cfg, seed, transport, options)
    return _context(cards.devices[0], cards, cfg=cards.cards[0].cfg, name=name, seed=0 if seed is None else seed, **about)


def open_cards(backend, count=2, *, cfg=None, seed=None, transport=None, mac="02:00:00:00:00:01", ip="10.0.0.1", ip6="fd00::1",
               hold=False, log_entries=1024, **options):
    """Contexts for `count` simulated cards on one network, as a list that closes them (:class:`Cards`). Addresses count up from
    those given. `seed` decides everything that is random. Options: `network`, a network of `sim.network` with a port a card; or
    what the links of a cable between two (of a switch between more) shall be: rate, delay_ns, loss, ...; `changes`, a dict of
    changes to the configuration, `transport`, "xp" or "rc", being one of them; `knobs` of the simulated device."""
    if backend == "pci":
        raise BackendError("boards are opened one by one: open_device(\"pci\", ...)")
    simulation = _simulated(backend, count, cfg, seed, transport, options)
    return Cards(simulation, mac, ip, ip6, 0 if seed is None else seed, hold, log_entries)


class Cards(list):
    """Contexts of the cards of one simulation. `network` is their network, `world` what runs them."""

    def __init__(self, simulation, mac, ip, ip6, seed, hold, log_entries):
        self._simulation = simulation
        self.network, self.world = simulation.network, simulation.world
        try:
            for i, device in enumerate(simulation.devices):
                self.append(Context(device, cfg=simulation.cards[i].cfg, mac=mac_text(mac_number(mac) + i),
                                    ip=str(ipaddress.ip_address(ip) + i), ip6=ip6 and str(ipaddress.ip_address(ip6) + i),
                                    seed=seed + i, name=f"optinic{i}", hold=hold, log_entries=log_entries))
            # While one program waits, time passes for all of them; an operating system would answer for each.
            everybody = [context.neighbours for context in self]
            for context in self:
                context.serves = everybody
        except Exception:
            simulation.close()
            raise

    def close(self):
        for context in reversed(self):
            context.close()
        self._simulation.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _simulated(backend, count, cfg, seed, transport, options):
    if transport is not None:
        options["changes"] = {**(options.get("changes") or {}), "transport": transport}
    if cfg is not None:
        options["cfg"] = cfg
    if seed is not None:
        options["seed"] = seed
    return find_backend(backend).open_devices(count, **options)


def _context(device, owns, **about):
    try:
        return Context(device, owns=owns, **about)
    except Exception:
        owns.close()
        raise
