"""The designs of a report: every combination of the presets, transports, widths, numbers of QPs and families asked for."""

from dataclasses import dataclass
from itertools import product

from optinic.config import ConfigError, NicConfig, preset as make_config

from .flow import FLOWS, FlowError

__all__ = ["Design", "designs_of", "more_designs", "words"]


@dataclass(frozen=True)
class Design:
    """`card` names the configuration, `name` the configuration mapped to a family."""
    preset: str
    cfg: NicConfig
    family: str

    @property
    def card(self):
        return f"{self.cfg.transport}-{self.preset}-{self.cfg.data_width}b-{self.cfg.num_qps}qp"

    @property
    def name(self):
        return f"{self.card}-{self.family}"


def words(text):
    """The parts of a list with commas, each once, in their order."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(option, text):
    try:
        return [int(part.replace("_", "")) for part in words(text)]
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a list of whole numbers; for example {option} 1024,10240") from None


def designs_of(presets, transports, qps=None, widths=None, families="xcup", settings=()):
    """The designs, by family last. The arguments are lists with commas, as on a command line; `settings` are knob=value.

    Two combinations that come to the same configuration are one design. Raises `ConfigError` or `FlowError` on what can't be built.
    """
    knobs = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting!r} has no '='; write --set knob=value, for example --set rc_outstanding=32")
        knobs[name] = NicConfig.parse(name, text)
    for family in words(families):
        if family not in FLOWS:
            raise FlowError(f"--family {family!r} is unknown; known are {', '.join(FLOWS)}")
    found = {}
    for base, transport, n, width, family in product(words(presets), words(transports), _numbers("--qps", qps) if qps else [None],
                                                     _numbers("--width", widths) if widths else [None], words(families)):
        own = dict(knobs, transport=transport)
        if n is not None:
            own["num_qps"] = n
        if width is not None:
            own["data_width"] = width
        design = Design(base, make_config(base, **own), family)
        found.setdefault((design.cfg, family), design)
    if not found:
        raise ConfigError("no design: a list of --preset, --transport or --family is empty")
    return list(found.values())


def more_designs(text, settings=()):
    """Designs from one word, PRESET/TRANSPORT/FAMILY[/QPS[/WIDTH]], each part a list with commas."""
    parts = text.split("/")
    if not 3 <= len(parts) <= 5 or not all(part.strip() for part in parts):
        raise ConfigError(f"--also {text!r} is not PRESET/TRANSPORT/FAMILY[/QPS[/WIDTH]]; for example --also tiny/xp,rc/ecp5")
    preset, transport, family, qps, width = (parts + [None, None])[:5]
    return designs_of(preset, transport, qps, width, family, settings)
