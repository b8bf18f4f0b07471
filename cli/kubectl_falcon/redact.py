"""Takes what may be a secret out of objects and logs before they leave the cluster in a bug report.

Three things are done. Values of environment variables, of HTTP headers and of a volume driver's attributes are taken
out wherever an object has them. Text that looks like a secret is taken out everywhere (``falcon_core.text``). The value
of each environment variable whose name sounds like a secret is remembered, and taken out wherever else it stands, logs
included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from falcon_core.text import REDACTED, clean

_NAMED_VALUES = ("env", "httpHeaders")  # lists of name and value
_VALUE_MAPS = ("volumeAttributes", "options")  # maps of a volume driver's own
_DROPPED = ("managedFields",)  # of no use to a reader
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)  # the object once more, unredacted
_SECRET_NAME = re.compile(r"key|token|secret|pass|credential|auth|dsn|webhook", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"^--?[\w-]*(?:key|token|secret|pass(?:word|wd)?|credential)[\w-]*$", re.IGNORECASE)
_LEAST = 6  # characters: a shorter value stands in too many places by chance


def secret_values(objects: Iterable[object]) -> set[str]:
    """Return the literal values of all environment variables whose names sound like a secret."""
    found: set[str] = set()
    for each in objects:
        _collect(each, found)
    return found


def _collect(value: object, found: set[str]) -> None:
    if isinstance(value, dict):
        named, text = value.get("name"), value.get("value")
        if isinstance(named, str) and isinstance(text, str) and _SECRET_NAME.search(named) and len(text) >= _LEAST:
            found.add(text)
        for part in value.values():
            _collect(part, found)
    elif isinstance(value, list):
        for part in value:
            _collect(part, found)


class Redaction:
    """Redacts objects and texts. ``secrets``: values that are taken out wherever they stand."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted(secrets, key=len, reverse=True)  # a value that contains another one goes first

    def text(self, text: str) -> str:
        """Return the text without control characters and secrets."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return clean(text)

    def value(self, value: Any) -> Any:
        """Return a decoded JSON value without secrets."""
        match value:
            case dict():
                return {
                    self.text(str(key)): self._field(str(key), part)
                    for key, part in value.items()
                    if key not in _DROPPED
                }
            case list():
                return self._items(value)
            case str():
                return self.text(value)
        return value

    def _field(self, key: str, value: Any) -> Any:
        if key in _NAMED_VALUES and isinstance(value, list):
            return [self._named(each) if isinstance(each, dict) else self.value(each) for each in value]
        if key in _VALUE_MAPS and isinstance(value, dict):
            return dict.fromkeys(value, REDACTED)
        if key == "annotations" and isinstance(value, dict):
            return self.value({name: text for name, text in value.items() if name not in _DROPPED_ANNOTATIONS})
        return self.value(value)

    def _named(self, each: Mapping[str, Any]) -> dict[str, Any]:
        """Redact an entry of name and value; where the value comes from elsewhere, its source stays."""
        return {key: REDACTED if key == "value" else self.value(part) for key, part in each.items()}

    def _items(self, items: list[Any]) -> list[Any]:
        """Redact a list; an argument that follows a flag for a secret is one."""
        found = []
        for before, each in zip([None, *items], items, strict=False):
            follows = isinstance(before, str) and isinstance(each, str) and _SECRET_FLAG.match(before)
            found.append(REDACTED if follows and not each.startswith("-") else self.value(each))
        return found
