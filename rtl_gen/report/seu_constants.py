"""The constants behind an estimate of soft errors: each with a range, and where it comes from."""

from dataclasses import dataclass, fields, replace
import json
from pathlib import Path
import tomllib

__all__ = ["Constant", "Constants", "ConstantError"]

KINDS = ("cited", "assumed", "measured", "given")


class ConstantError(ValueError):
    """A constant that doesn't exist, or a value that it can't have."""


@dataclass(frozen=True)
class Constant:
    """`value` lies in `low`..`high`, what it may well be; `kind` says what stands behind it: a public source that is named ("cited"),
    an order of magnitude ("assumed"), fault injection here ("measured"), or the user ("given")."""
    value: float
    low: float
    high: float
    unit: str
    kind: str
    source: str


def _constant(value, low, high, unit, kind, source, *, share=False):
    from dataclasses import field
    return field(default=Constant(value, low, high, unit, kind, source), metadata={"share": share})


@dataclass(frozen=True)
class Constants:
    """1 FIT is one failure in 10^9 hours; 1 Mb is 2^20 bits."""
    flux: Constant = _constant(
        1.0, 1.0, 13.0, "of sea level, New York City", "assumed",
        "1 is JESD89A's reference flux; some 13 times as much at 3,100 m (Leadville), a figure not looked up. Both cards share it: the ratio doesn't move")
    fit_config: Constant = _constant(
        4.0, 3.0, 5.0, "FIT/Mb", "assumed",
        "order of magnitude for UltraScale+ configuration RAM; put in the value of AMD UG116, Table 3, of the edition at hand")
    fit_bram: Constant = _constant(
        12.0, 8.0, 15.0, "FIT/Mb", "assumed", "order of magnitude for UltraScale+ block RAM; as fit_config, UG116")
    fit_uram: Constant = _constant(
        8.0, 3.0, 15.0, "FIT/Mb", "assumed", "lower than block RAM; as fit_config, UG116")
    fit_ff: Constant = _constant(
        4.0, 1.0, 10.0, "FIT/Mb", "assumed", "UG116 gives none for flip-flops; taken as configuration RAM")
    fit_lutram: Constant = _constant(
        4.0, 3.0, 5.0, "FIT/Mb", "assumed", "LUTs that serve as memory are cells of the configuration RAM (AMD PG187, memory types)")
    device_bitstream_bits: Constant = _constant(
        641_272_864, 641_272_864, 641_272_864, "bits", "cited", "full bitstream of a VU9P (AMD UG570, table of bitstream lengths)")
    device_bram36: Constant = _constant(2160, 2160, 2160, "", "assumed", "a VU9P, not looked up (AMD DS890 has it); their contents are no configuration")
    device_lut: Constant = _constant(1_182_240, 1_182_240, 1_182_240, "", "assumed", "a VU9P, not looked up (AMD DS890 has it)")
    device_dsp: Constant = _constant(6840, 6840, 6840, "", "assumed", "a VU9P, not looked up (AMD DS890 has it)")
    weight_lut: Constant = _constant(
        0.80, 0.70, 0.90, "of the configuration", "assumed", "share that LUTs, registers and their routing have", share=True)
    weight_bram: Constant = _constant(
        0.12, 0.05, 0.18, "of the configuration", "assumed", "share of the block RAM columns, their contents not counted", share=True)
    weight_dsp: Constant = _constant(0.05, 0.02, 0.08, "of the configuration", "assumed", "share of the DSP columns", share=True)
    avf_config: Constant = _constant(
        0.05, 0.05, 0.10, "of upsets", "cited", "device vulnerability factor: 5 % typical, never above 10 % (AMD UG116)", share=True)
    avf_tables: Constant = _constant(
        0.10, 0.01, 0.50, "of upsets", "assumed", "without fault injection; measured() replaces it", share=True)
    avf_buffers: Constant = _constant(
        0.10, 0.01, 0.50, "of upsets", "assumed", "without fault injection; measured() replaces it", share=True)
    avf_ff: Constant = _constant(
        0.10, 0.01, 0.50, "of upsets", "assumed", "without fault injection; measured() replaces it", share=True)
    ecc_tables: Constant = _constant(
        0.0, 0.0, 1.0, "of table bits", "given", "share whose single errors are corrected: 0 for table_protection=none", share=True)
    ecc_buffers: Constant = _constant(
        0.0, 0.0, 1.0, "of buffer bits", "given", "share whose single errors are corrected: the design protects none", share=True)
    nodes: Constant = _constant(
        15_000, 1_000, 100_000, "cards", "cited", "size of the published comparison (arXiv 2512.22743); the ratio doesn't move")

    def value(self, name):
        return getattr(self, name).value

    def with_(self, kind="given", source="given by the user", **values):
        """A copy with other values. A value may be a number, which becomes its range too, or a dict of fields of Constant."""
        changed = {}
        known = {f.name: f for f in fields(self)}
        for name, value in values.items():
            if name not in known:
                raise ConstantError(f"unknown constant {name!r}; known are {', '.join(sorted(known))}")
            old = getattr(self, name)
            if isinstance(value, dict):
                strange = value.keys() - {"value", "low", "high", "kind", "source"}
                if strange or "value" not in value:
                    raise ConstantError(f"{name}={value!r}: give value, and if you like low, high, kind, source")
                number = _number(name, value["value"])
                low, high = (_number(name, value.get(end, number)) for end in ("low", "high"))
                new = replace(old, value=number, low=low, high=high, kind=value.get("kind", kind),
                              source=value.get("source", source))
            else:
                number = _number(name, value)
                new = replace(old, value=number, low=number, high=number, kind=kind, source=source)
            if new.kind not in KINDS:
                raise ConstantError(f"{name}: kind {new.kind!r} is not one of {', '.join(KINDS)}")
            share = known[name].metadata["share"]
            if not 0 <= new.low <= new.value <= new.high or share and new.high > 1:
                raise ConstantError(f"{name}={new.value} (from {new.low} to {new.high}) has to be "
                                    f"{'from 0 to 1' if share else 'positive'}, inside its range")
            changed[name] = new
        return replace(self, **changed)

    def set(self, settings):
        """With the settings of a command line, each "name=number"."""
        found = self
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise ConstantError(f"{setting!r} has no '='; write for example fit_bram=10.5")
            found = found.with_(**{name: text})
        return found

    @classmethod
    def load(cls, path):
        """From a JSON or TOML file (by its name) of names and values, as of :meth:`with_`; what it doesn't name is as here."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
            found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        except ValueError as error:
            raise ConstantError(f"{path} is neither JSON nor TOML: {error}") from None
        if not isinstance(found, dict):
            raise ConstantError(f"{path} holds no names with values; write for example {{\"fit_bram\": 10.5}}")
        return cls().with_(source=f"from {path.name}", **found)

    def measured(self, summary, what="failure"):
        """With the vulnerability factors of a fault injection (one result of `optinic inject`), each with its 95 % interval; `what`:
        "failure", whatever goes wrong, or "serious", silent corruption and hangs alone."""
        source = f"fault injection: {summary['transport']}, preset {summary['preset']}, seed {summary['seed']}"
        names = {"tables": "avf_tables", "buffers": "avf_buffers", "registers": "avf_ff"}
        found = {}
        for target, name in names.items():
            if target in summary["targets"] and summary["targets"][target]["runs"]:
                share = summary["targets"][target][what]
                found[name] = {"value": share["share"], "low": share["low"], "high": share["high"]}
        return self.with_(kind="measured", source=source, **found)

    def rows(self):
        """[{"name", "value", "low", "high", "unit", "kind", "source"}], for a report."""
        return [{"name": f.name, **vars(getattr(self, f.name))} for f in fields(self)]


def _number(name, value):
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConstantError(f"{name}={value!r} is not a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ConstantError(f"{name}={value!r} is not a finite number")
    return number
