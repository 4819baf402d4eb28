"""Values of SETUP.json, one object at a time, each checked; every mistake is named by its full path."""

import ipaddress
import json
import re

from .errors import ReplayError

__all__ = ["Reader", "show"]

MISSING = object()


class Reader:
    """One JSON object: hands out its values, each checked, and refuses names that nobody knows."""

    def __init__(self, value, path, known):
        self.value, self.path = value, path
        if not isinstance(value, dict):
            raise ReplayError(f"{path or 'the setup'}: must be an object, not {show(value)}")
        for name in value:
            if name not in known:
                raise ReplayError(f"{self.at(name)}: unknown key; known here are {', '.join(known)}")

    def at(self, name):
        return f"{self.path}.{name}" if self.path else name

    def fail(self, name, text):
        raise ReplayError(f"{self.at(name)}: {text}")

    def get(self, name, default=MISSING):
        value = self.value.get(name, default)
        if value is MISSING:
            self.fail(name, "is missing")
        return value

    def integer(self, name, low, high, default=MISSING):
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(name, f"must be a whole number, not {show(value)}")
        if not low <= value <= high:
            self.fail(name, f"{value} is outside {low}..{high}")
        return value

    def number(self, name, low, high, default=MISSING):
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(name, f"must be a number, not {show(value)}")
        if not low <= value <= high:
            self.fail(name, f"{value} is outside {low}..{high}")
        return value

    def text(self, name, default=MISSING):
        value = self.get(name, default)
        if not isinstance(value, str):
            self.fail(name, f"must be a text, not {show(value)}")
        return value

    def word(self, name, words, default=MISSING):
        value = self.text(name, default)
        if value not in words:
            self.fail(name, f"{value!r} is not one of {', '.join(words)}")
        return value

    def array(self, name, default=MISSING):
        value = self.get(name, default)
        if not isinstance(value, list):
            self.fail(name, f"must be a list, not {show(value)}")
        return [(item, f"{self.at(name)}[{i}]") for i, item in enumerate(value)]

    def mac(self, name):
        value = self.text(name)
        if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", value):
            self.fail(name, f"{value!r} is not a MAC address such as 02:00:00:00:00:01")
        return value

    def address(self, name, kind):
        value = self.text(name)
        try:
            return kind(value)
        except ValueError:
            self.fail(name, f"{value!r} is not an {'IPv4' if kind is ipaddress.IPv4Address else 'IPv6'} address")


def show(value):
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
